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
		"<h2>Requests that wait for their first token</h2>", "<h2>Requests in flight at each endpoint: random</h2>",
		"<title>" + runs[0].Endpoints[2].Name + "</title>",
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
	if len(lines) != 2+2+2+3+3 {
		t.Errorf("%d lines, want a line for each policy in three plots, and for each endpoint of each", len(lines))
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
