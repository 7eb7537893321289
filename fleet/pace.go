package fleet

import (
	"math"
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
	// slowHalfLife is the time in which what is held against an endpoint, or for it,
	// halves while no first token comes from there: what was slow is seldom picked,
	// so it is time alone that lets it be tried again. A guess: after two minutes
	// little is left of the worst. fadeEvery is how often the view is brought up to
	// date.
	slowHalfLife = 20 * time.Second
	fadeEvery    = time.Second
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

// slowness is how many times the pool's time an endpoint takes for the same work:
// what the last sample left, and when that came. From then on it fades towards
// what is normal.
type slowness struct {
	value float64 // 0: nothing was learnt
	at    time.Time
}

// faded is the slowness at now.
func (s slowness) faded(now time.Time, normal float64) float64 {
	if s.value == 0 || !now.After(s.at) {
		return s.value
	}
	return normal + float64((s.value-normal)*math.Exp2(-float64(now.Sub(s.at))/float64(slowHalfLife)))
}

// add takes a sample: a first token took ratio times the pool's time. It says first
// whether to have faded was right, so that an endpoint that is slow for good and
// seldom asked does not come to be taken for a fast one.
func (s slowness) add(ratio float64, now time.Time, normal float64) slowness {
	v := s.value
	if v == 0 {
		v = 1
	} else if faded := s.faded(now, normal); ratio < faded && faded < v || v < faded && faded < ratio {
		v = faded
	}
	return slowness{v + float64(slowForgets*(ratio-v)), now}
}

// learnFirstToken learns from a first token that came at now. The table's lock is
// held.
func (t *Table) learnFirstToken(e *entry, now time.Time) {
	work, took := e.ahead+e.work, now.Sub(e.at).Seconds()
	if expected := t.firstTokens.offset + float64(t.firstTokens.growth*work); expected > 0 {
		ratio := min(maxSlowness, max(1/maxSlowness, took/expected))
		e.m.slow = e.m.slow.add(ratio, now, t.normal())
		e.m.work().Slowness = e.m.slow.value
		took = min(took, maxSlowness*expected)
	}
	t.firstTokens.add(work, took, workAtHalf/(workAtHalf+work))
	t.pace.FirstToken, t.pace.PerWork = t.firstTokens.offset, t.firstTokens.growth
}

// normal is the slowness that others fade towards: the mean of those endpoints from
// which first tokens come, of late. It is not always 1: what a slow endpoint has
// taken is in the pool's times too, and the others are faster than these for long.
func (t *Table) normal() float64 {
	if t.fresh == 0 {
		return 1
	}
	return t.freshSum / float64(t.fresh)
}

// fade lets every endpoint's slowness fade in the view. t.mu is held.
func (t *Table) fade(now time.Time) {
	if now.Sub(t.faded) < fadeEvery {
		return
	}
	t.faded, t.fresh, t.freshSum = now, 0, 0
	for _, m := range t.members {
		if m.slow.value > 0 && now.Sub(m.slow.at) < slowHalfLife {
			t.fresh++
			t.freshSum += m.slow.value
		}
	}
	normal := t.normal()
	for i, m := range t.members {
		t.work[i].Slowness = m.slow.faded(now, normal)
	}
}

// forgetSlowness is for an engine that has begun anew. m.t.mu is held.
func (m *Member) forgetSlowness() {
	m.slow = slowness{}
	m.work().Slowness = 0
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
