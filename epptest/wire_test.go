package epptest

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"epp.internal/epp/engine"
	"github.com/google/go-cmp/cmp"
)

// shape describes JSON without its values: keys in their order, and the kind of
// each value, null being one. An array is described by the different shapes of
// its elements, so that lists of different lengths are alike.
func shape(t *testing.T, data string) string {
	t.Helper()
	dec := json.NewDecoder(strings.NewReader(data))
	var b bytes.Buffer
	describe(t, dec, &b, "")
	return b.String()
}

func describe(t *testing.T, dec *json.Decoder, b *bytes.Buffer, indent string) {
	t.Helper()
	token, err := dec.Token()
	if err != nil {
		t.Fatalf("shape: %v", err)
	}
	switch token {
	case json.Delim('{'):
		b.WriteString("object\n")
		for dec.More() {
			key, _ := dec.Token()
			fmt.Fprintf(b, "%s  %v: ", indent, key)
			describe(t, dec, b, indent+"  ")
		}
		dec.Token()
	case json.Delim('['):
		b.WriteString("array\n")
		seen := map[string]bool{}
		for dec.More() {
			var element bytes.Buffer
			describe(t, dec, &element, indent+"  ")
			if !seen[element.String()] {
				seen[element.String()] = true
				fmt.Fprintf(b, "%s  of %s", indent, element.String())
			}
		}
		dec.Token()
	default:
		fmt.Fprintf(b, "%T\n", token)
	}
}

// Every answer has the keys of the real engine's, in their order, and nulls
// where it has nulls.
func TestAnswersAreShapedAsVLLMs(t *testing.T) {
	chat := `{"model":"tiny","messages":[{"role":"user","content":"What is the capital of France?"}],"max_tokens":12%s}`
	plain := EngineConfig{NoPromptTokensDetails: true}
	for _, c := range []struct {
		file, path, body string
		cfg              EngineConfig
	}{
		{"turn1.json", "/v1/chat/completions", fmt.Sprintf(chat, ""), EngineConfig{}},
		{"chat.json", "/v1/chat/completions", fmt.Sprintf(chat, ""), plain},
		{"chat_token_ids.json", "/v1/chat/completions", fmt.Sprintf(chat, `,"return_token_ids":true`), plain},
		{"completion.json", "/v1/completions", `{"model":"tiny","prompt":"Hello, world!","max_tokens":6}`, plain},
		{"multiple2.json", "/v1/completions", `{"model":"tiny","prompt":[72,101,108],"max_tokens":2}`, EngineConfig{}},
		{"tokenize_chat.json", "/tokenize", `{"messages":[{"role":"user","content":"Hi"}]}`, plain},
		{"tokenize_prompt.json", "/tokenize", `{"prompt":"Hi","return_token_strs":true}`, plain},
		{"detokenize.json", "/detokenize", `{"tokens":[72,105]}`, plain},
		{"version.json", "/version", "", plain},
		{"load.json", "/load", "", plain},
		{"models_with_lora.json", "/v1/models", "", EngineConfig{Adapters: []string{"sql", "chat"}}},
		{"kv_event_sources.json", "/kv_event_sources", "", plain},
		{"reset_prefix_cache.txt", "/reset_prefix_cache", "{}", plain},
	} {
		t.Run(c.file, func(t *testing.T) {
			status, got := fetch(t, start(t, c.cfg), c.path, c.body)
			if status != http.StatusOK {
				t.Fatalf("status %d: %s", status, got)
			}
			if d := cmp.Diff(shape(t, readFile(t, c.file)), shape(t, got)); d != "" {
				t.Errorf("(-vLLM +fake):\n%s", d)
			}
		})
	}
}

// Errors are the real engine's, but for the value that a wrong field had.
func TestErrorsAreVLLMs(t *testing.T) {
	e := start(t, EngineConfig{MaxModelTokens: 4096})
	for _, c := range []struct {
		file, path, body string
		status           int
	}{
		{"err_unknown_model.json", "/v1/chat/completions", `{"model":"nope","messages":[{"role":"user","content":"Hi"}]}`, 404},
		{"err_bad_json_type.json", "/v1/chat/completions", `{"model":"tiny","messages":"oops"}`, 400},
		{"render_chat.json", "/v1/chat/completions/render", `{}`, 403},
		{"err_too_long.json", "/v1/completions", `{"model":"tiny","prompt":"` + strings.Repeat("a", 4096) + `"}`, 400},
	} {
		t.Run(c.file, func(t *testing.T) {
			status, got := fetch(t, e, c.path, c.body)
			want := strings.Replace(readFile(t, c.file), `, 'input': 'oops'`, "", 1)
			if status != c.status || got != want {
				t.Errorf("status %d\n got %s\nwant %s", status, got, want)
			}
		})
	}
	for path, want := range map[string]int{"/v1/unknown": 404, "/v1/chat/completions": 405} {
		if status, body := fetch(t, e, path, ""); status != want || !strings.HasPrefix(body, `{"detail":`) {
			t.Errorf("GET %s: status %d: %s", path, status, body)
		}
	}
	if status, body := fetch(t, e, "/v1/completions", `{"prompt":`); status != 400 || !strings.Contains(body, "json_invalid") {
		t.Errorf("cut off body: status %d: %s", status, body)
	}
}

// A stream has the real one's events: the role, a token each, the reason of the
// end with the last, the usage if asked for, [DONE].
func TestStreamsAreShapedAsVLLMs(t *testing.T) {
	for _, c := range []struct {
		file, options string
		tokens        int
		cfg           EngineConfig
	}{
		{"stream_usage.sse", `{"include_usage":true}`, 6, EngineConfig{}},
		{"stream_no_usage.sse", `null`, 6, EngineConfig{}},
		{"chat_stream_continuous_usage.sse", `{"include_usage":true,"continuous_usage_stats":true}`, 4, EngineConfig{NoPromptTokensDetails: true}},
	} {
		t.Run(c.file, func(t *testing.T) {
			body := fmt.Sprintf(`{"messages":[{"role":"user","content":"Hi"}],"stream":true,"max_tokens":%d,"stream_options":%s}`, c.tokens, c.options)
			status, got := fetch(t, start(t, c.cfg), "/v1/chat/completions", body)
			if status != http.StatusOK {
				t.Fatalf("status %d: %s", status, got)
			}
			want, have := events(t, readFile(t, c.file)), events(t, got)
			if len(want) != len(have) {
				t.Fatalf("%d events, vLLM has %d:\n%s", len(have), len(want), got)
			}
			for i := range want {
				if want[i] == "[DONE]" {
					if have[i] != want[i] {
						t.Errorf("event %d: %q", i, have[i])
					}
					continue
				}
				if d := cmp.Diff(shape(t, want[i]), shape(t, have[i])); d != "" {
					t.Errorf("event %d (-vLLM +fake):\n%s", i, d)
				}
			}
		})
	}
}

// A stream's text is the answer's, and a text completion streams as a chat does.
func TestStreamsCarryTheAnswer(t *testing.T) {
	e := start(t, EngineConfig{})
	var whole usageOf
	fetchJSON(t, e, "/v1/completions", `{"prompt":"Once","max_tokens":9}`, &whole)
	_, stream := fetch(t, e, "/v1/completions", `{"prompt":"Once","max_tokens":9,"stream":true,"stream_options":{"include_usage":true}}`)
	var text string
	all := events(t, stream)
	for _, ev := range all[:len(all)-1] {
		var chunk usageOf
		if err := json.Unmarshal([]byte(ev), &chunk); err != nil {
			t.Fatal(err)
		}
		for _, c := range chunk.Choices {
			text += c.Text
		}
		if chunk.Usage.Prompt > 0 && (chunk.Usage.Completion != 9 || len(chunk.Choices) != 0) {
			t.Errorf("usage event: %s", ev)
		}
	}
	if text != whole.Choices[0].Text || len(text) != 9 {
		t.Errorf("streamed %q, whole %q", text, whole.Choices[0].Text)
	}
}

// Four forms of a prompt; several prompts get a choice each.
func TestPromptForms(t *testing.T) {
	e := start(t, EngineConfig{})
	for _, c := range []struct {
		prompt        string
		choices, toks int
	}{
		{`"Hi"`, 1, 2},
		{`[72,105]`, 1, 2},
		{`["Hi","there"]`, 2, 7},
		{`[[72,105],[72]]`, 2, 3},
	} {
		var got usageOf
		fetchJSON(t, e, "/v1/completions", `{"prompt":`+c.prompt+`,"max_tokens":3}`, &got)
		if len(got.Choices) != c.choices || got.Usage.Prompt != c.toks || got.Usage.Completion != 3*c.choices {
			t.Errorf("%s: %+v", c.prompt, got)
		}
	}
	for _, bad := range []string{`7`, `[]`, `""`, `[[]]`, `{"a":1}`, `["a",1]`, `[-1]`} {
		if status, body := fetch(t, e, "/v1/completions", `{"prompt":`+bad+`}`); status != 400 {
			t.Errorf("prompt %s: status %d: %s", bad, status, body)
		}
	}
}

// How long an answer is: the request's limit, 16 without one, the model's own
// length where it stops before that, and never past the context.
func TestAnswerLength(t *testing.T) {
	for _, c := range []struct {
		cfg    EngineConfig
		params string
		tokens int
		reason string
	}{
		{EngineConfig{}, `"n":1`, 16, "length"},
		{EngineConfig{}, `"max_tokens":5`, 5, "length"},
		{EngineConfig{}, `"max_tokens":5,"max_completion_tokens":3`, 3, "length"},
		{EngineConfig{AnswerLength: 4}, `"max_tokens":5`, 4, "stop"},
		{EngineConfig{AnswerLength: 4}, `"max_tokens":5,"ignore_eos":true`, 5, "length"},
		{EngineConfig{AnswerLength: 9}, `"max_tokens":5`, 5, "length"},
		{EngineConfig{MaxModelTokens: 10}, `"max_tokens":500`, 8, "length"},
	} {
		var got usageOf
		fetchJSON(t, start(t, c.cfg), "/v1/completions", `{"prompt":"Hi",`+c.params+`}`, &got)
		if got.Usage.Completion != c.tokens || got.Choices[0].FinishReason != c.reason {
			t.Errorf("%+v %s: %d tokens, %q", c.cfg, c.params, got.Usage.Completion, got.Choices[0].FinishReason)
		}
	}
}

// The engine's name is in every reply, and a client's x-request-id becomes the
// answer's id.
func TestHeaders(t *testing.T) {
	e := start(t, EngineConfig{Name: "a"})
	req, _ := http.NewRequestWithContext(within(t), "POST", e.URL()+"/v1/completions", strings.NewReader(`{"prompt":"Hi"}`))
	req.Header.Set("X-Request-Id", "my-id-1")
	resp, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, _ := io.ReadAll(resp.Body)
	var got usageOf
	if err := json.Unmarshal(body, &got); err != nil {
		t.Fatal(err)
	}
	if got.ID != "cmpl-my-id-1" || resp.Header.Get("X-Served-By") != "a" {
		t.Errorf("id %q, served by %q", got.ID, resp.Header.Get("X-Served-By"))
	}
	seen := e.Received()
	if len(seen) != 1 || seen[0].Header.Get("X-Request-Id") != "my-id-1" || string(seen[0].Body) != `{"prompt":"Hi"}` {
		t.Errorf("received %+v", seen)
	}
}

// An embedding computes its prompt, so the next one finds it cached, and takes
// no step more.
func TestEmbeddings(t *testing.T) {
	e := start(t, EngineConfig{Engine: engine.Config{BlockTokens: 16}})
	body := `{"model":"tiny","input":"` + strings.Repeat("word ", 20) + `"}`
	var first, second struct {
		Data []struct {
			Embedding []float64 `json:"embedding"`
		} `json:"data"`
		Usage struct {
			Prompt int `json:"prompt_tokens"`
			Total  int `json:"total_tokens"`
		} `json:"usage"`
	}
	fetchJSON(t, e, "/v1/embeddings", body, &first)
	fetchJSON(t, e, "/v1/embeddings", body, &second)
	if len(first.Data) != 1 || len(first.Data[0].Embedding) != 8 || first.Usage.Prompt != 100 || first.Usage.Total != 100 {
		t.Errorf("embedding: %+v", first)
	}
	if d := cmp.Diff(first, second); d != "" {
		t.Errorf("the same input, another answer:\n%s", d)
	}
	if c := e.Counters(); c.Steps != 2 || c.CachedTokens != 96 || c.AnswerTokens != 0 {
		t.Errorf("counters: %+v", c)
	}
}
