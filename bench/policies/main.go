// Command policies makes the tables of docs/policies.md: a run of package sim for
// every cell, the mean of its seeds printed as Markdown.
//
//	go run ./bench/policies claims            # the claims about routing, of package sim
//	go run ./bench/policies held generated    # tables by name, see tables
//
// The figures repeat to the bit. Progress goes to standard error.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"time"

	"epp.internal/epp/decision"
	"epp.internal/epp/engine"
	"epp.internal/epp/sim"
	"epp.internal/epp/trace"
)

func main() {
	b := bench{}
	conversation := flag.String("trace", "trace/testdata/mooncake_conversation.jsonl.gz", "the conversation trace")
	flag.IntVar(&b.seeds, "seeds", 3, "runs of each cell")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	b.ctx = ctx
	if err := b.main(*conversation, flag.Args()); err != nil {
		fmt.Fprintln(os.Stderr, "policies:", err)
		os.Exit(1)
	}
}

// bench is what tables are made with.
type bench struct {
	ctx          context.Context
	seeds        int
	conversation *trace.Trace
}

// tables are all there are, in the order of the page.
var tables = []struct {
	name string
	make func(b *bench) error
}{
	{"claims", (*bench).claims},
	{"inputs", (*bench).inputs},
	{"spread", (*bench).spread},
	{"generated", (*bench).generated},
	{"faults", (*bench).faults},
	{"day", (*bench).day},
	{"rates", (*bench).rates},
	{"held", (*bench).held},
}

func (b *bench) main(conversation string, names []string) error {
	f, err := os.Open(conversation)
	if err != nil {
		return err
	}
	defer f.Close()
	if b.conversation, err = trace.Read(conversation, f); err != nil {
		return err
	}
	made := 0
	for _, t := range tables {
		if len(names) > 0 && !contains(names, t.name) {
			continue
		}
		made++
		if err := t.make(b); err != nil {
			return fmt.Errorf("%s: %w", t.name, err)
		}
	}
	if made < len(names) {
		return fmt.Errorf("tables %q: have claims, inputs, spread, generated, faults, day, rates, held", names)
	}
	return nil
}

func contains(names []string, name string) bool {
	for _, n := range names {
		if n == name {
			return true
		}
	}
	return false
}

// figures are the means of some runs, times in milliseconds.
type figures struct {
	hit, mean, p99, e2e, failed, least, most float64
}

// run runs a cell once for each seed. A generated workload is made anew for each:
// generate says of what kind, where cfg has no trace.
func (b *bench) run(cfg sim.Config, generate trace.Workload) (figures, error) {
	var f figures
	began := time.Now()
	for seed := range b.seeds {
		cfg.Seed = uint64(seed + 1)
		if generate.Kind != "" {
			generate.Seed = cfg.Seed
			var err error
			if cfg.Trace, err = trace.Generate(generate); err != nil {
				return f, err
			}
		}
		r, err := sim.Run(b.ctx, cfg)
		if err != nil {
			return f, err
		}
		s, n := r.Summary(), float64(b.seeds)
		f.hit += s.HitShare / n
		f.mean += millis(s.MeanTTFT) / n
		f.p99 += millis(s.P99TTFT) / n
		f.e2e += millis(s.MeanE2E) / n
		f.failed += float64(s.Failed) / n
		f.least += s.Least / n
		f.most += s.Most / n
	}
	fmt.Fprintf(os.Stderr, "%s %s, %d endpoints: %v\n", cfg.Trace.Name, cfg.Policy, cfg.Endpoints, time.Since(began).Round(time.Second))
	return f, nil
}

func millis(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// pool is a number of endpoints of profile a100-8b; of 16 each has four times the
// cache, as the tables of 16 have had from the beginning.
func pool(endpoints int) sim.Config {
	p, _ := engine.ProfileNamed("a100-8b")
	if endpoints == 16 {
		p.KVTokens *= 4
	}
	return sim.Config{Endpoints: endpoints, Engine: engine.Config{Profile: p}}
}

var (
	oursAll   = []string{"weighted", "gate", "latency"}
	baselines = []string{"dynamo", "llm-d", "sglang", "aibrix", "chwbl", "least-conn"}
)

// compare prints a table of policies, and how far ours are from the best baseline's
// figure of each column. What is in known is not run again, and what ran is put there.
func (b *bench) compare(title string, cfg sim.Config, generate trace.Workload, known map[string]figures) error {
	fmt.Printf("\n%s\n\n| policy | hit | TTFT mean ms | p99 ms | E2E mean ms | to the best baseline, mean / p99 / E2E |\n|---|---:|---:|---:|---:|---|\n", title)
	best := figures{mean: 1e18, p99: 1e18, e2e: 1e18}
	rows := map[string]figures{}
	for _, name := range append(append([]string{}, baselines...), oursAll...) {
		cfg.Policy = name
		f, ok := known[name]
		if !ok {
			var err error
			if f, err = b.run(cfg, generate); err != nil {
				return err
			}
		}
		if rows[name] = f; contains(baselines, name) {
			best.mean, best.p99, best.e2e = min(best.mean, f.mean), min(best.p99, f.p99), min(best.e2e, f.e2e)
		}
	}
	for _, name := range append(append([]string{}, oursAll...), baselines...) {
		f, distance := rows[name], ""
		known[name] = f
		if contains(oursAll, name) {
			name = "**" + name + "**"
			distance = fmt.Sprintf("%+.0f %% / %+.0f %% / %+.0f %%", 100*(f.mean/best.mean-1), 100*(f.p99/best.p99-1), 100*(f.e2e/best.e2e-1))
		}
		fmt.Printf("| %s | %.3f | %s | %s | %s | %s |\n", name, f.hit, thousands(f.mean), thousands(f.p99), thousands(f.e2e), distance)
	}
	return nil
}

// thousands is a number without decimals, its thousands apart.
func thousands(v float64) string {
	s := fmt.Sprintf("%.0f", v)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}

// byReadings are the policies that go by endpoints' readings; the others' figures are
// the same whenever an endpoint is read.
var byReadings = []string{"weighted", "gate", "latency", "llm-d"}

// held is the last quarter of the conversation trace.
func (b *bench) held() error {
	for _, endpoints := range []int{8, 16} {
		known := map[string]figures{}
		for _, lag := range []time.Duration{time.Second, 100 * time.Millisecond, 5 * time.Second} {
			for _, name := range byReadings {
				delete(known, name)
			}
			cfg := pool(endpoints)
			cfg.Trace, cfg.ReportEvery = b.conversation.Part(0.75, 1), lag
			if err := b.compare(fmt.Sprintf("%d endpoints, read every %v:", endpoints, lag), cfg, trace.Workload{}, known); err != nil {
				return err
			}
		}
	}
	return nil
}

// How many requests of each generated workload there are, and how many where one
// workload is a table of its own.
const (
	generatedRequests = 600
	hotRequests       = 3000
)

// generated is every workload that package trace can make.
func (b *bench) generated() error {
	kinds, help := trace.Kinds()
	for i, kind := range kinds {
		for _, endpoints := range []int{8, 16} {
			title := fmt.Sprintf("Synthetic, `%s` (%s), %d endpoints:", kind, help[i], endpoints)
			if err := b.compare(title, pool(endpoints), trace.Workload{Kind: kind, Requests: generatedRequests}, map[string]figures{}); err != nil {
				return err
			}
		}
	}
	return nil
}

// variant is one change of the settings, or of the run.
type variant struct {
	name   string
	change func(s *decision.Settings)
	every  time.Duration
}

// inputs is what may be chosen of the default's inputs, on the first quarter.
func (b *bench) inputs() error {
	variants := []variant{{name: "the default"}}
	add := func(name string, change func(s *decision.Settings)) {
		variants = append(variants, variant{name: name, change: change})
	}
	add("`load.source: tokens`", func(s *decision.Settings) { s.Load.Source = decision.LoadTokens })
	add("`load.source: kv`", func(s *decision.Settings) { s.Load.Source = decision.LoadKV })
	for _, n := range []int{8, 16, 64, 256} {
		add(fmt.Sprintf("`load.maxRunning: %d`", n), func(s *decision.Settings) { s.Load.MaxRunning = n })
	}
	for _, n := range []int{5, 100} {
		add(fmt.Sprintf("`maxQueue: %d`", n), func(s *decision.Settings) { s.MaxQueue = n })
	}
	add("`onSaturated: reject`", func(s *decision.Settings) { s.OnSaturated = decision.Reject })
	for _, g := range []time.Duration{100 * time.Millisecond, 300 * time.Millisecond, time.Second} {
		add(fmt.Sprintf("`gate: %v`", g), func(s *decision.Settings) { s.Gate = g })
	}
	for _, d := range []time.Duration{100 * time.Millisecond, 2 * time.Second, 5 * time.Second, 15 * time.Second} {
		variants = append(variants, variant{name: fmt.Sprintf("read every %v", d), every: d})
	}
	fmt.Print("\n| | 8 endpoints: hit | TTFT mean / p99 / E2E mean ms | failed | 16 endpoints: hit | TTFT mean / p99 / E2E mean ms | failed |\n|---|---:|---|---:|---:|---|---:|\n")
	return b.vary(variants, b.conversation.Part(0, 0.25), trace.Workload{})
}

// vary prints a line for each variant of the default.
func (b *bench) vary(variants []variant, tr *trace.Trace, generate trace.Workload) error {
	for _, v := range variants {
		fmt.Printf("| %s |", v.name)
		for _, endpoints := range []int{8, 16} {
			cfg := pool(endpoints)
			cfg.Trace, cfg.Policy, cfg.ReportEvery = tr, v.name, v.every
			cfg.Settings = decision.Defaults()
			if v.change != nil {
				v.change(cfg.Settings)
			}
			f, err := b.run(cfg, generate)
			if err != nil {
				return err
			}
			fmt.Printf(" %.3f | %s / %s / %s | %.0f |", f.hit, thousands(f.mean), thousands(f.p99), thousands(f.e2e), f.failed)
		}
		fmt.Println()
	}
	return nil
}

// spread is spread.cold and spread.hot beside the default and the gate.
func (b *bench) spread() error {
	variants := []variant{
		{name: "the default"},
		{name: "`spread: {cold: true}`", change: func(s *decision.Settings) { s.Spread.Cold = true }},
		{name: "`spread: {hot: true}`", change: func(s *decision.Settings) { s.Spread.Hot = true }},
		{name: "both", change: func(s *decision.Settings) { s.Spread = decision.Spread{Cold: true, Hot: true} }},
		{name: "`gate: 300ms`", change: func(s *decision.Settings) { s.Gate = 300 * time.Millisecond }},
	}
	for _, kind := range []string{"hot", "agents", "rag", "batch", ""} {
		tr, w := (*trace.Trace)(nil), trace.Workload{Kind: kind, Requests: hotRequests}
		title := "Synthetic, `" + kind + "`"
		if kind == "" {
			tr, w, title = b.conversation.Part(0, 0.25), trace.Workload{}, "The conversation trace, first quarter"
		}
		fmt.Printf("\n| %s | 8 endpoints: hit | TTFT mean / p99 / E2E mean ms | failed | 16 endpoints: hit | TTFT mean / p99 / E2E mean ms | failed |\n|---|---:|---|---:|---:|---|---:|\n", title)
		if err := b.vary(variants, tr, w); err != nil {
			return err
		}
	}
	return nil
}

// faults is mixed hardware and a rolling restart.
func (b *bench) faults() error {
	var rolling []sim.Fault
	for i := range 8 {
		rolling = append(rolling, sim.Fault{Kind: sim.Restart, At: time.Duration(i+1) * 90 * time.Second, Endpoint: i, For: time.Minute})
	}
	for _, c := range []struct {
		title  string
		faults []sim.Fault
	}{
		{"One of 8 endpoints at half speed, of which nobody is told:", []sim.Fault{{Kind: sim.Slow, Factor: 2}}},
		{"A rolling restart: every 90 s one of 8 leaves, has a minute to end what it has, and comes back empty:", rolling},
	} {
		cfg := pool(8)
		cfg.Trace, cfg.Faults = b.conversation.Part(0.75, 1), c.faults
		if err := b.shares(c.title, cfg, trace.Workload{}); err != nil {
			return err
		}
	}
	cfg := pool(8)
	cfg.Engine.MaxRunning = 256
	return b.shares("A hot prefix, 256 running slots each, synthetic:", cfg, trace.Workload{Kind: "hot", Requests: hotRequests})
}

// shares prints who starves and who drowns: the requests of the endpoints that had
// the fewest and the most, over the mean.
func (b *bench) shares(title string, cfg sim.Config, generate trace.Workload) error {
	fmt.Printf("\n%s\n\n| policy | TTFT mean ms | p99 ms | E2E mean ms | failed | fewest and most requests, of the mean |\n|---|---:|---:|---:|---:|---|\n", title)
	for _, name := range append(append([]string{}, oursAll...), "dynamo", "llm-d", "least-conn") {
		cfg.Policy = name
		f, err := b.run(cfg, generate)
		if err != nil {
			return err
		}
		if contains(oursAll, name) {
			name = "**" + name + "**"
		}
		fmt.Printf("| %s | %s | %s | %s | %.0f | %.2f–%.2f |\n", name, thousands(f.mean), thousands(f.p99), thousands(f.e2e), f.failed, f.least, f.most)
	}
	return nil
}

// day is 24 hours of bursts, with a rolling restart at noon.
func (b *bench) day() error {
	cfg := pool(8)
	for i := range 8 {
		cfg.Faults = append(cfg.Faults, sim.Fault{Kind: sim.Restart, At: 12*time.Hour + time.Duration(i)*2*time.Minute, Endpoint: i, For: time.Minute})
	}
	seeds := b.seeds
	b.seeds = 1
	defer func() { b.seeds = seeds }()
	const rate = 0.5
	return b.shares("24 hours, synthetic `bursts`, 43,200 requests, a rolling restart at noon, one seed:", cfg, trace.Workload{Kind: "bursts", Requests: 24 * 3600 * rate, Rate: rate})
}

// rates is two minutes of bursts, at rates where nothing waits and where much does.
func (b *bench) rates() error {
	policies := append(append([]string{}, oursAll...), "least-conn")
	fmt.Printf("\n| requests a second | **%s** | %s |\n|---|---|---|---|---|\n", strings.Join(oursAll, "** | **"), policies[len(policies)-1])
	for _, rate := range []float64{8, 24, 48, 96} {
		fmt.Printf("| %.0f |", rate)
		for _, name := range policies {
			cfg := pool(8)
			cfg.Policy = name
			f, err := b.run(cfg, trace.Workload{Kind: "bursts", Requests: int(120 * rate), Rate: rate})
			if err != nil {
				return err
			}
			fmt.Printf(" %.2f–%.2f, %s ms |", f.least, f.most, thousands(f.p99))
		}
		fmt.Println()
	}
	return nil
}

// claims prints what package sim says of the claims.
func (b *bench) claims() error {
	list, err := sim.Claims(b.ctx)
	if err != nil {
		return err
	}
	fmt.Print("\n| claim | figures | holds |\n|---|---|---|\n")
	for _, c := range list {
		verdict := "yes"
		if !c.Holds {
			verdict = "**no**: " + c.Why
		}
		fmt.Printf("| %s | %s | %s |\n", c.Says, strings.Join(c.Lines(), "; "), verdict)
	}
	return nil
}
