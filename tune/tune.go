package tune

import (
	"context"
	"errors"
	"fmt"
	"math"
	"runtime"
	"slices"
	"sync"
	"time"

	"epp.internal/epp/decision"
	"epp.internal/epp/sim"
	"epp.internal/epp/trace"
)

// Where the parts of a trace end, as shares of its time.
const (
	trainTo = 0.5
	validTo = 0.75
)

// The rules of judgement.
const (
	// warmUp is how much of the traffic before a part fills the caches first, a tenth
	// of the trace at most.
	warmUp = 10 * time.Minute
	// SimulatorError is the gain below which nothing is proposed, as a share: other
	// seeds of one simulation move its means by 2 %.
	SimulatorError = 0.02
	// slowestMayGrow is how much longer the slowest hundredth of whole answers may take.
	slowestMayGrow = 0.02
	// DefaultMaxMove is how far a weight moves at most in one proposal.
	DefaultMaxMove = 0.10
)

// Source is a trace by parts: [trace.Trace] is one.
type Source interface {
	Duration() time.Duration
	// Part returns the requests between two shares of the trace's time.
	Part(from, to float64) *trace.Trace
}

// Config is what to tune, and on what.
type Config struct {
	Source Source
	// Sim is the fleet; its Trace, Policy and Settings are set here.
	Sim sim.Config
	// Current are the settings whose weights are tuned.
	Current *decision.Settings
	// MaxMove is how far each weight may move; 0 means DefaultMaxMove.
	MaxMove float64
	// Simulate is sim.Run where nil.
	Simulate func(ctx context.Context, cfg sim.Config) (*sim.Result, error)
	// Progress, if not nil, is told after each run what it was for and how many there
	// were.
	Progress func(stage string, runs int)
}

// Report is what was found.
type Report struct {
	// Change is true where Proposed is proved to be better than Current, else Reason
	// says why to keep Current.
	Change bool
	Reason string
	// Best is the best that was found on the first part, Proposed the way to it that
	// is allowed at once.
	Current, Best, Proposed []decision.Weight
	MaxQueue                int
	// Held are the scorers whose weights could not be judged: nothing in the trace
	// depends on them.
	Held []string
	// Points is how many weights were tried on the first part, and Flat how many of
	// these were no more than SimulatorError worse than the best.
	Points, Flat int
	Runs         int
	// Train compares Best with Current, the others Proposed with Current. They are
	// nil where it did not come to that.
	Train, Valid, Test *Comparison
	// Conditions are other worlds on the second part.
	Conditions []Condition
}

// tuning is one call of Run.
type tuning struct {
	Config
	ctx    context.Context
	report *Report
	mu     sync.Mutex // guards report.Runs, and that one progress is told at a time
}

// part is a trace's part with its warm-up.
type part struct {
	trace *trace.Trace
	from  time.Duration // where the figures begin
}

// Run tunes. The error is a fault of cfg, or ctx's.
func Run(ctx context.Context, cfg Config) (*Report, error) {
	if cfg.MaxMove == 0 {
		cfg.MaxMove = DefaultMaxMove
	}
	if cfg.Simulate == nil {
		cfg.Simulate = sim.Run
	}
	if cfg.Progress == nil {
		cfg.Progress = func(string, int) {}
	}
	if !(cfg.MaxMove > 0 && cfg.MaxMove <= 1) {
		return nil, fmt.Errorf("tune: a move of %v: want above 0 and at most 1", cfg.MaxMove)
	}
	if err := cfg.Current.Validate(); err != nil {
		return nil, fmt.Errorf("tune: the current settings: %w", err)
	}
	if cfg.Current.Policy != decision.Weighted {
		return nil, fmt.Errorf("tune: policy %q does not choose by weights: want %q", cfg.Current.Policy, decision.Weighted)
	}
	t := &tuning{Config: cfg, ctx: ctx, report: &Report{Current: cfg.Current.Weights, MaxQueue: cfg.Current.MaxQueue}}
	if err := t.run(); err != nil {
		return nil, err
	}
	return t.report, nil
}

func (t *tuning) run() error {
	r := t.report
	train := t.part(0, trainTo)
	if len(train.trace.Requests) == 0 {
		return errors.New("tune: no request in the trace's first half")
	}
	if err := t.search(train); err != nil {
		return err
	}
	if gain := -r.Train.Share(); gain < SimulatorError {
		r.Reason = fmt.Sprintf("no weights are better by more than the simulator may be wrong (%.0f %%): the best of %d gain %.1f %%",
			100*SimulatorError, r.Points, 100*gain)
		return nil
	}
	valid := t.part(trainTo, validTo)
	var err error
	if r.Valid, err = t.compare("validation", t.Sim, valid, r.Proposed); err != nil {
		return err
	}
	if fault := r.Valid.fault(); fault != "" {
		r.Reason = "on the second part, " + fault
		return nil
	}
	if err := t.otherWorlds(valid); err != nil {
		return err
	}
	if fault := regret(r.Conditions); fault != "" {
		r.Reason = fault
		return nil
	}
	// All that is left is the last part, which nothing has seen.
	if r.Test, err = t.compare("test", t.Sim, t.part(validTo, 1), r.Proposed); err != nil {
		return err
	}
	if fault := r.Test.fault(); fault != "" {
		r.Reason = "on the last part, " + fault
		return nil
	}
	r.Change = true
	return nil
}

// part cuts a part and its warm-up out of the trace.
func (t *tuning) part(from, to float64) part {
	whole := t.Source.Duration()
	warm := min(warmUp, whole/10)
	begin := from
	if from > 0 && whole > 0 {
		begin = max(0, from-warm.Seconds()/whole.Seconds())
	}
	return part{t.Source.Part(begin, to), warm}
}

// with returns the current settings with other weights.
func (t *tuning) with(weights []decision.Weight) *decision.Settings {
	s := *t.Current
	s.Weights = weights
	return &s
}

// outcomes runs one simulation and returns what counts of it.
func (t *tuning) outcomes(stage string, fleet sim.Config, p part, weights []decision.Weight) ([]sim.Outcome, error) {
	fleet.Trace, fleet.Policy, fleet.Settings = p.trace, stage, t.with(weights)
	r, err := t.Simulate(t.ctx, fleet)
	if err != nil {
		return nil, err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.report.Runs++
	t.Progress(stage, t.report.Runs)
	from := slices.IndexFunc(r.Requests, func(o sim.Outcome) bool { return o.At >= p.from })
	if from < 0 {
		return nil, errors.New("tune: no request is left behind the warm-up: want a longer trace")
	}
	return r.Requests[from:], nil
}

// each calls f for 0 … n−1, as many at a time as there are processors, and returns
// the first error by number.
func each(n int, f func(i int) error) error {
	errs := make([]error, n)
	slots := make(chan struct{}, runtime.GOMAXPROCS(0))
	var wg sync.WaitGroup
	for i := range n {
		slots <- struct{}{}
		wg.Go(func() {
			errs[i] = f(i)
			<-slots
		})
	}
	wg.Wait()
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// compare runs the current weights and others on one part.
func (t *tuning) compare(stage string, fleet sim.Config, p part, weights []decision.Weight) (*Comparison, error) {
	if len(p.trace.Requests) == 0 {
		return nil, fmt.Errorf("tune: no request in the part for %s", stage)
	}
	var runs [2][]sim.Outcome
	err := each(2, func(i int) (err error) {
		runs[i], err = t.outcomes(stage, fleet, p, [][]decision.Weight{t.Current.Weights, weights}[i])
		return err
	})
	if err != nil {
		return nil, err
	}
	return compare(runs[0], runs[1], t.Sim.Seed), nil
}

// Dominance is the advantage in the share of a prompt that is cached from which on
// an endpoint wins whatever all other factors say, among endpoints that pass the
// filters; above 1 nothing does: T ÷ the cache's weight, T the most that all others
// can say against it. Source: FRONTIER §5.
func Dominance(weights []decision.Weight, maxQueue int) float64 {
	var cache, others float64
	for _, w := range weights {
		switch w.Name {
		case decision.CacheScorer:
			cache = w.Value
		case decision.QueueScorer: // a full queue is filtered out, so the swing is smaller
			others += w.Value * float64(maxQueue-1) / float64(maxQueue)
		case decision.HealthScorer: // below 0.3 filtered out
			others += w.Value * 0.7
		default:
			others += w.Value
		}
	}
	if cache == 0 {
		return math.Inf(1)
	}
	return others / cache
}
