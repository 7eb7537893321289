package sim

import (
	"fmt"
	"html"
	"math"
	"time"
)

// color is the i-th of n that are as different as can be.
func color(i, n int) string { return fmt.Sprintf("hsl(%d 70%% 45%%)", 360*i/max(1, n)) }

func swatch(i, n int) string {
	return fmt.Sprintf("<span style=\"color:%s\">■</span>", color(i, n))
}

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

// The size of a plot, and of its margins.
const (
	plotWidth, plotHeight = 900.0, 260.0
	marginLeft, marginLow = 48.0, 34.0
	marginRight           = 8.0
)

// plot draws into the page.
func (p *page) plot(d plot) {
	low, high, top := math.Inf(1), math.Inf(-1), 0.0
	for _, s := range d.series {
		for _, q := range s.points {
			low, high, top = min(low, q[0]), max(high, q[0]), max(top, q[1])
		}
	}
	p.printf("<h2>%s</h2>\n", html.EscapeString(d.title))
	if low >= high || top == 0 {
		p.printf("<p>Nothing to draw.</p>\n")
		return
	}
	p.printf("<div class=key>")
	for i, s := range d.series {
		p.printf("<span>%s %s</span>", swatch(i, len(d.series)), html.EscapeString(s.name))
	}
	x := func(v float64) float64 { return marginLeft + (v-low)/(high-low)*(plotWidth-marginLeft-marginRight) }
	y := func(v float64) float64 { return 8 + (1-v/top)*(plotHeight-marginLow-8) }
	p.printf("</div>\n<svg viewBox=\"0 0 %g %g\">\n", plotWidth, plotHeight)
	for _, v := range ticks(0, top) {
		p.printf("<line class=grid x1=%g x2=%g y1=%.1f y2=%.1f /><text x=%g y=%.1f text-anchor=end>%.4g</text>\n", marginLeft, plotWidth-marginRight, y(v), y(v), marginLeft-5, y(v)+4, v)
	}
	for _, v := range d.ticksX(low, high) {
		p.printf("<line class=grid x1=%.1f x2=%.1f y1=8 y2=%g /><text x=%.1f y=%g text-anchor=middle>%s</text>\n", x(v), x(v), plotHeight-marginLow, x(v), plotHeight-marginLow+14, d.label(v))
	}
	p.printf("<text x=%g y=%g text-anchor=end>%s</text><text x=2 y=%g>%s</text>\n", plotWidth-marginRight, plotHeight-4, d.x, plotHeight-4, d.y)
	for _, s := range d.series {
		p.printf("<polyline style=\"stroke:%s\" points=\"", s.color)
		for _, q := range s.points {
			p.printf("%.1f,%.1f ", x(q[0]), y(q[1]))
		}
		p.printf("\"><title>%s</title></polyline>\n", html.EscapeString(s.name))
	}
	p.printf("</svg>\n")
}

// row is a thing's value in each span of the time.
type row struct {
	name   string
	values []float64
}

// The height of a row, and the margin that its name stands in.
const rowHeight, marginName = 16.0, 120.0

// heat draws rows over time, the darker the greater: top is the darkest.
func (p *page) heat(title string, end time.Duration, top float64, rows []row) {
	p.printf("<h2>%s</h2>\n", html.EscapeString(title))
	if end == 0 || top == 0 || len(rows) == 0 {
		p.printf("<p>Nothing to draw.</p>\n")
		return
	}
	height := rowHeight * float64(len(rows))
	width := (plotWidth - marginName - marginRight) / spans
	p.printf("<div class=key><span>darkest: %.3g requests, in the mean of %v</span></div>\n<svg viewBox=\"0 0 %g %g\">\n", top, (end / spans).Round(time.Millisecond), plotWidth, height+marginLow)
	for i, r := range rows {
		y := rowHeight * float64(i)
		p.printf("<text x=2 y=%g>%s</text>\n", y+12, html.EscapeString(cut(r.name, 18)))
		for k := 0; k < len(r.values); {
			from, shade := k, shadeOf(r.values[k], top)
			for k < len(r.values) && shadeOf(r.values[k], top) == shade {
				k++
			}
			if shade > 0 {
				p.printf("<rect class=heat x=%.1f y=%g width=%.1f height=%g fill-opacity=%.2f><title>%s: %.3g</title></rect>\n",
					marginName+width*float64(from), y, width*float64(k-from), rowHeight-1, shade, html.EscapeString(r.name), r.values[from])
			}
		}
	}
	for _, v := range ticks(0, end.Minutes()) {
		x := marginName + v/end.Minutes()*width*spans
		p.printf("<text x=%.1f y=%g text-anchor=middle>%.3g</text>\n", x, height+14, v)
	}
	p.printf("<text x=%g y=%g text-anchor=end>minutes</text>\n</svg>\n", plotWidth-marginRight, height+marginLow-4)
}

// shadeOf is a value's opacity in steps of a twentieth; what is not 0 can be seen.
func shadeOf(v, top float64) float64 { return math.Ceil(20*v/top) / 20 }

// cut shortens a name to n characters.
func cut(name string, n int) string {
	if r := []rune(name); len(r) > n {
		return string(r[:n-1]) + "…"
	}
	return name
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
