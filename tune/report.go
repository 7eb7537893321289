package tune

import (
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"epp.internal/epp/decision"
)

// Patch is the part of a configuration that makes the proposed change, as YAML; nil
// where nothing is proposed.
func (r *Report) Patch() []byte {
	if !r.Change {
		return nil
	}
	return fmt.Appendf(nil, "# epp tune: %s before\nweights: {%s}\n", list(r.Current), list(r.Proposed))
}

func list(weights []decision.Weight) string {
	parts := make([]string, len(weights))
	for i, w := range weights {
		parts[i] = fmt.Sprintf("%s: %s", w.Name, number(w.Value))
	}
	return strings.Join(parts, ", ")
}

// number prints a weight in as many digits as sums to 1 need.
func number(v float64) string {
	return strings.TrimRight(strings.TrimRight(fmt.Sprintf("%.12f", v), "0"), ".")
}

// Write writes the report as text.
func (r *Report) Write(to io.Writer) error {
	w := &writer{to: to}
	if r.Change {
		w.line("CHANGE the weights: better on traffic that neither the search nor the choice has seen.")
	} else {
		w.line("KEEP the weights: %s.", r.Reason)
	}
	w.line("")
	w.table(func(t io.Writer) {
		fmt.Fprintln(t, "weight\tcurrent\tproposed\tbest on the first half")
		for i, now := range r.Current {
			fmt.Fprintf(t, "%s\t%.3g\t%.3g\t%.3g\n", now.Name, now.Value, of(r.Proposed, now.Name), of(r.Best, r.Current[i].Name))
		}
		fmt.Fprintf(t, "cache wins outright from\t%s\t%s\t%s\n", dominance(r.Current, r.MaxQueue), dominance(r.Proposed, r.MaxQueue), dominance(r.Best, r.MaxQueue))
	})
	w.line("")
	w.line("%d points were tried on the first half of the trace; %d of them are within %.0f %% of the best.", r.Points, r.Flat, 100*SimulatorError)
	if len(r.Held) > 0 {
		w.line("Not moved, since the trace shows nothing of them: %s.", strings.Join(r.Held, ", "))
	}
	if !same(r.Best, r.Proposed) {
		w.line("The proposal goes part of the way to the best: tune again once it has been live for a while.")
	}
	w.line("")
	w.table(r.comparisons)
	if len(r.Conditions) > 0 {
		w.line("\nThe second part again, in other worlds (objective in seconds):\n")
		w.table(func(t io.Writer) {
			fmt.Fprintln(t, "world\tcurrent\tproposed\tdifference")
			for _, c := range r.Conditions {
				fmt.Fprintf(t, "%s\t%.4f\t%.4f\t%+.1f %%\n", c.Name, c.Current, c.Other, 100*c.share())
			}
		})
	}
	if r.Test == nil {
		w.line("\nThe last quarter of the trace was not looked at.")
	}
	w.line("\nThe objective is the mean time to first token and %.2f of its p99, in seconds; a request that", slowestShare)
	w.line("nobody serves counts %d s. Intervals are 95 %%, from %d resamples of blocks of a minute, of the", failedSeconds, resamples)
	w.line("difference on the same requests. The engines are a model, and arrivals do not wait for answers:")
	w.line("after a change, watch p99 of the time to first token and failures, and go back if either is")
	w.line("worse by 5 %% in two windows. %d runs.", r.Runs)
	return w.err
}

func (r *Report) comparisons(t io.Writer) {
	fmt.Fprintln(t, "part\twhat\trequests\tminutes\tcurrent\tother\tdifference\t95 % interval\tTTFT mean ms\tp99\tE2E p99\thit %\tfailed")
	for _, p := range []struct {
		name, what string
		c          *Comparison
	}{{"first half", "best", r.Train}, {"next quarter", "proposed", r.Valid}, {"last quarter", "proposed", r.Test}} {
		if p.c == nil {
			continue
		}
		interval := "too short for one"
		if p.c.Blocks >= fewestBlocks {
			interval = fmt.Sprintf("%+.4f … %+.4f", p.c.Low, p.c.High)
		}
		a, b := &p.c.CurrentSummary, &p.c.OtherSummary
		fmt.Fprintf(t, "%s\t%s\t%d\t%d\t%.4f\t%.4f\t%+.1f %%\t%s\t%s\t%s\t%s\t%.1f → %.1f\t%d → %d\n", p.name, p.what, p.c.Requests, p.c.Blocks,
			p.c.Current, p.c.Other, 100*p.c.Share(), interval, both(a.MeanTTFT, b.MeanTTFT), both(a.P99TTFT, b.P99TTFT), both(a.P99E2E, b.P99E2E),
			100*a.HitShare, 100*b.HitShare, a.Failed, b.Failed)
	}
}

func both(a, b time.Duration) string {
	return fmt.Sprintf("%d → %d", a.Milliseconds(), b.Milliseconds())
}

// of is the named weight.
func of(weights []decision.Weight, name string) float64 {
	if i := slices.IndexFunc(weights, func(w decision.Weight) bool { return w.Name == name }); i >= 0 {
		return weights[i].Value
	}
	return 0
}

func same(a, b []decision.Weight) bool {
	return slices.EqualFunc(a, b, func(x, y decision.Weight) bool { return x.Name == y.Name && math.Abs(x.Value-y.Value) < 1e-9 })
}

func dominance(weights []decision.Weight, maxQueue int) string {
	d := Dominance(weights, maxQueue)
	if d > 1 {
		return "never"
	}
	return fmt.Sprintf("%.3f of a prompt", d)
}

// writer keeps the first error.
type writer struct {
	to  io.Writer
	err error
}

func (w *writer) line(format string, args ...any) {
	if w.err == nil {
		_, w.err = fmt.Fprintf(w.to, format+"\n", args...)
	}
}

func (w *writer) table(fill func(t io.Writer)) {
	t := tabwriter.NewWriter(w.to, 0, 0, 2, ' ', 0)
	fill(t)
	if err := t.Flush(); w.err == nil {
		w.err = err
	}
}
