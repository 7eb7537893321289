package route

import (
	"fmt"
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

	weights [decision.Factors]float64
	outside []outside
}

// outside is a scorer that is not the house's.
type outside struct {
	scorer Scorer
	weight float64
	column int // its place in Settings.Weights
}

// New returns the policy of the settings, or every fault that they have.
func New(s *decision.Settings) (*Policy, error) {
	if err := s.Validate(); err != nil {
		return nil, err
	}
	p := &Policy{Settings: s, measure: measureOf(s)}
	for _, w := range s.Weights {
		f := decision.FactorOf(w.Name)
		if f == decision.Factors {
			return nil, fmt.Errorf("weights.%s: no such scorer: have %s", w.Name, names())
		}
		p.weights[f] = w.Value
	}
	return p, nil
}

// Pick decides in.Request and fills rec with what it saw and concluded; the
// caller fills the request's own fields. It returns the index into
// in.View.Endpoints, or an *epp.Error of kind Unavailable or Saturated and −1.
// tried holds the endpoints on which this request has failed already.
// in.Settings is set here.
//
// It allocates nothing once rec has its size, and takes about 20 ns an endpoint
// (BenchmarkPick): one pass does all, so that an endpoint's signals are read, and
// its line of the record written, while they are in the nearest cache.
func (p *Policy) Pick(in *Input, seed uint64, tried epp.Slots, rec *decision.Record) (int, error) {
	in.Settings = p.Settings
	rec.Room(len(in.View.Endpoints))
	rec.HasSubset, rec.Priority = in.Request.Subset != nil, in.Request.Priority
	rec.Seed, rec.At, rec.Settings, rec.BlockedTokens = seed, in.Now, p.Settings, in.BlockedTokens
	rec.Degraded, rec.Refused, rec.Predictions = false, "", rec.Predictions[:0]
	p.askOutside(in, rec)
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
	if p.Settings.Spread.Hot && !rec.Degraded {
		race = p.copyHot(rec, race)
	}
	if p.Settings.Predicts() {
		race = p.expect(in, rec, race)
	} else if in.Predict {
		p.predict(in, rec)
	}
	rec.Chosen, rec.RunnerUp = race.first.index-1, race.second.index-1
	return rec.Chosen, nil
}

// askOutside runs the scorers that are not the house's: each writes a column.
func (p *Policy) askOutside(in *Input, rec *decision.Record) {
	if len(p.outside) == 0 {
		return
	}
	rec.RoomOutside(len(p.Settings.Weights))
	n := len(rec.Candidates)
	for _, o := range p.outside {
		column := rec.Outside[o.column*n : (o.column+1)*n]
		o.scorer.Score(in, column)
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

// stretch is how many endpoints are looked at and then rated at a time: few enough
// that what was copied is still in the nearest cache. It is a guess.
const stretch = 32

// weigh goes over the endpoints once: copies the inputs of the decision into the
// record, rates, sums, filters, and enters who is admitted into the race.
func (p *Policy) weigh(in *Input, tried epp.Slots, race *race) {
	rec := race.rec
	l := look{in.Match, in.View.Serves, in.View.Resident, tried, nil}
	if rec.HasSubset {
		l.subset = in.Request.Subset
	}
	rec.Admitted = 0
	for from := 0; from < len(rec.Candidates); from += stretch {
		to := min(from+stretch, len(rec.Candidates))
		candidates := rec.Candidates[from:to]
		l.at(candidates, in.View.Endpoints[from:to], in.View.Signals[from:to])
		p.rate(in, candidates)
		p.addOutside(rec, from, to)
		rec.Admitted += p.admit(candidates, from, race)
	}
}

// look is what a view and a request say of endpoints, by slot and by address.
type look struct {
	match                   []epp.Match
	serves, resident, tried epp.Slots
	subset                  []string // nil: all
}

// at copies what a decision depends on, besides the request.
func (l *look) at(candidates []decision.Candidate, endpoints []epp.Endpoint, signals []epp.Signals) {
	endpoints, signals = endpoints[:len(candidates)], signals[:len(candidates)]
	match := l.match
	for i := range candidates {
		c, e := &candidates[i], &endpoints[i]
		c.Endpoint = e
		c.Signals = signals[i]
		c.Serves, c.Resident, c.InSubset, c.Tried = true, false, true, false
		c.Excluded, c.Unknown = decision.Admitted, 0
		c.Match = epp.Match{}
		if int(e.Slot) < len(match) {
			c.Match = match[e.Slot]
		}
	}
	if l.serves == nil && len(l.resident) == 0 && l.subset == nil && len(l.tried) == 0 {
		return
	}
	for i := range candidates {
		c := &candidates[i]
		c.Serves = l.serves == nil || l.serves.Has(c.Slot)
		c.Resident = l.resident.Has(c.Slot)
		c.InSubset = l.subset == nil || slices.Contains(l.subset, c.Address)
		c.Tried = l.tried.Has(c.Slot)
	}
}

// rate writes the factors of the scorers of the house and their weighted sum, and
// leaves out who is not healthy. Each product is rounded on its own: a fused
// multiply-add would give other last bits on other machines.
func (p *Policy) rate(in *Input, candidates []decision.Candidate) {
	m, w, blocked := &p.measure, &p.weights, blockedTokens(in.BlockedTokens)
	anyAdapter := in.Request.Adapter == ""
	stale := epp.InstantOf(in.Now) - epp.Instant(p.Settings.StaleAfter)
	for i := range candidates {
		c := &candidates[i]
		s, f := &c.Signals, &c.Factors
		health := s.Health
		if s.ReadAt < stale {
			health = healthOf(s, in.Now, p.Settings.StaleAfter)
		}
		if !(health >= HealthCutoff) {
			c.Excluded = decision.Health
		}
		if cacheUnknown(s, c.Match) {
			c.Unknown |= 1 << decision.CacheFactor
		}
		var unknown bool
		if c.Queue, unknown = queueDepth(s); unknown {
			c.Unknown |= 1 << decision.QueueFactor
		}
		if c.Load, unknown = m.load(s); unknown {
			c.Unknown |= 1 << decision.LoadFactor
		}
		cache, load, queue := blocked.share(c.Match, s.Doubt), 1-unit(c.Load), 1-unit(c.Queue/m.maxQueue)
		resident := anyAdapter || c.Resident
		if adapterUnknown(s, resident) {
			c.Unknown |= 1 << decision.AdapterFactor
		}
		sound, adapter := unit(health), residence(resident)
		f[0], f[1], f[2], f[3], f[4] = cache, load, queue, sound, adapter // in their order
		c.Sum = unit(float64(w[0]*cache) + float64(w[1]*load) + float64(w[2]*queue) + float64(w[3]*sound) + float64(w[4]*adapter))
	}
}

// addOutside adds to the sums of the candidates from one index to another what
// the scorers say that are not the house's.
func (p *Policy) addOutside(rec *decision.Record, from, to int) {
	n := len(rec.Candidates)
	for _, o := range p.outside {
		column := rec.Outside[o.column*n : (o.column+1)*n]
		for i := from; i < to; i++ {
			c := &rec.Candidates[i]
			c.Sum = unit(c.Sum + float64(o.weight*column[i].Value))
		}
	}
}

// admit runs the filters, enters who passes into the race and returns how many
// these are. base is the first candidate's index.
func (p *Policy) admit(candidates []decision.Candidate, base int, race *race) (admitted int) {
	for i := range candidates {
		c := &candidates[i]
		if out := p.filter(c); out != decision.Admitted {
			c.Excluded = out
			continue
		}
		admitted++
		if c.Sum >= race.bar {
			race.enter(base+i, c)
		}
	}
	return admitted
}

// filter returns the first reason to leave an endpoint out; Health stands where
// rate has found it.
func (p *Policy) filter(c *decision.Candidate) decision.Exclusion {
	switch {
	case c.Tried:
		return decision.Tried
	case !c.InSubset:
		return decision.Subset
	case !c.Serves:
		return decision.Model
	case c.Excluded == decision.Health:
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
	var reasons [16]int
	for i := range rec.Candidates {
		c := &rec.Candidates[i]
		reasons[c.Excluded&15]++
		if c.Excluded == decision.Queue {
			shortest = min(shortest, c.Queue)
		}
	}
	switch {
	case len(rec.Candidates) == 0:
		return epp.Errorf(epp.Unavailable, "pool_empty", "0 endpoints matched: the pool is empty")
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
func unavailable(n int, reasons *[16]int) *epp.Error {
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
	// bar is the sum below which a candidate is on a lower step than second's for
	// certain.
	bar float64
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
	r.place(entrant{index: i + 1, c: c, grid: steps(c.Sum)})
}

// place puts e before or behind the best two.
func (r *race) place(e entrant) {
	switch {
	case r.first.c == nil || e.beats(&r.first, r.rec):
		r.first, r.second = e, r.first
	case r.second.c == nil || e.beats(&r.second, r.rec):
		r.second = e
	}
	if r.second.c != nil {
		r.bar = r.second.c.Sum - 2*decision.Grid
	}
}

// beats reports whether e is preferred to f: the higher sum, then the lower
// load, then the shorter queue, then what Settings.Spread says of cold ones, then
// the smaller hash of its name under the decision's seed, then the name.
func (e *entrant) beats(f *entrant, rec *decision.Record) bool {
	a, b := e.c, f.c
	switch {
	case e.grid != f.grid:
		return e.grid > f.grid
	case a.Load != b.Load:
		return a.Load < b.Load
	case a.Queue != b.Queue:
		return a.Queue < b.Queue
	case rec.Settings.Spread.Cold && longerCold(a, b):
		return true
	case rec.Settings.Spread.Cold && longerCold(b, a):
		return false
	}
	if x, y := e.hash(rec.Seed), f.hash(rec.Seed); x != y {
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
		if a.beats(&b, rec) {
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
	in.View.Pace, in.Predict = rec.Pace, len(rec.Predictions) > 0
	var tried epp.Slots
	in.View.Serves = epp.Slots{}
	if rec.HasSubset {
		in.Request.Subset = []string{}
	}
	for i := range rec.Candidates {
		c := &rec.Candidates[i]
		in.View.Endpoints = append(in.View.Endpoints, *c.Endpoint)
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
