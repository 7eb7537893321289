package sim_test

import (
	"context"
	"encoding/json"
	"errors"
	"math"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"epp.internal/epp/engine"
	"epp.internal/epp/sim"
	"epp.internal/epp/trace"
)

// generated is a small workload of a kind.
func generated(t testing.TB, kind string, requests int) *trace.Trace {
	tr, err := trace.Generate(trace.Workload{Kind: kind, Requests: requests, Seed: 3})
	if err != nil {
		t.Fatal(err)
	}
	return tr
}

func run(t testing.TB, cfg sim.Config) *sim.Result {
	if cfg.Endpoints == 0 {
		cfg.Endpoints = 4
	}
	r, err := sim.Run(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// TestClosedForm follows one request and then the same again on an idle engine of
// profile article-8b: 4,096 cold tokens take 900 ms and a full hit 45 ms; each
// further token takes 45 ms and what its context adds.
func TestClosedForm(t *testing.T) {
	prompt := []trace.Segment{{ID: 1, Tokens: 4096}}
	tr := &trace.Trace{Requests: []trace.Request{
		{Prompt: prompt, Answer: trace.Segment{ID: 2, Tokens: 3}},
		{At: 10 * time.Second, Prompt: prompt, Answer: trace.Segment{ID: 3, Tokens: 1}},
	}}
	r := run(t, sim.Config{Trace: tr, Policy: "weighted", Endpoints: 1})
	p, _ := engine.ProfileNamed("article-8b")
	ms := func(v float64) time.Duration { return time.Duration(math.Round(v * 1e6)) }
	cold := ms(p.T0 + p.A*4096 + p.B*4096*4096/2)
	// The second answer token has 4,097 tokens before it, the third 4,098.
	if o := r.Requests[0]; o.TTFT != cold || o.E2E != cold+ms(p.T0+p.TW+p.K*4097)+ms(p.T0+p.TW+p.K*4098) {
		t.Errorf("cold: %+v, want a first token after %v", o, cold)
	}
	// Two prefills and two decode steps at $3.67 an hour, for two requests.
	if got, want := r.Summary().DollarsPer1000, 3.67/3600*500*(r.Requests[0].E2E+r.Requests[1].E2E).Seconds(); math.Abs(got-want) > 1e-9 {
		t.Errorf("%v dollars for 1,000 requests, want %v", got, want)
	}
	// Of a full hit the last block is computed again: 16 tokens behind 4,080.
	hit := ms(p.T0 + p.TW + p.B*16*(4080+8))
	if o := r.Requests[1]; o.TTFT != hit || o.CachedTokens != 4080 {
		t.Errorf("hit: %+v, want a first token after %v", o, hit)
	}
}

// TestSameSeedSameBytes runs every policy twice.
func TestSameSeedSameBytes(t *testing.T) {
	tr := generated(t, "chat", 150)
	for _, name := range sim.PolicyNames() {
		cfg := sim.Config{Trace: tr, Policy: name, Seed: 5, ReportLoss: 0.1, EventLoss: 0.05}
		a, _ := json.Marshal(run(t, cfg).Requests)
		b, _ := json.Marshal(run(t, cfg).Requests)
		if string(a) != string(b) {
			t.Errorf("%s: one seed, two results", name)
		}
		cfg.Seed++
		if c, _ := json.Marshal(run(t, cfg).Requests); string(a) == string(c) && !slices.Contains([]string{"round-robin", "weighted-round-robin", "header-hash", "url-hash", "chwbl", "chwbl-100", "prefix-hash", "sglang", "sglang-0.3", "vllm-router", "aibrix-preble", "preble"}, name) {
			t.Errorf("%s: two seeds, one result", name)
		}
	}
}

// TestInvariants: whatever is asked for and whatever goes wrong, every request ends
// once, times are in order, and no more is cached than was ever computed before.
func TestInvariants(t *testing.T) {
	faults := []sim.Fault{
		{Kind: sim.Crash, At: 20 * time.Second, Endpoint: 0, For: 10 * time.Second},
		{Kind: sim.Restart, At: 40 * time.Second, Endpoint: 1, For: 5 * time.Second},
		{Kind: sim.Slow, At: 10 * time.Second, Endpoint: 2, For: time.Minute, Factor: 3},
		{Kind: sim.Hang, At: 30 * time.Second, Endpoint: 3, For: 20 * time.Second},
		{Kind: sim.ECC, At: 60 * time.Second, Endpoint: 0, For: 5 * time.Second},
		{Kind: sim.Up, At: 50 * time.Second},
		{Kind: sim.Down, At: 70 * time.Second, Endpoint: 2},
	}
	kinds, _ := trace.Kinds()
	for _, kind := range kinds {
		tr := generated(t, kind, 200)
		for _, name := range []string{"gate", "latency", "dynamo"} {
			for _, f := range [][]sim.Fault{nil, faults} {
				r := run(t, sim.Config{Trace: tr, Policy: name, Faults: f, Seed: 1})
				failed, cached := 0, 0
				for i, o := range r.Requests {
					switch {
					case o.Failed:
						failed++
					case o.TTFT <= 0 || o.E2E < o.TTFT || o.CachedTokens >= o.PromptTokens || o.Endpoint < 0:
						t.Fatalf("%s, %s: request %d: %+v", kind, name, i, o)
					}
					cached += o.CachedTokens
				}
				// Turns hold the answer before them, which Stats knows as a segment of its own.
				if st := tr.Stats(); cached > st.SharedTokens+st.AnswerTokens {
					t.Errorf("%s, %s: %d tokens cached, an endless cache holds %d", kind, name, cached, st.SharedTokens)
				}
				if f == nil && failed > 0 {
					t.Errorf("%s, %s: %d failed without a fault", kind, name, failed)
				}
				if failed > len(r.Requests)*3/4 { // a crash breaks off what is being answered, which may be all there is
					t.Errorf("%s, %s: %d of %d failed", kind, name, failed, len(r.Requests))
				}
			}
		}
	}
}

// TestCrash: what an engine had not begun to answer when it crashed is answered
// elsewhere, and what it had is lost; it comes back and serves again.
func TestCrash(t *testing.T) {
	tr := generated(t, "chat", 600)
	r := run(t, sim.Config{Trace: tr, Policy: "weighted", Faults: []sim.Fault{{Kind: sim.Crash, At: 60 * time.Second, Endpoint: 1, For: 20 * time.Second}}})
	lost, again, before, during, after := 0, 0, 0, 0, 0
	for _, o := range r.Requests {
		switch {
		case o.Failed:
			lost++
		case o.Attempts > 1:
			again++
		}
		if o.Endpoint != 1 {
			continue
		}
		switch {
		case o.At < 60*time.Second:
			before++
		case o.At < 80*time.Second:
			during++
		default:
			after++
		}
	}
	if lost == 0 || before == 0 || during != 0 || after == 0 {
		t.Errorf("lost %d, sent again %d, served there before %d, during %d, after %d", lost, again, before, during, after)
	}
}

// TestHotPrefixHerd is the pitfall of a sum: most requests share nearly all of
// their prompt. Behind a gate, and by predicted latency, nobody waits for it.
func TestHotPrefixHerd(t *testing.T) {
	p, _ := engine.ProfileNamed("a100-8b")
	tr := generated(t, "hot", 1500)
	for _, name := range []string{"gate", "latency"} {
		s := run(t, sim.Config{Trace: tr, Policy: name, Endpoints: 8, Engine: engine.Config{Profile: p}}).Summary()
		if s.MeanTTFT > 400*time.Millisecond {
			t.Errorf("%s: mean time to first token %v, want under 400ms", name, s.MeanTTFT)
		}
	}
}

// TestSlowEndpointGetsLess: with one endpoint at a third of the speed, policy
// latency learns it from first tokens alone, and sends less there.
func TestSlowEndpointGetsLess(t *testing.T) {
	p, _ := engine.ProfileNamed("a100-8b")
	tr := generated(t, "rag", 2000)
	r := run(t, sim.Config{
		Trace: tr, Policy: "latency", Endpoints: 4, Engine: engine.Config{Profile: p},
		Faults: []sim.Fault{{Kind: sim.Slow, Endpoint: 0, Factor: 3}},
	})
	slow, others := r.Endpoints[0].Requests, 0
	for _, e := range r.Endpoints[1:] {
		others += e.Requests
	}
	if 2*slow > others/3 || slow == 0 {
		t.Errorf("the slow endpoint has %d requests, the others %d on average: want some, and less than half", slow, others/3)
	}
}

// TestRefusedConfigs: each fault is named with its value.
func TestRefusedConfigs(t *testing.T) {
	tr := generated(t, "hot", 10)
	for want, cfg := range map[string]sim.Config{
		"trace: no request in it":           {Policy: "random", Endpoints: 1},
		"endpoints: 5000: want 1–4096":      {Trace: tr, Policy: "random", Endpoints: 5000},
		`policy "fast": no such policy`:     {Trace: tr, Policy: "fast", Endpoints: 1},
		"report loss: 2: want 0–1":          {Trace: tr, Policy: "random", Endpoints: 1, ReportLoss: 2},
		"event lag: -1ns":                   {Trace: tr, Policy: "random", Endpoints: 1, EventLag: -1},
		`fault "melt": no such kind`:        {Trace: tr, Policy: "random", Endpoints: 1, Faults: []sim.Fault{{Kind: "melt"}}},
		"fault crash: endpoint 7: want 0–0": {Trace: tr, Policy: "random", Endpoints: 1, Faults: []sim.Fault{{Kind: sim.Crash, Endpoint: 7}}},
	} {
		if _, err := sim.Run(t.Context(), cfg); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want %s", err, want)
		}
	}
	ctx, stop := context.WithCancel(t.Context())
	stop()
	if _, err := sim.Run(ctx, sim.Config{Trace: generated(t, "chat", 500), Policy: "random", Endpoints: 4}); !errors.Is(err, context.Canceled) {
		t.Errorf("error %v, want that it was cancelled", err)
	}
}

func TestParseFault(t *testing.T) {
	f, err := sim.ParseFault("slow@10m:3:1m:2.5")
	if want := (sim.Fault{Kind: sim.Slow, At: 10 * time.Minute, Endpoint: 3, For: time.Minute, Factor: 2.5}); err != nil || f != want {
		t.Errorf("%+v, %v, want %+v", f, err, want)
	}
	for _, text := range []string{"", "crash", "crash@soon", "crash@1m:x", "crash@1m:1:1m:1:1"} {
		if _, err := sim.ParseFault(text); err == nil || !strings.Contains(err.Error(), "want kind@time") {
			t.Errorf("%q: error %v", text, err)
		}
	}
}

// TestMooncakesOrder: in figure 5 of Mooncake's paper random routing takes 3.73 times
// as long to the first token as load balancing, and going by what each endpoint's
// cache leaves to compute 0.68 times, on 16 endpoints of a 70B model. The model gives
// the order, on the first sixteenth of the conversation trace with answers of one token.
func TestMooncakesOrder(t *testing.T) {
	tr := conversation(t).Part(0, 0.0625)
	for i := range tr.Requests {
		tr.Requests[i].Answer.Tokens = 1
	}
	p, _ := engine.ProfileNamed("a100-70b-tp4")
	var mean [3]float64
	for i, policy := range []string{"random", "least-conn", "latency"} {
		mean[i] = millis(run(t, sim.Config{Trace: tr, Policy: policy, Endpoints: 16, Engine: engine.Config{Profile: p}, Seed: 1}).Summary().MeanTTFT)
	}
	random, aware := mean[0]/mean[1], mean[2]/mean[1]
	if random < 2.5 || random > 5 || aware < 0.6 || aware > 0.95 {
		t.Errorf("random : least connections : latency = %.2f : 1 : %.2f, want 2.5–5 : 1 : 0.6–0.95", random, aware)
	}
}

// conversation is the Mooncake conversation trace.
func conversation(t testing.TB) *trace.Trace {
	f, err := os.Open("../trace/testdata/mooncake_conversation.jsonl.gz")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	tr, err := trace.Read("conversation", f)
	if err != nil {
		t.Fatal(err)
	}
	return tr
}

// BenchmarkConversation is the whole conversation trace on 8 endpoints of profile
// a100-8b: 12,031 requests of 12,035 tokens on average.
func BenchmarkConversation(b *testing.B) {
	tr := conversation(b)
	p, _ := engine.ProfileNamed("a100-8b")
	for b.Loop() {
		s := run(b, sim.Config{Trace: tr, Policy: "weighted", Endpoints: 8, Engine: engine.Config{Profile: p}, Seed: 1}).Summary()
		b.ReportMetric(millis(s.MeanTTFT), "ms-TTFT")
	}
}

func millis(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
