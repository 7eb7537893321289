package sim

import (
	"errors"
	"fmt"
	"slices"
	"syscall"
	"time"

	"epp.internal/epp"
	"epp.internal/epp/engine"
	"epp.internal/epp/fleet"
	"epp.internal/epp/picker"
)

// endpoint is one engine, and what leads from it to the router.
type endpoint struct {
	number int
	name   string
	cfg    engine.Config
	engine *engine.Engine
	member *fleet.Member

	flights []*flight
	// stamp tells plans of this life from those of former ones; woken is the time
	// for which a wake is planned, −1 for none.
	stamp uint64
	woken int64

	down, hung, sick bool // crashed; hanging; answering 500

	// What the engine's page counts beside the engine itself.
	firstTokens float64

	busy   time.Duration
	taken  int
	former uint64 // preemptions of former lives
}

// addEndpoint joins endpoint number i, which is the next one.
func (w *world) addEndpoint(i int) error {
	cfg := w.cfg.Engine
	if i < len(w.cfg.Engines) {
		cfg = w.cfg.Engines[i]
	}
	if len(w.adapters) > 0 && cfg.MaxAdapters == 0 {
		cfg.MaxAdapters = defaultAdapters
	}
	e := &endpoint{number: i, name: fmt.Sprintf("pod-%d", i), cfg: cfg, woken: -1}
	w.endpoints = append(w.endpoints, e)
	if err := e.start(w); err != nil {
		return err
	}
	e.join(w)
	return nil
}

// defaultAdapters are the LoRA slots of an engine where a trace asks for adapters
// and nothing else is set. Source: a guess, as of vLLM's examples.
const defaultAdapters = 4

// start begins a life of the engine.
func (e *endpoint) start(w *world) error {
	e.former += e.preemptions()
	cfg := e.cfg
	cfg.Seed, cfg.JoinRemovals = w.rand.Uint64(), true
	var err error
	if e.engine, err = engine.New(cfg); err != nil {
		return err
	}
	e.stamp++
	e.woken, e.firstTokens = -1, 0
	e.down, e.hung, e.sick = false, false, false
	return nil
}

// join makes the endpoint a member and begins to read it.
func (e *endpoint) join(w *world) {
	e.member = w.fleet.Join(epp.Endpoint{Name: e.name, Address: fmt.Sprintf("10.%d.%d.%d:8000", e.number>>16&255, e.number>>8&255, e.number&255)})
	w.byGeneration = append(w.byGeneration, e)
	e.member.Models(w.models())
	if w.readsEvents {
		e.member.Incomplete(w.now(), false)
	}
	// The readings of a pool are spread over the interval, as their starts are.
	offset := int64(w.cfg.ReportEvery) * int64(e.number%max(1, w.cfg.Endpoints)) / int64(max(1, w.cfg.Endpoints))
	w.agenda.plan(happening{at: w.at + offset, what: readingBegin, who: e.number, which: e.stamp})
}

// take gives f to the engine. The outcome says what a router sees at once: Served
// where the engine has it.
func (e *endpoint) take(w *world, f *flight) picker.Outcome {
	switch {
	case e.down:
		return picker.Refused
	case e.sick:
		w.router.answered(f, 500)
		w.router.end(f, picker.Served)
		w.fail(f)
		return picker.Served
	}
	if err := e.engine.Add(w.now(), f.engine); err != nil {
		w.router.answered(f, 400)
		w.router.end(f, picker.Served)
		w.fail(f)
		return picker.Served
	}
	f.place = len(e.flights)
	e.flights = append(e.flights, f)
	e.taken++
	e.planWake(w)
	return picker.Served
}

// drop takes f off the endpoint's list.
func (e *endpoint) drop(f *flight) {
	last := len(e.flights) - 1
	e.flights[f.place] = e.flights[last]
	e.flights[f.place].place = f.place
	e.flights[last] = nil
	e.flights = e.flights[:last]
}

// planWake plans the engine's next step, unless it is planned.
func (e *endpoint) planWake(w *world) {
	if e.hung || e.down {
		return
	}
	due, ok := e.engine.Next()
	if !ok {
		return
	}
	at := max(w.at, int64(due.Sub(epoch)))
	if e.woken >= 0 && e.woken <= at {
		return
	}
	e.woken = at
	w.agenda.plan(happening{at: at, what: wake, who: e.number, which: e.stamp})
}

// wake lets the engine go on.
func (e *endpoint) wake(w *world, stamp uint64) {
	if stamp != e.stamp || w.at != e.woken || e.hung {
		return
	}
	e.woken = -1
	step := e.engine.Advance(w.now())
	if step.Ended {
		e.publish(w, step.Events)
		for i := range step.Outputs {
			o := &step.Outputs[i]
			if o.Finished || o.Index == 0 {
				w.token(o.Request.Owner.(*flight), o.Finished)
			}
		}
	}
	if due, ok := e.engine.Next(); ok && due.After(w.now()) {
		e.busy += due.Sub(w.now())
	}
	e.planWake(w)
}

// preemptions of all lives.
func (e *endpoint) preemptions() uint64 {
	if e.engine == nil {
		return e.former
	}
	return e.former + e.engine.Counters().Preemptions
}

// batch is one message of KV events.
type batch struct {
	stamp  uint64
	member *fleet.Member
	events []epp.BlockEvent
	hashes []uint64 // of what is removed
}

// publish sends a step's KV events on their way. It copies what the engine uses
// again; tokens stay where they are until a batch has come, see world.retired.
func (e *endpoint) publish(w *world, events []epp.BlockEvent) {
	if len(events) == 0 || !w.readsEvents {
		return
	}
	if w.cfg.EventLoss > 0 && w.rand.Float64() < w.cfg.EventLoss {
		e.member.Incomplete(w.now(), true) // the gap is seen with the next batch
		return
	}
	removed := 0
	for i := range events {
		if events[i].Kind == epp.BlockRemoved {
			removed += len(events[i].Hashes)
		}
	}
	b := w.batch(removed)
	b.stamp, b.member = e.stamp, e.member
	b.events = append(b.events, events...)
	for i := range b.events {
		if ev := &b.events[i]; ev.Kind == epp.BlockRemoved {
			from := len(b.hashes)
			b.hashes = append(b.hashes, ev.Hashes...)
			ev.Hashes = b.hashes[from:]
		}
	}
	w.agenda.plan(happening{at: w.at + int64(w.cfg.EventLag), what: delivery, who: e.number, body: b})
}

// deliver writes a batch into the index.
func (e *endpoint) deliver(w *world, b *batch) {
	if b.stamp == e.stamp && b.member == e.member {
		e.member.Apply(w.now(), b.events)
	}
	w.batches = append(w.batches, b)
}

// batch returns an empty batch with room for so many hashes, so that what its
// events point to does not move.
func (w *world) batch(hashes int) *batch {
	b := &batch{}
	if last := len(w.batches) - 1; last >= 0 {
		b = w.batches[last]
		w.batches = w.batches[:last]
	}
	b.events = b.events[:0]
	b.hashes = slices.Grow(b.hashes[:0], hashes)
	return b
}

// reading is a page on its way.
type reading struct {
	member *fleet.Member
	stamp  uint64
	mark   int
	began  time.Time
	load   epp.Load
	err    error
}

// errReadingLost is a page that did not come in time.
var errReadingLost = errors.New("reading was lost")

// beginReading asks for the engine's page, and plans the next question.
func (e *endpoint) beginReading(w *world, stamp uint64) {
	if stamp != e.stamp {
		return
	}
	w.agenda.plan(happening{at: w.at + int64(w.cfg.ReportEvery), what: readingBegin, who: e.number, which: stamp})
	r := &reading{member: e.member, stamp: stamp, began: w.now(), mark: e.member.Begin(w.now())}
	switch {
	case e.down:
		r.err = syscall.ECONNREFUSED
	case e.hung, w.cfg.ReportLoss > 0 && w.rand.Float64() < w.cfg.ReportLoss:
		r.err = errReadingLost
	default:
		r.load = e.page()
	}
	w.agenda.plan(happening{at: w.at + int64(w.cfg.ReadingTakes), what: readingEnd, who: e.number, body: r})
}

// endReading writes the page into the fleet.
func (e *endpoint) endReading(w *world, r *reading) {
	switch {
	case r.stamp != e.stamp || r.member != e.member:
	case r.err != nil:
		e.member.Failed(w.now(), r.err)
	default:
		e.member.Load(r.mark, r.began, r.load)
	}
}

// page is what the engine's page says now.
func (e *endpoint) page() epp.Load {
	l, c, cfg := e.engine.Load(), e.engine.Counters(), e.engine.Config()
	known := func(v float64) epp.Gauge { return epp.Known(v) }
	return epp.Load{
		Waiting: known(float64(l.Waiting)), Running: known(float64(l.Running)), KVUsage: known(l.KVUsage),
		BlockTokens: cfg.BlockTokens, Blocks: cfg.Blocks,
		Adapters: e.engine.Adapters(), MaxAdapters: cfg.MaxAdapters,
		PromptTokens: known(float64(c.PromptTokens)), CachedTokens: known(float64(c.CachedTokens)), FirstTokenSeconds: known(e.firstTokens),
	}
}

// beginFault lets something go wrong.
func (w *world) beginFault(i int) {
	f := &w.cfg.Faults[i]
	if f.Kind == Up {
		_ = w.addEndpoint(len(w.endpoints)) // its Config has been accepted for others
		return
	}
	if f.Endpoint >= len(w.endpoints) {
		return
	}
	e := w.endpoints[f.Endpoint]
	switch f.Kind {
	case Crash:
		e.down = true
		e.woken = -1
		for len(e.flights) > 0 {
			w.lose(e.flights[0], picker.Reset)
		}
	case Restart, Down:
		e.member.Leave()
	case Slow:
		e.engine.SetSpeed(1 / max(f.Factor, 1e-6))
		if f.Factor == 0 {
			e.engine.SetSpeed(0.5)
		}
	case Hang:
		e.hung = true
		e.woken = -1
	case ECC:
		e.sick = true
		for len(e.flights) > 0 {
			w.lose(e.flights[0], picker.Reset)
		}
	case Up:
	}
	if f.For > 0 {
		w.agenda.plan(happening{at: w.at + int64(f.For), what: faultEnd, which: uint64(i)})
	}
}

// endFault sets right what beginFault of the same number did.
func (w *world) endFault(i int) {
	f := &w.cfg.Faults[i]
	e := w.endpoints[f.Endpoint]
	switch f.Kind {
	case Crash, ECC:
		e.rejoin(w, false)
	case Restart:
		for len(e.flights) > 0 { // its grace is over
			w.lose(e.flights[0], picker.Reset)
		}
		e.rejoin(w, true)
	case Slow:
		e.engine.SetSpeed(1)
	case Hang:
		e.hung = false
		e.planWake(w)
	case Up, Down:
	}
}

// rejoin starts the engine anew: under the same member, whose events then begin
// anew too, or as another one.
func (e *endpoint) rejoin(w *world, another bool) {
	_ = e.start(w) // its Config has been accepted before
	if another {
		e.join(w)
		return
	}
	e.member.Reset(w.now())
	e.member.Restarted()
	w.agenda.plan(happening{at: w.at, what: readingBegin, who: e.number, which: e.stamp})
}
