package sim

import "math/rand/v2"

// productionStack is vLLM production-stack's prefixaware: a trie of pieces of 128
// characters (32 tokens), without load and without forgetting; any of the
// endpoints with the longest match.
type productionStack struct {
	rand *rand.Rand
	trie seen
}

func (p *productionStack) choose(in *input) int {
	i := fewest(in, p.rand, func(i int) float64 {
		blocks, _ := p.trie.match(in.endpoints[i].Slot, in.chain, in.now)
		return -float64(blocks)
	})
	p.trie.add(in.endpoints[i].Slot, in.chain, in.now)
	return i
}

// The constants of Ray Serve's PrefixCacheAffinityRouter.
const (
	rayImbalance = 10
	rayMatchRate = 0.1
)

// ray is Ray Serve's prefix-cache affinity: where queues lie more than 10 apart,
// the better of two at random; where less than a tenth of the prompt matches, the
// smallest tree; else of those with the longest match the shortest queue. Its tree
// is not pruned by default.
type ray struct {
	rand *rand.Rand
	tree seen
}

func (p *ray) choose(in *input) int {
	i := p.pick(in)
	p.tree.add(in.endpoints[i].Slot, in.chain, in.now)
	return i
}

func (p *ray) pick(in *input) int {
	if least, most := spread(in); most-least > rayImbalance {
		return (&p2c{p.rand}).choose(in)
	}
	longest := 0
	matched := make([]int, len(in.endpoints))
	for i := range in.endpoints {
		matched[i], _ = p.tree.match(in.endpoints[i].Slot, in.chain, in.now)
		longest = max(longest, matched[i])
	}
	if float64(longest*blockTokens) < rayMatchRate*float64(len(in.tokens)) {
		return fewest(in, p.rand, func(i int) float64 { return float64(p.tree.size(in.endpoints[i].Slot)) })
	}
	return fewest(in, p.rand, func(i int) float64 {
		if matched[i] < longest {
			return 1e9
		}
		return float64(in.signals[i].InFlight)
	})
}
