package tune

import (
	"fmt"
	"slices"

	"epp.internal/epp/decision"
	"epp.internal/epp/trace"
)

// The search: all ways to share out the weight that may move in so many parts, and
// then steps from the best of them.
const (
	gridParts      = 6 // 28 points for three scorers
	gridPartsOfMay = 5 // 56 for four
	step           = 0.05
	// mostSteps bounds the walk: the whole simplex is not wider.
	mostSteps = 20
)

// search finds the best weights on the first part.
func (t *tuning) search(p part) error {
	s := &searcher{t: t, part: p, cost: map[string]float64{}}
	s.scorers()
	points := append([][]float64{s.values(t.Current.Weights)}, s.grid()...)
	if err := s.try(points); err != nil {
		return err
	}
	best := s.best(points)
	for range mostSteps {
		next := s.neighbours(best)
		if err := s.try(next); err != nil {
			return err
		}
		if n := s.best(append(next, best)); slices.Equal(n, best) {
			break
		} else {
			best = n
		}
	}
	r := t.report
	r.Best = s.weights(best)
	r.Proposed = s.weights(s.toward(best))
	r.Points = len(s.cost)
	for _, c := range s.cost {
		if c <= s.cost[key(best)]*(1+SimulatorError) {
			r.Flat++
		}
	}
	var err error
	r.Train, err = t.compare("search", t.Sim, p, r.Best)
	return err
}

// searcher tries weights on one part. A point has a value for each scorer of free.
type searcher struct {
	t    *tuning
	part part
	free []string // the scorers that the trace can tell apart
	rest float64  // the sum of their weights
	cost map[string]float64
}

// scorers finds what can be judged: a trace shows no health, and adapters only
// where requests name some.
func (s *searcher) scorers() {
	s.free = []string{decision.CacheScorer, decision.LoadScorer, decision.QueueScorer}
	adapters := slices.ContainsFunc(s.part.trace.Requests, func(r trace.Request) bool { return r.Adapter != "" })
	if adapters {
		s.free = append(s.free, decision.AdapterScorer)
	}
	for _, w := range s.t.Current.Weights {
		if slices.Contains(s.free, w.Name) {
			s.rest += w.Value
		} else {
			s.t.report.Held = append(s.t.report.Held, w.Name)
		}
	}
}

func key(point []float64) string { return fmt.Sprintf("%.6f", point) }

// values is the point of weights.
func (s *searcher) values(weights []decision.Weight) []float64 {
	point := make([]float64, len(s.free))
	for _, w := range weights {
		if i := slices.Index(s.free, w.Name); i >= 0 {
			point[i] = w.Value
		}
	}
	return point
}

// weights is the current weights with the point's in their places.
func (s *searcher) weights(point []float64) []decision.Weight {
	out := slices.Clone(s.t.Current.Weights)
	for i, name := range s.free {
		k := slices.IndexFunc(out, func(w decision.Weight) bool { return w.Name == name })
		if k < 0 {
			k = len(out)
			out = append(out, decision.Weight{Name: name})
		}
		out[k].Value = point[i]
	}
	return out
}

// grid is every way to share out rest in equal parts.
func (s *searcher) grid() (points [][]float64) {
	parts := gridParts
	if len(s.free) > 3 {
		parts = gridPartsOfMay
	}
	var share func(point []float64, left int)
	share = func(point []float64, left int) {
		if len(point) == len(s.free)-1 {
			points = append(points, append(slices.Clone(point), s.rest*float64(left)/float64(parts)))
			return
		}
		for n := 0; n <= left; n++ {
			share(append(point, s.rest*float64(n)/float64(parts)), left-n)
		}
	}
	share(make([]float64, 0, len(s.free)), parts)
	return points
}

// neighbours moves a step of weight from one scorer to another, all ways.
func (s *searcher) neighbours(point []float64) (points [][]float64) {
	for from := range point {
		for to := range point {
			move := min(step, point[from])
			if from == to || move < step/10 {
				continue
			}
			next := slices.Clone(point)
			next[from] -= move
			next[to] += move
			points = append(points, next)
		}
	}
	return points
}

// toward goes from the current weights to the point as far as is allowed.
func (s *searcher) toward(point []float64) []float64 {
	out := s.values(s.t.Current.Weights)
	farthest := 0.0
	for i := range out {
		farthest = max(farthest, point[i]-out[i], out[i]-point[i])
	}
	if farthest <= s.t.MaxMove {
		return point
	}
	for i := range out {
		out[i] += (point[i] - out[i]) * (s.t.MaxMove / farthest)
	}
	return out
}

// try runs the points that were not run yet.
func (s *searcher) try(points [][]float64) error {
	var fresh [][]float64
	for _, p := range points {
		if _, known := s.cost[key(p)]; !known && !slices.ContainsFunc(fresh, func(f []float64) bool { return key(f) == key(p) }) {
			fresh = append(fresh, p)
		}
	}
	costs := make([]float64, len(fresh))
	err := each(len(fresh), func(i int) error {
		outcomes, err := s.t.outcomes("search", s.t.Sim, s.part, s.weights(fresh[i]))
		if err == nil {
			costs[i] = objectiveOf(outcomes)
		}
		return err
	})
	for i, p := range fresh {
		s.cost[key(p)] = costs[i]
	}
	return err
}

// best is the cheapest of points, the first one where some are equal.
func (s *searcher) best(points [][]float64) []float64 {
	return slices.MinFunc(points, func(a, b []float64) int {
		switch x, y := s.cost[key(a)], s.cost[key(b)]; {
		case x < y:
			return -1
		case x > y:
			return 1
		}
		return 0
	})
}
