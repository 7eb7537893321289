package sim

import (
	"fmt"
	"html"
	"io"
	"math"
	"slices"
	"strings"
	"time"
)

// WritePage writes a report of runs of one trace as a page that needs nothing else:
// the figures, how times to first token and to the end are spread, the cache's hits
// and what waits over time, and each endpoint's load. title and note are shown as
// they are.
func WritePage(to io.Writer, title, note string, runs []*Result) error {
	p := page{}
	p.printf("<!doctype html><html lang=en><meta charset=utf-8><meta name=viewport content=\"width=device-width\"><title>%s</title><style>%s</style>\n", html.EscapeString(title), pageStyle)
	p.printf("<h1>%s</h1><p>%s</p>\n", html.EscapeString(title), html.EscapeString(note))
	p.table(runs)
	p.times("Time to first token", runs, func(o *Outcome) time.Duration { return o.TTFT })
	p.times("Time to the end", runs, func(o *Outcome) time.Duration { return o.E2E })
	end := endOf(runs)
	p.overTime("Cached share of the prompts that arrive", "% of tokens", end, runs, (*Result).hits)
	p.overTime("Requests that wait for their first token", "requests", end, runs, func(r *Result, end time.Duration) []float64 {
		return r.present(end, -1, func(o *Outcome) time.Duration { return o.TTFT })
	})
	p.loads(end, runs)
	_, err := io.WriteString(to, p.String())
	return err
}

const pageStyle = `body{font:14px system-ui,sans-serif;margin:2em auto;max-width:70em;padding:0 1em;color:#222;background:#fff}
table{border-collapse:collapse}td,th{padding:.15em .6em;text-align:right;white-space:nowrap}td:first-child,th:first-child{text-align:left}
th{border-bottom:1px solid #888}svg{width:100%;height:auto}svg text{font:11px system-ui,sans-serif;fill:#555}
.grid{stroke:#ddd}polyline{fill:none;stroke-width:1.3}polyline:hover{stroke-width:4}.bar{display:inline-block;height:.7em;background:#69c}
.key>span{margin-right:1.2em}h2{margin-bottom:.2em}.heat{fill:#c33}
@media(prefers-color-scheme:dark){body{color:#ddd;background:#181818}svg text{fill:#aaa}.grid{stroke:#333}.heat{fill:#e66}}`

type page struct{ strings.Builder }

func (p *page) printf(format string, args ...any) { fmt.Fprintf(p, format, args...) }

// table has the figures, and the hits as bars besides.
func (p *page) table(runs []*Result) {
	p.printf("<table><tr><th>policy<th>hit<th><th>TTFT mean ms<th>p50<th>p99<th>E2E mean ms<th>p99<th>busiest ÷ mean<th>failed<th>$ per 1,000\n")
	for i, r := range runs {
		s := r.Summary()
		p.printf("<tr><td>%s %s", swatch(i, len(runs)), html.EscapeString(r.Policy))
		if s.Served == 0 { // no figure of it is good
			p.printf("<td>–<td><td>–<td>–<td>–<td>–<td>–<td>–<td>%d (all)<td>–\n", s.Failed)
			continue
		}
		p.printf("<td>%.1f %%<td style=\"text-align:left\"><span class=bar style=\"width:%.1fem\"></span>", 100*s.HitShare, 10*s.HitShare)
		for _, d := range []time.Duration{s.MeanTTFT, s.P50TTFT, s.P99TTFT, s.MeanE2E, s.P99E2E} {
			p.printf("<td>%.0f", inMillis(d))
		}
		p.printf("<td>%.2f<td>%d<td>%.2f\n", s.Imbalance, s.Failed, s.DollarsPer1000)
	}
	p.printf("</table>\n")
}

// curve is how many points the spread of a time has.
const curve = 240

// times is the share of requests that took no longer, by a time in the scale of its
// logarithm.
func (p *page) times(title string, runs []*Result, of func(o *Outcome) time.Duration) {
	var all []series
	for i, r := range runs {
		var took []float64
		for k := range r.Requests {
			if o := &r.Requests[k]; !o.Failed {
				took = append(took, math.Log10(max(0.001, of(o).Seconds())))
			}
		}
		slices.Sort(took)
		s := series{name: r.Policy, color: color(i, len(runs))}
		for k := 0; len(took) > 0 && k <= curve; k++ {
			at := k * (len(took) - 1) / curve
			s.points = append(s.points, [2]float64{took[at], 100 * float64(at+1) / float64(len(took))})
		}
		all = append(all, s)
	}
	p.plot(plot{title: title, x: "seconds", y: "% of requests", logarithmic: true, series: all})
}

// overTime has a line for each run, of one value for each span of the time.
func (p *page) overTime(title, unit string, end time.Duration, runs []*Result, of func(r *Result, end time.Duration) []float64) {
	var all []series
	for i, r := range runs {
		s := series{name: r.Policy, color: color(i, len(runs))}
		for k, v := range of(r, end) {
			if !math.IsNaN(v) {
				s.points = append(s.points, [2]float64{end.Minutes() * (float64(k) + 0.5) / spans, v})
			}
		}
		all = append(all, s)
	}
	p.plot(plot{title: title, x: "minutes", y: unit, series: all})
}

// maxRows bounds the endpoints that are drawn one by one.
const maxRows = 64

// loads is what every endpoint of each run had in flight, all on one scale.
func (p *page) loads(end time.Duration, runs []*Result) {
	top := 0.0
	all := make([][]row, len(runs))
	for i, r := range runs {
		for e := range min(len(r.Endpoints), maxRows) {
			values := r.present(end, e, func(o *Outcome) time.Duration { return o.E2E })
			top = max(top, slices.Max(values))
			all[i] = append(all[i], row{r.Endpoints[e].Name, values})
		}
	}
	for i, r := range runs {
		title := "Requests in flight at each endpoint: " + r.Policy
		if len(r.Endpoints) > maxRows {
			title += fmt.Sprintf(" (the first %d of %d)", maxRows, len(r.Endpoints))
		}
		p.heat(title, end, top, all[i])
	}
}

// spans is how many parts the time of a run is cut into.
const spans = 120

// endOf is when the last request of any run has ended.
func endOf(runs []*Result) (end time.Duration) {
	for _, r := range runs {
		for i := range r.Requests {
			end = max(end, r.Requests[i].At+r.Requests[i].E2E)
		}
	}
	return end
}

// hits is, by span, the cached share in percent of the served prompts that arrived in
// it; NaN where none did.
func (r *Result) hits(end time.Duration) []float64 {
	var prompt, cached [spans]float64
	for i := range r.Requests {
		if o := &r.Requests[i]; !o.Failed && end > 0 {
			k := min(int(float64(o.At)/float64(end)*spans), spans-1)
			prompt[k] += float64(o.PromptTokens)
			cached[k] += float64(o.CachedTokens)
		}
	}
	share := make([]float64, spans)
	for k := range share {
		share[k] = 100 * cached[k] / prompt[k]
	}
	return share
}

// present is, by span, how many served requests of an endpoint, −1 for all, have
// arrived and not lasted yet, in the mean of the span.
func (r *Result) present(end time.Duration, endpoint int, lasts func(o *Outcome) time.Duration) []float64 {
	n := make([]float64, spans)
	for i := range r.Requests {
		o := &r.Requests[i]
		if o.Failed || endpoint >= 0 && o.Endpoint != endpoint || end == 0 {
			continue
		}
		from := float64(o.At) / float64(end) * spans
		to := float64(o.At+lasts(o)) / float64(end) * spans
		for k := int(from); k < spans && float64(k) < to; k++ {
			n[k] += min(to, float64(k+1)) - max(from, float64(k))
		}
	}
	return n
}
