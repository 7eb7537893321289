package route

import (
	"math"
	"slices"

	"epp.internal/epp"
	"epp.internal/epp/decision"
)

// HealthCutoff is the health under which an endpoint gets no request. Source:
// the article, section 7.
const HealthCutoff = 0.3

// Policy is a validated way to decide: settings and the scorers they name. It
// does not change; any number of goroutines may use it.
type Policy struct {
	Settings *decision.Settings
	scorers  []Scorer // one for each of Settings.Weights
}

// New returns the policy of the settings, or every fault that they have.
func New(s *decision.Settings) (*Policy, error) {
	if err := s.Validate(); err != nil {
		return nil, err
	}
	p := &Policy{Settings: s}
	for _, w := range s.Weights {
		sc, err := builtin(w.Name)
		if err != nil {
			return nil, err
		}
		p.scorers = append(p.scorers, sc)
	}
	return p, nil
}

// Pick decides in.Request and fills rec with what it saw and concluded; the
// caller fills the request's own fields. It returns the index into
// in.View.Endpoints, or an *epp.Error of kind Unavailable or Saturated and −1.
// tried holds the endpoints on which this request has failed already.
// in.Settings is set here.
//
// It allocates nothing once rec has its size, and takes about 25 ns an endpoint
// (BenchmarkPick).
func (p *Policy) Pick(in *Input, seed uint64, tried epp.Slots, rec *decision.Record) (int, error) {
	in.Settings = p.Settings
	p.observe(in, tried, rec)
	rec.Seed, rec.At, rec.Settings, rec.BlockedTokens = seed, in.Now, p.Settings, in.BlockedTokens
	for j, s := range p.scorers {
		n := len(rec.Candidates)
		column := rec.Scores[j*n : (j+1)*n]
		s.Score(in, column)
		confine(column)
	}
	return p.decide(rec)
}

// observe copies the inputs of the decision into the record.
func (p *Policy) observe(in *Input, tried epp.Slots, rec *decision.Record) {
	rec.Resize(len(in.View.Endpoints), len(p.scorers))
	rec.HasSubset = in.Request.Subset != nil
	rec.Priority = in.Request.Priority
	for i := range rec.Candidates {
		c, e := &rec.Candidates[i], &in.View.Endpoints[i]
		c.Name, c.Address, c.Slot = e.Name, e.Address, e.Slot
		c.Signals, c.Match = in.View.Signals[i], in.MatchOf(i)
		c.Serves = in.View.Serves == nil || in.View.Serves.Has(e.Slot)
		c.Resident = in.View.Resident.Has(e.Slot)
		c.InSubset = !rec.HasSubset || slices.Contains(in.Request.Subset, e.Address)
		c.Tried = tried.Has(e.Slot)
	}
}

// confine holds what a scorer wrote to the contract: no number outside [0, 1]
// passes. A NaN is no rating, so it counts as the middle and as unknown.
func confine(column []epp.Score) {
	for i := range column {
		if v := column[i].Value; math.IsNaN(v) {
			column[i].Value, column[i].Unknown = 0.5, true
		} else {
			column[i].Value = unit(v)
		}
	}
}

// decide filters, sums and chooses from what the record holds, and nothing
// else: this is what Replay repeats.
func (p *Policy) decide(rec *decision.Record) (int, error) {
	p.filter(rec)
	p.sum(rec)
	if rec.Admitted == 0 {
		if err := p.saturated(rec); err != nil {
			rec.Refused = err.Reason
			return -1, err
		}
	}
	rec.Chosen, rec.RunnerUp = -1, -1
	for i := range rec.Candidates {
		switch {
		case rec.Candidates[i].Excluded != decision.Admitted:
		case rec.Chosen < 0 || better(rec, i, rec.Chosen):
			rec.Chosen, rec.RunnerUp = i, rec.Chosen
		case rec.RunnerUp < 0 || better(rec, i, rec.RunnerUp):
			rec.RunnerUp = i
		}
	}
	return rec.Chosen, nil
}

// filter marks each endpoint with the first reason to leave it out.
func (p *Policy) filter(rec *decision.Record) {
	rec.Admitted, rec.Degraded, rec.Refused = 0, false, ""
	rec.Chosen, rec.RunnerUp = -1, -1
	for i := range rec.Candidates {
		c := &rec.Candidates[i]
		c.Queue, _ = queueDepth(&c.Signals)
		c.Load, _ = loadOf(&c.Signals, &p.Settings.Load)
		switch {
		case c.Tried:
			c.Excluded = decision.Tried
		case !c.InSubset:
			c.Excluded = decision.Subset
		case !c.Serves:
			c.Excluded = decision.Model
		case !(healthOf(&c.Signals, rec.At, p.Settings.StaleAfter) >= HealthCutoff):
			c.Excluded = decision.Health
		case c.Queue >= float64(p.Settings.MaxQueue):
			c.Excluded = decision.Queue
		default:
			c.Excluded = decision.Admitted
			rec.Admitted++
		}
	}
}

// sum adds the weighted factors of every endpoint, in the weights' order. Each
// product is rounded on its own: a fused multiply-add would give other last
// bits on other machines.
func (p *Policy) sum(rec *decision.Record) {
	n := len(rec.Candidates)
	for i := range rec.Candidates {
		total := 0.0
		for j := range p.scorers {
			total += float64(p.Settings.Weights[j].Value * rec.Scores[j*n+i].Value)
		}
		rec.Candidates[i].Sum = unit(total)
	}
}

// saturated handles a decision without candidates. Where endpoints are left out
// for their queue alone it admits them again, unless the settings or the
// request's priority say to refuse.
func (p *Policy) saturated(rec *decision.Record) *epp.Error {
	shortest := math.Inf(1)
	var reasons [8]int
	for i := range rec.Candidates {
		c := &rec.Candidates[i]
		reasons[c.Excluded&7]++
		if c.Excluded == decision.Queue {
			shortest = min(shortest, c.Queue)
		}
	}
	switch {
	case len(rec.Candidates) == 0:
		return epp.Errorf(epp.Unavailable, "pool_empty", "no endpoint: the pool is empty")
	case reasons[decision.Queue] == 0:
		return unavailable(len(rec.Candidates), &reasons)
	case rec.Priority < 0:
		return epp.Errorf(epp.Saturated, "shed", "every healthy endpoint is full (maxQueue %d) and the request's priority %d lets it be shed",
			p.Settings.MaxQueue, rec.Priority)
	case p.Settings.OnSaturated == decision.Reject:
		return epp.Errorf(epp.Saturated, "all_full", "every healthy endpoint is full (maxQueue %d)", p.Settings.MaxQueue)
	}
	rec.Degraded = true
	for i := range rec.Candidates {
		c := &rec.Candidates[i]
		if c.Excluded != decision.Queue {
			continue
		}
		c.Excluded = decision.Admitted
		if c.Queue-shortest >= float64(p.Settings.MaxQueue) {
			c.Excluded = decision.FarQueue
		}
	}
	return nil
}

// unavailable names the filter that took the last endpoint.
func unavailable(n int, reasons *[8]int) *epp.Error {
	for _, r := range []struct {
		excluded     decision.Exclusion
		reason, text string
	}{
		{decision.Health, "none_healthy", "none of the endpoints that may serve the request is healthy (pool of %d)"},
		{decision.Tried, "all_tried", "no other endpoint is left to try (pool of %d)"},
		{decision.Model, "model_not_served", "no endpoint of the subset serves the model now (pool of %d)"},
		{decision.Subset, "subset_empty", "none of the endpoints in the request's subset is in the pool of %d"},
	} {
		if reasons[r.excluded] > 0 {
			return epp.Errorf(epp.Unavailable, r.reason, r.text, n)
		}
	}
	return epp.Errorf(epp.Unavailable, "no_endpoint", "no endpoint in a pool of %d", n)
}

// better reports whether candidate i is preferred to candidate k: the higher
// sum, then the lower load, then the shorter queue, then the smaller hash of
// its name under the decision's seed, then the name.
func better(rec *decision.Record, i, k int) bool {
	a, b := &rec.Candidates[i], &rec.Candidates[k]
	if x, y := math.Round(a.Sum/decision.Grid), math.Round(b.Sum/decision.Grid); x != y {
		return x > y
	}
	if a.Load != b.Load {
		return a.Load < b.Load
	}
	if a.Queue != b.Queue {
		return a.Queue < b.Queue
	}
	if x, y := tieHash(rec.Seed, a.Name), tieHash(rec.Seed, b.Name); x != y {
		return x < y
	}
	return a.Name < b.Name
}

// Ranked returns the indexes of up to n admitted candidates after the chosen
// one, best first.
func Ranked(rec *decision.Record, n int) []int {
	if n <= 0 {
		return nil
	}
	var order []int
	for i := range rec.Candidates {
		if i != rec.Chosen && rec.Candidates[i].Excluded == decision.Admitted {
			order = append(order, i)
		}
	}
	slices.SortFunc(order, func(i, k int) int {
		if better(rec, i, k) {
			return -1
		}
		return 1
	})
	return order[:min(n, len(order))]
}

// tieHash spreads names over the seed's order: FNV-1a from the seed, finished
// by SplitMix64's mixer so that near names and near seeds fall apart.
func tieHash(seed uint64, name string) uint64 {
	const prime = 1099511628211
	h := seed ^ 14695981039346656037
	for i := range len(name) {
		h = (h ^ uint64(name[i])) * prime
	}
	h = (h ^ h>>30) * 0xbf58476d1ce4e5b9
	h = (h ^ h>>27) * 0x94d049bb133111eb
	return h ^ h>>31
}

// Replay makes the record's decision again from its raw signals alone: the
// scorers run on the copied inputs, nothing that the record concluded is used.
// It returns a new record; with the record's own settings it is equal to rec in
// every number.
func Replay(p *Policy, rec *decision.Record) *decision.Record {
	in := Input{
		Request:       &epp.Request{Adapter: rec.Adapter, Priority: rec.Priority},
		BlockedTokens: rec.BlockedTokens,
		Now:           rec.At,
	}
	var tried epp.Slots
	in.View.Serves = epp.Slots{}
	if rec.HasSubset {
		in.Request.Subset = []string{}
	}
	for i := range rec.Candidates {
		c := &rec.Candidates[i]
		in.View.Endpoints = append(in.View.Endpoints, epp.Endpoint{Name: c.Name, Address: c.Address, Slot: c.Slot})
		in.View.Signals = append(in.View.Signals, c.Signals)
		for int(c.Slot) >= len(in.Match) {
			in.Match = append(in.Match, epp.Match{})
		}
		in.Match[c.Slot] = c.Match
		if c.Serves {
			in.View.Serves = in.View.Serves.Add(c.Slot)
		}
		if c.Resident {
			in.View.Resident = in.View.Resident.Add(c.Slot)
		}
		if rec.HasSubset && c.InSubset {
			in.Request.Subset = append(in.Request.Subset, c.Address)
		}
		if c.Tried {
			tried = tried.Add(c.Slot)
		}
	}
	out := rec.Clone()
	_, _ = p.Pick(&in, rec.Seed, tried, out) // the refusal, if any, is in out.Refused
	return out
}
