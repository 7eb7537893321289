package epp

import (
	"math"
	"time"
)

// Slot is an endpoint's place in every table that is indexed by endpoint: the
// fleet's, the index's sets, a [Match] slice. Slots are small and dense; fleet
// gives them out, and gives one again only when the last booking and the last
// block of its former holder are gone.
type Slot uint32

// Slots is a set of slots, one bit each. The zero value is empty.
type Slots []uint64

// Has reports whether s is in the set.
func (ss Slots) Has(s Slot) bool {
	i := int(s >> 6)
	return i < len(ss) && ss[i]&(1<<(s&63)) != 0
}

// Add puts s into the set and returns the set, grown where it had to be.
func (ss Slots) Add(s Slot) Slots {
	for int(s>>6) >= len(ss) {
		ss = append(ss, 0)
	}
	ss[s>>6] |= 1 << (s & 63)
	return ss
}

// Remove takes s out of the set.
func (ss Slots) Remove(s Slot) {
	if i := int(s >> 6); i < len(ss) {
		ss[i] &^= 1 << (s & 63)
	}
}

// Endpoint is a routable ip:port that serves a model: one data-parallel rank of
// an engine. Its fields do not change while it lives; an endpoint that returns
// under the same address is another Endpoint, with another Generation.
type Endpoint struct {
	// Name is unique within the pool and is what logs, metrics and the tie rule
	// use: a pod's name, or the configured one, or the address.
	Name string
	// Address is ip:port, an IPv6 address in brackets.
	Address string
	// UID tells two endpoints of one name and address apart; empty where the
	// source of endpoints has none.
	UID string
	// Rank is the data-parallel rank behind Address, where the engine has several
	// there; else empty. Requests name it in the header [RankHeader].
	Rank string

	Slot       Slot
	Generation uint32

	Labels      map[string]string
	Annotations map[string]string
}

// RankHeader tells an engine of several data-parallel ranks which one is to serve
// a request. Source: vLLM and SGLang, both in any case.
const RankHeader = "x-data-parallel-rank"

// Gauge is a value that may be unknown. The zero Gauge is unknown.
type Gauge struct {
	Value float64
	Known bool
}

// Known returns v as a gauge if it is a number that a gauge can have (finite,
// not negative), else the unknown gauge.
func Known(v float64) Gauge {
	if math.IsNaN(v) || math.IsInf(v, 0) || v < 0 {
		return Gauge{}
	}
	return Gauge{Value: v, Known: true}
}

// Load is one reading of what an engine says of itself.
type Load struct {
	Waiting Gauge // requests; vllm:num_requests_waiting
	Running Gauge // requests; vllm:num_requests_running
	KVUsage Gauge // fraction 0–1; vllm:kv_cache_usage_perc

	// BlockTokens and Blocks are the size of the KV cache: tokens per block,
	// blocks in all. 0 where unknown. Source: vllm:cache_config_info.
	BlockTokens int
	Blocks      int

	// Adapters are the LoRA adapters that the engine's page shows as active,
	// running or waiting; MaxAdapters is how many can be active at once, 0 where
	// unknown. Source: vllm:lora_requests_info.
	Adapters    []string
	MaxAdapters int

	// PromptTokens and CachedTokens count the tokens of all prompts since the
	// engine's start, and those of them that it did not compute; GeneratedTokens
	// those of all answers; FirstTokenSeconds is the sum of all times to first token.
	// Sources: vllm:prompt_tokens_total, vllm:prompt_tokens_cached_total,
	// vllm:generation_tokens_total, vllm:time_to_first_token_seconds_sum.
	PromptTokens, CachedTokens, GeneratedTokens, FirstTokenSeconds Gauge

	// Asleep is true for an engine that reports that it was put to sleep. Such
	// an engine answers /health with 200 and serves nothing. Source:
	// vllm:engine_sleep_state{sleep_state="awake"} 0.
	Asleep bool
}

// GPU is one reading of an endpoint's accelerators, together where it has
// several. Source: NVIDIA's DCGM exporter.
type GPU struct {
	Utilization     Gauge // fraction 0–1 of the time, the mean of all; DCGM_FI_DEV_GPU_UTIL
	Memory          Gauge // fraction 0–1 in use, of the fullest; DCGM_FI_DEV_FB_USED, _FB_FREE
	Temperature     Gauge // °C, of the hottest; DCGM_FI_DEV_GPU_TEMP
	DoubleBitErrors Gauge // uncorrectable memory errors, all; DCGM_FI_DEV_ECC_DBE_VOL_TOTAL
	XIDs            []int // the last error of each that had one; DCGM_FI_DEV_XID_ERRORS
}

// HealthReason says why an endpoint's health is not 1: the worst that is held
// against it.
type HealthReason uint8

// The reasons.
const (
	HealthSound     HealthReason = iota
	Outcomes                     // requests failed, or connections were refused
	ProbePending                 // no probe has ended yet
	ProbeSlow                    // the last probe took more than half of its deadline
	ProbeFailed                  // probes fail
	NoProgress                   // requests wait, and no token comes
	GPUFault                     // an XID that is the hardware's
	GPUMemoryErrors              // double-bit ECC errors
	GPUHot                       // above 83 °C
	GPUMemoryFull                // hardly any memory is left
	Asleep                       // the engine was put to sleep
	CacheCold                    // it holds far fewer blocks than the others
)

// String returns the reason's name, empty for a sound endpoint.
func (r HealthReason) String() string {
	return [...]string{
		"", "outcomes", "probe_pending", "probe_slow", "probe_failed", "no_progress", "gpu_fault", "gpu_memory_errors",
		"gpu_hot", "gpu_memory_full", "asleep", "cache_cold", "", "", "", "",
	}[r&15]
}

// Model is a name that an endpoint answers to. Source: an entry of /v1/models.
type Model struct {
	Name string
	// Parent is the base model's name where this one is a LoRA adapter, else
	// empty. Source: the entry's "parent".
	Parent string
	// MaxTokens is the model's context length; 0 where unknown. Source: the
	// entry's "max_model_len".
	MaxTokens int
}

// Instant is a moment in nanoseconds since 1970, UTC; zero means never. It is a
// time.Time without the pointer to a place, so that a table of them is copied and
// compared fast.
type Instant int64

// InstantOf returns t as an Instant; the zero time is never.
func InstantOf(t time.Time) Instant {
	if t.IsZero() {
		return 0
	}
	if n := t.UnixNano(); n != 0 {
		return Instant(n)
	}
	return 1 // 1970 began, and that is not never
}

// IsZero reports whether i is never.
func (i Instant) IsZero() bool { return i == 0 }

// Signals are the raw inputs of a decision for one endpoint at one moment, as
// fleet keeps them. All that a built-in scorer or filter reads of an endpoint,
// besides the [Match], is here; a record keeps a copy, so a decision can be
// made again.
type Signals struct {
	// Waiting, Running and KVUsage are as last reported; see Load. GPU is the
	// fraction of its accelerators' time, unknown where that was not reported lately.
	Waiting, Running, KVUsage, GPU Gauge
	// ReadAt is when the reading they come from began. Zero: never reported.
	ReadAt Instant

	// InFlight counts our own requests that were sent here and have not been
	// seen to end; InFlightAtRead is how many of our own the reading counted.
	InFlight, InFlightAtRead int
	// InFlightTokens are the uncached prompt tokens of those whose first token
	// was not seen yet.
	InFlightTokens int

	// ColdAt is when the last of our own requests was sent here of whose prompt
	// nothing was cached. Zero: none was.
	ColdAt Instant

	// MaxRunning is how many requests the engine runs at once: configured, or
	// learnt as the most that ran while others waited. 0: neither.
	MaxRunning int
	// BlockTokens is the endpoint's block size. 0: unknown.
	BlockTokens int

	// Health is in [0, 1]: below 0.3 the endpoint gets no request.
	Health float64
	// Incomplete is true where blocks may be missing from the index: after a
	// gap, a drop by our own memory bound, or while nothing was ever heard.
	Incomplete bool
	// Heard is true once the endpoint has told of its cache, if only that it is
	// empty. Before, a match of 0 is no knowledge.
	Heard bool
	// Adapters is true once the endpoint's page has told of LoRA adapters. Before, an
	// adapter that is not resident is no knowledge.
	Adapters bool
	// Doubt is the part of the endpoint's claims on cached blocks that did not come
	// true lately, in hundredths, 0–100: its match counts for less by as much. 0 is
	// trust.
	Doubt uint8
	// HealthReason says why Health is not 1.
	HealthReason HealthReason
	// Agent is true where the endpoint's own agent reports for it, false where it
	// is read directly.
	Agent bool
}

// Delta is how many of our own requests the reading has missed, less those that
// have ended since: it is negative when more have ended than came.
func (s *Signals) Delta() int { return s.InFlight - s.InFlightAtRead }

// Match says how much of one prompt an endpoint holds: leading full blocks,
// without a gap, from the prompt's start.
type Match struct {
	Blocks      uint32 // 0 for an endpoint that holds none
	BlockTokens uint32 // tokens per block of the chain that matched; 0 where Blocks is 0
	// Discount is how many blocks less the match is worth, below Blocks: 0 where all
	// of it lies on the GPU.
	Discount float32
}

// Tokens is the matched length in tokens.
func (m Match) Tokens() int { return int(m.Blocks) * int(m.BlockTokens) }

// Worth is the matched length in tokens, less what lies beside the GPU is worth
// less.
func (m Match) Worth() float64 {
	return (float64(m.Blocks) - float64(m.Discount)) * float64(m.BlockTokens)
}

// Score is one scorer's rating of one endpoint.
type Score struct {
	// Value is in [0, 1], higher is better.
	Value float64
	// Unknown is true where Value stands in for a signal that was never reported.
	Unknown bool
	// Detail is for logs and explanations; usually empty.
	Detail string
}

// View is the fleet at one moment. Endpoints and Signals have the same length
// and order. It is valid only inside the call it was passed to, but for the
// elements of Endpoints: these never change, and a pointer to one may be kept.
type View struct {
	Endpoints []Endpoint
	Signals   []Signals
	// Serves holds the endpoints that list the request's model and those whose
	// list of models is not known; it is nil where the request names no model:
	// then all serve it.
	Serves Slots
	// Resident holds the endpoints on which the request's adapter is loaded.
	Resident Slots
	// Work has an element for each of Endpoints, or is nil where it is not known;
	// Pace is the pool's.
	Work []Work
	Pace Pace
}
