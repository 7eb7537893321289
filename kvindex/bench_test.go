package kvindex

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"testing"
	"time"

	"epp.internal/epp"
	"epp.internal/epp/bench/workload"
	"epp.internal/epp/block"
)

const (
	benchKey    = block.Key(0xFEEDFACECAFE)
	benchChains = 3906 // 1 million blocks
)

func benchChain(n int) []uint64 {
	root := benchKey.Root(block.Root{BlockTokens: workload.BlockTokens})
	return block.AppendChain(nil, root, workload.Prompt(n), workload.BlockTokens)
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
		events := workload.Events(n)
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
				if x.Match(chains[i%len(chains)], out) != workload.ChainBlocks {
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

// BenchmarkMatchConversation looks up each prompt of the conversation trace, in a
// tree of all of them: BUDGETS row 2d.
func BenchmarkMatchConversation(b *testing.B) {
	x := New(Options{Key: benchKey})
	var writers [workload.ConversationEndpoints]*Writer
	for i := range writers {
		writers[i] = x.Endpoint(epp.Slot(i))
	}
	var chains [][]uint64
	root := benchKey.Root(block.Root{BlockTokens: workload.BlockTokens})
	blocks := 0
	for _, r := range workload.Conversation() {
		writers[r.Endpoint].Apply(time.Unix(1, 0), r.Events)
		chains = append(chains, block.AppendChain(nil, root, r.Tokens, workload.BlockTokens))
		blocks += len(r.Hashes)
	}
	out := make([]uint32, len(writers))
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		chain := chains[i%len(chains)]
		if x.Match(chain, out) != len(chain) {
			b.Fatal("not all blocks found")
		}
	}
	b.ReportMetric(float64(blocks)/float64(len(chains)), "blocks")
}

// BenchmarkStoreRemove stores chains in events of 16 blocks and removes them
// again, in a tree of a million blocks: BUDGETS row 3. It takes the time of each
// chain, so that a busy machine shows in few of them.
func BenchmarkStoreRemove(b *testing.B) {
	_, writers := benchIndex(benchChains, 1, 4)
	const chains = 200
	var stores, removes [][]epp.BlockEvent
	for n := range chains {
		e := workload.Events(1<<20 + n)
		stores, removes = append(stores, e), append(removes, workload.Removals(e))
	}
	var storing, removing []time.Duration
	b.ReportAllocs()
	for b.Loop() {
		for _, e := range stores {
			start := time.Now()
			writers[0].Apply(time.Unix(2, 0), e)
			storing = append(storing, time.Since(start))
		}
		for _, e := range removes {
			start := time.Now()
			writers[0].Apply(time.Unix(2, 0), e)
			removing = append(removing, time.Since(start))
		}
	}
	report := func(times []time.Duration, what string) {
		slices.Sort(times)
		for name, at := range map[string]int{"median": len(times) / 2, "best10th": len(times) / 10} {
			b.ReportMetric(workload.ChainBlocks/times[at].Seconds()/1e6, "M"+what+"/s-"+name)
		}
	}
	report(storing, "stored")
	report(removing, "removed")
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
			stores := workload.Events(1 << 20)
			removes := workload.Removals(stores)
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
				blocks += 2 * workload.ChainBlocks
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
