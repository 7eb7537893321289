package engine

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"epp.internal/epp"
	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

// op is something that can happen to an engine.
type op struct {
	kind     string
	request  Request // of an add
	which    int     // of an abort: which of the requests so far
	advances int     // of an advance: how often
}

func (o op) String() string { return fmt.Sprintf("%s %d", o.kind, o.which) }

// drawOps draws what happens to an engine. Prompts are made of few pieces, so
// that they share prefixes.
func drawOps(t *rapid.T) []op {
	kinds := []string{"add", "add", "add", "advance", "advance", "advance", "abort", "hold", "release", "reset", "sleep", "wake"}
	pieces := rapid.SliceOfN(rapid.IntRange(0, 2), 1, 5)
	drawOne := rapid.Custom(func(t *rapid.T) op {
		o := op{kind: rapid.SampledFrom(kinds).Draw(t, "kind")}
		switch o.kind {
		case "add":
			for _, p := range pieces.Draw(t, "prompt") {
				o.request.Tokens = append(o.request.Tokens, prompt(100*p, 5)...)
			}
			o.request.Answer = prompt(1000, rapid.IntRange(0, 12).Draw(t, "answer"))
			o.request.Adapter = rapid.SampledFrom([]string{"", "", "one", "two"}).Draw(t, "adapter")
			o.request.Salt = rapid.SampledFrom([]string{"", "", "salt"}).Draw(t, "salt")
		case "advance":
			o.advances = rapid.IntRange(1, 8).Draw(t, "advances")
		default:
			o.which = rapid.IntRange(0, 30).Draw(t, "which")
		}
		return o
	})
	return rapid.SliceOfN(drawOne, 1, 60).Draw(t, "ops")
}

// drawConfig draws a small engine, so that slots, tokens and blocks run out.
func drawConfig(t *rapid.T) Config {
	return Config{
		BlockTokens:    rapid.SampledFrom([]int{1, 3, 4, 16}).Draw(t, "blockTokens"),
		Blocks:         rapid.IntRange(5, 40).Draw(t, "blocks"),
		MaxRunning:     rapid.IntRange(1, 4).Draw(t, "maxRunning"),
		MaxBatchTokens: rapid.IntRange(4, 40).Draw(t, "maxBatchTokens"),
		MaxAdapters:    rapid.IntRange(1, 2).Draw(t, "maxAdapters"),
		Seed:           rapid.Uint64().Draw(t, "seed"),
	}
}

// witness is a naive reader of an engine's events, and of its outputs.
type witness struct {
	known      map[uint64]int // copies of each block
	said       map[*Request][]uint32
	finished   map[*Request]bool
	transcript []string
}

func (w *witness) read(events []epp.BlockEvent) error {
	for _, ev := range events {
		switch ev.Kind {
		case epp.BlockStored:
			if ev.HasParent && w.known[ev.Parent] == 0 {
				return fmt.Errorf("%x is stored behind an unknown block", ev.Hashes)
			}
			if len(ev.Tokens) != len(ev.Hashes)*ev.BlockTokens {
				return fmt.Errorf("%d tokens in %d blocks", len(ev.Tokens), len(ev.Hashes))
			}
			for _, h := range ev.Hashes {
				w.known[h]++
			}
		case epp.BlockRemoved:
			for _, h := range ev.Hashes {
				if w.known[h]--; w.known[h] < 0 {
					return fmt.Errorf("%x is removed and was not stored", h)
				}
			}
		case epp.AllBlocksCleared:
			clear(w.known)
		}
		w.transcript = append(w.transcript, fmt.Sprint(ev))
	}
	return nil
}

// play does the ops and checks the engine after each; then it lets all requests
// end.
func play(t *rapid.T, cfg Config, ops []op) *witness {
	e, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	w := &witness{known: map[uint64]int{}, said: map[*Request][]uint32{}, finished: map[*Request]bool{}}
	now := time.Unix(0, 0)
	var requests []*Request
	advance := func() bool {
		at, ok := e.Next()
		if !ok {
			return false
		}
		if at.Before(now) {
			t.Fatalf("next is due at %v, before %v", at, now)
		}
		now = at
		w.step(t, e.Advance(at))
		return true
	}
	for _, o := range ops {
		switch o.kind {
		case "add":
			r := o.request
			if e.Add(now, &r) == nil {
				requests = append(requests, &r)
			}
		case "advance":
			for range o.advances {
				advance()
			}
		case "abort":
			if o.which < len(requests) {
				e.Abort(now, requests[o.which])
			}
		case "hold", "release":
			e.Hold(now, o.kind == "hold")
		case "reset":
			e.ResetPrefixCache()
		case "sleep":
			e.Sleep()
		case "wake":
			e.Wake(now)
		}
		check(t, e, w)
	}
	e.Hold(now, false)
	e.Wake(now)
	for range 100_000 {
		if !advance() {
			break
		}
		check(t, e, w)
	}
	atRest(t, e, w, requests)
	return w
}

// step reads what a step brought.
func (w *witness) step(t *rapid.T, s Step) {
	if err := w.read(s.Events); err != nil {
		t.Fatal(err)
	}
	for _, o := range s.Outputs {
		r := o.Request
		if w.finished[r] {
			t.Fatalf("an output after the end")
		}
		w.finished[r] = o.Finished
		if o.Index >= 0 {
			if o.Index != len(w.said[r]) {
				t.Fatalf("token %d after %d", o.Index, len(w.said[r]))
			}
			w.said[r] = append(w.said[r], o.Token)
		}
		w.transcript = append(w.transcript, fmt.Sprint(s.At, o.Index, o.Token, o.Finished, r.cached))
	}
}

// check compares the engine with its invariants, and its cache with what its
// events say, those of the step under way included.
func check(t *rapid.T, e *Engine, w *witness) {
	c := e.cache
	refs := make([]int32, len(c.blocks))
	for _, r := range e.running {
		for _, b := range r.blocks {
			refs[b]++
		}
		if full := r.computed / c.blockTokens; len(r.blocks) < full || r.stored > len(r.blocks) {
			t.Fatalf("%d computed tokens in %d blocks, %d of them stored", r.computed, len(r.blocks), r.stored)
		}
	}
	for _, r := range e.waiting {
		if len(r.blocks) != 0 {
			t.Fatalf("a waiting request holds blocks")
		}
	}
	held, known := 0, map[uint64]int{}
	for i, b := range c.blocks {
		if i == nullBlock {
			continue
		}
		if b.refs != refs[i] || b.refs < 0 {
			t.Fatalf("block %d has %d references, requests hold it %d times", i, b.refs, refs[i])
		}
		if b.refs > 0 {
			held++
		}
		if b.known {
			known[b.hash]++
		}
	}
	queued := len(c.empty)
	for turn := c.lru.head; turn != c.lru.tail; turn++ {
		if *c.lru.at(turn) != nullBlock {
			queued++
		}
	}
	if queued != c.free || queued+held != len(c.blocks)-1 {
		t.Fatalf("%d blocks held, %d queued, %d counted, %d in all", held, queued, c.free, len(c.blocks)-1)
	}
	if len(e.running) > e.cfg.MaxRunning {
		t.Fatalf("%d running", len(e.running))
	}
	if _, due := e.Next(); !due && !e.asleep && !e.held && len(e.running)+len(e.waiting) > 0 {
		t.Fatalf("%d running and %d waiting, and nothing is due", len(e.running), len(e.waiting))
	}
	told := witness{known: map[uint64]int{}}
	for h, n := range w.known {
		told.known[h] = n
	}
	if err := told.read(c.events); err != nil {
		t.Fatal(err)
	}
	for h, n := range told.known {
		if n == 0 {
			delete(told.known, h)
		}
	}
	if d := cmp.Diff(told.known, known); d != "" {
		t.Fatalf("cache (-events +blocks):\n%s", d)
	}
}

// atRest checks an engine whose requests have all ended.
func atRest(t *rapid.T, e *Engine, w *witness, requests []*Request) {
	n := e.Counters()
	if len(e.running)+len(e.waiting) != 0 || e.cache.free != len(e.cache.blocks)-1 {
		t.Fatalf("at rest: %+v", e.Load())
	}
	if int(n.Finished+n.Aborted) != len(requests) {
		t.Fatalf("%d finished, %d aborted of %d", n.Finished, n.Aborted, len(requests))
	}
	for _, r := range requests {
		if w.finished[r] && !slices.Equal(w.said[r], r.Answer) {
			t.Fatalf("said %v, not %v", w.said[r], r.Answer)
		}
		if most := (len(r.Tokens) - 1) / e.cfg.BlockTokens * e.cfg.BlockTokens; r.cached > most {
			t.Fatalf("%d of %d tokens cached", r.cached, len(r.Tokens))
		}
	}
}

// Whatever happens to an engine: blocks are neither lost nor held twice, events
// say what the cache holds, every request that is not aborted says its answer to
// the end, and the same calls give the same results.
func TestInvariants(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		cfg, ops := drawConfig(t), drawOps(t)
		first, second := play(t, cfg, ops), play(t, cfg, ops)
		if d := cmp.Diff(first.transcript, second.transcript); d != "" {
			t.Fatalf("the same calls, other results:\n%s", d)
		}
	})
}

// No step computes more than MaxBatchTokens: its time says so, where a token
// takes a millisecond and nothing else takes time.
func TestStepsAreBounded(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		cfg := drawConfig(t)
		cfg.Profile = Profile{Name: "token", A: 1, KVTokens: 1}
		cfg.AdapterLoad = time.Nanosecond
		e, err := New(cfg)
		if err != nil {
			t.Fatal(err)
		}
		now := time.Unix(0, 0)
		for _, o := range drawOps(t) {
			if r := o.request; o.kind == "add" {
				e.Add(now, &r)
			}
			at, ok := e.Next()
			if !ok {
				continue
			}
			now = at
			e.Advance(at)
			if end, ok := e.Next(); ok && e.stepping && end.Sub(now) > time.Duration(cfg.MaxBatchTokens)*time.Millisecond+100 {
				t.Fatalf("a step of %v with %d tokens at most", end.Sub(now), cfg.MaxBatchTokens)
			}
		}
	})
}
