package engine

import (
	"testing"

	"pgregory.net/rapid"
)

// A lookup gives what a map gives, under any order of putting and removing, with
// hashes that fall onto few places.
func TestLookupIsAMap(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const n = 16
		l := newLookup(n)
		blocks := make([]cacheBlock, n)
		twin := map[uint64]int32{}
		hash := rapid.Custom(func(t *rapid.T) uint64 {
			return rapid.Uint64Range(0, 3).Draw(t, "home")<<62 | rapid.Uint64Range(0, 3).Draw(t, "tag")<<32 | rapid.Uint64Range(0, 2).Draw(t, "low")
		})
		var used [n]bool
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			h := hash.Draw(t, "hash")
			at := l.at(h, blocks)
			if b, ok := twin[h]; ok {
				l.remove(at)
				delete(twin, h)
				used[b] = false
			} else if len(twin) < n-1 {
				b := int32(1)
				for used[b] {
					b++
				}
				blocks[b].hash, used[b], twin[h] = h, true, b
				l.put(at, h, b)
			}
			if l.len != len(twin) {
				t.Fatalf("len = %d, want %d", l.len, len(twin))
			}
			for h, b := range twin {
				if got := l.find(h, blocks); got != b {
					t.Fatalf("find(%x) = %d, want %d", h, got, b)
				}
			}
		}
	})
}
