package picker

import (
	"sync/atomic"
	"testing"
	"time"

	"pgregory.net/rapid"

	"epp.internal/epp"
	"epp.internal/epp/kvindex"
)

// What is found stale is what a naive list finds: every pick after the removal, at
// that endpoint, of whose blocks the last ones are not there now, once. Beyond the bounds old
// picks may be missing, and nothing else.
func TestRecentAgainstNaive(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var r recent
		index := kvindex.New(kvindex.Options{})
		writers := []*kvindex.Writer{index.Endpoint(0), index.Endpoint(1)}
		type pick struct {
			at    time.Time
			slot  epp.Slot
			there bool // all of its blocks are
			gone  *atomic.Bool
		}
		var picks []pick
		now := time.Unix(1000, 0)
		long := rapid.SampledFrom([]int{3, 60_000}).Draw(t, "longest chain")
		total := 0
		for range rapid.IntRange(1, 40).Draw(t, "steps") {
			now = now.Add(time.Duration(rapid.IntRange(1, 2000).Draw(t, "pass")) * time.Millisecond)
			slot := epp.Slot(rapid.IntRange(0, 1).Draw(t, "slot"))
			if rapid.Bool().Draw(t, "a pick") {
				chain := make([]uint64, rapid.IntRange(1, long).Draw(t, "blocks"))
				for i := range chain {
					chain[i] = uint64(len(picks)+1)<<32 | uint64(i)
				}
				total += len(chain)
				kept := 0
				if long == 3 { // else storing takes longer than all the rest
					kept = len(chain) - rapid.SampledFrom([]int{0, 0, 1, len(chain)}).Draw(t, "blocks that are gone")
				}
				if kept > 0 {
					writers[slot].Apply(now, []epp.BlockEvent{{Kind: epp.BlockStored, Hashes: chain[:kept], Keys: chain[:kept], BlockTokens: 16, Tier: "GPU"}})
				}
				picks = append(picks, pick{now, slot, kept == len(chain), r.add(now, epp.Endpoint{Slot: slot, Generation: 1}, chain)})
				continue
			}
			at := now.Add(-time.Duration(rapid.IntRange(0, 5000).Draw(t, "ago")) * time.Millisecond)
			var before []bool
			for _, p := range picks {
				before = append(before, p.gone.Load())
			}
			n, found := r.removed(epp.Endpoint{Slot: slot, Generation: 1}, at, index), 0
			for i, p := range picks {
				counts := p.slot == slot && p.at.After(at) && !before[i] && !p.there
				if is := p.gone.Load() && !before[i]; is {
					found++
					if !counts {
						t.Fatalf("pick %d at %v was found for a removal at %v", i, p.at, at)
					}
				} else if counts && total < maxRecentHashes/2 {
					t.Fatalf("pick %d at %v was not found for a removal at %v", i, p.at, at)
				}
			}
			if n != found {
				t.Fatalf("%d are told, %d found", n, found)
			}
		}
		if len(r.hashes) > maxRecentHashes || len(r.picks) > 2*maxRecentPicks {
			t.Fatalf("%d hashes, %d picks are kept", len(r.hashes), len(r.picks))
		}
	})
}

// TestRecentIsBounded: more picks than there is room for, and the latest is known.
func TestRecentIsBounded(t *testing.T) {
	var r recent
	index := kvindex.New(kvindex.Options{})
	e := epp.Endpoint{Slot: 3, Generation: 1}
	now := time.Unix(1000, 0)
	for range 3 * maxRecentPicks {
		now = now.Add(time.Microsecond)
		r.add(now, e, make([]uint64, 200))
	}
	if len(r.picks)-r.first > maxRecentPicks || len(r.picks) > 2*maxRecentPicks || len(r.hashes) > maxRecentHashes {
		t.Errorf("%d picks from %d on, %d hashes", len(r.picks), r.first, len(r.hashes))
	}
	if n := r.removed(e, now.Add(-10*time.Microsecond), index); n != 10 {
		t.Errorf("%d of the latest 10 picks are found", n)
	}
	if n := r.removed(epp.Endpoint{Slot: 3, Generation: 2}, time.Unix(0, 0), index); n != 0 {
		t.Errorf("%d picks of the slot's former endpoint are held against the new one", n)
	}
}
