package engine

import (
	"slices"
	"testing"

	"epp.internal/epp"
	"pgregory.net/rapid"
)

// The tree of known blocks finds what a map from hashes to the blocks that have
// them finds, in whatever order blocks are stored and forgotten: also where a
// parent goes before its children, or is a copy.
func TestCacheIsAMap(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const n = 20
		c := newCache(n, 1, 0)
		twin := map[uint64][]int32{} // in the order they were stored
		hashOf := map[int32]uint64{}
		// A block's hash says its path: two bits each, below a leading 1.
		free := func() int32 {
			for b := int32(1); b < n; b++ {
				if _, used := hashOf[b]; !used {
					return b
				}
			}
			return nullBlock
		}
		known := func() []int32 {
			var list []int32
			for b := int32(1); b < n; b++ {
				if _, used := hashOf[b]; used {
					list = append(list, b)
				}
			}
			return list
		}
		for range rapid.IntRange(1, 80).Draw(t, "steps") {
			list := known()
			if b := free(); b != nullBlock && rapid.Bool().Draw(t, "store") {
				before, hash := int32(nullBlock), uint64(1)
				if len(list) > 0 && rapid.IntRange(0, 3).Draw(t, "deeper") > 0 {
					if before = rapid.SampledFrom(list).Draw(t, "before"); hashOf[before] < 1<<10 {
						hash = hashOf[before]
					} else {
						before = nullBlock
					}
				}
				hash = hash<<2 | rapid.Uint64Range(0, 2).Draw(t, "which")
				c.store(b, hash, before)
				hashOf[b], twin[hash] = hash, append(twin[hash], b)
			} else if len(list) > 0 {
				b := rapid.SampledFrom(list).Draw(t, "forget")
				h := hashOf[b]
				c.forget(b)
				delete(hashOf, b)
				if twin[h] = slices.DeleteFunc(twin[h], func(x int32) bool { return x == b }); len(twin[h]) == 0 {
					delete(twin, h)
				}
			}
			checkTree(t, c, twin, len(hashOf))
		}
	})
}

// checkTree looks every hash up behind the first block of its parent, where that is
// known.
func checkTree(t *rapid.T, c *cache, twin map[uint64][]int32, known int) {
	if c.known != known {
		t.Fatalf("%d blocks known, want %d", c.known, known)
	}
	orphans := 0
	for h, blocks := range twin {
		p := int32(nullBlock)
		if h>>2 != 1 {
			above := twin[h>>2]
			if c.blocks[blocks[0]].orphan {
				orphans++
			}
			if len(above) == 0 {
				continue
			}
			p = above[0]
		}
		if got := c.find(h, p); got != blocks[0] {
			t.Fatalf("find(%b) = %d, want the first of %v", h, got, blocks)
		}
		for _, b := range blocks {
			if c.first(b) != blocks[0] {
				t.Fatalf("first(%d) = %d, want %d", b, c.first(b), blocks[0])
			}
		}
	}
	if c.orphans != orphans {
		t.Fatalf("%d orphans, want %d", c.orphans, orphans)
	}
}

// Removals that are told together are the same removals in the same order.
func TestJoinRemovals(t *testing.T) {
	removed := func(join bool) (hashes []uint64, events int) {
		e := mustNew(t, Config{BlockTokens: 4, Blocks: 9, JoinRemovals: join})
		p := player{Engine: e, names: map[uint64]int{}}
		for i := range 3 {
			p.add(t, capturedRequest{Tokens: prompt(100*i, 24)})
			for at, ok := e.Next(); ok; at, ok = e.Next() {
				for _, ev := range e.Advance(at).Events {
					if ev.Kind == epp.BlockRemoved {
						hashes = append(hashes, ev.Hashes...)
						events++
					}
				}
			}
		}
		return hashes, events
	}
	apart, each := removed(false)
	joined, together := removed(true)
	if !slices.Equal(apart, joined) || each != len(apart) || together != 2 {
		t.Errorf("%d events of %x, joined %d of %x", each, apart, together, joined)
	}
}
