package config

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"epp.internal/epp/decision"
	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

var rewrite = flag.Bool("rewrite", false, "write what Parse says into testdata/*.out")

// Each testdata/X.in.yaml opens with a sentence; X.out is what Parse says of
// it: its faults, or what the file changes from the defaults.
func TestParse(t *testing.T) {
	files, err := filepath.Glob("testdata/*.in.yaml")
	if err != nil || len(files) == 0 {
		t.Fatalf("testdata: %d files, %v", len(files), err)
	}
	for _, in := range files {
		t.Run(strings.TrimSuffix(filepath.Base(in), ".in.yaml"), func(t *testing.T) {
			data, err := os.ReadFile(in)
			if err != nil {
				t.Fatal(err)
			}
			got := told(t, data)
			out := strings.TrimSuffix(in, ".in.yaml") + ".out"
			if *rewrite {
				if err := os.WriteFile(out, []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(out)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(string(want), got); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
}

// told is what Parse says of data, as text.
func told(t *testing.T, data []byte) string {
	c, err := Parse("epp.yaml", data, "cost")
	if err != nil {
		return err.Error() + "\n"
	}
	var b strings.Builder
	changes(&b, "", tree(t, Default()), tree(t, c))
	return b.String()
}

func tree(t *testing.T, c *Config) any {
	data, err := json.Marshal(c)
	if err != nil {
		t.Fatal(err)
	}
	var v any
	if err := json.Unmarshal(data, &v); err != nil {
		t.Fatal(err)
	}
	return v
}

// changes prints a line for each leaf of got that differs from its default.
func changes(b *strings.Builder, path string, base, got any) {
	m, isMap := got.(map[string]any)
	baseMap, hasBase := base.(map[string]any)
	if isMap && hasBase && path != "weights" {
		for _, key := range keysOf(typeAt(path)) {
			changes(b, join(path, key), baseMap[key], m[key])
		}
		return
	}
	if !cmp.Equal(base, got) {
		text, _ := json.Marshal(got)
		fmt.Fprintf(b, "%s = %s\n", path, text)
	}
}

// Case N2, its first part: a cache scorer that waits for events which nobody
// sends is refused when the file is read, and each way to name a source of
// events makes it right.
func TestCaseN2EventsWithoutSource(t *testing.T) {
	file := func(extra string) []byte {
		return []byte("pool: {endpoints: [10.0.0.7:8000]}\ncache: {source: events}\n" + extra)
	}
	_, err := Parse("epp.yaml", file(""))
	if err == nil || !strings.Contains(err.Error(), "epp.yaml:2: cache.source: \"events\" has no source of events") {
		t.Errorf("no source: %v", err)
	}
	for _, source := range []string{"kvEvents: {port: 5557}", "kvEvents: {discover: true}"} {
		if _, err := Parse("epp.yaml", file(source)); err != nil {
			t.Errorf("%s: %v", source, err)
		}
	}
	c, err := Parse("epp.yaml", []byte("pool: {endpoints: [{address: 10.0.0.7:8000, events: 10.0.0.7:5557}]}\ncache: {source: events}"))
	if err != nil || c.DiscoverEvents() {
		t.Errorf("events of the endpoint itself: %v, discover = %v", err, c.DiscoverEvents())
	}
}

// Case N4, its first part: what would exhaust memory or time is refused by name.
func TestCaseN4DangerousRanges(t *testing.T) {
	for setting, path := range map[string]string{
		"weights: {cache: 2, load: -1}":          "weights.load",
		"weights: {cache: .nan, load: 1}":        "weights.cache",
		"weights: {cache: .inf}":                 "weights.cache",
		"maxQueue: 0":                            "maxQueue",
		"maxQueue: -1":                           "maxQueue",
		"load: {maxUtilization: 0}":              "load.maxUtilization",
		"load: {maxUtilization: .nan}":           "load.maxUtilization",
		"limits: {indexBytes: 0}":                "limits.indexBytes",
		"limits: {ringBytes: 0}":                 "limits.ringBytes",
		"limits: {bodyBytes: 99999999999999999}": "limits.bodyBytes",
		"load: {maxRunning: 1000000000}":         "load.maxRunning",
		"limits: {bodiesBytes: 4MiB}":            "limits.bodiesBytes",
		"timeouts: {answer: -1s}":                "timeouts.answer",
	} {
		c, err := Parse("epp.yaml", []byte("pool: {endpoints: [10.0.0.7:8000]}\n"+setting))
		if err == nil || c != nil || !strings.Contains(err.Error(), "epp.yaml:2: "+path+": ") {
			t.Errorf("%s: %v, want a fault of %s", setting, err, path)
		}
	}
}

// Case F4, its first part: weights by which no target could be chosen are refused
// when the file is read, with the field's path; none are equal parts, and 0 is kept.
func TestCaseF4WeightsOfTargets(t *testing.T) {
	file := func(targets string) []byte {
		return []byte("pool: {endpoints: [10.0.0.7:8000]}\nmodels: [{name: m, targets: " + targets + "}]")
	}
	for targets, want := range map[string]string{
		"[{name: a, weight: 0}, {name: b, weight: 0}]":  "epp.yaml:2: models[0].targets: have no weight above 0",
		"[{name: a, weight: -1}, {name: b, weight: 2}]": "epp.yaml:2: models[0].targets[0].weight: -1 is out of range",
		"[{name: a, weight: 1}, {name: b}]":             "epp.yaml:2: models[0].targets: have a weight in 1 of 2 places",
	} {
		if c, err := Parse("epp.yaml", file(targets)); err == nil || c != nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %s", targets, err, want)
		}
	}
	for targets, want := range map[string][]int{
		"[{name: a}, {name: b}]":                         {1, 1},
		"[{name: a, weight: 0}, {name: b, weight: 100}]": {0, 100},
	} {
		c, err := Parse("epp.yaml", file(targets))
		if err != nil {
			t.Fatalf("%s: %v", targets, err)
		}
		var got []int
		for _, target := range c.Models[0].Divided() {
			got = append(got, *target.Weight)
		}
		if !cmp.Equal(got, want) {
			t.Errorf("%s: weights %v, want %v", targets, got, want)
		}
	}
}

// Case L6, its static part: entries of the pool that are no ip:port are refused
// with the text that is wrong and the text that would be right.
func TestCaseL6StaticEndpoints(t *testing.T) {
	for entry, want := range map[string]string{
		"http://10.0.0.7:8000":   `"http://10.0.0.7:8000" has the scheme "http"; an endpoint is ip:port alone: "10.0.0.7:8000"`,
		"10.0.0.7:8000/":         `"10.0.0.7:8000/" has a path or a slash at its end; an endpoint is ip:port alone: "10.0.0.7:8000"`,
		"10.0.0.7":               `"10.0.0.7" is not ip:port: it has no port`,
		"\"10.0.0.7 :8000\"":     `"10.0.0.7 :8000" is not ip:port: it has a blank`,
		"vllm-0:8000":            `"vllm-0" is not an IP address`,
		"10.0.0.7:0":             `"10.0.0.7:0" has port 0`,
		"0.0.0.0:8000":           `"0.0.0.0:8000" is the address of no one host`,
		"169.254.169.254:80":     `"169.254.169.254:80" is link-local`,
		"\"[::ffff:a9fe:1]:80\"": `is link-local`,
		"\"\"":                   `has no address`,
	} {
		_, err := Parse("epp.yaml", []byte("pool: {endpoints: ["+entry+"]}"))
		if err == nil || !strings.Contains(err.Error(), "epp.yaml:1: pool.endpoints[0].address: ") || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v\nwant %s", entry, err, want)
		}
	}
	for _, empty := range []string{"", "pool:", "pool: {endpoints: []}", "pool: {endpoints:}"} {
		if _, err := Parse("epp.yaml", []byte(empty)); err == nil || !strings.Contains(err.Error(), "pool.endpoints: is empty") {
			t.Errorf("%q: %v", empty, err)
		}
	}
}

// The weights that the fault of a wrong sum shows are themselves accepted, as
// near as four digits allow; any weights in proportion to 1 are.
func TestNormalisedWeightsAreAccepted(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := Default()
		c.Pool.Endpoints = []Endpoint{{Address: "10.0.0.7:8000"}}
		sum := 0.0
		for _, name := range scorerOrder(c.Weights) {
			c.Weights[name] = rapid.Float64Range(0, 1000).Draw(t, name)
			sum += c.Weights[name]
		}
		refused := math.Abs(sum-1) > decision.WeightSumTolerance
		if got := len(c.Validate()) > 0; got != refused {
			t.Fatalf("sum %v: refused = %v", sum, got)
		}
		if err := c.Settings(time.Second).Validate(); (err != nil) != refused {
			t.Fatalf("sum %v: config and decision do not agree: %v", sum, err)
		}
		if sum == 0 {
			return
		}
		for name := range c.Weights {
			c.Weights[name] /= sum
		}
		if faults := c.Validate(); len(faults) > 0 {
			t.Fatal(faults)
		}
	})
}

func TestBytesAndDurationReadWhatTheyPrint(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		b := Bytes(rapid.Int64Range(0, 1<<50).Draw(t, "bytes"))
		d := Duration{time.Duration(rapid.Int64().Draw(t, "duration"))}
		var b2 Bytes
		var d2 Duration
		bText, _ := b.MarshalText()
		dText, _ := d.MarshalText()
		if err := b2.UnmarshalText(bText); err != nil || b2 != b {
			t.Fatalf("%s: %d, %v", bText, b2, err)
		}
		if err := d2.UnmarshalText(dText); err != nil || d2 != d {
			t.Fatalf("%s: %v, %v", dText, d2, err)
		}
	})
}

// Every default is in the range that the file may set, so the only fault of an
// empty configuration is its empty pool.
func TestDefaultsAreValid(t *testing.T) {
	faults := Default().Validate()
	if len(faults) != 1 || faults[0].Path != "pool.endpoints" {
		t.Errorf("faults = %v", faults)
	}
}

// FuzzParse: whatever the bytes are, Parse returns a valid configuration or
// faults, each of them on one line.
func FuzzParse(f *testing.F) {
	files, err := filepath.Glob("testdata/*.in.yaml")
	if err != nil {
		f.Fatal(err)
	}
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
	f.Add([]byte("a: &a [*a]\nb: {<<: *a}"))
	f.Add([]byte("{{{{[[[[: : : -"))
	f.Add([]byte("? [a]\n: b\n---\nc"))
	f.Add([]byte("weights: {\"a\\nb\": 1}"))
	f.Fuzz(func(t *testing.T, data []byte) {
		c, err := Parse("epp.yaml", data)
		if err == nil {
			if faults := c.Validate(); len(faults) > 0 {
				t.Errorf("accepted with faults %v", faults)
			}
			return
		}
		e, ok := errors.AsType[*Error](err)
		if !ok || len(e.Faults) == 0 {
			t.Fatalf("error %T with no fault: %v", err, err)
		}
		for _, f := range e.Faults {
			if strings.ContainsAny(f.String(), "\n\r") {
				t.Errorf("fault on several lines: %q", f)
			}
		}
	})
}

// typeAt returns the type of the mapping at path.
func typeAt(path string) reflect.Type {
	t := reflect.TypeFor[Config]()
	for key := range strings.SplitSeq(path, ".") {
		for i := range t.NumField() {
			if t.Field(i).Tag.Get("json") == key {
				t = t.Field(i).Type
				break
			}
		}
	}
	return t
}
