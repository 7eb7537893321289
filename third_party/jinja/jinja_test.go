package jinja_test

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"testing"

	"epp.internal/epp/third_party/jinja"
)

// What Python renders renders the same here, and what fails there fails here, for
// every template in testdata/templates.txt; the vectors are Python's own answers.
// The exceptions are listed by their template: they are refused by name.
func TestAgainstPython(t *testing.T) {
	refused := map[string]string{
		"{{ big + 0 == big }}": "beyond 64 bits",
		"{{ s.encode() }}":     `unknown method "encode"`,
	}
	vectors := readVectors(t)
	for _, v := range vectors {
		got, err := render(t, v.Template)
		want, known := refused[v.Template]
		switch {
		case known:
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%s\ngot  %q, %v\nwant an error with %q", v.Template, got, err, want)
			}
		case v.Error != "" && err == nil:
			t.Errorf("%s\ngot  %q\nPython fails: %s", v.Template, got, v.Error)
		case v.Error == "" && err != nil:
			t.Errorf("%s\ngot  %v\nwant %q", v.Template, err, v.Out)
		case got != v.Out:
			t.Errorf("%s\ngot  %q\nwant %q", v.Template, got, v.Out)
		}
	}
	if len(vectors) < 150 {
		t.Errorf("only %d vectors", len(vectors))
	}
}

type vector struct{ Template, Out, Error string }

func readVectors(t *testing.T) []vector {
	t.Helper()
	file, err := os.Open("testdata/vectors.jsonl")
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	var out []vector
	lines := bufio.NewScanner(file)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var v vector
		if err := json.Unmarshal(lines.Bytes(), &v); err != nil {
			t.Fatal(err)
		}
		out = append(out, v)
	}
	return out
}

func render(t testing.TB, source string) (string, error) {
	t.Helper()
	tmpl, err := jinja.Compile(source)
	if err != nil {
		return "", err
	}
	return tmpl.Render(data(t))
}

// data returns the variables of testdata/data.json.
func data(t testing.TB) map[string]jinja.Value {
	t.Helper()
	text, err := os.ReadFile("testdata/data.json")
	if err != nil {
		t.Fatal(err)
	}
	dec := json.NewDecoder(bytes.NewReader(text))
	dec.UseNumber()
	root := decode(t, dec)
	out := make(map[string]jinja.Value)
	var names map[string]json.RawMessage
	if err := json.Unmarshal(text, &names); err != nil {
		t.Fatal(err)
	}
	for name := range names {
		out[name], _ = root.AsDict().Get(name)
	}
	return out
}

func decode(t testing.TB, dec *json.Decoder) jinja.Value {
	t.Helper()
	token, err := dec.Token()
	if err != nil {
		t.Fatal(err)
	}
	switch token := token.(type) {
	case nil:
		return jinja.None()
	case bool:
		return jinja.NewBool(token)
	case string:
		return jinja.NewString(token)
	case json.Number:
		return jinja.NewNumber(string(token))
	case json.Delim:
		if token == '[' {
			var items []jinja.Value
			for dec.More() {
				items = append(items, decode(t, dec))
			}
			_, _ = dec.Token()
			return jinja.NewList(items)
		}
		d := jinja.NewDict()
		for dec.More() {
			key := decode(t, dec).AsString()
			d.AsDict().Set(key, decode(t, dec))
		}
		_, _ = dec.Token()
		return d
	}
	panic(fmt.Sprintf("token %v", token))
}

// A template that uses what is not known is refused when it is compiled, by name.
func TestCompileRefuses(t *testing.T) {
	for source, want := range map[string]string{
		"{% trans %}x{% endtrans %}":               `line 1: unknown tag "trans"`,
		"\n{{ x | xmlattr }}":                      `unknown filter "xmlattr"`,
		"{{ x | map('urlize') }}":                  `unknown filter "urlize"`,
		"{{ x | selectattr('a', 'nice') }}":        `unknown test "nice"`,
		"{% if x is nice %}{% endif %}":            `unknown test "nice"`,
		"{{ call_me(1) }}":                         `unknown function "call_me"`,
		"{{ x.swapcase() }}":                       `unknown method "swapcase"`,
		"{% for x in y %}\n{% if x %}{% endfor %}": `line 2: unknown tag "endfor"`,
		"{% for x in y %}":                         "endfor %} is missing",
		"{% break %}":                              `"break" outside of a loop`,
		"{% raw %}x":                               "unclosed raw block",
		"{{ x":                                     "unclosed tag",
		"{{ " + strings.Repeat("(", 1000) + " }}":  "unclosed tag",
		"{{ " + strings.Repeat("(", 1000) + "1" + strings.Repeat(")", 1000) + " }}": "nests more than",
		strings.Repeat("{% if x %}", 1000):                                          "nest more than",
	} {
		if _, err := jinja.Compile(source); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.60s\ngot  %v\nwant %s", source, err, want)
		}
	}
	for _, source := range []string{"{{ f() }}", "{% if g is defined %}{{ g() }}{% endif %}", "{% macro m() %}{% endmacro %}{{ m() }}"} {
		if _, err := jinja.Compile(source, "f"); err != nil {
			t.Errorf("%s: %v", source, err)
		}
	}
}

// A template can't take the process with it: loops, output, recursion and
// repeated text are bounded.
func TestRenderIsBounded(t *testing.T) {
	for source, want := range map[string]string{
		"{% for a in range(100000) %}{% for b in range(100000) %}{% endfor %}{% endfor %}": "rounds",
		"{% set x = 'x' * 10000000 %}{% for a in range(10) %}{{ x }}{% endfor %}":          "longer than",
		"{{ 'x' * 100000000 }}":                           "exceeds",
		"{{ [1] * 100000000 }}":                           "exceeds",
		"{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}": "levels deep",
		"{{ 'a' | center(1000000000) }}":                  "padding",
		"{{ '%1000000000d' % 1 }}":                        "width",
		"{{ 10 ** 100 }}":                                 "beyond 64 bits",
	} {
		if got, err := render(t, source); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s\ngot  %.40q, %v\nwant %s", source, got, err, want)
		}
	}
}

// Whatever a template's text is, it compiles or is refused, and renders or fails.
func FuzzCompile(f *testing.F) {
	text, err := os.ReadFile("testdata/templates.txt")
	if err != nil {
		f.Fatal(err)
	}
	for source := range strings.SplitSeq(string(text), "\n---\n") {
		f.Add(source)
	}
	variables := data(f)
	f.Fuzz(func(t *testing.T, source string) {
		if len(source) > 1000 || strings.Contains(source, "range") || strings.Contains(source, "*") {
			return // what takes long by right
		}
		tmpl, err := jinja.Compile(source)
		if err != nil {
			return
		}
		one, err1 := tmpl.Render(variables)
		two, err2 := tmpl.Render(variables)
		if one != two || (err1 == nil) != (err2 == nil) {
			t.Fatalf("two renderings differ: %q, %v and %q, %v", one, err1, two, err2)
		}
	})
}
