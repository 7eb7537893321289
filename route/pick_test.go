package route_test

import (
	"encoding/json"
	"fmt"
	"math"
	"os"
	"strconv"
	"strings"
	"testing"
	"text/tabwriter"
	"time"

	"github.com/cockroachdb/datadriven"

	"epp.internal/epp"
	"epp.internal/epp/decision"
	"epp.internal/epp/route"
)

var now = time.Date(2026, 11, 29, 12, 0, 0, 0, time.UTC)

// TestGoldenScores holds the formula to the exact vectors V1–V5: the float sum
// within 1e-12 of the rational, the cutoffs, the composite and the winner.
// testdata/golden_scores.json was worked out in exact rationals beforehand.
func TestGoldenScores(t *testing.T) {
	var vectors []struct {
		Name, Says, Winner string
		MaxQueue           int
		Weights            map[string]float64
		Endpoints          []struct {
			Endpoint                                       string
			CacheMatchRatio, LoadRatio, QueueDepth, Health float64
			AdapterMatch                                   int
			Formula, Composite                             float64
			Excluded                                       string
		}
	}
	data, err := os.ReadFile("testdata/golden_scores.json")
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(data, &vectors); err != nil {
		t.Fatal(err)
	}
	if len(vectors) != 5 {
		t.Fatalf("%d vectors, want V1–V5", len(vectors))
	}
	for _, v := range vectors {
		t.Run(v.Name, func(t *testing.T) {
			s := decision.Defaults()
			s.MaxQueue = v.MaxQueue
			s.Load.Source = decision.LoadKV // the vectors give the ratio itself
			for i := range s.Weights {
				s.Weights[i].Value = v.Weights[s.Weights[i].Name]
			}
			const tokens = 10000 // blocks of one token, so that every ratio is exact
			in := route.Input{Request: &epp.Request{Adapter: "sql"}, BlockedTokens: tokens, Now: now}
			for i, e := range v.Endpoints {
				in.View.Endpoints = append(in.View.Endpoints, epp.Endpoint{Name: e.Endpoint, Slot: epp.Slot(i)})
				in.View.Signals = append(in.View.Signals, epp.Signals{
					KVUsage: epp.Known(e.LoadRatio), Waiting: epp.Known(e.QueueDepth), Health: e.Health,
				})
				in.Match = append(in.Match, epp.Match{Blocks: uint32(math.Round(e.CacheMatchRatio * tokens)), BlockTokens: 1})
				if e.AdapterMatch == 1 {
					in.View.Resident = in.View.Resident.Add(epp.Slot(i))
				}
			}
			rec := new(decision.Record)
			chosen, err := mustPolicy(t, s).Pick(&in, 1, nil, rec)
			if err != nil {
				t.Fatal(err)
			}
			for i, e := range v.Endpoints {
				c := &rec.Candidates[i]
				if math.Abs(c.Sum-e.Formula) > 1e-12 || math.Abs(c.Composite()-e.Composite) > 1e-12 || c.Excluded.String() != e.Excluded {
					t.Errorf("%s: formula %v, composite %v, excluded %q; want %v, %v, %q",
						e.Endpoint, c.Sum, c.Composite(), c.Excluded, e.Formula, e.Composite, e.Excluded)
				}
			}
			if got := rec.Candidates[chosen].Name; got != v.Winner {
				t.Errorf("%s: picked %s, want %s", v.Says, got, v.Winner)
			}
		})
	}
}

// TestPick runs the worked examples of testdata/pick. The commands:
//
//	settings [weights=(cache=…,…)] [maxQueue=] [onSaturated=] [source=] [maxRunning=]
//	endpoints: a line each: name [waiting=] [running=] [kv=] [own=] [atRead=] [tokens=]
//	           [maxRunning=] [health=] [blocks=] [age=] [resident] [other-model]
//	pick [blocks=] [adapter] [priority=] [subset=(name,…)] [tried=(name,…)] [seed=]
func TestPick(t *testing.T) {
	datadriven.Walk(t, "testdata/pick", func(t *testing.T, path string) {
		s := decision.Defaults()
		var in route.Input
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			switch d.Cmd {
			case "settings":
				s = settings(t, d)
				if _, err := route.New(s); err != nil {
					return err.Error()
				}
				return "ok"
			case "endpoints":
				in = endpoints(t, d.Input)
				return "ok"
			case "pick":
				return pick(t, s, in, d)
			}
			t.Fatalf("%s: unknown command %q", d.Pos, d.Cmd)
			return ""
		})
	})
}

func settings(t *testing.T, d *datadriven.TestData) *decision.Settings {
	s := decision.Defaults()
	for _, arg := range d.CmdArgs {
		v := strings.Join(arg.Vals, ",")
		switch arg.Key {
		case "weights":
			s.Weights = nil
			for _, w := range arg.Vals {
				name, value, _ := strings.Cut(w, "=")
				s.Weights = append(s.Weights, decision.Weight{Name: name, Value: number(t, value)})
			}
		case "maxQueue":
			s.MaxQueue = int(number(t, v))
		case "maxRunning":
			s.Load.MaxRunning = int(number(t, v))
		case "onSaturated":
			s.OnSaturated = decision.OnSaturated(v)
		case "source":
			s.Load.Source = decision.LoadSource(v)
		default:
			t.Fatalf("settings: unknown key %q", arg.Key)
		}
	}
	return s
}

// endpoints reads one endpoint a line; the slots follow the lines.
func endpoints(t *testing.T, lines string) route.Input {
	in := route.Input{Now: now}
	for i, line := range strings.Split(strings.TrimSpace(lines), "\n") {
		words := strings.Fields(line)
		slot := epp.Slot(i)
		sig := epp.Signals{Health: 1, ReadAt: epp.InstantOf(now), Heard: true, Adapters: true}
		var m epp.Match
		atRead := math.NaN()
		serves := true
		for _, w := range words[1:] {
			key, v, _ := strings.Cut(w, "=")
			switch key {
			case "waiting":
				sig.Waiting = epp.Known(number(t, v))
			case "running":
				sig.Running = epp.Known(number(t, v))
			case "kv":
				sig.KVUsage = epp.Known(number(t, v))
			case "own":
				sig.InFlight = int(number(t, v))
			case "atRead":
				atRead = number(t, v)
			case "tokens":
				sig.InFlightTokens = int(number(t, v))
			case "maxRunning":
				sig.MaxRunning = int(number(t, v))
			case "health":
				sig.Health = number(t, v)
			case "blocks":
				m = epp.Match{Blocks: uint32(number(t, v)), BlockTokens: 16}
			case "age":
				age, err := time.ParseDuration(v)
				if err != nil {
					t.Fatal(err)
				}
				sig.ReadAt = epp.InstantOf(now.Add(-age))
			case "silent":
				sig.Heard = false
			case "untold":
				sig.Adapters = false
			case "resident":
				in.View.Resident = in.View.Resident.Add(slot)
			case "other-model":
				serves = false
			default:
				t.Fatalf("endpoint %s: unknown key %q", words[0], key)
			}
		}
		sig.InFlightAtRead = sig.InFlight
		if !math.IsNaN(atRead) {
			sig.InFlightAtRead = int(atRead)
		}
		if serves {
			in.View.Serves = in.View.Serves.Add(slot)
		}
		in.View.Endpoints = append(in.View.Endpoints, epp.Endpoint{Name: words[0], Address: words[0], Slot: slot})
		in.View.Signals = append(in.View.Signals, sig)
		in.Match = append(in.Match, m)
	}
	return in
}

func pick(t *testing.T, s *decision.Settings, in route.Input, d *datadriven.TestData) string {
	in.Request = new(epp.Request)
	var tried epp.Slots
	seed := uint64(1)
	for _, arg := range d.CmdArgs {
		v := strings.Join(arg.Vals, ",")
		switch arg.Key {
		case "blocks":
			in.BlockedTokens = 16 * int(number(t, v))
		case "adapter":
			in.Request.Adapter = "sql"
		case "priority":
			in.Request.Priority = int(number(t, v))
		case "subset":
			in.Request.Subset = append([]string{}, arg.Vals...)
		case "tried":
			for i, e := range in.View.Endpoints {
				if strings.Contains(","+v+",", ","+e.Name+",") {
					tried = tried.Add(epp.Slot(i))
				}
			}
		case "seed":
			seed = uint64(number(t, v))
		default:
			t.Fatalf("pick: unknown key %q", arg.Key)
		}
	}
	rec := new(decision.Record)
	chosen, err := mustPolicy(t, s).Pick(&in, seed, tried, rec)
	return table(rec, chosen, err)
}

// table prints a record as a person would want to read it.
func table(rec *decision.Record, chosen int, err error) string {
	var b strings.Builder
	tw := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	fmt.Fprint(tw, "endpoint")
	for _, w := range rec.Settings.Weights {
		fmt.Fprintf(tw, "\t%s", w.Name)
	}
	fmt.Fprint(tw, "\ttotal\t\n")
	for i := range rec.Candidates {
		c := &rec.Candidates[i]
		fmt.Fprint(tw, c.Name)
		for j := range rec.Settings.Weights {
			sc := rec.Score(i, j)
			mark := ""
			if sc.Unknown {
				mark = "?"
			}
			fmt.Fprintf(tw, "\t%.3f%s", sc.Value, mark)
		}
		note := c.Excluded.String()
		if i == chosen {
			note = "<- picked"
		}
		fmt.Fprintf(tw, "\t%.4f\t%s\n", c.Composite(), note)
	}
	tw.Flush()
	if why := rec.Why(); why != "" {
		fmt.Fprintf(&b, "why: %s\n", why)
	}
	if err != nil {
		e := epp.AsError(err)
		fmt.Fprintf(&b, "%d %s: %s\n", e.Kind.HTTPStatus(), e.Reason, e.Message)
	}
	lines := strings.Split(b.String(), "\n")
	for i := range lines {
		lines[i] = strings.TrimRight(lines[i], " ")
	}
	return strings.Join(lines, "\n")
}

func mustPolicy(t testing.TB, s *decision.Settings) *route.Policy {
	p, err := route.New(s)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func number(t *testing.T, s string) float64 {
	v, err := strconv.ParseFloat(s, 64)
	if err != nil {
		t.Fatal(err)
	}
	return v
}
