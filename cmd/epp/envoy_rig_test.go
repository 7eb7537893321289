package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"

	"epp.internal/epp/config"
	"epp.internal/epp/epptest"
)

// envoyCase is a way to run Envoy that the examples have.
type envoyCase struct{ mode, upstream string }

func (c envoyCase) String() string { return c.mode + "-" + c.upstream }

func (c envoyCase) override() bool { return c.upstream == envoyOverrideHost }

// eachEnvoyCase runs f in every mode with every upstream.
func eachEnvoyCase(t *testing.T, f func(t *testing.T, c envoyCase)) {
	for _, mode := range []string{envoyBuffered, envoyStreamed, envoyFullDuplex} {
		for _, upstream := range []string{envoyOriginalDst, envoyOverrideHost} {
			c := envoyCase{mode, upstream}
			t.Run(c.String(), func(t *testing.T) { f(t, c) })
		}
	}
}

// envoyBinary is the real Envoy, fetched where it is not in the cache.
var envoyBinary = sync.OnceValues(func() (string, error) {
	const script = "../../test/fetch-envoy.sh"
	var stderr bytes.Buffer
	cmd := exec.Command(script)
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("no Envoy; run test/fetch-envoy.sh: %w: %s", err, stderr.String())
	}
	return strings.TrimSpace(string(out)), nil
})

// runEnvoy starts the real Envoy with a configuration. Its log is shown where
// the test fails.
func runEnvoy(t *testing.T, configuration []byte) *envoyProcess {
	t.Helper()
	path, err := envoyBinary()
	if err != nil {
		t.Fatal(err)
	}
	log := &logLines{}
	e, err := startEnvoy(t.Context(), path, configuration, log)
	if err != nil {
		t.Fatalf("%v\n%s\n%s", err, log, configuration)
	}
	t.Cleanup(func() {
		e.stop()
		if t.Failed() {
			t.Logf("Envoy's log:\n%s", log)
		}
	})
	return e
}

// envoyFor is the generated configuration on free ports.
func envoyFor(t *testing.T, e envoyConfig, cfg *config.Config) []byte {
	t.Helper()
	e.listen, e.admin = "127.0.0.1:0", "127.0.0.1:0"
	var b bytes.Buffer
	if err := e.write(&b, cfg); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// newEnvoyRig is a rig whose url is that of a real Envoy beside the picker.
func newEnvoyRig(t *testing.T, c envoyCase, o options) *rig {
	t.Helper()
	change := o.config
	o.config = func(cfg *config.Config, engines []*epptest.Engine) {
		cfg.Listen.ExtProc = "127.0.0.1:0"
		if change != nil {
			change(cfg, engines)
		}
	}
	r := newRig(t, o)
	e := runEnvoy(t, envoyFor(t, envoyConfig{mode: c.mode, upstream: c.upstream, pickers: []string{r.at.extproc}}, r.sys.cfg))
	r.url = "http://" + e.address
	return r
}

// only makes the rig's pool the one given endpoint.
func only(address string) func(*config.Config, []*epptest.Engine) {
	return func(c *config.Config, _ []*epptest.Engine) {
		c.Pool.Endpoints = []config.Endpoint{{Name: "plain", Address: address}}
	}
}

// startPlain starts an endpoint that is no engine: it has no page, no models and
// no events, and answers as a test wants.
func startPlain(t *testing.T, answer http.HandlerFunc) *httptest.Server {
	mux := http.NewServeMux()
	mux.HandleFunc("POST /v1/", answer)
	s := httptest.NewServer(mux)
	t.Cleanup(s.Close)
	return s
}

// victim is a listener that nobody may reach.
type victim struct {
	net.Listener
	mu      sync.Mutex
	reached int
	wg      sync.WaitGroup
}

func newVictim(t *testing.T) *victim {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	v := &victim{Listener: l}
	v.wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			v.mu.Lock()
			v.reached++
			v.mu.Unlock()
			_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\ncontent-length: 6\r\nconnection: close\r\n\r\nvictim")
			_ = c.Close()
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		v.wg.Wait()
	})
	return v
}

// count is how many connections reached it.
func (v *victim) count() int {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.reached
}

// deadAddress is one that nobody listens on.
func deadAddress(t *testing.T) string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

// asCommand is set in the environment of this test binary where it is to be the
// command epp.
const asCommand = "EPP_TEST_AS_COMMAND"

// command is epp serve, as a process of its own.
type command struct {
	cmd     *exec.Cmd
	log     *logLines
	extproc string
	done    chan error // gets the process's end
}

// startCommand runs epp serve with a configuration that listens for ext_proc on
// a free port, and returns when it serves.
func startCommand(t *testing.T, ctx context.Context, configuration string) *command {
	t.Helper()
	file := t.TempDir() + "/epp.yaml"
	if err := os.WriteFile(file, []byte(configuration), 0o600); err != nil {
		t.Fatal(err)
	}
	c := &command{cmd: exec.Command(os.Args[0], "serve", "--config", file), log: &logLines{}, done: make(chan error, 1)}
	c.cmd.Env = append(os.Environ(), asCommand+"=1")
	w := newWaiter()
	c.cmd.Stderr = writerFunc(func(p []byte) (int, error) {
		defer w.changed()
		return c.log.Write(p)
	})
	if err := c.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		c.done <- c.cmd.Wait()
		close(ended)
	}()
	t.Cleanup(func() {
		_ = c.cmd.Process.Kill() // it may have ended
		<-ended
		if t.Failed() {
			t.Logf("the picker's log:\n%s", c.log)
		}
	})
	if err := w.await(ctx, func() bool {
		for _, line := range c.log.find("serving", "") {
			c.extproc, _ = line["extProc"].(string)
		}
		return c.extproc != ""
	}); err != nil {
		t.Fatalf("epp serve does not serve: %v", err)
	}
	return c
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }
