package kvindex

import (
	"testing"
	"time"

	"pgregory.net/rapid"

	"epp.internal/epp"
	"epp.internal/epp/block"
)

// With a time to live, an endpoint holds what it stored within that time, however
// often it stored it, removed a part of it or was cleared meanwhile.
func TestTTLAgainstNaive(t *testing.T) {
	const ttl = 8 * time.Second
	rapid.Check(t, func(t *rapid.T) {
		x := New(Options{Key: testKey, TTL: ttl})
		now := time.Unix(1000, 0)
		type held struct {
			slot   epp.Slot
			number uint64
			block  int
		}
		stored := map[held]time.Time{}
		writers := map[epp.Slot]*Writer{}
		for slot := range epp.Slot(3) {
			writers[slot] = x.Endpoint(slot)
		}
		for range rapid.IntRange(1, 40).Draw(t, "steps") {
			now = now.Add(time.Duration(rapid.IntRange(0, 4).Draw(t, "pass")) * time.Second)
			slot := epp.Slot(rapid.IntRange(0, 2).Draw(t, "slot"))
			number := rapid.Uint64Range(1, 3).Draw(t, "number")
			n := rapid.IntRange(1, 5).Draw(t, "blocks")
			switch rapid.IntRange(0, 9).Draw(t, "what") {
			case 0:
				writers[slot].Clear(now)
				for b := range stored {
					if b.slot == slot {
						delete(stored, b)
					}
				}
			case 1:
				writers[slot].Apply(now, []epp.BlockEvent{removeEvent(number, n)})
				for i := range n {
					delete(stored, held{slot, number, i})
				}
			default:
				writers[slot].Apply(now, []epp.BlockEvent{chainEvent(number, n)})
				for i := range n {
					stored[held{slot, number, i}] = now
				}
			}
			x.Advance(now)
			checkConsistent(t, x)
			for number := range uint64(4) {
				out := make([]uint32, 3)
				x.Match(chainOf(chainEvent(number, 5)), out)
				for slot, got := range out {
					want := 0
					for want < 5 && now.Sub(stored[held{epp.Slot(slot), number, want}]) < ttl {
						want++
					}
					if int(got) != want {
						t.Fatalf("slot %d matches %d blocks of chain %d, want %d", slot, got, number, want)
					}
				}
			}
		}
		if x.Advance(now.Add(ttl)); x.Copies() != 0 || x.Nodes() != 0 {
			t.Fatalf("%d copies of %d blocks are left", x.Copies(), x.Nodes())
		}
	})
}

// What is stored again and again, each time from its root, goes when the time to live
// is over since the last time, give or take a 32nd.
func TestTTLOfKeyedChains(t *testing.T) {
	const ttl, part = 320 * time.Second, 10 * time.Second
	rapid.Check(t, func(t *rapid.T) {
		x := New(Options{Key: testKey, TTL: ttl})
		now := time.Unix(1000, 0)
		stored := [2]map[uint64]time.Time{{}, {}}
		words := rapid.SliceOfN(rapid.Uint32Range(1, 2), 0, 6)
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			now = now.Add(time.Duration(rapid.IntRange(0, 100).Draw(t, "pass")) * time.Second)
			slot := rapid.IntRange(0, 1).Draw(t, "slot")
			chain := block.AppendChain(nil, 1, words.Draw(t, "chain"), 1)
			w := x.writers[epp.Slot(slot)]
			if w == nil {
				w = x.Endpoint(epp.Slot(slot))
			}
			w.Apply(now, []epp.BlockEvent{{Kind: epp.BlockStored, Hashes: chain, Keys: chain}})
			for _, hash := range chain {
				stored[slot][hash] = now
			}
			x.Advance(now)
			checkConsistent(t, x)
			asked, out := block.AppendChain(nil, 1, words.Draw(t, "asked"), 1), make([]uint32, 2)
			x.Match(asked, out)
			for slot, got := range out {
				within := func(age time.Duration) (n int) {
					for n < len(asked) && now.Sub(stored[slot][asked[n]]) < age {
						n++
					}
					return n
				}
				if least, most := within(ttl-part), within(ttl+part); int(got) < least || int(got) > most {
					t.Fatalf("slot %d matches %d blocks of %v, want %d to %d", slot, got, asked, least, most)
				}
			}
		}
	})
}

// A time to live that nobody stores in passes too: a step at a time, and no step
// takes longer than the others for it.
func TestTTLEndsInSteps(t *testing.T) {
	x := New(Options{Key: testKey, TTL: time.Minute})
	now := time.Unix(1000, 0)
	const chains, blocks = 1000, 64
	w := x.Endpoint(0)
	for n := range uint64(chains) {
		w.Apply(now, []epp.BlockEvent{chainEvent(n, blocks)})
	}
	now = now.Add(time.Minute)
	steps, most := 0, 0
	for former := x.Copies(); former > 0; former = x.Copies() {
		x.Advance(now)
		most = max(most, former-x.Copies())
		if steps++; steps > chains*blocks*3/sweepSteps+1 {
			t.Fatalf("%d copies are left after %d steps", x.Copies(), steps)
		}
	}
	if most > sweepSteps {
		t.Errorf("one step dropped %d copies, want at most %d", most, sweepSteps)
	}
	if s := x.Stats(); s.Lapsed != chains*blocks || w.Incomplete() {
		t.Errorf("%+v; incomplete %v", s, w.Incomplete())
	}
}

// MaxCopies bounds all endpoints together, and drops what was used longest ago.
func TestMaxCopies(t *testing.T) {
	const most = 1000
	x := New(Options{Key: testKey, MaxCopies: most})
	writers := []*Writer{x.Endpoint(0), x.Endpoint(1)}
	for n := range uint64(2000) {
		writers[n%2].Apply(time.Unix(int64(4000+n), 0), []epp.BlockEvent{chainEvent(n, 2)})
		if x.Copies() > most {
			t.Fatalf("%d copies, want at most %d", x.Copies(), most)
		}
	}
	checkConsistent(t, x)
	if n := x.Copies(); n < most/2 {
		t.Errorf("%d copies are left of %d", n, most)
	}
	out := make([]uint32, 4)
	if x.Match(chainOf(chainEvent(1999, 2)), out); out[1] != 2 {
		t.Errorf("the latest chain: %d blocks, want 2", out[1])
	}
}

// Figures are read while a writer has its turn: a page of metrics does not wait.
func TestFiguresWaitForNobody(t *testing.T) {
	x := New(Options{Key: testKey})
	w := x.Endpoint(0)
	w.Apply(time.Unix(1, 0), []epp.BlockEvent{chainEvent(1, 3)})
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.Nodes() != 3 || x.Copies() != 3 || x.Bytes() < x.slot || w.Blocks() != 3 || w.Incomplete() {
		t.Errorf("%d nodes, %d copies, %d bytes, %d blocks, incomplete %v", x.Nodes(), x.Copies(), x.Bytes(), w.Blocks(), w.Incomplete())
	}
	x.Advance(time.Unix(2, 0))
}
