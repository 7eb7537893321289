package agent

import (
	"errors"
	"fmt"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"epp.internal/epp"
	"epp.internal/epp/block"
)

// Two pickers with a key each hold what the engine holds. One that restarts has
// another key, and holds all again within an interval.
func TestPickers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, e := New(Options{Pickers: 2}), newEngine(1)
		a.Incomplete(time.Now(), false)
		for range 100 {
			a.Apply(time.Now(), e.step())
		}
		one, two := newPicker(1), newPicker(2)
		stopOne, stopTwo := one.follow(a, 0, nil), two.follow(a, 1, nil)
		settle(interval)
		e.agree(t, one)
		e.agree(t, two)
		for range 100 { // deltas
			a.Apply(time.Now(), e.step())
			settle(time.Millisecond)
		}
		e.agree(t, one)
		e.agree(t, two)
		stopOne()
		one.close()

		one = newPicker(3)
		stopOne = one.follow(a, 0, nil)
		for range 20 { // while it comes
			a.Apply(time.Now(), e.step())
		}
		settle(interval)
		e.agree(t, one)
		e.agree(t, two)
		if one.saw().late+two.saw().late != 0 || one.saw().missed+two.saw().missed != 0 {
			t.Errorf("%d reports came late, %d were missed; want 0", one.saw().late+two.saw().late, one.saw().missed+two.saw().missed)
		}
		stopOne()
		stopTwo()
		one.close()
		two.close()
	})
}

// All that the agent knows besides blocks comes through as it was said, and what
// was never said is unknown, not 0.
func TestReadings(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := New(Options{Values: map[string]string{"zone": "b"}})
		p := newPicker(1)
		stop := p.follow(a, 0, nil)
		defer p.close()
		defer stop()
		settle(time.Second)

		began := time.Now()
		mark := a.Begin(began)
		settle(30 * time.Millisecond)
		a.Load(mark, began, epp.Load{Waiting: epp.Known(3), Running: epp.Known(0), BlockTokens: 32, Adapters: []string{"sql"}, Asleep: true})
		a.Models([]epp.Model{{Name: "base", MaxTokens: 4096}, {Name: "sql", Parent: "base"}})
		a.GPU(time.Now(), epp.GPU{Temperature: epp.Known(84), XIDs: []int{79}})
		a.Probed(time.Now(), errors.New("deadline"), true)
		settle(time.Millisecond)

		want := "waiting={3 true} running={0 true} kv={0 false} block=32 age=31ms health=0"
		sig := p.table.Snapshot()[0].Signals
		if got := fmt.Sprintf("waiting=%v running=%v kv=%v block=%d age=%v health=%v",
			sig.Waiting, sig.Running, sig.KVUsage, sig.BlockTokens, time.Since(time.Unix(0, int64(sig.ReadAt))), sig.Health); got != want {
			t.Errorf("%s; want %s", got, want)
		}
		if len(p.saw().gpus) != 1 || p.saw().gpus[0].Temperature != epp.Known(84) || p.saw().gpus[0].Utilization.Known || p.saw().gpus[0].XIDs[0] != 79 {
			t.Errorf("GPU %+v", p.saw().gpus)
		}
		if len(p.saw().probes) != 1 || p.saw().probes[0] == nil || p.saw().values["zone"] != "b" {
			t.Errorf("probes %v, values %v", p.saw().probes, p.saw().values)
		}
		a.Begin(time.Now())
		a.Failed(time.Now(), fmt.Errorf("scrape: %w", syscall.ECONNREFUSED))
		settle(time.Millisecond)
		if len(p.saw().failures) != 1 || !errors.Is(p.saw().failures[0], syscall.ECONNREFUSED) {
			t.Errorf("failures %v; want one, refused", p.saw().failures)
		}
	})
}

// An engine whose requests wait while it makes no token loses its health, though
// only an agent reads its page; with the next token it comes back.
func TestProgress(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, p := New(Options{}), newPicker(1)
		stop := p.follow(a, 0, nil)
		defer p.close()
		defer stop()
		settle(time.Second)
		read := func(generated float64) epp.Signals {
			for range 15 {
				began := time.Now()
				a.Load(a.Begin(began), began, epp.Load{Waiting: epp.Known(3), PromptTokens: epp.Known(1000), GeneratedTokens: epp.Known(generated)})
				settle(time.Second)
				generated += map[bool]float64{true: 1}[generated > 7]
			}
			return p.table.Snapshot()[0].Signals
		}
		if sig := read(7); sig.Health > 0.61 || sig.HealthReason != epp.NoProgress {
			t.Errorf("health %v, %v, after 15 s without a token", sig.Health, sig.HealthReason)
		}
		if sig := read(8); sig.Health < 0.75 {
			t.Errorf("health %v, %v, after 15 s with one each second", sig.Health, sig.HealthReason)
		}
	})
}

// An engine that restarts, or clears its cache, holds nothing, and so do pickers.
func TestReset(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, e := New(Options{}), newEngine(1)
		p := newPicker(1)
		stop := p.follow(a, 0, nil)
		defer p.close()
		defer stop()
		settle(time.Second)
		for _, clear := range []func(){
			func() { a.Reset(time.Now()) },
			func() { a.Apply(time.Now(), []epp.BlockEvent{{Kind: epp.AllBlocksCleared}}) },
		} {
			for range 100 {
				a.Apply(time.Now(), e.step())
			}
			settle(time.Millisecond)
			e.agree(t, p)
			clear()
			e.forget()
			settle(time.Millisecond)
			if n := p.index.Nodes(); n != 0 {
				t.Errorf("picker holds %d blocks after a restart; want 0", n)
			}
			a.Apply(time.Now(), e.step())
			settle(time.Millisecond)
			e.agree(t, p)
		}
	})
}

// Blocks whose parent is not known wait for it: they can match no prompt.
func TestOrphans(t *testing.T) {
	a := New(Options{})
	teller := a.Teller(0)
	teller.Open(block.Key(1))
	teller.Next(time.Time{})
	stored := func(hash uint64, parent uint64) epp.BlockEvent {
		return epp.BlockEvent{Kind: epp.BlockStored, Hashes: []uint64{hash}, Tokens: []uint32{1, 2}, BlockTokens: 2, Parent: parent, HasParent: parent != 0}
	}
	told := func(events ...epp.BlockEvent) string {
		a.Apply(time.Time{}, events)
		r, _ := teller.Next(time.Time{})
		text := ""
		for _, e := range r.Events {
			text += fmt.Sprintf("%v %v after %d; ", e.Kind, e.Names, e.Parent)
		}
		return text
	}
	removed := func(hash uint64) epp.BlockEvent {
		return epp.BlockEvent{Kind: epp.BlockRemoved, Hashes: []uint64{hash}}
	}
	for _, s := range []struct {
		what  string
		event epp.BlockEvent
		want  string
	}{
		{"a child comes first", stored(20, 10), ""},
		{"a grandchild too", stored(30, 20), ""},
		{"their root brings them along", stored(10, 0), "STORED [1 2 3] after 0; "},
		{"again, it is nothing new", stored(10, 0), ""},
		{"without the child the grandchild is out of reach", removed(20), "REMOVED [2 3] after 0; "},
		{"the grandchild can go", removed(30), ""},
		{"the child is back", stored(20, 10), "STORED [4] after 1; "},
		{"what is not there can't go", removed(99), ""},
		{"a block can't follow itself", stored(50, 50), ""},
		{"the root goes with all", removed(10), "REMOVED [1 4] after 0; "},
	} {
		if got := told(s.event); got != s.want {
			t.Errorf("%s: told %q; want %q", s.what, got, s.want)
		}
	}
}

// The mirror keeps its bound, and says that it does not know all.
func TestBound(t *testing.T) {
	const most = 40 << 10
	a, e := New(Options{MaxBytes: most}), newEngine(1)
	a.Incomplete(time.Time{}, false)
	teller := a.Teller(0)
	teller.Open(1)
	for range 400 {
		a.Apply(time.Time{}, e.step())
		if a.mirror.bytes > most+1024 {
			t.Fatalf("the mirror has %d bytes; the bound is %d", a.mirror.bytes, most)
		}
	}
	if r, _ := teller.Next(time.Time{}); !r.Incomplete {
		t.Error("some blocks were not kept, and nothing says so")
	}
	a.Reset(time.Time{})
	if r, _ := teller.Next(time.Time{}); r.Incomplete || a.mirror.bytes != 0 || a.Blocks() != 0 {
		t.Errorf("after a reset: incomplete %v, %d bytes, %d blocks; want false, 0, 0", r.Incomplete, a.mirror.bytes, a.Blocks())
	}
}

// What waits for a picker that does not listen is bounded; a snapshot takes its
// place.
func TestSlowPicker(t *testing.T) {
	a, e := New(Options{}), newEngine(1)
	teller := a.Teller(0)
	teller.Open(1)
	for _, more := teller.Next(time.Time{}); more; _, more = teller.Next(time.Time{}) {
	}
	most, snapshots := 0, 0
	for range 2000 {
		for range 20 {
			a.Apply(time.Time{}, flip(e))
		}
		most = max(most, len(teller.pending))
		if teller.fresh {
			snapshots++
			break
		}
	}
	if most > maxPending || snapshots == 0 {
		t.Errorf("at most %d changes waited, %d snapshots; want at most %d, and one", most, snapshots, maxPending)
	}
	if r, _ := teller.Next(time.Time{}); !r.SnapshotBegin {
		t.Error("what comes next is no snapshot")
	}
}

// flip stores a prompt and removes it.
func flip(e *engine) []epp.BlockEvent {
	e.next++
	hash := []uint64{e.next}
	return []epp.BlockEvent{
		{Kind: epp.BlockStored, Hashes: hash, Tokens: []uint32{1, 2, 3, 4}, BlockTokens: 4},
		{Kind: epp.BlockRemoved, Hashes: hash},
	}
}

// What went has its age in reports, also where the engine cleared its cache and a
// snapshot follows; what was there before a picker came has none. The engine's
// restarts are counted.
func TestAges(t *testing.T) {
	now := time.Unix(1000, 0)
	ago := func(ms int) time.Time { return now.Add(-time.Duration(ms) * time.Millisecond) }
	a := New(Options{})
	stored := func(hash uint64) epp.BlockEvent {
		return epp.BlockEvent{Kind: epp.BlockStored, Hashes: []uint64{hash}, Tokens: []uint32{1, 2, 3, uint32(hash)}, BlockTokens: blockSize}
	}
	removed := func(hash uint64, at time.Time) epp.BlockEvent {
		return epp.BlockEvent{Kind: epp.BlockRemoved, Hashes: []uint64{hash}, At: at}
	}
	p := a.Teller(0)
	next := func() (out string) {
		r, _ := p.Next(now)
		for _, e := range r.Events {
			out += fmt.Sprintf("%v %d", e.Kind, len(e.Names))
			if e.AgeMs != nil {
				out += fmt.Sprintf(" %d ms ago", *e.AgeMs)
			}
			out += "; "
		}
		return fmt.Sprintf("%srestarts %d", out, r.Restarts)
	}
	a.Apply(now, []epp.BlockEvent{{Kind: epp.AllBlocksCleared, At: ago(50)}, stored(1), stored(2), stored(3), stored(4)})
	p.Open(1)
	for _, s := range []struct {
		events []epp.BlockEvent
		want   string
	}{
		{nil, "STORED 1; STORED 1; STORED 1; STORED 1; restarts 0"},
		{[]epp.BlockEvent{removed(1, ago(30)), removed(2, ago(30))}, "REMOVED 2 30 ms ago; restarts 0"},
		{[]epp.BlockEvent{removed(3, ago(20)), removed(4, time.Time{}), stored(5)}, "REMOVED 1 20 ms ago; REMOVED 1; STORED 1; restarts 0"},
		{[]epp.BlockEvent{{Kind: epp.AllBlocksCleared, At: ago(10)}, stored(6)}, "CLEARED 0 10 ms ago; STORED 1; restarts 0"},
	} {
		a.Apply(now, s.events)
		if got := next(); got != s.want {
			t.Errorf("%s; want %s", got, s.want)
		}
	}
	a.Reset(now) // nothing is known of when
	a.Restarted()
	if got := next(); got != "restarts 1" {
		t.Error(got)
	}
}

// Two agents that speak for one endpoint take it from each other ever more seldom:
// one whose place was taken waits half a minute, then twice as long. One whose picker
// restarts is back at once all the same.
func TestTwoAgents(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		one, two, p := New(Options{}), New(Options{}), newPicker(1)
		defer p.close()
		stopOne := p.follow(one, 0, nil)
		settle(time.Second)
		stopTwo := p.follow(two, 0, nil)
		settle(29 * time.Second)
		if n := p.saw().opened; n != 2 {
			t.Errorf("%d streams in half a minute; want 2", n)
		}
		settle(time.Hour)
		if n := p.saw().opened; n < 3 || n > 14 || p.saw().open != 1 {
			t.Errorf("%d streams in an hour, %d are open; want one, and at most 14 in all", n, p.saw().open)
		}
		stopOne()
		stopTwo()
	})
}
