package decision_test

import (
	"fmt"
	"testing"
	"time"

	"pgregory.net/rapid"

	"epp.internal/epp/decision"
)

// fill puts a record of n candidates into the ring, the way a request does.
func fill(r *decision.Ring, id string, n int) uint64 {
	rec := r.New()
	rec.RequestID, rec.Settings = id, decision.Defaults()
	rec.Resize(n)
	return r.Put(rec)
}

// TestRingKeepsTheLatest: above its bytes the oldest leave, a request's end is
// found by its number while its record is kept, and is lost without harm after.
func TestRingKeepsTheLatest(t *testing.T) {
	r := decision.NewRing(64 << 10)
	first := fill(r, "first", 8)
	r.Finish(first, decision.End{Status: 200})
	if got := r.Find("first"); got == nil || got.End.Status != 200 {
		t.Fatalf("first: %+v", got)
	}
	for i := range 1000 {
		fill(r, fmt.Sprint(i), 8)
	}
	r.Finish(first, decision.End{Status: 500})
	if r.Find("first") != nil {
		t.Error("the oldest record is still there")
	}
	if r.Bytes() > 64<<10 || r.Len() < 10 {
		t.Errorf("%d records, %d bytes", r.Len(), r.Bytes())
	}
	latest := r.Latest(2)
	if latest[0].RequestID != "999" || latest[1].RequestID != "998" || latest[0].End.Status != 0 {
		t.Errorf("latest: %s, %s", latest[0].RequestID, latest[1].RequestID)
	}
}

// TestRingAgainstTwin puts records of many sizes and ends them in any order: the
// ring holds a suffix of what was put, within its bound unless it is one record,
// with the ends that came while it was held.
func TestRingAgainstTwin(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const bound = 100 << 10
		r := decision.NewRing(bound)
		ends := map[uint64]int{}
		var put uint64
		for range rapid.IntRange(1, 300).Draw(t, "steps") {
			seq := fill(r, fmt.Sprint(put), rapid.SampledFrom([]int{0, 1, 8, 64, 1024}).Draw(t, "candidates"))
			if seq != put {
				t.Fatalf("number %d, want %d", seq, put)
			}
			put++
			if end := rapid.Uint64Range(0, put+3).Draw(t, "ended"); end < put {
				r.Finish(end, decision.End{At: time.Unix(1, 0), Status: int(end) + 1})
				ends[end] = int(end) + 1
			} else {
				r.Finish(end, decision.End{Status: 1}) // a number that was never given
			}
		}
		if r.Bytes() > bound && r.Len() > 1 {
			t.Fatalf("%d bytes in %d records", r.Bytes(), r.Len())
		}
		for i, rec := range r.Latest(r.Len()) {
			id := put - 1 - uint64(i)
			if rec.RequestID != fmt.Sprint(id) {
				t.Fatalf("place %d: %s, want %d", i, rec.RequestID, id)
			}
			if rec.End.Status != 0 && rec.End.Status != ends[id] {
				t.Fatalf("record %d ended with %d, twin %d", id, rec.End.Status, ends[id])
			}
		}
	})
}

// TestFindIsACopy: what a reader was given does not change when its record's
// memory is used again.
func TestFindIsACopy(t *testing.T) {
	r := decision.NewRing(1)
	fill(r, "a", 3)
	got := r.Find("a")
	for range 200 {
		fill(r, "b", 3)
	}
	if got.RequestID != "a" || len(got.Candidates) != 3 {
		t.Errorf("%+v", got)
	}
}

// TestCachedTokens: an engine computes at least the last token, so a full hit
// of whole blocks saves one block less.
func TestCachedTokens(t *testing.T) {
	for _, c := range []struct{ blocks, size, prompt, want uint32 }{
		{0, 16, 100, 0},
		{3, 16, 100, 48},
		{6, 16, 100, 96},
		{8, 32, 256, 224}, // the whole prompt is held: the last block is computed again
		{8, 32, 257, 256},
		{1, 16, 16, 0},
		{0, 0, 40, 0},
		{9, 16, 40, 32}, // never more than the prompt
	} {
		cand := decision.Candidate{}
		cand.Match.Blocks, cand.Match.BlockTokens = c.blocks, c.size
		if got := cand.CachedTokens(int(c.prompt)); got != int(c.want) {
			t.Errorf("%d blocks of %d, prompt %d: %d, want %d", c.blocks, c.size, c.prompt, got, c.want)
		}
	}
}
