package openai_test

import (
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"testing"

	"epp.internal/epp/openai"
	"github.com/google/go-cmp/cmp"
)

// TestAsChatAsVLLM: what an engine makes of the bodies of Anthropic's messages and
// of responses, by its own functions, is what is made of them here.
func TestAsChatAsVLLM(t *testing.T) {
	type vector struct {
		Name     string
		Merge    bool
		Body     json.RawMessage
		Messages []any
		Tools    any
		Continue bool
	}
	for file, path := range map[string]string{"messages.json": "/v1/messages", "responses.json": "/v1/responses"} {
		data, err := os.ReadFile("testdata/convert/" + file)
		if err != nil {
			t.Fatal(err)
		}
		var vectors []vector
		if err := json.Unmarshal(data, &vectors); err != nil || len(vectors) < 5 {
			t.Fatalf("%s: %d vectors, %v", file, len(vectors), err)
		}
		for _, v := range vectors {
			t.Run(file+" "+v.Name, func(t *testing.T) {
				chat := asChat(t, path, string(v.Body), v.Merge)
				var got struct {
					Messages []any
					Tools    any
					Continue bool `json:"continue_final_message"`
				}
				if err := json.Unmarshal(chat.WithModel("m"), &got); err != nil {
					t.Fatal(err)
				}
				parsed(got.Messages)
				parsed(v.Messages)
				withoutNull(v.Tools)
				if diff := cmp.Diff(v.Messages, got.Messages); diff != "" {
					t.Error(diff)
				}
				if diff := cmp.Diff(v.Tools, got.Tools); diff != "" && path == "/v1/messages" {
					t.Error(diff)
				}
				if got.Continue != v.Continue {
					t.Errorf("continue_final_message is %v", got.Continue)
				}
			})
		}
	}
}

// parsed replaces the arguments of tool calls by what they say: vLLM parses them
// before the template sees them.
func parsed(messages []any) {
	for _, m := range messages {
		calls, _ := m.(map[string]any)["tool_calls"].([]any)
		for _, c := range calls {
			f := c.(map[string]any)["function"].(map[string]any)
			if text, ok := f["arguments"].(string); ok {
				var v any
				if json.Unmarshal([]byte(text), &v) == nil {
					f["arguments"] = v
				}
			}
		}
	}
}

// withoutNull drops the descriptions that are null: a tool without one gets it
// when the tools are rendered.
func withoutNull(tools any) {
	list, _ := tools.([]any)
	for _, tool := range list {
		f := tool.(map[string]any)["function"].(map[string]any)
		if f["description"] == nil {
			delete(f, "description")
		}
	}
}

func asChat(t *testing.T, path, body string, merge bool) *openai.Body {
	t.Helper()
	b, err := openai.Read(path, []byte(body))
	if err != nil {
		t.Fatal(err)
	}
	chat, err := b.AsChat(merge)
	if err != nil {
		t.Fatal(err)
	}
	return chat
}

// The options that a prompt depends on come along, each in the place where the
// chat has it.
func TestAsChatOptions(t *testing.T) {
	for _, c := range []struct{ path, body, want string }{
		{"/v1/messages", `{"model":"m","messages":[{"role":"user","content":"x"}],"thinking":{"type":"disabled"},"output_config":{"effort":"high"}}`, `,"reasoning_effort":"none"}`},
		{"/v1/messages", `{"model":"m","messages":[{"role":"user","content":"x"}],"output_config":{"effort":"high"},"chat_template_kwargs":{"a": 1.0}}`, `,"chat_template_kwargs":{"a": 1.0},"reasoning_effort":"high"}`},
		{"/v1/responses", `{"model":"m","input":"x","reasoning":{"effort":"low"},"tools":[{"type":"web_search"},{"type":"function","name":"f","parameters":{"b":1,"a":2.0},"strict":true}]}`,
			`,"reasoning_effort":"low","tools":[{"type":"function","function":{"name":"f","parameters":{"b":1,"a":2.0},"strict":true}}]}`},
		{"/v1/embeddings", `{"model":"m","messages":[{"role":"user","content":"x"}]}`, `"messages":[{"role":"user","content":"x"}],"add_generation_prompt":false}`},
	} {
		if got := string(asChat(t, c.path, c.body, false).WithModel("m")); !strings.HasSuffix(got, c.want) {
			t.Errorf("%s %s\ngot  %s\nwant …%s", c.path, c.body, got, c.want)
		}
	}
}

// What the body does not hold, or what is rendered in a way that is not known,
// is left to the engine, with the reason.
func TestAsChatRefuses(t *testing.T) {
	for _, c := range []struct{ path, body, want string }{
		{"/v1/responses", `{"model":"m","input":"x","previous_response_id":"r1"}`, "previous_response_id is set"},
		{"/v1/responses", `{"model":"m","input":[{"type":"item_reference","id":"x"}]}`, `input[0]: an item is of type "item_reference"`},
		{"/v1/responses", `{"model":"m","input":[{"type":"reasoning","encrypted_content":"x"}]}`, "reasoning is encrypted"},
		{"/v1/responses", `{"model":"m","input":"x","tools":[{"type":"custom","name":"c"}]}`, `a tool is of type "custom"`},
		{"/v1/messages", `{"model":"m","messages":[{"role":"user","content":[{"type":"document"}]}]}`, `messages[0]: a block is of type "document"`},
		{"/v1/messages", `{"model":"m","messages":[{"role":"system","content":[{"type":"tool_addition"}]}]}`, `a system block is of type "tool_addition"`},
		{"/v1/rerank", `{"model":"m"}`, "a body of form rerank is no chat"},
	} {
		b, err := openai.Read(c.path, []byte(c.body))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := b.AsChat(false); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", c.body, err, c.want)
		}
	}
}

// Media are named by what they refer to, wherever they stand; texts take their
// places.
func TestMedia(t *testing.T) {
	body := `{"model":"m","messages":[{"role":"user","content":[{"type":"text","text":"look"},{"type":"image_url","image_url":{"url":"http://h/a.png"}},{"type":"text","text":"and"},{"type":"input_image","image_url":"http://h/a.png"}]},
		{"role":"user","content":[{"type":"input_audio","input_audio":{"data":"AA","format":"wav"}},{"image_url":null,"uuid":"u","video_url":{"url":"http://h/v"}}]}]}`
	b, err := openai.Read("/v1/chat/completions", []byte(body))
	if err != nil {
		t.Fatal(err)
	}
	media := b.Media()
	if len(media) != 4 || media[0].ID != media[1].ID || media[2].ID == media[3].ID || len(media[0].ID) != 32 || media[3].Message != 1 {
		t.Fatalf("%+v", media)
	}
	text := func(i int) string { return fmt.Sprintf("<%d>", i) }
	for front, want := range map[bool]string{
		false: "look<0>and<1>|<2><3>|",
		true:  "<0><1>lookand|<2><3>|",
	} {
		r, err := openai.Read("/v1/chat/completions", b.WithText(media, front, text))
		if err != nil {
			t.Fatal(err)
		}
		var got strings.Builder
		for _, m := range r.Root.Get("messages").Items() {
			for _, part := range m.Get("content").Items() {
				got.WriteString(part.Get("text").String())
			}
			got.WriteString("|")
		}
		if got.String() != want || len(r.Media()) != 0 {
			t.Errorf("front %v: %s, want %s", front, got.String(), want)
		}
	}
}

// A uuid names media, whether its data is sent, sent otherwise or left out; it is
// not the same for an image and for a sound. Without one, null is nothing.
func TestMediaByUUID(t *testing.T) {
	ids := func(part string) string {
		b, err := openai.Read("/v1/chat/completions", []byte(`{"model":"m","messages":[{"role":"user","content":[`+part+`]}]}`))
		if err != nil {
			t.Fatal(err)
		}
		var all string
		for _, m := range b.Media() {
			all += m.ID
		}
		return all
	}
	first := ids(`{"type":"image_url","image_url":{"url":"http://h/1.png"},"uuid":"u"}`)
	for part, same := range map[string]bool{
		`{"type":"image_url","image_url":null,"uuid":"u"}`:                                       true,
		`{"image_url":null,"uuid":"u"}`:                                                          true,
		`{"type":"image_url","image_url":{"url":"http://h/2.png"},"uuid":"u"}`:                   true,
		`{"type":"image_url","image_url":{},"uuid":"u","video_url":{"url":"http://h/1.png"}}`:    true,
		`{"type":"image_url","image_url":{"url":"http://h/1.png"},"uuid":"v"}`:                   false,
		`{"type":"image_url","image_url":{"url":"http://h/1.png"}}`:                              false,
		`{"type":"image_pil","image_pil":null,"uuid":"u"}`:                                       false,
		`{"type":"audio_url","audio_url":null,"uuid":"u"}`:                                       false,
		`{"type":"image_url","image_url":null,"uuid":null,"video_url":{"url":"http://h/1.png"}}`: false,
	} {
		if id := ids(part); len(id) != 32 || (id == first) != same {
			t.Errorf("%s: ID %q, the first one's is %q", part, id, first)
		}
	}
	for _, part := range []string{`{"type":"image_url","image_url":null}`, `{"type":"text","text":"a","uuid":"u"}`, `{"type":"image_url","image_url":null,"uuid":7}`} {
		if id := ids(part); id != "" {
			t.Errorf("%s: ID %q", part, id)
		}
	}
}

// Whatever the bytes are, what is made of them is a chat that can be read, and
// its media can be taken out of it.
func FuzzAsChat(f *testing.F) {
	for _, file := range []string{"messages.in.json", "responses.in.json"} {
		data, err := os.ReadFile("testdata/convert/" + file)
		if err != nil {
			f.Fatal(err)
		}
		var cases []struct{ Body json.RawMessage }
		if err := json.Unmarshal(data, &cases); err != nil {
			f.Fatal(err)
		}
		for _, c := range cases {
			f.Add([]byte(c.Body))
		}
	}
	f.Add([]byte(`{"model":"m","messages":[{"role":"a","content":[{"image_url":{"url":"x"}},{"text":1}]}],"input":[[1],"x",{"text":"y"}],"query":"q","documents":["d",{"text":"e"},5]}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		for _, path := range []string{"/v1/messages", "/v1/responses", "/v1/embeddings", "/v1/rerank", "/v1/chat/completions"} {
			b, _ := openai.Read(path, body)
			if b == nil {
				continue
			}
			for _, merge := range []bool{false, true} {
				chat, err := b.AsChat(merge)
				if err != nil {
					continue
				}
				media := chat.Media()
				for _, front := range []bool{false, true} {
					r, err := openai.Read("/v1/chat/completions", chat.WithText(media, front, func(int) string { return "\x00\"" }))
					if r == nil {
						t.Fatalf("%s: %s of media: %v", body, path, err)
					}
					if got := r.Media(); len(got) != 0 {
						t.Fatalf("%s: %d media are left", body, len(got))
					}
				}
			}
		}
	})
}
