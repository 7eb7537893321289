package agent

import (
	"maps"
	"sync"
	"time"

	"epp.internal/epp"
	"epp.internal/epp/block"
	"epp.internal/epp/report"
	"epp.internal/epp/report/wire"
)

const (
	// DefaultMaxBytes has room for half a million blocks of 16 tokens: more than an
	// engine's GPU holds.
	DefaultMaxBytes = 256 << 20
	// maxPending bounds what waits for a picker, in blocks: 4 MiB.
	maxPending = 1 << 16
	// reportBlocks bounds the blocks of one report: 200 KiB.
	reportBlocks = 1 << 14
)

// reading is a reading that has ended. Number 0: none has.
type reading struct {
	number uint64
	began  time.Time
	load   epp.Load
	err    error
}

// Options of an Agent. The zero value is usable.
type Options struct {
	// Pickers is how many are told. Default 1.
	Pickers int
	// MaxBytes bounds the mirror of the engine's blocks. Default DefaultMaxBytes.
	MaxBytes int
	// Values are told to every picker as they are; see report.CheckValues.
	Values map[string]string
}

// Agent knows one engine. It is the sink of its page and its events.
type Agent struct {
	values map[string]string

	mu sync.Mutex // guards the following fields

	mirror     mirror
	at         time.Time // when the engine did what is being applied; zero: not known
	incomplete bool      // the events say so
	tellers    []*Teller

	// begun counts the readings of the page, and beganAt is when the last one
	// began. What the last one that ended said is read, or why it failed.
	begun   uint64
	beganAt time.Time
	read    reading
	models  *wire.Models
	gpu     *wire.GPU
	probe   *wire.Probe

	restarts uint64 // of the engine, since our start
}

// New returns an agent that knows nothing yet.
func New(o Options) *Agent {
	if o.MaxBytes <= 0 {
		o.MaxBytes = DefaultMaxBytes
	}
	a := &Agent{values: maps.Clone(o.Values), incomplete: true}
	a.mirror = mirror{pickers: max(1, o.Pickers), maxBytes: o.MaxBytes, tell: a.tell}
	a.mirror.clear()
	for i := range a.mirror.pickers {
		a.tellers = append(a.tellers, &Teller{a: a, index: i, changed: make(chan struct{}, 1)})
	}
	return a
}

// Teller returns the source of what picker i is told; 0 ≤ i < Options.Pickers.
func (a *Agent) Teller(i int) *Teller { return a.tellers[i] }

// tell queues a block for every picker that listens. a.mu is held.
func (a *Agent) tell(n *node, stored bool) {
	for _, t := range a.tellers {
		t.block(n, stored)
	}
}

// wake lets tellers look for what is new, after mark. a.mu is held.
func (a *Agent) wake(mark func(t *Teller)) {
	for _, t := range a.tellers {
		mark(t)
		t.wake()
	}
}

// Begin is called when a reading of the page begins; see scrape.Sink.
func (a *Agent) Begin(now time.Time) (mark int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.begun++
	a.beganAt = now
	a.wake(func(t *Teller) { t.begins = a.begun })
	return 0
}

// Load takes a reading of the page.
func (a *Agent) Load(_ int, began time.Time, l epp.Load) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.read = reading{number: a.begun, began: began, load: l}
	a.wake(func(t *Teller) { t.due.reading = true })
}

// Failed takes that the page could not be read.
func (a *Agent) Failed(_ time.Time, err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.read = reading{number: a.begun, began: a.beganAt, err: err}
	a.wake(func(t *Teller) { t.due.reading = true })
}

// Models takes the names that the engine answers to.
func (a *Agent) Models(models []epp.Model) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.models = report.ModelsOf(models)
	a.wake(func(t *Teller) { t.due.models = true })
}

// BaseModel is the first of the engine's models that is no adapter; empty where no
// list was read yet.
func (a *Agent) BaseModel() string {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, m := range a.models.GetModels() {
		if m.Parent == "" {
			return m.Name
		}
	}
	return ""
}

// GPU takes a reading of the accelerators.
func (a *Agent) GPU(_ time.Time, g epp.GPU) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.gpu = report.GPUOf(g)
	a.wake(func(t *Teller) { t.due.gpu = true })
}

// Probed takes how a probe ended, and whether it took more than half its time.
func (a *Agent) Probed(_ time.Time, err error, slowly bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.probe = report.ProbeOf(a.probe.GetNumber()+1, err, slowly)
	a.wake(func(t *Teller) { t.due.probe = true })
}

// Apply takes the engine's events; see kvevents.Sink.
func (a *Agent) Apply(_ time.Time, events []epp.BlockEvent) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for i := range events {
		e := &events[i]
		a.at = e.At
		switch e.Kind {
		case epp.BlockStored:
			a.mirror.store(e)
		case epp.BlockRemoved:
			for _, hash := range e.Hashes {
				a.mirror.remove(name{e.Tier, e.Group, hash})
			}
		case epp.AllBlocksCleared:
			a.clear()
		}
	}
	a.at = time.Time{}
	a.wake(func(*Teller) {})
}

// Reset takes that the engine holds nothing of what it said.
func (a *Agent) Reset(time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.clear()
	a.wake(func(*Teller) {})
}

// clear forgets all blocks. a.mu is held.
func (a *Agent) clear() {
	a.mirror.clear()
	for _, t := range a.tellers {
		t.cleared()
	}
}

// Restarted takes that the engine is another process than before.
func (a *Agent) Restarted() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.restarts++
	a.wake(func(*Teller) {})
}

// Incomplete takes whether blocks may be missing from the events.
func (a *Agent) Incomplete(_ time.Time, incomplete bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.incomplete = incomplete
	a.wake(func(*Teller) {})
}

// Blocks returns how many blocks the engine holds, as far as it said.
func (a *Agent) Blocks() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.mirror.held
}

// Teller is what one picker is told: a report.Source.
type Teller struct {
	a       *Agent
	index   int
	changed chan struct{}

	// The following fields are guarded by a.mu.

	open bool // a picker listens, under key
	key  block.Key
	// pending is what happened to blocks, oldest first; the first ahead of them
	// belong to a snapshot. fresh is true where that has not begun, filling where
	// it has not ended.
	pending        []change
	ahead          int
	fresh, filling bool
	// clearedAt is when the engine cleared its cache, since the last snapshot began.
	clearedAt time.Time

	begins uint64 // a reading that has begun; 0: none has
	due    struct{ reading, models, gpu, probe, values bool }
}

// change is what happened to a block, or to all of them.
type change struct {
	kind        wire.BlockEvent_Kind
	id, key     uint64
	parent      uint64
	blockTokens int
	tier        string
	group       int
	at          time.Time // of one that went; zero: not known
}

// Changed gives a value when something is to be told.
func (t *Teller) Changed() <-chan struct{} { return t.changed }

func (t *Teller) wake() {
	select {
	case t.changed <- struct{}{}:
	default:
	}
}

// Open begins anew: the picker is to be told all, under its key.
func (t *Teller) Open(key block.Key) {
	a := t.a
	a.mu.Lock()
	defer a.mu.Unlock()
	t.open, t.key, t.begins, t.clearedAt = true, key, 0, time.Time{}
	t.restart()
	t.due.reading, t.due.models, t.due.gpu, t.due.probe = a.read.number > 0, a.models != nil, a.gpu != nil, a.probe != nil
	t.due.values = len(a.values) > 0
}

// restart puts a snapshot in the place of all that waits. a.mu is held.
func (t *Teller) restart() {
	t.pending, t.ahead, t.fresh, t.filling = nil, 0, true, false
}

// cleared is called when all blocks are gone. a.mu is held.
func (t *Teller) cleared() {
	if t.open {
		t.restart()
		t.clearedAt = t.a.at
	}
}

// hash computes a block's hash for this picker. a.mu is held.
func (t *Teller) hash(n *node) uint64 {
	var parent uint64
	if n.first {
		parent = t.key.Root(n.root)
	} else {
		parent = n.parent.keys[t.index]
	}
	n.keys[t.index] = block.ExtendMedia(parent, n.media, n.tokens)
	return n.keys[t.index]
}

// block queues what happened to a block, where a snapshot does not come anyway.
// a.mu is held.
func (t *Teller) block(n *node, stored bool) {
	if !t.open || t.fresh {
		return
	}
	if len(t.pending)-t.ahead >= maxPending {
		t.restart() // the picker is too slow
		return
	}
	t.queue(n, stored)
}

func (t *Teller) queue(n *node, stored bool) {
	c := change{kind: wire.BlockEvent_REMOVED, id: n.id, tier: n.name.tier, group: n.name.group, at: t.a.at}
	if stored {
		c.at = time.Time{}
		c.kind, c.key, c.blockTokens = wire.BlockEvent_STORED, t.hash(n), n.blockTokens
		if !n.first {
			c.parent = n.parent.id
		}
	}
	t.pending = append(t.pending, c)
}

// Next returns what is to be told now.
func (t *Teller) Next(now time.Time) (r *wire.Report, more bool) {
	a := t.a
	a.mu.Lock()
	defer a.mu.Unlock()
	r = &wire.Report{Incomplete: a.incomplete || a.mirror.full, Restarts: a.restarts}
	if t.fresh {
		if !t.clearedAt.IsZero() {
			t.pending = append(t.pending, change{kind: wire.BlockEvent_CLEARED, at: t.clearedAt})
			t.clearedAt = time.Time{}
		}
		a.mirror.reached(func(n *node) { t.queue(n, true) })
		t.ahead = len(t.pending)
		t.fresh, t.filling, r.SnapshotBegin = false, true, true
	}
	n := min(len(t.pending), reportBlocks)
	r.Events = events(now, t.pending[:n])
	t.ahead = max(0, t.ahead-n)
	if t.pending = t.pending[n:]; len(t.pending) == 0 {
		t.pending = nil
	}
	if t.filling && t.ahead == 0 {
		t.filling, r.SnapshotEnd = false, true
	}
	if t.due.reading {
		r.Reading = report.ReadingOf(a.read.number, &a.read.load, a.read.err)
		report.Age(r.Reading, now.Sub(a.read.began))
	}
	if t.begins > a.read.number { // else it has ended since
		r.Begins = t.begins
	}
	t.begins = 0
	if t.due.models {
		r.Models = a.models
	}
	if t.due.gpu {
		r.Gpu = a.gpu
	}
	if t.due.probe {
		r.Probe = a.probe
	}
	if t.due.values {
		r.Values = &wire.Values{Values: a.values}
	}
	t.due.reading, t.due.models, t.due.gpu, t.due.probe, t.due.values = false, false, false, false, false
	return r, len(t.pending) > 0
}

// events puts changes that follow on each other into one event each.
func events(now time.Time, changes []change) (out []*wire.BlockEvent) {
	var e *wire.BlockEvent
	var last *change
	for i := range changes {
		c := &changes[i]
		joins := e != nil && c.kind == last.kind && c.tier == last.tier && c.group == last.group && c.at.Equal(last.at) &&
			(c.kind == wire.BlockEvent_REMOVED || c.parent == last.id && c.blockTokens == last.blockTokens)
		if !joins {
			e = &wire.BlockEvent{Kind: c.kind, Parent: c.parent, BlockTokens: uint32(c.blockTokens), Tier: c.tier, Group: int32(c.group)}
			if !c.at.IsZero() {
				e.AgeMs = report.AgeOf(now.Sub(c.at))
			}
			out = append(out, e)
		}
		if c.kind != wire.BlockEvent_CLEARED {
			e.Names = append(e.Names, c.id)
		}
		if c.kind == wire.BlockEvent_STORED {
			e.Keys = append(e.Keys, c.key)
		}
		last = c
	}
	return out
}
