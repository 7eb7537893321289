package fleet_test

import (
	"errors"
	"fmt"
	"math"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
	"pgregory.net/rapid"

	"epp.internal/epp"
	"epp.internal/epp/fleet"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var start = time.Date(2026, 11, 29, 12, 0, 0, 0, time.UTC)

// first picks the endpoint of the given name.
func named(name string, tokens int) fleet.Choose {
	return func(v epp.View) (int, int) {
		for i := range v.Endpoints {
			if v.Endpoints[i].Name == name {
				return i, tokens
			}
		}
		return -1, 0
	}
}

// idlest picks the endpoint with the fewest of our own requests.
func idlest(v epp.View) (int, int) {
	best := -1
	for i := range v.Signals {
		if best < 0 || v.Signals[i].InFlight < v.Signals[best].InFlight {
			best = i
		}
	}
	return best, 1
}

func join(t *fleet.Table, names ...string) []*fleet.Member {
	var ms []*fleet.Member
	for _, n := range names {
		ms = append(ms, t.Join(epp.Endpoint{Name: n, Address: n + ":8000"}))
	}
	return ms
}

func book(t testing.TB, tab *fleet.Table, name string, tokens int) fleet.Booking {
	b, ok := tab.Pick(fleet.Query{}, start, named(name, tokens))
	if !ok {
		t.Fatalf("no endpoint %q", name)
	}
	return b
}

func inFlight(tab *fleet.Table) map[string][2]int {
	out := map[string][2]int{}
	for _, s := range tab.Snapshot() {
		out[s.Endpoint.Name] = [2]int{s.Signals.InFlight, s.Signals.InFlightTokens}
	}
	return out
}

// TestBookingHasTwoParts: the tokens are released at the first token, the
// request at its end, each once however often it is said.
func TestBookingHasTwoParts(t *testing.T) {
	tab := fleet.New(fleet.Options{})
	join(tab, "a", "b")
	b := book(t, tab, "a", 700)
	want := func(requests, tokens int) {
		t.Helper()
		if got := inFlight(tab)["a"]; got != [2]int{requests, tokens} {
			t.Errorf("in flight %v, want %d requests, %d tokens", got, requests, tokens)
		}
	}
	want(1, 700)
	b.FirstToken(start)
	b.FirstToken(start)
	want(1, 0)
	if !b.End() || b.End() {
		t.Error("the first End counts, and only the first")
	}
	want(0, 0)
	b.FirstToken(start) // after the end: nothing
	want(0, 0)
}

// TestUntoldOnce: that a scorer has no data of an endpoint is news once, by whichever
// way it is told, and never of one that has left.
func TestUntoldOnce(t *testing.T) {
	tab := fleet.New(fleet.Options{})
	a := join(tab, "a", "b")[0]
	for _, c := range []struct {
		of, scorer string
		want       bool
	}{{"a", "cache", true}, {"a", "cache", false}, {"b", "cache", true}, {"a", "adapter", true}, {"b", "cache", false}} {
		b := book(t, tab, c.of, 1)
		if got := b.Untold(c.scorer); got != c.want {
			t.Errorf("%s of %s: %v", c.scorer, c.of, got)
		}
		b.End()
	}
	if a.Untold("cache") {
		t.Error("a member and its bookings differ")
	}
	a.Leave()
	if a.Untold("queue") {
		t.Error("one that has left is warned of")
	}
	if b := join(tab, "a")[0]; !b.Untold("cache") {
		t.Error("the next one of the name is not warned of")
	}
}

// TestEndBeforeFirstToken releases both parts.
func TestEndBeforeFirstToken(t *testing.T) {
	tab := fleet.New(fleet.Options{})
	join(tab, "a")
	book(t, tab, "a", 700).End()
	if got := tab.Ledger(); got != (fleet.Ledger{}) {
		t.Errorf("ledger %+v", got)
	}
}

// TestServedElsewhere moves what the booking still holds to the endpoint that
// served; an address outside the pool moves nothing.
func TestServedElsewhere(t *testing.T) {
	tab := fleet.New(fleet.Options{})
	join(tab, "a", "b")
	b := book(t, tab, "a", 700)
	b.Served(start, "z:1")
	b.Served(start, "b:8000")
	if got := inFlight(tab); got["a"] != [2]int{0, 0} || got["b"] != [2]int{1, 700} {
		t.Errorf("in flight %v", got)
	}
	b.End()
	if got := tab.Ledger(); got != (fleet.Ledger{}) {
		t.Errorf("ledger %+v", got)
	}
}

// TestServedElsewhereIsAFailure: an endpoint that another had to stand in for has
// failed the request, as a try as well; it is not left out for ever.
func TestServedElsewhereIsAFailure(t *testing.T) {
	tab := fleet.New(fleet.Options{})
	join(tab, "a", "b")
	health := func(at time.Time) (h float64) {
		tab.Pick(fleet.Query{}, at, func(v epp.View) (int, int) { h = v.Signals[0].Health; return -1, 0 })
		return h
	}
	for range 3 {
		b := book(t, tab, "a", 1)
		b.Served(start, "b:8000")
		b.Judge(start, fleet.Good)
		b.End()
	}
	if got := health(start); got != 0 {
		t.Errorf("health %v after three requests that b had to serve", got)
	}
	try := book(t, tab, "a", 1)
	try.Served(start.Add(time.Second), "b:8000")
	try.End()
	if got := health(start.Add(time.Second)); got != 0 {
		t.Errorf("health %v after a try that b had to serve", got)
	}
	if got := health(start.Add(time.Minute)); got != 1 {
		t.Errorf("health %v: no other try is due", got)
	}
}

// TestHandedIsBounded: while no reading succeeds, handed-over bookings that the
// bound has ended don't pile up; one handed over by an endpoint that has left ends.
func TestHandedIsBounded(t *testing.T) {
	tab := fleet.New(fleet.Options{BookingBound: time.Second})
	a := join(tab, "a")[0]
	for i := range 20_000 {
		at := start.Add(time.Duration(i) * time.Second)
		b, _ := tab.Pick(fleet.Query{}, at, named("a", 1))
		b.HandOver(at)
		tab.Expire(at)
	}
	if n := fleet.Handed(a); n > 3000 {
		t.Errorf("%d are kept", n)
	}
	b := book(t, tab, "a", 1)
	a.Leave()
	b.HandOver(start)
	if l := tab.Ledger(); l.Requests != 0 {
		t.Errorf("ledger %+v", l)
	}
}

// TestCaseD4FlapLeavesNoDebt: an endpoint leaves with 10 requests in flight and
// comes back; its counter shows the 3 new ones, then 0, never less, when the 10
// end on the old one. It is not favoured for them.
func TestCaseD4FlapLeavesNoDebt(t *testing.T) {
	tab := fleet.New(fleet.Options{})
	a := join(tab, "a", "b")[0]
	var old []fleet.Booking
	for range 10 {
		old = append(old, book(t, tab, "a", 5))
	}
	a.Leave()
	a.Leave() // twice is once
	a2 := join(tab, "a")[0]
	if a2.Endpoint().Slot == a.Endpoint().Slot {
		t.Error("the slot was given again while requests were in flight on it")
	}
	var fresh []fleet.Booking
	for range 3 {
		fresh = append(fresh, book(t, tab, "a", 5))
		fresh = append(fresh, book(t, tab, "b", 5))
	}
	for _, b := range old {
		if got := inFlight(tab); got["a"] != [2]int{3, 15} || got["a"] != got["b"] { // so a is not favoured
			t.Fatalf("in flight %v, want 3 each", got)
		}
		b.End()
	}
	for _, b := range fresh {
		b.End()
	}
	if got := tab.Ledger(); got != (fleet.Ledger{}) || inFlight(tab)["a"] != [2]int{} {
		t.Errorf("ledger %+v, a %v", got, inFlight(tab)["a"])
	}
	if c := join(tab, "c")[0]; c.Endpoint().Slot != a.Endpoint().Slot {
		t.Errorf("c has slot %d; %d is free now", c.Endpoint().Slot, a.Endpoint().Slot)
	}
}

// TestPickIsAtomic: 1,000 concurrent picks of the idlest of 10 endpoints give
// each exactly 100. If two had seen the same state, one would have 101.
func TestPickIsAtomic(t *testing.T) {
	tab := fleet.New(fleet.Options{})
	for i := range 10 {
		join(tab, fmt.Sprint(i))
	}
	var wg sync.WaitGroup
	for range 50 {
		wg.Go(func() {
			for range 20 {
				tab.Pick(fleet.Query{}, start, idlest)
			}
		})
	}
	wg.Wait()
	for name, n := range inFlight(tab) {
		if n[0] != 100 {
			t.Errorf("endpoint %s has %d", name, n[0])
		}
	}
}

// TestReadingAndOwnRequests: how many of our own a reading counted, and so how
// many it has missed (Δ), when requests come and go while it is taken.
func TestReadingAndOwnRequests(t *testing.T) {
	for _, c := range []struct {
		name                       string
		before, answered, meantime int // own requests: before the reading, of these answered, while it is taken
		seen                       float64
		delta                      int
	}{
		{"all are seen", 4, 4, 0, 4, 0},
		{"one came while the page was made and is not in it", 1, 1, 1, 1, 1},
		{"one came while the page was made and is in it", 1, 1, 1, 2, 0},
		{"three of ten were on their way", 10, 7, 0, 7, 3},
		{"on their way, and more came", 10, 7, 5, 7, 8},
		{"finished there, its answer still being read by a slow client", 50, 50, 0, 0, 0},
		{"others send there too: ours at the beginning are taken as seen", 4, 2, 1, 30, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			tab := fleet.New(fleet.Options{})
			a := join(tab, "a")[0]
			for i := range c.before {
				if b := book(t, tab, "a", 1); i < c.answered {
					b.Answered()
				}
			}
			mark := a.Begin(start)
			for range c.meantime {
				book(t, tab, "a", 1)
			}
			a.Load(mark, start, epp.Load{Waiting: epp.Known(0), Running: epp.Known(c.seen)})
			s := tab.Snapshot()[0].Signals
			if s.Delta() != c.delta {
				t.Errorf("Δ %d, want %d", s.Delta(), c.delta)
			}
		})
	}
}

// TestEndedNoLongerCounts: Δ falls with each of our requests that ends.
func TestEndedNoLongerCounts(t *testing.T) {
	tab := fleet.New(fleet.Options{})
	a := join(tab, "a")[0]
	b := book(t, tab, "a", 1)
	b.Answered()
	a.Load(a.Begin(start), start, epp.Load{Waiting: epp.Known(0), Running: epp.Known(1)})
	b.End()
	s := tab.Snapshot()[0].Signals
	if s.Delta() != -1 {
		t.Errorf("Δ %d after an end, want -1", s.Delta())
	}
}

// TestSlotsAreLearnt: the most that ran while others waited is the number of
// slots; more seen to run corrects it; a configured number is left alone.
func TestSlotsAreLearnt(t *testing.T) {
	reading := func(waiting, running float64) epp.Load {
		return epp.Load{Waiting: epp.Known(waiting), Running: epp.Known(running)}
	}
	tab := fleet.New(fleet.Options{})
	a := join(tab, "a")[0]
	for _, step := range []struct {
		waiting, running float64
		want             int
	}{{0, 7, 0}, {1, 4, 4}, {3, 2, 4}, {0, 6, 6}, {0, 1, 6}} {
		a.Load(0, start, reading(step.waiting, step.running))
		if got := tab.Snapshot()[0].Signals.MaxRunning; got != step.want {
			t.Errorf("after %v waiting, %v running: %d slots, want %d", step.waiting, step.running, got, step.want)
		}
	}
	set := fleet.New(fleet.Options{MaxRunning: 4})
	b := join(set, "b")[0]
	b.Load(0, start, reading(2, 9))
	if got := set.Snapshot()[0].Signals.MaxRunning; got != 4 {
		t.Errorf("configured 4 slots became %d", got)
	}
}

// TestSleepIsNoHealth: an engine that says it sleeps gets nothing; awake again it
// has the health it had.
func TestSleepIsNoHealth(t *testing.T) {
	tab := fleet.New(fleet.Options{})
	a := join(tab, "a")[0]
	b := book(t, tab, "a", 1)
	b.Judge(start, fleet.Bad)
	b.End()
	for _, step := range []struct {
		asleep bool
		want   float64
	}{{true, 0}, {false, 0.75}} {
		a.Load(0, start, epp.Load{Asleep: step.asleep})
		if got := tab.Snapshot()[0].Signals.Health; got != step.want {
			t.Errorf("asleep %v: health %v, want %v", step.asleep, got, step.want)
		}
	}
}

// TestOutcomesLeaveOutHalfThePool: endpoints that fail are left out after three
// failures, but never more than half of the pool; one comes back by a single
// request at a time, and at once when a reading reaches it again.
func TestOutcomesLeaveOutHalfThePool(t *testing.T) {
	tab := fleet.New(fleet.Options{})
	ms := join(tab, "a", "b", "c")
	fail := func(name string, times int) {
		for range times {
			b := book(t, tab, name, 1)
			b.Judge(start, fleet.Bad)
			b.End()
		}
	}
	health := func(at time.Time) (h [3]float64) {
		tab.Pick(fleet.Query{}, at, func(v epp.View) (int, int) {
			for i := range v.Signals {
				h[i] = math.Round(100*v.Signals[i].Health) / 100
			}
			return -1, 0
		})
		return h
	}
	fail("a", 3)
	fail("b", 9)
	if got := health(start); got != [3]float64{0, 0.3, 1} {
		t.Errorf("health %v: a is out, b would be more than half of the pool", got)
	}
	later := start.Add(time.Second)
	if got := health(later); got != [3]float64{1, 0.32, 1} {
		t.Errorf("health %v: a try is due at a", got)
	}
	try := book(t, tab, "a", 1)
	if got := health(later); got != [3]float64{0, 0.32, 1} {
		t.Errorf("health %v: one try at a time", got)
	}
	try.Judge(later, fleet.Good)
	try.End()
	if got := health(later); got != [3]float64{0.5, 0.32, 1} {
		t.Errorf("health %v: a has come back", got)
	}
	for range 3 { // nobody listens at c: its page is refused
		ms[2].Failed(later, fmt.Errorf("page: %w", syscall.ECONNREFUSED))
	}
	ms[1].Failed(later, errors.New("status 500")) // a page that is not there says nothing of requests
	if got := health(later); got != [3]float64{0.5, 0.32, 0} {
		t.Errorf("health %v: c refuses connections", got)
	}
	ms[2].Load(0, later, epp.Load{})
	if got := health(later); got != [3]float64{0.5, 0.32, 1} {
		t.Errorf("health %v: c was reached, a try is due", got)
	}
	try = book(t, tab, "c", 1)
	try.Judge(later, fleet.Good)
	try.End()
	if got := health(later.Add(time.Minute)); got != [3]float64{1, 1, 1} {
		t.Errorf("health %v: what was held against them has faded", got)
	}
}

// TestModels: a name is known as soon as one endpoint lists it and unknown once
// none does; an endpoint that lists others is left out, one whose list nobody
// has seen is not.
func TestModels(t *testing.T) {
	tab := fleet.New(fleet.Options{})
	ms := join(tab, "a", "b", "c")
	if _, _, complete := tab.Model("base"); complete {
		t.Error("complete before any list was seen")
	}
	ms[0].Models([]epp.Model{{Name: "base"}, {Name: "sql", Parent: "base"}})
	ms[1].Models([]epp.Model{{Name: "base"}})
	serves := func(model string) (names []string) {
		tab.Pick(fleet.Query{Target: model}, start, func(v epp.View) (int, int) {
			for _, e := range v.Endpoints {
				if v.Serves == nil || v.Serves.Has(e.Slot) {
					names = append(names, e.Name)
				}
			}
			return -1, 0
		})
		return names
	}
	for model, want := range map[string][]string{"base": {"a", "b", "c"}, "sql": {"a", "c"}, "other": {"c"}, "": {"a", "b", "c"}} {
		if diff := cmp.Diff(want, serves(model)); diff != "" {
			t.Errorf("%q: %s", model, diff)
		}
	}
	if m, found, complete := tab.Model("sql"); !found || complete || m.Parent != "base" {
		t.Errorf("sql: %+v, %v, %v: c's list is not known", m, found, complete)
	}
	ms[2].Models(nil)
	if _, found, complete := tab.Model("other"); found || !complete {
		t.Errorf("other: %v, %v: every list is known", found, complete)
	}
	ms[0].Leave()
	if _, found, _ := tab.Model("sql"); found {
		t.Error("sql is still known after its only endpoint left")
	}
	if diff := cmp.Diff([]epp.Model{{Name: "base"}}, tab.Models()); diff != "" {
		t.Error(diff)
	}
}

// TestAdaptersAreRemembered: what an engine shows as active or was sent is
// resident, until it has no room for it; a restart forgets all.
func TestAdaptersAreRemembered(t *testing.T) {
	tab := fleet.New(fleet.Options{})
	a := join(tab, "a")[0]
	a.Load(0, start, epp.Load{Adapters: []string{"sql"}, MaxAdapters: 2})
	tab.Pick(fleet.Query{Target: "chat", Adapter: "chat"}, start, idlest)
	a.Load(0, start, epp.Load{Adapters: []string{"sql"}})
	want := func(names ...string) {
		t.Helper()
		if diff := cmp.Diff(names, tab.Snapshot()[0].Adapters); diff != "" {
			t.Error(diff)
		}
		for _, n := range []string{"sql", "chat", "code"} {
			has := false
			tab.Pick(fleet.Query{Adapter: n}, start, func(v epp.View) (int, int) {
				has = v.Resident.Has(v.Endpoints[0].Slot)
				return -1, 0
			})
			if listed := contains(names, n); has != listed {
				t.Errorf("%s: resident %v, remembered %v", n, has, listed)
			}
		}
	}
	want("chat", "sql")
	tab.Pick(fleet.Query{Adapter: "code"}, start, idlest)
	want("sql", "code")
	a.Reset(start) // what was told is told anew: the engine is the same
	want("sql", "code")
	a.Restarted()
	want()
}

func contains(list []string, s string) bool {
	for _, x := range list {
		if x == s {
			return true
		}
	}
	return false
}

// TestBoundIsCounted: a booking whose end nobody saw is ended by its bound, and
// that shows.
func TestBoundIsCounted(t *testing.T) {
	tab := fleet.New(fleet.Options{BookingBound: time.Minute})
	join(tab, "a")
	lost := book(t, tab, "a", 9)
	if n := tab.Expire(start.Add(time.Minute)); n != 0 {
		t.Errorf("%d ended at the bound", n)
	}
	if n := tab.Expire(start.Add(time.Minute + 1)); n != 1 {
		t.Errorf("%d ended past the bound", n)
	}
	if lost.End() {
		t.Error("the end came twice")
	}
	if got := tab.Ledger(); got != (fleet.Ledger{Bound: 1}) {
		t.Errorf("ledger %+v", got)
	}
}

// TestBlocksOfAMember: events reach the index under the member's slot, tell its
// block size, and go when it leaves; after a restart nothing is left.
func TestBlocksOfAMember(t *testing.T) {
	tab := fleet.New(fleet.Options{})
	a := join(tab, "a")[0]
	if !tab.Snapshot()[0].Signals.Incomplete {
		t.Error("complete before anything was heard")
	}
	a.Incomplete(start, false)
	tokens := make([]uint32, 64)
	a.Apply(start, []epp.BlockEvent{{Kind: epp.BlockStored, Hashes: []uint64{1, 2}, Tokens: tokens, BlockTokens: 32}})
	s := tab.Snapshot()[0]
	if s.Blocks != 2 || s.Signals.BlockTokens != 32 || s.Signals.Incomplete {
		t.Errorf("%+v", s)
	}
	if diff := cmp.Diff([]int{32}, tab.BlockSizes(nil)); diff != "" {
		t.Error(diff)
	}
	a.Reset(start)
	if s := tab.Snapshot()[0]; s.Blocks != 0 {
		t.Errorf("%d blocks after a restart", s.Blocks)
	}
	a.Failed(start, errors.New("page gone"))
	a.Leave()
	a.Load(0, start, epp.Load{}) // late news of one that left
	a.Models(nil)
	if diff := cmp.Diff([]int{fleet.DefaultBlockTokens}, tab.BlockSizes(nil)); diff != "" {
		t.Error(diff)
	}
}

// TestLedgerAgainstTwin drives the table with random bookings, ends, moves,
// joins, leaves and expiries, beside a twin that is a plain list.
func TestLedgerAgainstTwin(t *testing.T) {
	type twin struct {
		b      fleet.Booking
		m      *fleet.Member
		tokens int
		at     time.Time
	}
	rapid.Check(t, func(t *rapid.T) {
		tab := fleet.New(fleet.Options{BookingBound: time.Minute})
		members := join(tab, "a", "b", "c")
		var live []*twin
		now, expired := start, uint64(0)
		some := func() *twin { return rapid.SampledFrom(live).Draw(t, "booking") }
		drop := func(gone *twin) {
			for i := range live {
				if live[i] == gone {
					live = append(live[:i:i], live[i+1:]...)
					return
				}
			}
		}
		t.Repeat(map[string]func(*rapid.T){
			"book": func(t *rapid.T) {
				m := rapid.SampledFrom(members).Draw(t, "member")
				tokens := rapid.IntRange(0, 9000).Draw(t, "tokens")
				b, ok := tab.Pick(fleet.Query{}, now, func(v epp.View) (int, int) {
					for i := range v.Endpoints {
						if v.Endpoints[i].Generation == m.Endpoint().Generation {
							return i, tokens
						}
					}
					return -1, 0
				})
				if !ok {
					t.Fatal("a member is missing from the view")
				}
				live = append(live, &twin{b, m, tokens, now})
			},
			"first token": func(t *rapid.T) {
				if len(live) == 0 {
					t.Skip("nothing in flight")
				}
				tw := some()
				tw.b.FirstToken(now)
				tw.tokens = 0
			},
			"answered": func(t *rapid.T) {
				if len(live) == 0 {
					t.Skip("nothing in flight")
				}
				some().b.Answered()
			},
			"end": func(t *rapid.T) {
				if len(live) == 0 {
					t.Skip("nothing in flight")
				}
				tw := some()
				if !tw.b.End() || tw.b.End() {
					t.Fatal("End counts once")
				}
				drop(tw)
			},
			"served elsewhere": func(t *rapid.T) {
				if len(live) == 0 {
					t.Skip("nothing in flight")
				}
				tw, m := some(), rapid.SampledFrom(members).Draw(t, "served by")
				tw.b.Served(now, m.Endpoint().Address)
				if tw.m.Endpoint().Address != m.Endpoint().Address {
					tw.m = m
				}
			},
			"flap": func(t *rapid.T) {
				i := rapid.IntRange(0, len(members)-1).Draw(t, "who")
				e := members[i].Endpoint()
				members[i].Leave()
				members[i] = tab.Join(e)
			},
			"time passes": func(t *rapid.T) {
				now = now.Add(time.Duration(rapid.IntRange(1, 50).Draw(t, "seconds")) * time.Second)
				tab.Expire(now)
				for _, tw := range append([]*twin(nil), live...) {
					if now.Sub(tw.at) > time.Minute {
						expired++
						drop(tw)
					}
				}
			},
			"": func(t *rapid.T) {
				sum := fleet.Ledger{Bound: expired}
				want := map[uint32][2]int{}
				for _, tw := range live {
					sum.Requests++
					sum.Tokens += tw.tokens
					g := tw.m.Endpoint().Generation
					want[g] = [2]int{want[g][0] + 1, want[g][1] + tw.tokens}
				}
				if got := tab.Ledger(); got != sum {
					t.Fatalf("ledger %+v, twin %+v", got, sum)
				}
				for _, s := range tab.Snapshot() {
					if got := [2]int{s.Signals.InFlight, s.Signals.InFlightTokens}; got != want[s.Endpoint.Generation] {
						t.Fatalf("%s: %v, twin %v", s.Endpoint.Name, got, want[s.Endpoint.Generation])
					}
				}
			},
		})
	})
}

// TestTokensByRate: where the first token is not seen, the tokens are released
// when the endpoint will have computed them: at 8,000 a second until it has shown
// its own rate, then at that.
func TestTokensByRate(t *testing.T) {
	tab := fleet.New(fleet.Options{})
	a := join(tab, "a")[0]
	tokensAt := func(after time.Duration) int {
		a.Begin(start.Add(after)) // any look at the table releases what is due
		return tab.Ledger().Tokens
	}
	b := book(t, tab, "a", 4000)
	b.ReleaseTokensByRate(start)
	if got := tokensAt(499 * time.Millisecond); got != 4000 {
		t.Errorf("%d tokens held before they are computed", got)
	}
	if got := tokensAt(500 * time.Millisecond); got != 0 {
		t.Errorf("%d tokens held after 4,000 at 8,000 a second", got)
	}
	b.End()
	counters := func(prompt, cached, seconds float64) epp.Load {
		return epp.Load{PromptTokens: epp.Known(prompt), CachedTokens: epp.Known(cached), FirstTokenSeconds: epp.Known(seconds)}
	}
	a.Load(0, start, counters(10_000, 4_000, 7))
	a.Load(0, start, counters(14_000, 6_000, 9)) // 2,000 uncached tokens in 2 s
	b = book(t, tab, "a", 1000)
	b.ReleaseTokensByRate(start)
	if got := tokensAt(999 * time.Millisecond); got != 1000 {
		t.Errorf("%d tokens held before they are computed at 1,000 a second", got)
	}
	a.Load(0, start, counters(100, 0, 0.1)) // a restarted engine counts from 0: nothing is learnt from the fall
	if got := tokensAt(time.Second); got != 0 {
		t.Errorf("%d tokens held after their time", got)
	}
	if !b.End() || tab.Ledger() != (fleet.Ledger{}) {
		t.Errorf("ledger %+v", tab.Ledger())
	}
}

// TestHandOver: where the end is not seen, a booking ends with the first reading
// that begins after it was handed over: from then on the engine's own count has it.
func TestHandOver(t *testing.T) {
	tab := fleet.New(fleet.Options{})
	a := join(tab, "a")[0]
	b, gone := book(t, tab, "a", 100), book(t, tab, "a", 1)
	mark := a.Begin(start)
	handed := start.Add(time.Millisecond)
	b.HandOver(handed)
	gone.HandOver(handed)
	gone.End() // its end was seen after all
	a.Load(mark, start, epp.Load{Waiting: epp.Known(0), Running: epp.Known(1)})
	if l := tab.Ledger(); l.Requests != 1 {
		t.Errorf("ledger %+v after a reading that had begun before", l)
	}
	later := handed.Add(time.Millisecond)
	a.Load(a.Begin(later), later, epp.Load{Waiting: epp.Known(0), Running: epp.Known(1)})
	if l := tab.Ledger(); l != (fleet.Ledger{}) {
		t.Errorf("ledger %+v after the next reading", l)
	}
	if s := tab.Snapshot()[0].Signals; s.InFlight != 0 || s.Delta() != 0 {
		t.Errorf("in flight %d, Δ %d: the reading has the request", s.InFlight, s.Delta())
	}
	left := book(t, tab, "a", 1)
	left.HandOver(later)
	a.Leave()
	if l := tab.Ledger(); l != (fleet.Ledger{}) {
		t.Errorf("ledger %+v after the endpoint left: no reading will come", l)
	}
}
