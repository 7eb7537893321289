package epptest

import (
	"bytes"
	"fmt"
	"math"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"epp.internal/epp/engine"
)

// Bounds of what a client can make the metrics page grow by.
const (
	maxAdapters         = 1_000
	maxAdapterLabelSets = 1_000 // of vllm:lora_requests_info; new ones beyond are left out
)

// statistics are what the page shows beyond the model's own counters. The
// process's mutex guards them.
type statistics struct {
	firstToken histogram
	finished   map[string]uint64 // ended requests by reason
	adapters   []adapterLabels
}

// finishReasons are all values of the label finished_reason.
var finishReasons = []string{"stop", "length", "abort", "error", "repetition"}

// adapterLabels is one label set of vllm:lora_requests_info. vLLM shows every
// one it has ever had, with the time it last held. It gives running and waiting
// the same names, those of both.
type adapterLabels struct {
	names string
	at    time.Time
}

// seeAdapters notes which adapters run or wait.
func (s *statistics) seeAdapters(m *engine.Engine, at time.Time) {
	if m.Config().MaxAdapters == 0 {
		return
	}
	names := strings.Join(m.Adapters(), ",")
	for i := range s.adapters {
		if s.adapters[i].names == names {
			s.adapters[i].at = at
			return
		}
	}
	if len(s.adapters) < maxAdapterLabelSets {
		s.adapters = append(s.adapters, adapterLabels{names, at})
	}
}

// firstTokenBounds are the upper bounds of vllm:time_to_first_token_seconds.
var firstTokenBounds = [...]float64{
	0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160, 640, 2560,
}

// histogram counts seconds of the model's time.
type histogram struct {
	buckets [len(firstTokenBounds) + 1]uint64
	sum     float64
}

func (h *histogram) observe(v float64) {
	i, _ := slices.BinarySearch(firstTokenBounds[:], v)
	h.buckets[i]++
	h.sum += v
}

func (p *process) serveMetrics(w http.ResponseWriter, r *http.Request) {
	fault := p.owner.currentFault()
	if fault.MetricsDelay > 0 && !p.pause(r, fault.MetricsDelay) {
		return
	}
	if fault.MetricsStatus != 0 {
		w.WriteHeader(fault.MetricsStatus)
		return
	}
	p.mu.Lock()
	p.catchUp(p.now())
	page := p.metricsPage()
	p.mu.Unlock()
	w.Header().Set("Content-Type", "text/plain; version=1.0.0; charset=utf-8")
	w.Write(page)
}

// page writes the text format of Prometheus as vLLM's client library does.
type page struct {
	bytes.Buffer
	labels  string // of every series, as `engine="0",model_name="tiny"`
	created float64
}

// sample is one series: its value, and its labels beside the page's, each with a
// comma before it.
type sample struct {
	labels string
	value  float64
}

func (b *page) head(name, kind, help string) {
	fmt.Fprintf(b, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, kind)
}

func (b *page) series(name, labels string, value float64) {
	fmt.Fprintf(b, "%s{%s} %s\n", name, labels, formatFloat(value))
}

// gauge writes a gauge of one or more series.
func (b *page) gauge(name, help string, samples ...sample) {
	b.head(name, "gauge", help)
	for _, s := range samples {
		b.series(name, b.with(s.labels), s.value)
	}
}

// with returns the page's labels and extra ones. vLLM's are in the order of the
// alphabet.
func (b *page) with(extra string) string {
	switch {
	case extra == "":
		return b.labels
	case strings.HasPrefix(extra, "finished_reason"):
		engineLabel, model, _ := strings.Cut(b.labels, ",")
		return engineLabel + "," + extra + "," + model
	}
	return b.labels + "," + extra
}

// counter writes a counter, and when it was created, which vLLM shows as a gauge.
func (b *page) counter(name, help string, samples ...sample) {
	b.head(name+"_total", "counter", help)
	for _, s := range samples {
		b.series(name+"_total", b.with(s.labels), s.value)
	}
	for i := range samples {
		samples[i].value = b.created
	}
	b.gauge(name+"_created", help, samples...)
}

func (b *page) histogram(name, help string, h *histogram) {
	b.head(name, "histogram", help)
	engineLabel, model, _ := strings.Cut(b.labels, ",")
	count := uint64(0)
	for i, n := range h.buckets {
		count += n
		bound := "+Inf"
		if i < len(firstTokenBounds) {
			bound = formatFloat(firstTokenBounds[i])
		}
		b.series(name+"_bucket", fmt.Sprintf(`%s,le="%s",%s`, engineLabel, bound, model), float64(count))
	}
	b.series(name+"_count", b.labels, float64(count))
	b.series(name+"_sum", b.labels, h.sum)
	b.gauge(name+"_created", help, sample{"", b.created})
}

// labelEscaper escapes what may not stand in a label's value.
var labelEscaper = strings.NewReplacer(`\`, `\\`, `"`, `\"`, "\n", `\n`)

// formatFloat writes a number as Python does: 2 is 2.0.
func formatFloat(v float64) string {
	s := strconv.FormatFloat(v, 'g', -1, 64)
	if v == math.Trunc(v) && !strings.ContainsAny(s, "e.") {
		s += ".0"
	}
	return s
}

// metricsPage returns /metrics. p.mu is held.
func (p *process) metricsPage() []byte {
	load, n := p.model.Load(), p.model.Counters()
	b := &page{
		labels:  fmt.Sprintf(`engine="0",model_name="%s"`, labelEscaper.Replace(p.cfg.Model)),
		created: float64(p.started.UnixNano()) / 1e9,
	}
	b.gauge("vllm:num_requests_running", "Number of requests in model execution batches.",
		sample{"", float64(load.Running)})
	b.gauge("vllm:num_requests_waiting", "Number of requests waiting to be processed.",
		sample{"", float64(load.Waiting)})
	b.gauge("vllm:num_requests_waiting_by_reason", "Number of waiting requests by reason. Reason labels: 'capacity' = waiting for scheduling capacity; 'deferred' = deferred by transient constraints (LoRA budget, KV transfer, blocked status). Sum of all reasons equals vllm:num_requests_waiting.",
		sample{`reason="capacity"`, float64(load.Waiting - load.Deferred)},
		sample{`reason="deferred"`, float64(load.Deferred)})
	p.writeSleepState(b, load.Asleep)
	if p.cfg.KVUsageMetric != "-" {
		b.gauge(p.cfg.KVUsageMetric, "KV-cache usage. 1 means 100 percent usage.", sample{"", load.KVUsage})
	}
	b.counter("vllm:prefix_cache_queries", "Prefix cache queries, in terms of number of queried tokens.",
		sample{"", float64(n.PrefixQueryTokens)})
	b.counter("vllm:prefix_cache_hits", "Prefix cache hits, in terms of number of cached tokens.",
		sample{"", float64(n.PrefixHitTokens)})
	b.counter("vllm:num_preemptions", "Cumulative number of preemption from the engine.",
		sample{"", float64(n.Preemptions)})
	b.counter("vllm:prompt_tokens", "Number of prefill tokens processed.", sample{"", float64(n.PromptTokens)})
	b.counter("vllm:prompt_tokens_cached", "Number of cached prompt tokens (local + external).",
		sample{"", float64(n.CachedTokens)})
	b.counter("vllm:generation_tokens", "Number of generation tokens processed.", sample{"", float64(n.AnswerTokens)})
	var finished []sample
	for _, reason := range finishReasons {
		finished = append(finished, sample{fmt.Sprintf("finished_reason=%q", reason), float64(p.stats.finished[reason])})
	}
	b.counter("vllm:request_success", "Count of successfully processed requests.", finished...)
	b.histogram("vllm:time_to_first_token_seconds", "Histogram of time to first token in seconds.", &p.stats.firstToken)
	p.writeAdapters(b)
	b.gauge("vllm:cache_config_info", "Information of the LLMEngine CacheConfig")
	b.series("vllm:cache_config_info", p.cacheConfigLabels(), 1)
	return b.Bytes()
}

func (p *process) writeSleepState(b *page, asleep bool) {
	var awake, offloaded, discarded float64
	switch {
	case !asleep:
		awake = 1
	case p.sleepLevel == 1:
		offloaded = 1
	default:
		discarded = 1
	}
	b.gauge("vllm:engine_sleep_state", "Engine sleep state; awake = 0 means engine is sleeping; awake = 1 means engine is awake; weights_offloaded = 1 means sleep level 1; discard_all = 1 means sleep level 2.",
		sample{`sleep_state="awake"`, awake},
		sample{`sleep_state="weights_offloaded"`, offloaded},
		sample{`sleep_state="discard_all"`, discarded})
}

// writeAdapters writes vllm:lora_requests_info, whose series have neither the
// engine nor the model among their labels, and whose values are times.
func (p *process) writeAdapters(b *page) {
	limit := p.cfg.Engine.MaxAdapters
	if limit == 0 {
		return
	}
	b.head("vllm:lora_requests_info", "gauge", "Running stats on lora requests.")
	for _, l := range p.stats.adapters {
		names := labelEscaper.Replace(l.names)
		b.series("vllm:lora_requests_info",
			fmt.Sprintf(`max_lora="%d",running_lora_adapters="%s",waiting_lora_adapters="%s"`, limit, names, names),
			float64(l.at.UnixNano())/1e9)
	}
}

// cacheConfigLabels are the labels of vllm:cache_config_info: those of a real
// page, with the sizes of this engine.
func (p *process) cacheConfigLabels() string {
	c := p.cfg.Engine
	tokens := c.Blocks * c.BlockTokens
	concurrency := float64(tokens) / float64(p.cfg.MaxModelTokens)
	return fmt.Sprintf(`_block_size_resolved="True",block_size="%d",cache_dtype="auto",cache_hit_alignment_tokens="None",effective_attention_block_size="%d",enable_mamba_shared_prefix_checkpoint="False",enable_prefix_caching="True",engine="0",gpu_memory_utilization="0.92",hash_block_size="None",is_attention_free="False",kv_cache_dtype_skip_layers="[]",kv_cache_layout="None",kv_cache_max_concurrency="%s",kv_cache_memory_bytes="1073741824",kv_cache_size_tokens="%d",kv_offloading_backend="native",kv_offloading_size="None",kv_sharing_fast_prefill="False",mamba_block_size="None",mamba_cache_dtype="auto",mamba_cache_mode="none",mamba_page_size_padded="None",mamba_ssm_cache_dtype="float32",num_cpu_blocks="None",num_gpu_blocks="%d",num_gpu_blocks_override="None",prefix_cache_retention_interval="0",prefix_caching_hash_algo="sha256_cbor",prefix_match_unit="None",replayssm_buffer_len="16",skip_page_size_padded="None",sliding_window="None",swa_bounded_replay="True",use_kda_recoverssm="False",use_replayssm="False",user_specified_block_size="True"`,
		c.BlockTokens, c.BlockTokens, formatFloat(concurrency), tokens, c.Blocks)
}
