package epptest

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"slices"
	"sync"
	"time"

	"epp.internal/epp/engine"
	"github.com/cespare/xxhash/v2"
)

// Defaults and bounds of a fake engine.
const (
	DefaultModel          = "tiny"
	DefaultMaxModelTokens = 32768
	DefaultBufferSteps    = 10_000 // vLLM's own

	minTimeScale     = 1e-6      // a model's time.Duration lasts for two hours of ours
	maxBodyBytes     = 64 << 20  // of a request
	maxReceived      = 1_000     // requests kept for Received
	maxReceivedBytes = 256 << 20 // of their bodies
	maxPrompts       = 1_024     // in one request
)

// EngineConfig describes a fake engine. The zero value is a fresh vLLM on free
// ports of 127.0.0.1, of profile article-8b, with a ByteTokenizer.
type EngineConfig struct {
	// Name is sent with every reply as x-served-by.
	Name string
	// Address is where HTTP is served; EventAddress is where KV events are
	// published, ReplayAddress where they are replayed. The default of each is
	// 127.0.0.1:0. A restart uses the same ports again.
	Address, EventAddress, ReplayAddress string

	// Model is the base model's name; Adapters are the LoRA adapters loaded at
	// start.
	Model    string
	Adapters []string
	// MaxModelTokens is the context length. The default is DefaultMaxModelTokens,
	// or what the cache holds where that is less.
	MaxModelTokens int

	// Engine is the model behind the sockets. Where it has no slots for adapters
	// but Adapters are given, it gets a slot for each. The default of its Seed
	// comes from Name, so engines share no block hash.
	Engine engine.Config
	// TimeScale is how many seconds pass for one of the model's: 0.01 makes it a
	// hundred times faster. The default is 1.
	TimeScale float64

	// Tokenizer reads prompts and writes answers; nil: ByteTokenizer.
	Tokenizer Tokenizer
	// AnswerTokens are what answers are made of. Any sequence of them must be
	// tokenized back to itself. nil: the lower-case letters.
	AnswerTokens []uint32
	// AnswerLength, if > 0, is after how many tokens an answer ends by itself,
	// unless the request has ignore_eos. 0: each answer is as long as the request
	// allows.
	AnswerLength int

	// NoEvents serves no KV events: no ZMQ socket, no /kv_event_sources.
	NoEvents bool
	// NoEventSources answers /kv_event_sources with 404, as older engines do.
	NoEventSources bool
	// EventTopic is the first frame of every event message.
	EventTopic string
	// EventForm is the encoding of KV events.
	EventForm EventForm
	// BufferSteps is how many event messages can be replayed.
	BufferSteps int

	// NoPromptTokensDetails leaves cached tokens out of usage blocks, as vLLM does
	// without --enable-prompt-tokens-details.
	NoPromptTokensDetails bool
	// KVUsageMetric is the name of the KV usage on /metrics. The default is
	// vllm:kv_cache_usage_perc; older engines have vllm:gpu_cache_usage_perc; "-"
	// leaves it out.
	KVUsageMetric string
}

// withDefaults returns the config with its zero fields filled in.
func (c EngineConfig) withDefaults() (EngineConfig, error) {
	for _, f := range []struct {
		field *string
		value string
	}{
		{&c.Name, "engine"},
		{&c.Address, "127.0.0.1:0"},
		{&c.EventAddress, "127.0.0.1:0"},
		{&c.ReplayAddress, "127.0.0.1:0"},
		{&c.Model, DefaultModel},
		{&c.KVUsageMetric, "vllm:kv_cache_usage_perc"},
	} {
		if *f.field == "" {
			*f.field = f.value
		}
	}
	if c.TimeScale == 0 {
		c.TimeScale = 1
	}
	if c.BufferSteps == 0 {
		c.BufferSteps = DefaultBufferSteps
	}
	if c.Tokenizer == nil {
		c.Tokenizer = ByteTokenizer{}
	}
	if c.AnswerTokens == nil {
		c.AnswerTokens = letters()
	}
	if c.Engine.MaxAdapters == 0 {
		c.Engine.MaxAdapters = len(c.Adapters)
	}
	if c.Engine.Seed == 0 {
		c.Engine.Seed = xxhash.Sum64String(c.Name)
	}
	switch {
	case c.TimeScale < minTimeScale:
		return c, fmt.Errorf("epptest: TimeScale (%v) must be >= %v", c.TimeScale, minTimeScale)
	case c.BufferSteps < 0:
		return c, fmt.Errorf("epptest: BufferSteps (%d) must be >= 0", c.BufferSteps)
	case len(c.AnswerTokens) == 0:
		return c, errors.New("epptest: AnswerTokens must not be empty")
	}
	model, err := engine.New(c.Engine)
	if err != nil {
		return c, err
	}
	c.Engine = model.Config()
	room := (c.Engine.Blocks - 1) * c.Engine.BlockTokens
	if c.MaxModelTokens == 0 {
		c.MaxModelTokens = min(DefaultMaxModelTokens, room)
	}
	if c.MaxModelTokens < 1 || c.MaxModelTokens > room {
		return c, fmt.Errorf("epptest: MaxModelTokens (%d) must be within 1 and the %d tokens that the cache holds", c.MaxModelTokens, room)
	}
	return c, nil
}

// Engine is a fake vLLM: its addresses, which stay, and the process behind them,
// which can crash and be restarted. Its methods are safe for concurrent use.
type Engine struct {
	life sync.Mutex // held while a process starts or ends

	mu       sync.Mutex   // guards the following fields
	cfg      EngineConfig // after the first start with the ports that were given
	proc     *process     // nil after Crash and Close
	fault    Fault
	received []Received
	kept     int // bytes of the bodies in received
	requests int
	changed  chan struct{} // closed and replaced when a request arrives
}

// Received is a request as it arrived on one of the inference paths.
type Received struct {
	Path   string
	Header http.Header
	Body   []byte
}

// StartEngine starts a fake engine. The caller must Close it.
func StartEngine(cfg EngineConfig) (*Engine, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	e := &Engine{cfg: cfg, changed: make(chan struct{})}
	if err := e.Restart(); err != nil {
		return nil, err
	}
	return e, nil
}

// Restart starts the engine anew: on the same addresses, with an empty cache, no
// requests, events numbered from 0, and nothing held. A fault stays. If it runs,
// it crashes first.
func (e *Engine) Restart() error {
	e.life.Lock()
	defer e.life.Unlock()
	e.end()
	p, err := startProcess(e, e.cfg)
	if err != nil {
		return err
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.cfg.Address = p.listener.Addr().String()
	if p.events != nil {
		e.cfg.EventAddress = p.events.pub.Addr().String()
		e.cfg.ReplayAddress = p.events.replay.Addr().String()
	}
	e.proc = p
	return nil
}

// Crash ends the engine as a killed process ends: its sockets are gone at once,
// every connection is reset. Nothing is answered until Restart.
func (e *Engine) Crash() {
	e.life.Lock()
	defer e.life.Unlock()
	e.end()
}

// end kills the process, if there is one. e.life is held.
func (e *Engine) end() {
	e.mu.Lock()
	p := e.proc
	e.proc = nil
	e.mu.Unlock()
	if p != nil {
		p.kill()
	}
}

// Close ends the engine and waits for all that it started.
func (e *Engine) Close() error {
	e.Crash()
	return nil
}

// process returns the running process, or nil.
func (e *Engine) process() *process {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.proc
}

// Name is the engine's name, as its replies carry it.
func (e *Engine) Name() string { return e.cfg.Name }

// Address is the host:port of HTTP.
func (e *Engine) Address() string {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.cfg.Address
}

// URL is the base URL of HTTP, without a trailing slash.
func (e *Engine) URL() string { return "http://" + e.Address() }

// EventEndpoint and ReplayEndpoint are the ZMQ endpoints, tcp://host:port, or
// empty without events.
func (e *Engine) EventEndpoint() string { return e.zmqEndpoint(&e.cfg.EventAddress) }

// ReplayEndpoint is the ZMQ endpoint of the replay socket; see EventEndpoint.
func (e *Engine) ReplayEndpoint() string { return e.zmqEndpoint(&e.cfg.ReplayAddress) }

func (e *Engine) zmqEndpoint(address *string) string {
	if e.cfg.NoEvents {
		return ""
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	return "tcp://" + *address
}

// Load is what the engine says of its queue; zero where none runs.
func (e *Engine) Load() engine.Load {
	if p := e.process(); p != nil {
		return p.load()
	}
	return engine.Load{}
}

// Running is the number of requests that run.
func (e *Engine) Running() int { return e.Load().Running }

// Waiting is the number of requests that wait.
func (e *Engine) Waiting() int { return e.Load().Waiting }

// Counters are the engine's counters since it was last started.
func (e *Engine) Counters() engine.Counters {
	p := e.process()
	if p == nil {
		return engine.Counters{}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.model.Counters()
}

// Blocks is the number of blocks that can be found in the cache.
func (e *Engine) Blocks() int {
	p := e.process()
	if p == nil {
		return 0
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.model.KnownBlocks()
}

// Holds is how many leading full blocks of a prompt are in the cache.
func (e *Engine) Holds(tokens []uint32, adapter, salt string) int {
	p := e.process()
	if p == nil {
		return 0
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.model.Holds(tokens, adapter, salt)
}

// Requests is how many requests have arrived on the inference paths in the
// engine's whole life.
func (e *Engine) Requests() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.requests
}

// Received are the last requests on the inference paths, oldest first, at most a
// thousand of them and 256 MiB. Their contents must not be changed.
func (e *Engine) Received() []Received {
	e.mu.Lock()
	defer e.mu.Unlock()
	return slices.Clone(e.received)
}

// receive notes a request.
func (e *Engine) receive(r Received) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.received = append(e.received, r)
	e.kept += len(r.Body)
	for len(e.received) > maxReceived || e.kept > maxReceivedBytes {
		e.kept -= len(e.received[0].Body)
		e.received = slices.Delete(e.received, 0, 1)
	}
	e.requests++
	close(e.changed)
	e.changed = make(chan struct{})
}

// AwaitRequests returns when n requests have arrived in all, or with ctx's error.
func (e *Engine) AwaitRequests(ctx context.Context, n int) error {
	for {
		e.mu.Lock()
		have, changed := e.requests, e.changed
		e.mu.Unlock()
		if have >= n {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return fmt.Errorf("engine %s: %d of %d requests: %w", e.cfg.Name, have, n, ctx.Err())
		}
	}
}

// AwaitLoad returns when ok accepts what the engine says of its queue, or with
// ctx's error.
func (e *Engine) AwaitLoad(ctx context.Context, ok func(engine.Load) bool) error {
	p := e.process()
	if p == nil {
		return fmt.Errorf("engine %s: not running", e.cfg.Name)
	}
	for {
		p.mu.Lock()
		load, changed := p.model.Load(), p.changed
		p.mu.Unlock()
		if ok(load) {
			return nil
		}
		select {
		case <-changed:
		case <-p.done:
			return fmt.Errorf("engine %s: ended with %+v", e.cfg.Name, load)
		case <-ctx.Done():
			return fmt.Errorf("engine %s: %+v: %w", e.cfg.Name, load, ctx.Err())
		}
	}
}

// AwaitSubscribers returns when n clients have subscribed to the engine's KV
// events, or with ctx's error. What is published before a client has subscribed
// does not reach it.
func (e *Engine) AwaitSubscribers(ctx context.Context, n int) error {
	p := e.process()
	if p == nil || p.events == nil {
		return fmt.Errorf("engine %s: publishes no events", e.cfg.Name)
	}
	return p.events.awaitSubscribers(ctx, n)
}

// listen opens a TCP port.
func listen(address string) (net.Listener, error) {
	l, err := net.Listen("tcp", address)
	if err != nil {
		return nil, fmt.Errorf("epptest: %w", err)
	}
	return l, nil
}

// scaled is how long d of the model's time takes.
func (c *EngineConfig) scaled(d time.Duration) time.Duration {
	return time.Duration(float64(d) * c.TimeScale)
}
