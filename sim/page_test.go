package sim_test

import (
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"epp.internal/epp/sim"
	"epp.internal/epp/trace"
)

// TestPage: a report has every policy and endpoint, nothing outside its plots, no
// word of a name that a browser would take for its own, and needs nothing from
// elsewhere.
func TestPage(t *testing.T) {
	tr, err := trace.Generate(trace.Workload{Kind: "chat", Requests: 300, Seed: 2})
	if err != nil {
		t.Fatal(err)
	}
	var runs []*sim.Result
	for _, policy := range []string{"weighted", "random"} {
		r, err := sim.Run(t.Context(), sim.Config{Trace: tr, Policy: policy, Endpoints: 3, Seed: 1})
		if err != nil {
			t.Fatal(err)
		}
		runs = append(runs, r)
	}
	var b strings.Builder
	if err := sim.WritePage(&b, "<script>", "a & b", runs); err != nil {
		t.Fatal(err)
	}
	got := b.String()
	for _, want := range []string{
		"&lt;script&gt;", "a &amp; b", "> weighted<td>", "> random<td>", "<h2>Time to first token</h2>", "<h2>Time to the end</h2>",
		"<h2>Cached share of the prompts that arrive</h2>", "<h2>Requests that wait for their first token</h2>", "<h2>Requests in flight at each endpoint: random</h2>",
		"<title>" + runs[0].Endpoints[2].Name + ": ",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("no %q", want)
		}
	}
	for _, never := range []string{"<script", "http", "NaN", "Inf"} {
		if strings.Contains(got, never) {
			t.Errorf("%q is in the page", never)
		}
	}
	lines := regexp.MustCompile(`points="([^"]*)"`).FindAllStringSubmatch(got, -1)
	if len(lines) != 2+2+2+2 {
		t.Errorf("%d lines, want a line for each policy in four plots", len(lines))
	}
	for _, line := range lines {
		for _, point := range strings.Fields(line[1]) {
			x, y, _ := strings.Cut(point, ",")
			if v, err := strconv.ParseFloat(x, 64); err != nil || v < 40 || v > 900 {
				t.Fatalf("point %q is outside", point)
			}
			if v, err := strconv.ParseFloat(y, 64); err != nil || v < 0 || v > 230 {
				t.Fatalf("point %q is outside", point)
			}
		}
	}
}

// TestPageOfNothing: runs in which every request failed, and one that took no time,
// are a page all the same.
func TestPageOfNothing(t *testing.T) {
	for _, r := range []*sim.Result{
		{Policy: "none", Requests: []sim.Outcome{{Failed: true, Endpoint: -1}}},
		{Policy: "at once", Requests: []sim.Outcome{{TTFT: time.Nanosecond, E2E: time.Nanosecond}}, Endpoints: []sim.EndpointResult{{Name: "a"}}},
	} {
		var b strings.Builder
		if err := sim.WritePage(&b, "t", "", []*sim.Result{r}); err != nil || !strings.Contains(b.String(), "Nothing to draw.") || strings.Contains(b.String(), "NaN") {
			t.Errorf("%s: error %v, page\n%s", r.Policy, err, b.String())
		}
	}
}

// TestPageOverTime: what a page shows over time sums up to what the run did.
func TestPageOverTime(t *testing.T) {
	minute := func(o sim.Outcome) sim.Outcome {
		o.At, o.TTFT, o.E2E = o.At*time.Minute, o.TTFT*time.Minute, o.E2E*time.Minute
		return o
	}
	r := &sim.Result{Policy: "p", Endpoints: []sim.EndpointResult{{Name: "a"}, {Name: "b"}}, Requests: []sim.Outcome{
		minute(sim.Outcome{At: 0, TTFT: 1, E2E: 2, PromptTokens: 100, CachedTokens: 0, Endpoint: 0}),
		minute(sim.Outcome{At: 1, TTFT: 1, E2E: 3, PromptTokens: 100, CachedTokens: 75, Endpoint: 0}),
		minute(sim.Outcome{At: 1, TTFT: 0, E2E: 0, PromptTokens: 100, CachedTokens: 25, Endpoint: 0}),
		minute(sim.Outcome{At: 2, PromptTokens: 900, Endpoint: -1, Failed: true}),
	}}
	var b strings.Builder
	if err := sim.WritePage(&b, "t", "", []*sim.Result{r}); err != nil {
		t.Fatal(err)
	}
	lines := regexp.MustCompile(`points="([^"]*)"`).FindAllStringSubmatch(b.String(), -1)
	// The two spans in which prompts arrived: 0 % at the axis, 50 % at the top.
	if got := strings.Fields(lines[2][1]); len(got) != 2 || !strings.HasSuffix(got[0], ",226.0") || !strings.HasSuffix(got[1], ",8.0") {
		t.Errorf("the cached share's points are %q", got)
	}
	// a had one request for a minute, two for another, one for two; b none.
	rects := regexp.MustCompile(`<rect class=heat x=([0-9.]+) y=0 width=([0-9.]+) height=15 fill-opacity=([0-9.]+)><title>a: ([0-9.]+)</title>`).FindAllStringSubmatch(b.String(), -1)
	var got []string
	for _, m := range rects {
		got = append(got, strings.Join(m[1:], " "))
	}
	if want := "120.0 193.0 0.50 1, 313.0 193.0 1.00 2, 506.0 386.0 0.50 1"; strings.Join(got, ", ") != want {
		t.Errorf("a's row is %q, want %s", got, want)
	}
	if strings.Contains(b.String(), "<title>b: ") {
		t.Error("b did nothing, and its row is not empty")
	}
}
