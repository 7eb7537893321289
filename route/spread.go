package route

import "epp.internal/epp/decision"

// longerCold reports whether a has waited longer than b for a request that is new
// to it, where this request is new to both.
func longerCold(a, b *decision.Candidate) bool {
	return a.Match.Blocks == 0 && b.Match.Blocks == 0 && a.Signals.ColdAt < b.Signals.ColdAt
}

// What makes a prefix hot. Guesses; docs/policies.md has the figures.
const (
	// hotLoad is the load from which an endpoint counts as full.
	hotLoad = 1
	// hotRatio is how many times as loaded as the least loaded of the others the
	// least loaded holder must be: a copy costs a prompt's time and room for it.
	hotRatio = 2
)

// copyHot leaves out who holds a prefix that more requests want than its holders can
// serve: all of them are full, and somebody else is not even half as loaded. The
// sum then decides among the others, which makes a copy; the next decisions find
// one holder more. Holders are the admitted that match at least half as many
// tokens as the best one. r is the choice among all.
func (p *Policy) copyHot(rec *decision.Record, r race) race {
	best := 0
	for i := range rec.Candidates {
		if c := &rec.Candidates[i]; c.Excluded == decision.Admitted {
			best = max(best, c.Match.Tokens())
		}
	}
	if best == 0 {
		return r
	}
	const unseen = -1
	holders, others := float64(unseen), float64(unseen) // the least load of each
	for i := range rec.Candidates {
		c := &rec.Candidates[i]
		least := &others
		if 2*c.Match.Tokens() >= best {
			least = &holders
		}
		if c.Excluded == decision.Admitted && (*least == unseen || c.Load < *least) {
			*least = c.Load
		}
	}
	if others == unseen || holders < hotLoad || holders < hotRatio*others {
		return r
	}
	r = race{rec: rec}
	for i := range rec.Candidates {
		c := &rec.Candidates[i]
		switch {
		case c.Excluded != decision.Admitted:
		case 2*c.Match.Tokens() >= best:
			c.Excluded = decision.Hot
			rec.Admitted--
		default:
			r.enter(i, c)
		}
	}
	return r
}
