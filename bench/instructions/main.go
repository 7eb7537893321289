// Command instructions does the work of one core benchmark a given number of
// times and nothing else, so that a simulator can count its instructions:
// bench/instructions.sh runs it twice and takes the difference. It prints how
// many allocations the work makes, each time. Without arguments it prints the
// names of the works.
//
//	instructions pick-64 1000
package main

import (
	"fmt"
	"maps"
	"os"
	"runtime"
	"slices"
	"strconv"
	"time"

	"epp.internal/epp"
	"epp.internal/epp/bench/workload"
	"epp.internal/epp/block"
	"epp.internal/epp/decision"
	"epp.internal/epp/kvindex"
	"epp.internal/epp/route"
)

const (
	key = block.Key(0xFEEDFACECAFE)
	// chains is how many there are beside those that are stored and looked up.
	chains = 40
)

// works are the core benchmarks: each makes ready and returns what is counted.
// Those that are short are done 30 times at once: what the runtime does besides
// is a few hundred thousand instructions a run.
var works = map[string]func() func(){
	"chain-256": func() func() { return thirty(chain()) },
	"pick-8":    func() func() { return thirty(pick(8)) },
	"pick-256":  func() func() { return pick(256) },
	"match-4":   func() func() { return thirty(match(4)) },
	"match-32":  func() func() { return thirty(match(32)) },
	"store-256": store,
}

func thirty(work func()) func() {
	return func() {
		for range 30 {
			work()
		}
	}
}

func main() {
	if len(os.Args) == 1 {
		for _, name := range slices.Sorted(maps.Keys(works)) {
			fmt.Println(name)
		}
		return
	}
	if len(os.Args) != 3 || works[os.Args[1]] == nil {
		fmt.Fprintln(os.Stderr, "usage: instructions [WORK TIMES]")
		os.Exit(2)
	}
	times, err := strconv.Atoi(os.Args[2])
	if err != nil {
		fmt.Fprintln(os.Stderr, "instructions:", err)
		os.Exit(2)
	}
	work := works[os.Args[1]]()
	work() // what happens only the first time
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	for range times {
		work()
	}
	runtime.ReadMemStats(&after)
	fmt.Println((after.Mallocs - before.Mallocs) / uint64(max(1, times)))
}

func root() uint64 { return key.Root(block.Root{BlockTokens: workload.BlockTokens}) }

func chain() func() {
	tokens, dst := workload.Prompt(0), make([]uint64, 0, workload.ChainBlocks)
	return func() { dst = block.AppendChain(dst[:0], root(), tokens, workload.BlockTokens) }
}

func pick(n int) func() {
	policy, err := route.New(decision.Defaults())
	if err != nil {
		panic(err) // the defaults are valid
	}
	now := time.Unix(1_800_000_000, 0)
	in := &route.Input{Request: new(epp.Request), Now: now, BlockedTokens: 256}
	for i := range n {
		name := fmt.Sprintf("endpoint-%d", i)
		in.View.Endpoints = append(in.View.Endpoints, epp.Endpoint{Name: name, Address: name, Slot: epp.Slot(i)})
		in.View.Signals = append(in.View.Signals, epp.Signals{
			Health: 1, ReadAt: epp.InstantOf(now), Waiting: epp.Known(float64(i % 7)), Running: epp.Known(float64(i % 13)),
		})
		in.Match = append(in.Match, epp.Match{Blocks: uint32(i % 5), BlockTokens: workload.BlockTokens})
	}
	rec := new(decision.Record)
	return func() { _, _ = policy.Pick(in, 1, nil, rec) }
}

// filled holds chains on holders endpoints.
func filled(holders int) (*kvindex.Index, []*kvindex.Writer) {
	x := kvindex.New(kvindex.Options{Key: key})
	writers := make([]*kvindex.Writer, holders)
	for i := range writers {
		writers[i] = x.Endpoint(epp.Slot(i))
		for n := range chains {
			writers[i].Apply(time.Unix(1, 0), workload.Events(n))
		}
	}
	return x, writers
}

func match(holders int) func() {
	x, _ := filled(holders)
	asked := block.AppendChain(nil, root(), workload.Prompt(chains/2), workload.BlockTokens)
	out := make([]uint32, holders)
	return func() { x.Match(asked, out) }
}

func store() func() {
	_, writers := filled(4)
	stores := workload.Events(chains)
	removes := workload.Removals(stores)
	return func() {
		writers[0].Apply(time.Unix(1, 0), stores)
		writers[0].Apply(time.Unix(1, 0), removes)
	}
}
