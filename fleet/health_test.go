package fleet_test

import (
	"errors"
	"math"
	"syscall"
	"testing"
	"time"

	"epp.internal/epp"
	"epp.internal/epp/fleet"
)

// seen is what a decision at now would see of the named endpoints' health.
func seen(tab *fleet.Table, now time.Time) map[string]string {
	out := map[string]string{}
	tab.Pick(fleet.Query{}, now, func(v epp.View) (int, int) {
		for i, s := range v.Signals {
			out[v.Endpoints[i].Name] = format(s.Health) + " " + s.HealthReason.String()
		}
		return -1, 0
	})
	return out
}

func format(h float64) string {
	return map[float64]string{0: "0.0", 0.5: "0.5", 0.7: "0.7", 0.95: "0.95", 1: "1.0"}[math.Round(h*1000)/1000]
}

func wantSeen(t *testing.T, got map[string]string, want ...string) {
	t.Helper()
	for i := 0; i < len(want); i += 2 {
		if got[want[i]] != want[i+1] {
			t.Errorf("%s: %q, want %q (all: %v)", want[i], got[want[i]], want[i+1], got)
		}
	}
}

// TestProbesMayTakeThePool: failed probes leave out every endpoint, for a probe is
// a request that was asked for nothing else; outcomes never take the last half.
func TestProbesMayTakeThePool(t *testing.T) {
	tab := fleet.New(fleet.Options{Probed: true})
	ms := join(tab, "a", "b", "c")
	wantSeen(t, seen(tab, start), "a", "0.7 probe_pending", "c", "0.7 probe_pending")
	for _, m := range ms {
		m.Probed(start, nil, false)
	}
	wantSeen(t, seen(tab, start), "a", "1.0 ", "b", "1.0 ", "c", "1.0 ")

	for range 3 {
		for _, m := range ms {
			m.Probed(start, errors.New("no answer"), false)
		}
	}
	wantSeen(t, seen(tab, start), "a", "0.0 probe_failed", "b", "0.0 probe_failed", "c", "0.0 probe_failed")

	for range 2 {
		ms[0].Probed(start, nil, false)
	}
	wantSeen(t, seen(tab, start), "a", "0.0 probe_failed")
	start := start.Add(10 * time.Second)
	wantSeen(t, seen(tab, start), "a", "0.5 probe_failed")
	for range 9 { // with two out of three, no outcome takes the third
		b := book(t, tab, "a", 1)
		b.Judge(start, fleet.Bad)
		b.End()
	}
	if h := tab.Snapshot()[0].Signals; h.Health < 0.3 || h.HealthReason != epp.Outcomes {
		t.Errorf("a has %v for %q", h.Health, h.HealthReason)
	}

	ms[1].Leave() // what comes after that changes nothing
	ms[1].Probed(start, nil, false)
	ms[1].GPU(start, epp.GPU{XIDs: []int{79}})
	wantSeen(t, seen(tab, start), "b", "")
}

// TestGPUOfAMember: the GPU is a load while its reading is young, and health.
func TestGPUOfAMember(t *testing.T) {
	tab := fleet.New(fleet.Options{})
	ms := join(tab, "a", "b")
	ms[0].GPU(start, epp.GPU{Utilization: epp.Known(0.4), XIDs: []int{79}})
	ms[1].GPU(start, epp.GPU{Utilization: epp.Known(0.8)})
	wantSeen(t, seen(tab, start), "a", "0.0 gpu_fault", "b", "1.0 ")
	utilization := func() (g [2]epp.Gauge) {
		for i, s := range tab.Snapshot() {
			g[i] = s.Signals.GPU
		}
		return g
	}
	for _, m := range ms {
		m.Load(0, start.Add(30*time.Second), epp.Load{})
	}
	if got := utilization(); got != [2]epp.Gauge{epp.Known(0.4), epp.Known(0.8)} {
		t.Errorf("utilization %v", got)
	}
	for _, m := range ms {
		m.Load(0, start.Add(time.Minute), epp.Load{})
	}
	if got := utilization(); got != [2]epp.Gauge{} {
		t.Errorf("utilization %v a minute later, want unknown", got)
	}
	wantSeen(t, seen(tab, start.Add(2*time.Minute)), "a", "0.5 gpu_fault", "b", "1.0 ")
	wantSeen(t, seen(tab, start.Add(3*time.Minute)), "a", "1.0 ", "b", "1.0 ")
}

// TestWarmth: an endpoint that holds hardly any blocks is a little less healthy
// than the others, once the pool holds many; one whose cache is not known is not.
func TestWarmth(t *testing.T) {
	tab := fleet.New(fleet.Options{})
	ms := join(tab, "a", "b", "c", "unheard")
	store := func(m *fleet.Member, n int) {
		e := epp.BlockEvent{Kind: epp.BlockStored, Tier: "GPU", BlockTokens: 1}
		for i := range n {
			e.Hashes, e.Tokens = append(e.Hashes, uint64(i+1)), append(e.Tokens, uint32(i))
		}
		m.Apply(start, []epp.BlockEvent{e})
	}
	for _, m := range ms[:3] {
		m.Incomplete(start, false)
	}
	store(ms[0], 500)
	store(ms[1], 500)
	tab.RateWarmth(start)
	wantSeen(t, seen(tab, start), "c", "1.0 ")
	store(ms[0], 5000)
	store(ms[1], 5000)
	tab.RateWarmth(start)
	wantSeen(t, seen(tab, start), "a", "1.0 ", "b", "1.0 ", "c", "0.95 cache_cold", "unheard", "1.0 ")
	store(ms[2], 500)
	tab.RateWarmth(start)
	wantSeen(t, seen(tab, start), "c", "1.0 ")
}

// TestGPUOutlivesNobody: what was said of a GPU by one who has gone counts until the
// given time, its load and its faults, and not at all from then on.
func TestGPUOutlivesNobody(t *testing.T) {
	table := fleet.New(fleet.Options{})
	a := join(table, "a")[0]
	join(table, "b")
	seen := func(after time.Duration) (s epp.Signals) {
		table.Pick(fleet.Query{}, start.Add(after), func(v epp.View) (int, int) { s = v.Signals[0]; return -1, 0 })
		return s
	}
	a.GPU(start, epp.GPU{Utilization: epp.Known(0.9), XIDs: []int{79}})
	a.GPUUntil(start.Add(time.Second), start.Add(7*time.Second))
	if s := seen(6900 * time.Millisecond); s.Health != 0 || s.GPU != epp.Known(0.9) {
		t.Errorf("%+v before the end", s)
	}
	if s := seen(time.Minute); s.Health == 0 || s.GPU.Known {
		t.Errorf("%+v long after", s)
	}
}

// TestCaseL2ClosedPortsAreNoPool: of eight listed ports one is open. The others, where
// nobody has ever listened, are all left out, and of what is left at most half may be:
// a pool of one stays.
func TestCaseL2ClosedPortsAreNoPool(t *testing.T) {
	tab := fleet.New(fleet.Options{})
	ms := join(tab, "open", "b", "c", "d", "e", "f", "g", "h")
	ms[0].Load(ms[0].Begin(start), start, epp.Load{})
	for range 4 {
		for _, m := range ms[1:] {
			m.Failed(start, syscall.ECONNREFUSED)
		}
	}
	tab.Pick(fleet.Query{}, start, func(v epp.View) (int, int) {
		for i, s := range v.Signals {
			if open := v.Endpoints[i].Name == "open"; open != (s.Health >= 0.3) {
				t.Errorf("%s has health %v", v.Endpoints[i].Name, s.Health)
			}
		}
		return -1, 0
	})
	for range 4 {
		ms[0].Failed(start, syscall.ECONNREFUSED)
	}
	tab.Pick(fleet.Query{}, start, func(v epp.View) (int, int) {
		for i, s := range v.Signals {
			if v.Endpoints[i].Name == "open" && s.Health < 0.3 {
				t.Errorf("the only one that was ever open has health %v", s.Health)
			}
		}
		return -1, 0
	})
}
