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
// the figures, how times to first token and to the end are spread, what waits, and
// each endpoint's load over time. title and note are shown as they are.
func WritePage(to io.Writer, title, note string, runs []*Result) error {
	p := page{}
	p.printf("<!doctype html><html lang=en><meta charset=utf-8><title>%s</title><style>%s</style>\n", html.EscapeString(title), pageStyle)
	p.printf("<h1>%s</h1><p>%s</p>\n", html.EscapeString(title), html.EscapeString(note))
	p.table(runs)
	p.times("Time to first token", runs, func(o *Outcome) time.Duration { return o.TTFT })
	p.times("Time to the end", runs, func(o *Outcome) time.Duration { return o.E2E })
	end := time.Duration(0)
	for _, r := range runs {
		for i := range r.Requests {
			end = max(end, r.Requests[i].At+r.Requests[i].E2E)
		}
	}
	var queues []series
	for i, r := range runs {
		n := r.over(end, func(int) bool { return true }, func(o *Outcome) time.Duration { return o.TTFT })
		queues = append(queues, series{r.Policy, color(i, len(runs)), overTime(n, end)})
	}
	p.plot(plot{title: "Requests that wait for their first token", x: "minutes", y: "requests", series: queues})
	for _, r := range runs {
		p.load(r, end)
	}
	_, err := io.WriteString(to, p.String())
	return err
}

const pageStyle = `body{font:14px system-ui,sans-serif;margin:2em auto;max-width:70em;padding:0 1em;color:#222;background:#fff}
table{border-collapse:collapse}td,th{padding:.15em .7em;text-align:right}td:first-child,th:first-child{text-align:left}
th{border-bottom:1px solid #888}svg{width:100%;height:auto}svg text{font:11px system-ui,sans-serif;fill:#555}
.grid{stroke:#ddd}polyline{fill:none;stroke-width:1.3}polyline:hover{stroke-width:4}.bar{display:inline-block;height:.7em;background:#69c}
@media(prefers-color-scheme:dark){body{color:#ddd;background:#181818}svg text{fill:#aaa}.grid{stroke:#333}}`

type page struct{ strings.Builder }

func (p *page) printf(format string, args ...any) { fmt.Fprintf(p, format, args...) }

// table has the figures, and the hits as bars besides.
func (p *page) table(runs []*Result) {
	p.printf("<table><tr><th>policy<th>hit<th><th>TTFT mean ms<th>p50<th>p99<th>E2E mean ms<th>p99<th>busiest ÷ mean<th>failed\n")
	for i, r := range runs {
		s := r.Summary()
		p.printf("<tr><td><span style=\"color:%s\">■</span> %s<td>%.1f %%<td style=\"text-align:left\"><span class=bar style=\"width:%.1fem\"></span><td>%d<td>%d<td>%d<td>%d<td>%d<td>%.2f<td>%d\n",
			color(i, len(runs)), html.EscapeString(r.Policy), 100*s.HitShare, 10*s.HitShare, s.MeanTTFT.Milliseconds(), s.P50TTFT.Milliseconds(),
			s.P99TTFT.Milliseconds(), s.MeanE2E.Milliseconds(), s.P99E2E.Milliseconds(), s.Imbalance, s.Failed)
	}
	p.printf("</table>\n")
}

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
		for k := 0; len(took) > 0 && k <= samples; k++ {
			at := k * (len(took) - 1) / samples
			s.points = append(s.points, [2]float64{took[at], 100 * float64(at+1) / float64(len(took))})
		}
		all = append(all, s)
	}
	p.plot(plot{title: title, x: "seconds", y: "% of requests", logarithmic: true, series: all})
}

// maxLines bounds the endpoints that are drawn one by one.
const maxLines = 64

// load is what every endpoint of a run had in flight.
func (p *page) load(r *Result, end time.Duration) {
	var all []series
	for e := range min(len(r.Endpoints), maxLines) {
		n := r.over(end, func(at int) bool { return at == e }, func(o *Outcome) time.Duration { return o.E2E })
		all = append(all, series{r.Endpoints[e].Name, color(e, min(len(r.Endpoints), maxLines)), overTime(n, end)})
	}
	title := "Requests in flight at each endpoint: " + r.Policy
	if len(r.Endpoints) > maxLines {
		title += fmt.Sprintf(" (the first %d of %d)", maxLines, len(r.Endpoints))
	}
	p.plot(plot{title: title, x: "minutes", y: "requests", series: all})
}

// samples is how many points a line has.
const samples = 240

// over counts, at samples equally far apart, the served requests of some endpoints
// that have arrived and not lasted yet.
func (r *Result) over(end time.Duration, at func(endpoint int) bool, lasts func(o *Outcome) time.Duration) []int {
	n := make([]int, samples+1)
	for i := range r.Requests {
		o := &r.Requests[i]
		if o.Failed || !at(o.Endpoint) || end == 0 {
			continue
		}
		sample := func(t time.Duration) int { return int(math.Ceil(float64(t) / float64(end) * samples)) }
		for k := sample(o.At); k < sample(o.At+lasts(o)) && k <= samples; k++ {
			n[k]++
		}
	}
	return n
}

func overTime(n []int, end time.Duration) [][2]float64 {
	points := make([][2]float64, len(n))
	for i := range n {
		points[i] = [2]float64{end.Minutes() * float64(i) / float64(len(n)-1), float64(n[i])}
	}
	return points
}

// color is the i-th of n that are as different as can be.
func color(i, n int) string { return fmt.Sprintf("hsl(%d 70%% 45%%)", 360*i/max(1, n)) }

// series is one line, plot some of them over the same axes.
type series struct {
	name, color string
	points      [][2]float64
}

type plot struct {
	title, x, y string
	logarithmic bool // x is a logarithm to base 10
	series      []series
}

// The size of a plot, and of its margin on the left and below.
const (
	plotWidth, plotHeight = 900.0, 260.0
	marginLeft, marginLow = 48.0, 34.0
)

// plot draws into the page.
func (p *page) plot(d plot) {
	low, high, top := math.Inf(1), math.Inf(-1), 0.0
	for _, s := range d.series {
		for _, q := range s.points {
			low, high, top = min(low, q[0]), max(high, q[0]), max(top, q[1])
		}
	}
	if low >= high || top == 0 {
		p.printf("<h2>%s</h2><p>Nothing to draw.</p>\n", html.EscapeString(d.title))
		return
	}
	x := func(v float64) float64 { return marginLeft + (v-low)/(high-low)*(plotWidth-marginLeft-8) }
	y := func(v float64) float64 { return 8 + (1-v/top)*(plotHeight-marginLow-8) }
	p.printf("<h2>%s</h2>\n<svg viewBox=\"0 0 %g %g\">\n", html.EscapeString(d.title), plotWidth, plotHeight)
	for _, v := range ticks(0, top) {
		p.printf("<line class=grid x1=%g x2=%g y1=%.1f y2=%.1f /><text x=%g y=%.1f text-anchor=end>%g</text>\n", marginLeft, plotWidth-8, y(v), y(v), marginLeft-5, y(v)+4, v)
	}
	for _, v := range d.ticksX(low, high) {
		p.printf("<line class=grid x1=%.1f x2=%.1f y1=8 y2=%g /><text x=%.1f y=%g text-anchor=middle>%s</text>\n", x(v), x(v), plotHeight-marginLow, x(v), plotHeight-marginLow+14, d.label(v))
	}
	p.printf("<text x=%g y=%g text-anchor=end>%s</text><text x=%g y=%g>%s</text>\n", plotWidth-8, plotHeight-4, d.x, 2.0, plotHeight-4, d.y)
	for _, s := range d.series {
		p.printf("<polyline style=\"stroke:%s\" points=\"", s.color)
		for _, q := range s.points {
			p.printf("%.1f,%.1f ", x(q[0]), y(q[1]))
		}
		p.printf("\"><title>%s</title></polyline>\n", html.EscapeString(s.name))
	}
	p.printf("</svg>\n")
}

// ticksX are the marks of the horizontal axis: the powers of ten and their doubles
// and fives, or plain ones.
func (d *plot) ticksX(low, high float64) (marks []float64) {
	if !d.logarithmic {
		return ticks(low, high)
	}
	for e := math.Floor(low); e <= high; e++ {
		for _, m := range []float64{1, 2, 5} {
			if v := e + math.Log10(m); v >= low && v <= high {
				marks = append(marks, v)
			}
		}
	}
	return marks
}

func (d *plot) label(v float64) string {
	if d.logarithmic {
		v = math.Pow(10, v)
	}
	return fmt.Sprintf("%.3g", v)
}

// ticks are some round numbers from low to high.
func ticks(low, high float64) (marks []float64) {
	step := math.Pow(10, math.Floor(math.Log10((high-low)/4)))
	for _, m := range []float64{5, 2} {
		if (high-low)/(step*m) >= 4 {
			step *= m
			break
		}
	}
	for v := math.Ceil(low/step) * step; v <= high; v += step {
		marks = append(marks, v)
	}
	return marks
}
