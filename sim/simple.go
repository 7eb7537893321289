package sim

import "math/rand/v2"

// random picks any endpoint.
type random struct{ rand *rand.Rand }

func (p *random) choose(in *input) int { return p.rand.IntN(len(in.endpoints)) }

// roundRobin picks one after the other.
type roundRobin struct{ next int }

func (p *roundRobin) choose(in *input) int {
	i := p.next % len(in.endpoints)
	p.next = i + 1
	return i
}

// weightedRoundRobin picks each endpoint as often as its weight asks, evenly
// spread: every time all earn their weight, the richest is picked and pays the
// sum of all. Source: NGINX, ngx_http_upstream_round_robin.c, "smooth weighted".
type weightedRoundRobin struct {
	weight func(slot int) float64
	earned map[int]float64 // by slot
}

func (p *weightedRoundRobin) choose(in *input) int {
	best, total := 0, 0.0
	for i := range in.endpoints {
		s := int(in.endpoints[i].Slot)
		w := p.weight(s)
		total += w
		p.earned[s] += w
		if p.earned[s] > p.earned[int(in.endpoints[best].Slot)] {
			best = i
		}
	}
	p.earned[int(in.endpoints[best].Slot)] -= total
	return best
}

// leastConn picks the fewest own requests in flight, ties at random.
type leastConn struct{ rand *rand.Rand }

func (p *leastConn) choose(in *input) int {
	return fewest(in, p.rand, func(i int) float64 { return float64(in.signals[i].InFlight) })
}

// p2c draws two endpoints and takes the one with fewer requests in flight, the
// first of equals. Source: Envoy, LEAST_REQUEST with equal weights, choice_count 2.
type p2c struct{ rand *rand.Rand }

func (p *p2c) choose(in *input) int {
	a, b := p.rand.IntN(len(in.endpoints)), p.rand.IntN(len(in.endpoints))
	if in.signals[b].InFlight < in.signals[a].InFlight {
		return b
	}
	return a
}

// hashed sends a key always to the same endpoint, by rendezvous: the endpoint
// with the highest hash of key and name. NGINX and Envoy hash a header (the
// conversation's, where the trace tells one) or the URL, which all requests share.
type hashed struct{ url bool }

func (p *hashed) choose(in *input) int {
	key := in.req.Session
	if p.url {
		key = 0
	}
	best, highest := 0, uint64(0)
	for i := range in.endpoints {
		if h := keyHash(key, in.endpoints[i].Name, 0); h >= highest {
			best, highest = i, h
		}
	}
	return best
}

// fewest returns the endpoint of the least cost, a tie drawn at random: each of k
// equals replaces the one before with chance 1/k.
func fewest(in *input, r *rand.Rand, cost func(i int) float64) int {
	best, least, equals := 0, 0.0, 0
	for i := range in.endpoints {
		switch c := cost(i); {
		case equals == 0 || c < least:
			best, least, equals = i, c, 1
		case c == least:
			if equals++; r.IntN(equals) == 0 {
				best = i
			}
		}
	}
	return best
}

// spread are the fewest and the most requests in flight.
func spread(in *input) (fewest, most int) {
	fewest, most = in.signals[0].InFlight, in.signals[0].InFlight
	for i := range in.signals {
		fewest, most = min(fewest, in.signals[i].InFlight), max(most, in.signals[i].InFlight)
	}
	return fewest, most
}
