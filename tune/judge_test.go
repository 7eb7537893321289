package tune

import (
	"math"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"epp.internal/epp/sim"
)

// TestObjective: of 1 to 100 s the mean is 50.5 s, and a fiftieth of the p99 is 2.
func TestObjective(t *testing.T) {
	var values []float64
	for i := range 100 {
		values = append(values, float64(100-i))
	}
	if got := objective(values); math.Abs(got-52.5) > 1e-9 {
		t.Errorf("objective %v, want 52.5", got)
	}
	if got := objectiveOf([]sim.Outcome{{Failed: true}}); math.Abs(got-61.2) > 1e-9 {
		t.Errorf("a failed request alone: %v, want 61.2", got)
	}
}

// TestIntervalIsOfMinutes: requests of one minute share their fate. An interval of a
// mean over 100 minutes of 60 requests is as wide as one over 100 values, and not as
// one over 6,000, which would be an eighth of that.
func TestIntervalIsOfMinutes(t *testing.T) {
	random := rand.New(rand.NewPCG(3, 4))
	var current, other []sim.Outcome
	var mean, squares float64
	const minutes = 100
	for m := range minutes {
		d := random.NormFloat64() / 10
		mean += d / minutes
		squares += d * d / minutes
		for s := range 60 {
			at := time.Duration(m)*time.Minute + time.Duration(s)*time.Second
			current = append(current, sim.Outcome{At: at, TTFT: time.Second})
			other = append(other, sim.Outcome{At: at, TTFT: time.Duration((1 + d) * float64(time.Second))})
		}
	}
	c := compare(current, other, 1)
	want := 2 * 1.96 * math.Sqrt((squares-mean*mean)/minutes)
	if got := c.High - c.Low; c.Blocks != minutes || got < 0.8*want || got > 1.25*want {
		t.Errorf("%d blocks, interval %v to %v: %v wide, want about %v", c.Blocks, c.Low, c.High, got, want)
	}
}

// TestFaults: each reason to keep, on either side of its bound.
func TestFaults(t *testing.T) {
	for _, c := range []struct {
		change func(c *Comparison)
		want   string
	}{
		{func(*Comparison) {}, ""},
		{func(c *Comparison) { c.Blocks = 7 }, "only 7 minutes to compare: want 8"},
		{func(c *Comparison) { c.OtherSummary.Failed = 4 }, "4 requests fail in place of 3"},
		{func(c *Comparison) { c.High = 0 }, "no gain is proved"},
		{func(c *Comparison) { c.Other = 0.981 }, "the gain of 1.9 % is below"},
		{func(c *Comparison) { c.OtherSummary.P99E2E = 10_201 * time.Millisecond }, "the slowest hundredth of answers takes 10.201s in place of 10s"},
	} {
		proved := Comparison{
			Blocks: 8, Current: 1, Other: 0.979, Low: -0.03, High: -0.001,
			CurrentSummary: sim.Summary{Failed: 3, P99E2E: 10 * time.Second},
			OtherSummary:   sim.Summary{Failed: 3, P99E2E: 10_200 * time.Millisecond},
		}
		c.change(&proved)
		if got := proved.fault(); c.want == "" && got != "" || !strings.Contains(got, c.want) {
			t.Errorf("fault %q, want %q", got, c.want)
		}
	}
}
