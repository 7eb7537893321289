package sim

import (
	"cmp"
	"errors"
	"fmt"
	"strings"
	"time"

	"epp.internal/epp/decision"
	"epp.internal/epp/engine"
	"epp.internal/epp/picker"
	"epp.internal/epp/trace"
)

// The bounds and defaults of a Config.
const (
	MaxEndpoints = 4096
	// MaxBlocks bounds the blocks of all KV caches together, which take up to a hundred
	// bytes each. It is a little more than 4,096 endpoints of the default have.
	MaxBlocks = 1 << 27
	// DefaultReportEvery is how often an engine's page is read where nothing else
	// is set.
	DefaultReportEvery = time.Second
	// DefaultReadingTakes and DefaultEventLag are guesses for a cluster's network:
	// a page is made and read within 5 ms, an event comes within 2 ms.
	DefaultReadingTakes = 5 * time.Millisecond
	DefaultEventLag     = 2 * time.Millisecond
	// MaxSpan bounds a trace's time, and each time of a Config.
	MaxSpan = trace.MaxDuration
	// drain is how long after the last arrival requests may still run.
	drain = 4 * time.Hour
)

// Config is one run.
type Config struct {
	Trace *trace.Trace
	// Policy is the name of one of Policies.
	Policy string
	// Settings, if not nil, are what our picker decides by; Policy is then no more
	// than the run's name.
	Settings *decision.Settings
	// Endpoints is how many there are at the start.
	Endpoints int
	// Engine is what every endpoint runs; Engines overrides it for the first
	// endpoints, one by one.
	Engine  engine.Config
	Engines []engine.Config
	// Seed is where all chance comes from.
	Seed uint64
	// ReportEvery is how often a reading of each endpoint begins; it is there
	// after ReadingTakes. ReportLoss of them, in [0, 1], fail.
	ReportEvery, ReadingTakes time.Duration
	ReportLoss                float64
	// EventLag is how late KV events come; EventLoss of the batches, in [0, 1],
	// never do, and leave the endpoint incomplete.
	EventLag  time.Duration
	EventLoss float64
	Faults    []Fault
	// Decided, if not nil, is told every decision of a policy of ours, as
	// [picker.Hooks] says, with all that other settings would decide by.
	Decided func(rec *decision.Record, chain []uint64)
	// Ended is told how each attempt ended.
	Ended func(e *picker.Ending)
	// Progress, if not nil, is called now and then with the part that is done.
	Progress func(done float64)
}

// withDefaults fills the zero fields and returns every fault.
func (c Config) withDefaults() (Config, error) {
	if c.ReportEvery == 0 {
		c.ReportEvery = DefaultReportEvery
	}
	if c.ReadingTakes == 0 {
		c.ReadingTakes = min(DefaultReadingTakes, c.ReportEvery)
	}
	if c.EventLag == 0 {
		c.EventLag = DefaultEventLag
	}
	if c.Progress == nil {
		c.Progress = func(float64) {}
	}
	var faults []error
	fault := func(ok bool, format string, args ...any) {
		if !ok {
			faults = append(faults, fmt.Errorf("sim: "+format, args...))
		}
	}
	fault(c.Trace != nil && len(c.Trace.Requests) > 0, "trace: no request in it")
	if c.Trace != nil && len(c.Trace.Requests) > 0 {
		last := c.Trace.Requests[len(c.Trace.Requests)-1].At
		fault(last <= MaxSpan, "trace: its last request comes after %v: want at most %v", last, MaxSpan)
	}
	fault(c.ReportEvery >= time.Millisecond && c.ReportEvery <= MaxSpan, "report interval: %v: want 1ms–%v", c.ReportEvery, MaxSpan)
	fault(c.ReadingTakes > 0 && c.ReadingTakes <= c.ReportEvery, "reading time: %v: want more than 0 and at most the interval, %v", c.ReadingTakes, c.ReportEvery)
	fault(c.EventLag > 0 && c.EventLag <= MaxSpan, "event lag: %v: want more than 0 and at most %v", c.EventLag, MaxSpan)
	fault(c.ReportLoss >= 0 && c.ReportLoss <= 1, "report loss: %v: want 0–1", c.ReportLoss)
	fault(c.EventLoss >= 0 && c.EventLoss <= 1, "event loss: %v: want 0–1", c.EventLoss)
	if c.Settings == nil && PolicyNamed(c.Policy) == nil {
		faults = append(faults, fmt.Errorf("policy %q: no such policy: have %s", c.Policy, strings.Join(PolicyNames(), ", ")))
	}
	if c.Endpoints < 1 || c.Endpoints > MaxEndpoints { // then nothing can be held against it
		fault(false, "endpoints: %d: want 1–%d", c.Endpoints, MaxEndpoints)
		return c, errors.Join(faults...)
	}
	fault(len(c.Engines) <= c.Endpoints, "engines: %d of them for %d endpoints", len(c.Engines), c.Endpoints)
	most := c.Endpoints
	for _, f := range c.Faults {
		if f.Kind == Up {
			most++
		}
	}
	blocks := c.blocks(most)
	fault(blocks <= MaxBlocks, "KV caches: %d endpoints have %d blocks: want at most %d in all", most, blocks, MaxBlocks)
	fault(most <= MaxEndpoints, "faults: %d endpoints with those that are added: want at most %d", most, MaxEndpoints)
	for _, f := range c.Faults {
		faults = append(faults, f.check(most))
	}
	return c, errors.Join(faults...)
}

// blocks is how many blocks so many endpoints have in all.
func (c *Config) blocks(endpoints int) (sum int) {
	for i := range endpoints {
		cfg := c.Engine
		if i < len(c.Engines) {
			cfg = c.Engines[i]
		}
		blocks := cfg.Blocks
		if blocks == 0 {
			blocks = profileOf(cfg).KVTokens / cmp.Or(max(0, cfg.BlockTokens), engine.DefaultBlockTokens)
		}
		sum += blocks
	}
	return sum
}
