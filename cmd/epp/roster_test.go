package main

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"epp.internal/epp/config"
	"epp.internal/epp/decision"
	"epp.internal/epp/epptest"
	"epp.internal/epp/fleet"
	"epp.internal/epp/scrape"
)

// TestReadiness: what the picker waits for before it says that it is ready, step by
// step. Each endpoint is a letter; capitals are steps that make it ready.
func TestReadiness(t *testing.T) {
	for name, steps := range map[string]string{
		"one is reached, the other refuses":         "join a, join b, settle 2, refuse a, REACH b",
		"a page before the first set is whole":      "join a, reach a, join b, settle 2, REFUSE b",
		"nothing is reached":                        "join a, settle 1, refuse a, refuse a",
		"reached late":                              "join a, settle 1, refuse a, REACH a",
		"an empty pool has nothing to wait for":     "SETTLE 0",
		"what joins later takes nothing back":       "join a, settle 1, REACH a, JOIN b, SETTLE 2, REFUSE b",
		"nor after an empty first set":              "SETTLE 0, JOIN a, SETTLE 1, REFUSE a",
		"what has left counts as tried":             "join a, join b, settle 2, reach b, GONE a, SETTLE 1",
		"all of the first have left, untried":       "join a, settle 1, gone a, SETTLE 0",
		"the second set is reached, not the first":  "join a, settle 1, gone a, join b, settle 1, REACH b",
		"a later one does not stand for the first":  "join a, settle 1, join b, settle 2, reach b, REFUSE a",
		"a second answer and a second leave are no": "join a, join b, settle 2, reach a, reach a, gone a, gone a, refuse a, REFUSE b",
	} {
		t.Run(name, func(t *testing.T) {
			var r readiness
			contacts := map[string]*contact{}
			for step := range strings.SplitSeq(steps, ", ") {
				verb, what, _ := strings.Cut(step, " ")
				switch strings.ToLower(verb) {
				case "join":
					contacts[what] = r.contact()
				case "settle":
					r.settle(int(what[0] - '0'))
				case "reach":
					contacts[what].asked(true)
				case "refuse":
					contacts[what].asked(false)
				case "gone":
					contacts[what].gone()
				}
				if want := verb == strings.ToUpper(verb); r.is.Load() != want {
					t.Fatalf("after %q ready is %v", step, !want)
				}
			}
		})
	}
}

// entries are the rig's engines as endpoints, with their UIDs.
func entries(engines []*epptest.Engine, uid string) []entry {
	list := make([]entry, len(engines))
	for i, e := range engines {
		list[i] = entry{Endpoint: config.Endpoint{Name: e.Name(), Address: e.Address()}, UID: uid}
	}
	return list
}

// TestRosterTellsEndpointsApart: an endpoint is what it was while its UID, address, name
// and sources are, with all that is known of it; else it is another, which starts
// afresh, and the former is gone when set returns.
func TestRosterTellsEndpointsApart(t *testing.T) {
	r := newRig(t, options{engines: 3})
	r.must([]message{user(words(1, 200))}, 1)
	r.caughtUp()
	holder := r.picks()
	former := map[string]fleet.State{}
	for _, e := range r.engines {
		former[e.Name()] = r.state(e.Name())
	}
	base := entries(r.engines, "") // as the static ones are
	change := func(f func(list []entry) []entry) []entry { return f(append([]entry(nil), base...)) }
	for _, c := range []struct {
		what    string
		list    []entry
		stay    bool // C is what it was
		without bool // C is not there
	}{
		{"the same", base, true, false},
		{"another order", []entry{base[2], base[0], base[1]}, true, false},
		{"twice", append(change(func(l []entry) []entry { return l }), base[2]), true, false},
		{"labels", change(func(l []entry) []entry { l[2].Labels = map[string]string{"app": "vllm"}; return l }), true, false},
		{"the address of another, by another name", append(change(func(l []entry) []entry { return l }), entry{Endpoint: config.Endpoint{Name: "D", Address: base[2].Address}}), true, false},
		{"a new UID", change(func(l []entry) []entry { l[2].UID = "2"; return l }), false, false},
		{"another engine", change(func(l []entry) []entry { l[2].UID, l[2].Engine = "2", config.EngineVLLM; return l }), false, false},
		{"another name", change(func(l []entry) []entry { l[2].Name = "C2"; return l }), false, false},
		{"no more", base[:2], false, true},
		{"back", base, false, false},
	} {
		afresh := !c.stay && !c.without // C says nothing before it was looked at
		if err := r.engines[2].RefuseConnections(afresh); err != nil {
			t.Fatal(err)
		}
		r.sys.setEndpoints(c.list)
		now := map[string]fleet.State{}
		for _, st := range r.sys.fleet.Snapshot() {
			now[st.Endpoint.Name] = st
		}
		if err := r.engines[2].RefuseConnections(false); err != nil {
			t.Fatal(err)
		}
		for _, name := range []string{"A", "B"} {
			if now[name].Endpoint.Generation != former[name].Endpoint.Generation || now[name].Blocks < former[name].Blocks {
				t.Errorf("%s: %s was %+v, is %+v", c.what, name, former[name].Endpoint, now[name].Endpoint)
			}
		}
		st := now["C"]
		if c.what == "another name" {
			st = now["C2"]
		}
		switch stays := st.Endpoint.Generation == former["C"].Endpoint.Generation; {
		case c.without:
			if len(now) != 2 {
				t.Errorf("%s: %d endpoints are there", c.what, len(now))
			}
		case len(now) != 3:
			t.Errorf("%s: %d endpoints are there", c.what, len(now))
		case stays != c.stay:
			t.Errorf("%s: C was %+v, is %+v", c.what, former["C"].Endpoint, st.Endpoint)
		case !stays && st.Signals.Heard:
			t.Errorf("%s: a new endpoint has been heard before it joined", c.what)
		}
		former["C"] = st
		r.until("the pool is known", r.sys.settled)
	}
	r.caughtUp() // by replay, what the engine had all the time
	if p := r.must([]message{user(words(1, 200))}, 1); holder[p.servedBy] == 0 {
		t.Errorf("the prompt ran at %s first and then at %v", p.servedBy, holder)
	}
	r.atRest()
}

// TestLeavingEndpointFinishes: an endpoint that leaves gets no further request at once,
// the one that it has goes on to its end, and its place in the ledger with it.
func TestLeavingEndpointFinishes(t *testing.T) {
	r := newRig(t, options{engines: 2})
	a := r.engines[0]
	a.HoldAnswers(true)
	r.sys.setEndpoints(entries(r.engines[:1], ""))
	done := make(chan *reply)
	go func() { done <- r.chat([]message{user("hello")}, 1) }()
	if err := a.AwaitRequests(r.ctx, 1); err != nil {
		t.Fatal(err)
	}
	r.sys.setEndpoints(entries(r.engines[1:], ""))
	if l := r.sys.fleet.Ledger(); l.Requests != 1 || len(r.sys.fleet.Snapshot()) != 1 {
		t.Errorf("%d requests are booked, %d endpoints are there; want 1 and 1", l.Requests, len(r.sys.fleet.Snapshot()))
	}
	for range 10 {
		if p := r.must([]message{user("hello")}, 1); p.servedBy != "B" {
			t.Errorf("served by %s, which has left", p.servedBy)
		}
	}
	a.HoldAnswers(false)
	if p := <-done; p.err != nil || p.status != http.StatusOK || p.servedBy != "A" {
		t.Errorf("the request that was running: %d from %q, %v", p.status, p.servedBy, p.err)
	}
	r.atRest()
	slots := r.sys.fleet.Slots()
	r.sys.setEndpoints(append(entries(r.engines[1:], ""), entries(r.engines[:1], "2")...))
	if n := r.sys.fleet.Slots(); n != slots {
		t.Errorf("%d slots after the former one was given back, %d before", n, slots)
	}
}

// TestCaseL6EmptyPool: a pool that matches nothing is ready after its first set, says so
// in the log and to whoever asks, and serves as soon as an endpoint joins.
func TestCaseL6EmptyPool(t *testing.T) {
	e, err := epptest.StartEngine(epptest.EngineConfig{Name: "A", Model: "tiny"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = e.Close() })
	r := newRig(t, options{unsettled: true})
	if r.sys.roster.ready.is.Load() {
		t.Error("ready before anything is known of the pool")
	}
	r.sys.setEndpoints(nil)
	if !r.sys.roster.ready.is.Load() {
		t.Error("not ready after the first set, which holds up a rollout for ever")
	}
	if n := len(r.log.find("0 endpoints matched: the pool is empty, and requests are answered with 503 until one joins", "")); n != 1 {
		t.Errorf("%d lines of the log say that the pool is empty", n)
	}
	if p := r.chat([]message{user("hello")}, 1); p.status != http.StatusServiceUnavailable || !strings.Contains(string(p.body), "0 endpoints matched") {
		t.Errorf("asked for an answer: %d %s", p.status, p.body)
	}
	r.sys.setEndpoints([]entry{{Endpoint: config.Endpoint{Name: "A", Address: e.Address()}}})
	if !r.sys.roster.ready.is.Load() {
		t.Error("no longer ready since an endpoint has joined")
	}
	r.until("it is known", r.sys.settled)
	r.must([]message{user("hello")}, 1)
	r.atRest()
}

// TestCaseL2PortsChange: ports are listed, changed, and listed though closed: after each
// change exactly the listed endpoints are there; closed ones are named in a warning and
// get no request once a few of their pages were refused.
func TestCaseL2PortsChange(t *testing.T) {
	r := newRig(t, options{engines: 2})
	at := func(address string) entry { return entry{Endpoint: config.Endpoint{Address: address}, UID: "1"} }
	a, b := r.engines[0].Address(), r.engines[1].Address()
	var closed []entry
	for i := range 6 {
		closed = append(closed, at(fmt.Sprintf("127.0.3.%d:9", i+1))) // nobody is there
	}
	for _, list := range [][]entry{{at(a)}, {at(b)}, append(closed, at(a), at(b)), {at(a)}} {
		r.sys.setEndpoints(list)
		var names []string
		for _, st := range r.sys.fleet.Snapshot() {
			names = append(names, st.Endpoint.Address)
		}
		for _, e := range list {
			if !strings.Contains(strings.Join(names, " ")+" ", e.Address+" ") || len(names) != len(list) {
				t.Errorf("listed %v, there are %v", list, names)
			}
		}
		r.until("closed ports have lost their health", func() bool {
			for _, st := range r.sys.fleet.Snapshot() {
				if strings.HasSuffix(st.Endpoint.Address, ":9") && st.Signals.Health > 0.5 {
					return false
				}
			}
			return true
		})
		for range 20 {
			r.must([]message{user("hello")}, 1)
		}
	}
	for _, e := range closed {
		if !strings.Contains(r.log.String(), `"msg":"scrape fails","address":"`+e.Address) {
			t.Errorf("no warning names %s", e.Address)
		}
	}
	r.atRest()
}

// TestCaseO3PodsComeAndGo: of 200 pods that came and went, five at a time, nothing is
// left: no series, no source, no slot, no reader (TestMain looks for goroutines).
func TestCaseO3PodsComeAndGo(t *testing.T) {
	r := newRig(t, options{engines: 5})
	for i := range 40 {
		list := entries(r.engines, fmt.Sprint("uid-", i))
		for k := range list {
			list[k].Name = fmt.Sprintf("ns/pod-%d-%d", i, k)
		}
		r.sys.setEndpoints(list)
	}
	r.until("the last five are known", r.sys.settled)
	for _, name := range []string{"epp_pod_health_score", "epp_queue_depth"} {
		if all, living := r.series(name), r.series(name, "ns/pod-39-"); all != 5 || living != 5 {
			t.Errorf("%s: %v series, %v of the living; want 5", name, all, living)
		}
	}
	sources := 0
	r.sys.sources.Range(func(_, _ any) bool { sources++; return true })
	if n := r.sys.fleet.Slots(); n > 10 || sources != 5 || r.sys.joined.Load() != 5 || r.sys.roster.size() != 5 {
		t.Errorf("%d slots, %d sources, %d joined, %d run; want 10 at most, for five come before five leave, and 5 of the others", n, sources, r.sys.joined.Load(), r.sys.roster.size())
	}
}

// TestReadingsFollowTheSize: how old a reading may be follows the number of endpoints,
// in settings of a new version.
func TestReadingsFollowTheSize(t *testing.T) {
	r := newRig(t, options{unsettled: true})
	many := make([]entry, 260)
	for i := range many {
		many[i].Address = fmt.Sprintf("127.0.%d.%d:9", 4+i/200, 1+i%200)
	}
	for i, c := range []struct {
		list []entry
		want time.Duration
	}{
		{many[:10], 2 * time.Second}, {many, 3 * scrape.Interval(260)}, {many[5:], 3 * scrape.Interval(255)}, {many[:1], 2 * time.Second},
	} {
		r.sys.setEndpoints(c.list)
		if now := r.sys.picker.Policy().Settings; now.StaleAfter != c.want || now.Version != uint64(i+1) {
			t.Errorf("%d endpoints: stale after %v by version %d, want %v by %d", len(c.list), now.StaleAfter, now.Version, c.want, i+1)
		}
	}
}

// TestPoolAndSettingsChangeUnderLoad: endpoints join, leave and are replaced under the
// same address, weights and models change, while thousands of requests pass: none
// fails, the ledger is 0 at rest, and the endpoints that stayed hold what they held.
func TestPoolAndSettingsChangeUnderLoad(t *testing.T) {
	r := newRig(t, options{engines: 4, config: func(c *config.Config, _ []*epptest.Engine) {
		c.Timeouts.Drain.Duration = 100 * time.Millisecond
	}})
	staying := entries(r.engines[:2], "")
	r.sys.setEndpoints(staying)
	for seed := range uint64(20) { // something to lose
		r.must([]message{user(words(seed, 100))}, 1)
	}
	former := map[string]uint32{}
	for _, e := range staying {
		former[e.Name] = r.state(e.Name).Endpoint.Generation
	}
	var stop atomic.Bool
	var sent, failed atomic.Int64
	var wg sync.WaitGroup
	for w := range uint64(12) {
		wg.Go(func() {
			for i := uint64(0); !stop.Load() && failed.Load() == 0; i++ {
				stream := []string{"stream", "true"}[:2*(i%2)]
				p := r.chat([]message{user(words((w+i)%20, 100)), user(words(w*1000+i, 20))}, 2, stream...)
				sent.Add(1)
				if p.err != nil || p.status != http.StatusOK {
					failed.Add(1)
					t.Errorf("request %d of %d: %d %s %v", i, w, p.status, p.body, p.err)
				}
			}
		})
	}
	const least, leastChanges = 3000, 50
	changes := 0
	for ; (sent.Load() < least || changes < leastChanges) && failed.Load() == 0; changes++ {
		list := append([]entry(nil), staying...)
		for k, e := range entries(r.engines[2:], fmt.Sprint("uid-", changes/3)) {
			if (changes>>k)&1 == 0 {
				list = append(list, e)
			}
		}
		r.sys.setEndpoints(list)
		cfg := *r.sys.live.Load()
		cfg.Weights = map[string]float64{decision.CacheScorer: 0.5, decision.LoadScorer: 0.5}
		if changes%2 == 0 {
			cfg.Weights = map[string]float64{decision.CacheScorer: 0.9, decision.QueueScorer: 0.1}
		}
		cfg.MaxQueue = 20 + changes%5
		cfg.Models = []config.Model{{Name: "alias", Target: "tiny", Priority: changes % 3}}
		if err := r.sys.apply(&cfg); err != nil {
			t.Error(err)
			break
		}
		was := sent.Load()
		r.until("requests passed", func() bool { return sent.Load() > was+10 || failed.Load() > 0 })
	}
	stop.Store(true)
	wg.Wait()
	t.Logf("%d requests passed, %d failed, in %d changes of pool and settings", sent.Load(), failed.Load(), changes)
	r.atRest()
	r.sys.setEndpoints(entries(r.engines, ""))
	for name, generation := range former {
		if st := r.state(name); st.Endpoint.Generation != generation || st.Blocks == 0 {
			t.Errorf("%s was of generation %d, is of %d with %d blocks", name, generation, st.Endpoint.Generation, st.Blocks)
		}
	}
	r.caughtUp()
	versions := map[uint64]bool{}
	r.mu.Lock()
	for _, rec := range r.decided {
		versions[rec.Settings.Version] = true
	}
	r.mu.Unlock()
	if len(versions) < changes/2 {
		t.Errorf("decisions were made by %d versions in %d changes", len(versions), changes)
	}
}

// TestOnlyEndpointIsReplaced: the one endpoint of a pool is replaced under its address
// and name, over and over: no request finds an empty pool.
func TestOnlyEndpointIsReplaced(t *testing.T) {
	r := newRig(t, options{engines: 1})
	var stop atomic.Bool
	var sent atomic.Int64
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for !stop.Load() {
				if p := r.chat([]message{user("hello")}, 1); p.err != nil || p.status != http.StatusOK {
					t.Errorf("%d %s %v", p.status, p.body, p.err)
					return
				}
				sent.Add(1)
			}
		})
	}
	for i := range 200 {
		r.sys.setEndpoints(entries(r.engines, fmt.Sprint("uid-", i)))
		if states := r.sys.fleet.Snapshot(); len(states) != 1 || states[0].Endpoint.UID != fmt.Sprint("uid-", i) {
			t.Errorf("after replacement %d there are %+v", i, states)
		}
		was := sent.Load()
		r.until("a request has passed", func() bool { return sent.Load() > was || t.Failed() })
	}
	stop.Store(true)
	wg.Wait()
	r.atRest()
	r.until("the last one is known", r.sys.settled)
	r.caughtUp()
}

// series counts the series of a family whose line holds all of the given texts.
func (r *rig) series(name string, texts ...string) (n int) {
	r.t.Helper()
	for line := range strings.SplitSeq(r.metricsPage(), "\n") {
		if strings.HasPrefix(line, name+"{") && !slices.ContainsFunc(texts, func(text string) bool { return !strings.Contains(line, text) }) {
			n++
		}
	}
	return n
}
