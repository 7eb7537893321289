package decision

import (
	"time"

	"epp.internal/epp"
)

// Exclusion says why an endpoint was no candidate. The filters run in this
// order and the first that holds is recorded.
type Exclusion uint8

// The reasons to leave an endpoint out.
const (
	Admitted Exclusion = iota
	Tried              // an earlier attempt of this request failed there
	Subset             // not among the addresses the request may go to
	Model              // does not list the request's model
	Health             // health below the cutoff: its composite score is 0
	Queue              // queue at or above maxQueue
	FarQueue           // the pool is saturated and this queue is longer than the shortest by maxQueue
	Slow               // its predicted cost is more than the gate above the lowest
	Hot                // it holds a prefix that more requests want than it can serve
)

// String returns the exclusion's name, empty for a candidate.
func (e Exclusion) String() string {
	return [...]string{"", "tried", "subset", "model", "health", "queue", "far_queue", "slow", "hot", "", "", "", "", "", "", ""}[e&15]
}

// Candidate is one endpoint of the pool as the decision saw it.
type Candidate struct {
	// Endpoint is the view's own, which never changes; nil only in a record that
	// was never filled.
	*epp.Endpoint

	// Raw inputs. Serves, Resident, InSubset and Tried are what the view and
	// the request said of this endpoint.
	Signals                           epp.Signals
	Match                             epp.Match
	Serves, Resident, InSubset, Tried bool

	Excluded Exclusion
	// Unknown has a bit for each factor, the first one's the lowest: set where it
	// stands in for a signal that was never reported.
	Unknown uint8
	// Queue and Load are the corrected values, unclamped: requests, and a
	// fraction of the endpoint's capacity that may pass 1.
	Queue, Load float64
	// Factors are what the scorers of the house say, each in [0, 1], whatever their
	// weight; Sum is the weighted sum, in [0, 1].
	Factors [Factors]float64
	Sum     float64
}

// Guessed reports whether the factor stands in for a signal that was never reported.
func (c *Candidate) Guessed(f Factor) bool { return c.Unknown&(1<<f) != 0 }

// Composite is the score that the choice compares: Sum, or 0 for an endpoint
// left out for its health.
func (c *Candidate) Composite() float64 {
	if c.Excluded == Health {
		return 0
	}
	return c.Sum
}

// CachedTokens is how many of promptTokens the endpoint is predicted not to
// compute: its matched blocks, but never the last token, which an engine always
// computes: min(matched·B, ⌊(L−1)/B⌋·B).
func (c *Candidate) CachedTokens(promptTokens int) int {
	b := int(c.Match.BlockTokens)
	if b == 0 || promptTokens <= 1 {
		return 0
	}
	return min(c.Match.Tokens(), (promptTokens-1)/b*b)
}

// Record is one decision.
type Record struct {
	RequestID, ClientID    string
	Attempt                int // 1, or 2 for a retry after a refused or reset connection
	Path                   string
	Model, Target, Adapter string
	Priority               int
	HasSubset              bool

	// Sight is what the edge sees of the answer: "all", "end" or "headers".
	// ServedBy is the address that served, where the edge was told of it.
	Sight, ServedBy string

	// PromptTokens is the prompt's length, 0 where TokenSource is none; then
	// TokenNote says why. BlockTokens is the pool's smallest block size and
	// BlockedTokens the tokens in full blocks of that size: the denominator of
	// every match ratio.
	PromptTokens  int
	TokenSource   epp.TokenSource
	TokenNote     string
	BlockTokens   int
	BlockedTokens int

	At       time.Time
	Seed     uint64
	Settings *Settings

	// Candidates are all endpoints of the pool, in the view's order. Outside is
	// empty where all scorers are the house's. Else it has one column for each of
	// Settings.Weights, as long as Candidates: what those that are not have written.
	Candidates []Candidate
	Outside    []epp.Score

	// Predictions has an element for each of Candidates where the settings ask for
	// predictions, else none; Pace is what they were made of besides.
	Predictions []Prediction
	Pace        epp.Pace

	// Chosen is the index of the pick, RunnerUp of the next best; −1 for none.
	Chosen, RunnerUp int
	// Admitted counts the candidates that passed every filter, queue cutoff
	// included: 0 while the pool is saturated, even where Degraded chose one.
	Admitted int
	Degraded bool
	// Refused is the error's reason where nothing was chosen, else empty.
	Refused string

	Timings Timings
	End     End
}

// Timings are how long the steps took.
type Timings struct {
	Read, Tokenize, Match, Score time.Duration
}

// End is what became of the request. The zero End: not ended yet.
type End struct {
	At      time.Time
	Outcome string
	Status  int
	// TTFT is the time from the request's arrival to its first token, 0 where
	// none was seen.
	TTFT time.Duration
	// PromptTokens, CompletionTokens and CachedTokens are the engine's own
	// count; −1 where it gave none.
	PromptTokens, CompletionTokens, CachedTokens int
}

// Score returns the rating of candidate i by the scorer of weight j.
func (r *Record) Score(i, j int) epp.Score {
	c, f := &r.Candidates[i], FactorOf(r.Settings.Weights[j].Name)
	if f == Factors {
		return r.Outside[j*len(r.Candidates)+i]
	}
	return epp.Score{Value: c.Factors[f], Unknown: c.Guessed(f)}
}

// Factor returns the named scorer's value for candidate i; 0 where no such
// scorer is set.
func (r *Record) Factor(i int, name string) float64 {
	for j, w := range r.Settings.Weights {
		if w.Name == name {
			return r.Score(i, j).Value
		}
	}
	return 0
}

// MatchRatio is candidate i's share of the prompt's full blocks, in [0, 1]; 0
// for a prompt under one block.
func (r *Record) MatchRatio(i int) float64 {
	if r.BlockedTokens == 0 {
		return 0
	}
	return min(1, float64(r.Candidates[i].Match.Tokens())/float64(r.BlockedTokens))
}

// Resize gives the record room for n candidates, all zero, and keeps the memory it
// had.
func (r *Record) Resize(n int) {
	r.Room(n)
	clear(r.Candidates)
}

// Room is Resize for a caller that writes every field: what was there before may
// still be there.
func (r *Record) Room(n int) {
	r.Candidates = room(r.Candidates, n)
	r.Outside = r.Outside[:0]
}

// RoomPredictions gives the record room for a prediction of each candidate; what
// was there before may still be there. It follows Room.
func (r *Record) RoomPredictions() { r.Predictions = room(r.Predictions, len(r.Candidates)) }

func room[T any](s []T, n int) []T {
	if cap(s) < n {
		return make([]T, n)
	}
	return s[:n]
}

// RoomOutside adds room for what scorers that are not the house's write, for k
// weights, all zero. It follows Room.
func (r *Record) RoomOutside(k int) {
	r.Outside = room(r.Outside, len(r.Candidates)*k)
	clear(r.Outside)
}

// Reset empties the record and keeps its memory.
func (r *Record) Reset() {
	c, o := r.Candidates[:0], r.Outside[:0]
	*r = Record{Candidates: c, Outside: o, Predictions: r.Predictions[:0], Chosen: -1, RunnerUp: -1}
}

// Clone returns a copy that shares nothing that changes.
func (r *Record) Clone() *Record {
	c := *r
	c.Candidates = append([]Candidate(nil), r.Candidates...)
	c.Outside = append([]epp.Score(nil), r.Outside...)
	c.Predictions = append([]Prediction(nil), r.Predictions...)
	return &c
}
