package route_test

import (
	"math"
	"testing"
	"time"

	"pgregory.net/rapid"

	"epp.internal/epp"
	"epp.internal/epp/decision"
	"epp.internal/epp/route"
)

// TestPickIsItsColumns: the one pass of a decision gives, in every bit, what the
// scorers give one column after another, with the sums, the filters and the
// choice made over all endpoints one after another.
func TestPickIsItsColumns(t *testing.T) {
	rec := new(decision.Record) // one for all: what an earlier decision left shows nowhere
	rapid.Check(t, func(t *rapid.T) {
		in := drawInput(t, rapid.SampledFrom([]*rapid.Generator[float64]{
			rapid.Float64(), rapid.Float64Range(0, 40), rapid.SampledFrom([]float64{0, 1, 8}),
		}).Draw(t, "range"))
		for i := range in.View.Signals {
			age := rapid.Int64Range(-1e9, 40e9).Draw(t, "age")
			in.View.Signals[i].ReadAt = epp.InstantOf(now.Add(-time.Duration(age)))
			if rapid.IntRange(0, 9).Draw(t, "never read") == 0 {
				in.View.Signals[i].ReadAt = 0
			}
		}
		p := mustPolicyRapid(t, drawSettings(t))
		if rapid.Bool().Draw(t, "outside") {
			route.AddScorer(p, "long", 0.25, lengthScorer{})
		}
		seed := rapid.Uint64().Draw(t, "seed")
		_, _ = p.Pick(in, seed, nil, rec)
		want := columns(p, in)
		if len(rec.Candidates) != len(in.View.Endpoints) {
			t.Fatalf("%d candidates of %d endpoints", len(rec.Candidates), len(in.View.Endpoints))
		}
		n := len(rec.Candidates)
		for i := range rec.Candidates {
			for j := range p.Settings.Weights {
				if got := rec.Score(i, j); got != want[j][i] {
					t.Fatalf("endpoint %d, %s: %+v, by column %+v", i, p.Settings.Weights[j].Name, got, want[j][i])
				}
			}
			sum := 0.0
			for f := range decision.Factors { // the house's, in its order
				for j, w := range p.Settings.Weights {
					if decision.FactorOf(w.Name) == f {
						sum += float64(w.Value * want[j][i].Value)
					}
				}
			}
			sum = min(sum, 1)
			for j, w := range p.Settings.Weights {
				if decision.FactorOf(w.Name) == decision.Factors {
					sum = min(1, sum+float64(w.Value*want[j][i].Value))
				}
			}
			if rec.Candidates[i].Sum != sum {
				t.Fatalf("endpoint %d: sum %v, by column %v", i, rec.Candidates[i].Sum, sum)
			}
		}
		first, second := -1, -1
		for i := range n {
			switch {
			case rec.Candidates[i].Excluded != decision.Admitted:
			case first < 0 || better(rec, i, first):
				first, second = i, first
			case second < 0 || better(rec, i, second):
				second = i
			}
		}
		if rec.Refused == "" && (rec.Chosen != first || rec.RunnerUp != second) {
			t.Fatalf("chosen %d before %d, one after another %d before %d", rec.Chosen, rec.RunnerUp, first, second)
		}
	})
}

// columns runs the scorers one after another and holds them to their contract.
func columns(p *route.Policy, in *route.Input) [][]epp.Score {
	var out [][]epp.Score
	for _, w := range p.Settings.Weights {
		column := make([]epp.Score, len(in.View.Endpoints))
		scorer := route.Scorer(lengthScorer{})
		for _, b := range route.Builtins {
			if b.Name == w.Name {
				scorer = b.Scorer
			}
		}
		scorer.Score(in, column)
		for i := range column {
			switch v := column[i].Value; {
			case math.IsNaN(v):
				column[i].Value, column[i].Unknown = 0.5, true
			default:
				column[i].Value = max(0, min(1, v))
			}
		}
		out = append(out, column)
	}
	return out
}

// better is the order of candidates, spelt out.
func better(rec *decision.Record, i, k int) bool {
	a, b := &rec.Candidates[i], &rec.Candidates[k]
	if x, y := math.Round(a.Sum/decision.Grid), math.Round(b.Sum/decision.Grid); x != y {
		return x > y
	}
	if a.Load != b.Load {
		return a.Load < b.Load
	}
	if a.Queue != b.Queue {
		return a.Queue < b.Queue
	}
	if x, y := route.TieHash(rec.Seed, a.Name), route.TieHash(rec.Seed, b.Name); x != y {
		return x < y
	}
	return a.Name < b.Name
}

// lengthScorer is a scorer that is not of the house, and sloppy: it rates every
// third endpoint by no number at all, others above 1, and always says why.
type lengthScorer struct{}

func (lengthScorer) Score(in *route.Input, out []epp.Score) {
	for i := range out {
		out[i].Detail = "by length"
		switch s := in.View.Endpoints[i].Slot; s % 3 {
		case 0:
			out[i].Value = math.NaN()
		case 1:
			out[i].Value = 7
		default:
			out[i].Value = 1 / float64(len(in.View.Endpoints[i].Name))
		}
	}
}

// TestBuiltinsAreTheFactors: the table of scorers and the factors of a candidate
// have one order.
func TestBuiltinsAreTheFactors(t *testing.T) {
	if len(route.Builtins) != int(decision.Factors) {
		t.Fatalf("%d scorers, %d factors", len(route.Builtins), decision.Factors)
	}
	for i, b := range route.Builtins {
		if f := decision.FactorOf(b.Name); f != decision.Factor(i) {
			t.Errorf("%s: line %d of the table, factor %d", b.Name, i, f)
		}
	}
}
