package fleet

import (
	"slices"
	"time"

	"epp.internal/epp"
	"epp.internal/epp/audit"
)

// Verified is what an answer's usage said of its endpoint's claims.
type Verified struct {
	Cause audit.Cause
	// Alarm is the cause that has the endpoint's alarm now, Share the part of its
	// recent answers that had it; Changed is true where the alarm is new or over.
	Alarm   audit.Cause
	Share   float64
	Changed bool
	// Doubt is what is held against the endpoint's claims now, in hundredths.
	Doubt uint8
}

// Verify tells what the endpoint reported of the prompt that the booking was made
// for. It returns false, and takes nothing, where at is not the endpoint that
// served it, or has left. It is told before the booking's end.
func (b Booking) Verify(now time.Time, at epp.Endpoint, o audit.Outcome) (v Verified, ok bool) {
	b.with(func(e *entry) {
		m := e.m
		if m.pos < 0 || m.endpoint.Slot != at.Slot || m.endpoint.Generation != at.Generation {
			return
		}
		s := m.signals()
		o.Heard, o.BlockTokens = s.Heard, s.BlockTokens
		v.Cause, v.Changed = m.truth.Add(now, o)
		v.Alarm = m.truth.Alarm()
		v.Share = m.truth.Share(v.Alarm)
		m.rateDoubt(now)
		v.Doubt, ok = s.Doubt, true
	})
	return v, ok
}

// rateDoubt writes the doubt that a decision sees, which fades with time. t.mu is
// held.
func (m *Member) rateDoubt(now time.Time) {
	s := m.signals()
	s.Doubt = m.truth.Doubt(now)
	if s.Doubt > 0 && !slices.Contains(m.t.ailing, m) {
		m.t.ailing = append(m.t.ailing, m)
	}
}
