package report

import (
	"errors"
	"fmt"
	"math"
	"syscall"
	"time"

	"epp.internal/epp"
	"epp.internal/epp/report/wire"
)

// The bounds of one report.
const (
	// maxReportBytes bounds a report on the wire; a Client's own have a quarter.
	maxReportBytes = 1 << 20
	// maxBlocks bounds the blocks of one report.
	maxBlocks = 1 << 16
	// maxBlockTokens bounds a block: engines have up to 256 tokens in one.
	maxBlockTokens = 8192
	maxTier        = 64   // bytes
	maxName        = 1024 // bytes: of a model, an adapter
	maxNames       = 4096 // models, and adapters
	maxXIDs        = 64
	// maxMissed bounds the reports that are missing before one: more is no loss.
	maxMissed = 1 << 20
	maxError  = 1024 // bytes
	// MaxValues bounds the free key-values of an agent, MaxValueBytes each key and
	// each value.
	MaxValues     = 32
	MaxValueBytes = 256
	// maxAge is the age from which that of a reading, or of a block's end, is no
	// longer believed.
	maxAge = time.Minute
)

// Readings take what the engine's page says: scrape.Sink without the models.
type Readings interface {
	Begin(now time.Time) (mark int)
	Load(mark int, began time.Time, l epp.Load)
	Failed(now time.Time, err error)
}

// Blocks take what the engine's cache holds, as kvevents.Sink says.
type Blocks interface {
	Apply(now time.Time, events []epp.BlockEvent)
	Reset(now time.Time)
	Incomplete(now time.Time, incomplete bool)
}

// Health takes what neither page nor events tell.
type Health interface {
	// GPU takes a reading of the accelerators. It may keep g.
	GPU(now time.Time, g epp.GPU)
	// Probed takes how a probe ended, and whether it took more than half its time.
	Probed(now time.Time, err error, slowly bool)
}

// Feed is where one endpoint's reports go. Its methods and funcs are called one at
// a time. A nil field takes nothing.
type Feed struct {
	Readings Readings
	Models   func(models []epp.Model)
	Blocks   Blocks
	Health   Health
	// Restarted is called when the engine has restarted, Event for each kind of
	// event of what Blocks were told at a time.
	Restarted func()
	Event     func(kind epp.BlockEventKind, count int)
	// Values is called with the agent's free key-values. It may keep them.
	Values func(values map[string]string)
	// Close is called when the stream has ended; last is when it last said anything.
	Close func(last time.Time)
	// Done, when it is closed, ends the stream: the endpoint left the pool.
	Done <-chan struct{}
}

// intake is one stream's side in the picker, without stream or clock.
type intake struct {
	feed     Feed
	interval time.Duration
	probes   bool   // the agent said that it probes: else it has no say in that
	probed   uint64 // the last probe that was taken: three that fail in a row count, not one told three times

	next uint64 // the number that is to come
	// whole is true where all that was said of blocks has come, filling while a
	// snapshot comes. incomplete is what was last told; asked is when a snapshot
	// was last ordered.
	whole, filling bool
	incomplete     bool
	asked          time.Time

	// begun is the reading that has begun, with its mark and time; 0: none.
	begun uint64
	mark  int
	began time.Time

	// restarts is what the agent last counted; −1 before it has.
	restarts int64

	events []epp.BlockEvent
}

// open begins a stream whose Hello was number 1. The snapshot that the first
// order asks for is on its way.
func (t *intake) open(now time.Time) {
	t.next, t.asked, t.restarts = 2, now, -1
	if t.feed.Blocks != nil {
		t.incomplete = true
		t.feed.Blocks.Incomplete(now, true)
	}
}

// take takes a report, and says whether a snapshot is to be ordered. late is true
// for one that comes after its turn: nothing of it is taken. missed counts those
// that are missing before it. An error ends the stream.
func (t *intake) take(now time.Time, r *wire.Report) (order, late bool, missed uint64, err error) {
	if err := check(r); err != nil {
		return false, false, 0, err
	}
	if r.Number < t.next {
		return false, true, 0, nil
	}
	if missed = r.Number - t.next; missed > maxMissed {
		return false, false, 0, fmt.Errorf("report %d: %d is due; at most %d may be missing", r.Number, t.next, maxMissed)
	}
	if missed > 0 {
		t.whole, t.filling = false, false
	}
	t.next = r.Number + 1
	t.takeBlocks(now, r)
	t.takeReading(now, r)
	t.takeFacts(now, r)
	order = t.feed.Blocks != nil && !t.whole && !t.filling && (missed > 0 || now.Sub(t.asked) >= t.interval)
	if order {
		t.asked = now
	}
	return order, false, missed, nil
}

// takeBlocks takes what r says of blocks, where that follows on what came before.
func (t *intake) takeBlocks(now time.Time, r *wire.Report) {
	to := t.feed.Blocks
	if to == nil {
		return
	}
	if r.SnapshotBegin {
		to.Reset(now)
		t.whole, t.filling = false, true
	}
	if (t.whole || t.filling) && len(r.Events) > 0 {
		t.apply(now, r.Events)
	}
	if r.SnapshotEnd && t.filling {
		t.whole, t.filling = true, false
	}
	if incomplete := !t.whole || r.Incomplete; incomplete != t.incomplete {
		t.incomplete = incomplete
		to.Incomplete(now, incomplete)
	}
}

// apply passes events on. Those that went at different times are told apart, as
// the batches were in which the engine said so.
func (t *intake) apply(now time.Time, events []*wire.BlockEvent) {
	t.events = t.events[:0]
	var at time.Time // of what is gathered
	for _, e := range events {
		kind, ok := kinds[e.Kind]
		if !ok {
			continue
		}
		gone := goneAt(now, e)
		if !gone.IsZero() && !at.IsZero() && !gone.Equal(at) {
			t.flush(now)
		}
		if !gone.IsZero() {
			at = gone
		}
		t.events = append(t.events, epp.BlockEvent{
			Kind: kind, Hashes: e.Names, Keys: e.Keys, Parent: e.Parent, HasParent: e.Parent != 0,
			BlockTokens: int(e.BlockTokens), Tier: e.Tier, Group: int(e.Group), At: gone,
		})
	}
	t.flush(now)
}

// flush passes on what is gathered.
func (t *intake) flush(now time.Time) {
	if len(t.events) == 0 {
		return
	}
	t.feed.Blocks.Apply(now, t.events)
	var counts [epp.AllBlocksCleared + 1]int
	for i := range t.events {
		counts[t.events[i].Kind]++
	}
	for kind, n := range counts {
		if n > 0 && t.feed.Event != nil {
			t.feed.Event(epp.BlockEventKind(kind), n)
		}
	}
	clear(t.events)
	t.events = t.events[:0]
}

// goneAt is when blocks went, on our clock; zero where that is not known.
func goneAt(now time.Time, e *wire.BlockEvent) time.Time {
	age := time.Duration(e.GetAgeMs()) * time.Millisecond
	if e.AgeMs == nil || age > maxAge || e.Kind == wire.BlockEvent_STORED {
		return time.Time{}
	}
	return now.Add(-age)
}

var kinds = map[wire.BlockEvent_Kind]epp.BlockEventKind{
	wire.BlockEvent_STORED:  epp.BlockStored,
	wire.BlockEvent_REMOVED: epp.BlockRemoved,
	wire.BlockEvent_CLEARED: epp.AllBlocksCleared,
}

// takeReading takes the end of one reading and the beginning of the next. Where
// the beginning was not seen, it was as long ago as the agent says.
func (t *intake) takeReading(now time.Time, r *wire.Report) {
	to := t.feed.Readings
	if to == nil {
		return
	}
	if d := r.Reading; d != nil {
		if t.begun == 0 || t.begun != d.Number {
			t.mark, t.began = to.Begin(now), now.Add(-min(time.Duration(d.AgeMs)*time.Millisecond, maxAge))
		}
		t.begun = 0
		switch {
		case d.Failed == "":
			to.Load(t.mark, t.began, believed(loadOf(d)))
		case d.Refused:
			to.Failed(now, fmt.Errorf("agent: %s: %w", d.Failed, syscall.ECONNREFUSED))
		default:
			to.Failed(now, fmt.Errorf("agent: %s", d.Failed))
		}
	}
	if r.Begins != 0 {
		t.begun, t.began, t.mark = r.Begins, now, to.Begin(now)
	}
}

func (t *intake) takeFacts(now time.Time, r *wire.Report) {
	if restarts := int64(min(r.Restarts, math.MaxInt64)); restarts != t.restarts {
		if t.restarts >= 0 && t.feed.Restarted != nil {
			t.feed.Restarted()
		}
		t.restarts = restarts
	}
	if r.Models != nil && t.feed.Models != nil {
		models := make([]epp.Model, len(r.Models.Models))
		for i, m := range r.Models.Models {
			models[i] = epp.Model{Name: m.Name, Parent: m.Parent, MaxTokens: int(m.MaxTokens)}
		}
		t.feed.Models(models)
	}
	if g := r.Gpu; g != nil && t.feed.Health != nil {
		t.feed.Health.GPU(now, believedGPU(gpuOf(g)))
	}
	if p := r.Probe; p != nil && t.probes && p.Number != t.probed && t.feed.Health != nil {
		t.probed = p.Number
		var err error
		if p.Failed != "" {
			err = errors.New("agent: probe: " + p.Failed)
		}
		t.feed.Health.Probed(now, err, p.Slowly)
	}
	if r.Values != nil && t.feed.Values != nil {
		t.feed.Values(r.Values.Values)
	}
}

// check holds a report against the bounds.
func check(r *wire.Report) error {
	blocks := 0
	for _, e := range r.Events {
		blocks += 1 + max(len(e.Names), len(e.Keys))
		if len(e.Tier) > maxTier || e.BlockTokens > maxBlockTokens {
			return fmt.Errorf("report %d: a block of %d tokens in a tier of %d bytes; at most %d and %d are allowed",
				r.Number, e.BlockTokens, len(e.Tier), maxBlockTokens, maxTier)
		}
		if blocks > maxBlocks {
			return fmt.Errorf("report %d: over %d blocks", r.Number, maxBlocks)
		}
	}
	names := r.Reading.GetAdapters()
	for _, m := range r.Models.GetModels() {
		names = append(names, m.Name, m.Parent)
	}
	if len(r.Reading.GetAdapters()) > maxNames || len(r.Models.GetModels()) > maxNames {
		return fmt.Errorf("report %d: over %d models or adapters", r.Number, maxNames)
	}
	for _, n := range names {
		if len(n) > maxName {
			return fmt.Errorf("report %d: a name of %d bytes; at most %d are allowed", r.Number, len(n), maxName)
		}
	}
	if n := max(len(r.Reading.GetFailed()), len(r.Probe.GetFailed())); n > maxError {
		return fmt.Errorf("report %d: an error of %d bytes; at most %d are allowed", r.Number, n, maxError)
	}
	if len(r.Gpu.GetXids()) > maxXIDs {
		return fmt.Errorf("report %d: %d XIDs; at most %d are allowed", r.Number, len(r.Gpu.GetXids()), maxXIDs)
	}
	return CheckValues(r.Values.GetValues())
}

// CheckValues says what is wrong with an agent's free key-values, nil for nothing.
func CheckValues(values map[string]string) error {
	if len(values) > MaxValues {
		return fmt.Errorf("values: there are %d; at most %d are allowed", len(values), MaxValues)
	}
	for k, v := range values {
		if k == "" || len(k) > MaxValueBytes || len(v) > MaxValueBytes {
			return fmt.Errorf("values: %.64q has %d bytes and its value %d; want 1 to %d, and at most %d", k, len(k), len(v), MaxValueBytes, MaxValueBytes)
		}
	}
	return nil
}
