package route

import (
	"math"

	"epp.internal/epp"
	"epp.internal/epp/decision"
)

// What is taken as long as a pool has shown nothing of its own: an 8B model on one
// A100 with its default batch. Guesses; a few dozen requests replace them.
var assumedPace = epp.Pace{FirstToken: 0.02, PerWork: 1.0 / 10_000, Answer: 4, PerRequest: 0.3}

// answerShare is what a second of an answer counts, its own or another's, against
// one before a first token. At 1 the mean time to the end is shortest, and long
// prompts wait: docs/policies.md has the figures.
const answerShare = 0.125

// predict writes what the request is expected to cost at each endpoint, in seconds,
// and returns the lowest cost of an admitted one.
//
//	first token = slowness · (FirstToken + PerWork · (pending + own work))
//	cost        = first token + answerShare · slowness · (
//	              Answer + PerRequest · n + PerWork · own work · n)
//
// n is the requests that are there. The last term is the others' loss: an engine
// computes a prompt beside their answers, and each of them waits for it.
//
// Source: FRONTIER, "TTFT + own decode + stall caused". Each product is rounded on
// its own, so that machines with a fused multiply-add give the same bits.
func (p *Policy) predict(in *Input, rec *decision.Record) (lowest float64) {
	rec.Pace = in.View.Pace
	pace := paceOf(rec.Pace)
	rec.RoomPredictions()
	tokens := rec.PromptTokens
	if tokens == 0 {
		tokens = in.BlockedTokens
	}
	lowest = math.Inf(1)
	for i := range rec.Candidates {
		c, at := &rec.Candidates[i], &rec.Predictions[i]
		*at = decision.Prediction{}
		if i < len(in.View.Work) {
			at.Work = in.View.Work[i]
		}
		slow := at.Work.Slowness
		if slow == 0 {
			slow = 1
		}
		n := present(&c.Signals)
		own := epp.WorkOf(tokens-c.CachedTokens(tokens), tokens)
		first := pace.FirstToken + float64(pace.PerWork*(at.Work.Pending+own))
		rest := pace.Answer + float64(pace.PerRequest*n)
		stall := float64(float64(pace.PerWork*own) * n)
		at.FirstToken = float64(slow * first)
		at.Cost = at.FirstToken + float64(float64(answerShare*slow)*(rest+stall))
		if c.Excluded == decision.Admitted {
			lowest = min(lowest, at.Cost)
		}
	}
	return lowest
}

// paceOf is the pace with what was not learnt taken from assumedPace.
func paceOf(p epp.Pace) epp.Pace {
	if p.PerWork == 0 {
		p.FirstToken, p.PerWork = assumedPace.FirstToken, assumedPace.PerWork
	}
	if p.Answer == 0 && p.PerRequest == 0 {
		p.Answer, p.PerRequest = assumedPace.Answer, assumedPace.PerRequest
	}
	return p
}

// present is how many requests the endpoint has: those that it reported, corrected
// by our own picks since, and never less than our own.
func present(s *epp.Signals) float64 {
	n := float64(max(0, s.InFlight))
	if s.Running.Known && s.Waiting.Known {
		n = max(n, s.Running.Value+s.Waiting.Value+float64(s.Delta()))
	}
	return n
}

// cheapest lets the admitted run again, by predicted cost in place of the sum.
func cheapest(rec *decision.Record) race {
	r := race{rec: rec}
	for i := range rec.Candidates {
		if c := &rec.Candidates[i]; c.Excluded == decision.Admitted {
			r.place(entrant{index: i + 1, c: c, grid: rank(rec, i)})
		}
	}
	return r
}

// costGrid is the step on which two costs count as equal, in seconds.
const costGrid = 1e-6

// rank is what candidates are ordered by, the highest first: the sum in steps of
// decision.Grid, or for policy latency the cost, negative, in steps of costGrid.
func rank(rec *decision.Record, i int) int64 {
	if rec.Settings.Policy == decision.Latency {
		return -int64(min(rec.Predictions[i].Cost, maxCost) / costGrid)
	}
	return steps(rec.Candidates[i].Sum)
}

// maxCost bounds a cost in seconds, so that its steps are a number.
const maxCost = 1e12
