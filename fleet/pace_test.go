package fleet_test

import (
	"math"
	"testing"
	"time"

	"epp.internal/epp"
	"epp.internal/epp/fleet"
)

// TestPaceIsLearnt: on endpoint a a first token takes 50 ms and 0.1 ms for each
// unit of work before it and of its own, on b twice as long; an answer takes 3 s
// and 0.2 s more for each request that was there. After some requests the table
// says so.
func TestPaceIsLearnt(t *testing.T) {
	tab := fleet.New(fleet.Options{})
	tab.Join(epp.Endpoint{Name: "a"})
	tab.Join(epp.Endpoint{Name: "b"})
	now := start
	var seen epp.View
	for i := range 597 { // the last is b's: its slowness has not faded
		name, slow := "a", 1.0
		if i%4 == 0 {
			name, slow = "b", 2.0
		}
		tokens := 100 + i*37%4000
		first := func(ahead, own float64) time.Duration {
			return time.Duration(slow * (0.05 + 1e-4*(ahead+own)) * 1e9)
		}
		own := epp.WorkOf(tokens, tokens)
		b1, _ := tab.Pick(fleet.Query{PromptTokens: tokens}, now, named(name, tokens))
		b2, _ := tab.Pick(fleet.Query{PromptTokens: tokens}, now, named(name, tokens))
		b1.FirstToken(now.Add(first(0, own)))
		b2.FirstToken(now.Add(first(own, own)))
		b1.Complete(now.Add(first(0, own) + 3*time.Second))
		b2.Complete(now.Add(first(own, own) + 3200*time.Millisecond))
		b1.End()
		b2.End()
		now = now.Add(time.Second)
	}
	tab.Pick(fleet.Query{}, now, func(v epp.View) (int, int) { seen = v; return -1, 0 })
	near := func(what string, got, want, share float64) {
		if math.Abs(got-want) > share*want {
			t.Errorf("%s: %v, want %v within %.0f %%", what, got, want, 100*share)
		}
	}
	// A quarter of the requests take twice as long, so the pool's pace is 1.25 times a's.
	near("time for a unit of work", seen.Pace.PerWork, 1.25e-4, 0.1)
	near("time of a first token without work", seen.Pace.FirstToken, 1.25*0.05, 0.3)
	near("time of an answer", seen.Pace.Answer, 3, 0.01)
	near("more of it for each other request", seen.Pace.PerRequest, 0.2, 0.01)
	near("b's slowness over a's", seen.Work[1].Slowness/seen.Work[0].Slowness, 2, 0.1)
	for i, w := range seen.Work {
		if w.Pending != 0 {
			t.Errorf("endpoint %d at rest: %+v", i, w)
		}
	}
}

// TestWorkIsReleasedOnce: the work that is pending goes with the first token, or
// with the end where none came, and moves with a booking.
func TestWorkIsReleasedOnce(t *testing.T) {
	tab := fleet.New(fleet.Options{})
	tab.Join(epp.Endpoint{Name: "a", Address: "10.0.0.1:8000"})
	tab.Join(epp.Endpoint{Name: "b", Address: "10.0.0.2:8000"})
	pending := func() (all [2]epp.Work) {
		tab.Pick(fleet.Query{}, start, func(v epp.View) (int, int) { copy(all[:], v.Work); return -1, 0 })
		return all
	}
	b1, _ := tab.Pick(fleet.Query{PromptTokens: 1000}, start, named("a", 1000))
	b2, _ := tab.Pick(fleet.Query{PromptTokens: 1000}, start, named("a", 200))
	// 200 tokens behind 800 cached ones look at more than 200 alone would.
	want := epp.WorkOf(1000, 1000) + epp.WorkOf(200, 1000)
	if got := pending()[0]; math.Abs(got.Pending-want) > 1e-9 {
		t.Errorf("pending %+v, want %v", got, want)
	}
	b1.Served(start, "10.0.0.2:8000")
	if got := pending(); math.Abs(got[1].Pending-epp.WorkOf(1000, 1000)) > 1e-9 || math.Abs(got[0].Pending-epp.WorkOf(200, 1000)) > 1e-9 {
		t.Errorf("after the move: %+v", got)
	}
	b1.FirstToken(start.Add(time.Second))
	b1.FirstToken(start.Add(2 * time.Second))
	b1.End()
	b2.End()
	if got := pending(); got[0].Pending != 0 || got[1].Pending != 0 {
		t.Errorf("at rest: %+v", got)
	}
}

// TestSlownessFades: an endpoint that took ten times as long is as good as any
// other again after some minutes in which no first token came from it; one sample
// that confirms it takes back what has faded, one that denies it does not; and a
// restart forgets it at once, by its events or by its counters.
func TestSlownessFades(t *testing.T) {
	now, n := start, 0
	tab := fleet.New(fleet.Options{})
	tab.Join(epp.Endpoint{Name: "a"})
	b := tab.Join(epp.Endpoint{Name: "b"})
	ask := func(name string, first time.Duration) {
		n++
		tokens := 1000 + n%5
		booking, _ := tab.Pick(fleet.Query{PromptTokens: tokens}, now, named(name, tokens))
		now = now.Add(first)
		booking.FirstToken(now)
		booking.End()
	}
	slowness := func() (s float64) {
		tab.Pick(fleet.Query{}, now, func(v epp.View) (int, int) { s = v.Work[1].Slowness; return -1, 0 })
		return s
	}
	slow := func() {
		for range 2000 {
			ask("a", 100*time.Millisecond)
		}
		for range 60 {
			ask("b", 20*time.Second)
		}
	}
	slow()
	worst := slowness()
	if worst < 5 {
		t.Fatalf("slowness %v after 60 first tokens that took 200 times as long", worst)
	}
	now = now.Add(20 * time.Second)
	if got, want := slowness(), 1+(worst-1)/2; math.Abs(got-want) > 0.01 {
		t.Errorf("after a half-life %v, want %v", got, want)
	}
	ask("b", 20*time.Second)
	if got := slowness(); got < worst {
		t.Errorf("a sample confirms it: %v, want at least %v", got, worst)
	}
	now = now.Add(time.Minute)
	faded := slowness()
	ask("b", 100*time.Millisecond)
	if got := slowness(); got > faded {
		t.Errorf("a sample denies it: %v, want at most %v", got, faded)
	}
	now = now.Add(4 * time.Minute)
	if got := slowness(); got > 1.05 {
		t.Errorf("after five minutes %v, want about 1", got)
	}

	slow()
	b.Restarted()
	if got := slowness(); got != 0 {
		t.Errorf("after a restart that its events told: %v, want that nothing is known", got)
	}
	slow()
	read := func(prompt, seconds float64) {
		b.Load(b.Begin(now), now, epp.Load{PromptTokens: epp.Known(prompt), CachedTokens: epp.Known(0), FirstTokenSeconds: epp.Known(seconds)})
	}
	read(1e6, 1000)
	if slowness() == 0 {
		t.Error("a reading alone forgot it")
	}
	read(1000, 1)
	if got := slowness(); got != 0 {
		t.Errorf("after a restart that its counters told: %v, want that nothing is known", got)
	}
}
