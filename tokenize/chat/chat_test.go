package chat_test

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"epp.internal/epp/internal/testtok"
	"epp.internal/epp/openai"
	"epp.internal/epp/tokenize/chat"
	"github.com/cockroachdb/datadriven"
)

// Each request of testdata/requests.json gives, by each template of
// testdata/templates, the text that vLLM's own code gives, or fails where it
// fails. testdata/make_vectors.py makes the vectors.
func TestAgainstVLLM(t *testing.T) {
	checkVectors(t, "vectors.jsonl", func(name string) *chat.Template {
		source, err := os.ReadFile("testdata/templates/" + name + ".jinja")
		if err != nil {
			t.Fatal(err)
		}
		tmpl, err := chat.Load("", config(t, string(source)))
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		return tmpl
	})
}

// The same requests by the real template of Qwen 3.
func TestQwen3AgainstVLLM(t *testing.T) {
	_, configJSON := testtok.Qwen3(t)
	checkVectors(t, "qwen3.jsonl", func(string) *chat.Template {
		tmpl, err := chat.Load("", configJSON)
		if err != nil {
			t.Fatal(err)
		}
		return tmpl
	})
}

func checkVectors(t *testing.T, file string, load func(name string) *chat.Template) {
	t.Helper()
	text, err := os.ReadFile("testdata/requests.json")
	if err != nil {
		t.Fatal(err)
	}
	var requests []json.RawMessage
	if err := json.Unmarshal(text, &requests); err != nil {
		t.Fatal(err)
	}
	vectors, err := os.Open("testdata/" + file)
	if err != nil {
		t.Fatal(err)
	}
	defer vectors.Close()
	templates := map[string]*chat.Template{}
	lines := bufio.NewScanner(vectors)
	lines.Buffer(nil, 1<<20)
	rendered := 0
	for lines.Scan() {
		var v struct {
			Template, Out, Error string
			Request              int
		}
		if err := json.Unmarshal(lines.Bytes(), &v); err != nil {
			t.Fatal(err)
		}
		if templates[v.Template] == nil {
			templates[v.Template] = load(v.Template)
		}
		got, err := templates[v.Template].Render(body(t, string(requests[v.Request])))
		switch {
		case v.Error != "" && err == nil:
			t.Errorf("%s, request %d: got %q\nvLLM fails: %s", v.Template, v.Request, got, v.Error)
		case v.Error == "" && err != nil:
			t.Errorf("%s, request %d: got %v\nwant %q", v.Template, v.Request, err, v.Out)
		case got != v.Out:
			t.Errorf("%s, request %d:\ngot  %q\nwant %q", v.Template, v.Request, got, v.Out)
		case v.Error == "":
			rendered++
		}
	}
	if rendered < 20*len(templates)/2 {
		t.Errorf("only %d of the vectors render", rendered)
	}
}

// config returns a tokenizer_config.json with a template and two special tokens.
func config(t testing.TB, template string) []byte {
	t.Helper()
	data, err := json.Marshal(map[string]any{"chat_template": template, "bos_token": "<s>", "eos_token": map[string]any{"content": "</s>", "lstrip": false}, "unk_token": nil})
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// body reads a chat request, which need not name a model.
func body(t testing.TB, text string) *openai.Body {
	t.Helper()
	b, err := openai.Read("/v1/chat/completions", []byte(text))
	if b == nil {
		t.Fatalf("%v in %s", err, text)
	}
	return b
}

// testdata/load holds templates that are refused when they are loaded, and why;
// testdata/notrenderable holds requests that only the engine can render.
func TestDatadriven(t *testing.T) {
	simple, err := chat.Load("", config(t, "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"))
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range []string{"testdata/load", "testdata/notrenderable"} {
		datadriven.RunTest(t, file, func(t *testing.T, d *datadriven.TestData) string {
			var err error
			switch d.Cmd {
			case "template":
				_, err = chat.Load("", config(t, d.Input))
			case "config":
				_, err = chat.Load("", []byte(d.Input))
			case "render":
				var text string
				if text, err = simple.Render(body(t, d.Input)); err == nil {
					return text
				}
				if !errors.Is(err, chat.ErrNotRenderable) {
					t.Errorf("%v is not ErrNotRenderable", err)
				}
			}
			if err == nil {
				return "ok\n"
			}
			return err.Error() + "\n"
		})
	}
}

// A model with several templates uses "tool_use" where the request has tools, an
// empty list too; a chat_template.jinja comes before all.
func TestNamedTemplates(t *testing.T) {
	configJSON := []byte(`{"chat_template":[{"name":"default","template":"plain {{ bos_token is defined }}"},{"name":"tool_use","template":"tools {{ tools | length }}"}]}`)
	tmpl, err := chat.Load("", configJSON)
	if err != nil {
		t.Fatal(err)
	}
	const messages = `{"messages":[{"role":"user","content":"a"}]`
	for request, want := range map[string]string{
		messages + `}`:              "plain False",
		messages + `,"tools":null}`: "plain False",
		messages + `,"tools":[]}`:   "tools 0",
		messages + `,"tools":[{"type":"function","function":{"name":"f"}}],"tool_choice":"none"}`: "tools 1",
	} {
		if got, err := tmpl.Render(body(t, request)); err != nil || got != want {
			t.Errorf("%s: got %q, %v, want %q", request, got, err, want)
		}
	}
	over, err := chat.Load("file {{ messages[0].content }}", configJSON)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := over.Render(body(t, messages+`}`)); err != nil || got != "file a" {
		t.Errorf("chat_template.jinja: got %q, %v", got, err)
	}
}

// A template that writes the date needs a clock, and writes it as Python does.
func TestClock(t *testing.T) {
	tmpl, err := chat.Load("", config(t, `{{ strftime_now("%d %b %Y, %A %-d %B %H:%M:%S %j %y %I%p 100%%") }}`))
	if err != nil {
		t.Fatal(err)
	}
	b := body(t, `{"messages":[{"role":"user","content":"a"}]}`)
	if _, err := tmpl.Render(b); !errors.Is(err, chat.ErrNotRenderable) {
		t.Errorf("without a clock: got %v", err)
	}
	tmpl.SetClock(func() time.Time { return time.Date(2026, 2, 3, 4, 5, 6, 0, time.UTC) })
	const want = "03 Feb 2026, Tuesday 3 February 04:05:06 034 26 04AM 100%"
	if got, err := tmpl.Render(b); err != nil || got != want {
		t.Errorf("got  %q, %v\nwant %q", got, err, want)
	}
}

// What a template raises is said by its own words.
func TestRaised(t *testing.T) {
	tmpl, err := chat.Load("", config(t, `{{ raise_exception("no " ~ messages[0].role) }}`))
	if err != nil {
		t.Fatal(err)
	}
	_, err = tmpl.Render(body(t, `{"messages":[{"role":"user","content":"a"}]}`))
	if err == nil || err.Error() != "no user" || errors.Is(err, chat.ErrNotRenderable) {
		t.Errorf("got %v", err)
	}
}

// Whatever a body is, it renders, or there is an error.
func FuzzRender(f *testing.F) {
	text, err := os.ReadFile("testdata/requests.json")
	if err != nil {
		f.Fatal(err)
	}
	for line := range bytes.SplitSeq(text, []byte("\n")) {
		f.Add(bytes.TrimSuffix(line, []byte(",")))
	}
	var templates []*chat.Template
	for _, name := range []string{"llama3", "mistral", "schema", "parts"} {
		source, err := os.ReadFile("testdata/templates/" + name + ".jinja")
		if err != nil {
			f.Fatal(err)
		}
		tmpl, err := chat.Load("", config(f, string(source)))
		if err != nil {
			f.Fatal(err)
		}
		templates = append(templates, tmpl)
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		b, _ := openai.Read("/v1/chat/completions", text)
		if b == nil {
			return
		}
		for _, tmpl := range templates {
			one, err1 := tmpl.Render(b)
			two, err2 := tmpl.Render(b)
			if one != two || (err1 == nil) != (err2 == nil) {
				t.Fatalf("two renderings differ: %q, %v and %q, %v", one, err1, two, err2)
			}
		}
	})
}

// BenchmarkRender: a chat of 20 turns by Qwen 3's template.
func BenchmarkRender(b *testing.B) {
	_, configJSON := testtok.Qwen3(b)
	tmpl, err := chat.Load("", configJSON)
	if err != nil {
		b.Fatal(err)
	}
	turn := `{"role":"user","content":"` + strings.Repeat("What is it? ", 30) + `"},{"role":"assistant","content":"` + strings.Repeat("It is so. ", 30) + `"},`
	chatBody := body(b, `{"messages":[`+strings.Repeat(turn, 10)+`{"role":"user","content":"Why?"}]}`)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := tmpl.Render(chatBody); err != nil {
			b.Fatal(err)
		}
	}
}

func ExampleTemplate_Render() {
	tmpl, err := chat.Load("", []byte(`{"chat_template":"{% for m in messages %}<|{{ m.role }}|>{{ m.content }}{% endfor %}<|assistant|>"}`))
	if err != nil {
		fmt.Println(err)
		return
	}
	b, err := openai.Read("/v1/chat/completions", []byte(`{"model":"m","messages":[{"role":"user","content":[{"type":"text","text":"Hello!"}]}]}`))
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(tmpl.Render(b))
	// Output: <|user|>Hello!<|assistant|> <nil>
}
