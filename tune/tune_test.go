package tune_test

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"epp.internal/epp/config"
	"epp.internal/epp/decision"
	"epp.internal/epp/engine"
	"epp.internal/epp/sim"
	"epp.internal/epp/trace"
	"epp.internal/epp/tune"
)

// steady is a trace of an hour with a request every 2 s.
func steady() *trace.Trace {
	t := &trace.Trace{Name: "steady"}
	for i := range 1800 {
		t.Requests = append(t.Requests, trace.Request{At: time.Duration(i) * 2 * time.Second, Prompt: []trace.Segment{{ID: uint64(i), Tokens: 100}}})
	}
	return t
}

// surface simulates a world in which a request takes as much longer as the weights
// are away from the given ones, by the depth, besides what its own time is.
func surface(depth float64, best ...float64) func(context.Context, sim.Config) (*sim.Result, error) {
	return func(_ context.Context, cfg sim.Config) (*sim.Result, error) {
		away := 0.0
		for i, w := range cfg.Settings.Weights {
			away += (w.Value - best[i]) * (w.Value - best[i])
		}
		random := rand.New(rand.NewPCG(uint64(len(cfg.Trace.Requests)), 1))
		r := &sim.Result{}
		for _, q := range cfg.Trace.Requests {
			ttft := time.Duration((1 + depth*away) * (0.5 + random.Float64()) * float64(time.Second))
			r.Requests = append(r.Requests, sim.Outcome{At: q.At, TTFT: ttft, E2E: ttft + time.Second, PromptTokens: 100})
		}
		return r, nil
	}
}

// watched is a source that notes which parts were asked for.
type watched struct {
	*trace.Trace
	mu    sync.Mutex
	parts []float64 // where they end
}

func (w *watched) Part(from, to float64) *trace.Trace {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.parts = append(w.parts, to)
	return w.Trace.Part(from, to)
}

// TestPlantedOptimum: the best weights of a world are found, the proposal goes their
// way by no more than is allowed, and only then the last quarter is read, once.
func TestPlantedOptimum(t *testing.T) {
	source := &watched{Trace: steady()}
	best := []float64{0.30, 0.40, 0.20, 0.05, 0.05}
	r, err := tune.Run(t.Context(), tune.Config{Source: source, Current: decision.Defaults(), Simulate: surface(5, best...)})
	if err != nil {
		t.Fatal(err)
	}
	if !r.Change {
		t.Fatalf("kept: %s", r.Reason)
	}
	sum := 0.0
	for i, w := range r.Best {
		if math.Abs(w.Value-best[i]) > 0.051 {
			t.Errorf("%s: found %.3f, planted %.2f", w.Name, w.Value, best[i])
		}
		if move := math.Abs(r.Proposed[i].Value - r.Current[i].Value); move > tune.DefaultMaxMove+1e-9 {
			t.Errorf("%s moves by %.3f", w.Name, move)
		}
		sum += r.Proposed[i].Value
	}
	if math.Abs(sum-1) > 1e-9 || r.Proposed[0].Value > 0.51 {
		t.Errorf("proposed %+v", r.Proposed)
	}
	if n := len(source.parts); n != 3 || source.parts[0] != 0.5 || source.parts[1] != 0.75 || source.parts[2] != 1 {
		t.Errorf("parts that end at %v were read, want 0.5, 0.75 and 1 in turn", source.parts)
	}
	if r.Test.High >= 0 || r.Test.Share() > -tune.SimulatorError {
		t.Errorf("test part: %+v", r.Test)
	}
	// The requests of the warm-up before a part count in no figure of it.
	for name, c := range map[string]*tune.Comparison{"second": r.Valid, "last": r.Test} {
		if n := c.Requests; n < 449 || n > 451 {
			t.Errorf("%s part: %d requests count, want a quarter of 1800", name, n)
		}
	}
	cfg, err := config.Parse("patched", append([]byte("pool: {endpoints: [10.0.0.7:8000]}\n"), r.Patch()...))
	if err != nil {
		t.Fatalf("the patch is no configuration: %v", err)
	}
	if got, want := cfg.Weights["cache"], r.Proposed[0].Value; math.Abs(got-want) > 1e-9 {
		t.Errorf("patch has cache %v, want %v", got, want)
	}
}

// TestKeeps: where nothing is to be gained, where the gain does not last, and where
// another world would turn it into a loss, the answer is keep; and the last quarter
// is not looked at for it.
func TestKeeps(t *testing.T) {
	plain := surface(5, 0.30, 0.40, 0.20, 0.05, 0.05)
	for _, c := range []struct {
		name     string
		simulate func(context.Context, sim.Config) (*sim.Result, error)
		want     string
	}{
		{"flat", surface(0, 0, 0, 0, 0, 0), "no weights are better by more than the simulator may be wrong"},
		{"nearly flat", surface(0.05, 0.3, 0.4, 0.2, 0.05, 0.05), "no weights are better by more than"},
		{"changed times", func(ctx context.Context, cfg sim.Config) (*sim.Result, error) {
			if cfg.Policy != "search" {
				return surface(5, 0.60, 0.20, 0.10, 0.05, 0.05)(ctx, cfg)
			}
			return plain(ctx, cfg)
		}, "on the second part, no gain is proved"},
		{"noise alone", func(ctx context.Context, cfg sim.Config) (*sim.Result, error) {
			r, err := surface(0, 0, 0, 0, 0, 0)(ctx, cfg)
			random := rand.New(rand.NewPCG(math.Float64bits(cfg.Settings.Weights[0].Value+10*cfg.Settings.Weights[1].Value), 2))
			for i := range r.Requests {
				r.Requests[i].TTFT = time.Duration(random.ExpFloat64() * float64(r.Requests[i].TTFT))
			}
			return r, err
		}, "on the second part, no gain is proved"},
		{"failures", func(ctx context.Context, cfg sim.Config) (*sim.Result, error) {
			r, err := plain(ctx, cfg)
			if cfg.Policy != "search" && cfg.Settings.Weights[0].Value < 0.6 {
				r.Requests[len(r.Requests)-1].Failed = true
			}
			return r, err
		}, "1 requests fail in place of 0"},
		{"a trap", func(ctx context.Context, cfg sim.Config) (*sim.Result, error) {
			if len(cfg.Faults) > 0 {
				return surface(50, 0.60, 0.20, 0.10, 0.05, 0.05)(ctx, cfg)
			}
			return plain(ctx, cfg)
		}, "the change loses "},
	} {
		source := &watched{Trace: steady()}
		r, err := tune.Run(t.Context(), tune.Config{Source: source, Current: decision.Defaults(), Simulate: c.simulate})
		if err != nil {
			t.Fatal(err)
		}
		if r.Change || !strings.Contains(r.Reason, c.want) || r.Patch() != nil {
			t.Errorf("%s: change %v, reason %q, want keep: %s", c.name, r.Change, r.Reason, c.want)
		}
		for _, to := range source.parts {
			if to > 0.75 {
				t.Errorf("%s: a part to %v was read", c.name, to)
			}
		}
		var text strings.Builder
		if err := r.Write(&text); err != nil || !strings.HasPrefix(text.String(), "KEEP the weights: ") || !strings.Contains(text.String(), "was not looked at") {
			t.Errorf("%s: error %v, report\n%s", c.name, err, text.String())
		}
	}
}

// TestWorlds: each of the other worlds differs from the configured one in what its name
// says, twice, for the current weights and for the proposed ones.
func TestWorlds(t *testing.T) {
	profile, _ := engine.ProfileNamed("a100-8b")
	plain := surface(5, 0.30, 0.40, 0.20, 0.05, 0.05)
	var mu sync.Mutex
	runs, length := map[string]int{}, time.Duration(0)
	r, err := tune.Run(t.Context(), tune.Config{
		Source: steady(), Current: decision.Defaults(),
		Sim: sim.Config{Endpoints: 8, Engine: engine.Config{Profile: profile}, ReportEvery: 2 * time.Second},
		Simulate: func(ctx context.Context, cfg sim.Config) (*sim.Result, error) {
			mu.Lock()
			defer mu.Unlock()
			switch span := cfg.Trace.Duration(); cfg.Policy {
			case "validation":
				length = span
			case "sensitivity":
				text := fmt.Sprintf("prefill %.1f %.1f, rate %.2f, readings %v, %d endpoints", cfg.Engine.Profile.A/profile.A,
					cfg.Engine.Profile.B/profile.B, length.Seconds()/span.Seconds(), cfg.ReportEvery, cfg.Endpoints)
				for _, f := range cfg.Faults {
					text += fmt.Sprintf(", %s at %.1f by %v", f.Kind, f.At.Seconds()/span.Seconds(), f.Factor)
				}
				runs[text]++
			}
			return plain(ctx, cfg)
		},
	})
	if err != nil || !r.Change {
		t.Fatalf("%+v, %v", r, err)
	}
	for _, want := range []string{
		"prefill 0.5 0.5, rate 1.00, readings 2s, 8 endpoints",
		"prefill 2.0 2.0, rate 1.00, readings 2s, 8 endpoints",
		"prefill 1.0 1.0, rate 0.80, readings 2s, 8 endpoints",
		"prefill 1.0 1.0, rate 1.20, readings 2s, 8 endpoints",
		"prefill 1.0 1.0, rate 1.00, readings 100ms, 8 endpoints",
		"prefill 1.0 1.0, rate 1.00, readings 1s, 8 endpoints",
		"prefill 1.0 1.0, rate 1.00, readings 5s, 8 endpoints",
		"prefill 1.0 1.0, rate 1.00, readings 2s, 6 endpoints",
		"prefill 1.0 1.0, rate 1.00, readings 2s, 10 endpoints",
		"prefill 1.0 1.0, rate 1.00, readings 2s, 8 endpoints, slow at 0.0 by 2",
		"prefill 1.0 1.0, rate 1.00, readings 2s, 8 endpoints, restart at 0.5 by 0",
	} {
		if runs[want] != 2 {
			t.Errorf("%q has %d runs, want 2", want, runs[want])
		}
		delete(runs, want)
	}
	if len(runs) > 0 {
		t.Errorf("beside them %v", runs)
	}
}

// TestRealEngines: on the engine model, weights that ignore the cache are moved to it
// where prompts share much; where every endpoint is idle and warm they are kept.
func TestRealEngines(t *testing.T) {
	profile, _ := engine.ProfileNamed("article-8b")
	for _, c := range []struct {
		trace   trace.Workload
		weights []float64
		change  bool
	}{
		{trace.Workload{Kind: "chat", Requests: 1300, Rate: 0.5, Seed: 5}, []float64{0, 0.8, 0.1, 0.05, 0.05}, true},
		{trace.Workload{Kind: "batch", Requests: 600, Rate: 0.2, Seed: 5}, []float64{0.6, 0.2, 0.1, 0.05, 0.05}, false},
	} {
		source, err := trace.Generate(c.trace)
		if err != nil {
			t.Fatal(err)
		}
		current := decision.Defaults()
		for i := range current.Weights {
			current.Weights[i].Value = c.weights[i]
		}
		r, err := tune.Run(t.Context(), tune.Config{
			Source: source, Current: current, MaxMove: 1,
			Sim: sim.Config{Endpoints: 3, Engine: engine.Config{Profile: profile}, Seed: 1},
		})
		if err != nil {
			t.Fatal(err)
		}
		if r.Change != c.change || c.change && r.Proposed[0].Value < 0.1 {
			var text strings.Builder
			_ = r.Write(&text)
			t.Errorf("%s: %s", c.trace.Kind, text.String())
		}
	}
}
