package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"epp.internal/epp/engine"
	"epp.internal/epp/sim"
	"epp.internal/epp/trace"
)

func simCommand() *cobra.Command {
	s := simulation{}
	kinds, help := trace.Kinds()
	var workloads, policies strings.Builder
	for i := range kinds {
		fmt.Fprintf(&workloads, "\n  %-22s %s", kinds[i], help[i])
	}
	for _, p := range sim.Policies {
		fmt.Fprintf(&policies, "\n  %-22s %s", p.Name, p.Help)
	}
	cmd := &cobra.Command{
		Use:   "sim --trace FILE",
		Short: "Run a trace against simulated engines, with this picker and with other routers' policies",
		Long: `sim runs every request of a trace against simulated engines on a virtual clock, once
for each policy: an hour of traffic takes seconds. The picker that decides is the one
that serves; what is simulated is the engines, the network and time. The same flags
give the same figures. Times are of the requests that were served; those that failed are
counted apart.

A trace is a file (Mooncake's JSONL, Azure's CSV, a file of log.decisions, vLLM's log of
requests or OpenAI requests in JSONL, gzip'd or not) or generated:` + workloads.String() + `

Policies, or all:` + policies.String() + `

A fault is kind@time:endpoint:duration[:factor]: crash@10m:3:1m, slow@0s:0:1h:2; the
kinds are crash, restart, slow, hang, ecc, up and down.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			s.out, s.err = cmd.OutOrStdout(), cmd.ErrOrStderr()
			return s.run(cmd.Context())
		},
	}
	f := cmd.Flags()
	s.flags(f)
	f.StringVar(&s.part, "part", "0:1", "which part of the trace to run, as shares of its time: 0:0.75")
	f.StringSliceVar(&s.policies, "policy", []string{"weighted", "least-conn"}, "policies, or all")
	f.StringVar(&s.html, "html", "", "write a page with plots to this file, too")
	f.BoolVar(&s.json, "json", false, "print one JSON array, an object for each policy")
	return cmd
}

// flags are those that say what to simulate: the trace and the fleet.
func (s *simulation) flags(f *pflag.FlagSet) {
	f.StringVar(&s.trace, "trace", "", "the trace, a file")
	f.StringVar(&s.workload.Kind, "generate", "", "generate a trace of this kind instead")
	f.IntVar(&s.workload.Requests, "requests", trace.DefaultRequests, "requests to generate")
	f.Float64Var(&s.workload.Rate, "rate", 0, "requests a second to generate (default the kind's own)")
	f.StringSliceVar(&s.profiles, "profile", []string{engine.Profiles[0].Name}, "the engines' hardware; of several the endpoints have each in turn")
	f.IntVar(&s.cfg.Endpoints, "pods", 8, "endpoints")
	f.IntVar(&s.kvTokens, "kv-tokens", 0, "tokens that each engine's KV cache holds (default the profile's)")
	f.IntVar(&s.cfg.Engine.MaxRunning, "max-running", engine.DefaultMaxRunning, "requests that each engine runs at once")
	f.DurationVar(&s.cfg.ReportEvery, "report-lag", sim.DefaultReportEvery, "time between two readings of an endpoint's page")
	f.Float64Var(&s.cfg.ReportLoss, "report-loss", 0, "share of readings that fail, 0–1")
	f.DurationVar(&s.cfg.EventLag, "event-lag", sim.DefaultEventLag, "how late KV events come")
	f.Float64Var(&s.cfg.EventLoss, "event-loss", 0, "share of KV-event messages that are lost, 0–1")
	f.StringArrayVar(&s.faults, "fault", nil, "what goes wrong, and when, from the start of the part that is run; may be given again")
	f.Uint64Var(&s.cfg.Seed, "seed", 1, "where all chance comes from")
}

// simulation is one call of the command.
type simulation struct {
	out, err io.Writer
	trace    string
	workload trace.Workload
	part     string
	policies []string
	profiles []string
	kvTokens int
	faults   []string
	json     bool
	html     string
	cfg      sim.Config
}

// simResult is what --json prints of a policy.
type simResult struct {
	Policy string `json:"policy"`
	Seed   uint64 `json:"seed"`
	// The following fields are of the requests that were served, null where none was.
	HitShare       *float64 `json:"hitShare"`
	MeanTTFTMillis *float64 `json:"meanTTFTMillis"`
	P99TTFTMillis  *float64 `json:"p99TTFTMillis"`
	MeanE2EMillis  *float64 `json:"meanE2EMillis"`
	Failed         int      `json:"failed"`
}

// resultOf is what --json prints of a run.
func resultOf(policy string, seed uint64, s sim.Summary) simResult {
	r := simResult{Policy: policy, Seed: seed, Failed: s.Failed}
	if s.Served > 0 {
		ttft, p99, e2e := millis(s.MeanTTFT), millis(s.P99TTFT), millis(s.MeanE2E)
		r.HitShare, r.MeanTTFTMillis, r.P99TTFTMillis, r.MeanE2EMillis = &s.HitShare, &ttft, &p99, &e2e
	}
	return r
}

func (s *simulation) run(ctx context.Context) error {
	if err := s.prepare(); err != nil {
		return err
	}
	results := []simResult{}
	var rows []sim.Summary
	var runs []*sim.Result
	for i, name := range s.policies {
		cfg := s.cfg
		cfg.Policy = name
		p := progress{to: s.err, label: fmt.Sprintf("%s (%d of %d)", name, i+1, len(s.policies)), began: time.Now()}
		cfg.Progress = p.show
		r, err := sim.Run(ctx, cfg)
		if errors.Is(err, context.Canceled) {
			return fmt.Errorf("sim: interrupted in policy %s (%d of %d): no figures", name, i+1, len(s.policies))
		}
		if err != nil {
			return err
		}
		p.end()
		r.Decisions = nil // a record holds its whole fleet
		runs = append(runs, r)
		sum := r.Summary()
		rows = append(rows, sum)
		results = append(results, resultOf(name, s.cfg.Seed, sum))
	}
	if s.html != "" {
		if err := s.page(runs); err != nil {
			return fmt.Errorf("--html: %w", err)
		}
	}
	if s.json {
		e := json.NewEncoder(s.out)
		e.SetIndent("", "  ")
		return e.Encode(results)
	}
	return s.table(rows)
}

func millis(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// prepare reads the trace and the flags into cfg.
func (s *simulation) prepare() error {
	for i, name := range s.policies {
		if slices.Contains(s.policies[:i], name) {
			return fmt.Errorf("--policy %q: is named twice", name)
		}
		if name != "all" && sim.PolicyNamed(name) == nil {
			return fmt.Errorf("--policy %q: no such policy: have all, %s", name, strings.Join(sim.PolicyNames(), ", "))
		}
	}
	if slices.Contains(s.policies, "all") {
		s.policies = sim.PolicyNames()
	}
	if len(s.policies) == 0 {
		return errors.New("--policy: is empty: name one, or all")
	}
	if err := canHold("--html", s.html); err != nil {
		return err
	}
	t, err := s.world()
	if err != nil {
		return err
	}
	from, to, err := parsePart(s.part)
	if err != nil {
		return err
	}
	s.cfg.Trace = t.Part(from, to)
	return nil
}

// canHold says of a flag's file that is written after a long run whether it can be.
// It leaves no file that was not there. An empty path is no file.
func canHold(flag, path string) error {
	info, err := os.Stat(path)
	isNew := errors.Is(err, fs.ErrNotExist)
	switch {
	case path == "":
		return nil
	case err == nil && info.IsDir():
		return fmt.Errorf("%s %q: is a folder: want a file", flag, path)
	case err == nil && !info.Mode().IsRegular(): // a pipe is opened once
		return nil
	}
	if i, err := os.Stat(filepath.Dir(path)); err != nil || !i.IsDir() {
		return fmt.Errorf("%s %q: its folder is not there", flag, path)
	}
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE, 0o644)
	if err != nil {
		return fmt.Errorf("%s: %w", flag, err)
	}
	err = f.Close()
	if isNew {
		err = errors.Join(err, os.Remove(path))
	}
	return err
}

// world makes the fleet's flags into cfg, and reads the trace.
func (s *simulation) world() (*trace.Trace, error) {
	if err := s.engines(); err != nil {
		return nil, err
	}
	if s.cfg.ReportEvery <= 0 {
		return nil, fmt.Errorf("--report-lag %v: want 1ms or more", s.cfg.ReportEvery)
	}
	for _, text := range s.faults {
		f, err := sim.ParseFault(text)
		if err != nil {
			return nil, fmt.Errorf("--fault: %w", err)
		}
		s.cfg.Faults = append(s.cfg.Faults, f)
	}
	return s.load()
}

// What --kv-tokens may be: a block at least, and no more memory than some hundred
// bytes for each 16.
const minKVTokens, maxKVTokens = engine.DefaultBlockTokens, 1 << 26

// engines makes the profiles into engines.
func (s *simulation) engines() error {
	if s.kvTokens != 0 && (s.kvTokens < minKVTokens || s.kvTokens > maxKVTokens) {
		return fmt.Errorf("--kv-tokens %d: want %d–%d, or 0 for the profile's", s.kvTokens, minKVTokens, maxKVTokens)
	}
	if s.cfg.Engine.MaxRunning < 1 {
		return fmt.Errorf("--max-running %d: want 1 or more", s.cfg.Engine.MaxRunning)
	}
	var cfgs []engine.Config
	for _, name := range s.profiles {
		p, ok := engine.ProfileNamed(name)
		if !ok {
			var names []string
			for _, p := range engine.Profiles {
				names = append(names, p.Name)
			}
			return fmt.Errorf("--profile %q: no such profile: have %s", name, strings.Join(names, ", "))
		}
		if s.kvTokens != 0 {
			p.KVTokens = s.kvTokens
		}
		cfg := s.cfg.Engine
		cfg.Profile = p
		if _, err := engine.New(cfg); err != nil {
			return err
		}
		cfgs = append(cfgs, cfg)
	}
	if len(cfgs) == 0 {
		return errors.New("--profile: is empty: name one")
	}
	s.cfg.Engine = cfgs[0]
	if n := s.cfg.Endpoints; len(cfgs) > 1 && n >= 1 && n <= sim.MaxEndpoints {
		for i := range n {
			s.cfg.Engines = append(s.cfg.Engines, cfgs[i%len(cfgs)])
		}
	}
	return nil
}

// load reads or generates the trace.
func (s *simulation) load() (*trace.Trace, error) {
	switch {
	case s.trace != "" && s.workload.Kind != "":
		return nil, errors.New("--trace and --generate: want one of them")
	case s.workload.Kind != "":
		if s.workload.Requests == 0 { // else it would be the default
			return nil, fmt.Errorf("--requests 0: want 1–%d", trace.MaxRequests)
		}
		s.workload.Seed = s.cfg.Seed
		return trace.Generate(s.workload)
	case s.trace == "":
		kinds, _ := trace.Kinds()
		return nil, fmt.Errorf("--trace: is missing: name a file, or --generate one of %s", strings.Join(kinds, ", "))
	}
	f, err := os.Open(s.trace)
	if err != nil {
		return nil, fmt.Errorf("--trace: %w", err)
	}
	defer f.Close()
	return trace.Read(s.trace, f)
}

// parsePart reads from:to, shares of a trace's time.
func parsePart(text string) (from, to float64, err error) {
	a, b, found := strings.Cut(text, ":")
	from, errA := strconv.ParseFloat(a, 64)
	to, errB := strconv.ParseFloat(b, 64)
	if !found || errA != nil || errB != nil || !(from >= 0 && from < to && to <= 1) {
		return 0, 0, fmt.Errorf("--part %q: want from:to, shares of the trace's time with 0 ≤ from < to ≤ 1, such as 0:0.75", text)
	}
	return from, to, nil
}

// note says what was simulated.
func (s *simulation) note() string {
	note := fmt.Sprintf("%d requests; %d endpoints of %s, read every %v, seed %d",
		len(s.cfg.Trace.Requests), s.cfg.Endpoints, strings.Join(s.profiles, ", "), s.cfg.ReportEvery, s.cfg.Seed)
	if n := s.cfg.Trace.Cut; n > 0 {
		note += fmt.Sprintf("; %d lines of the log were cut off and are left out", n)
	}
	return note
}

// page writes the report with plots.
func (s *simulation) page(runs []*sim.Result) error {
	var b bytes.Buffer
	if err := sim.WritePage(&b, s.cfg.Trace.Name, s.note(), runs); err != nil {
		return err
	}
	return os.WriteFile(s.html, b.Bytes(), 0o644)
}

// table prints the figures.
func (s *simulation) table(rows []sim.Summary) error {
	fmt.Fprintf(s.out, "%s: %s\n\n", s.cfg.Trace.Name, s.note())
	w := tabwriter.NewWriter(s.out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "policy\thit %\tTTFT mean ms\tp50\tp99\tE2E mean ms\tp99\tfailed\t$ per 1,000\t")
	lost := false
	for i, r := range rows {
		lost = lost || r.Failed > 0
		if r.Served == 0 { // no figure of it is good
			fmt.Fprintf(w, "%s\t–\t–\t–\t–\t–\t–\t%d (all)\t–\t\n", s.policies[i], r.Failed)
			continue
		}
		fmt.Fprintf(w, "%s\t%.1f\t%.0f\t%.0f\t%.0f\t%.0f\t%.0f\t%d\t%.2f\t\n", s.policies[i], 100*r.HitShare,
			millis(r.MeanTTFT), millis(r.P50TTFT), millis(r.P99TTFT), millis(r.MeanE2E), millis(r.P99E2E), r.Failed, r.DollarsPer1000)
	}
	if err := w.Flush(); err != nil || !lost {
		return err
	}
	_, err := fmt.Fprintln(s.out, "\nThe times are of the requests that were served: a policy that fails more is not the faster one.")
	return err
}

// progress tells of a run that takes long.
type progress struct {
	to    io.Writer
	label string
	began time.Time
	told  time.Time
}

// A run is silent for its first seconds, and then speaks at this interval.
const progressEvery = 2 * time.Second

func (p *progress) show(done float64) {
	now := time.Now()
	if now.Sub(p.began) < progressEvery || now.Sub(p.told) < progressEvery {
		return
	}
	p.told = now
	fmt.Fprintf(p.to, "%s: %.0f %%, %v\n", p.label, 100*done, now.Sub(p.began).Round(time.Second))
}

func (p *progress) end() {
	if !p.told.IsZero() {
		fmt.Fprintf(p.to, "%s: done, %v\n", p.label, time.Since(p.began).Round(time.Second))
	}
}
