package picker

import (
	"runtime"
	"testing"
	"time"

	"pgregory.net/rapid"

	"epp.internal/epp"
	"epp.internal/epp/block"
	"epp.internal/epp/kvindex"
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
		type held struct {
			slot epp.Slot
			hash uint64
		}
		until := map[held]time.Time{}
		generation := map[epp.Slot]uint32{}
		words := rapid.SliceOfN(rapid.Uint32Range(1, 3), 0, 5)
		chain := func(name string) []uint64 {
			return block.AppendChain(nil, 1, words.Draw(t, name), 1)
		}
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
			added := chain("chain")
			l.add(epp.Endpoint{Slot: slot, Generation: generation[slot]}, added, now)
			for _, hash := range added {
				until[held{slot, hash}] = now.Add(ttl)
			}
			asked := chain("asked")
			got := make([]uint32, 3)
			l.match(asked, now, got)
			for s := range epp.Slot(3) {
				want := uint32(0)
				for _, hash := range asked {
					if !until[held{s, hash}].After(now) {
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
			if kept := l.index.Copies(); kept > most {
				t.Fatalf("%d blocks of %d", kept, most)
			}
		}
		l.match(nil, now.Add(ttl), nil)
		if kept := l.index.Copies(); kept != 0 {
			t.Fatalf("%d blocks are left", kept)
		}
	})
}

// An end that comes late, of an endpoint that has left, teaches nothing of the one
// that has its slot now.
func TestLearnedLate(t *testing.T) {
	l := newLearned(&Options{Learn: true, LearnTTL: time.Minute, LearnBlocks: 1 << 10})
	now, chain := time.Unix(1000, 0), []uint64{1, 2, 3}
	l.add(epp.Endpoint{Slot: 1, Generation: 7}, chain[:1], now)
	l.add(epp.Endpoint{Slot: 1, Generation: 6}, chain, now)
	out := make([]uint32, 2)
	if l.match(chain, now, out); out[1] != 1 {
		t.Errorf("the new endpoint is taken to hold %d blocks, want 1", out[1])
	}
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
	if n := l.index.Copies(); n > most || n < most/2 {
		t.Errorf("%d blocks known of at most %d", n, most)
	}
	if grown := live() - before; grown > kvindex.MinMaxBytes+most*learnBytes {
		t.Errorf("%d bytes a block", grown/most)
	}
	out := make([]uint32, 8)
	l.match(chain, time.Unix(1000, 0), out)
	if out[(prompts-1)%8] != blocks {
		t.Errorf("the latest prompt is not known: %v", out)
	}
	runtime.KeepAlive(l)
}

// BenchmarkLearn is what learning takes of a request of 256 blocks: the match, and
// what its first token teaches, which is known already.
func BenchmarkLearn(b *testing.B) {
	const chains, blocks = 512, 256
	l := newLearned(&Options{Learn: true, LearnTTL: time.Hour, LearnBlocks: DefaultLearnBlocks})
	now, out := time.Unix(1000, 0), make([]uint32, 8)
	var all [chains][]uint64
	for i := range all {
		all[i] = block.AppendChain(nil, uint64(i), make([]uint32, blocks), 1)
		l.add(epp.Endpoint{Slot: epp.Slot(i % 8)}, all[i], now)
	}
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		l.match(all[i%chains], now, out)
		l.add(epp.Endpoint{Slot: epp.Slot(i % 8)}, all[i%chains], now)
	}
}
