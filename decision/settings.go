package decision

import (
	"errors"
	"fmt"
	"math"
	"strings"
	"time"
)

// The names of the built-in scorers, which are also the keys of the
// configuration's weights.
const (
	CacheScorer   = "cache"
	LoadScorer    = "load"
	QueueScorer   = "queue"
	HealthScorer  = "health"
	AdapterScorer = "adapter"
)

// Factor is one of the scorers of the house, by its place in Candidate.Factors.
type Factor uint8

// The factors, in the order in which a sum adds them.
const (
	CacheFactor Factor = iota
	LoadFactor
	QueueFactor
	HealthFactor
	AdapterFactor

	// Factors is how many there are.
	Factors
)

// FactorOf returns the factor of the named scorer; Factors where it is none of
// the house's.
func FactorOf(scorer string) Factor {
	switch scorer {
	case CacheScorer:
		return CacheFactor
	case LoadScorer:
		return LoadFactor
	case QueueScorer:
		return QueueFactor
	case HealthScorer:
		return HealthFactor
	case AdapterScorer:
		return AdapterFactor
	}
	return Factors
}

// Weight is how much a scorer counts.
type Weight struct {
	Name  string
	Value float64 // in [0, 1]; all weights sum to 1
}

// Settings are what an operator sets of a decision. They do not change once a
// record points to them; a new weight makes a new Settings with a new Version.
type Settings struct {
	Version uint64
	// Policy is how to choose among those that pass the filters.
	Policy  PolicyName
	Weights []Weight
	// MaxQueue is the queue at which an endpoint is full, in requests, ≥ 1: it
	// both normalises the queue factor and cuts off.
	MaxQueue    int
	OnSaturated OnSaturated
	Load        Load
	// Gate leaves out endpoints whose predicted cost is so much above the lowest
	// one's; 0: none.
	Gate time.Duration
	// Spread says what else than the sum spreads prefixes over the pool.
	Spread Spread
	// StaleAfter is the age from which a reading is too old to trust.
	StaleAfter time.Duration
}

// Spread spreads prefixes. Neither changes a sum.
type Spread struct {
	// Cold breaks ties between endpoints that hold nothing of a prompt: the one goes
	// first that has waited longest for such a request.
	Cold bool
	// Hot leaves out the endpoints that hold a prefix while they are full and others
	// are not, so that one more gets a copy of it.
	Hot bool
}

// Load says what an endpoint's load is measured by.
type Load struct {
	Source LoadSource
	// MaxRunning is how many requests an endpoint runs at once; 0: not set.
	MaxRunning int
	// MaxUtilization is the load that counts as full, above 0.
	MaxUtilization float64
}

// LoadSource names a measure of load.
type LoadSource string

// The measures of load.
const (
	LoadRequests LoadSource = "requests" // requests at the engine, corrected by our own picks, ÷ MaxRunning
	LoadTokens   LoadSource = "tokens"   // uncached prompt tokens in flight ÷ TokensAtFullLoad
	LoadKV       LoadSource = "kv"       // KV cache in use
	LoadGPU      LoadSource = "gpu"      // accelerator utilization
)

// OnSaturated says what happens when every healthy endpoint's queue is full.
type OnSaturated string

// The answers to saturation.
const (
	Degrade OnSaturated = "degrade" // decide without the cutoff, so that the best match wins
	Reject  OnSaturated = "reject"  // refuse with 429
)

// DefaultMaxRunning divides requests into load where MaxRunning is not set: one
// divisor for the whole pool, so that endpoints stay comparable. Source: the
// measurements of FRONTIER, in-flight ÷ 32.
const DefaultMaxRunning = 32

// TokensAtFullLoad is the uncached tokens in flight that count as load 1.
// Source: the measurements of FRONTIER, pending tokens ÷ 65,536.
const TokensAtFullLoad = 65536

// Defaults returns the settings of the article: weights
// 0.60/0.20/0.10/0.05/0.05, maxQueue 20, degrade, load by requests.
func Defaults() *Settings {
	return &Settings{
		Version: 1,
		Policy:  Weighted,
		Weights: []Weight{
			{CacheScorer, 0.60}, {LoadScorer, 0.20}, {QueueScorer, 0.10}, {HealthScorer, 0.05}, {AdapterScorer, 0.05},
		},
		MaxQueue:    20,
		OnSaturated: Degrade,
		Load:        Load{Source: LoadRequests, MaxUtilization: 1},
		StaleAfter:  2 * time.Second,
	}
}

// WeightSumTolerance is how far the weights' sum may be from 1.
const WeightSumTolerance = 1e-9

// Validate reports every fault of the settings at once, or nil.
func (s *Settings) Validate() error {
	var faults []error
	fault := func(format string, args ...any) { faults = append(faults, fmt.Errorf(format, args...)) }
	if err := ValidateWeights(s.Weights); err != nil {
		faults = append(faults, err)
	}
	if s.MaxQueue < 1 {
		fault("maxQueue: %d: must be at least 1", s.MaxQueue)
	}
	if s.OnSaturated != Degrade && s.OnSaturated != Reject {
		fault("onSaturated: %q: must be %q or %q", s.OnSaturated, Degrade, Reject)
	}
	switch s.Load.Source {
	case LoadRequests, LoadTokens, LoadKV, LoadGPU:
	default:
		fault("load.source: %q: must be requests, tokens, kv or gpu", s.Load.Source)
	}
	if s.Load.MaxRunning < 0 {
		fault("load.maxRunning: %d: must not be negative", s.Load.MaxRunning)
	}
	if u := s.Load.MaxUtilization; !(u > 0 && u <= 1) {
		fault("load.maxUtilization: %v: must be above 0 and at most 1", u)
	}
	if s.Policy != Weighted && s.Policy != Latency {
		fault("policy: %q: must be %q or %q", s.Policy, Weighted, Latency)
	}
	if s.Policy == Latency && s.Spread != (Spread{}) {
		fault("spread: policy %q goes by predicted time alone: want policy %q, or no spread", s.Policy, Weighted)
	}
	if s.Gate < 0 {
		fault("gate: %v: must not be negative", s.Gate)
	}
	if s.StaleAfter <= 0 {
		fault("staleAfter: %v: must be above 0", s.StaleAfter)
	}
	return errors.Join(faults...)
}

// ValidateWeights reports every fault of a list of weights at once, or nil: a
// weight must be finite and at least 0, its name unique, and all must sum to 1.
// A sum that is off is shown, with the weights that would keep the proportions.
func ValidateWeights(weights []Weight) error {
	var faults []error
	sum := 0.0
	for i, w := range weights {
		if math.IsNaN(w.Value) || math.IsInf(w.Value, 0) || w.Value < 0 {
			faults = append(faults, fmt.Errorf("weights.%s: %v: must be a finite number, at least 0", w.Name, w.Value))
		}
		for _, before := range weights[:i] {
			if before.Name == w.Name {
				faults = append(faults, fmt.Errorf("weights.%s: named twice", w.Name))
			}
		}
		sum += w.Value
	}
	if len(faults) > 0 {
		return errors.Join(faults...)
	}
	if math.Abs(sum-1) <= WeightSumTolerance {
		return nil
	}
	if sum == 0 || math.IsInf(sum, 0) {
		return fmt.Errorf("weights: sum is %v: must be 1", sum)
	}
	scaled := make([]string, len(weights))
	for i, w := range weights {
		scaled[i] = fmt.Sprintf("%s: %.4g", w.Name, w.Value/sum)
	}
	return fmt.Errorf("weights: sum is %.10g: must be 1; in the same proportions: {%s}", sum, strings.Join(scaled, ", "))
}
