package tune

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"epp.internal/epp/sim"
)

// The objective, fixed before anything is looked at: the mean time to first token
// and a fiftieth of its p99, in seconds. Source: FRONTIER §6.
const (
	slowestShare = 0.02
	// failedSeconds is what a request counts that nobody served: as long as a client
	// waits. A guess, far above any answer's.
	failedSeconds = 60
)

// The bootstrap.
const (
	bootstrapBlock = time.Minute
	// fewestBlocks is how many blocks there must be for an interval to mean anything.
	fewestBlocks = 8
	resamples    = 1000
)

// Comparison is other weights against the current ones on the same requests.
type Comparison struct {
	Requests, Blocks int
	// Current and Other are the objective, in seconds.
	Current, Other float64
	// Low and High are the 95 % interval of Other − Current; 0 with too few Blocks.
	Low, High float64
	// What is reported beside it.
	CurrentSummary, OtherSummary sim.Summary
}

// Share is the difference as a share of Current: below 0 is a gain.
func (c *Comparison) Share() float64 {
	if c.Current == 0 {
		return 0
	}
	return (c.Other - c.Current) / c.Current
}

// fault says why the comparison does not prove the others to be better; empty: it
// does.
func (c *Comparison) fault() string {
	a, b := &c.CurrentSummary, &c.OtherSummary
	switch {
	case c.Blocks < fewestBlocks:
		return fmt.Sprintf("there are only %d minutes to compare: want %d", c.Blocks, fewestBlocks)
	case b.Failed > a.Failed:
		return fmt.Sprintf("%d requests fail in place of %d", b.Failed, a.Failed)
	case c.High >= 0:
		return fmt.Sprintf("no gain is proved: the difference is %+.4f s, between %+.4f and %+.4f", c.Other-c.Current, c.Low, c.High)
	case -c.Share() < SimulatorError:
		return fmt.Sprintf("the gain of %.1f %% is below what the simulator may be wrong by (%.0f %%)", -100*c.Share(), 100*SimulatorError)
	case float64(b.P99E2E) > (1+slowestMayGrow)*float64(a.P99E2E):
		return fmt.Sprintf("the slowest hundredth of answers takes %v in place of %v", b.P99E2E.Round(time.Millisecond), a.P99E2E.Round(time.Millisecond))
	}
	return ""
}

// seconds is what a request counts.
func seconds(o *sim.Outcome) float64 {
	if o.Failed {
		return failedSeconds
	}
	return o.TTFT.Seconds()
}

// objective is that of all values; it sorts them.
func objective(values []float64) float64 {
	slices.Sort(values)
	sum := 0.0
	for _, v := range values {
		sum += v
	}
	n := len(values)
	return sum/float64(n) + slowestShare*values[min(n-1, n*99/100)]
}

func objectiveOf(outcomes []sim.Outcome) float64 {
	values := make([]float64, len(outcomes))
	for i := range outcomes {
		values[i] = seconds(&outcomes[i])
	}
	return objective(values)
}

// compare compares two runs of the same requests, of which there is one at least.
func compare(current, other []sim.Outcome, seed uint64) *Comparison {
	c := &Comparison{
		Requests: len(current), Current: objectiveOf(current), Other: objectiveOf(other),
		CurrentSummary: sim.Summarize(current), OtherSummary: sim.Summarize(other),
	}
	var blocks [][2]int // from, to
	for from := 0; from < len(current); {
		end := current[from].At/bootstrapBlock*bootstrapBlock + bootstrapBlock
		to := from
		for to < len(current) && current[to].At < end {
			to++
		}
		blocks = append(blocks, [2]int{from, to})
		from = to
	}
	if c.Blocks = len(blocks); c.Blocks < fewestBlocks {
		return c
	}
	random := rand.New(rand.NewPCG(seed, 0x74756e65))
	differences := make([]float64, resamples)
	var a, b []float64
	for k := range differences {
		a, b = a[:0], b[:0]
		for range blocks {
			block := blocks[random.IntN(len(blocks))]
			for i := block[0]; i < block[1]; i++ {
				a, b = append(a, seconds(&current[i])), append(b, seconds(&other[i]))
			}
		}
		differences[k] = objective(b) - objective(a)
	}
	slices.Sort(differences)
	c.Low, c.High = differences[resamples*25/1000], differences[resamples*975/1000-1]
	return c
}
