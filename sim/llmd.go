package sim

import "math/rand/v2"

// llmd is llm-d-router's weighted sum of scorers, the highest wins, ties at
// random:
//
//	prefix = matched ÷ all blocks of the prompt
//	queue  = (most − waiting)/(most − fewest), 1 where all are equal
//	kv     = 1 − KV cache usage
//
// Waiting and usage are as scraped. The built-in profile weighs 3:2:2 and tracks
// prefixes by its own picks, in units of 64 tokens, at most 131,072 tokens of a
// prompt and 31,250 units of an endpoint; the sample for KV events weighs 2:1:1.
type llmd struct {
	rand                       *rand.Rand
	prefix, queue, kv          float64
	precise                    bool
	own                        seen
	fewestWaiting, mostWaiting float64
}

const (
	llmdUnit      = 4 // blocks of 16
	llmdMaxUnits  = 31250
	llmdMaxBlocks = 131072 / blockTokens
)

func (p *llmd) choose(in *input) int {
	p.fewestWaiting, p.mostWaiting = in.signals[0].Waiting.Value, in.signals[0].Waiting.Value
	for i := range in.signals {
		q := in.signals[i].Waiting.Value
		p.fewestWaiting, p.mostWaiting = min(p.fewestWaiting, q), max(p.mostWaiting, q)
	}
	i := fewest(in, p.rand, func(i int) float64 { return -p.score(in, i) })
	if !p.precise {
		p.own.add(in.endpoints[i].Slot, in.chain[:min(len(in.chain), llmdMaxBlocks)], in.now)
	}
	return i
}

func (p *llmd) score(in *input, i int) float64 {
	queue := 1.0
	if p.mostWaiting > p.fewestWaiting {
		queue = (p.mostWaiting - in.signals[i].Waiting.Value) / (p.mostWaiting - p.fewestWaiting)
	}
	return p.prefix*p.ratio(in, i) + p.queue*queue + p.kv*(1-in.signals[i].KVUsage.Value)
}

func (p *llmd) ratio(in *input, i int) float64 {
	if p.precise {
		if len(in.chain) == 0 {
			return 0
		}
		return float64(in.matched(i)) / float64(len(in.chain))
	}
	chain := in.chain[:min(len(in.chain), llmdMaxBlocks)]
	units := len(chain) / llmdUnit
	if units == 0 {
		return 0
	}
	blocks, _ := p.own.match(in.endpoints[i].Slot, chain, in.now)
	return float64(blocks/llmdUnit) / float64(units)
}
