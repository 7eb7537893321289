package route

import "epp.internal/epp/decision"

// expect predicts, and chooses again where predictions have a say: policy latency
// by the lowest cost, the gate by leaving out. r is the choice by the sum.
func (p *Policy) expect(in *Input, rec *decision.Record, r race) race {
	lowest := p.predict(in, rec)
	if p.Settings.Gate > 0 {
		r = p.shut(rec, lowest)
	}
	if p.Settings.Policy == decision.Latency {
		r = cheapest(rec)
	}
	return r
}

// shut is the gate in front of the choice: it leaves out the admitted endpoints
// whose predicted cost is more than Settings.Gate above the lowest one's. The sum
// then decides among the rest, unchanged: so no match, however long, keeps a
// request at an endpoint where it would wait much longer than elsewhere.
func (p *Policy) shut(rec *decision.Record, lowest float64) race {
	limit := lowest + p.Settings.Gate.Seconds()
	r := race{rec: rec}
	for i := range rec.Candidates {
		c := &rec.Candidates[i]
		if c.Excluded != decision.Admitted {
			continue
		}
		if rec.Predictions[i].Cost > limit {
			c.Excluded = decision.Slow
			rec.Admitted--
			continue
		}
		r.enter(i, c)
	}
	return r
}
