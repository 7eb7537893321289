package route_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"epp.internal/epp"
	"epp.internal/epp/decision"
	"epp.internal/epp/route"
)

// TestScoresAreBounded feeds every float there is into every signal: no factor
// and no sum leaves [0, 1], none is NaN, and the record says what was unknown.
func TestScoresAreBounded(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		in := drawInput(t, rapid.Float64())
		rec := new(decision.Record)
		p := mustPolicyRapid(t, drawSettings(t))
		chosen, err := p.Pick(in, rapid.Uint64().Draw(t, "seed"), nil, rec)
		for i := range rec.Candidates {
			if s := rec.Candidates[i].Sum; !(s >= 0 && s <= 1) {
				t.Fatalf("endpoint %d: sum %v", i, s)
			}
			for j := range p.Settings.Weights {
				if v := rec.Score(i, j).Value; !(v >= 0 && v <= 1) {
					t.Fatalf("endpoint %d: %s: %v", i, p.Settings.Weights[j].Name, v)
				}
			}
		}
		if (err == nil) != (chosen >= 0) {
			t.Fatalf("chosen %d, error %v", chosen, err)
		}
	})
}

// TestPermutation: the order of the pool means nothing. Permuted endpoints have
// permuted scores, and the same endpoint is picked.
func TestPermutation(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		in := drawInput(t, rapid.Float64Range(0, 40))
		p := mustPolicyRapid(t, drawSettings(t))
		seed := rapid.Uint64().Draw(t, "seed")
		perm := rapid.Permutation(indices(len(in.View.Endpoints))).Draw(t, "order")
		permuted := *in
		permuted.View.Endpoints, permuted.View.Signals = nil, nil
		for _, i := range perm {
			permuted.View.Endpoints = append(permuted.View.Endpoints, in.View.Endpoints[i])
			permuted.View.Signals = append(permuted.View.Signals, in.View.Signals[i])
		}
		a, b := new(decision.Record), new(decision.Record)
		chosenA, errA := p.Pick(in, seed, nil, a)
		chosenB, errB := p.Pick(&permuted, seed, nil, b)
		for k, i := range perm {
			if diff := cmp.Diff(a.Candidates[i], b.Candidates[k]); diff != "" {
				t.Fatalf("endpoint %d moved to %d: %s", i, k, diff)
			}
		}
		if fmt.Sprint(errA) != fmt.Sprint(errB) {
			t.Fatalf("error %v became %v", errA, errB)
		}
		if errA == nil && a.Candidates[chosenA].Name != b.Candidates[chosenB].Name {
			t.Fatalf("picked %s, permuted %s", a.Candidates[chosenA].Name, b.Candidates[chosenB].Name)
		}
	})
}

// TestMonotone: a better value of one signal never lowers an endpoint's sum.
func TestMonotone(t *testing.T) {
	better := map[string]func(*route.Input){
		"more cached":      func(in *route.Input) { in.Match[0].Blocks++ },
		"fewer waiting":    func(in *route.Input) { in.View.Signals[0].Waiting.Value /= 2 },
		"fewer running":    func(in *route.Input) { in.View.Signals[0].Running.Value /= 2 },
		"fewer in flight":  func(in *route.Input) { in.View.Signals[0].InFlight /= 2 },
		"fewer tokens":     func(in *route.Input) { in.View.Signals[0].InFlightTokens /= 2 },
		"less KV in use":   func(in *route.Input) { in.View.Signals[0].KVUsage.Value /= 2 },
		"healthier":        func(in *route.Input) { in.View.Signals[0].Health = min(1, in.View.Signals[0].Health*1.1) },
		"adapter resident": func(in *route.Input) { in.View.Resident = append(epp.Slots{}, 1) },
	}
	for name, improve := range better {
		t.Run(name, func(t *testing.T) {
			rapid.Check(t, func(t *rapid.T) {
				in := drawInput(t, rapid.Float64Range(0, 40))
				p := mustPolicyRapid(t, drawSettings(t))
				before, after := new(decision.Record), new(decision.Record)
				_, _ = p.Pick(in, 1, nil, before)
				improve(in)
				_, _ = p.Pick(in, 1, nil, after)
				if after.Candidates[0].Sum < before.Candidates[0].Sum-1e-12 {
					t.Fatalf("sum fell from %v to %v", before.Candidates[0].Sum, after.Candidates[0].Sum)
				}
			})
		})
	}
}

// TestReplay makes a decision again from its record alone, and gets the same
// record in every number.
func TestReplay(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		in := drawInput(t, rapid.Float64Range(0, 40))
		in.Request.Priority = rapid.IntRange(-1, 1).Draw(t, "priority")
		if rapid.Bool().Draw(t, "has subset") {
			in.Request.Subset = []string{in.View.Endpoints[0].Address}
		}
		p := mustPolicyRapid(t, drawSettings(t))
		rec := new(decision.Record)
		rec.Adapter = in.Request.Adapter
		tried := epp.Slots{rapid.Uint64Range(0, 3).Draw(t, "tried")}
		_, _ = p.Pick(in, rapid.Uint64().Draw(t, "seed"), tried, rec)
		if diff := cmp.Diff(rec, route.Replay(p, rec)); diff != "" {
			t.Fatalf("replay differs: %s", diff)
		}
	})
}

// TestCaseD2TiesSpread: idle endpoints share 300 requests evenly (each between
// half and 1.6 times its share), whatever the order of the list, for different
// prompts and for one that all of them hold; and two replicas that draw their
// own seeds don't choose in step.
func TestCaseD2TiesSpread(t *testing.T) {
	p := mustPolicy(t, decision.Defaults())
	for _, cached := range []uint32{0, 4} {
		counts, together := map[string]int{}, 0
		one, two := rand.New(rand.NewPCG(1, uint64(cached))), rand.New(rand.NewPCG(2, uint64(cached)))
		for range 300 {
			in := idlePool(3, cached)
			in.BlockedTokens = 4 * 16
			rec := new(decision.Record)
			i, err := p.Pick(in, one.Uint64(), nil, rec)
			if err != nil {
				t.Fatal(err)
			}
			counts[rec.Candidates[i].Name]++
			if k, _ := p.Pick(in, two.Uint64(), nil, rec); k == i {
				together++
			}
		}
		for name, n := range counts {
			if n < 50 || n > 160 {
				t.Errorf("%s got %d of 300, %d blocks cached everywhere", name, n, cached)
			}
		}
		if len(counts) != 3 || together > 160 {
			t.Errorf("%d endpoints used; replicas agreed %d times of 300", len(counts), together)
		}
	}
}

// TestCaseE3AbsurdValues: values that no engine can have are unknown (epp.Known
// says so), the endpoints stay usable, and equal endpoints don't divide by zero.
func TestCaseE3AbsurdValues(t *testing.T) {
	in := idlePool(5, 0)
	for i, v := range []float64{math.NaN(), math.Inf(1), -1, 1e308, 0.3} {
		in.View.Signals[i].KVUsage = epp.Known(v)
		in.View.Signals[i].Waiting = epp.Known(v)
	}
	s := decision.Defaults()
	s.Load.Source = decision.LoadKV
	rec := new(decision.Record)
	if _, err := mustPolicy(t, s).Pick(in, 1, nil, rec); err != nil {
		t.Fatal(err)
	}
	for i := range 3 {
		if rec.Candidates[i].Unknown != 1<<decision.LoadFactor|1<<decision.QueueFactor || rec.Candidates[i].Excluded != decision.Admitted {
			t.Errorf("endpoint %d: %+v", i, rec.Candidates[i])
		}
	}
}

// TestPickAllocatesNothing holds the contract of a decision in place.
func TestPickAllocatesNothing(t *testing.T) {
	if raceEnabled {
		t.Log("allocations mean nothing under the race detector; the pass without it counts them")
		return
	}
	in, rec, p := idlePool(64, 4), new(decision.Record), mustPolicy(t, decision.Defaults())
	in.BlockedTokens = 256
	if n := testing.AllocsPerRun(100, func() { _, _ = p.Pick(in, 1, nil, rec) }); n != 0 {
		t.Errorf("%v allocations a decision", n)
	}
}

func BenchmarkPick(b *testing.B) {
	for _, n := range []int{8, 64, 256, 1024} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			in, rec, p := idlePool(n, 4), new(decision.Record), mustPolicy(b, decision.Defaults())
			in.BlockedTokens = 256
			for i := range in.View.Signals {
				in.View.Signals[i].Waiting = epp.Known(float64(i % 7))
				in.View.Signals[i].Running = epp.Known(float64(i % 13))
			}
			b.ReportAllocs()
			for b.Loop() {
				_, _ = p.Pick(in, 1, nil, rec)
			}
		})
	}
}

func idlePool(n int, cached uint32) *route.Input {
	in := &route.Input{Request: new(epp.Request), Now: now}
	for i := range n {
		name := fmt.Sprintf("endpoint-%d", i)
		in.View.Endpoints = append(in.View.Endpoints, epp.Endpoint{Name: name, Address: name, Slot: epp.Slot(i)})
		in.View.Signals = append(in.View.Signals, epp.Signals{Health: 1, ReadAt: epp.InstantOf(now), Heard: true})
		in.Match = append(in.Match, epp.Match{Blocks: cached, BlockTokens: 16})
	}
	return in
}

func drawInput(t *rapid.T, value *rapid.Generator[float64]) *route.Input {
	n := rapid.IntRange(1, 6).Draw(t, "endpoints")
	in := idlePool(n, 0)
	in.BlockedTokens = 16 * rapid.IntRange(0, 20).Draw(t, "prompt blocks")
	if rapid.Bool().Draw(t, "adapter asked") {
		in.Request.Adapter = "sql"
	}
	gauge := rapid.Custom(func(t *rapid.T) epp.Gauge { return epp.Known(value.Draw(t, "value")) })
	small := rapid.IntRange(0, 40)
	for i := range n {
		s := &in.View.Signals[i]
		s.Waiting, s.Running = gauge.Draw(t, "waiting"), gauge.Draw(t, "running")
		s.KVUsage, s.GPU = gauge.Draw(t, "kv"), gauge.Draw(t, "gpu")
		s.InFlight, s.InFlightAtRead = small.Draw(t, "own"), small.Draw(t, "at read")
		s.InFlightTokens = rapid.IntRange(0, 1<<20).Draw(t, "tokens")
		s.MaxRunning = rapid.IntRange(0, 8).Draw(t, "slots")
		s.Health = value.Draw(t, "health")
		in.Match[i].Blocks = rapid.Uint32Range(0, 25).Draw(t, "blocks")
		if rapid.Bool().Draw(t, "resident") {
			in.View.Resident = in.View.Resident.Add(epp.Slot(i))
		}
	}
	return in
}

func drawSettings(t *rapid.T) *decision.Settings {
	s := decision.Defaults()
	s.Weights = rapid.Permutation(s.Weights).Draw(t, "weights")
	s.MaxQueue = rapid.IntRange(1, 30).Draw(t, "maxQueue")
	s.OnSaturated = rapid.SampledFrom([]decision.OnSaturated{decision.Degrade, decision.Reject}).Draw(t, "onSaturated")
	s.Load.Source = rapid.SampledFrom([]decision.LoadSource{decision.LoadRequests, decision.LoadTokens, decision.LoadKV, decision.LoadGPU}).Draw(t, "source")
	s.Load.MaxUtilization = rapid.Float64Range(0.1, 1).Draw(t, "maxUtilization")
	s.Spread = decision.Spread{Cold: rapid.Bool().Draw(t, "spreadCold"), Hot: rapid.Bool().Draw(t, "spreadHot")}
	return s
}

func mustPolicyRapid(t *rapid.T, s *decision.Settings) *route.Policy {
	p, err := route.New(s)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func indices(n int) []int {
	return slices.Collect(func(yield func(int) bool) {
		for i := range n {
			if !yield(i) {
				return
			}
		}
	})
}
