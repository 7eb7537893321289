package epptest

import (
	"regexp"
	"strings"
	"testing"

	"epp.internal/epp/engine"
)

// changing are the labels whose values differ from engine to engine.
var changing = regexp.MustCompile(`(num_gpu_blocks_override|kv_cache_memory_bytes|kv_cache_max_concurrency)="[^"]*"`)

// seriesOf returns a page's names, help texts and types, and its series without
// their values.
func seriesOf(page string) map[string]bool {
	out := map[string]bool{}
	for line := range strings.Lines(page) {
		line = strings.TrimSpace(line)
		if !strings.HasPrefix(line, "#") {
			line = line[:strings.LastIndex(line, " ")]
		}
		out[changing.ReplaceAllString(line, `$1=""`)] = true
	}
	return out
}

// The page has every name, help text, type and label set of the real one's
// series, and no other.
func TestMetricsAreVLLMs(t *testing.T) {
	e := start(t, EngineConfig{
		Adapters: []string{"sql", "chat"}, MaxModelTokens: 1024,
		Engine: engine.Config{BlockTokens: 32, Blocks: 48, MaxRunning: 2},
	})
	// One adapter, then two, then none: the label sets that the real engine has had.
	fetch(t, e, "/v1/completions", `{"model":"sql","prompt":"Hi"}`)
	fetch(t, e, "/v1/completions", `{"model":"chat","prompt":"Hi"}`)
	e.HoldAnswers(true)
	ctx := within(t)
	done := make(chan string, 4)
	for i, model := range []string{"chat", "sql", "chat", "sql"} {
		go func() {
			done <- outcome(t, ctx, e, "/v1/completions", `{"model":"`+model+`","prompt":"`+strings.Repeat("a", 70)+`"}`)
		}()
		if err := e.AwaitLoad(ctx, func(l engine.Load) bool { return l.Running+l.Waiting == i+1 }); err != nil {
			t.Fatal(err)
		}
	}
	e.HoldAnswers(false)
	for range 4 {
		if got := <-done; !strings.HasPrefix(got, "200 ") {
			t.Fatal(got)
		}
	}
	_, page := fetch(t, e, "/metrics", "")
	want, got := seriesOf(readFile(t, "metrics.txt")), seriesOf(page)
	for s := range want {
		if !got[s] {
			t.Errorf("vLLM has %s", s)
		}
	}
	for s := range got {
		if !want[s] {
			t.Errorf("vLLM has not %s", s)
		}
	}
}

// Values: tokens asked for and found, usage, and the model's own time to the
// first token, whatever the clock says.
func TestMetricsValues(t *testing.T) {
	e := start(t, EngineConfig{Engine: engine.Config{Blocks: 1001}, MaxModelTokens: 8192})
	body := `{"prompt":"` + strings.Repeat("a", 4096) + `","max_tokens":2}`
	var got usageOf
	fetchJSON(t, e, "/v1/completions", body, &got)
	fetchJSON(t, e, "/v1/completions", body, &got)
	_, page := fetch(t, e, "/metrics", "")
	for _, want := range []string{
		`vllm:prefix_cache_queries_total{engine="0",model_name="tiny"} 8192.0`,
		`vllm:prefix_cache_hits_total{engine="0",model_name="tiny"} 4080.0`,
		`vllm:prompt_tokens_cached_total{engine="0",model_name="tiny"} 4080.0`,
		`vllm:generation_tokens_total{engine="0",model_name="tiny"} 4.0`,
		`vllm:request_success_total{engine="0",finished_reason="length",model_name="tiny"} 2.0`,
		`vllm:kv_cache_usage_perc{engine="0",model_name="tiny"} 0.0`,
		// 45.4 ms and 900.0 ms.
		`vllm:time_to_first_token_seconds_bucket{engine="0",le="0.04",model_name="tiny"} 0.0`,
		`vllm:time_to_first_token_seconds_bucket{engine="0",le="0.06",model_name="tiny"} 1.0`,
		`vllm:time_to_first_token_seconds_bucket{engine="0",le="0.75",model_name="tiny"} 1.0`,
		`vllm:time_to_first_token_seconds_bucket{engine="0",le="1.0",model_name="tiny"} 2.0`,
		`vllm:time_to_first_token_seconds_count{engine="0",model_name="tiny"} 2.0`,
	} {
		if !strings.Contains(page, want+"\n") {
			t.Errorf("missing: %s", want)
		}
	}
	if t.Failed() {
		t.Log(page)
	}
}

// An older engine's name of the KV usage, or none.
func TestKVUsageNames(t *testing.T) {
	for name, want := range map[string]int{"vllm:gpu_cache_usage_perc": 3, "-": 0} {
		e := start(t, EngineConfig{KVUsageMetric: name})
		_, page := fetch(t, e, "/metrics", "")
		if n := strings.Count(page, "gpu_cache_usage_perc"); n != want || strings.Contains(page, "kv_cache_usage_perc") {
			t.Errorf("%s: %d mentions in\n%s", name, n, page)
		}
	}
}
