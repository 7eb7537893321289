package main

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/cespare/xxhash/v2"

	"epp.internal/epp"
	"epp.internal/epp/bench/workload"
	"epp.internal/epp/block"
	"epp.internal/epp/decision"
	"epp.internal/epp/kvindex"
	"epp.internal/epp/route"
)

const key = block.Key(0xFEEDFACECAFE)

var root = key.Root(block.Root{BlockTokens: workload.BlockTokens})

func chainOf(tokens []uint32) []uint64 {
	return block.AppendChain(nil, root, tokens, workload.BlockTokens)
}

// hashing is row 1. The floor is the library's Sum64 over parent and tokens.
func hashing() []figure {
	tokens, dst := workload.Prompt(0), make([]uint64, 0, workload.ChainBlocks)
	ours := micros(2000, 10, func(int) { dst = block.AppendChain(dst[:0], root, tokens, workload.BlockTokens) })
	var b [8 + workload.BlockTokens*4]byte
	library := micros(2000, 10, func(int) {
		parent := root
		for i := 0; i < len(tokens); i += workload.BlockTokens {
			binary.LittleEndian.PutUint64(b[:], parent)
			for j, t := range tokens[i : i+workload.BlockTokens] {
				binary.LittleEndian.PutUint32(b[8+4*j:], t)
			}
			parent = xxhash.Sum64(b[:])
		}
	})
	return []figure{{row: "1", work: "hash 4,096 tokens to 256 chained blocks; floor: the library's Sum64", unit: "µs", ours: ours, floor: library,
		budget: 4, share: 4 / 4.9}}
}

// picking is row 5. The twin rates in a column for each scorer, then sums, then
// sorts; the floor copies what a record holds.
func picking() []figure {
	var out []figure
	for n, budget := range map[int]float64{8: 0.7, 64: 2.5, 256: 8, 1024: 30} {
		policy, err := route.New(decision.Defaults())
		if err != nil {
			panic(err) // the defaults are valid
		}
		in, rec := pool(n), new(decision.Record)
		passes := 300_000/n + 500
		f := figure{row: "5", work: fmt.Sprintf("filter, score, pick, record: %d endpoints", n), unit: "µs", budget: budget}
		f.ours = micros(passes, 10, func(i int) { _, _ = policy.Pick(in, uint64(i), nil, rec) })
		columns, order := make([]epp.Score, n), make([]float64, n)
		f.twin = micros(passes, 10, func(int) {
			clear(order)
			for j, w := range policy.Settings.Weights {
				route.Builtins[j].Scorer.Score(in, columns)
				for i := range columns {
					order[i] += w.Value * columns[i].Value
				}
			}
			slices.Sort(order)
		})
		from, to := rec.Clone(), rec.Clone()
		f.floor = micros(passes, 10, func(int) { copy(to.Candidates, from.Candidates) })
		out = append(out, f)
	}
	slices.SortFunc(out, func(a, b figure) int { return cmp.Compare(a.budget, b.budget) })
	return out
}

func pool(n int) *route.Input {
	now := time.Date(2026, 11, 29, 12, 0, 0, 0, time.UTC)
	in := &route.Input{Request: new(epp.Request), Now: now, BlockedTokens: 256}
	for i := range n {
		name := fmt.Sprintf("vllm-qwen3-8b-%d", i)
		in.View.Endpoints = append(in.View.Endpoints, epp.Endpoint{Name: name, Address: fmt.Sprintf("10.0.%d.%d:8000", i/256, i%256), Slot: epp.Slot(i)})
		in.View.Signals = append(in.View.Signals, epp.Signals{
			Health: 1, ReadAt: epp.InstantOf(now.Add(-time.Duration(i) * time.Millisecond)), Waiting: epp.Known(float64(i % 7)), Running: epp.Known(float64(i % 13)),
		})
		in.Match = append(in.Match, epp.Match{Blocks: uint32(i % 5), BlockTokens: workload.BlockTokens})
	}
	policy, _ := route.New(decision.Defaults())
	in.Settings = policy.Settings
	return in
}

// twin is the index as one would write it first: a map of endpoints per block.
type twin map[uint64]map[epp.Slot]struct{}

func (t twin) store(chain []uint64, slot epp.Slot) {
	for _, h := range chain {
		if t[h] == nil {
			t[h] = map[epp.Slot]struct{}{}
		}
		t[h][slot] = struct{}{}
	}
}

func (t twin) match(chain []uint64, out []uint32) {
	clear(out)
	for i, h := range chain {
		some := false
		for slot := range t[h] {
			if out[slot] == uint32(i) {
				out[slot]++
				some = true
			}
		}
		if !some {
			return
		}
	}
}

var conversationRequests = sync.OnceValue(workload.Conversation)

// stored is the first block that a request's events store.
func stored(r *workload.Request) int {
	n := len(r.Hashes)
	for i := range r.Events {
		n -= len(r.Events[i].Hashes)
	}
	return n
}

// tokensHash names the tokens of a block, wherever they stand.
func tokensHash(r *workload.Request, i int) uint64 {
	return block.Extend(0, r.Tokens[i*workload.BlockTokens:(i+1)*workload.BlockTokens])
}

// conversation is row 2d.
func conversation() []figure {
	x := kvindex.New(kvindex.Options{Key: key})
	t := twin{}
	var writers [workload.ConversationEndpoints]*kvindex.Writer
	for i := range writers {
		writers[i] = x.Endpoint(epp.Slot(i))
	}
	var chains [][]uint64
	blocks := 0
	for _, r := range conversationRequests() {
		writers[r.Endpoint].Apply(time.Unix(1, 0), r.Events)
		chain := chainOf(r.Tokens)
		t.store(chain, r.Endpoint)
		chains = append(chains, chain)
		blocks += len(chain)
	}
	out := make([]uint32, workload.ConversationEndpoints)
	return []figure{{
		row: "2d", peer: "2d", unit: "µs", share: 1,
		work: fmt.Sprintf("look-up in the conversation's tree of %d blocks, %d blocks each", x.Nodes(), blocks/len(chains)),
		ours: micros(60, len(chains), func(i int) { x.Match(chains[i], out) }),
		twin: micros(10, len(chains), func(i int) { t.match(chains[i], out) }),
	}}
}

// million is how many chains make a million blocks.
const million = 1_000_000 / workload.ChainBlocks

// index is rows 2a to 2c, 3 and 4.
func index() []figure {
	var out []figure
	for holders, budget := range map[int]float64{1: 80, 4: 120} {
		before := heap()
		x, _ := filled(million, holders, 4)
		out = append(out, figure{row: "4", peer: fmt.Sprintf("4bytes%d", holders), unit: "bytes",
			work: fmt.Sprintf("a block held by %d, of a million", holders), ours: float64(heap()-before) / float64(x.Nodes()), budget: budget})
		runtime.KeepAlive(x)
	}
	x, writers := filled(million, 4, 32)
	out = append(out, lookUp("2a", "256 blocks, tree of 1M, held by 4 of 32", x, million, 4, 32, 1.5, 1.5/1.9))
	unknown, slots := chainOf(workload.Prompt(1<<20)), make([]uint32, 32)
	out = append(out, figure{row: "2c", peer: "2c", unit: "µs", work: "the same, first block unknown", budget: 0.1, share: 0.1 / 0.09,
		ours: micros(2000, 64, func(int) { x.Match(unknown, slots) })})
	out = append(out, rates(writers[0])...)
	for _, n := range []int{32, 256} {
		x, _ := filled(400, n, n)
		out = append(out, lookUp("2b", fmt.Sprintf("256 blocks, tree of 100k, held by all of %d", n), x, 400, n, n, map[int]float64{32: 0.6, 256: 1.8}[n], map[int]float64{32: 0.6 / 0.5, 256: 1.8 / 2.0}[n]))
	}
	slices.SortStableFunc(out, func(a, b figure) int {
		switch {
		case a.row < b.row:
			return -1
		case a.row > b.row:
			return 1
		}
		return 0
	})
	return out
}

// filled is an index of chains, each on holders of the endpoints.
func filled(chains, holders, endpoints int) (*kvindex.Index, []*kvindex.Writer) {
	x := kvindex.New(kvindex.Options{Key: key, MaxBytes: 8 << 30, MaxEndpointShare: 1})
	writers := make([]*kvindex.Writer, endpoints)
	for i := range writers {
		writers[i] = x.Endpoint(epp.Slot(i))
	}
	rng := rand.New(rand.NewPCG(3, 3))
	for n := range chains {
		events := workload.Events(n)
		for _, i := range rng.Perm(endpoints)[:holders] {
			writers[i].Apply(time.Unix(1, 0), events)
		}
	}
	return x, writers
}

// lookUp measures look-ups of 64 chains of x, and of a twin with these alone. The
// floor reads as many hashes and compares them.
func lookUp(row, work string, x *kvindex.Index, chains, holders, endpoints int, budget, share float64) figure {
	asked, t := make([][]uint64, 64), twin{}
	for i := range asked {
		asked[i] = chainOf(workload.Prompt(i * chains / len(asked)))
		for s := range holders {
			t.store(asked[i], epp.Slot((i+s)%endpoints))
		}
	}
	slots := make([]uint32, endpoints)
	mirror, equal := slices.Clone(asked), 0
	for i := range mirror {
		mirror[i] = slices.Clone(mirror[i])
	}
	peer := row
	if row == "2b" {
		peer = fmt.Sprint(row, endpoints)
	}
	f := figure{row: row, peer: peer, unit: "µs", work: work, budget: budget, share: share,
		ours: micros(300, len(asked), func(i int) { x.Match(asked[i], slots) }),
		twin: micros(10, len(asked), func(i int) { t.match(asked[i], slots) }),
		floor: micros(300, len(asked), func(i int) {
			for k, h := range asked[i] {
				if mirror[i][k] == h {
					equal++
				}
			}
		}),
	}
	if equal == 0 {
		f.floor = math.NaN()
	}
	return f
}

// rates is row 3: chains stored and removed in events of 16 blocks, beside a
// million blocks. The twin stores hashes that are computed already.
func rates(w *kvindex.Writer) []figure {
	const chains, rounds = 200, 10
	var stores, removes [][]epp.BlockEvent
	for n := range chains {
		e := workload.Events(1<<20 + n)
		stores, removes = append(stores, e), append(removes, workload.Removals(e))
	}
	var storing, removing []time.Duration
	apply := func(events [][]epp.BlockEvent, times []time.Duration) []time.Duration {
		for _, e := range events {
			start := time.Now()
			w.Apply(time.Unix(2, 0), e)
			times = append(times, time.Since(start))
		}
		return times
	}
	for range rounds {
		storing = apply(stores, storing)
		removing = apply(removes, removing)
	}
	rate := func(times []time.Duration) float64 {
		slices.Sort(times)
		return workload.ChainBlocks / times[len(times)/10].Seconds() / 1e6
	}
	return []figure{
		{row: "3", peer: "3store", unit: "M/s", work: "blocks stored, events of 16, tokens hashed by us", ours: rate(storing), budget: 10, share: 10 / 10.3, atLeast: true},
		{row: "3", peer: "3remove", unit: "M/s", work: "blocks removed, events of 16", ours: rate(removing), budget: 10, share: 10 / 10.9, atLeast: true},
	}
}

func heap() int {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int(m.HeapAlloc)
}
