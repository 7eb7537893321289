package kvevents

import (
	"math"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// An engine whose clock is hours off: what it did is told on our clock, never
// earlier than it was, and later by no more than the quickest batch took.
func TestClockTellsOurTime(t *testing.T) {
	ours := time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)
	rapid.Check(t, func(t *rapid.T) {
		var c clock
		off := time.Duration(rapid.Int64Range(-int64(100*time.Hour), int64(100*time.Hour)).Draw(t, "off"))
		quickest := time.Duration(math.MaxInt64)
		now := ours
		for range rapid.IntRange(1, 30).Draw(t, "batches") {
			now = now.Add(time.Duration(rapid.Int64Range(0, int64(time.Second)).Draw(t, "pass")))
			took := time.Duration(rapid.Int64Range(0, int64(2*time.Second)).Draw(t, "took"))
			happened := now.Add(-took)
			quickest = min(quickest, took)
			at := c.at(now, float64(happened.Add(off).UnixNano())/1e9)
			early := quickest + 2*time.Second*30/1024 // what is taken back of it
			if d := at.Sub(happened); d < -time.Microsecond || d > early+time.Microsecond {
				t.Fatalf("told %v after it happened; the quickest batch took %v", d, quickest)
			}
		}
	})
}

func TestClockWithoutTimes(t *testing.T) {
	var c clock
	for _, ts := range []float64{0, -1, math.NaN(), math.Inf(1), 1e300} {
		if at := c.at(time.Now(), ts); !at.IsZero() {
			t.Errorf("%v is told as %v", ts, at)
		}
	}
}
