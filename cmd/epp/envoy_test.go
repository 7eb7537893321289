package main

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"epp.internal/epp/config"
	"epp.internal/epp/engine"
	"epp.internal/epp/epptest"
	"epp.internal/epp/epptest/demotok"
	"epp.internal/epp/tokenize"
)

// examplesOfEnvoy are the files of deploy/envoy, as generate.sh there writes them.
func examplesOfEnvoy() map[string]envoyConfig {
	files := map[string]envoyConfig{}
	add := func(name string, e envoyConfig) {
		e.listen, e.admin = ":10000", "127.0.0.1:9901"
		files[name] = e
	}
	for _, mode := range []string{envoyBuffered, envoyStreamed, envoyFullDuplex} {
		add(mode+"-original-dst.yaml", envoyConfig{mode: mode, upstream: envoyOriginalDst})
		add(mode+"-override-host.yaml", envoyConfig{mode: mode, upstream: envoyOverrideHost})
	}
	add("buffered-override-host-fail-open.yaml", envoyConfig{mode: envoyBuffered, upstream: envoyOverrideHost, failOpen: true})
	return files
}

// TestEnvoyExamples: the files of deploy/envoy are what the command prints, and
// the real Envoy accepts each.
func TestEnvoyExamples(t *testing.T) {
	const dir = "../../deploy/envoy"
	path, err := envoyBinary()
	if err != nil {
		t.Fatal(err)
	}
	for name, e := range examplesOfEnvoy() {
		t.Run(name, func(t *testing.T) {
			pool := "epp.yaml"
			if e.upstream == envoyOverrideHost {
				pool = "epp-fallbacks.yaml"
			}
			data, err := os.ReadFile(filepath.Join(dir, pool))
			if err != nil {
				t.Fatal(err)
			}
			cfg, err := config.Parse(pool, data)
			if err != nil {
				t.Fatal(err)
			}
			var want bytes.Buffer
			if err := e.write(&want, cfg); err != nil {
				t.Fatal(err)
			}
			got, err := os.ReadFile(filepath.Join(dir, name))
			if err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(got, want.Bytes()) {
				t.Errorf("%s is not what the command prints: run deploy/envoy/generate.sh", name)
			}
			if out, err := exec.Command(path, "--mode", "validate", "-l", "warning", "-c", filepath.Join(dir, name)).CombinedOutput(); err != nil {
				t.Errorf("%v\n%s", err, out)
			}
		})
	}
}

// TestEnvoyConfigRefusals: what would lead to an Envoy that cannot work is
// refused, with what to do instead.
func TestEnvoyConfigRefusals(t *testing.T) {
	sound := envoyConfig{mode: envoyBuffered, upstream: envoyOriginalDst, listen: ":10000"}
	for name, c := range map[string]struct {
		change func(*envoyConfig, *config.Config)
		want   string
	}{
		"mode":     {func(e *envoyConfig, _ *config.Config) { e.mode = "stream" }, `--mode: "stream": must be one of buffered, full-duplex, streamed`},
		"upstream": {func(e *envoyConfig, _ *config.Config) { e.upstream = "" }, `--upstream: "": must be one of original-dst, override-host`},
		"pool on Kubernetes": {func(e *envoyConfig, c *config.Config) {
			e.upstream, c.Pool.Endpoints, c.Kubernetes.Pool = envoyOverrideHost, nil, "default/llama"
		}, `--upstream override-host: Envoy needs a list of endpoints there, and kubernetes.pool "default/llama" has none that stays; use original-dst`},
		"fail-open": {func(e *envoyConfig, _ *config.Config) { e.failOpen = true }, `--fail-open: with --upstream original-dst Envoy has no endpoint of its own to take; use override-host`},
		"fail-open, full-duplex": {func(e *envoyConfig, _ *config.Config) {
			e.failOpen, e.mode, e.upstream = true, envoyFullDuplex, envoyOverrideHost
		}, `--fail-open: with --mode full-duplex Envoy has given the body away and answers 500 without a picker; use buffered or streamed`},
		"fallbacks": {func(_ *envoyConfig, c *config.Config) { c.Fallbacks = 1 }, `--upstream original-dst: with fallbacks: 1 the picker names several endpoints, and Envoy finds none in a list there; use override-host, or fallbacks: 0`},
		"no picker": {func(_ *envoyConfig, c *config.Config) { c.Listen.ExtProc = "" }, `listen.extProc: "": Envoy has no picker to ask; set it, or give --picker`},
		"listen":    {func(e *envoyConfig, _ *config.Config) { e.listen = "10000" }, `address "10000": must be host:port`},
		"port":      {func(e *envoyConfig, _ *config.Config) { e.admin = ":http" }, `address ":http": port "http": must be a number within 0 and 65535`},
		"host":      {func(e *envoyConfig, _ *config.Config) { e.pickers = []string{"a\"\nb:1"} }, `address "a\"\nb:1": host "a\"\nb" has a character that no host has`},
	} {
		t.Run(name, func(t *testing.T) {
			e, cfg := sound, config.Default()
			c.change(&e, cfg)
			var b bytes.Buffer
			if err := e.write(&b, cfg); err == nil || err.Error() != c.want {
				t.Errorf("error %v\nwant  %s", err, c.want)
			}
			if b.Len() > 0 {
				t.Errorf("%d bytes were written", b.Len())
			}
		})
	}
}

// TestEnvoyRoutesByCache: behind the real Envoy a conversation's second turn
// follows its first, a client that leaves is noticed within a second, and the
// ledger is exact after each.
func TestEnvoyRoutesByCache(t *testing.T) {
	eachEnvoyCase(t, func(t *testing.T, c envoyCase) {
		r := newEnvoyRig(t, c, options{engines: 3})
		for i := range 3 {
			said := []message{user(words(uint64(i), 320))}
			first := r.must(said, 20)
			r.caughtUp()
			said = append(said, message{"assistant", first.text()}, user(words(uint64(100+i), 40)))
			second := r.must(said, 20)
			if second.servedBy != first.servedBy {
				t.Errorf("turn 2 went to %s, turn 1 to %s", second.servedBy, first.servedBy)
			}
			if ratio := r.matchRatio(second); ratio < 0.8 {
				t.Errorf("turn 2: match %.2f", ratio)
			}
			r.caughtUp()
		}
		r.atRest()
		for _, afterBytes := range []bool{false, true} {
			both := epptest.Fault{Hang: !afterBytes}
			for _, e := range r.engines {
				e.SetFault(both)
			}
			r.abort([]message{user("one two three")}, afterBytes)
			left := time.Now()
			r.atRest()
			if d := time.Since(left); d > time.Second {
				t.Errorf("a client that left (after bytes: %v) was noticed after %v", afterBytes, d)
			}
		}
		if p := r.get("/v1/models"); p.status != http.StatusOK || !strings.Contains(string(p.body), `"tiny"`) {
			t.Errorf("GET /v1/models: %d %s %v", p.status, p.body, p.err)
		}
		r.atRest()
		mode := envoyModes[c.mode]
		if n := r.metric("epp_ext_proc_streams_total", `request_mode="`+mode.RequestBody+`"`, `response_mode="`+mode.ResponseBody+`"`); n < 6 {
			t.Errorf("%v streams in the mode that was asked for, want the 6 turns at least", n)
		}
	})
}

// get asks for a path without a body.
func (r *rig) get(path string) *reply {
	resp, err := r.client.Get(r.url + path)
	if err != nil {
		return &reply{err: err}
	}
	defer resp.Body.Close()
	p := &reply{status: resp.StatusCode, header: resp.Header}
	p.body, p.err = io.ReadAll(resp.Body)
	return p
}

// TestEnvoyStreamsUnbuffered: each event of a stream reaches the client before
// the endpoint writes the next: it waits for the client's word.
func TestEnvoyStreamsUnbuffered(t *testing.T) {
	eachEnvoyCase(t, func(t *testing.T, c envoyCase) {
		const events = 5
		read := make(chan struct{})
		s := startPlain(t, func(w http.ResponseWriter, req *http.Request) {
			w.Header().Set("Content-Type", "text/event-stream")
			for i := range events {
				_, _ = fmt.Fprintf(w, "data: {\"choices\":[{\"delta\":{\"content\":\"%d\"}}]}\n\n", i)
				_ = http.NewResponseController(w).Flush()
				select {
				case <-read:
				case <-req.Context().Done():
					return
				}
			}
			_, _ = io.WriteString(w, "data: [DONE]\n\n")
		})
		r := newEnvoyRig(t, c, options{config: only(s.Listener.Addr().String()), unsettled: true})
		resp, err := openStream(r.ctx, r.client, r.url, []message{user("one")})
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		got := 0
		for lines := bufio.NewScanner(resp.Body); lines.Scan(); {
			if data, ok := strings.CutPrefix(lines.Text(), "data: {"); ok {
				if !strings.Contains(data, fmt.Sprintf(`"%d"`, got)) {
					t.Errorf("event %d: %s", got, data)
				}
				got++
				read <- struct{}{}
			}
		}
		if got != events {
			t.Errorf("%d events, want %d", got, events)
		}
		r.atRest()
	})
}

// TestCaseG7BodiesThroughEnvoy: a body of 5 MB, a chunked one, one that waits for
// 100 Continue, and one whose length the replaced model name changes reach the
// endpoint whole.
func TestCaseG7BodiesThroughEnvoy(t *testing.T) {
	eachEnvoyCase(t, func(t *testing.T, c envoyCase) {
		s := startPlain(t, func(w http.ResponseWriter, req *http.Request) {
			body, err := io.ReadAll(req.Body)
			if err != nil {
				w.WriteHeader(http.StatusBadRequest)
			}
			var b struct{ Model string }
			_ = json.Unmarshal(body, &b)
			if req.ContentLength >= 0 && len(req.TransferEncoding) > 0 {
				w.WriteHeader(http.StatusBadRequest)
			}
			_, _ = fmt.Fprintf(w, "%s %d %x", b.Model, len(body), sha256.Sum256(body))
		})
		r := newEnvoyRig(t, c, options{unsettled: true, config: func(cfg *config.Config, engines []*epptest.Engine) {
			only(s.Listener.Addr().String())(cfg, engines)
			cfg.Models = []config.Model{{Name: "alias", Target: "the-model-behind-the-alias"}}
		}})
		body := func(model string, n int) []byte {
			return fmt.Appendf(nil, `{"model":"%s","prompt":"one two","user":"%s"}`, model, strings.Repeat("x", n))
		}
		for name, b := range map[string]struct {
			body           []byte
			chunked, waits bool
			model          string
			asIs           bool
		}{
			"5 MB":         {body: body("tiny", 5_000_000), model: "tiny", asIs: true},
			"chunked":      {body: body("tiny", 3_000), chunked: true, model: "tiny", asIs: true},
			"chunked 5 MB": {body: body("tiny", 5_000_000), chunked: true, model: "tiny", asIs: true},
			"100 Continue": {body: body("tiny", 3_000), waits: true, model: "tiny", asIs: true},
			"renamed":      {body: body("alias", 3_000), model: "the-model-behind-the-alias"},
		} {
			t.Run(name, func(t *testing.T) {
				var from io.Reader = bytes.NewReader(b.body)
				if b.chunked {
					from = io.MultiReader(from) // of a length that the client does not know
				}
				req, err := http.NewRequestWithContext(r.ctx, http.MethodPost, r.url+"/v1/completions", from)
				if err != nil {
					t.Fatal(err)
				}
				req.Header.Set("Content-Type", "application/json")
				// A client that waits sends its body after 100 Continue, or not at all.
				client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true, ExpectContinueTimeout: patience}}
				if b.waits {
					req.Header.Set("Expect", "100-continue")
				}
				resp, err := client.Do(req)
				if err != nil {
					t.Fatal(err)
				}
				defer resp.Body.Close()
				got, _ := io.ReadAll(resp.Body)
				want := fmt.Sprintf("%s %d %x", b.model, len(b.body), sha256.Sum256(b.body))
				if !b.asIs {
					sent := bytes.Replace(b.body, []byte("alias"), []byte(b.model), 1)
					want = fmt.Sprintf("%s %d %x", b.model, len(sent), sha256.Sum256(sent))
				}
				if resp.StatusCode != http.StatusOK || string(got) != want {
					t.Errorf("%d %s\nwant 200 %s", resp.StatusCode, got, want)
				}
				r.atRest()
			})
		}
	})
}

// TestEnvoyRefusals: what the picker refuses reaches the client with its status,
// its body and its reason: a full fleet, one where nobody is healthy, a model
// that nobody has.
func TestEnvoyRefusals(t *testing.T) {
	eachEnvoyCase(t, func(t *testing.T, c envoyCase) {
		r := newEnvoyRig(t, c, options{
			engines: 1,
			engine:  func(_ int, e *epptest.EngineConfig) { e.Engine.MaxRunning = 1 },
			config: func(cfg *config.Config, _ []*epptest.Engine) {
				cfg.MaxQueue, cfg.OnSaturated, cfg.Load.MaxRunning = 1, "reject", 1
			},
		})
		refused := func(status int, reason, model string) {
			t.Helper()
			p := r.post("/v1/chat/completions", map[string]any{"model": model, "messages": []message{user("one")}, "max_tokens": 1})
			var b struct {
				Error struct{ Code, Message string }
			}
			if err := json.Unmarshal(p.body, &b); err != nil || p.status != status || b.Error.Message == "" || b.Error.Code != reason || p.id == "" {
				t.Errorf("%d %s %v %v, want %d %s", p.status, p.body, p.header, p.err, status, reason)
			}
			if retry := p.header.Get("retry-after"); (retry != "") != (status == 429) {
				t.Errorf("%d: retry-after %q", status, retry)
			}
		}
		refused(404, "model_unknown", "nobody-has-it")
		a := r.engine("A")
		a.HoldAnswers(true)
		var done []*http.Response
		for range 2 { // one runs, one waits
			resp, err := openStream(r.ctx, r.client, r.url, []message{user("held")})
			if err != nil || resp.StatusCode != http.StatusOK {
				t.Fatal(resp, err)
			}
			done = append(done, resp)
		}
		refused(429, "all_full", "tiny")
		for _, resp := range done {
			_ = resp.Body.Close()
		}
		a.HoldAnswers(false)
		r.atRest()
		a.Sleep()
		r.until("the page says that it sleeps", func() bool { return r.state("A").Signals.Health == 0 })
		refused(503, "none_healthy", "tiny")
		r.atRest()
	})
}

// TestExample5ThroughEnvoy is TestExample5BurstSpreads with the real Envoy in
// front: 20, 10, 10, 10 whatever the mode.
func TestExample5ThroughEnvoy(t *testing.T) {
	eachEnvoyCase(t, func(t *testing.T, c envoyCase) { burst(t, newEnvoyRig(t, c, burstOptions)) })
}

// TestCaseJ4DeadFirstEndpointBehindEnvoy: with one fallback, requests whose first
// endpoint refuses connections, resets, or answers 503 are served by the second,
// none fails, and their booking stands where they run.
func TestCaseJ4DeadFirstEndpointBehindEnvoy(t *testing.T) {
	for _, mode := range []string{envoyBuffered, envoyStreamed, envoyFullDuplex} {
		for fault, set := range map[string]func(*epptest.Engine) error{
			"refuses": func(e *epptest.Engine) error { return e.RefuseConnections(true) },
			"resets":  func(e *epptest.Engine) error { e.SetFault(epptest.Fault{ResetBeforeHeaders: true}); return nil },
			"503":     func(e *epptest.Engine) error { e.SetFault(epptest.Fault{Status: 503}); return nil },
		} {
			t.Run(mode+" "+fault, func(t *testing.T) {
				r := newEnvoyRig(t, envoyCase{mode, envoyOverrideHost}, options{engines: 2, config: func(cfg *config.Config, _ []*epptest.Engine) {
					cfg.Fallbacks = 1
				}})
				said := []message{user(words(1, 640))}
				dead := r.must(said, 1).servedBy
				r.caughtUp()
				r.atRest()
				other := map[string]string{"A": "B", "B": "A"}[dead]
				if err := set(r.engine(dead)); err != nil {
					t.Fatal(err)
				}
				r.engine(other).HoldAnswers(true)
				r.forget()
				var streams []*http.Response
				for range 3 {
					resp, err := openStream(r.ctx, r.client, r.url, said)
					if err != nil || resp.StatusCode != http.StatusOK || resp.Header.Get("x-served-by") != other {
						t.Fatalf("%v %v", resp, err)
					}
					streams = append(streams, resp)
				}
				if n := r.picks()[dead]; n == 0 {
					t.Errorf("the dead endpoint was never first: picks %v", r.picks())
				}
				r.until("the bookings have moved", func() bool {
					return r.state(other).Signals.InFlight == 3 && r.state(dead).Signals.InFlight == 0
				})
				for _, resp := range streams {
					_ = resp.Body.Close()
				}
				r.engine(other).HoldAnswers(false)
				if err := r.engine(other).AwaitLoad(r.ctx, func(l engine.Load) bool { return l.Running == 0 }); err != nil {
					t.Error(err)
				}
				r.atRest()
			})
		}
	}
}

// TestDemoThroughEnvoy: the demo's Envoy stands in front of its engines, and
// answers go through it.
func TestDemoThroughEnvoy(t *testing.T) {
	path, err := envoyBinary()
	if err != nil {
		t.Fatal(err)
	}
	model, settings := demotok.Files()
	tok, err := tokenize.New(model, settings)
	if err != nil {
		t.Fatal(err)
	}
	d := demo{envoy: path, listen: "127.0.0.1:0", metrics: "127.0.0.1:0", length: demoFor / 3, tok: tok}
	engines, err := d.startEngines()
	defer closeEngines(engines)
	if err != nil {
		t.Fatal(err)
	}
	sys, err := build(d.config(engines), tok, slog.New(slog.DiscardHandler), watch{})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ready, served := make(chan addresses, 1), make(chan error, 1)
	go func() { served <- sys.run(ctx, func(at addresses) { ready <- at }) }()
	defer func() {
		cancel()
		if err := <-served; err != nil {
			t.Error(err)
		}
	}()
	at := <-ready
	if at.proxy != "" {
		t.Errorf("the proxy listens on %s, too", at.proxy)
	}
	front, err := d.startEnvoy(ctx, sys.cfg, at.extproc)
	if err != nil {
		t.Fatal(err)
	}
	defer front.stop()
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	turn, text := ask(ctx, client, "http://"+front.address, []message{user("one two")})
	if turn.err != nil || turn.endpoint == "" || text == "" {
		t.Errorf("%+v %q", turn, text)
	}
	if _, err := startEnvoy(ctx, path, []byte("static_resources: {listeners: 1}"), io.Discard); err == nil || !strings.Contains(err.Error(), "ended at its start") {
		t.Errorf("a configuration that Envoy refuses: %v", err)
	}
}
