package fleet

import (
	"slices"
	"time"

	"epp.internal/epp"
	"epp.internal/epp/health"
)

// gpuAge is how long a reading of the GPU is a load: the exporter's own interval
// is 30 s where nobody has set another.
const gpuAge = 45 * time.Second

// await makes m unproven until a probe has ended. t.mu is held.
func (m *Member) await() {
	m.facts.Await()
	m.rateHealth(time.Time{})
}

// Probed tells how a probe of the endpoint ended at now, and whether it took more
// than half of its time.
func (m *Member) Probed(now time.Time, err error, slowly bool) {
	m.t.mu.Lock()
	defer m.t.mu.Unlock()
	if m.pos < 0 {
		return
	}
	m.facts.Probed(now, err == nil, slowly)
	if err == nil {
		m.outcomes.Reached(now)
		m.noteReached()
	}
	m.watch(now)
}

// Unprobed tells that who probed the endpoint does so no longer.
func (m *Member) Unprobed(now time.Time) {
	m.t.mu.Lock()
	defer m.t.mu.Unlock()
	if m.pos < 0 {
		return
	}
	m.facts.Unprobed(now)
	m.watch(now)
}

// GPU writes a reading of the endpoint's accelerators.
func (m *Member) GPU(now time.Time, g epp.GPU) {
	m.t.mu.Lock()
	defer m.t.mu.Unlock()
	if m.pos < 0 {
		return
	}
	m.gpuAt = now
	m.signals().GPU = g.Utilization
	m.facts.GPU(now, g)
	m.watch(now)
}

// GPUUntil tells that who read the endpoint's accelerators does so no longer: what
// it said counts until then, unless another reading comes.
func (m *Member) GPUUntil(now, until time.Time) {
	m.t.mu.Lock()
	defer m.t.mu.Unlock()
	if m.pos < 0 {
		return
	}
	if until = until.Add(-gpuAge); until.Before(m.gpuAt) {
		m.gpuAt = until
	}
	m.facts.GPUUntil(now, until.Add(gpuAge))
	m.watch(now)
}

// failed counts a failure, and leaves the endpoint out if that is due and at most
// half of the pool is. t.mu is held.
func (m *Member) failed(now time.Time) {
	m.outcomes.Failed(now, m.mayLeave())
	m.watch(now)
}

// mayLeave says whether the endpoint may be left out for what was seen of it in
// passing: with it, at most half of the pool may be out, for whatever reason. Ports that
// were never open are no part of that pool. t.mu is held.
func (m *Member) mayLeave() bool {
	out, absent := 0, 0
	for _, o := range m.t.ailing {
		if o.absent {
			absent++
		} else if o != m && (o.outcomes.Out() || o.signals().Health < health.Cutoff) {
			out++
		}
	}
	return 2*(out+1) <= len(m.t.members)-absent
}

// watch rates the member's health, and lets it be rated again as long as time
// changes it. t.mu is held.
func (m *Member) watch(now time.Time) {
	m.rateHealth(now)
	if m.outcomes.Sound(now) && m.facts.Sound(now) || slices.Contains(m.t.ailing, m) {
		return
	}
	m.t.ailing = append(m.t.ailing, m)
}

// rateHealth writes the health that a decision sees: the worse of what outcomes
// and facts say. t.mu is held.
func (m *Member) rateHealth(now time.Time) {
	s := m.signals()
	s.Health, s.HealthReason = m.facts.Score(now)
	if h := m.outcomes.Score(now); h < s.Health {
		s.Health, s.HealthReason = h, epp.Outcomes
	}
	if s.GPU.Known && now.Sub(m.gpuAt) > gpuAge {
		s.GPU = epp.Gauge{}
	}
}

// RateWarmth compares how many blocks each endpoint holds with the median of the
// pool. An endpoint of which that is not known is not cold.
func (t *Table) RateWarmth(now time.Time) {
	t.mu.Lock()
	members := slices.Clone(t.members)
	t.mu.Unlock()
	var blocks []int
	held := make([]int, len(members))
	for i, m := range members { // the index may be busy, and a pick must not wait for it
		held[i] = m.blocks.Blocks()
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	for i, m := range members {
		if !m.signals().Incomplete {
			blocks = append(blocks, held[i])
		}
	}
	if len(blocks) == 0 {
		return
	}
	slices.Sort(blocks)
	median := blocks[len(blocks)/2]
	for i, m := range members {
		if m.pos < 0 {
			continue
		}
		if m.signals().Incomplete {
			m.facts.Warm(median, median)
		} else {
			m.facts.Warm(held[i], median)
		}
		m.watch(now)
	}
}
