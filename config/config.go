// Package config is the one tree of settings that a file and, with the same
// names, a Kubernetes object fill: its defaults, its reading and its checking.
// It is core: it opens no file and knows no other room; cmd reads the file and
// hands what it says to the rooms that need it.
//
// # What holds
//
// An empty file but for the pool's endpoints is a whole configuration: every
// other setting has a default, which [Default] returns. A setting is here only
// if something obeys it. A configuration that
// [Parse] returned has no fault; one with faults is never returned in part.
// All faults are told at once, each with its file, line and path, what is
// wrong with the value quoted, and what would be right:
//
//	epp.yaml:3: pool.endpoints[1]: "http://10.0.0.8:8000" has a scheme; an endpoint is ip:port: "10.0.0.8:8000"
//	epp.yaml:5: maxQeue: unknown key; the nearest is "maxQueue"
//
// # Example
//
//	pool:
//	  endpoints: [10.0.0.7:8000, 10.0.0.8:8000]
//	weights: {cache: 0.7, load: 0.1, queue: 0.1, health: 0.05, adapter: 0.05}
//	models:
//	  - {name: support-billing, target: billing-lora-v3, adapter: true}
//	  - {name: chat, targets: [{name: chat-v1, weight: 90}, {name: chat-v2, weight: 10}]}
package config

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"epp.internal/epp/decision"
)

// Config is all that can be set. The field comments are the settings' manual.
type Config struct {
	// Pool says which endpoints there are.
	Pool Pool `json:"pool"`
	// Kubernetes says where the pool is found instead, with its models and settings.
	Kubernetes Kubernetes `json:"kubernetes"`

	// Weights of the scorers, by name; they are finite, not negative and sum to
	// 1 within [decision.WeightSumTolerance]. A file that has this key sets all of them: a
	// scorer it does not name weighs 0. Default cache 0.60, load 0.20,
	// queue 0.10, health 0.05, adapter 0.05.
	Weights map[string]float64 `json:"weights"`

	// Policy says how to choose among the endpoints that pass the filters:
	// "weighted" (default) takes the highest weighted sum, "latency" the lowest
	// predicted time, the request's own and what it costs the others there.
	Policy decision.PolicyName `json:"policy"`
	// Gate leaves out endpoints where that predicted time is longer than at the best
	// one by more than this; the weighted sum decides among the rest. 300ms is a
	// good start. Default 0: no gate. Else 10ms–10m.
	Gate Duration `json:"gate"`
	// Spread spreads prefixes over the pool, beside the weighted sum.
	Spread Spread `json:"spread"`

	// MaxQueue is the queue, in requests, at which an endpoint is full: the
	// queue factor is 0 from there on and the endpoint is no candidate.
	// Default 20, range 1–100,000.
	MaxQueue int `json:"maxQueue"`
	// OnSaturated says what happens when every endpoint is full: "degrade"
	// (default) scores the healthy ones all the same, "reject" answers 429.
	OnSaturated decision.OnSaturated `json:"onSaturated"`

	Load  Load  `json:"load"`
	Cache Cache `json:"cache"`
	Probe Probe `json:"probe"`

	// Fallbacks is how many further endpoints follow the picked one in the answer
	// to a gateway that walks such a list. Default 0, range 0–8: a gateway that
	// reads one address only fails on a list.
	Fallbacks int `json:"fallbacks"`

	// Models are names that clients use for other names, and names that are
	// adapters. A model that is not here keeps its name. The name "*" stands for
	// every name that neither this list nor an endpoint knows, and for none; "**"
	// for every name that this list does not have, even where endpoints know it.
	Models []Model `json:"models"`
	// DefaultModel is the name that a request means which names none. Default "":
	// such a request is refused, unless there is a model "*" or "**".
	DefaultModel string `json:"defaultModel"`
	// Objectives are priorities that requests can ask for, in their header
	// x-llm-d-inference-objective: an objective never raises what the model's own
	// priority is.
	Objectives []Objective `json:"objectives"`
	// ForwardEncoded sends a compressed body on as it came, for engines that
	// decode bodies; vLLM and SGLang don't. Default false: it is sent decoded.
	ForwardEncoded bool `json:"forwardEncoded"`

	Listen    Listen    `json:"listen"`
	TLS       TLS       `json:"tls"`
	Reports   Reports   `json:"reports"`
	Tokenizer Tokenizer `json:"tokenizer"`
	KVEvents  KVEvents  `json:"kvEvents"`
	Timeouts  Timeouts  `json:"timeouts"`
	Limits    Limits    `json:"limits"`
	Log       Log       `json:"log"`
}

// Pool says which endpoints there are.
type Pool struct {
	// Endpoints is the fixed list, 1–4,096 of them; none with kubernetes.pool.
	Endpoints []Endpoint `json:"endpoints"`
	// AllowLinkLocal admits addresses in 169.254.0.0/16 and fe80::/10, where
	// clouds serve a machine's credentials. Default false.
	AllowLinkLocal bool `json:"allowLinkLocal"`
	// Engine is what the endpoints run: "auto" (default: told from each page,
	// vLLM where none tells), "vllm", "sglang" or "tensorrt-llm". The tables of the
	// last two are from documentation, never run.
	Engine string `json:"engine"`
	// GPU says where the endpoints' accelerators are read, where an endpoint does
	// not say otherwise.
	GPU GPU `json:"gpu"`
}

// Kubernetes says where on a Kubernetes cluster the pool is described.
type Kubernetes struct {
	// Pool is an InferencePool, NAMESPACE/NAME. Default "": the pool is the list of
	// endpoints.
	Pool string `json:"pool"`
	// Kubeconfig is a file that says how the API server is reached. Default "": by the
	// service account of the pod that the picker runs in.
	Kubeconfig string `json:"kubeconfig"`
}

// Endpoint is one engine's address. In a file it is either the address alone
// or a mapping.
type Endpoint struct {
	// Name is unique in the pool. Default: the address.
	Name string `json:"name"`
	// Address is ip:port, an IPv6 address in brackets, without a scheme.
	Address string `json:"address"`
	// Events and Replay are the ip:port of the engine's KV-event socket and of
	// its replay socket, where they are not on the pool's common ports.
	Events string `json:"events"`
	Replay string `json:"replay"`
	// Engine is what this endpoint runs. Default: the pool's.
	Engine string `json:"engine"`
	// GPU says where this endpoint's accelerators are read. Default: the pool's.
	GPU GPU `json:"gpu"`
}

// GPU says where accelerators are read, for load.source "gpu" and for health.
type GPU struct {
	// DCGM is NVIDIA's DCGM exporter: a port on the endpoint's own IP, such as
	// 9400, or a URL, http://10.0.0.7:9400/metrics. Default "": none.
	DCGM DCGM `json:"dcgm"`
	// GPUs are the endpoint's own, by the exporter's labels gpu or UUID. Default:
	// those that the exporter says are the pod's, which is the endpoint's name, or
	// all where it names no pods.
	GPUs []string `json:"gpus"`
}

// DCGM is where a DCGM exporter listens: a port, or a URL of an IP address.
type DCGM string

// UnmarshalText reads the text as it is; Validate checks it.
func (d *DCGM) UnmarshalText(text []byte) error {
	*d = DCGM(text)
	return nil
}

// UnmarshalText reads the short form, an address alone.
func (e *Endpoint) UnmarshalText(text []byte) error {
	e.Address = string(text)
	return nil
}

// Load says how busy an endpoint is.
type Load struct {
	// Source is what the load factor counts: "requests" (default), "tokens", "kv",
	// or "gpu", which needs a source of GPU readings for each endpoint.
	Source decision.LoadSource `json:"source"`
	// MaxRunning is how many requests an engine runs at once. Default 0: learnt,
	// and 32 as the divisor of the load. Range 0–65,536.
	MaxRunning int `json:"maxRunning"`
	// MaxUtilization is the load that counts as full. Default 1.0; above 0, at most 1.
	MaxUtilization float64 `json:"maxUtilization"`
}

// Spread says what spreads prefixes, beside the weighted sum. It has no meaning
// with policy latency, which needs neither.
type Spread struct {
	// Cold lets a tie between endpoints that hold nothing of a prompt go to the one
	// that has waited longest for such a request. Default false: a hash decides.
	Cold bool `json:"cold"`
	// Hot leaves out the endpoints that hold a prefix while all of them are full
	// (load 1) and another is not half as loaded, which so gets a copy. Default
	// false.
	Hot bool `json:"hot"`
}

// Cache says where the knowledge of cached blocks comes from.
type Cache struct {
	// Source is "auto" (default: the engine's events where they come, and for the
	// other endpoints what our own picks have taught), "events", which needs a
	// source of events in kvEvents or in each endpoint, or "own": what our own
	// picks have taught alone, and no engine is asked for events.
	Source string `json:"source"`
	// OwnTTL is how long a prompt that our own pick sent to an endpoint counts as
	// cached there, where the endpoint does not tell. Default 5m, range 1s–24h.
	OwnTTL Duration `json:"ownTTL"`
	// Tiers are what a cached block is worth that lies beside the GPU.
	Tiers Tiers `json:"tiers"`
}

// Tiers are what cached blocks are worth by where they lie, as a part of one on the
// GPU, which is 1.
type Tiers struct {
	// CPU is the worth of a block in the host's memory. Default 0.8; above 0, at most 1.
	CPU float64 `json:"cpu"`
	// Disk is the worth of a block on a disk or in a store. Default 0.5; above 0, at most 1.
	Disk float64 `json:"disk"`
}

// Probe asks each engine for one token now and then, to see that it answers. It
// costs the engine a request, so it is off by default.
type Probe struct {
	// Interval is the time between two probes of an endpoint. Default 0s: no
	// probes; else 1s–10m. 5s is a good one.
	Interval Duration `json:"interval"`
	// Timeout is how long an engine may take. Default 2s, range 100ms–1m.
	Timeout Duration `json:"timeout"`
}

// The ranges of Probe, which are those of epp agent's flags too.
const (
	MinProbeInterval = time.Second
	MaxProbeInterval = 10 * time.Minute
	MinProbeTimeout  = 100 * time.Millisecond
	MaxProbeTimeout  = time.Minute
)

// Model is one name that clients may ask for.
type Model struct {
	Name string `json:"name"`
	// Target is the name that endpoints know it by. Default: Name.
	Target string `json:"target"`
	// Adapter is true where Target is a LoRA adapter.
	Adapter bool `json:"adapter"`
	// Targets, at most 100, stand in place of target and adapter where requests are
	// divided among several: each request goes to one of them, by chance.
	Targets []Target `json:"targets"`
	// Priority below 0 lets the requests be shed: where every healthy endpoint is full
	// they are refused with 429, while others are placed as onSaturated says. Default
	// 0, range -1,000,000–1,000,000.
	Priority int `json:"priority"`
}

// Target is one of the names that a model's requests are divided among.
type Target struct {
	// Name is what endpoints know it by.
	Name string `json:"name"`
	// Weight is this target's part of the sum of all weights, 0–1,000,000; one of 0
	// gets no request. Either all targets have a weight or none, which is equal parts.
	Weight *int `json:"weight"`
	// Adapter is true where it is a LoRA adapter.
	Adapter bool `json:"adapter"`
}

// Divided returns what the model's requests are divided among, each with a weight;
// at least one has one above 0 where the configuration has no fault. A target
// without a name is the name that was asked for.
func (m *Model) Divided() []Target {
	equal := 1
	if len(m.Targets) == 0 {
		return []Target{{Name: m.Target, Weight: &equal, Adapter: m.Adapter}}
	}
	targets := slices.Clone(m.Targets)
	for i := range targets {
		if targets[i].Weight == nil {
			targets[i].Weight = &equal
		}
	}
	return targets
}

// Objective is one priority by its name.
type Objective struct {
	Name string `json:"name"`
	// Priority below 0 lets requests be shed, as a model's does. Default 0, range
	// -1,000,000–1,000,000.
	Priority int `json:"priority"`
}

// Listen holds the addresses that are listened on, host:port or :port; an empty
// one is not.
type Listen struct {
	Proxy   string `json:"proxy"`   // the OpenAI API; default ":8080"
	Metrics string `json:"metrics"` // the metrics page; default ":9090"
	ExtProc string `json:"extProc"` // Envoy's external processing; default ":9002"
	Health  string `json:"health"`  // gRPC health; default ":9003"
	// Reports is where agents beside the engines report, ":9004" by custom; it
	// needs reports.tokenFile or reports.clientCA. Default "".
	Reports string `json:"reports"`
}

// Reports says who may report for an endpoint, and how often.
type Reports struct {
	// TokenFile is a file with the secret that agents show. Default "": none.
	TokenFile string `json:"tokenFile"`
	// ClientCA is a PEM file with the authorities that sign agents' certificates;
	// it needs TLS. Default "": none.
	ClientCA string `json:"clientCA"`
	// AnyHost lets an agent speak for an endpoint from another host than the
	// endpoint's, without a certificate for its address. Default false.
	AnyHost bool `json:"anyHost"`
	// PodReportIntervalMs is the longest pause between two reports; after three of
	// them without a word the endpoint is read directly. Default 2000, range
	// 100–60,000.
	PodReportIntervalMs int `json:"podReportIntervalMs"`
}

// TLS is what Envoy meets on listen.extProc, and agents on listen.reports.
type TLS struct {
	// Cert and Key are PEM files, read again when they change. Default "": a
	// certificate of our own making, new at each start.
	Cert string `json:"cert"`
	Key  string `json:"key"`
	// Insecure serves without TLS, for a gateway on the same host. Default false.
	Insecure bool `json:"insecure"`
}

// Tokenizer says where a prompt's exact tokens come from.
type Tokenizer struct {
	// Path is a folder that holds the model's tokenizer.json and
	// tokenizer_config.json. Default "": none; then engines are asked.
	Path string `json:"path"`
	// Mode is the engine's --tokenizer-mode where that is not "auto": "mistral" or
	// "cohere". Default "".
	Mode string `json:"mode"`
	// AskEngines has an engine make the tokens (POST /tokenize, or /render) that
	// the model's files cannot. Default true.
	AskEngines bool `json:"askEngines"`
	// AskBudget is how long a request waits for such tokens before it is routed
	// without. Default 20ms, range 1ms–10s.
	AskBudget Duration `json:"askBudget"`
}

// KVEvents says where the engines publish the blocks they store and remove.
type KVEvents struct {
	// Port is the engines' event port, on each endpoint's IP. Default 0: none
	// in common.
	Port int `json:"port"`
	// ReplayPort is the port on which an engine repeats events that were
	// missed. Default 0: it has none, and a gap leaves the endpoint incomplete.
	ReplayPort int `json:"replayPort"`
	// Topic is the prefix that a message's topic must have. Default "": all.
	Topic string `json:"topic"`
	// Discover asks each endpoint's /kv_event_sources. Default false, but see
	// Config.DiscoverEvents.
	Discover bool `json:"discover"`
}

// Timeouts bound what is waited for.
type Timeouts struct {
	// Answer is how long an endpoint may take to the first byte of its answer.
	// Default 10m, range 1s–24h.
	Answer Duration `json:"answer"`
	// Drain is how long requests are still accepted after a signal to stop,
	// while health checks already fail. Default 10s, range 100ms–1h.
	Drain Duration `json:"drain"`
	// Finish is how long running requests may take to end after that; what
	// still runs is cut off. Default 1m, range 1s–24h.
	Finish Duration `json:"finish"`
}

// Limits bound what comes from outside and what is remembered of it. A size is
// a number of bytes or has a unit: 65536, 64KiB, 16MiB, 2GiB.
type Limits struct {
	// BodyBytes is the longest request body, decompressed. Default 16MiB, range 1KiB–1GiB.
	BodyBytes Bytes `json:"bodyBytes"`
	// PromptBytes is the longest text of a request that is tokenized; a longer one is
	// routed without its tokens. Default 4MiB, range 64KiB–1GiB.
	PromptBytes Bytes `json:"promptBytes"`
	// BodiesBytes is the most that the bodies of all requests in flight may take
	// together. Default 1GiB, range 1MiB–1TiB, at least BodyBytes.
	BodiesBytes Bytes `json:"bodiesBytes"`
	// HeaderBytes is the longest header block of a request. Default 64KiB, range 4KiB–1MiB.
	HeaderBytes Bytes `json:"headerBytes"`
	// IndexBytes is the most the index of cached blocks may take. Default 1GiB, range 1MiB–1TiB.
	IndexBytes Bytes `json:"indexBytes"`
	// OwnBlocks is the most blocks that are remembered of our own picks, 40 to
	// 100 bytes each. Default 1048576, range 1024–67108864.
	OwnBlocks int `json:"ownBlocks"`
	// RingBytes is the most the ring of past decisions may take. Default 32MiB, range 64KiB–16GiB.
	RingBytes Bytes `json:"ringBytes"`
}

// Log says what is written to the log.
type Log struct {
	// Level is "error", "warn", "info" (default), "debug" or "trace".
	Level string `json:"level"`
	// Decisions is a file that gets every decision with all of its inputs, one JSON
	// object a line, for epp replay and epp tune. It holds no prompt and no token, but
	// lengths and hashes under a key that is not in it; only its owner may read it,
	// and only one process write to it. While it cannot be written, decisions are lost
	// and counted (epp_decision_lines_dropped_total); it is tried again within a minute.
	// Default "": none.
	Decisions string `json:"decisions"`
	// DecisionsBytes is how long that file gets before it becomes FILE.1, in place of
	// the one before, and a new one begins. Default 256MiB, range 1MiB–1TiB.
	DecisionsBytes Bytes `json:"decisionsBytes"`
}

// Values of Pool.Engine.
const (
	EngineAuto        = "auto"
	EngineVLLM        = "vllm"
	EngineSGLang      = "sglang"
	EngineTensorRTLLM = "tensorrt-llm"
)

// Values of Cache.Source.
const (
	CacheAuto   = "auto"
	CacheEvents = "events"
	CacheOwn    = "own"
)

// Names, in models, of many names.
const (
	CatchAll = "*"  // every name that is not known otherwise
	Unnamed  = "**" // every name that models does not have
)

// Default returns a configuration with every default and no endpoint.
func Default() *Config {
	d := decision.Defaults()
	weights := map[string]float64{}
	for _, w := range d.Weights {
		weights[w.Name] = w.Value
	}
	return &Config{
		Pool:        Pool{Engine: EngineAuto},
		Weights:     weights,
		Policy:      d.Policy,
		MaxQueue:    d.MaxQueue,
		OnSaturated: d.OnSaturated,
		Load:        Load{Source: d.Load.Source, MaxUtilization: d.Load.MaxUtilization},
		Cache:       Cache{Source: CacheAuto, OwnTTL: Duration{5 * time.Minute}, Tiers: Tiers{CPU: 0.8, Disk: 0.5}},
		Tokenizer:   Tokenizer{AskEngines: true, AskBudget: Duration{20 * time.Millisecond}},
		Probe:       Probe{Timeout: Duration{2 * time.Second}},
		Listen:      Listen{Proxy: ":8080", Metrics: ":9090", ExtProc: ":9002", Health: ":9003"},
		Reports:     Reports{PodReportIntervalMs: 2000},
		Timeouts:    Timeouts{Answer: Duration{10 * time.Minute}, Drain: Duration{10 * time.Second}, Finish: Duration{time.Minute}},
		Limits: Limits{
			BodyBytes:   16 << 20,
			PromptBytes: 4 << 20,
			BodiesBytes: 1 << 30,
			HeaderBytes: 64 << 10,
			IndexBytes:  1 << 30,
			OwnBlocks:   1 << 20,
			RingBytes:   32 << 20,
		},
		Log: Log{Level: "info", DecisionsBytes: 256 << 20},
	}
}

// Settings returns what a decision reads of c. staleAfter is the age at which a
// reading is too old to trust. Scorers stand in the order of the built-in ones,
// then by name.
func (c *Config) Settings(staleAfter time.Duration) *decision.Settings {
	s := decision.Defaults()
	s.StaleAfter = staleAfter
	s.Policy, s.Gate = c.Policy, c.Gate.Duration
	s.Spread = decision.Spread{Cold: c.Spread.Cold, Hot: c.Spread.Hot}
	s.MaxQueue, s.OnSaturated = c.MaxQueue, c.OnSaturated
	s.Load = decision.Load{Source: c.Load.Source, MaxRunning: c.Load.MaxRunning, MaxUtilization: c.Load.MaxUtilization}
	s.Weights = nil
	for _, name := range scorerOrder(c.Weights) {
		s.Weights = append(s.Weights, decision.Weight{Name: name, Value: c.Weights[name]})
	}
	return s
}

// scorerOrder returns the built-in scorers and then the others of weights.
func scorerOrder(weights map[string]float64) []string {
	names := slices.Clone(builtinScorers)
	for _, name := range slices.Sorted(maps.Keys(weights)) {
		if !slices.Contains(builtinScorers, name) {
			names = append(names, name)
		}
	}
	return names
}

// ModelNames returns the names that clients may ask for and those they lead to,
// each once.
func (c *Config) ModelNames() []string {
	var names []string
	for _, m := range c.Models {
		names = append(names, m.Name)
		for _, t := range m.Divided() {
			names = append(names, t.Name)
		}
	}
	names = append(names, c.DefaultModel)
	names = slices.DeleteFunc(names, func(name string) bool { return name == CatchAll || name == Unnamed || name == "" })
	slices.Sort(names)
	return slices.Compact(names)
}

// ReportInterval is Reports.PodReportIntervalMs as a duration.
func (c *Config) ReportInterval() time.Duration {
	return time.Duration(c.Reports.PodReportIntervalMs) * time.Millisecond
}

// DiscoverEvents is true where endpoints are asked for their event sockets: when
// the file says so, and with cache.source "auto" where no socket is named.
func (c *Config) DiscoverEvents() bool {
	if c.KVEvents.Discover {
		return true
	}
	return c.Cache.Source == CacheAuto && c.KVEvents.Port == 0
}

// Duration is a time.Duration whose text is "200ms", "2s", "10m".
type Duration struct{ time.Duration }

// UnmarshalText reads what time.ParseDuration reads.
func (d *Duration) UnmarshalText(text []byte) error {
	v, err := time.ParseDuration(string(text))
	if err != nil {
		return fmt.Errorf("%q is not a duration; write a number and a unit: 200ms, 2s, 10m", text)
	}
	d.Duration = v
	return nil
}

// MarshalText is the inverse of UnmarshalText.
func (d Duration) MarshalText() ([]byte, error) { return []byte(d.String()), nil }

// Bytes is a size in bytes whose text has an optional unit of 1,024: "16MiB".
type Bytes int64

var byteUnits = []struct {
	suffix string
	shift  uint
}{{"TiB", 40}, {"GiB", 30}, {"MiB", 20}, {"KiB", 10}, {"", 0}}

// UnmarshalText reads a whole number with KiB, MiB, GiB, TiB or no unit.
func (b *Bytes) UnmarshalText(text []byte) error {
	for _, u := range byteUnits {
		number, found := strings.CutSuffix(string(text), u.suffix)
		if !found {
			continue
		}
		n, err := strconv.ParseInt(strings.TrimSpace(number), 10, 64)
		if err != nil || n > 1<<62>>u.shift || n < -1<<62>>u.shift {
			break
		}
		*b = Bytes(n << u.shift)
		return nil
	}
	return fmt.Errorf("%q is not a size; write bytes or a unit: 65536, 64KiB, 16MiB, 2GiB", text)
}

// MarshalText is the inverse of UnmarshalText; it uses the largest unit that
// divides the size.
func (b Bytes) MarshalText() ([]byte, error) {
	for _, u := range byteUnits {
		if b != 0 && b&(1<<u.shift-1) == 0 {
			return fmt.Appendf(nil, "%d%s", int64(b)>>u.shift, u.suffix), nil
		}
	}
	return []byte("0"), nil
}
