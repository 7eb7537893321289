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

// A tree is cut back now and then, to the least recently used of it, not at once:
// in between the smallest tree is the one to which least was sent. The releases
// differ in their defaults. sglang-router and vllm-router bound each endpoint's part
// in characters, of which four are a token here. smg bounds the whole tree in nodes
// by its manual, taken as nodeUnits each here, and in characters by its code, which
// at its default would remember next to nothing. Source: sgl-router and vllm-router,
// tree.rs, evict_tenant_by_size, and cache_aware.rs.
const (
	sglangUnit = 4 // blocks of 16
	// unitChars are the characters of a unit.
	unitChars = sglangUnit * blockTokens * 4
	// nodeUnits are the units of a node, which is the tail of a prompt: a guess, of
	// 8,192 tokens.
	nodeUnits = 128
)

// perEndpoint is a tree that is cut back to so many characters for each endpoint.
func perEndpoint(chars int, every time.Duration) seen {
	return seen{unit: sglangUnit, most: chars / unitChars, every: every}
}

// wholeTree is a tree that is cut back to so many nodes in all.
func wholeTree(nodes int, every time.Duration) seen {
	return seen{unit: sglangUnit, most: nodes * nodeUnits, every: every, shared: true}
}

func newSGLang(threshold float64, abs int, rel float64, smallest bool, tree seen) *sglang {
	return &sglang{threshold, abs, rel, smallest, tree, map[int]int{}}
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
