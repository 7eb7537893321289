package probe_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"epp.internal/epp/epptest"
	"epp.internal/epp/probe"
	"epp.internal/epp/scrape"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// row keeps what a sink is told.
type row struct {
	mu    sync.Mutex
	ended []string
}

func (r *row) Probed(_ time.Time, err error, slowly bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.ended = append(r.ended, fmt.Sprintf("%v slowly=%v", err, slowly))
}

// answers runs a Prober for d against an engine that is the given handler, in a
// bubble, and returns what the sink, the hook and the log were told.
func answers(t *testing.T, d time.Duration, h http.HandlerFunc) (r *row, outcomes []probe.Outcome, log string) {
	t.Helper()
	ln := &pipeListener{conns: make(chan net.Conn), closed: make(chan struct{})}
	srv := &http.Server{Handler: h}
	go func() { _ = srv.Serve(ln) }()
	var logged bytes.Buffer
	client := scrape.Client(ln.dial)
	p := probe.Prober{
		Client: client, Interval: 5 * time.Second, Timeout: 2 * time.Second,
		Ended: func(o probe.Outcome, _ time.Duration) { outcomes = append(outcomes, o) },
		Log:   slog.New(slog.NewTextHandler(&logged, nil)),
	}
	ctx, cancel := context.WithTimeout(t.Context(), d)
	defer cancel()
	r = &row{}
	if err := p.Run(ctx, probe.Target{Address: "a:8000", Rank: "1", Model: func() string { return "tiny" }}, r); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Run: %v", err)
	}
	client.CloseIdleConnections()
	srv.Close()
	synctest.Wait()
	return r, outcomes, logged.String()
}

// pipeListener accepts connections that are pipes.
type pipeListener struct {
	conns  chan net.Conn
	closed chan struct{}
	once   sync.Once
}

func (l *pipeListener) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}
func (l *pipeListener) Close() error   { l.once.Do(func() { close(l.closed) }); return nil }
func (l *pipeListener) Addr() net.Addr { return &net.TCPAddr{} }

func (l *pipeListener) dial(ctx context.Context, _, _ string) (net.Conn, error) {
	near, far := net.Pipe()
	select {
	case l.conns <- far:
		return near, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// TestProbe: what each kind of answer says of an engine, and that it is asked for
// one token, of its rank and model, every five seconds or so.
func TestProbe(t *testing.T) {
	const good = `{"choices":[{"text":" "}]}`
	for _, c := range []struct {
		name    string
		status  int
		body    string
		takes   time.Duration
		outcome probe.Outcome
		told    string // what the sink is told; empty: nothing
	}{
		{"well", 200, good, 0, probe.Answered, "<nil> slowly=false"},
		{"slowly", 200, good, 1100 * time.Millisecond, probe.Answered, "<nil> slowly=true"},
		{"too late", 200, good, 3 * time.Second, probe.Failed, "probe a:8000: no answer within 2s slowly=true"},
		{"full", 429, "", 0, probe.Answered, "<nil> slowly=false"},
		{"broken", 500, good, 0, probe.Failed, "probe a:8000: status 500 slowly=false"},
		{"no such model", 404, "", 0, probe.Refused, ""},
		{"elsewhere", 302, "", 0, probe.Refused, ""},
		{"no JSON", 200, "<html>", 0, probe.Failed, "probe a:8000: answer: invalid character '<' looking for beginning of value slowly=false"},
		{"no token", 200, "{}", 0, probe.Failed, "probe a:8000: answer: no choices slowly=false"},
		{"without end", 200, strings.Repeat("x", 1<<20), 0, probe.Failed, "probe a:8000: answer over 65536 bytes slowly=false"},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r, outcomes, log := answers(t, 28*time.Second, func(w http.ResponseWriter, r *http.Request) {
					body, _ := io.ReadAll(r.Body)
					if want := `{"model":"tiny","prompt":"1","max_tokens":1,"temperature":0}`; string(body) != want || r.Header.Get("X-Data-Parallel-Rank") != "1" {
						t.Errorf("asked %s with %v, want %s of rank 1", body, r.Header, want)
					}
					select {
					case <-time.After(c.takes):
					case <-r.Context().Done():
						return
					}
					w.Header().Set("Location", "http://169.254.169.254/")
					w.WriteHeader(c.status)
					_, _ = io.WriteString(w, c.body)
				})
				if n := len(outcomes); n < 5 || n > 7 || outcomes[n-1] != c.outcome {
					t.Errorf("outcomes %v, want 6 or so of %q", outcomes, c.outcome)
				}
				want := len(outcomes)
				if c.told == "" {
					want = 0
				}
				if len(r.ended) != want || want > 0 && r.ended[want-1] != c.told {
					t.Errorf("told %q, want %q", r.ended, c.told)
				}
				lines := 1
				if c.outcome == probe.Answered {
					lines = 0
				}
				if strings.Count(log, "\n") != lines {
					t.Errorf("log:\n%swant %d lines", log, lines)
				}
			})
		})
	}
}

// TestProbeOfAnEngine: the fake engine, over real sockets, answers.
func TestProbeOfAnEngine(t *testing.T) {
	e, err := epptest.StartEngine(epptest.EngineConfig{TimeScale: 0.01})
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	client := scrape.Client(nil)
	defer client.CloseIdleConnections()
	ctx, cancel := context.WithCancel(t.Context())
	var got []probe.Outcome
	p := probe.Prober{Client: client, Interval: time.Hour, Timeout: time.Minute, Ended: func(o probe.Outcome, _ time.Duration) { got = append(got, o); cancel() }}
	r := &row{}
	_ = p.Run(ctx, probe.Target{Address: e.Address(), Model: func() string { return "tiny" }}, r) // ends with ctx
	if fmt.Sprint(got, r.ended) != "[answered] [<nil> slowly=false]" {
		t.Errorf("%v %v", got, r.ended)
	}
}
