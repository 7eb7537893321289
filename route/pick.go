package route

import (
	"math"
	"slices"

	"epp.internal/epp"
	"epp.internal/epp/decision"
	"epp.internal/epp/health"
)

// HealthCutoff is the health under which an endpoint gets no request.
const HealthCutoff = health.Cutoff

// Policy is a validated way to decide: settings and the scorers they name. It
// does not change; any number of goroutines may use it.
type Policy struct {
	Settings *decision.Settings
	measure  measure

	// One each for every one of Settings.Weights.
	scorers []Scorer
	kinds   []kind // which of the house's scorers it is
	weights []float64
}

// New returns the policy of the settings, or every fault that they have.
func New(s *decision.Settings) (*Policy, error) {
	if err := s.Validate(); err != nil {
		return nil, err
	}
	p := &Policy{Settings: s, measure: measureOf(s)}
	for _, w := range s.Weights {
		sc, err := builtin(w.Name)
		if err != nil {
			return nil, err
		}
		p.add(sc, w.Value)
	}
	return p, nil
}

func (p *Policy) add(s Scorer, weight float64) {
	p.scorers, p.kinds, p.weights = append(p.scorers, s), append(p.kinds, kindOf(s)), append(p.weights, weight)
}

// Pick decides in.Request and fills rec with what it saw and concluded; the
// caller fills the request's own fields. It returns the index into
// in.View.Endpoints, or an *epp.Error of kind Unavailable or Saturated and −1.
// tried holds the endpoints on which this request has failed already.
// in.Settings is set here.
//
// It allocates nothing once rec has its size, and takes about 30 ns an endpoint
// (BenchmarkPick): one pass does all, so that an endpoint's signals are read, and
// its line of the record written, while they are in the nearest cache.
func (p *Policy) Pick(in *Input, seed uint64, tried epp.Slots, rec *decision.Record) (int, error) {
	in.Settings = p.Settings
	rec.Room(len(in.View.Endpoints), len(p.scorers))
	rec.HasSubset, rec.Priority = in.Request.Subset != nil, in.Request.Priority
	rec.Seed, rec.At, rec.Settings, rec.BlockedTokens = seed, in.Now, p.Settings, in.BlockedTokens
	rec.Degraded, rec.Refused, rec.Predictions = false, "", rec.Predictions[:0]
	p.outside(in, rec)
	race := race{rec: rec}
	p.weigh(in, tried, &race)
	if rec.Admitted == 0 {
		if err := p.saturated(rec); err != nil {
			rec.Chosen, rec.RunnerUp, rec.Refused = -1, -1, err.Reason
			return -1, err
		}
		for i := range rec.Candidates {
			if c := &rec.Candidates[i]; c.Excluded == decision.Admitted {
				race.enter(i, c)
			}
		}
	}
	if p.Settings.Predicts() {
		race = p.expect(in, rec, race)
	}
	rec.Chosen, rec.RunnerUp = race.first.index-1, race.second.index-1
	return rec.Chosen, nil
}

// outside runs the scorers that are not the house's: each writes a column.
func (p *Policy) outside(in *Input, rec *decision.Record) {
	n := len(rec.Candidates)
	for j, k := range p.kinds {
		if k != outside {
			continue
		}
		column := rec.Scores[j*n : (j+1)*n]
		clear(column)
		p.scorers[j].Score(in, column)
		confine(column)
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

// weigh goes over the endpoints once: copies the inputs of the decision into the
// record, rates, sums, filters, and enters who is admitted into the race. What
// does not change is read before: the compiler cannot know that it does not.
func (p *Policy) weigh(in *Input, tried epp.Slots, race *race) {
	rec, candidates := race.rec, race.rec.Candidates
	endpoints, signals := in.View.Endpoints[:len(candidates)], in.View.Signals[:len(candidates)]
	match, serves, resident := in.Match, in.View.Serves, in.View.Resident
	hasSubset, blockedTokens, m := rec.HasSubset, in.BlockedTokens, p.measure
	anyAdapter := in.Request.Adapter == ""
	stale := in.Now.Add(-p.Settings.StaleAfter)
	var f factors
	admitted := 0
	for i := range candidates {
		c, e, s := &candidates[i], &endpoints[i], &signals[i]
		c.Name, c.Address, c.Slot = e.Name, e.Address, e.Slot
		c.Signals, c.Match = *s, epp.Match{}
		if int(e.Slot) < len(match) {
			c.Match = match[e.Slot]
		}
		c.Serves = serves == nil || serves.Has(e.Slot)
		c.Resident = resident.Has(e.Slot)
		c.InSubset = !hasSubset || slices.Contains(in.Request.Subset, e.Address)
		c.Tried = tried.Has(e.Slot)

		health := s.Health
		if s.ReadAt.Before(stale) {
			health = healthOf(s, in.Now, p.Settings.StaleAfter)
		}
		c.Queue, f.unknown[queueKind] = queueDepth(s)
		c.Load, f.unknown[loadKind] = m.load(s)
		f.value[cacheKind] = cachedShare(c.Match, blockedTokens)
		f.value[loadKind] = 1 - unit(c.Load)
		f.value[queueKind] = 1 - unit(c.Queue/m.maxQueue)
		f.value[healthKind] = unit(health)
		f.value[adapterKind] = residence(anyAdapter || c.Resident)
		c.Sum = p.sum(&f, rec.Scores[i:], len(candidates))
		if c.Excluded = p.filter(c, health); c.Excluded == decision.Admitted {
			admitted++
			race.enter(i, c)
		}
	}
	rec.Admitted = admitted
}

// factors are what the scorers of the house say of one endpoint.
type factors struct {
	value   [kinds]float64
	unknown [kinds]bool
}

// sum writes the factors into the columns, of n scores each, that begin with the
// endpoint's own, and returns their weighted sum, added in the weights' order.
// Each product is rounded on its own: a fused multiply-add would give other last
// bits on other machines.
func (p *Policy) sum(f *factors, scores []epp.Score, n int) float64 {
	total, at := 0.0, 0
	ks, weights := p.kinds, p.weights[:len(p.kinds)]
	for j, k := range ks {
		s := &scores[at]
		at += n
		if k == outside {
			f.value[outside], f.unknown[outside] = s.Value, s.Unknown
		} else if s.Detail != "" { // an outside scorer's, of another policy
			s.Detail = ""
		}
		v := f.value[k%kinds]
		s.Value, s.Unknown = v, f.unknown[k%kinds]
		total += float64(weights[j] * v)
	}
	return unit(total)
}

// filter returns the first reason to leave an endpoint out.
func (p *Policy) filter(c *decision.Candidate, health float64) decision.Exclusion {
	switch {
	case c.Tried:
		return decision.Tried
	case !c.InSubset:
		return decision.Subset
	case !c.Serves:
		return decision.Model
	case !(health >= HealthCutoff):
		return decision.Health
	case c.Queue >= p.measure.maxQueue:
		return decision.Queue
	}
	return decision.Admitted
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

// race finds the best two of those that enter it.
type race struct {
	rec           *decision.Record
	first, second entrant
}

// entrant is a candidate in the race; the zero entrant is nobody.
type entrant struct {
	index int // one more than the candidate's
	c     *decision.Candidate
	grid  int64 // its sum in steps of decision.Grid
	tie   uint64
	tied  bool // tie is computed
}

// enter lets candidate i run, which is c.
func (r *race) enter(i int, c *decision.Candidate) {
	if r.second.c != nil && c.Sum < r.second.c.Sum-2*decision.Grid {
		return // on a lower step for certain
	}
	r.place(entrant{index: i + 1, c: c, grid: steps(c.Sum)})
}

// place puts e before or behind the best two.
func (r *race) place(e entrant) {
	switch {
	case r.first.c == nil || e.beats(&r.first, r.rec.Seed):
		r.first, r.second = e, r.first
	case r.second.c == nil || e.beats(&r.second, r.rec.Seed):
		r.second = e
	}
}

// beats reports whether e is preferred to f: the higher sum, then the lower
// load, then the shorter queue, then the smaller hash of its name under the
// decision's seed, then the name.
func (e *entrant) beats(f *entrant, seed uint64) bool {
	a, b := e.c, f.c
	switch {
	case e.grid != f.grid:
		return e.grid > f.grid
	case a.Load != b.Load:
		return a.Load < b.Load
	case a.Queue != b.Queue:
		return a.Queue < b.Queue
	}
	if x, y := e.hash(seed), f.hash(seed); x != y {
		return x < y
	}
	return a.Name < b.Name
}

func (e *entrant) hash(seed uint64) uint64 {
	if !e.tied {
		e.tie, e.tied = tieHash(seed, e.c.Name), true
	}
	return e.tie
}

// steps is a sum in steps of decision.Grid, rounded half up: math.Round, for the
// numbers that a sum can be.
func steps(sum float64) int64 {
	x := sum / decision.Grid
	n := int64(x)
	if x-float64(n) >= 0.5 {
		n++
	}
	return n
}

// Ranked returns the indexes of up to n admitted candidates after the chosen
// one, best first.
func Ranked(rec *decision.Record, n int) []int {
	if n <= 0 {
		return nil
	}
	var order []entrant
	for i := range rec.Candidates {
		if c := &rec.Candidates[i]; i != rec.Chosen && c.Excluded == decision.Admitted {
			order = append(order, entrant{index: i + 1, c: c, grid: rank(rec, i)})
		}
	}
	slices.SortFunc(order, func(a, b entrant) int {
		if a.beats(&b, rec.Seed) {
			return -1
		}
		return 1
	})
	indexes := make([]int, min(n, len(order)))
	for i := range indexes {
		indexes[i] = order[i].index - 1
	}
	return indexes
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
	in.View.Pace = rec.Pace
	var tried epp.Slots
	in.View.Serves = epp.Slots{}
	if rec.HasSubset {
		in.Request.Subset = []string{}
	}
	for i := range rec.Candidates {
		c := &rec.Candidates[i]
		in.View.Endpoints = append(in.View.Endpoints, epp.Endpoint{Name: c.Name, Address: c.Address, Slot: c.Slot})
		in.View.Signals = append(in.View.Signals, c.Signals)
		if i < len(rec.Predictions) {
			in.View.Work = append(in.View.Work, rec.Predictions[i].Work)
		}
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
