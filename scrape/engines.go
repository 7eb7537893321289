package scrape

import "bytes"

// Engine is what is known of one kind of engine: data alone, no code.
type Engine struct {
	// Name is what a configuration calls it.
	Name string
	// Run says whether this table was ever held against the engine itself. Where
	// it is false, the table is from documentation, never run.
	Run bool
	// Prefix begins the names of the engine's own metrics, and of no other's.
	Prefix string
	// Path is where its page is.
	Path  string
	Names Names
}

// Engines are the kinds of engines, vLLM first. The event forms of those that
// publish KV events, and the fields of each, are in package kvevents.
var Engines = []*Engine{&VLLM, &SGLang, &TensorRTLLM}

// EngineNamed returns the engine of that name.
func EngineNamed(name string) (*Engine, bool) {
	for _, e := range Engines {
		if e.Name == name {
			return e, true
		}
	}
	return nil, false
}

// Detect returns the engine that a page is of, by the prefix of its metrics, or
// nil where the page has none that is known.
func Detect(page []byte) *Engine {
	for len(page) > 0 {
		line := page
		if i := bytes.IndexByte(page, '\n'); i >= 0 {
			line, page = page[:i], page[i+1:]
		} else {
			page = nil
		}
		for _, e := range Engines {
			if bytes.HasPrefix(line, []byte(e.Prefix)) {
				return e
			}
		}
	}
	return nil
}

// VLLM is vLLM, 0.6 to 0.32.
//
// Source: vllm/v1/metrics/loggers.py; the older usage name was given up with
// vllm-project/vllm#18354.
var VLLM = Engine{
	Name: "vllm", Run: true, Prefix: "vllm:", Path: "/metrics",
	Names: Names{
		Waiting: []string{"vllm:num_requests_waiting"},
		Running: []string{"vllm:num_requests_running"},
		KVUsage: []string{"vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"},

		PromptTokens:      "vllm:prompt_tokens_total",
		CachedTokens:      "vllm:prompt_tokens_cached_total",
		GeneratedTokens:   "vllm:generation_tokens_total",
		FirstTokenSeconds: "vllm:time_to_first_token_seconds_sum",

		Adapters:        "vllm:lora_requests_info",
		RunningAdapters: "running_lora_adapters",
		WaitingAdapters: "waiting_lora_adapters",
		MaxAdapter:      "max_lora",

		Cache:       "vllm:cache_config_info",
		BlockTokens: "block_size",
		Blocks:      "num_gpu_blocks",

		Sleep:      "vllm:engine_sleep_state",
		SleepState: "sleep_state",
		Awake:      "awake",

		Engine: "engine",
	},
}

// SGLang is SGLang, from documentation, never run. From 0.5.11 on it has
// gauges in place of the labels of cache_config_info. Of the ranks that share the
// work of each request only the first exports, unless it runs with
// --enable-metrics-for-all-schedulers: then all do.
//
// Source: the model-server protocol of the gateway API's inference extension,
// and SGLang's documentation of its production metrics.
var SGLang = Engine{
	Name: "sglang", Prefix: "sglang:", Path: "/metrics",
	Names: Names{
		Waiting: []string{"sglang:num_queue_reqs"},
		Running: []string{"sglang:num_running_reqs"},
		KVUsage: []string{"sglang:token_usage"},

		PromptTokens:      "sglang:prompt_tokens_total",
		CachedTokens:      "sglang:cached_tokens_total",
		GeneratedTokens:   "sglang:generation_tokens_total",
		FirstTokenSeconds: "sglang:time_to_first_token_seconds_sum",

		Cache:       "sglang:cache_config_info",
		BlockTokens: "page_size",
		Blocks:      "num_pages",

		BlockTokensGauge: "sglang:page_size",
		BlocksGauge:      "sglang:num_pages",

		Engine: "dp_rank",
		Copies: []string{"tp_rank", "pp_rank", "moe_ep_rank"},
	},
}

// TensorRTLLM is TensorRT-LLM as trtllm-serve runs it, from documentation, never
// run. Its page is not at the usual path, which holds JSON, so it is read only
// where it is configured, or where something passes the page on at /metrics.
//
// Source: the same protocol, and TensorRT-LLM's example of its metrics.
var TensorRTLLM = Engine{
	Name: "tensorrt-llm", Prefix: "trtllm_", Path: "/prometheus/metrics",
	Names: Names{
		Waiting: []string{"trtllm_num_requests_waiting"},
		Running: []string{"trtllm_num_requests_running"},
		KVUsage: []string{"trtllm_kv_cache_utilization"},

		PromptTokens:      "trtllm_prompt_tokens_total",
		GeneratedTokens:   "trtllm_generation_tokens_total",
		FirstTokenSeconds: "trtllm_time_to_first_token_seconds_sum",

		BlockTokensGauge: "trtllm_kv_cache_tokens_per_block",
		BlocksGauge:      "trtllm_kv_cache_max_blocks",
	},
}
