package trace_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"epp.internal/epp/trace"
)

// ids prints n token IDs from a first one on, as vLLM does.
func ids(first, n int) string {
	parts := make([]string, n)
	for i := range parts {
		parts[i] = fmt.Sprint(first + i)
	}
	return "[" + strings.Join(parts, ", ") + "]"
}

// sharing is how many leading tokens two requests' prompts have in common.
func sharing(a, b *trace.Request) int {
	n := 0
	for i := range min(len(a.Prompt), len(b.Prompt)) {
		if a.Prompt[i] != b.Prompt[i] {
			break
		}
		n += a.Prompt[i].Tokens
	}
	return n
}

// TestVLLMLog reads lines as releases of vLLM write them, the token IDs in the line
// of the request or in one of their own, among other lines: what a user wrote is no
// field, and nothing of it is kept.
func TestVLLMLog(t *testing.T) {
	log := `INFO 12-31 23:59:58 [api_server.py:100] vLLM API server
INFO 12-31 23:59:58 [logger.py:41] Received request cmpl-1: prompt: 'prompt_token_ids: [9], lora_name=\'no\'', params: SamplingParams(n=1), prompt_token_ids: ` + ids(1, 200) + `, prompt_embeds shape: None, lora_request: None.
(APIServer pid=7) DEBUG 12-31 23:59:58 [logger.py:50] Request cmpl-2 details: prompt: 'walrus', prompt_token_ids: ` + ids(1, 150) + `, prompt_embeds shape: None.
(APIServer pid=7) INFO 12-31 23:59:58 [logger.py:59] Received request cmpl-2: params: SamplingParams(n=1), lora_request: LoRARequest(lora_name='sql', lora_int_id=1).
INFO 12-31 23:59:59 [logger.py:80] Generated response cmpl-1 (streaming delta): output: 'a', output_token_ids: [1], finish_reason: None
INFO 12-31 23:59:59 [logger.py:80] Generated response cmpl-1 (streaming complete): output: 'a b', output_token_ids: [1, 2], finish_reason: stop
no line of vLLM
INFO 01-01 00:00:02 [logger.py:41] Received request cmpl-3: prompt: 'walrus and so on', params: SamplingParams(n=1), prompt_token_ids: None, lora_request: None.
`
	got, err := trace.Read("vllm.log", strings.NewReader(log))
	if err != nil {
		t.Fatal(err)
	}
	if len(got.Requests) != 3 {
		t.Fatalf("%d requests, want 3", len(got.Requests))
	}
	for i, want := range []struct {
		at             time.Duration
		prompt, answer int
		adapter        string
	}{{0, 200, 2, ""}, {500 * time.Millisecond, 150, 2, "sql"}, {4 * time.Second, 5, 2, ""}} {
		r := &got.Requests[i]
		if r.At != want.at || r.PromptTokens() != want.prompt || r.Answer.Tokens != want.answer || r.Adapter != want.adapter {
			t.Errorf("request %d: at %v, %d and %d tokens for %q, want %+v", i, r.At, r.PromptTokens(), r.Answer.Tokens, r.Adapter, want)
		}
	}
	if n := sharing(&got.Requests[0], &got.Requests[1]); n != 128 {
		t.Errorf("%d tokens shared, want the two whole steps of 64", n)
	}
}

// TestOpenAILog: times in both forms, lengths from the usage, what prompts share from
// their texts.
func TestOpenAILog(t *testing.T) {
	long := strings.Repeat("You are a helpful assistant. ", 40)
	log := fmt.Sprintf(`{"timestamp": 100.5, "request": {"messages": [{"role":"system","content":%q},{"role":"user","content":"a"}]}, "usage": {"prompt_tokens": 280, "completion_tokens": 12}}
{"timestamp": "1970-01-01T00:01:42Z", "body": {"adapter": "sql", "messages": [{"role":"system","content":%q},{"role":"user","content":"b"}]}, "response": {"usage": {"prompt_tokens": 281, "completion_tokens": 14}}}
{"timestamp": 103, "request": {"prompt": %s}}
`, long, long, ids(1, 70))
	got, err := trace.Read("requests.jsonl", strings.NewReader(log))
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range []struct {
		at             time.Duration
		prompt, answer int
		adapter        string
	}{{0, 280, 12, ""}, {1500 * time.Millisecond, 281, 14, "sql"}, {2500 * time.Millisecond, 70, 13, ""}} {
		r := &got.Requests[i]
		if r.At != want.at || r.PromptTokens() != want.prompt || r.Answer.Tokens != want.answer || r.Adapter != want.adapter {
			t.Errorf("request %d: at %v, %d and %d tokens for %q, want %+v", i, r.At, r.PromptTokens(), r.Answer.Tokens, r.Adapter, want)
		}
	}
	if n := sharing(&got.Requests[0], &got.Requests[1]); n != 256 {
		t.Errorf("%d tokens shared, want four steps of 64", n)
	}
}

// TestLogsRefuse: each wrong line has one error that names it.
func TestLogsRefuse(t *testing.T) {
	for _, c := range []struct{ log, want string }{
		{`{"timestamp": "soon", "request": {"prompt": "a"}}`, `x:1: timestamp "\"soon\"": want seconds since 1970`},
		{`{"timestamp": 1, "request": {"prompt": "a"}, "usage": {"prompt_tokens": 99999999}}`, "x:1: usage: prompt of 99999999 tokens"},
		{`{"timestamp": 1, "body": null}`, "x:1: request is missing"},
		{"INFO 13-31 00:00:00 [a.py:1] Received request a: prompt: 'a'", `x:1: time "13-31 00:00:00": want month-day`},
		{"INFO 12-31 00:00:00 [a.py:1] Received request a: prompt_token_ids: [1, b]", `" b" is no token ID`},
		{"INFO 12-31 00:00:00 [a.py:1] Received request a: prompt_token_ids: [1", "list does not end"},
		{"INFO 12-31 00:00:00 [a.py:1] hello", "x: no request in it whose prompt has a known length"},
		{`{"settings":{"policy":"weighted"}}`, "x:1: settings: "},
	} {
		if _, err := trace.Read("x", strings.NewReader(c.log)); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%.60s: error %v, want %s", c.log, err, c.want)
		}
	}
}
