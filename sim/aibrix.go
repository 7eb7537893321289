package sim

import (
	"math"
	"math/rand/v2"
	"time"
)

const (
	// aibrixImbalance is how far the requests in flight may lie apart.
	aibrixImbalance = 8
	// aibrixBlocks is the size of its table in blocks of 16 tokens, aibrixTTL the age
	// at which it forgets. It has 200,000 blocks, of 4 tokens by its code and of 128
	// by its manual: the manual's, which remember more, are taken.
	aibrixBlocks = 200_000 * 128 / blockTokens
	aibrixTTL    = 20 * time.Minute
)

// aibrix is AIBrix's prefix-cache: where the requests in flight lie more than 8
// apart, only the endpoints with the fewest stay. They are looked at by match in
// whole per cent, then by requests; the first wins that has at most
// mean + 1 standard deviation of the requests, else the fewest, ties at random.
type aibrix struct {
	rand  *rand.Rand
	table seen
}

func (p *aibrix) choose(in *input) int {
	least, most := spread(in)
	balanced := most-least <= aibrixImbalance
	limit := meanAndDeviation(in)
	best, bestPercent := -1, -1
	for i := range in.endpoints {
		n := in.signals[i].InFlight
		if !balanced && n > least || float64(n) > limit {
			continue
		}
		percent := p.percent(in, i)
		if percent > bestPercent || percent == bestPercent && n < in.signals[best].InFlight {
			best, bestPercent = i, percent
		}
	}
	if best < 0 || bestPercent == 0 {
		best = fewest(in, p.rand, func(i int) float64 { return float64(in.signals[i].InFlight) })
	}
	p.table.add(in.endpoints[best].Slot, in.chain, in.now)
	return best
}

func (p *aibrix) percent(in *input, i int) int {
	if len(in.chain) == 0 {
		return 0
	}
	blocks, _ := p.table.match(in.endpoints[i].Slot, in.chain, in.now)
	return blocks * 100 / len(in.chain)
}

// meanAndDeviation is the mean of the requests in flight and one standard
// deviation more.
func meanAndDeviation(in *input) float64 {
	n, sum, squares := float64(len(in.signals)), 0.0, 0.0
	for i := range in.signals {
		v := float64(in.signals[i].InFlight)
		sum += v
		squares += v * v
	}
	mean := sum / n
	return mean + math.Sqrt(max(0, squares/n-mean*mean))
}

// window is what was sent to each slot within the last three minutes, as time it
// would take to compute.
type window struct {
	length time.Duration
	slots  map[int]*windowSlot
}

type windowSlot struct {
	sent    []windowEntry
	prefill float64 // seconds, of all of sent
}

type windowEntry struct {
	at      time.Duration
	prefill float64
}

func (w *window) slot(slot int, now time.Duration) *windowSlot {
	s := w.slots[slot]
	if s == nil {
		s = &windowSlot{}
		w.slots[slot] = s
	}
	n := 0
	for n < len(s.sent) && now-s.sent[n].at > w.length {
		s.prefill -= s.sent[n].prefill
		n++
	}
	s.sent = s.sent[n:]
	return s
}

func (w *window) add(slot int, now time.Duration, prefill float64) {
	s := w.slot(slot, now)
	s.sent = append(s.sent, windowEntry{now, prefill})
	s.prefill += prefill
}

// preble is Preble's E2, and with guard AIBrix's prefix-cache-preble. Where more of
// the prompt is cached than not it exploits: among the endpoints with the longest
// match the one of the least cost. Else it explores: the least cost of all. An
// endpoint's cost is the prefill that was sent to it within three minutes, of what
// it had not cached, and what its requests have still to decode.
//
// Preble's own cost has also the prefill time of what would be evicted, and after
// 50·n requests, where the heaviest endpoint has more than 1.5 times the load of
// the lightest, what would go to the heaviest goes to the lightest until that is
// no longer so.
//
// Simpler here than there: both keep the window by the tree's nodes, and weigh each
// node's count by its miss rate and the endpoints that share it; here a prompt counts
// with what was not cached when it was sent. Preble moves subtrees, and gives a single
// hot node to more endpoints when times to first token double; here what would go to
// the heaviest endpoint is moved, and no node is given to more.
type preble struct {
	rand    *rand.Rand
	guard   bool
	prefill func(tokens int) float64 // seconds
	decode  float64                  // seconds that a request decodes
	holds   int                      // tokens that an endpoint's cache holds

	tree   seen
	window window

	count              int
	heaviest, lightest int // slots to redirect between; equal: none
}

const (
	prebleWindow  = 3 * time.Minute
	prebleRound   = 50
	prebleUneven  = 1.5
	prebleDecoded = 45 // tokens of an answer
	// prebleStepTime is the seconds that a token takes. AIBrix would take the median of
	// what was measured, and measures nothing. Source: its prefix_cache_preble.go, where
	// only tests write avgTimePerTokenPerPod.
	prebleStepTime = 0.15
)

func (p *preble) choose(in *input) int {
	least, most := spread(in)
	only := func(i int) bool { return !p.guard || most-least <= aibrixImbalance || in.signals[i].InFlight == least }
	longest := 0
	matched := make([]int, len(in.endpoints))
	for i := range in.endpoints {
		if only(i) {
			matched[i], _ = p.tree.match(in.endpoints[i].Slot, in.chain, in.now)
			longest = max(longest, matched[i])
		}
	}
	exploit := 2*longest*blockTokens > len(in.tokens)
	best := fewest(in, p.rand, func(i int) float64 {
		if !only(i) || exploit && matched[i] < longest {
			return math.Inf(1)
		}
		if p.guard && exploit {
			return float64(in.signals[i].InFlight)
		}
		return p.cost(in, i, matched[i])
	})
	if !p.guard {
		best = p.redirect(in, best)
	}
	slot := in.endpoints[best].Slot
	p.window.add(int(slot), in.now, p.prefill(len(in.tokens)-matched[best]*blockTokens))
	p.tree.add(slot, in.chain, in.now)
	return best
}

func (p *preble) cost(in *input, i, matched int) float64 {
	slot := in.endpoints[i].Slot
	w := p.window.slot(int(slot), in.now)
	fresh := len(in.tokens) - matched*blockTokens
	if p.guard {
		return w.prefill/0.9 + prebleDecoded*prebleStepTime*float64(in.signals[i].InFlight)
	}
	evicted := p.tree.size(slot)*p.tree.unit*blockTokens + fresh - p.holds
	return w.prefill + p.prefill(fresh) + p.decode*float64(in.signals[i].InFlight) + p.prefill(max(0, min(evicted, fresh)))
}

// redirect is the balancing of loads between rounds.
func (p *preble) redirect(in *input, best int) int {
	if p.count++; p.count >= prebleRound*len(in.endpoints) {
		p.count = 0
		high, low := math.Inf(-1), math.Inf(1)
		for i := range in.endpoints {
			s := int(in.endpoints[i].Slot)
			load := p.window.slot(s, in.now).prefill
			if load > high {
				high, p.heaviest = load, s
			}
			if load < low {
				low, p.lightest = load, s
			}
		}
	}
	high, low := p.window.slot(p.heaviest, in.now).prefill, p.window.slot(p.lightest, in.now).prefill
	if high <= prebleUneven*low {
		p.heaviest, p.lightest = 0, 0
	}
	if p.heaviest != p.lightest && int(in.endpoints[best].Slot) == p.heaviest {
		for i := range in.endpoints {
			if int(in.endpoints[i].Slot) == p.lightest {
				return i
			}
		}
	}
	return best
}
