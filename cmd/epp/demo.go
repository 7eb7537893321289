package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"epp.internal/epp/config"
	"epp.internal/epp/engine"
	"epp.internal/epp/epptest"
	"epp.internal/epp/epptest/demotok"
	"epp.internal/epp/tokenize"
)

// What the demo shows: four engines, 12 conversations of 5 turns, a shared
// system text of 200 tokens, 200 a question, 150 an answer.
const (
	demoModel         = "demo"
	demoProfile       = "article-8b"
	demoEngines       = 4
	demoConversations = 12
	demoTurns         = 5
	demoSystemTokens  = 200
	demoUserTokens    = 200
	demoAnswerTokens  = 150

	// demoSeconds is what the sample takes at the profile's own pace: five turns
	// of 150 steps of 45 ms and a prefill, with room for the slowest.
	demoSeconds = 46
	// demoFor is the length of each of the three runs unless --for says another.
	demoFor = 15 * time.Second
)

func demoCommand() *cobra.Command {
	d := demo{}
	cmd := &cobra.Command{
		Use:   "demo",
		Short: "Four simulated engines, the proxy and sample conversations, in this process",
		Long: `demo starts four simulated vLLM engines with real sockets, the picker as a proxy in
front of them, and 12 conversations of 5 turns. It shows where each turn goes and
why, then runs the same plan with random and with least-connections routing on
fresh engines, and goes on serving until it is interrupted, for your own curl.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			d.out, d.err = cmd.OutOrStdout(), cmd.ErrOrStderr()
			d.level, _ = cmd.Flags().GetString("log-level")
			return d.run(cmd.Context())
		},
	}
	cmd.Flags().DurationVar(&d.length, "for", demoFor, "length of each of the three runs, at least 10s")
	cmd.Flags().BoolVar(&d.json, "json", false, "print one JSON object with the results and end")
	cmd.Flags().StringVar(&d.listen, "listen", ":8080", "the API's address")
	cmd.Flags().StringVar(&d.metrics, "metrics", ":9090", "the metrics page's address")
	cmd.Flags().StringVar(&d.envoy, "envoy", "", "path of an Envoy, which then stands in place of the proxy (make demo-envoy fetches one)")
	cmd.Flags().Uint64Var(&d.seed, "seed", 1, "seed of the conversations and of random routing")
	return cmd
}

// demo is one call of the command.
type demo struct {
	out, err        io.Writer
	level           string
	length          time.Duration
	json            bool
	listen, metrics string
	envoy           string // path of the binary; empty: the proxy serves
	seed            uint64

	tok *tokenize.Tokenizer
}

// demoResult is what --json prints.
type demoResult struct {
	Requests               int        `json:"requests"`
	Failed                 int        `json:"failed"`
	CachedTokenShare       float64    `json:"cachedTokenShare"`
	RandomCachedTokenShare float64    `json:"randomCachedTokenShare"`
	LeastConnCachedShare   float64    `json:"leastConnCachedTokenShare"`
	SameEndpointShare      float64    `json:"sameEndpointShare"`
	MinEndpointShare       float64    `json:"minEndpointShare"`
	MaxEndpointShare       float64    `json:"maxEndpointShare"`
	MeanTTFTMillis         demoMillis `json:"meanTTFTMillis"`
}

type demoMillis struct {
	EPP       float64 `json:"epp"`
	Random    float64 `json:"random"`
	LeastConn float64 `json:"leastConn"`
}

func (d *demo) run(ctx context.Context) error {
	if d.length < 10*time.Second {
		return fmt.Errorf("--for: %v: must be at least 10s: the engines would have to run more than %.1f times faster than the profile, and this machine would be what is measured", d.length, demoSeconds/10.0)
	}
	model, settings := demotok.Files()
	var err error
	if d.tok, err = tokenize.New(model, settings); err != nil {
		return err
	}
	engines, err := d.startEngines()
	defer closeEngines(engines)
	if err != nil {
		return err
	}
	return d.serve(ctx, engines)
}

// serve runs the picker in front of the engines, the three samples, and then
// waits for the end unless the result was all that was asked.
func (d *demo) serve(ctx context.Context, engines []*epptest.Engine) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	screen := newScreen(d.out, engines, isTerminal(d.out))
	if d.json {
		screen = newScreen(io.Discard, engines, false)
	}
	log, err := newLog(&screenLog{screen: screen, w: d.err, quiet: d.json}, d.level, "info")
	if err != nil {
		return err
	}
	sys, err := build(d.config(engines), d.tok, log, watch{decided: screen.decided, changed: screen.changed})
	if err != nil {
		return err
	}
	ready := make(chan addresses, 1)
	served := make(chan error, 1)
	go func() { served <- sys.run(ctx, func(at addresses) { ready <- at }) }()
	var at addresses
	select {
	case err := <-served:
		return err
	case at = <-ready:
	}
	api := at.proxy
	if d.envoy != "" {
		front, err := d.startEnvoy(ctx, sys.cfg, at.extproc)
		if err != nil {
			cancel()
			return errors.Join(err, <-served)
		}
		defer front.stop()
		api = front.address
	}
	if !d.json {
		d.greet(api, at.metrics)
	}
	result, err := d.samples(ctx, sys, api, engines, screen)
	if err == nil && d.json {
		err = d.printJSON(result)
	}
	if d.json || err != nil {
		cancel()
		if stopped := <-served; err == nil {
			err = stopped
		}
		if ctx.Err() != nil && errors.Is(err, ctx.Err()) {
			err = nil // interrupted while the samples ran
		}
		return err
	}
	d.conclude(api, result)
	return <-served
}

func (d *demo) printJSON(r *demoResult) error {
	enc := json.NewEncoder(d.out)
	enc.SetIndent("", "  ")
	return enc.Encode(r)
}

// speed is how many seconds of the profile pass in one.
func (d *demo) speed() float64 { return demoSeconds / d.length.Seconds() }

func (d *demo) startEngines() ([]*epptest.Engine, error) {
	profile, ok := engine.ProfileNamed(demoProfile)
	if !ok {
		return nil, fmt.Errorf("no profile %q", demoProfile)
	}
	var answers []uint32
	for _, w := range demotok.Words() {
		answers = append(answers, d.tok.CompletionTokens(" "+w)...)
	}
	var engines []*epptest.Engine
	for i := range demoEngines {
		e, err := epptest.StartEngine(epptest.EngineConfig{
			Name: fmt.Sprintf("engine-%c", 'a'+i), Model: demoModel,
			Engine: engine.Config{Profile: profile}, TimeScale: 1 / d.speed(),
			Tokenizer: d.tok, AnswerTokens: answers,
		})
		if err != nil {
			return engines, err
		}
		engines = append(engines, e)
	}
	return engines, nil
}

func closeEngines(engines []*epptest.Engine) {
	for _, e := range engines {
		_ = e.Close()
	}
}

// config is what a user would write for these engines: the endpoints, and
// nothing else but the addresses asked for. Events are discovered.
func (d *demo) config(engines []*epptest.Engine) *config.Config {
	cfg := config.Default()
	for _, e := range engines {
		cfg.Pool.Endpoints = append(cfg.Pool.Endpoints, config.Endpoint{Name: e.Name(), Address: e.Address()})
	}
	cfg.Listen = config.Listen{Proxy: d.listen, Metrics: d.metrics}
	if d.envoy != "" {
		cfg.Listen = config.Listen{ExtProc: "127.0.0.1:0", Metrics: d.metrics}
	}
	cfg.Timeouts.Drain.Duration = time.Millisecond
	return cfg
}

// samples runs the plan three times: with the picker, and with random and
// least-connections routing on fresh engines.
func (d *demo) samples(ctx context.Context, sys *system, address string, engines []*epptest.Engine, screen *screen) (*demoResult, error) {
	if err := d.settle(ctx, sys, engines, screen); err != nil {
		return nil, err
	}
	plan := newPlan(d.seed, d.length)
	screen.start()
	ours := plan.run(ctx, "http://"+localhost(address), screen.turn)
	screen.stop()
	r := &demoResult{}
	ours.fill(r)
	r.MeanTTFTMillis.EPP, r.CachedTokenShare = ours.meanTTFT(), ours.cachedShare()
	for _, b := range []struct {
		name   string
		choose func(*baseline) int
		ttft   *float64
		share  *float64
	}{
		{"random", (*baseline).random, &r.MeanTTFTMillis.Random, &r.RandomCachedTokenShare},
		{"least connections", (*baseline).leastConnections, &r.MeanTTFTMillis.LeastConn, &r.LeastConnCachedShare},
	} {
		screen.line("running the same plan with %s routing on fresh engines (%v) …", b.name, d.length)
		theirs, err := d.runBaseline(ctx, plan, b.choose)
		if err != nil {
			return nil, err
		}
		*b.ttft, *b.share = theirs.meanTTFT(), theirs.cachedShare()
		r.Failed += theirs.failed()
	}
	return r, ctx.Err()
}

// settle waits until every engine's list of models was read and its events are
// followed, as a fleet that has been up for a second has them.
func (d *demo) settle(ctx context.Context, sys *system, engines []*epptest.Engine, screen *screen) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	for _, e := range engines {
		if err := e.AwaitSubscribers(ctx, 1); err != nil {
			return fmt.Errorf("%s: no subscriber to its events: %w", e.Name(), err)
		}
	}
	err := screen.await(ctx, func() bool { return sys.settled() })
	if err != nil {
		return fmt.Errorf("engines were not all read: %w", err)
	}
	return nil
}

func isTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}

func (d *demo) greet(proxy, page string) {
	fmt.Fprintf(d.out, `epp demo: %d simulated vLLM engines (profile %s, %.1f times faster than life) behind %s
  API      http://%s/v1/chat/completions    metrics  http://%s/metrics
  try      %s

%d conversations of %d turns: a shared system text of %d tokens, %d a question, %d an answer

`, demoEngines, demoProfile, d.speed(), d.front(), localhost(proxy), localhost(page), curlLine(proxy),
		demoConversations, demoTurns, demoSystemTokens, demoUserTokens, demoAnswerTokens)
}

func curlLine(proxy string) string {
	return fmt.Sprintf(`curl -si http://%s/v1/chat/completions -H 'content-type: application/json' -d '{"model":"%s","max_tokens":20,"messages":[{"role":"user","content":"Where does this request run, and why?"}]}'`,
		localhost(proxy), demoModel)
}

func (d *demo) conclude(proxy string, r *demoResult) {
	fmt.Fprintf(d.out, `
                      prompt tokens cached   mean TTFT
  epp                 %19.0f%%  %7.0f ms
  least connections   %19.0f%%  %7.0f ms
  random              %19.0f%%  %7.0f ms

  %d requests, %d failed; %.0f%% of later turns stayed on their endpoint; an endpoint got %.0f–%.0f%% of the requests

serving until interrupted (Ctrl-C); each request of yours leaves its reason in the log:
  %s

`, 100*r.CachedTokenShare, r.MeanTTFTMillis.EPP, 100*r.LeastConnCachedShare, r.MeanTTFTMillis.LeastConn,
		100*r.RandomCachedTokenShare, r.MeanTTFTMillis.Random,
		r.Requests, r.Failed, 100*r.SameEndpointShare, 100*r.MinEndpointShare, 100*r.MaxEndpointShare, curlLine(proxy))
}

// screenLog is where the demo's log goes: nowhere with --json, and not into a
// table that is being drawn.
type screenLog struct {
	screen *screen
	w      io.Writer
	quiet  bool
	mu     sync.Mutex
}

func (l *screenLog) Write(line []byte) (int, error) {
	if l.quiet || l.screen.drawing() {
		return len(line), nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.w.Write(line)
}
