package sim

import "time"

// sglang is cache-aware routing as SGLang's routers do it, over a tree of what was
// sent where. Where the loads are out of balance (most − fewest > abs and
// most > rel·fewest) it takes the least loaded; else the endpoint with the longest
// match if that is more than threshold of the prompt; else the least loaded, or,
// in older releases, the one with the smallest tree. Source: sgl-model-gateway
// (smg) and sglang-router, policy cache_aware.
type sglang struct {
	threshold    float64
	abs          int
	rel          float64
	smallestTree bool

	tree seen
	sent map[int]int // requests ever sent, by slot: the second key of the least loaded
}

// The releases differ in their defaults. A tree's bound is in nodes or characters
// there; a node is the tail of a prompt, taken as 128 units of 64 tokens here, and
// four characters are a token.
func newSGLang(threshold float64, abs int, rel float64, smallest bool, units int) *sglang {
	return &sglang{threshold, abs, rel, smallest, seen{unit: 4, most: units}, map[int]int{}}
}

func (p *sglang) choose(in *input) int {
	least, most := spread(in)
	i := p.leastLoaded(in)
	if !(most-least > p.abs && float64(most) > p.rel*float64(least)) {
		i = p.byMatch(in, i)
	}
	p.sent[int(in.endpoints[i].Slot)]++
	p.tree.add(in.endpoints[i].Slot, in.chain, in.now)
	return i
}

// byMatch is the choice while loads are in balance.
func (p *sglang) byMatch(in *input, leastLoaded int) int {
	best, blocks, last := -1, 0, time.Duration(0)
	for i := range in.endpoints {
		if n, used := p.tree.match(in.endpoints[i].Slot, in.chain, in.now); n > blocks || n == blocks && n > 0 && used > last {
			best, blocks, last = i, n, used
		}
	}
	switch {
	case float64(blocks*blockTokens) > p.threshold*float64(len(in.tokens)):
		return best
	case !p.smallestTree:
		return leastLoaded
	}
	smallest := 0
	for i := range in.endpoints {
		if p.tree.size(in.endpoints[i].Slot) < p.tree.size(in.endpoints[smallest].Slot) {
			smallest = i
		}
	}
	return smallest
}

// leastLoaded is the least by load, then requests ever sent, then place.
func (p *sglang) leastLoaded(in *input) int {
	best := 0
	for i := range in.endpoints {
		a, b := in.signals[i].InFlight, in.signals[best].InFlight
		if a < b || a == b && p.sent[int(in.endpoints[i].Slot)] < p.sent[int(in.endpoints[best].Slot)] {
			best = i
		}
	}
	return best
}
