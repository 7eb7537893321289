package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"
)

// TestBadInput: each gets one clear OpenAI-shaped error with the requestID, and
// the next good request is served as if nothing had been.
func TestBadInput(t *testing.T) {
	r := newRig(t, options{engines: 1})
	long := fmt.Sprintf(`{"model":"tiny","messages":[{"role":"user","content":"%s"}]}`, strings.Repeat("a", 17<<20))
	for _, c := range []struct {
		name, path, body, encoding string
		status                     int
		reason, says               string
	}{
		{"cut off", "/v1/chat/completions", `{"model":"tiny","messages":[{"role":`, "", 400, "json_cut_off", "ends after 36 bytes"},
		{"no JSON", "/v1/chat/completions", `hello`, "", 400, "json_invalid", "byte 0"},
		{"empty", "/v1/chat/completions", ``, "", 400, "body_empty", "empty"},
		{"a list", "/v1/chat/completions", `[]`, "", 400, "body_not_an_object", "object"},
		{"model is a number", "/v1/chat/completions", `{"model":5,"messages":[]}`, "", 400, "model_not_a_string", "model"},
		{"no model", "/v1/chat/completions", `{"messages":[]}`, "", 400, "model_missing", "model"},
		{"messages is a string", "/v1/chat/completions", `{"model":"tiny","messages":"hi"}`, "", 400, "messages_not_a_list", "messages"},
		{"20,000 nested brackets", "/v1/chat/completions", `{"model":"tiny","messages":` + strings.Repeat("[", 20000), "", 400, "nesting_too_deep", "deep"},
		{"over the limit", "/v1/chat/completions", long, "", 413, "body_too_large", "bytes"},
		{"unknown model", "/v1/chat/completions", `{"model":"gpt-17","messages":[{"role":"user","content":"hi"}]}`, "", 404, "model_unknown", "gpt-17"},
		{"unknown path", "/v1/unknown", `{}`, "", 404, "path_unknown", "/v1/unknown"},
		{"unknown encoding", "/v1/chat/completions", `{}`, "foo", 415, "encoding_unsupported", "foo"},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := r.post(c.path, []byte(c.body), "Content-Encoding", c.encoding)
			if p.err != nil {
				t.Fatal(p.err)
			}
			var got struct {
				Error struct {
					Message, Type, Code string
					RequestID           string `json:"request_id"`
				}
			}
			if err := json.Unmarshal(p.body, &got); err != nil {
				t.Fatalf("%s: %v", p.body, err)
			}
			if p.status != c.status || got.Error.Code != c.reason {
				t.Errorf("%d %q: %s", p.status, got.Error.Code, got.Error.Message)
			}
			if !strings.Contains(got.Error.Message, c.says) || got.Error.Type == "" {
				t.Errorf("%s", p.body)
			}
			if p.id == "" || got.Error.RequestID != p.id {
				t.Errorf("requestID %q in the header, %q in the body", p.id, got.Error.RequestID)
			}
			if strings.Contains(string(p.body), "127.0.0.1") {
				t.Errorf("the body tells an address: %s", p.body)
			}
			r.must([]message{user("hello")}, 1)
		})
	}
	r.atRest()
}

// TestSelectedLogLine: the log line of a request's ID says where it went and why,
// with the match and the five factors; the client's own id stands beside ours.
func TestSelectedLogLine(t *testing.T) {
	r := newRig(t, options{engines: 2})
	p := r.post("/v1/chat/completions", map[string]any{"model": "tiny", "max_tokens": 2, "messages": []message{user(words(1, 64))}},
		"x-request-id", "mine-7")
	if p.status != http.StatusOK {
		t.Fatalf("%d %s", p.status, p.body)
	}
	lines := r.log.find("selected", p.id)
	if len(lines) != 1 {
		t.Fatalf("%d lines\n%s", len(lines), r.log)
	}
	for _, key := range []string{"pod", "address", "reason", "composite", "matchRatio", "cache", "load", "queue", "health", "adapter"} {
		if _, ok := lines[0][key]; !ok {
			t.Errorf("no %q in %v", key, lines[0])
		}
	}
	if lines[0]["clientRequestID"] != "mine-7" || lines[0]["pod"] != p.servedBy {
		t.Errorf("%v", lines[0])
	}
	if strings.Contains(r.log.String(), strings.Fields(words(1, 64))[5]+" "+strings.Fields(words(1, 64))[6]) {
		t.Error("the log holds the prompt")
	}
}

// TestDebugLog: at DEBUG a request has its three log points, and every candidate
// with its factors.
func TestDebugLog(t *testing.T) {
	r := newRig(t, options{engines: 4, level: -4})
	p := r.must([]message{user(words(1, 64))}, 2)
	for _, msg := range []string{"received", "scored", "selected"} {
		if n := len(r.log.find(msg, p.id)); n != 1 {
			t.Errorf("%d lines %q", n, msg)
		}
	}
	scored := r.log.find("scored", p.id)[0]
	top, _ := scored["top"].(map[string]any)
	others, _ := scored["others"].(map[string]any)
	if len(top) != 3 || len(others) != 1 {
		t.Errorf("top %v, others %v", top, others)
	}
	for name, c := range top {
		if m, _ := c.(map[string]any); m["composite"] == nil || m["cache"] == nil || m["adapter"] == nil {
			t.Errorf("%s: %v", name, c)
		}
	}
}
