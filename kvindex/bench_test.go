package kvindex

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"testing"
	"time"

	"epp.internal/epp"
	"epp.internal/epp/block"
)

const (
	benchKey    = block.Key(0xFEEDFACECAFE)
	benchBlocks = 256  // in a chain
	benchChains = 3906 // 1 million blocks
	benchTokens = 16
	benchEvent  = 16 // blocks
)

// benchPrompt is chain number n, in tokens.
func benchPrompt(n int) []uint32 {
	rng := rand.New(rand.NewPCG(1, uint64(n)))
	tokens := make([]uint32, benchBlocks*benchTokens)
	for i := range tokens {
		tokens[i] = rng.Uint32N(150_000)
	}
	return tokens
}

// benchEvents are the events that store a prompt, in pieces; engine hashes are
// random, as cryptographic ones look.
func benchEvents(n int) []epp.BlockEvent {
	rng := rand.New(rand.NewPCG(2, uint64(n)))
	tokens := benchPrompt(n)
	var events []epp.BlockEvent
	var parent uint64
	for i := 0; i < benchBlocks; i += benchEvent {
		e := epp.BlockEvent{Kind: epp.BlockStored, BlockTokens: benchTokens, Tier: "GPU",
			Parent: parent, HasParent: i > 0, Tokens: tokens[i*benchTokens : (i+benchEvent)*benchTokens]}
		for range benchEvent {
			e.Hashes = append(e.Hashes, rng.Uint64())
		}
		parent = e.Hashes[benchEvent-1]
		events = append(events, e)
	}
	return events
}

// removals removes what events stored, last block first, as engines do.
func removals(events []epp.BlockEvent) []epp.BlockEvent {
	var out []epp.BlockEvent
	for _, e := range slices.Backward(events) {
		hashes := slices.Clone(e.Hashes)
		slices.Reverse(hashes)
		out = append(out, epp.BlockEvent{Kind: epp.BlockRemoved, Hashes: hashes, Tier: e.Tier})
	}
	return out
}

func benchChain(n int) []uint64 {
	root := benchKey.Root(block.Root{BlockTokens: benchTokens})
	return block.AppendChain(nil, root, benchPrompt(n), benchTokens)
}

// benchIndex holds chains prompts, each on holders of endpoints endpoints.
func benchIndex(chains, holders, endpoints int) (*Index, []*Writer) {
	x := New(Options{Key: benchKey, MaxBytes: 8 << 30, MaxEndpointShare: 1})
	writers := make([]*Writer, endpoints)
	for i := range writers {
		writers[i] = x.Endpoint(epp.Slot(i))
	}
	rng := rand.New(rand.NewPCG(3, 3))
	for n := range chains {
		events := benchEvents(n)
		for _, i := range rng.Perm(endpoints)[:holders] {
			writers[i].Apply(time.Unix(1, 0), events)
		}
	}
	return x, writers
}

// BenchmarkMatch looks 256 blocks up in a tree of a million, another chain each
// time: BUDGETS rows 2a to 2c.
func BenchmarkMatch(b *testing.B) {
	for _, c := range []struct {
		name                       string
		chains, holders, endpoints int
	}{{"4of32", benchChains, 4, 32}, {"all32", benchChains, 32, 32}, {"all256", 400, 256, 256}} {
		x, _ := benchIndex(c.chains, c.holders, c.endpoints)
		chains := make([][]uint64, 64)
		for i := range chains {
			chains[i] = benchChain(i * c.chains / len(chains))
		}
		out := make([]uint32, c.endpoints)
		b.Run(c.name, func(b *testing.B) {
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				if x.Match(chains[i%len(chains)], out) != benchBlocks {
					b.Fatal("not all blocks found")
				}
			}
		})
		b.Run(c.name+"/unknown", func(b *testing.B) {
			unknown := benchChain(1 << 20)
			b.ReportAllocs()
			for b.Loop() {
				x.Match(unknown, out)
			}
		})
	}
}

// BenchmarkStoreRemove stores chains in events of 16 blocks and removes them
// again, in a tree of a million blocks: BUDGETS row 3.
func BenchmarkStoreRemove(b *testing.B) {
	_, writers := benchIndex(benchChains, 1, 4)
	const chains = 200
	var stores, removes [][]epp.BlockEvent
	for n := range chains {
		e := benchEvents(1<<20 + n)
		stores, removes = append(stores, e), append(removes, removals(e))
	}
	var storing, removing time.Duration
	blocks := 0
	b.ReportAllocs()
	for b.Loop() {
		start := time.Now()
		for _, e := range stores {
			writers[0].Apply(time.Unix(2, 0), e)
		}
		mid := time.Now()
		for _, e := range removes {
			writers[0].Apply(time.Unix(2, 0), e)
		}
		storing += mid.Sub(start)
		removing += time.Since(mid)
		blocks += chains * benchBlocks
	}
	b.ReportMetric(float64(blocks)/storing.Seconds()/1e6, "Mstored/s")
	b.ReportMetric(float64(blocks)/removing.Seconds()/1e6, "Mremoved/s")
}

// BenchmarkBytes measures the bytes per block held by one and by four
// endpoints: BUDGETS row 4.
func BenchmarkBytes(b *testing.B) {
	for _, holders := range []int{1, 4} {
		b.Run(fmt.Sprint(holders), func(b *testing.B) {
			for b.Loop() {
				before := heap()
				x, _ := benchIndex(benchChains, holders, 4)
				used := heap() - before
				b.ReportMetric(float64(used)/float64(x.Nodes()), "heapB/block")
				b.ReportMetric(float64(x.Bytes())/float64(x.Nodes()), "countedB/block")
				runtime.KeepAlive(x)
			}
		})
	}
}

func heap() int {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int(m.HeapAlloc)
}

// BenchmarkMatchBesideWriter times single look-ups with no writer and with one
// that stores and removes at full speed, in the same run.
func BenchmarkMatchBesideWriter(b *testing.B) {
	x, writers := benchIndex(benchChains, 1, 4)
	chains := make([][]uint64, 64)
	for i := range chains {
		chains[i] = benchChain(i * benchChains / len(chains))
	}
	out := make([]uint32, 4)
	const rounds = 200_000
	times := make([]time.Duration, rounds)
	measure := func() (p50, p99 time.Duration) {
		for i := range times {
			start := time.Now()
			x.Match(chains[i%len(chains)], out)
			times[i] = time.Since(start)
		}
		slices.Sort(times)
		return times[rounds/2], times[rounds*99/100]
	}
	for b.Loop() {
		p50, p99 := measure()
		b.ReportMetric(float64(p50.Nanoseconds()), "idle-p50-ns")
		b.ReportMetric(float64(p99.Nanoseconds()), "idle-p99-ns")

		stop, stopped := make(chan struct{}), make(chan int)
		go func() {
			stores := benchEvents(1 << 20)
			removes := removals(stores)
			blocks := 0
			for {
				select {
				case <-stop:
					stopped <- blocks
					return
				default:
				}
				writers[0].Apply(time.Unix(2, 0), stores)
				writers[0].Apply(time.Unix(2, 0), removes)
				blocks += 2 * benchBlocks
			}
		}()
		start := time.Now()
		p50, p99 = measure()
		close(stop)
		b.ReportMetric(float64(p50.Nanoseconds()), "busy-p50-ns")
		b.ReportMetric(float64(p99.Nanoseconds()), "busy-p99-ns")
		b.ReportMetric(float64(<-stopped)/time.Since(start).Seconds()/1e6, "Mevents-blocks/s")
	}
}
