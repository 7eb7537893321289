package fleet

import (
	"time"

	"epp.internal/epp"
)

// The memory of what was learnt: how much a new sample counts.
const (
	paceForgets = 1.0 / 500 // of a line's sums, for each sample
	slowForgets = 1.0 / 50  // of an endpoint's slowness, for each sample
	// paceSamples is how many samples a line needs before it says anything.
	paceSamples = 16
	// maxSlowness bounds what one sample can say of an endpoint.
	maxSlowness = 10
	// workAtHalf is the work at which a sample counts half of what one without
	// work does: times spread more, the more there is to compute.
	workAtHalf = 500
)

// line is a least-squares fit of y over x that forgets.
type line struct {
	samples        int
	n              float64
	x, y, xx, xy   float64
	offset, growth float64 // y ≈ offset + growth·x, both at least 0
}

// add takes a sample that counts weight.
func (l *line) add(x, y, weight float64) {
	const keep = 1 - paceForgets
	l.samples++
	l.n = float64(l.n*keep) + weight
	l.x = float64(l.x*keep) + float64(weight*x)
	l.y = float64(l.y*keep) + float64(weight*y)
	l.xx = float64(l.xx*keep) + float64(float64(weight*x)*x)
	l.xy = float64(l.xy*keep) + float64(float64(weight*x)*y)
	if l.samples < paceSamples {
		return
	}
	spread := float64(l.n*l.xx) - float64(l.x*l.x)
	if !(spread > 1e-9*float64(l.n*l.xx)) { // all samples at one x: no growth is seen
		return
	}
	l.growth = max(0, (float64(l.n*l.xy)-float64(l.x*l.y))/spread)
	l.offset = (l.y - float64(l.growth*l.x)) / l.n
	if l.offset < 0 { // through the origin then
		l.offset, l.growth = 0, l.xy/l.xx
	}
}

// learnFirstToken learns from a first token that came at now. The table's lock is
// held.
func (t *Table) learnFirstToken(e *entry, now time.Time) {
	work, took := e.ahead+e.work, now.Sub(e.at).Seconds()
	if expected := t.firstTokens.offset + float64(t.firstTokens.growth*work); expected > 0 {
		w := e.m.work()
		if w.Slowness == 0 {
			w.Slowness = 1
		}
		ratio := min(maxSlowness, max(1/maxSlowness, took/expected))
		w.Slowness += float64(slowForgets * (ratio - w.Slowness))
	}
	t.firstTokens.add(work, took, workAtHalf/(workAtHalf+work))
	t.pace.FirstToken, t.pace.PerWork = t.firstTokens.offset, t.firstTokens.growth
}

// learnAnswer learns from an answer that was whole at now. The table's lock is
// held.
func (t *Table) learnAnswer(e *entry, now time.Time) {
	t.answers.add(float64(e.others), now.Sub(e.answeredAt).Seconds(), 1)
	t.pace.Answer, t.pace.PerRequest = t.answers.offset, t.answers.growth
}

// work is the member's, in the view or after it. t.mu is held.
func (m *Member) work() *epp.Work {
	if m.pos < 0 {
		return &m.lastWork
	}
	return &m.t.work[m.pos]
}

// settleWork takes work off what is pending. Where no request is left nothing is:
// sums of fractions drift. t.mu is held.
func (m *Member) settleWork(work float64) {
	w := m.work()
	w.Pending = max(0, w.Pending-work)
	if m.signals().InFlightTokens == 0 {
		w.Pending = 0
	}
}
