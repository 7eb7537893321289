package sim

import (
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
