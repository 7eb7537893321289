package scrape

// Names are the metrics that are read of an engine's page. Where several names
// of one metric are given the first one that the page has counts: the newest
// comes first. An empty name is a metric that the engine does not have.
type Names struct {
	Waiting []string // requests that wait; gauge
	Running []string // requests that run; gauge
	KVUsage []string // fraction of the KV cache in use, 0–1; gauge

	// Counters since the engine's start that not every engine has: tokens of all
	// prompts, those of them that were cached, and the sum of all times to first
	// token in seconds.
	PromptTokens, CachedTokens, FirstTokenSeconds string

	// Adapters has its facts in labels and the time of the last change as value;
	// of several series the one with the greatest value counts, for an engine
	// never removes one.
	Adapters                                     string
	RunningAdapters, WaitingAdapters, MaxAdapter string // its labels

	// Cache has its facts in labels; the value is always 1.
	Cache               string
	BlockTokens, Blocks string // its labels

	// Sleep is 1 with the label SleepState="awake" while the engine serves.
	Sleep, SleepState, Awake string

	// Engine is the label that tells the data-parallel ranks on one page apart.
	Engine string
}

// VLLM are vLLM's names, 0.6 to 0.32.
//
// Source: vllm/v1/metrics/loggers.py; the older usage name was given up with
// vllm-project/vllm#18354.
var VLLM = Names{
	Waiting: []string{"vllm:num_requests_waiting"},
	Running: []string{"vllm:num_requests_running"},
	KVUsage: []string{"vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"},

	PromptTokens:      "vllm:prompt_tokens_total",
	CachedTokens:      "vllm:prompt_tokens_cached_total",
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
}
