package chart

import (
	"encoding/json"
	"os"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
)

// Every value that the schema knows stands in values.yaml with its default: that file is
// the manual.
func TestEveryValueIsInTheManual(t *testing.T) {
	data, err := os.ReadFile(schemaFile)
	if err != nil {
		t.Fatal(err)
	}
	var schema property
	if err := json.Unmarshal(data, &schema); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile("../../deploy/chart/values.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var values yaml.Node
	if err := yaml.Unmarshal(text, &values); err != nil {
		t.Fatal(err)
	}
	delete(schema.Properties, "global") // Helm's own, for charts of charts
	delete(schema.Properties, "config") // package config's, and documented there
	schema.compare(t, "", values.Content[0])
}

// property is what the test reads of a JSON schema.
type property struct {
	Properties map[string]*property
}

// compare looks for each property of a schema among the keys of a mapping.
func (p *property) compare(t *testing.T, path string, values *yaml.Node) {
	keys := map[string]*yaml.Node{}
	for i := 0; i+1 < len(values.Content); i += 2 {
		keys[values.Content[i].Value] = values.Content[i+1]
	}
	for name, sub := range p.Properties {
		at := strings.TrimPrefix(path+"."+name, ".")
		value, found := keys[name]
		if !found {
			t.Errorf("values.yaml has no %s, which the schema knows; add it with its default and what it means", at)
			continue
		}
		if value.Kind == yaml.MappingNode && len(value.Content) > 0 {
			sub.compare(t, at, value)
		}
	}
}
