package engine

import (
	"epp.internal/epp"
	"slices"
	"time"
)

// Next returns when Advance is due next, and whether it is due at all: not while
// nothing is to be computed.
func (e *Engine) Next() (time.Time, bool) {
	switch {
	case e.stepping:
		return e.stepEnd, true
	case e.due && !e.asleep:
		return e.dueAt, true
	}
	return time.Time{}, false
}

// Advance ends the step under way if it is over by now, and then, if none is
// under way, begins the next one at now if there is something to compute. Before
// the time that Next gives it does nothing.
func (e *Engine) Advance(now time.Time) Step {
	var s Step
	if e.stepping && !e.stepEnd.After(now) {
		s = e.finish()
	}
	if !e.stepping && !e.asleep {
		e.begin(now)
	}
	return s
}

// finish ends the step under way.
func (e *Engine) finish() Step {
	e.stepping = false
	e.outputs = e.outputs[:0]
	for _, r := range e.step {
		if r.ended || r.computed < r.known() {
			continue
		}
		if e.held {
			r.computed-- // to be computed again: its logits were not used
			continue
		}
		e.outputs = append(e.outputs, e.sample(r))
	}
	e.step = e.step[:0]
	e.running = slices.DeleteFunc(e.running, func(r *Request) bool { return r.ended })
	e.counters.Steps++
	return Step{Ended: true, At: e.stepEnd, Outputs: e.outputs, Events: e.takeEvents()}
}

// sample gives r its next token, or its end where it has none.
func (e *Engine) sample(r *Request) Output {
	o := Output{Request: r, Index: -1}
	if len(r.Answer) > 0 {
		o.Index, o.Token = r.produced, r.Answer[r.produced]
		r.produced++
		e.counters.AnswerTokens++
	}
	if o.Finished = r.produced == len(r.Answer); o.Finished {
		e.counters.Finished++
		e.end(r)
	}
	return o
}

// takeEvents returns the events since the last call and gives the cache the
// buffers of the call before.
func (e *Engine) takeEvents() []epp.BlockEvent {
	c := e.cache
	taken := eventBuffers{c.events, c.removed}
	c.events, c.removed = e.spare.events[:0], e.spare.removed[:0]
	e.spare = taken
	return taken.events
}

// begin looks at the queues and begins a step if it finds work.
func (e *Engine) begin(now time.Time) {
	e.due = false
	var w work
	preempted := e.continueRunning(&w)
	var loads int
	if !preempted {
		loads = e.admitWaiting(&w)
	}
	if w.tokens == 0 {
		return
	}
	e.stepping = true
	takes := e.cfg.Profile.stepTime(w) + time.Duration(loads)*e.cfg.AdapterLoad
	if e.speed != 1 {
		takes = time.Duration(float64(takes) / e.speed)
	}
	e.stepEnd = now.Add(takes)
}

// continueRunning gives every running request its share of the step, and
// reports whether one had to be preempted for it.
func (e *Engine) continueRunning(w *work) (preempted bool) {
	for i := 0; i < len(e.running); i++ {
		r := e.running[i]
		n := e.share(r, w)
		if n == 0 {
			continue
		}
		for !e.allocate(r, n) {
			last := e.preemptLast()
			preempted = true
			if last == r {
				return true
			}
		}
		e.schedule(r, n, w)
	}
	return preempted
}

// share is how many tokens of r the step can compute.
func (e *Engine) share(r *Request, w *work) int {
	n := r.known() - r.computed
	if e.held {
		n--
	}
	return min(n, e.cfg.MaxBatchTokens-w.tokens)
}

// allocate takes the blocks for n more tokens of r, or none and returns false.
func (e *Engine) allocate(r *Request, n int) bool {
	need := e.blocksFor(r.computed+n) - len(r.blocks)
	if need > e.cache.free {
		return false
	}
	for ; need > 0; need-- {
		r.blocks = append(r.blocks, e.cache.take())
	}
	return true
}

// blocksFor is how many blocks hold n tokens.
func (e *Engine) blocksFor(n int) int {
	return (n + e.cfg.BlockTokens - 1) / e.cfg.BlockTokens
}

// schedule puts n tokens of r, which has the blocks for them, into the step.
func (e *Engine) schedule(r *Request, n int, w *work) {
	if r.decodes() {
		w.decode(r.known())
	} else {
		w.prefill(n, r.computed)
	}
	if r.computed += n; r.computed == r.known() {
		w.samples++
	}
	r.store(e.cache)
	e.step = append(e.step, r)
}

// preemptLast sends the running request that was admitted last to the head of
// the queue, without its blocks.
func (e *Engine) preemptLast() *Request {
	r := e.running[len(e.running)-1]
	e.running = e.running[:len(e.running)-1]
	e.cache.release(r.blocks)
	r.blocks = r.blocks[:0]
	r.computed, r.stored = 0, 0
	e.waiting = slices.Insert(e.waiting, 0, r)
	e.counters.Preemptions++
	return r
}

// admitWaiting admits waiting requests into the step, in their order, and
// returns how many adapters must be loaded for them. A request whose adapter
// finds no slot is passed over; any other that does not fit ends the admission.
func (e *Engine) admitWaiting(w *work) (loads int) {
	for i := 0; i < len(e.waiting); {
		if len(e.running) == e.cfg.MaxRunning || w.tokens == e.cfg.MaxBatchTokens {
			break
		}
		r := e.waiting[i]
		slot := -1
		if r.Adapter != "" {
			if slot = e.slotFor(r.Adapter); slot < 0 {
				i++
				continue
			}
		}
		if !e.admit(r) {
			break
		}
		if slot >= 0 && e.useSlot(slot, r.Adapter) {
			loads++
		}
		e.waiting = slices.Delete(e.waiting, i, i+1)
		e.running = append(e.running, r)
		if n := e.share(r, w); n > 0 {
			e.allocate(r, n)
			e.schedule(r, n, w)
		}
	}
	return loads
}

// admit gives r the blocks of its prompt that are known, if enough blocks are
// free for all of the prompt.
func (e *Engine) admit(r *Request) bool {
	c := e.cache
	limit := (r.known() - 1) / c.blockTokens
	r.blocks = r.blocks[:0]
	idle := 0 // known blocks that no request holds: they count as free
	var b int32
	for i := range limit {
		if b = c.find(r.hash(c, i), b); b == nullBlock {
			break
		}
		if c.blocks[b].refs == 0 {
			idle++
		}
		r.blocks = append(r.blocks, b)
	}
	if e.blocksFor(r.known())-len(r.blocks)+idle > c.free {
		r.blocks = r.blocks[:0]
		return false
	}
	for _, b := range r.blocks {
		c.hold(b)
	}
	r.stored = len(r.blocks)
	r.computed = r.stored * c.blockTokens
	e.countAdmission(r)
	return true
}

// countAdmission counts a request when it is admitted for the first time.
func (e *Engine) countAdmission(r *Request) {
	if r.admitted {
		return
	}
	r.admitted, r.cached = true, r.computed
	e.counters.PrefixQueryTokens += uint64(len(r.Tokens))
	e.counters.PrefixHitTokens += uint64(r.cached)
	e.counters.PromptTokens += uint64(len(r.Tokens))
	e.counters.CachedTokens += uint64(r.cached)
}

// slotFor returns the slot in which the adapter is or could be loaded: a new
// one is len(e.adapters). It is -1 where running requests use all slots.
func (e *Engine) slotFor(name string) int {
	oldest := -1
	for i, a := range e.adapters {
		if a.name == name {
			return i
		}
		if (oldest < 0 || a.used < e.adapters[oldest].used) && !e.runs(a.name) {
			oldest = i
		}
	}
	if len(e.adapters) < e.cfg.MaxAdapters {
		return len(e.adapters)
	}
	return oldest
}

// runs reports whether a running request uses the adapter.
func (e *Engine) runs(name string) bool {
	return slices.ContainsFunc(e.running, func(r *Request) bool { return r.Adapter == name })
}

// useSlot puts the adapter into the slot and reports whether it had to be loaded.
func (e *Engine) useSlot(slot int, name string) bool {
	e.useClock++
	if slot == len(e.adapters) {
		e.adapters = append(e.adapters, adapter{})
	}
	a := &e.adapters[slot]
	loaded := a.name != name
	if loaded {
		e.counters.AdapterLoads++
	}
	*a = adapter{name: name, used: e.useClock}
	return loaded
}
