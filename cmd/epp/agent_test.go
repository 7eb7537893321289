package main

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"epp.internal/epp"
	"epp.internal/epp/config"
	"epp.internal/epp/epptest"
)

// certificate writes a certificate for 127.0.0.1, which is its own authority, and
// its key.
func certificate(t *testing.T) (cert, key string) {
	t.Helper()
	secret, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "picker"}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &secret.PublicKey, secret)
	if err != nil {
		t.Fatal(err)
	}
	pkcs8, err := x509.MarshalPKCS8PrivateKey(secret)
	if err != nil {
		t.Fatal(err)
	}
	return file(t, "tls.crt", pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})),
		file(t, "tls.key", pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: pkcs8}))
}

func file(t *testing.T, name string, data []byte) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// TestAgent: while an engine's agent reports, the picker takes its word and reads
// the engine no more; records say so. What the agent tells leads to the same
// predictions. When the agent has gone, the picker reads for itself again, after
// three silent intervals.
func TestAgent(t *testing.T) {
	cert, key := certificate(t)
	secret := file(t, "token", []byte("0123456789abcdef\n"))
	r := newRig(t, options{engines: 2, config: func(c *config.Config, _ []*epptest.Engine) {
		c.Listen.Reports, c.TLS = "127.0.0.1:0", config.TLS{Cert: cert, Key: key}
		c.Reports = config.Reports{TokenFile: secret, PodReportIntervalMs: 200}
	}})
	said := []message{user(words(1, 200))}
	answer := r.must(said, 4)
	r.caughtUp()

	f := &agentFlags{
		engine: "http://" + r.engine("A").Address(), pickers: []string{r.at.reports},
		tokenFile: secret, ca: cert, noGPU: true, values: map[string]string{"zone": "b"},
	}
	b, err := newBeside(f, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(r.ctx)
	ended := make(chan error)
	go func() { ended <- b.run(ctx) }()
	r.until("the agent reports", func() bool { return r.state("A").Signals.Agent && !r.state("A").Signals.Incomplete })
	r.caughtUp()
	for turn := range 4 {
		said = append(said, message{"assistant", answer.text()}, user(words(uint64(turn)+2, 60)))
		p := r.must(said, 4)
		answer = p
		_, cached := p.usage()
		rec := r.record(p)
		if c := rec.Candidates[rec.Chosen]; c.CachedTokens(rec.PromptTokens) != cached {
			t.Errorf("turn %d: predicted %d cached tokens of %s, it reports %d", turn, c.CachedTokens(rec.PromptTokens), c.Name, cached)
		}
		for _, c := range rec.Candidates {
			if c.Signals.Agent != (c.Name == "A") {
				t.Errorf("turn %d: the record says of %s that its agent reports: %v", turn, c.Name, c.Signals.Agent)
			}
		}
		r.caughtUp()
	}
	if n := r.metric("epp_agent_reports_total", `result="taken"`); n == 0 {
		t.Error("no report is counted")
	}

	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	r.until("the agent has gone", func() bool { return !r.state("A").Signals.Agent })
	left := time.Now()
	r.must(append(said, message{"assistant", answer.text()}, user("and?")), 4)
	r.until("the picker reads for itself", func() bool { return r.state("A").Signals.ReadAt > epp.InstantOf(left) && r.sys.settled() })
	r.caughtUp()
	r.atRest()
}

// agentOf runs an agent beside an engine at address, for the rig's picker, until
// stop is called. Its log goes to the rig's.
func (r *rig) agentOf(address string, f agentFlags) (stop func()) {
	r.t.Helper()
	f.engine, f.pickers, f.plaintext, f.noGPU = "http://"+address, []string{r.at.reports}, true, true
	f.tokenFile = r.sys.cfg.Reports.TokenFile
	probes := f.probe
	f.probe.Interval.Duration = 0 // a test probes more often than the flags allow
	b, err := newBeside(&f, slog.New(slog.NewJSONHandler(r.log, nil)))
	if err != nil {
		r.t.Fatal(err)
	}
	f.probe = probes
	b.clients[0].Hello.Probes = f.probes()
	ctx, cancel := context.WithCancel(r.ctx)
	ended := make(chan error)
	go func() { ended <- b.run(ctx) }()
	return func() {
		cancel()
		if err := <-ended; err != nil {
			r.t.Error(err)
		}
	}
}

// reports lets a rig's picker take reports, every 200 ms at least.
func reports(t *testing.T) func(c *config.Config) {
	secret := file(t, "token", []byte("0123456789abcdef\n"))
	return func(c *config.Config) {
		c.Listen.Reports, c.TLS.Insecure = "127.0.0.1:0", true
		c.Reports = config.Reports{TokenFile: secret, PodReportIntervalMs: 200}
	}
}

// TestAgentFollowsReplacedEndpoint: an endpoint whose agent reports is replaced under its
// address: the agent speaks for the new one, blocks and all, and the interval that is
// asked of it may change.
func TestAgentFollowsReplacedEndpoint(t *testing.T) {
	take := reports(t)
	r := newRig(t, options{engines: 2, config: func(c *config.Config, _ []*epptest.Engine) {
		take(c)
		c.Timeouts.Drain.Duration = 100 * time.Millisecond
	}})
	r.must([]message{user(words(1, 200))}, 4)
	defer r.agentOf(r.engine("A").Address(), agentFlags{})()
	speaks := func() bool { a := r.state("A"); return a.Signals.Agent && !a.Signals.Incomplete }
	r.until("the agent reports", speaks)
	for i := range 5 {
		former := r.state("A").Endpoint.Generation
		r.sys.setEndpoints(entries(r.engines, fmt.Sprint("uid-", i)))
		if now := r.state("A").Endpoint.Generation; now == former {
			t.Fatal("A was not replaced")
		}
		r.until("the agent speaks for the new one", speaks)
		r.until("B is known", r.sys.settled)
		r.caughtUp()
	}
	cfg := *r.sys.live.Load()
	cfg.Reports.PodReportIntervalMs = 100
	if err := r.sys.apply(&cfg); err != nil {
		t.Fatal(err)
	}
	r.must([]message{user(words(2, 200))}, 4)
	r.caughtUp()
	r.atRest()
}

// TestAgentProbes: the engine answers its page and no request. The agent's probes
// tell, and nothing else does; while they come the picker makes none. When the
// agent has gone, so has what its probes said.
func TestAgentProbes(t *testing.T) {
	take := reports(t)
	r := newRig(t, options{engines: 2, config: func(c *config.Config, _ []*epptest.Engine) { take(c) }})
	stop := r.agentOf(r.engine("A").Address(), agentFlags{probe: config.Probe{
		Interval: config.Duration{Duration: 50 * time.Millisecond}, Timeout: config.Duration{Duration: time.Second},
	}})
	r.until("the agent has probed", func() bool { return r.state("A").Signals.Agent && r.engine("A").Requests() > 0 })
	src, _ := r.sys.sources.Load(r.engine("A").Address())
	if !src.(*source).probes.isAgents() {
		t.Error("the picker's own probes have not ended")
	}
	if got := r.state("A").Signals.Health; got != 1 {
		t.Errorf("health %v after a good probe", got)
	}
	r.engine("A").SetFault(epptest.Fault{Status: 500})
	r.until("A has failed", func() bool { return r.state("A").Signals.Health == 0 })
	if got := r.state("A").Signals.HealthReason; got != epp.ProbeFailed {
		t.Errorf("reason %q", got)
	}
	for range 5 {
		if p := r.must([]message{user("hello")}, 1); p.servedBy != "B" {
			t.Errorf("served by %s", p.servedBy)
		}
	}
	stop()
	r.until("A is back", func() bool { return r.state("A").Signals.Health >= 0.5 })
	r.atRest()
}

// TestAgentOfSeveralRanks: an agent reports for an engine of one rank. For one of
// several it is refused with the reason, on both sides, and the picker goes on
// reading the ranks for itself.
func TestAgentOfSeveralRanks(t *testing.T) {
	engines := newRig(t, options{engines: 2}).engines // to be ranks
	defer http.DefaultClient.CloseIdleConnections()
	front := newManyRanks(t, engines...)
	address := strings.TrimPrefix(front.URL, "http://")
	take := reports(t)
	r := newRig(t, options{unsettled: true, config: func(c *config.Config, _ []*epptest.Engine) {
		take(c)
		c.Pool.Endpoints = []config.Endpoint{{Name: "pod", Address: address}}
	}})
	r.until("both ranks are known", func() bool { return len(r.sys.fleet.Snapshot()) == 2 && r.sys.settled() })
	stop := r.agentOf(address, agentFlags{})
	defer stop()
	want := fmt.Sprintf("endpoint: %q has 2 data-parallel ranks; an agent reports for an engine of one", address)
	r.until("both sides have said so", func() bool {
		for _, msg := range []string{"report stream refused", "agent: no picker"} {
			if !slices.ContainsFunc(r.log.find(msg, ""), func(l map[string]any) bool { return strings.Contains(l["error"].(string), want) }) {
				return false
			}
		}
		return true
	})
	if n := r.metric("epp_agent_reports_total", `result="refused"`); n == 0 {
		t.Error("no refusal is counted")
	}
	for _, s := range r.sys.fleet.Snapshot() {
		if s.Signals.Agent {
			t.Errorf("%s is an agent's", s.Endpoint.Name)
		}
	}
}

// Flags that can't be right are refused with what would be.
func TestAgentFlags(t *testing.T) {
	short := file(t, "token", []byte("short"))
	good := func() *agentFlags {
		return &agentFlags{engine: "http://10.0.0.7:8000", pickers: []string{"picker:9004"}, plaintext: true, noGPU: true}
	}
	for want, change := range map[string]func(f *agentFlags){
		`--engine: "10.0.0.7:8000" is not http://ip:port`:                                                     func(f *agentFlags) { f.engine = "10.0.0.7:8000" },
		`--endpoint: "vllm:8000" is not the ip:port by which the pickers know the engine`:                     func(f *agentFlags) { f.engine = "http://vllm:8000" },
		`--picker: "picker" is not host:port`:                                                                 func(f *agentFlags) { f.pickers = []string{"picker"} },
		`--picker: 17 pickers; want 1 to 16`:                                                                  func(f *agentFlags) { f.pickers = make([]string, 17) },
		`--no-events: leaves --events "10.0.0.7:5557" unused; remove one or the other`:                        func(f *agentFlags) { f.noEvents, f.events = true, "10.0.0.7:5557" },
		`--replay: "10.0.0.7:5558" has no events to replay; set --events too`:                                 func(f *agentFlags) { f.replay = "10.0.0.7:5558" },
		`--plaintext: leaves --ca, --cert and --key unused; remove one or the other`:                          func(f *agentFlags) { f.ca = "x" },
		`--token-file: "` + short + `" holds no token; want at least 16 printable characters without a blank`: func(f *agentFlags) { f.tokenFile = short },
		`--probe-interval: "20ms" is not 0 or 1s to 10m0s`:                                                    func(f *agentFlags) { f.probe.Interval.Duration = 20 * time.Millisecond },
		`--probe-timeout: "2m0s" is not 100ms to 1m0s`:                                                        func(f *agentFlags) { f.probe.Interval.Duration, f.probe.Timeout.Duration = time.Second, 2*time.Minute },
		`--value: values: "" has 0 bytes and its value 1; want 1 to 256, and at most 256`:                     func(f *agentFlags) { f.values = map[string]string{"": "x"} },
	} {
		f := good()
		change(f)
		if _, err := newBeside(f, slog.New(slog.DiscardHandler)); err == nil || err.Error() != want {
			t.Errorf("%v; want %s", err, want)
		}
	}
	f := good()
	f.noEvents = true
	b, err := newBeside(f, slog.New(slog.DiscardHandler))
	if err != nil || b.clients[0].Hello.Blocks || !b.clients[0].Hello.Readings {
		t.Errorf("%v; want an agent that reports readings, and leaves the events to the pickers", err)
	}
}
