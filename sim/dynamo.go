package sim

import "math/rand/v2"

// dynamo is the cost of NVIDIA Dynamo's KV router at temperature 0: the prefill
// that an endpoint would have to do, in blocks, with what is under way there, less
// what it holds; and the blocks that its requests would then occupy.
//
//	cost = max((active prefill tokens + prompt tokens)/16 − matched, 0) + active blocks
//
// Active prefill tokens are freed at the first token, active blocks at the end;
// blocks that requests share there count once. The least cost wins, ties at
// random. Its defaults: prefill_load_scale 1, overlap credit 1 (GPU), no weight on
// the number of requests. Source: Dynamo, lib/llm/src/kv_router.
type dynamo struct {
	rand   *rand.Rand
	active map[int]map[uint64]int // by slot: how many requests use a block
}

func (p *dynamo) choose(in *input) int {
	i := fewest(in, p.rand, func(i int) float64 {
		raw := float64(in.signals[i].InFlightTokens+len(in.tokens)) / blockTokens
		return max(raw-float64(in.matched(i)), 0) + float64(p.blocks(in, i))
	})
	s := int(in.endpoints[i].Slot)
	if p.active[s] == nil {
		p.active[s] = map[uint64]int{}
	}
	for _, h := range in.chain {
		p.active[s][h]++
	}
	return i
}

// blocks is how many blocks endpoint i would have in use with this request.
func (p *dynamo) blocks(in *input, i int) int {
	active := p.active[int(in.endpoints[i].Slot)]
	shared := 0
	for shared < len(in.chain) && active[in.chain[shared]] > 0 {
		shared++
	}
	return len(active) + len(in.chain) - shared
}

func (p *dynamo) firstToken(*sent) {}

func (p *dynamo) ended(s *sent) {
	active := p.active[int(s.slot)]
	for _, h := range s.chain {
		if active[h]--; active[h] == 0 {
			delete(active, h)
		}
	}
}
