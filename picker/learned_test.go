package picker

import (
	"runtime"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"epp.internal/epp"
)

// What is learned is what a naive table says: for each endpoint the time until
// which each block counts. Below its bound nothing is forgotten early, and at its
// bound nothing is kept beyond it.
func TestLearnedAgainstNaive(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const ttl = 10 * time.Second
		most := rapid.SampledFrom([]int{8, 1000}).Draw(t, "bound")
		l := newLearned(&Options{Learn: true, LearnTTL: ttl, LearnBlocks: most})
		now := time.Unix(1000, 0)
		type block struct {
			slot epp.Slot
			hash uint64
		}
		until := map[block]time.Time{}
		generation := map[epp.Slot]uint32{}
		chains := rapid.SliceOfN(rapid.Uint64Range(1, 12), 0, 6)
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			now = now.Add(time.Duration(rapid.IntRange(0, 6).Draw(t, "pass")) * time.Second)
			slot := epp.Slot(rapid.IntRange(0, 2).Draw(t, "slot"))
			if rapid.IntRange(0, 9).Draw(t, "replaced") == 0 {
				generation[slot]++
				for b := range until {
					if b.slot == slot {
						delete(until, b)
					}
				}
			}
			chain := chains.Draw(t, "chain")
			slices.Sort(chain)
			chain = slices.Compact(chain)
			l.add(epp.Endpoint{Slot: slot, Generation: generation[slot]}, chain, now)
			for _, hash := range chain {
				until[block{slot, hash}] = now.Add(ttl)
			}
			asked := chains.Draw(t, "asked")
			got := make([]uint32, 3)
			l.match(asked, now, got)
			for s := range epp.Slot(3) {
				want := uint32(0)
				for _, hash := range asked {
					if !until[block{s, hash}].After(now) {
						break
					}
					want++
				}
				match, heard := []epp.Match{{}, {}, {}}, make([]epp.Match, 3)
				match[s].Blocks = got[s]
				l.former(epp.View{Endpoints: []epp.Endpoint{{Slot: s, Generation: generation[s]}}}, heard, match)
				got[s] = match[s].Blocks // 0 where nothing was learned yet of the slot's new endpoint
				if most == 1000 && got[s] != want || got[s] > want {
					t.Fatalf("slot %d matches %d of %v, want %d", s, got[s], asked, want)
				}
			}
			kept := 0
			for _, h := range l.blocks {
				kept += len(h)
			}
			if kept > most || len(l.queue)-l.head > most {
				t.Fatalf("%d blocks and %d lapses of %d", kept, len(l.queue)-l.head, most)
			}
		}
		now = now.Add(3 * ttl)
		l.match(nil, now, nil)
		l.match(nil, now, nil)
		if len(l.blocks) != 0 {
			t.Fatalf("%d blocks are left", len(l.blocks))
		}
	})
}

// TestCaseP2LearningIsBounded: a million prompts that nobody sends twice leave the
// memory at its bound, about 100 bytes for each block of an endpoint.
func TestCaseP2LearningIsBounded(t *testing.T) {
	const most, prompts, blocks = 1 << 16, 1_000_000, 1
	live := func() int64 {
		var m runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc)
	}
	before := live()
	l := newLearned(&Options{Learn: true, LearnTTL: time.Hour, LearnBlocks: most})
	chain := make([]uint64, blocks)
	for i := range prompts {
		for k := range chain {
			chain[k] = uint64(i*blocks+k)*0x9e3779b97f4a7c15 + 1
		}
		l.add(epp.Endpoint{Slot: epp.Slot(i % 8), Generation: 1}, chain, time.Unix(int64(i/1000), 0))
	}
	if n := len(l.queue) - l.head; n != most || len(l.blocks) != most {
		t.Errorf("%d blocks to forget, %d known, want %d", n, len(l.blocks), most)
	}
	if grown := live() - before; grown > most*200 {
		t.Errorf("%d bytes a block", grown/most)
	}
	out := make([]uint32, 8)
	l.match(chain, time.Unix(1000, 0), out)
	if out[(prompts-1)%8] != blocks {
		t.Errorf("the latest prompt is not known: %v", out)
	}
	runtime.KeepAlive(l)
}
