package decision

import (
	"fmt"
	"math"
)

// Why says in one line why the pick was chosen: what told it from the runner-up,
// or that nothing did. It is empty where nothing was chosen.
func (r *Record) Why() string {
	switch {
	case r.Chosen < 0:
		return ""
	case r.Degraded && r.RunnerUp < 0:
		return "every queue is full; the only endpoint within reach"
	case r.RunnerUp < 0:
		return "the only candidate" + r.shut()
	}
	won, next := &r.Candidates[r.Chosen], &r.Candidates[r.RunnerUp]
	prefix := ""
	if r.Degraded {
		prefix = "every queue is full; "
	}
	if r.Settings.Policy == Latency {
		return prefix + fmt.Sprintf("predicted cost %.2f s against %.2f s of %s", r.Predictions[r.Chosen].Cost, r.Predictions[r.RunnerUp].Cost, next.Name) + r.shut()
	}
	if math.Round((won.Sum-next.Sum)/Grid) == 0 {
		return prefix + r.tie(won, next) + r.shut()
	}
	name, gain := r.leading()
	text := fmt.Sprintf("%s %.2f against %.2f of %s: %+.3f, margin %.3f", name,
		r.Factor(r.Chosen, name), r.Factor(r.RunnerUp, name), next.Name, gain, won.Sum-next.Sum)
	if r.cold() {
		text = "no endpoint holds a block, the other factors decide: " + text
	}
	return prefix + text + r.shut()
}

// shut tells of the endpoint with the highest sum that the gate has left out, if
// it would have won.
func (r *Record) shut() string {
	best := r.Chosen
	for i := range r.Candidates {
		if c := &r.Candidates[i]; c.Excluded == Slow && c.Sum > r.Candidates[best].Sum {
			best = i
		}
	}
	if best == r.Chosen || r.Settings.Policy == Latency {
		return ""
	}
	return fmt.Sprintf("; %s has a higher sum and is left out, %.2f s slower than the pick", r.Candidates[best].Name,
		r.Predictions[best].Cost-r.Predictions[r.Chosen].Cost)
}

// Grid is the step on which two sums count as equal: far above the rounding of a
// sum of a few products, far below any difference that means something.
const Grid = 1e-9

// leading is the factor that brought the most of the margin over the runner-up.
func (r *Record) leading() (name string, gain float64) {
	gain = math.Inf(-1)
	for j, w := range r.Settings.Weights {
		if g := w.Value * (r.Score(r.Chosen, j).Value - r.Score(r.RunnerUp, j).Value); g > gain {
			name, gain = w.Name, g
		}
	}
	return name, gain
}

func (r *Record) tie(won, next *Candidate) string {
	switch {
	case won.Load != next.Load:
		return fmt.Sprintf("equal to %s, with less load", next.Name)
	case won.Queue != next.Queue:
		return fmt.Sprintf("equal to %s, with a shorter queue", next.Name)
	case r.cold():
		return fmt.Sprintf("no endpoint holds a block and %s is equal in all else; drawn by seed", next.Name)
	}
	return fmt.Sprintf("equal to %s in all; drawn by seed", next.Name)
}

// cold reports whether no endpoint of the pool holds any block of the prompt.
func (r *Record) cold() bool {
	for i := range r.Candidates {
		if r.Candidates[i].Match.Blocks > 0 {
			return false
		}
	}
	return true
}
