package route

import (
	"time"

	"epp.internal/epp"
	"epp.internal/epp/decision"
)

// blockedTokens is a prompt's tokens in full blocks.
type blockedTokens int

// share is the part of them that a match covers, less what blocks beside the GPU
// are worth less and what the endpoint's claims are doubted.
func (b blockedTokens) share(m epp.Match, doubt uint8) float64 {
	if b <= 0 || m.Blocks == 0 {
		return 0
	}
	if m.Discount == 0 && doubt == 0 {
		return unit(float64(m.Tokens()) / float64(b))
	}
	return unit(m.Worth()/float64(b)) * unit(float64(100-int(doubt))/100)
}

// cacheUnknown reports whether a match is 0 because nobody tells.
func cacheUnknown(s *epp.Signals, m epp.Match) bool { return !s.Heard && m.Blocks == 0 }

// adapterUnknown reports whether it is not known if the endpoint has an adapter.
func adapterUnknown(s *epp.Signals, resident bool) bool { return !s.Adapters && !resident }

// residence is 1 for an adapter that is there, or that nobody asked for.
func residence(there bool) float64 {
	if there {
		return 1
	}
	return 0
}

// queueDepth is how many requests wait at the endpoint: those it reported, and
// those of our own picks since that found no free slot. unknown is true where
// the engine never said: then our own requests beyond its slots are the queue.
func queueDepth(s *epp.Signals) (depth float64, unknown bool) {
	ours := s.InFlight
	if s.Waiting.Known {
		depth = s.Waiting.Value
		ours -= s.InFlightAtRead
	}
	if ours > 0 {
		if over := float64(ours) - freeSlots(s); over > 0 {
			depth += over
		}
	}
	return depth, !s.Waiting.Known
}

// freeSlots is how many requests the endpoint could start at once; 0 where its
// number of slots is neither set nor learnt.
func freeSlots(s *epp.Signals) float64 {
	if s.MaxRunning == 0 {
		return 0
	}
	running := 0.0
	if s.Running.Known {
		running = s.Running.Value
	}
	return max(0, float64(s.MaxRunning)-running)
}

// measure is what the settings say of load and queue, ready to divide by.
type measure struct {
	source         loadSource
	capacity       float64 // in requests: those at once × maxUtilization
	maxUtilization float64
	maxQueue       float64
}

// loadSource is a decision.LoadSource as a number.
type loadSource uint8

const (
	byRequests loadSource = iota
	byTokens
	byKV
	byGPU
)

func measureOf(s *decision.Settings) measure {
	m := measure{
		capacity:       decision.DefaultMaxRunning,
		maxUtilization: s.Load.MaxUtilization,
		maxQueue:       float64(s.MaxQueue),
	}
	if s.Load.MaxRunning > 0 {
		m.capacity = float64(s.Load.MaxRunning)
	}
	m.capacity *= m.maxUtilization
	switch s.Load.Source {
	case decision.LoadTokens:
		m.source = byTokens
	case decision.LoadKV:
		m.source = byKV
	case decision.LoadGPU:
		m.source = byGPU
	case decision.LoadRequests:
	}
	return m
}

// load is the endpoint's load as a fraction of its capacity; it may pass 1.
// unknown is true where the source never said: then our own requests in flight
// stand in, so that a new endpoint counts as idle.
func (m *measure) load(s *epp.Signals) (load float64, unknown bool) {
	if m.source == byRequests && s.Running.Known && s.Waiting.Known {
		return requests(s) / m.capacity, false
	}
	return m.loadElse(s)
}

// requests is how many requests the endpoint has: those it reported, and those of
// our own picks that it did not count.
func requests(s *epp.Signals) float64 {
	n := s.Running.Value + s.Waiting.Value + float64(s.Delta())
	if own := float64(s.InFlight); own > n {
		return own
	}
	return n
}

// loadElse is load where that is not the requests that the endpoint reported.
func (m *measure) loadElse(s *epp.Signals) (load float64, unknown bool) {
	switch {
	case m.source == byTokens:
		load = float64(s.InFlightTokens) / decision.TokensAtFullLoad
	case m.source == byKV && s.KVUsage.Known:
		load = s.KVUsage.Value
	case m.source == byGPU && s.GPU.Known:
		load = s.GPU.Value
	default:
		return float64(max(0, s.InFlight)) / m.capacity, true
	}
	return load / m.maxUtilization, unknown
}

// The fall of health while reports are missing: 0.1 for every 5 s past the age
// at which a reading is stale, and never below the cutoff for that alone.
const (
	staleHealthStep  = 0.1
	staleHealthEvery = 5 * time.Second
)

// healthOf is the endpoint's health, less what missing reports take from it.
func healthOf(s *epp.Signals, now time.Time, staleAfter time.Duration) float64 {
	h := s.Health
	if Stale(s, now, staleAfter) && h > HealthCutoff {
		over := age(s, now) - staleAfter
		h = max(HealthCutoff, h-staleHealthStep*float64(over)/float64(staleHealthEvery))
	}
	return h
}

// Stale reports whether the endpoint was read once and then not again for
// longer than staleAfter.
func Stale(s *epp.Signals, now time.Time, staleAfter time.Duration) bool {
	return !s.ReadAt.IsZero() && age(s, now) > staleAfter
}

// age is how old the endpoint's reading is.
func age(s *epp.Signals, now time.Time) time.Duration {
	return time.Duration(epp.InstantOf(now) - s.ReadAt)
}

// unit brings v into [0, 1]; NaN becomes 0.
func unit(v float64) float64 {
	switch {
	case v >= 1:
		return 1
	case v > 0:
		return v
	}
	return 0
}

// Seen is what the queue and the health scorer see of an endpoint, for those who
// show it: the corrected queue in requests, the health in [0, 1], and whether
// its reports are overdue.
func (p *Policy) Seen(s *epp.Signals, now time.Time) (queue, health float64, stale bool) {
	queue, _ = queueDepth(s)
	return queue, healthOf(s, now, p.Settings.StaleAfter), Stale(s, now, p.Settings.StaleAfter)
}
