package route_test

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"epp.internal/epp"
	"epp.internal/epp/decision"
	"epp.internal/epp/route"
)

// herd is a pool of two: "hot" holds the whole prompt and has work before it for
// 40,000 tokens, "idle" holds nothing and has nothing to do.
func herd(settings func(*decision.Settings)) (*route.Policy, *route.Input, *decision.Record) {
	s := decision.Defaults()
	settings(s)
	p, err := route.New(s)
	if err != nil {
		panic(err)
	}
	known := func(v float64) epp.Gauge { return epp.Known(v) }
	in := &route.Input{
		Request:       &epp.Request{},
		BlockedTokens: 4096,
		Match:         []epp.Match{{Blocks: 256, BlockTokens: 16}, {}},
		Now:           now,
		View: epp.View{
			Endpoints: []epp.Endpoint{{Name: "hot", Slot: 0}, {Name: "idle", Slot: 1}},
			Signals: []epp.Signals{
				{Health: 1, Waiting: known(4), Running: known(8), InFlight: 12, InFlightAtRead: 12},
				{Health: 1, Waiting: known(0), Running: known(0)},
			},
			Work: []epp.Work{{Pending: 40000}, {}},
			Pace: epp.Pace{FirstToken: 0.02, PerWork: 1e-4, Answer: 4, PerRequest: 0.2},
		},
	}
	return p, in, &decision.Record{PromptTokens: 4100}
}

// The sum alone stays with the match, whatever waits there. The gate leaves the
// endpoint out as soon as it is slower by more than it allows, and the latency
// policy never asks for the sum.
func TestHotEndpointIsLeft(t *testing.T) {
	for _, c := range []struct {
		name string
		set  func(*decision.Settings)
		want string
		out  decision.Exclusion
	}{
		{"sum", func(*decision.Settings) {}, "hot", decision.Admitted},
		{"gate of 1 s", func(s *decision.Settings) { s.Gate = time.Second }, "idle", decision.Slow},
		{"gate of 1 min", func(s *decision.Settings) { s.Gate = time.Minute }, "hot", decision.Admitted},
		{"copies of hot prefixes", func(s *decision.Settings) { s.Spread.Hot, s.Load.MaxRunning = true, 12 }, "idle", decision.Hot},
		{"a prefix that is not hot", func(s *decision.Settings) { s.Spread.Hot, s.Load.MaxRunning = true, 13 }, "hot", decision.Admitted},
		{"latency", func(s *decision.Settings) { s.Policy = decision.Latency }, "idle", decision.Admitted},
	} {
		p, in, rec := herd(c.set)
		i, err := p.Pick(in, 1, nil, rec)
		if err != nil || rec.Candidates[i].Name != c.want || rec.Candidates[0].Excluded != c.out {
			t.Errorf("%s: picked %d, hot is %q, error %v: want %s, %q", c.name, i, rec.Candidates[0].Excluded, err, c.want, c.out)
		}
	}
}

// TestPredictionByHand follows the formula with round numbers. The idle endpoint
// computes 4,100 tokens: 4,100 + 4e-5·4,100²/2 = 4,436.2 units of work.
func TestPredictionByHand(t *testing.T) {
	p, in, rec := herd(func(s *decision.Settings) { s.Policy = decision.Latency })
	in.View.Work[1].Slowness = 2
	if _, err := p.Pick(in, 1, nil, rec); err != nil {
		t.Fatal(err)
	}
	near := func(got, want float64) bool { return got > want-1e-9 && got < want+1e-9 }
	idle := rec.Predictions[1]
	if want := 2 * (0.02 + 0.44362); !near(idle.FirstToken, want) {
		t.Errorf("first token at idle: %v, want %v", idle.FirstToken, want)
	}
	if want := 2 * (0.02 + 0.44362 + 0.125*4); !near(idle.Cost, want) {
		t.Errorf("cost at idle: %v, want %v", idle.Cost, want)
	}
	// Of the 4,100 tokens 4,096 are cached: 4 are left, each with 4,096 before it.
	own := 4 + 4e-5*4*(4096+2)
	hot := rec.Predictions[0]
	if want := 0.02 + 1e-4*(40000+own); !near(hot.FirstToken, want) {
		t.Errorf("first token at hot: %v, want %v", hot.FirstToken, want)
	}
	if want := 0.02 + 1e-4*(40000+own) + 0.125*(4+0.2*12+1e-4*own*12); !near(hot.Cost, want) {
		t.Errorf("cost at hot: %v, want %v", hot.Cost, want)
	}
}

// TestReplayPredicts: a record of a predicting policy gives, made again, itself.
func TestReplayPredicts(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		in := drawInput(t, rapid.Float64Range(0, 40))
		in.View.Pace = epp.Pace{
			FirstToken: rapid.Float64Range(0, 1).Draw(t, "first"), PerWork: rapid.Float64Range(0, 1e-3).Draw(t, "work"),
			Answer: rapid.Float64Range(0, 60).Draw(t, "answer"), PerRequest: rapid.Float64Range(0, 3).Draw(t, "request"),
		}
		for range in.View.Endpoints {
			in.View.Work = append(in.View.Work, epp.Work{
				Pending: rapid.Float64Range(0, 1e6).Draw(t, "pending"), Slowness: rapid.Float64Range(0, 10).Draw(t, "slowness"),
			})
		}
		s := drawSettings(t)
		s.Gate = time.Duration(rapid.Int64Range(0, 10e9).Draw(t, "gate"))
		if rapid.Bool().Draw(t, "latency") {
			s.Policy, s.Spread = decision.Latency, decision.Spread{}
		}
		p := mustPolicyRapid(t, s)
		rec := &decision.Record{PromptTokens: in.BlockedTokens, Adapter: in.Request.Adapter}
		chosen, err := p.Pick(in, rapid.Uint64().Draw(t, "seed"), nil, rec)
		if again := route.Replay(p, rec); cmp.Diff(rec, again) != "" {
			t.Fatal(cmp.Diff(rec, again))
		}
		if err == nil && rec.Candidates[chosen].Excluded != decision.Admitted {
			t.Fatalf("picked %d, which is %s", chosen, rec.Candidates[chosen].Excluded)
		}
	})
}

// TestWhySaysWhatTheGateDid: the explanation names who would have won, and by how
// much slower it is; that of policy latency tells both costs.
func TestWhySaysWhatTheGateDid(t *testing.T) {
	p, in, rec := herd(func(s *decision.Settings) { s.Gate = time.Second })
	_, _ = p.Pick(in, 1, nil, rec)
	if got, want := rec.Why(), "the only candidate; hot has a higher sum and is left out, 3.86 s slower than the pick"; got != want {
		t.Errorf("gate: %q, want %q", got, want)
	}
	p, in, rec = herd(func(s *decision.Settings) { s.Policy = decision.Latency })
	_, _ = p.Pick(in, 1, nil, rec)
	if got, want := rec.Why(), "predicted cost 0.96 s against 4.82 s of hot"; got != want {
		t.Errorf("latency: %q, want %q", got, want)
	}
}

// TestPredictionAllocatesNothing holds the contract of a decision for those that
// predict.
func TestPredictionAllocatesNothing(t *testing.T) {
	if raceEnabled {
		t.Log("allocations mean nothing under the race detector; the pass without it counts them")
		return
	}
	p, in, rec := herd(func(s *decision.Settings) { s.Policy, s.Gate = decision.Latency, time.Second })
	_, _ = p.Pick(in, 1, nil, rec)
	if n := testing.AllocsPerRun(100, func() { _, _ = p.Pick(in, 1, nil, rec) }); n != 0 {
		t.Errorf("%v allocations for a decision, want 0", n)
	}
}
