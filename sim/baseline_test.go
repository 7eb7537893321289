package sim

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"epp.internal/epp"
	"epp.internal/epp/trace"
)

// pool is an input with an endpoint for each of loads: its requests in flight.
func pool(loads ...int) *input {
	in := &input{req: &trace.Request{Session: 1}}
	for i, n := range loads {
		in.endpoints = append(in.endpoints, epp.Endpoint{Name: string(rune('a' + i)), Slot: epp.Slot(i)})
		in.signals = append(in.signals, epp.Signals{InFlight: n, Health: 1})
	}
	return in.prompt(1, 2, 3, 4, 5, 6, 7, 8)
}

// prompt sets the prompt: each number is 64 tokens, and names all before it too.
func (in *input) prompt(names ...uint64) *input {
	in.chain = nil
	h := uint64(7)
	for _, n := range names {
		for k := range uint64(4) {
			h = h*1099511628211 + n*4 + k + 1
			in.chain = append(in.chain, h)
		}
	}
	in.tokens = make([]uint32, len(in.chain)*blockTokens)
	return in
}

func (in *input) loads(loads ...int) *input {
	for i, n := range loads {
		in.signals[i].InFlight = n
	}
	return in
}

func source() *rand.Rand { return rand.New(rand.NewPCG(1, 2)) }

// picks asks n times on the same input and returns who was picked, each once.
func picks(p chooser, in *input, n int) []int {
	var all []int
	for range n {
		all = append(all, p.choose(in))
	}
	slices.Sort(all)
	return slices.Compact(all)
}

func want(t *testing.T, what string, got, want []int) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Errorf("%s: picked %v, want %v", what, got, want)
	}
}

func TestSimpleRules(t *testing.T) {
	want(t, "random", picks(&random{source()}, pool(9, 0, 9), 100), []int{0, 1, 2})
	want(t, "least-conn", picks(&leastConn{source()}, pool(3, 1, 1), 100), []int{1, 2})
	p := &roundRobin{}
	want(t, "round-robin", []int{p.choose(pool(9, 9, 0)), p.choose(pool(9, 9, 0)), p.choose(pool(9, 9, 0)), p.choose(pool(9, 9, 0))}, []int{0, 1, 2, 0})
	// Weights 3 and 1: of four picks the second gets one, in the middle.
	w := &weightedRoundRobin{func(slot int) float64 { return []float64{3, 1}[slot] }, map[int]float64{}}
	want(t, "weighted-round-robin", []int{w.choose(pool(0, 0)), w.choose(pool(0, 0)), w.choose(pool(0, 0)), w.choose(pool(0, 0))}, []int{0, 0, 1, 0})
	// The most loaded of three is picked only where it is drawn twice.
	busiest := 0
	two := &p2c{source()}
	for range 900 {
		if two.choose(pool(5, 1, 0)) == 0 {
			busiest++
		}
	}
	if busiest < 70 || busiest > 130 {
		t.Errorf("p2c: the busiest of three has %d of 900, want about 100", busiest)
	}
}

func TestHashRules(t *testing.T) {
	header, url := &hashed{}, &hashed{url: true}
	at := map[int]bool{}
	for session := range uint64(50) {
		in := pool(0, 0, 0, 0)
		in.req.Session = session
		at[header.choose(in)] = true
		want(t, "header-hash twice", picks(header, in, 5), []int{header.choose(in)})
		want(t, "url-hash", []int{url.choose(in)}, []int{url.choose(pool(0, 0, 0, 0))})
	}
	if len(at) != 4 {
		t.Errorf("header-hash: 50 sessions at %d of 4 endpoints", len(at))
	}
}

// An endpoint may have (total+1)/n · 1.25 requests: of 4 with 10 in all that is
// 3.4. The key's own has 4, so the next on the ring, with 2, is taken.
func TestCHWBL(t *testing.T) {
	p := &chwbl{keyBlocks: 64}
	own := p.choose(pool(0, 0, 0, 0))
	in := pool(2, 2, 2, 2)
	in.signals[own].InFlight = 4
	other := p.choose(in)
	if other == own {
		t.Errorf("stayed at %d with 4 in flight of at most 3.4", own)
	}
	in.signals[own].InFlight = 2
	want(t, "chwbl under its bound", []int{p.choose(in)}, []int{own})
	// smg's prefix_hash takes the least loaded instead of the next.
	least := (own + 1) % 4
	in.signals[own].InFlight, in.signals[least].InFlight = 9, 0
	want(t, "prefix-hash over its bound", []int{(&chwbl{keyBlocks: 64, leastOnOverload: true}).choose(in)}, []int{least})
}

func TestSGLang(t *testing.T) {
	p := newSGLang(0.5, 32, 1.1, false, wholeTree(1000, time.Minute))
	in := pool(0, 0, 0)
	want(t, "cold: least loaded, then least sent, then first", []int{p.choose(in), p.choose(in.prompt(9)), p.choose(in.prompt(10))}, []int{0, 1, 2})
	want(t, "match 8 of 8 units over 0.5", []int{p.choose(in.loads(30, 1, 2).prompt(1, 2, 3, 4, 5, 6, 7, 8))}, []int{0})
	want(t, "match 4 of 8 units is not over 0.5", []int{p.choose(in.loads(30, 2, 1).prompt(1, 2, 3, 4, 50, 60, 70, 80))}, []int{2})
	want(t, "33 − 0 > 32 and 33 > 1.1·0", []int{p.choose(in.loads(33, 1, 0).prompt(1, 2, 3, 4, 5, 6, 7, 8))}, []int{2})
	old := newSGLang(0.3, 64, 1.5, true, perEndpoint(1000*unitChars, time.Minute))
	old.choose(in.loads(0, 0, 0).prompt(1, 2, 3))
	want(t, "older releases: the smallest tree", []int{old.choose(in.loads(0, 9, 9).prompt(50, 60))}, []int{1})
}

// TestFullTreesSpread: every endpoint's part of the tree is full, of eight units.
// New prompts still go to where least was sent, one after the other, and a cut back
// comes once a minute: the first endpoint does not get them all.
func TestFullTreesSpread(t *testing.T) {
	p := newSGLang(0.3, 64, 1.5, true, perEndpoint(8*unitChars, time.Minute))
	in := pool(0, 0, 0)
	var got [3]int
	for n := range uint64(300) {
		in.now = time.Duration(n) * time.Second
		got[p.choose(in.prompt(100*n+1, 100*n+2, 100*n+3, 100*n+4))]++
		if n%60 == 0 && n > 0 {
			for i := range in.endpoints {
				if size := p.tree.size(epp.Slot(i)); size > 8 {
					t.Errorf("at %v endpoint %d has %d units after the cut back", in.now, i, size)
				}
			}
		}
	}
	for i, n := range got {
		if n < 90 || n > 110 {
			t.Errorf("endpoint %d has %d of 300", i, n)
		}
	}
}

// TestSharedBound: one bound over all slots forgets what was used longest ago,
// wherever it lies.
func TestSharedBound(t *testing.T) {
	s := wholeTree(1, time.Second) // 128 units
	names := func(from uint64, n int) (chain []uint64) {
		for i := range n * sglangUnit {
			chain = append(chain, from+uint64(i))
		}
		return chain
	}
	s.add(0, names(1_000, 100), 2*time.Second)
	s.add(1, names(5_000, 20), 3*time.Second)
	s.add(1, names(9_000, 20), 4*time.Second)
	if a, b := s.size(0), s.size(1); a != 88 || b != 40 {
		t.Errorf("%d and %d units, want 88 and 40", a, b)
	}
}

// Of 32 blocks, a holds 24 and has 640 prompt tokens on their way (40 blocks) and
// 10 blocks in use: max(40 + 32 − 24, 0) + 10 + 32 = 90. b holds none and has
// nothing: 32 + 32 = 64.
func TestDynamo(t *testing.T) {
	p := &dynamo{source(), map[int]map[uint64]int{0: {}}}
	for h := range uint64(10) {
		p.active[0][h] = 1
	}
	in := pool(1, 0)
	in.match = []uint32{24, 0}
	in.signals[0].InFlightTokens = 640
	want(t, "dynamo", []int{p.choose(in)}, []int{1})
	if got := len(p.active[1]); got != 32 {
		t.Errorf("b has %d active blocks, want 32", got)
	}
	p.ended(&sent{slot: 1, chain: in.chain})
	if got := len(p.active[1]); got != 0 {
		t.Errorf("b has %d active blocks after the end, want 0", got)
	}
	in.signals[0].InFlightTokens = 0 // 8 + 10 + 32 = 50 < 64
	want(t, "dynamo, prefill done", []int{p.choose(in)}, []int{0})
}

// prefix 3, queue 2, kv 2: a has the whole prompt, the longest queue and KV 0.5:
// 3 + 0 + 1 = 4. b has nothing at all: 0 + 2 + 2 = 4 less its KV use of 0.1 twice.
func TestLLMD(t *testing.T) {
	p := &llmd{rand: source(), prefix: 3, queue: 2, kv: 2, own: seen{unit: llmdUnit, most: llmdMaxUnits}}
	in := pool(0, 0)
	p.own.add(0, in.chain, 0)
	in.signals[0].Waiting.Value, in.signals[0].KVUsage.Value = 1, 0.5
	in.signals[1].KVUsage.Value = 0.1
	want(t, "llm-d", []int{p.choose(in)}, []int{0})
	in.signals[0].KVUsage.Value = 0.7 // 3.6 < 3.8: one waiting against none weighs as a hundred
	want(t, "llm-d", []int{p.choose(in)}, []int{1})
	if got := p.ratio(in, 1); got != 1 {
		t.Errorf("after its pick b has a ratio of %v, want 1", got)
	}
	precise := &llmd{rand: source(), prefix: 2, queue: 1, kv: 1, precise: true}
	in.match = []uint32{0, 16}
	if got := precise.ratio(in, 1); got != 0.5 {
		t.Errorf("precise: ratio %v, want 0.5", got)
	}
}

func TestAIBrix(t *testing.T) {
	p := &aibrix{source(), seen{unit: 1}}
	in := pool(4, 3, 3)
	p.table.add(0, in.chain, 0)
	if got := p.choose(in); got == 0 { // 4 is more than 3.33 + 0.47
		t.Error("picked the full match, which is over the limit")
	}
	p = &aibrix{source(), seen{unit: 1}}
	p.table.add(0, in.chain, 0)
	want(t, "a full match within mean + deviation", []int{p.choose(in.loads(3, 3, 3))}, []int{0})
	want(t, "more than 8 apart: only the fewest", []int{p.choose(in.loads(12, 6, 3))}, []int{2})
}

func TestPreble(t *testing.T) {
	w := &world{cfg: Config{Endpoints: 3}}
	w.rand = source()
	p := w.preble(false)
	in := pool(0, 0, 0)
	first := p.choose(in)
	want(t, "more cached than not: exploit", []int{p.choose(in.loads(0, 0, 0))}, []int{first})
	second := p.choose(in.prompt(20, 21))
	if second == first {
		t.Error("explored where the window has the most prefill")
	}
	guarded := w.preble(true)
	at := guarded.choose(in.prompt(1, 2, 3, 4))
	in.signals[at].InFlight = 9
	if got := guarded.choose(in); got == at {
		t.Error("aibrix-preble: stayed with 9 in flight against 0")
	}
}

func TestAffinity(t *testing.T) {
	s := &productionStack{source(), seen{unit: 2}}
	in := pool(0, 0, 0)
	first := s.choose(in)
	in.signals[first].InFlight = 1000
	want(t, "production-stack: the match, whatever the load", picks(s, in, 20), []int{first})

	r := &ray{source(), seen{unit: 4}}
	in = pool(0, 0, 0)
	first = r.choose(in)
	in.signals[first].InFlight = 10
	want(t, "ray: the match while queues are 10 apart", picks(r, in, 20), []int{first})
	in.signals[first].InFlight = 11
	if got := picks(r, in, 50); len(got) == 1 {
		t.Errorf("ray: only %v while queues are 11 apart", got)
	}
	fresh := pool(0, 0, 0).prompt(30, 31)
	if got := (&ray{source(), r.tree}).choose(fresh); r.tree.size(epp.Slot(got)) == 0 {
		t.Error("ray: what was sent is not remembered")
	}
}

// A memory of two units forgets the tail of a prompt before its head, and all of
// it after its time.
func TestSeenForgets(t *testing.T) {
	s := &seen{unit: 1, most: 2, ttl: 10}
	s.add(0, []uint64{1, 2, 3}, 0)
	if n, _ := s.match(0, []uint64{1, 2, 3}, 0); n != 2 {
		t.Errorf("matched %d of 3 blocks, want 2", n)
	}
	s.add(0, []uint64{1, 9}, 5)
	if n, _ := s.match(0, []uint64{1, 2}, 5); n != 1 {
		t.Errorf("matched %d, want 1: the oldest is gone", n)
	}
	if n, _ := s.match(0, []uint64{1, 9}, 16); n != 0 {
		t.Errorf("matched %d after the time, want 0", n)
	}
}

// made is another router's policy as a run of four endpoints has it.
func made(t *testing.T, name string) chooser {
	t.Helper()
	r, err := PolicyNamed(name).make(&world{cfg: Config{Endpoints: 4}, rand: source()})
	if err != nil {
		t.Fatal(err)
	}
	return r.(*baseline).policy
}

// TestPresets: the settings are those of the releases that the policies' help names.
func TestPresets(t *testing.T) {
	memory := func(s *seen) string {
		return fmt.Sprintf("unit %d most %d for %v every %v shared %v", s.unit, s.most, s.ttl, s.every, s.shared)
	}
	for _, c := range []struct{ name, want string }{
		{"chwbl", "key 64, least false"},
		{"chwbl-100", "key 2, least false"},
		{"prefix-hash", "key 16, least true"},
		{"sglang", "0.5 32 1.1 smallest false, unit 4 most 1280000 for 0s every 30s shared true"},
		{"sglang-0.3", "0.3 64 1.5 smallest true, unit 4 most 262144 for 0s every 1m0s shared false"},
		{"vllm-router", "0.3 64 1.5 smallest true, unit 4 most 131072 for 0s every 2m0s shared false"},
		{"llm-d", "3 2 2 precise false, unit 4 most 31250 for 0s every 0s shared false"},
		{"llm-d-precise", "2 1 1 precise true, unit 0 most 0 for 0s every 0s shared false"},
		{"aibrix", "unit 1 most 400000 for 20m0s every 0s shared false"},
		{"production-stack", "unit 2 most 0 for 0s every 0s shared false"},
		{"ray", "unit 4 most 0 for 0s every 0s shared false"},
		{"aibrix-preble", "guard true, window 3m0s, unit 4 most 6437 for 0s every 0s shared false"},
		{"preble", "guard false, window 3m0s, unit 4 most 6437 for 0s every 0s shared false"},
	} {
		var got string
		switch p := made(t, c.name).(type) {
		case *chwbl:
			got = fmt.Sprintf("key %d, least %v", p.keyBlocks, p.leastOnOverload)
		case *sglang:
			got = fmt.Sprintf("%v %v %v smallest %v, %s", p.threshold, p.abs, p.rel, p.smallestTree, memory(&p.tree))
		case *llmd:
			got = fmt.Sprintf("%v %v %v precise %v, %s", p.prefix, p.queue, p.kv, p.precise, memory(&p.own))
		case *aibrix:
			got = memory(&p.table)
		case *productionStack:
			got = memory(&p.trie)
		case *ray:
			got = memory(&p.tree)
		case *preble:
			got = fmt.Sprintf("guard %v, window %v, %s", p.guard, p.window.length, memory(&p.tree))
		}
		if got != c.want {
			t.Errorf("%s: %s, want %s", c.name, got, c.want)
		}
	}
}

// TestThresholds: each rule on either side of its bound.
func TestThresholds(t *testing.T) {
	// AIBrix: 8 apart the match with 4 in flight wins, 9 apart the fewest.
	a := &aibrix{source(), seen{unit: 1}}
	in := pool(3, 4, 11)
	a.table.add(1, in.chain, 0)
	want(t, "aibrix 8 apart", []int{a.choose(in)}, []int{1})
	want(t, "aibrix 9 apart", []int{a.choose(in.loads(3, 4, 12))}, []int{0})

	// Ray: 1 unit of 10 is a tenth, of 11 it is less.
	r := &ray{source(), seen{unit: 4}}
	in = pool(0, 0, 0).prompt(1)
	r.tree.add(0, in.chain, 0)
	want(t, "ray, a tenth matches", []int{r.pick(in.prompt(1, 2, 3, 4, 5, 6, 7, 8, 9, 10))}, []int{0})
	if got := r.pick(in.prompt(1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11)); got == 0 {
		t.Error("ray: went by a match of less than a tenth")
	}

	// KubeAI: with 15 in flight each of four may have 16/4 · 1.25 = 5, with 16 no 6.
	p := &chwbl{keyBlocks: 64}
	own := p.choose(pool(0, 0, 0, 0))
	if n := len(p.ring); n != 4*256 {
		t.Errorf("chwbl: %d places on the ring, want 256 of each", n)
	}
	in = pool(4, 4, 4, 4)
	in.signals[own].InFlight, in.signals[(own+1)%4].InFlight = 5, 2
	want(t, "chwbl at its bound", []int{p.choose(in)}, []int{own})
	in.signals[own].InFlight = 6
	if p.choose(in) == own {
		t.Error("chwbl: stayed with 6 in flight of at most 5.3")
	}

	// llm-d looks at 131,072 tokens of a prompt.
	l := made(t, "llm-d").(*llmd)
	in = pool(0)
	in.chain = nil
	for i := range uint64(131_072/blockTokens + 64) {
		in.chain = append(in.chain, i+1)
	}
	l.choose(in)
	if n := l.own.size(0); n != 131_072/64 {
		t.Errorf("llm-d: %d units remembered, want 2048", n)
	}
}

// TestPrebleCosts: nine seconds of prefill within three minutes and two requests in
// flight cost 9/0.9 + 2·45·0.15 = 23.5 s by AIBrix; the window forgets at its end.
func TestPrebleCosts(t *testing.T) {
	guarded, in := made(t, "aibrix-preble").(*preble), pool(2, 0, 0)
	guarded.window.add(0, 0, 9)
	in.now = 3 * time.Minute
	if got := guarded.cost(in, 0, 0); math.Abs(got-23.5) > 1e-9 {
		t.Errorf("aibrix-preble: cost %v, want 23.5", got)
	}
	in.now++
	if got := guarded.cost(in, 0, 0); math.Abs(got-13.5) > 1e-9 {
		t.Errorf("aibrix-preble: cost %v after the window, want 13.5", got)
	}
	// Preble's own has 45 steps of 45 ms for each request, and the prompt's prefill.
	p := made(t, "preble").(*preble)
	in.now = 0
	p.window.add(0, 0, 9)
	if got, want := p.cost(in, 0, 0), 9+2*2.025+p.prefill(len(in.tokens)); math.Abs(got-want) > 1e-9 {
		t.Errorf("preble: cost %v, want %v", got, want)
	}
	// A cache that is full gives up as much as the prompt brings.
	p.holds = 0
	if got, want := p.cost(in, 0, 0), 9+2*2.025+2*p.prefill(len(in.tokens)); math.Abs(got-want) > 1e-9 {
		t.Errorf("preble, full: cost %v, want %v", got, want)
	}
}

// TestPrebleMovesLoad: after 50 requests for each endpoint, and no sooner, what would
// go to the heaviest goes to the lightest, where it has more than 1.5 times the load.
func TestPrebleMovesLoad(t *testing.T) {
	for _, c := range []struct {
		count int
		heavy float64
		want  int
	}{{149, 1.51, 1}, {149, 1.5, 0}, {148, 1.51, 0}} {
		p, in := made(t, "preble").(*preble), pool(0, 0, 0)
		p.count = c.count
		for slot, load := range []float64{c.heavy, 1, 1.2} {
			p.window.add(slot, 0, load)
		}
		if got := p.redirect(in, 0); got != c.want {
			t.Errorf("%+v: goes to %d", c, got)
		}
	}
}
