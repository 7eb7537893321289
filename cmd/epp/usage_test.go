package main

import (
	"io"
	"net/http"
	"strings"
	"testing"

	"epp.internal/epp/decision"
	"epp.internal/epp/picker"
)

// usageStreams are streams of 17 tokens of prompt, 16 of them cached, and 5 of answer.
var usageStreams = map[string]struct{ path, body, stream, end string }{
	"chat": {
		"/v1/chat/completions", `{"model":"m","stream":true,"messages":[{"role":"user","content":"x"}]}`,
		`data: {"model":"m","choices":[{"delta":{"content":"x"}}]}` + "\n\n" +
			`data: {"choices":[],"usage":{"prompt_tokens":17,"completion_tokens":5,"prompt_tokens_details":{"cached_tokens":16}}}` + "\n\n",
		"data: [DONE]\n\n",
	},
	"messages": {
		"/v1/messages", `{"model":"m","stream":true,"max_tokens":5,"messages":[{"role":"user","content":"x"}]}`,
		"event: message_start\n" + `data: {"type":"message_start","message":{"model":"m","usage":{"input_tokens":1,"cache_read_input_tokens":16,"output_tokens":0}}}` + "\n\n" +
			"event: message_delta\n" + `data: {"type":"message_delta","usage":{"output_tokens":5}}` + "\n\n",
		"event: message_stop\n" + `data: {"type":"message_stop"}` + "\n\n",
	},
	"responses": {
		"/v1/responses", `{"model":"m","stream":true,"input":"x"}`,
		"event: response.output_text.delta\n" + `data: {"type":"response.output_text.delta","delta":"x"}` + "\n\n" +
			"event: response.completed\n" + `data: {"type":"response.completed","response":{"model":"m","usage":{"input_tokens":17,"output_tokens":5,"input_tokens_details":{"cached_tokens":16}}}}` + "\n\n",
		"data: [DONE]\n\n",
	},
}

// TestCaseI1UsageThroughProxy: a stream's usage of 17 and 5 tokens is recorded once, in
// each form, with an end marker or none, wherever the stream is cut into two writes;
// the client has every byte of the first before the engine writes the second.
func TestCaseI1UsageThroughProxy(t *testing.T) {
	var first, second string
	passed := make(chan struct{})
	s := startPlain(t, func(w http.ResponseWriter, req *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		_, _ = io.WriteString(w, first)
		_ = http.NewResponseController(w).Flush()
		select {
		case <-passed:
			_, _ = io.WriteString(w, second)
		case <-req.Context().Done():
		}
	})
	r := newRig(t, options{config: only(s.Listener.Addr().String()), unsettled: true})
	for form, c := range usageStreams {
		for _, answer := range []string{c.stream + c.end, c.stream} {
			for cut := 1; cut < len(answer); cut++ {
				first, second = answer[:cut], answer[cut:]
				req, err := http.NewRequestWithContext(r.ctx, http.MethodPost, r.url+c.path, strings.NewReader(c.body))
				if err != nil {
					t.Fatal(err)
				}
				resp, err := r.client.Do(req)
				if err != nil {
					t.Fatal(err)
				}
				got := make([]byte, cut)
				if _, err := io.ReadFull(resp.Body, got); err != nil {
					t.Fatalf("%s cut at %d: %v after %q", form, cut, err, got)
				}
				passed <- struct{}{}
				rest, err := io.ReadAll(resp.Body)
				_ = resp.Body.Close()
				if err != nil || string(got)+string(rest) != answer {
					t.Fatalf("%s cut at %d: the client got %q and %q, %v", form, cut, got, rest, err)
				}
				var end decision.End
				r.until("the end is recorded", func() bool {
					if rec := r.sys.ring.Find(resp.Header.Get(picker.IDHeader)); rec != nil {
						end = rec.End
					}
					return end.Outcome != ""
				})
				if end.PromptTokens != 17 || end.CompletionTokens != 5 || end.CachedTokens != 16 {
					t.Fatalf("%s cut at %d: recorded %+v", form, cut, end)
				}
			}
		}
	}
	r.atRest()
}
