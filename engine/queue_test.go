package engine

import (
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// A queue gives what a slice gives, also where so many leave it that its ring is full
// of gaps, and where its turns begin again at 0.
func TestQueueIsASlice(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const n = 6
		q := newQueue(n)
		q.head = rapid.SampledFrom([]uint32{0, 5, 1<<32 - 9}).Draw(t, "head")
		q.tail = q.head
		var twin []int32
		for range rapid.IntRange(1, 120).Draw(t, "steps") {
			b := rapid.Int32Range(1, n-1).Draw(t, "block")
			i := slices.Index(twin, b)
			switch {
			case i < 0:
				q.put(b)
				twin = append(twin, b)
			case rapid.IntRange(0, 3).Draw(t, "take") > 0:
				q.leave(b)
				twin = slices.Delete(twin, i, i+1)
			default:
				if got := q.take(); got != twin[0] {
					t.Fatalf("took %d, want the first of %v", got, twin)
				}
				twin = twin[1:]
			}
		}
		for _, want := range twin {
			if got := q.take(); got != want {
				t.Fatalf("took %d, want %d", got, want)
			}
		}
	})
}
