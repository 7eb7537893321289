package route

import (
	"time"

	"epp.internal/epp"
	"epp.internal/epp/decision"
)

// queueDepth is how many requests wait at the endpoint: those it reported, and
// those of our own picks since that found no free slot. known is false where
// the engine never said: then our own requests beyond its slots are the queue.
func queueDepth(s *epp.Signals) (depth float64, known bool) {
	if !s.Waiting.Known {
		return max(0, float64(s.InFlight)-freeSlots(s)), false
	}
	return s.Waiting.Value + max(0, float64(s.Delta())-freeSlots(s)), true
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

// loadOf is the endpoint's load as a fraction of its capacity; it may pass 1.
// known is false where the source never said: then our own requests in flight
// stand in, so that a new endpoint counts as idle.
func loadOf(s *epp.Signals, l *decision.Load) (load float64, known bool) {
	switch l.Source {
	case decision.LoadTokens:
		return float64(s.InFlightTokens) / decision.TokensAtFullLoad / l.MaxUtilization, true
	case decision.LoadKV:
		if s.KVUsage.Known {
			return s.KVUsage.Value / l.MaxUtilization, true
		}
	case decision.LoadGPU:
		if s.GPU.Known {
			return s.GPU.Value / l.MaxUtilization, true
		}
	case decision.LoadRequests:
		known = s.Running.Known && s.Waiting.Known
	}
	divisor := float64(decision.DefaultMaxRunning)
	if l.MaxRunning > 0 {
		divisor = float64(l.MaxRunning)
	}
	own := float64(s.InFlight)
	if !known {
		return max(0, own) / divisor / l.MaxUtilization, false
	}
	return max(own, s.Running.Value+s.Waiting.Value+float64(s.Delta())) / divisor / l.MaxUtilization, true
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
		over := now.Sub(s.ReadAt) - staleAfter
		h = max(HealthCutoff, h-staleHealthStep*float64(over)/float64(staleHealthEvery))
	}
	return h
}

// Stale reports whether the endpoint was read once and then not again for
// longer than staleAfter.
func Stale(s *epp.Signals, now time.Time, staleAfter time.Duration) bool {
	return !s.ReadAt.IsZero() && now.Sub(s.ReadAt) > staleAfter
}

// unit brings v into [0, 1]; NaN becomes 0.
func unit(v float64) float64 {
	if !(v > 0) {
		return 0
	}
	return min(v, 1)
}

// Seen is what the queue and the health scorer see of an endpoint, for those who
// show it: the corrected queue in requests, the health in [0, 1], and whether
// its reports are overdue.
func (p *Policy) Seen(s *epp.Signals, now time.Time) (queue, health float64, stale bool) {
	queue, _ = queueDepth(s)
	return queue, healthOf(s, now, p.Settings.StaleAfter), Stale(s, now, p.Settings.StaleAfter)
}
