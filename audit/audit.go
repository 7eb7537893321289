// Package audit compares what was expected of an endpoint's cache with what the
// engine says it had: for each answer that reports its usage, our predicted
// cached tokens against the engine's. It is core, a state machine without a clock.
//
// It stands behind a request's way in: the picker tells fleet how each answer
// compared, fleet keeps one [State] for each endpoint, and a decision reads what
// is held against the endpoint's claims as Signals.Doubt.
//
// # What holds
//
// A difference of one block is none: an engine may free a block, or finish one,
// while the request is on its way. Every other difference has one [Cause]. An
// endpoint whose claims do not come true has its matches discounted by as much;
// the discount fades, so that the endpoint is tried again.
//
//	var s audit.State
//	s.Add(now, audit.Outcome{Predicted: 480, Reported: 0, OurTokens: 500, EngineTokens: 500, BlockTokens: 16, Heard: true})
//	s.Doubt(now) // grows with each such answer
package audit

import (
	"math"
	"time"
)

// Cause says why a prediction was wrong.
type Cause uint8

// The causes.
const (
	Agrees      Cause = iota // it was right, within a block
	Template                 // the engine counts other tokens in the prompt: another tokenizer or chat template
	BlockSize                // the engine's cached tokens are no multiple of the blocks it tells of
	NoEvents                 // the endpoint does not tell of its cache: the prediction was a guess
	Lag                      // what the endpoint told came too late
	Unconfirmed              // the endpoint told of blocks that it then did not use

	Causes = iota
)

// String returns the cause's name as logs and metrics show it.
func (c Cause) String() string {
	return [...]string{"agrees", "template", "block_size", "no_events", "lag", "unconfirmed", "cause(6)", "cause(7)"}[c&7]
}

// Outcome is one answer's usage beside what was expected of it, in tokens.
type Outcome struct {
	// Predicted is how many prompt tokens the endpoint was expected to have
	// cached, Reported how many the engine says it had.
	Predicted, Reported int
	// OurTokens and EngineTokens are the prompt's length by our count and by the
	// engine's.
	OurTokens, EngineTokens int
	// BlockTokens is the endpoint's block size; 0 where it is not known.
	BlockTokens int
	// Heard is true where the endpoint tells of its cache itself.
	Heard bool
	// Gone is true where blocks that the decision counted on had been removed
	// before it, as was learnt later.
	Gone bool
}

// Cause says why the prediction was wrong, or that it was right.
func (o *Outcome) Cause() Cause {
	off := o.Reported - o.Predicted
	block := max(1, o.BlockTokens)
	switch {
	case o.OurTokens != o.EngineTokens:
		return Template
	case -block <= off && off <= block:
		return Agrees
	case !o.Heard:
		return NoEvents
	case o.Reported%block != 0 && o.Reported != o.EngineTokens-1: // some engines count all but the last token
		return BlockSize
	case off > 0 || o.Gone:
		return Lag
	}
	return Unconfirmed
}

// How much an answer counts, and when a number of them is an alarm.
const (
	keep = 0.95 // of what was, at each answer: about twenty count
	// leastAnswers are needed for an alarm or a discount.
	leastAnswers = 8
	// raised and lowered are the shares of answers that disagree, for whatever cause,
	// at which the alarm begins and ends.
	raised, lowered = 0.3, 0.1
	// leastDoubt is what is not held against an endpoint: evictions on the way.
	leastDoubt = 0.1
	// fades is how long it takes until half of a doubt is forgotten.
	fades = time.Minute
)

// State is what is known of one endpoint's claims. The zero State trusts it.
type State struct {
	total [Causes]uint64 // answers since the start
	// expected and reported are tokens since the start.
	expected, reported uint64

	recent  [Causes]float64
	answers float64 // sum of recent
	// predicted and confirmed are tokens of recent answers: what was expected, and
	// what of it was reported.
	predicted, confirmed float64
	at                   time.Time // of the last answer
	alarm                Cause
}

// Add takes an answer's outcome. It returns its cause, and true where the alarm
// has changed with it.
func (s *State) Add(now time.Time, o Outcome) (c Cause, changed bool) {
	c = o.Cause()
	s.total[c]++
	s.expected += uint64(max(0, o.Predicted))
	s.reported += uint64(max(0, o.Reported))
	for i := range s.recent {
		s.recent[i] *= keep
	}
	s.recent[c]++
	s.answers = keep*s.answers + 1
	s.predicted = keep*s.predicted + float64(max(0, o.Predicted))
	s.confirmed = keep*s.confirmed + float64(max(0, min(o.Predicted, o.Reported)))
	if c == Agrees && o.Predicted > 0 {
		s.confirmed += float64(o.Predicted - min(o.Predicted, max(0, o.Reported))) // within a block
	}
	s.at = now
	before := s.alarm
	s.alarm = s.alarmed()
	return c, s.alarm != before
}

// enough is the weight of leastAnswers answers.
var enough = (1 - math.Pow(keep, leastAnswers)) / (1 - keep)

// alarmed is the cause that has the alarm now: of all that disagrees, the most
// frequent. Causes that take turns are no fewer answers that were wrong.
func (s *State) alarmed() Cause {
	if s.answers < enough-1e-9 {
		return Agrees
	}
	worst, wrong := Template, 0.0
	for c := Template; c < Causes; c++ {
		wrong += s.recent[c]
		if s.recent[c] > s.recent[worst] {
			worst = c
		}
	}
	share := wrong / s.answers
	if share >= raised || s.alarm != Agrees && share >= lowered {
		return worst
	}
	return Agrees
}

// Alarm is the cause for which many recent predictions were wrong; Agrees: none.
func (s *State) Alarm() Cause { return s.alarm }

// Share is the part of recent answers that had the cause, in [0, 1].
func (s *State) Share(c Cause) float64 {
	if s.answers == 0 {
		return 0
	}
	return s.recent[c%Causes] / s.answers
}

// Total is how many answers had each cause.
func (s *State) Total() [Causes]uint64 { return s.total }

// Tokens are the sums, since the start, of the cached tokens that were expected
// and that the engine reported.
func (s *State) Tokens() (expected, reported uint64) { return s.expected, s.reported }

// Doubt is the part of the endpoint's claims that did not come true, in hundredths,
// 0–100: 0 for one that is trusted. Half of it is forgotten in a minute without an answer.
func (s *State) Doubt(now time.Time) uint8 {
	if s.answers < enough-1e-9 || s.predicted <= 0 {
		return 0
	}
	d := 1 - s.confirmed/s.predicted
	d *= math.Exp2(-max(0, float64(now.Sub(s.at))) / float64(fades))
	if d < leastDoubt {
		return 0
	}
	return uint8(min(100, math.Round(100*d)))
}
