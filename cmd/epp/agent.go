package main

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"epp.internal/epp/agent"
	"epp.internal/epp/agent/gpu"
	"epp.internal/epp/config"
	"epp.internal/epp/kvevents"
	"epp.internal/epp/probe"
	"epp.internal/epp/report"
	"epp.internal/epp/report/wire"
	"epp.internal/epp/scrape"
)

const (
	// maxPickers bounds those that one agent tells.
	maxPickers = 16
	// gpuEvery is the pause between two readings of the accelerators, gpuDeadline
	// bounds one.
	gpuEvery    = 2 * time.Second
	gpuDeadline = 5 * time.Second
)

// agentFlags are the settings of epp agent.
type agentFlags struct {
	engine, endpoint string
	events, replay   string
	pickers          []string
	tokenFile        string
	plaintext        bool
	ca, cert, key    string
	gpus             []int
	noGPU            bool
	noEvents         bool
	values           map[string]string
	cacheBytes       config.Bytes
	probe            config.Probe
}

func agentCommand() *cobra.Command {
	f := agentFlags{cacheBytes: agent.DefaultMaxBytes, probe: config.Default().Probe}
	cmd := &cobra.Command{
		Use:   "agent --engine URL --picker HOST:PORT",
		Short: "Run beside an engine and tell pickers what it holds and how it does",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			flag, _ := cmd.Flags().GetString("log-level")
			log, err := newLog(cmd.ErrOrStderr(), flag, "info")
			if err != nil {
				return err
			}
			b, err := newBeside(&f, log)
			if err != nil {
				return err
			}
			return b.run(cmd.Context())
		},
	}
	fs := cmd.Flags()
	fs.StringVar(&f.engine, "engine", "", "the engine's API: http://ip:port")
	fs.StringSliceVar(&f.pickers, "picker", nil, "the pickers' report addresses, host:port")
	fs.StringVar(&f.endpoint, "endpoint", "", "ip:port by which the pickers know the engine (default: the engine's)")
	fs.StringVar(&f.events, "events", "", "ip:port of the engine's KV events (default: the engine is asked)")
	fs.StringVar(&f.replay, "replay", "", "ip:port of their replay")
	fs.BoolVar(&f.noEvents, "no-events", false, "leave the engine's KV events to the pickers")
	fs.StringVar(&f.tokenFile, "token-file", "", "a file with the secret that the pickers know")
	fs.StringVar(&f.ca, "ca", "", "a PEM file with the authorities of the pickers' certificates (default: the system's)")
	fs.StringVar(&f.cert, "cert", "", "a PEM file with our certificate, where the pickers ask for one")
	fs.StringVar(&f.key, "key", "", "its key")
	fs.BoolVar(&f.plaintext, "plaintext", false, "without TLS: for pickers on the same host, or inside a mesh")
	fs.IntSliceVar(&f.gpus, "gpu", nil, "the indices of the engine's GPUs (default: all that are seen)")
	fs.BoolVar(&f.noGPU, "no-gpu", false, "do not read GPUs")
	fs.StringToStringVar(&f.values, "value", nil, "what scorers are to know: name=value")
	fs.TextVar(&f.cacheBytes, "cache-bytes", f.cacheBytes, "the most that the engine's blocks may take here")
	fs.DurationVar(&f.probe.Interval.Duration, "probe-interval", 0, "ask the engine for one token so often; 0: never")
	fs.DurationVar(&f.probe.Timeout.Duration, "probe-timeout", f.probe.Timeout.Duration, "how long the engine may take for it")
	_ = cmd.MarkFlagRequired("engine")
	_ = cmd.MarkFlagRequired("picker")
	return cmd
}

// beside is an agent, and what it reads and tells.
type beside struct {
	flags   *agentFlags
	log     *slog.Logger
	agent   *agent.Agent
	address string // of the engine
	clients []*report.Client
	reader  *gpu.Reader // nil where there is none
}

// newBeside checks the flags and wires an agent.
func newBeside(f *agentFlags, log *slog.Logger) (*beside, error) {
	b := &beside{flags: f, log: log}
	u, err := url.Parse(f.engine)
	if err != nil || u.Scheme != "http" || strings.Trim(u.Path, "/") != "" {
		return nil, fmt.Errorf("--engine: %q is not http://ip:port", f.engine)
	}
	b.address = u.Host
	endpoint := cmp.Or(f.endpoint, b.address)
	at, err := netip.ParseAddrPort(endpoint)
	if err != nil {
		return nil, fmt.Errorf("--endpoint: %q is not the ip:port by which the pickers know the engine", endpoint)
	}
	if len(f.pickers) == 0 || len(f.pickers) > maxPickers {
		return nil, fmt.Errorf("--picker: %d pickers; want 1 to %d", len(f.pickers), maxPickers)
	}
	for _, p := range f.pickers {
		_, port, err := net.SplitHostPort(p)
		if _, bad := strconv.ParseUint(port, 10, 16); err != nil || bad != nil {
			return nil, fmt.Errorf("--picker: %q is not host:port", p)
		}
	}
	if f.noEvents && f.events != "" {
		return nil, fmt.Errorf("--no-events: leaves --events %q unused; remove one or the other", f.events)
	}
	if f.replay != "" && f.events == "" {
		return nil, fmt.Errorf("--replay: %q has no events to replay; set --events too", f.replay)
	}
	if err := report.CheckValues(f.values); err != nil {
		return nil, fmt.Errorf("--value: %w", err)
	}
	if err := f.checkProbe(); err != nil {
		return nil, err
	}
	token, err := newToken("--token-file", f.tokenFile, log)
	if err != nil {
		return nil, err
	}
	side, err := f.clientTLS(log)
	if err != nil {
		return nil, err
	}
	b.agent = agent.New(agent.Options{Pickers: len(f.pickers), MaxBytes: int(f.cacheBytes), Values: f.values})
	for i, p := range f.pickers {
		b.clients = append(b.clients, &report.Client{
			Picker: p, Token: token, TLS: side, Source: b.agent.Teller(i), Log: log,
			Hello: &wire.Hello{Endpoint: at.String(), Readings: true, Blocks: !f.noEvents, Probes: f.probes()},
		})
	}
	if !f.noGPU {
		if r, ok := gpu.Open(gpu.Options{Devices: f.gpus}); ok {
			b.reader = r
		}
	}
	return b, nil
}

// probes says whether the engine is probed.
func (f *agentFlags) probes() bool { return f.probe.Interval.Duration != 0 }

// checkProbe says what is wrong with the times of probes, nil for nothing.
func (f *agentFlags) checkProbe() error {
	if !f.probes() {
		return nil
	}
	if d := f.probe.Interval.Duration; d < config.MinProbeInterval || d > config.MaxProbeInterval {
		return fmt.Errorf("--probe-interval: %q is not 0 or %v to %v", d, config.MinProbeInterval, config.MaxProbeInterval)
	}
	if d := f.probe.Timeout.Duration; d < config.MinProbeTimeout || d > config.MaxProbeTimeout {
		return fmt.Errorf("--probe-timeout: %q is not %v to %v", d, config.MinProbeTimeout, config.MaxProbeTimeout)
	}
	return nil
}

// clientTLS is our side of TLS, as its files say at each handshake; nil where none is
// wanted.
func (f *agentFlags) clientTLS(log *slog.Logger) (func() *tls.Config, error) {
	if f.plaintext {
		if f.ca+f.cert+f.key != "" {
			return nil, errors.New("--plaintext: leaves --ca, --cert and --key unused; remove one or the other")
		}
		return nil, nil
	}
	c := &tls.Config{MinVersion: tls.VersionTLS12}
	if f.cert+f.key != "" {
		// Read at each handshake: certificates are renewed while we run.
		read := func() (*tls.Certificate, error) {
			pair, err := tls.LoadX509KeyPair(f.cert, f.key)
			if err != nil {
				return nil, fmt.Errorf("--cert: %q with --key %q: %w", f.cert, f.key, err)
			}
			return &pair, nil
		}
		if _, err := read(); err != nil {
			return nil, err
		}
		c.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return read() }
	}
	if f.ca == "" {
		return func() *tls.Config { return c }, nil
	}
	roots, err := newRenewed(func() (*x509.CertPool, error) { return readCA("--ca", f.ca) }, log)
	if err != nil {
		return nil, err
	}
	return func() *tls.Config {
		now := c.Clone()
		now.RootCAs = roots.get()
		return now
	}, nil
}

// run reads and tells until ctx ends.
func (b *beside) run(ctx context.Context) error {
	source := "none"
	if b.reader != nil {
		source = b.reader.Source
		defer b.reader.Close()
	}
	b.log.Info("agent", "engine", b.address, "endpoint", b.clients[0].Hello.Endpoint, "pickers", b.flags.pickers, "gpu", source, "version", version)
	client := scrape.Client(nil)
	defer client.CloseIdleConnections()
	readers := &scrape.Group{Client: client, Log: b.log}
	var wg sync.WaitGroup
	for _, c := range b.clients {
		wg.Go(func() { _ = c.Run(ctx) }) // ends with ctx
	}
	if b.reader != nil {
		wg.Go(func() { b.readGPU(ctx) })
	}
	if !b.flags.noEvents {
		wg.Go(func() { b.hear(ctx, client) })
	}
	if b.flags.probes() {
		p := &probe.Prober{Client: client, Interval: b.flags.probe.Interval.Duration, Timeout: b.flags.probe.Timeout.Duration, Log: b.log}
		wg.Go(func() { _ = p.Run(ctx, probe.Target{Address: b.address, Model: b.agent.BaseModel}, b.agent) }) // ends with ctx
	}
	_ = readers.Run(ctx, scrape.Target{Address: b.address}, b.agent) // ends with ctx
	wg.Wait()
	return nil
}

// hear follows the engine's KV events until ctx ends: where the flags say, else
// where the engine says, asked again when it may have restarted.
func (b *beside) hear(ctx context.Context, client *http.Client) {
	if b.flags.events != "" {
		b.subscribe(ctx, kvevents.Source{Address: b.flags.events, Replay: b.flags.replay}, nil)
		return
	}
	stop := func() {}
	lost := make(chan struct{}, 1)
	askSources(ctx, client, b.log, b.address, lost, func(sources []kvevents.Source) {
		stop()
		stop = func() {}
		if len(sources) > 1 {
			b.log.Warn("no KV events: the engine has several data-parallel ranks; leave them to the pickers with --no-events", "address", b.address)
			return
		}
		if len(sources) == 0 {
			return
		}
		own, cancel := context.WithCancel(ctx)
		var wg sync.WaitGroup
		wg.Go(func() { b.subscribe(own, sources[0], lost) })
		stop = func() {
			cancel()
			wg.Wait()
		}
	})
	stop()
}

// subscribe follows one source of events until ctx ends, and tells lost when the
// engine may have restarted.
func (b *beside) subscribe(ctx context.Context, src kvevents.Source, lost chan<- struct{}) {
	restarted := func() { tellLost(lost) }
	sub := kvevents.Subscriber{
		Address: src.Address, Replay: src.Replay, Topic: src.Topic, Sink: b.agent, Log: b.log,
		Hooks: kvevents.Hooks{Lost: restarted, Restart: func() {
			b.agent.Restarted()
			restarted()
		}},
	}
	_ = sub.Run(ctx) // ends with ctx
}

// readGPU reads the accelerators now and then. A reading that fails is told of
// when that is new.
func (b *beside) readGPU(ctx context.Context) {
	failing := false
	for ctx.Err() == nil {
		reading, cancel := context.WithTimeout(ctx, gpuDeadline)
		g, err := b.reader.Read(reading)
		cancel()
		if err == nil {
			b.agent.GPU(time.Now(), g)
		} else if !failing && ctx.Err() == nil {
			b.log.Warn("gpu unknown", "source", b.reader.Source, "error", err)
		}
		failing = err != nil
		pause(ctx, nil, gpuEvery)
	}
}
