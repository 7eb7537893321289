package kube

import (
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"epp.internal/epp/config"
)

// openAPI is a part of an OpenAPI schema.
type openAPI struct {
	Type       string              `json:"type"`
	Properties map[string]*openAPI `json:"properties"`
	Items      *openAPI            `json:"items"`
	Additional *openAPI            `json:"additionalProperties"`
	Enum       []string            `json:"enum"`
	Minimum    *float64            `json:"minimum"`
	Maximum    *float64            `json:"maximum"`
}

// schemaOf reads the schema of one of our CRDs.
func schemaOf(t *testing.T, file string) *openAPI {
	t.Helper()
	data, err := os.ReadFile("../../deploy/crds/" + file)
	if err != nil {
		t.Fatal(err)
	}
	var crd struct {
		Spec struct {
			Versions []struct {
				Schema struct {
					OpenAPIV3Schema *openAPI `json:"openAPIV3Schema"`
				} `json:"schema"`
			} `json:"versions"`
		} `json:"spec"`
	}
	if err := yaml.Unmarshal(data, &crd); err != nil {
		t.Fatal(err)
	}
	return crd.Spec.Versions[0].Schema.OpenAPIV3Schema
}

const (
	policyCRD = "epp.internal_endpointpickerpolicies.yaml"
	modelCRD  = "inference.networking.x-k8s.io_inferencemodels.yaml"
)

// The schemas have exactly the fields that the types have, each of its type.
func TestSchemasAreTheTypes(t *testing.T) {
	policy, model := schemaOf(t, policyCRD), schemaOf(t, modelCRD)
	same(t, "EndpointPickerPolicy.spec", reflect.TypeFor[PolicySpec](), policy.Properties["spec"])
	same(t, "EndpointPickerPolicy.status", reflect.TypeFor[Conditions](), policy.Properties["status"])
	same(t, "InferenceModel.spec", reflect.TypeOf(InferenceModel{}.Spec), model.Properties["spec"])
	same(t, "InferenceModel.status", reflect.TypeFor[Conditions](), model.Properties["status"])
}

// same compares a type with its schema, and reports what differs at path.
func same(t *testing.T, path string, typ reflect.Type, s *openAPI) {
	if s == nil {
		t.Errorf("%s: the schema lacks it", path)
		return
	}
	if typ.Kind() == reflect.Pointer {
		typ = typ.Elem()
	}
	want := ""
	switch {
	case typ == reflect.TypeFor[metav1.Time](), typ.Kind() == reflect.String:
		want = "string"
	case typ.Kind() == reflect.Struct:
		want = "object"
		names := map[string]bool{}
		for i := range typ.NumField() {
			name, _, _ := strings.Cut(typ.Field(i).Tag.Get("json"), ",")
			names[name] = true
			same(t, path+"."+name, typ.Field(i).Type, s.Properties[name])
		}
		for name := range s.Properties {
			if !names[name] {
				t.Errorf("%s.%s: the type lacks it", path, name)
			}
		}
	case typ.Kind() == reflect.Map:
		want = "object"
		same(t, path+"[]", typ.Elem(), s.Additional)
	case typ.Kind() == reflect.Slice:
		want = "array"
		same(t, path+"[]", typ.Elem(), s.Items)
	case typ.Kind() == reflect.Float64:
		want = "number"
	case typ.Kind() == reflect.Int, typ.Kind() == reflect.Int64:
		want = "integer"
	}
	if s.Type != want {
		t.Errorf("%s: the schema has type %q, the Go type wants %q", path, s.Type, want)
	}
}

// What the schema admits of each setting is what the file admits, to the edge.
func TestSchemaAdmitsWhatTheFileDoes(t *testing.T) {
	spec := schemaOf(t, policyCRD).Properties["spec"].Properties
	if got := spec["preset"].Enum; !slices.Equal(got, config.Presets()) {
		t.Errorf("preset: the schema has %q, there are %q", got, config.Presets())
	}
	valid := func(change func(*PolicySpec)) bool {
		r := resolver{in: Input{Base: poolConfig(t, "pool: {gpu: {dcgm: 9400}}")}}
		r.w = &Wanted{Config: clone(r.in.Base)}
		var s PolicySpec
		change(&s)
		_, faults := r.with(&s)
		return len(faults) == 0
	}
	edge := func(name string, set func(*PolicySpec, *int)) {
		low, high := int(*spec[name].Minimum), int(*spec[name].Maximum)
		for n, want := range map[int]bool{low - 1: false, low: true, high: true, high + 1: false} {
			if got := valid(func(s *PolicySpec) { set(s, &n) }); got != want {
				t.Errorf("%s: %d is valid in a file: %v; the schema says %v", name, n, got, want)
			}
		}
	}
	edge("maxQueue", func(s *PolicySpec, n *int) { s.MaxQueue = n })
	edge("podReportIntervalMs", func(s *PolicySpec, n *int) { s.PodReportIntervalMs = n })
	for name, set := range map[string]func(*PolicySpec, string){
		"onSaturated": func(s *PolicySpec, v string) { s.OnSaturated = v },
		"loadSource":  func(s *PolicySpec, v string) { s.LoadSource = v },
	} {
		for _, v := range append(spec[name].Enum, "nonsense") {
			if got := valid(func(s *PolicySpec) { set(s, v) }); got != (v != "nonsense") {
				t.Errorf("%s: %q is valid in a file: %v", name, v, got)
			}
		}
	}
}
