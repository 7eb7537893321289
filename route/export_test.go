package route

import "epp.internal/epp/decision"

// TieHash is tieHash.
var TieHash = tieHash

// AddScorer gives p one scorer more that is not of the house. The weights then
// sum to more than 1, which a decision bears.
func AddScorer(p *Policy, name string, weight float64, s Scorer) {
	settings := *p.Settings
	settings.Weights = append(settings.Weights[:len(settings.Weights):len(settings.Weights)], decision.Weight{Name: name, Value: weight})
	p.Settings = &settings
	p.outside = append(p.outside, outside{s, weight, len(settings.Weights) - 1})
}
