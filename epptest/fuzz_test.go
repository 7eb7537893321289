package epptest

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// Whatever the body, an inference path answers 200 with JSON or an event stream,
// or 400 or 404 in vLLM's form, and leaves nothing in the engine.
func FuzzBody(f *testing.F) {
	for _, body := range []string{
		`{"model":"tiny","messages":[{"role":"user","content":"Hi"}],"max_tokens":2}`,
		`{"messages":[{"role":"user","content":[{"type":"text","text":"a"},{"type":"text","text":"b"}]}],"stream":true}`,
		`{"prompt":["a","b"],"stream":true,"stream_options":{"include_usage":true,"continuous_usage_stats":true}}`,
		`{"prompt":[[1,2,300],[4]],"max_tokens":-1}`, `{"prompt":[1,2],"max_tokens":1e3}`,
		`{"input":"text","cache_salt":"s"}`, `{"input":[1]}`,
		`{"model":"nope"}`, `{"messages":"oops"}`, `{"messages":[7]}`, `{"messages":[{"content":7}]}`,
		`{"prompt":`, `[]`, `null`, ``, strings.Repeat("[", 20_000),
	} {
		f.Add(body)
	}
	e, err := StartEngine(EngineConfig{TimeScale: 1e-6, MaxModelTokens: 200, NoEvents: true})
	if err != nil {
		f.Fatal(err)
	}
	defer e.Close()
	handler := e.process().handler()
	f.Fuzz(func(t *testing.T, body string) {
		for _, path := range []string{"/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/tokenize", "/detokenize"} {
			w := httptest.NewRecorder()
			handler.ServeHTTP(w, httptest.NewRequest(http.MethodPost, path, strings.NewReader(body)))
			answer := w.Body.String()
			switch w.Code {
			case 200:
				if !strings.HasPrefix(answer, "{") && !strings.HasSuffix(answer, "data: [DONE]\n\n") {
					t.Errorf("%s: %s", path, answer)
				}
			case 400, 404:
				if !strings.HasPrefix(answer, `{"error":{"message":`) {
					t.Errorf("%s: status %d: %s", path, w.Code, answer)
				}
			default:
				t.Errorf("%s: status %d: %s", path, w.Code, answer)
			}
		}
		if l := e.Load(); l.Running+l.Waiting != 0 {
			t.Errorf("left behind: %+v", l)
		}
	})
}
