package chart

import (
	"bytes"
	"encoding"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"reflect"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"epp.internal/epp/config"
	"github.com/google/go-cmp/cmp"
)

var rewrite = flag.Bool("rewrite", false, "write the settings into values.schema.json")

const schemaFile = "../../deploy/chart/values.schema.json"

// The part of the chart's schema below "$defs" is package config: each setting with
// its type, and with the range or the words that its fault names. So a file of values
// is refused for what the picker itself would refuse, before anything is installed.
func TestSchemaKnowsEverySetting(t *testing.T) {
	data, err := os.ReadFile(schemaFile)
	if err != nil {
		t.Fatal(err)
	}
	head, _, found := bytes.Cut(data, []byte("\n  \"$defs\": "))
	if !found {
		t.Fatalf("%s has no \"$defs\" as its last key", schemaFile)
	}
	var defs bytes.Buffer
	text := json.NewEncoder(&defs)
	text.SetIndent("  ", "  ")
	text.SetEscapeHTML(false)
	if err := text.Encode(map[string]any{"config": schemaOf(t, reflect.TypeFor[config.Config](), "")}); err != nil {
		t.Fatal(err)
	}
	want := fmt.Sprintf("%s\n  \"$defs\": %s\n}\n", head, bytes.TrimSpace(defs.Bytes()))
	if *rewrite {
		if err := os.WriteFile(schemaFile, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if diff := cmp.Diff(want, string(data)); diff != "" {
		t.Errorf("%s is not the settings of package config; go test ./test/chart -rewrite writes it. -want +got:\n%s", schemaFile, diff)
	}
}

// schemaOf is the JSON schema of a setting.
func schemaOf(t *testing.T, typ reflect.Type, path string) map[string]any {
	switch {
	case typ == reflect.TypeFor[config.Duration]():
		return map[string]any{"type": "string", "pattern": `^([0-9]+(\.[0-9]+)?(ns|us|µs|ms|s|m|h))+$`}
	case typ == reflect.TypeFor[config.Bytes]():
		return map[string]any{"type": []string{"string", "integer"}, "pattern": "^[0-9]+(KiB|MiB|GiB|TiB)?$"}
	case typ == reflect.TypeFor[config.DCGM]():
		return map[string]any{"type": []string{"string", "integer"}}
	}
	switch typ.Kind() {
	case reflect.Struct:
		properties := map[string]any{}
		for f := range typ.Fields() {
			name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
			properties[name] = schemaOf(t, f.Type, strings.TrimPrefix(path+"."+name, "."))
		}
		object := map[string]any{"type": "object", "additionalProperties": false, "properties": properties}
		if typ.Implements(reflect.TypeFor[encoding.TextUnmarshaler]()) || reflect.PointerTo(typ).Implements(reflect.TypeFor[encoding.TextUnmarshaler]()) {
			object["type"] = []string{"object", "string"} // the short form
		}
		return object
	case reflect.Slice:
		return map[string]any{"type": "array", "items": schemaOf(t, typ.Elem(), path+"[0]")}
	case reflect.Map:
		return map[string]any{"type": "object", "additionalProperties": schemaOf(t, typ.Elem(), "")}
	case reflect.Pointer:
		return schemaOf(t, typ.Elem(), path)
	case reflect.Bool:
		return map[string]any{"type": "boolean"}
	case reflect.Float64:
		return map[string]any{"type": "number"}
	case reflect.Int, reflect.Int32, reflect.Int64, reflect.Uint16:
		return ranged(t, path)
	case reflect.String:
		s := map[string]any{"type": "string"}
		if words := wanted(path, "no-such-word"); strings.Contains(words, ", ") {
			s["enum"] = strings.Split(strings.ReplaceAll(words, `""`, ""), ", ")
		}
		return s
	}
	t.Fatalf("%s: no schema for a %v", path, typ)
	return nil
}

// ranged is the schema of a whole number, with the range that its fault names.
func ranged(t *testing.T, path string) map[string]any {
	s := map[string]any{"type": "integer"}
	if path == "" || strings.Contains(path, "[") {
		return s
	}
	low, high, found := strings.Cut(wanted(path, "-1000000000"), "–")
	if !found {
		return s
	}
	for key, digits := range map[string]string{"minimum": low, "maximum": high} {
		n, err := strconv.Atoi(digits)
		if err != nil {
			t.Fatalf("%s: the range %q–%q is not two numbers", path, low, high)
		}
		s[key] = n
	}
	return s
}

var unknown = regexp.MustCompile(`is (?:unknown|out of range); want (.*)$`)

// wanted is what the fault of a setting says that would be right, "" where value is
// no fault that names it.
func wanted(path, value string) string {
	if path == "" || strings.Contains(path, "[") {
		return ""
	}
	var text strings.Builder
	for _, key := range strings.Split(path, ".") {
		fmt.Fprintf(&text, "{%q: ", key)
	}
	text.WriteString(value + strings.Repeat("}", strings.Count(path, ".")+1))
	_, err := config.Parse("", []byte(text.String()))
	faults := (*config.Error)(nil)
	if !errors.As(err, &faults) {
		return ""
	}
	for _, f := range faults.Faults {
		if m := unknown.FindStringSubmatch(f.Text); f.Path == path && m != nil {
			return m[1]
		}
	}
	return ""
}
