package metrics

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http/httptest"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"

	"epp.internal/epp"
	"epp.internal/epp/audit"
	"epp.internal/epp/decision"
	"epp.internal/epp/picker"
)

// page fetches the page and returns the lines that begin with one of prefixes,
// comments included.
func page(t testing.TB, m *Metrics, prefixes ...string) string {
	t.Helper()
	w := httptest.NewRecorder()
	m.Handler().ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
	if w.Code != 200 {
		t.Fatalf("status %d: %s", w.Code, w.Body)
	}
	var b strings.Builder
	for line := range strings.Lines(w.Body.String()) {
		name := strings.TrimPrefix(strings.TrimPrefix(line, "# HELP "), "# TYPE ")
		for _, p := range prefixes {
			if strings.HasPrefix(name, p) {
				b.WriteString(line)
				break
			}
		}
	}
	return b.String()
}

// record is a decision of one endpoint pod-a that holds matched of four blocks.
func record(model string, matched uint32) *decision.Record {
	r := &decision.Record{
		Model: model, PromptTokens: 70, BlockTokens: 16, BlockedTokens: 64, TokenSource: epp.LocalTokens,
		Settings: decision.Defaults(), Admitted: 1, RunnerUp: -1,
		Timings: decision.Timings{Tokenize: 300 * time.Microsecond, Match: 3 * time.Microsecond, Score: 1500 * time.Nanosecond},
	}
	r.Resize(1)
	r.Candidates[0] = decision.Candidate{Endpoint: &epp.Endpoint{Name: "pod-a", Address: "10.0.0.7:8000"}, Sum: 0.85}
	if matched > 0 {
		r.Candidates[0].Match = epp.Match{Blocks: matched, BlockTokens: 16}
	}
	return r
}

// ending is the end of what r decided.
func ending(r *decision.Record) *picker.Ending {
	c := &r.Candidates[0]
	return &picker.Ending{
		Endpoint:        epp.Endpoint{Name: c.Name, Address: c.Address},
		PredictedTokens: c.CachedTokens(r.PromptTokens),
	}
}

// The page after a known history: names, help, types, labels, bounds and values.
// Commands of testdata/page:
//
//	decide model=… [matched=n] [refused=why] [adapter=name] [resident] [unknown] [degraded]
//	end model=… [matched=n] cached=n ttft=duration
//	happens           one of everything else
//	fleet             name address queue health in-flight tokens blocks [stale] [incomplete] [unconfirmed] [reason=word], a line each
//	page prefix=(…)   the lines of these names
func TestPage(t *testing.T) {
	var now Snapshot
	m := New(Options{Version: "test", Models: []string{"base"}, Snapshot: func() Snapshot { return now }})
	datadriven.RunTest(t, "testdata/page", func(t *testing.T, d *datadriven.TestData) string {
		var model, refused, adapter, ttft string
		var matched, cached int
		d.MaybeScanArgs(t, "model", &model)
		d.MaybeScanArgs(t, "matched", &matched)
		r := record(model, uint32(matched))
		switch d.Cmd {
		case "decide":
			if d.MaybeScanArgs(t, "refused", &refused); refused != "" {
				r.Refused, r.Chosen, r.Admitted = refused, -1, 0
			}
			if d.MaybeScanArgs(t, "adapter", &adapter); adapter != "" {
				r.Adapter, r.Candidates[0].Resident = adapter, d.HasArg("resident")
			}
			r.Degraded = d.HasArg("degraded")
			if d.HasArg("unknown") {
				r.Candidates[0].Unknown = 1 << decision.LoadFactor
			}
			m.Decision(r)
		case "end":
			d.ScanArgs(t, "cached", &cached)
			d.ScanArgs(t, "ttft", &ttft)
			e := ending(r)
			e.Outcome, e.CachedTokens = "served", cached
			e.TTFT, _ = time.ParseDuration(ttft)
			m.Ended(e)
		case "happens":
			happens(m)
		case "fleet":
			now = fleet(t, d.Input)
		case "page":
			var prefixes []string
			for _, a := range d.CmdArgs {
				prefixes = append(prefixes, a.Vals...)
			}
			return page(t, m, prefixes...)
		}
		return "ok\n"
	})
}

func happens(m *Metrics) {
	m.Answered("/v1/chat/completions", 200, 1500*time.Millisecond)
	m.Answered("/v1/chat/completions", 499, time.Second)
	m.Answered("other", 404, time.Millisecond)
	m.Answered("other", -1, 0)
	m.Retried("refused")
	m.RetryDenied("reset")
	m.CutOff("reset")
	m.Scraped(3*time.Millisecond, nil)
	m.Scraped(2*time.Second, errors.New("timed out"))
	m.Probed("failed", 2*time.Second)
	m.BadValue("vllm:num_requests_waiting")
	m.KVEvents("BlockStored", 16)
	m.KVBad("sequence_short")
	m.KVGap()
	m.Report("taken")
	m.ReportsMissed(2)
	m.KVRestart()
	m.KVReplay("complete")
	m.Stream("served", "BUFFERED", "NONE", true)
	m.Asked(picker.AskLate)
	m.Stale(3)
}

func fleet(t *testing.T, input string) Snapshot {
	s := Snapshot{MaxQueue: 20, IndexBlocks: 1234, IndexBytes: 98720, RingBytes: 4096, BookingsBound: 2, DecisionsDropped: 3}
	for line := range strings.Lines(input) {
		var e Endpoint
		if _, err := fmt.Sscan(line, &e.Name, &e.Address, &e.Queue, &e.Health, &e.InFlight, &e.InFlightTokens, &e.Blocks); err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		if _, reason, held := strings.Cut(line, "reason="); held {
			e.HealthReason, _, _ = strings.Cut(strings.TrimSpace(reason), " ")
		}
		e.Stale, e.Incomplete = strings.Contains(line, "stale"), strings.Contains(line, "incomplete")
		if strings.Contains(line, "unconfirmed") {
			for range 10 {
				e.Truth.Add(time.Unix(0, 0), audit.Outcome{Predicted: 96, Reported: 32, OurTokens: 100, EngineTokens: 100, BlockTokens: 16, Heard: true})
			}
			e.Doubt = float64(e.Truth.Doubt(time.Unix(0, 0))) / 100
		}
		s.Endpoints = append(s.Endpoints, e)
	}
	return s
}

// The runtime's and the process's own metrics are on the page, and what this
// build is.
func TestPageShowsProcessAndBuild(t *testing.T) {
	got := page(t, New(Options{Version: "v1.2"}), "go_goroutines", "process_resident_memory_bytes", "epp_build_info")
	for _, want := range []string{"go_goroutines ", "process_resident_memory_bytes ", `version="v1.2"`} {
		if !strings.Contains(got, want) {
			t.Errorf("no %s in:\n%s", want, got)
		}
	}
}

// Case O1: 50,000 requests with invented model names, most of them refused,
// leave a bounded number of series; the configured model, asked for last, has
// its own, and so has a model that was served before.
func TestCaseO1ModelLabel(t *testing.T) {
	m := New(Options{Models: []string{"configured"}})
	random := rand.New(rand.NewPCG(1, 2))
	m.Decision(record("served-first", 0))
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	for i := range 50_000 {
		r := record(fmt.Sprintf("random-%x\xff", random.Uint64()), 0)
		if i%10 > 0 {
			r = record(fmt.Sprintf("random-%x", random.Uint64()), 0)
		}
		if i%4 > 0 {
			r.Chosen, r.Refused = -1, "model_unknown"
		}
		r.Adapter = r.Model
		m.Decision(r)
	}
	m.Decision(record("configured", 0))
	runtime.GC()
	runtime.ReadMemStats(&after)

	lines := page(t, m, nameDecisions+"{", nameAdapterLoads+"{")
	if n := strings.Count(lines, "\n"); n > 1000 {
		t.Errorf("%d series", n)
	}
	for _, want := range []string{
		`epp_routing_decisions_total{model="configured",outcome="picked"} 1`,
		`epp_routing_decisions_total{model="served-first",outcome="picked"} 1`,
		`epp_routing_decisions_total{model="other",outcome="model_unknown"} 37500`,
		`epp_adapter_loads_triggered_total{adapter="other"}`,
	} {
		if !strings.Contains(lines, want) {
			t.Errorf("no %s", want)
		}
	}
	if grown := int64(after.HeapAlloc) - int64(before.HeapAlloc); grown > 5<<20 {
		t.Errorf("heap grew by %d bytes", grown)
	}
}

// Case O3: 200 endpoints come and go, 5 at a time; the page shows the series of
// the 5 that are there, one family each, also of what is counted per endpoint.
// An endpoint that is listed twice breaks nothing.
func TestCaseO3SeriesOfRemovedEndpoints(t *testing.T) {
	var now Snapshot
	m := New(Options{Snapshot: func() Snapshot { return now }})
	for i := range 200 {
		r := record("m", 2)
		r.Candidates[0].Name, r.Candidates[0].Address = fmt.Sprint("pod-", i), fmt.Sprintf("10.0.0.%d:8000", i)
		m.Ended(ending(r))
		now.Endpoints = append(now.Endpoints, Endpoint{Name: r.Candidates[0].Name, Address: r.Candidates[0].Address})
		if len(now.Endpoints) > 5 {
			now.Endpoints = now.Endpoints[1:]
		}
		page(t, m)
	}
	now.Endpoints = append(now.Endpoints, now.Endpoints[0])
	got := page(t, m, "epp_")
	if n := strings.Count(got, `epp_pod_health_score{`); n != 5 {
		t.Errorf("%d series of health, want 5", n)
	}
	for i := range 200 {
		for _, series := range []string{"epp_pod_health_score", "epp_reported_cached_tokens_total"} {
			if has := strings.Contains(got, fmt.Sprintf(`%s{endpoint="10.0.0.%d:8000",pod="pod-%d"}`, series, i, i)); has != (i >= 195) {
				t.Errorf("pod-%d: %s shown = %v", i, series, has)
			}
		}
	}
}

func BenchmarkDecision(b *testing.B) {
	m := New(Options{Models: []string{"base"}})
	r := record("base", 2)
	b.ReportAllocs()
	for b.Loop() {
		m.Decision(r)
	}
}

func BenchmarkPage1024(b *testing.B) {
	var now Snapshot
	for i := range 1024 {
		now.Endpoints = append(now.Endpoints, Endpoint{Name: fmt.Sprint("pod-", i), Address: fmt.Sprintf("10.0.%d.%d:8000", i/250, i%250)})
	}
	m := New(Options{Snapshot: func() Snapshot { return now }})
	b.ReportAllocs()
	for b.Loop() {
		page(b, m)
	}
}

// Models come and go in the configuration, each asked for: those that have gone have
// no series, those that are there have their own, and so has one that was served
// under its own name before it was configured.
func TestConfiguredModelsComeAndGo(t *testing.T) {
	m := New(Options{Models: []string{"first"}})
	m.Decision(record("first", 0))
	m.Decision(record("served", 0))
	for i := range 3000 {
		name := fmt.Sprint("generation-", i)
		m.SetModels([]string{name, "stays", "served"})
		m.Decision(record(name, 0))
		m.Decision(record("stays", 0))
	}
	m.SetModels([]string{"stays"})
	refused := record("generation-7", 0)
	refused.Chosen, refused.Refused = -1, "model_unknown"
	m.Decision(refused)
	got := page(t, m, "epp_routing_decisions_total{")
	want := `epp_routing_decisions_total{model="other",outcome="model_unknown"} 1
epp_routing_decisions_total{model="served",outcome="picked"} 1
epp_routing_decisions_total{model="stays",outcome="picked"} 3000
`
	if got != want {
		t.Errorf("got\n%swant\n%s", got, want)
	}
}
