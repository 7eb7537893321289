package picker

import (
	"epp.internal/epp"
	"epp.internal/epp/decision"
)

// untold is the warning of a scorer that counts and has nothing to rate by: once for
// the whole pool, or once for each endpoint while that is in it.
const untold = "no data for a scorer"

// weight is what the named scorer counts for.
func (p *Picker) weight(scorer string) float64 {
	for _, w := range p.Policy().Settings.Weights {
		if w.Name == scorer {
			return w.Value
		}
	}
	return 0
}

// warnSources warns of a policy that rates what nobody tells.
func (p *Picker) warnSources() {
	if w := p.weight(decision.CacheScorer); w != 0 && p.opt.Tokenizer == nil && p.opt.AskEngine == nil && !p.opt.Learn {
		p.opt.Log.Warn(untold, "scorer", decision.CacheScorer, "weight", w,
			"detail", "no tokenizer, no engine to ask and no learning: only prompts sent as token IDs can match")
	}
}

// Untold warns that a scorer has no data of an endpoint. first says whether that is
// news, and remembers it with the endpoint (fleet's Untold).
func (p *Picker) Untold(scorer string, e epp.Endpoint, first func(scorer string) bool) {
	if p.weight(scorer) == 0 || !first(scorer) {
		return
	}
	detail := "nothing is known of it"
	switch {
	case scorer == decision.AdapterScorer:
		detail = "its page has no metric of LoRA adapters: only those that we sent there count as resident"
	case scorer == decision.CacheScorer && p.opt.Learn:
		detail = "no KV event has come: its cache is guessed from our own picks (approximate mode)"
	case scorer == decision.CacheScorer:
		detail = "no KV event has come: its cache counts as empty"
	}
	p.opt.Log.Warn(untold, "scorer", scorer, "pod", e.Name, "address", e.Address, "detail", detail)
}

// warnAdapters warns of a pick for an adapter by an endpoint that does not tell which
// it has.
func (pk *Pick) warnAdapters(rec *decision.Record) {
	if rec.Candidates[rec.Chosen].Guessed(decision.AdapterFactor) {
		pk.owner.Untold(decision.AdapterScorer, pk.Endpoint, pk.booking.Untold)
	}
}
