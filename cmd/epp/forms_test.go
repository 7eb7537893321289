package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"epp.internal/epp/config"
	"epp.internal/epp/decision"
	"epp.internal/epp/epptest"
)

// formCases are bodies of every form whose path the proxy has, with a text that has
// blocks to spare.
var formCases = []struct {
	path, body string
	streams    bool
	// cached is true where the engine says how many tokens it had cached, and exact
	// where the prompt is known to the token.
	cached, exact bool
}{
	{"/v1/chat/completions", `{"model":"alias","max_tokens":3,"messages":[{"role":"system","content":"be brief"},{"role":"user","content":"TEXT"}]}`, true, true, true},
	{"/v1/completions", `{"model":"alias","max_tokens":3,"prompt":"TEXT"}`, true, true, true},
	{"/v1/messages", `{"model":"alias","max_tokens":3,"system":"be brief","messages":[{"role":"user","content":[{"type":"text","text":"TEXT"}]}]}`, true, true, true},
	{"/v1/responses", `{"model":"alias","max_output_tokens":3,"instructions":"be brief","input":"TEXT"}`, true, true, true},
	{"/v1/responses", `{"model":"alias","max_output_tokens":3,"input":[{"role":"user","content":[{"type":"input_text","text":"TEXT"}]},{"type":"message","role":"assistant","content":[{"type":"output_text","text":"yes"}]},{"role":"user","content":"why"}]}`, true, true, true},
	{"/v1/embeddings", `{"model":"alias","input":"TEXT"}`, false, false, true},
	{"/v1/rerank", `{"model":"alias","query":"TEXT","documents":["one","two"]}`, false, false, false},
	{"/v2/rerank", `{"model":"alias","query":"TEXT","documents":["one","two"]}`, false, false, false},
	{"/rerank", `{"model":"alias","query":"TEXT","documents":"one"}`, false, false, false},
}

// TestFormsThroughProxy: every form goes to an engine and back, whole and as a stream:
// the engine sees its own name of the model and nothing else changed, the answer comes
// as the engine gave it, and its usage is in the record. Where it is asked twice, the
// second time's tokens are known before, to the token, and are cached as predicted.
func TestFormsThroughProxy(t *testing.T) {
	r := newRig(t, options{engines: 1, config: func(c *config.Config, _ []*epptest.Engine) {
		c.Models = []config.Model{{Name: "alias", Target: "tiny"}}
	}})
	e := r.engines[0]
	for i, c := range formCases {
		for _, stream := range []bool{false, true} {
			if stream && !c.streams {
				continue
			}
			name := fmt.Sprintf("%d %s stream %v", i, c.path, stream)
			body := strings.Replace(c.body, "TEXT", words(uint64(10*i)+uint64(len(name)), 150), 1)
			if stream {
				body = strings.Replace(body, `"model"`, `"stream":true,"stream_options":{"include_usage":true},"model"`, 1)
			}
			var last decision.End
			for turn := range 2 {
				p := r.post(c.path, json.RawMessage(body))
				if p.err != nil || p.status != http.StatusOK {
					t.Fatalf("%s: %d %s %v", name, p.status, p.body, p.err)
				}
				if got := e.Received(); string(got[len(got)-1].Body) != strings.Replace(body, "alias", "tiny", 1) {
					t.Errorf("%s: the engine got %s", name, got[len(got)-1].Body)
				}
				if !strings.Contains(string(p.body), `"model":"tiny"`) {
					t.Errorf("%s: the answer names no model: %s", name, p.body)
				}
				r.caughtUp()
				rec := r.record(p)
				r.until("the end is recorded", func() bool {
					rec = r.record(p)
					return rec.End.Outcome != ""
				})
				last = rec.End
				if c.exact && rec.PromptTokens != last.PromptTokens {
					t.Errorf("%s: we count %d tokens, the engine %d (%s)", name, rec.PromptTokens, last.PromptTokens, rec.TokenNote)
				}
				if predicted := rec.Candidates[0].CachedTokens(rec.PromptTokens); turn == 1 && c.cached && (predicted != last.CachedTokens || predicted < 128) {
					t.Errorf("%s: %d tokens cached, %d predicted", name, last.CachedTokens, predicted)
				}
			}
			if completion := last.CompletionTokens; c.cached && completion != 3 || last.PromptTokens < 128 {
				t.Errorf("%s: usage %+v", name, last)
			}
		}
	}
	r.atRest()
}
