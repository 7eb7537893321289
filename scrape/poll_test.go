package scrape_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"epp.internal/epp"
	"epp.internal/epp/scrape"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const goodPage = "vllm:num_requests_waiting 1\nvllm:num_requests_running 2\nvllm:kv_cache_usage_perc 0.5\n"

// pool is a network in memory: engines by address, each a handler.
type pool struct {
	mu        sync.Mutex
	listeners map[string]*listener
	dialed    map[string]int
}

// listener hands the far ends of pipes to an http.Server.
type listener struct {
	conns  chan net.Conn
	closed chan struct{}
	once   sync.Once
}

func (l *listener) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

func (l *listener) Close() error   { l.once.Do(func() { close(l.closed) }); return nil }
func (l *listener) Addr() net.Addr { return &net.UnixAddr{Name: "memory"} }

// start serves h at address until the test's context ends.
func (p *pool) start(t *testing.T, address string, h http.HandlerFunc) {
	l := &listener{conns: make(chan net.Conn), closed: make(chan struct{})}
	p.mu.Lock()
	if p.listeners == nil {
		p.listeners, p.dialed = map[string]*listener{}, map[string]int{}
	}
	p.listeners[address] = l
	p.mu.Unlock()
	srv := &http.Server{Handler: h}
	go srv.Serve(l)
	t.Cleanup(func() { srv.Close() })
}

func (p *pool) dial(ctx context.Context, network, address string) (net.Conn, error) {
	p.mu.Lock()
	l := p.listeners[address]
	if l != nil {
		p.dialed[address]++
	}
	p.mu.Unlock()
	if l == nil {
		return nil, fmt.Errorf("dial %s: refused", address)
	}
	here, there := net.Pipe()
	select {
	case l.conns <- there:
		return here, nil
	case <-l.closed:
		return nil, errors.New("closed")
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// row records what one endpoint's Sink was told.
type row struct {
	start time.Time

	mu     sync.Mutex
	marks  int
	begins []time.Duration
	loads  []load
	fails  []error
	models [][]epp.Model
}

type load struct {
	mark  int
	began time.Duration
	epp.Load
}

func (r *row) Begin(now time.Time) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.begins = append(r.begins, now.Sub(r.start))
	r.marks++
	return r.marks
}

func (r *row) Load(mark int, began time.Time, l epp.Load) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.loads = append(r.loads, load{mark, began.Sub(r.start), l})
}

func (r *row) Models(m []epp.Model) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.models = append(r.models, m)
}

func (r *row) Failed(now time.Time, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.fails = append(r.fails, err)
}

// run reads the endpoints of addresses for d and returns their rows and the log.
func run(t *testing.T, p *pool, d time.Duration, hooks scrape.Hooks, addresses ...string) ([]*row, string) {
	t.Helper()
	var targets []scrape.Target
	for _, a := range addresses {
		targets = append(targets, scrape.Target{Address: a})
	}
	return runTargets(t, p, d, hooks, targets)
}

func runTargets(t *testing.T, p *pool, d time.Duration, hooks scrape.Hooks, targets []scrape.Target) ([]*row, string) {
	t.Helper()
	var logged bytes.Buffer
	client := scrape.Client(p.dial)
	g := scrape.Group{Client: client, Hooks: hooks, Log: slog.New(slog.NewTextHandler(&logged, &slog.HandlerOptions{
		ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
			if a.Key == slog.TimeKey {
				return slog.Attr{}
			}
			return a
		},
	}))}
	ctx, cancel := context.WithTimeout(t.Context(), d)
	defer cancel()
	var rows []*row
	var running sync.WaitGroup
	for _, target := range targets {
		r := &row{start: time.Now()}
		rows = append(rows, r)
		running.Go(func() {
			if err := g.Run(ctx, target, r); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("Run = %v, want the context's end", err)
			}
		})
	}
	running.Wait()
	client.CloseIdleConnections()
	return rows, logged.String()
}

// serve answers /metrics with page and /v1/models with the captured list.
func serve(page string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/metrics":
			io.WriteString(w, page)
		case "/v1/models":
			http.ServeFile(w, r, "testdata/models_with_lora.json")
		}
	}
}

// A fleet of up to 64 is read every 200 ms, a larger one 320 times a second in
// all, but each endpoint at least once a second.
func TestInterval(t *testing.T) {
	for _, c := range []struct {
		n    int
		want time.Duration
	}{{0, 200 * time.Millisecond}, {1, 200 * time.Millisecond}, {64, 200 * time.Millisecond}, {65, 203125 * time.Microsecond}, {160, 500 * time.Millisecond}, {320, time.Second}, {1024, time.Second}, {1 << 30, time.Second}} {
		if got := scrape.Interval(c.n); got != c.want {
			t.Errorf("Interval(%d) = %v, want %v", c.n, got, c.want)
		}
	}
}

// Two seconds of one engine: a reading each 200 ms over one connection, each
// with the mark and the time of its own beginning; models at once.
func TestGroupReadsEach200ms(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var p pool
		p.start(t, "a:8000", serve(goodPage))
		rows, log := run(t, &p, 2*time.Second-time.Millisecond, scrape.Hooks{}, "a:8000")
		r := rows[0]
		if len(r.loads) != 10 || len(r.fails) != 0 {
			t.Fatalf("loads = %d, fails = %v; want 10, none", len(r.loads), r.fails)
		}
		for i, l := range r.loads {
			if l.mark != i+1 || l.began != time.Duration(i)*200*time.Millisecond || l.Waiting != epp.Known(1) || l.Running != epp.Known(2) || l.KVUsage != epp.Known(0.5) {
				t.Errorf("load %d = %+v", i, l)
			}
		}
		want := "[[{tiny  1024} {sql tiny 0} {chat tiny 0}]]"
		if got := fmt.Sprint(r.models); got != want {
			t.Errorf("models = %v, want %v", got, want)
		}
		if p.dialed["a:8000"] > 2 {
			t.Errorf("connections = %d, want 2: metrics and models", p.dialed["a:8000"])
		}
		if log != "" {
			t.Errorf("log = %s, want nothing", log)
		}
	})
}

// The readings of many endpoints are spread over the interval, and one that
// answers each page 1.9 s late delays only itself.
func TestGroupSpreadsAndNobodyWaitsForTheSlow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var p pool
		addresses := []string{"slow:8000"}
		p.start(t, "slow:8000", func(w http.ResponseWriter, r *http.Request) {
			select {
			case <-time.After(1900 * time.Millisecond):
				io.WriteString(w, goodPage)
			case <-r.Context().Done():
			}
		})
		for i := range 159 {
			a := fmt.Sprintf("e%d:8000", i)
			addresses = append(addresses, a)
			p.start(t, a, serve(goodPage))
		}
		rows, _ := run(t, &p, 10*time.Second, scrape.Hooks{}, addresses...)
		var slots [10]int
		for i, r := range rows[1:] {
			if n := len(r.loads); n < 19 || n > 21 {
				t.Errorf("endpoint %d: loads = %d, want one each 500 ms", i, n)
			}
			slots[r.begins[1]%(500*time.Millisecond)/(50*time.Millisecond)]++
		}
		for i, n := range slots {
			if n < 8 || n > 24 {
				t.Errorf("readings that begin in tenth %d of the interval = %d, want about 16: %v", i, n, slots)
			}
		}
		if slow := rows[0]; len(slow.loads) != 4 || len(slow.fails) != 0 {
			t.Errorf("slow endpoint: loads = %d, fails = %v; want 4: 1.9 s and a pause of 0.25 s each", len(slow.loads), slow.fails)
		}
	})
}

// What engine an endpoint runs is told from its page, once in the log where no
// such engine was ever run; one that is configured is asked at its own path.
func TestEngines(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const sglang = "sglang:num_queue_reqs 3\nsglang:num_running_reqs 2\nsglang:token_usage 0.5\n"
		var p pool
		p.start(t, "a:8000", serve(sglang))
		p.start(t, "b:8000", func(w http.ResponseWriter, r *http.Request) {
			switch r.URL.Path {
			case "/prometheus/metrics":
				io.WriteString(w, "trtllm_num_requests_waiting 1\ntrtllm_num_requests_running 7\ntrtllm_kv_cache_utilization 0.25\n")
			case "/metrics":
				io.WriteString(w, "[]")
			default:
				io.WriteString(w, `{"data":[]}`)
			}
		})
		rows, log := runTargets(t, &p, 2*time.Second, scrape.Hooks{}, []scrape.Target{
			{Address: "a:8000"}, {Address: "b:8000", Kind: &scrape.TensorRTLLM},
		})
		for i, want := range []epp.Load{
			{Waiting: epp.Known(3), Running: epp.Known(2), KVUsage: epp.Known(0.5)},
			{Waiting: epp.Known(1), Running: epp.Known(7), KVUsage: epp.Known(0.25)},
		} {
			got := rows[i].loads[len(rows[i].loads)-1]
			if got.Waiting != want.Waiting || got.Running != want.Running || got.KVUsage != want.KVUsage {
				t.Errorf("endpoint %d: %+v, want %+v", i, got.Load, want)
			}
		}
		for _, want := range []string{"a:8000 engine=sglang", "b:8000 engine=tensorrt-llm"} {
			if strings.Count(log, want) != 1 {
				t.Errorf("log = %s\nwant once %q", log, want)
			}
		}
	})
}

// Case E1: over 60 s, one warning for the endpoint whose page lacks the cache's
// usage, and no word of LoRA from anyone.
func TestCaseE1(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const rest = "vllm:num_requests_waiting 0\nvllm:num_requests_running 0\n"
		var p pool
		p.start(t, "a:8000", serve("vllm:gpu_cache_usage_perc 0.9\n"+rest))
		p.start(t, "b:8000", serve("vllm:kv_cache_usage_perc 0.2\n"+rest))
		p.start(t, "c:8000", serve(rest))
		rows, log := run(t, &p, time.Minute, scrape.Hooks{}, "a:8000", "b:8000", "c:8000")
		for i, want := range []epp.Gauge{epp.Known(0.9), epp.Known(0.2), {}} {
			if n := len(rows[i].loads); n < 299 {
				t.Fatalf("endpoint %d: loads = %d, want 300", i, n)
			}
			for _, l := range rows[i].loads {
				if l.KVUsage != want {
					t.Fatalf("endpoint %d: kv = %v, want %v", i, l.KVUsage, want)
				}
			}
		}
		want := "level=WARN msg=\"scrape: metric missing, taken as unknown\" address=c:8000 metric=vllm:kv_cache_usage_perc\n"
		if log != want {
			t.Errorf("log = %swant %s", log, want)
		}
	})
}

// Case E5, our side: an engine whose page is a 500, late, too long or elsewhere
// is told as failed with each reading and logged once; it is read again when it
// returns. A redirect is not followed (case Q7).
func TestCaseE5Failures(t *testing.T) {
	for _, c := range []struct {
		name string
		bad  http.HandlerFunc
		want string
	}{
		{"500", func(w http.ResponseWriter, r *http.Request) { w.WriteHeader(500) }, "scrape a:8000: /metrics: status 500"},
		{"late", func(w http.ResponseWriter, r *http.Request) { <-r.Context().Done() }, "context deadline exceeded"},
		{"huge", func(w http.ResponseWriter, r *http.Request) {
			line := []byte(strings.Repeat("x", 1<<20-1) + "\n")
			for range 500 {
				if _, err := w.Write(line); err != nil {
					return
				}
			}
		}, "scrape a:8000: /metrics: over 8388608 bytes"},
		{"cut off", func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Length", "1000")
			io.WriteString(w, goodPage)
		}, "unexpected EOF"},
		{"redirect", func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "http://169.254.169.254/metrics", http.StatusFound)
		}, "scrape a:8000: /metrics: status 302"},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var p pool
				start := time.Now()
				ill := 2500 * time.Millisecond
				if c.name == "huge" {
					ill = 300 * time.Millisecond // two pages of 8 MiB are enough
				}
				p.start(t, "a:8000", func(w http.ResponseWriter, r *http.Request) {
					if r.URL.Path == "/metrics" && time.Since(start) < ill {
						c.bad(w, r)
						return
					}
					serve(goodPage)(w, r)
				})
				failed := 0
				rows, log := run(t, &p, 10*time.Second, scrape.Hooks{Reading: func(took time.Duration, err error) {
					if err != nil {
						failed++
					}
				}}, "a:8000")
				r := rows[0]
				if len(r.fails) < 2 || len(r.fails) != failed {
					t.Errorf("fails = %d, told to the hook %d; want the same, at least 2", len(r.fails), failed)
				}
				for _, err := range r.fails {
					if !strings.Contains(err.Error(), c.want) {
						t.Fatalf("error = %v, want %q", err, c.want)
					}
				}
				if len(r.loads) < 25 {
					t.Errorf("loads = %d, want one each 200 ms once it is well", len(r.loads))
				}
				if strings.Count(log, "\n") != 2 || !strings.Contains(log, "scrape fails") || !strings.Contains(log, "scrape works again") {
					t.Errorf("log = %s\nwant one line for each change", log)
				}
			})
		})
	}
}

// A bad value is counted with each page, by its metric, and logged once.
func TestBadValuesAreCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var p pool
		p.start(t, "a:8000", serve(strings.Replace(goodPage, "0.5", "NaN", 1)))
		bad := map[string]int{}
		rows, log := run(t, &p, 2*time.Second-time.Millisecond, scrape.Hooks{Bad: func(metric string) { bad[metric]++ }}, "a:8000")
		if fmt.Sprint(bad) != "map[vllm:kv_cache_usage_perc:10]" {
			t.Errorf("bad = %v, want one for each of 10 pages", bad)
		}
		if l := rows[0].loads[9]; l.KVUsage.Known || l.Waiting != epp.Known(1) {
			t.Errorf("load = %+v, want kv unknown and the rest known", l.Load)
		}
		if strings.Count(log, "\n") != 1 || !strings.Contains(log, `kv_cache_usage_perc: bad value \"NaN\"`) {
			t.Errorf("log = %s, want one line that names the value", log)
		}
	})
}

// An adapter that is loaded while we look is known within five seconds; a list
// that can't be had leaves the last one in place, and is asked for each second.
func TestModelsAreReadAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		list, err := os.ReadFile("testdata/models_with_lora.json")
		if err != nil {
			t.Fatal(err)
		}
		var p pool
		start := time.Now()
		asked := 0
		p.start(t, "a:8000", func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path != "/v1/models" {
				io.WriteString(w, goodPage)
				return
			}
			asked++
			switch since := time.Since(start); {
			case since < 3*time.Second:
				w.WriteHeader(http.StatusServiceUnavailable)
			case since < 10*time.Second:
				io.WriteString(w, `{"object":"list","data":[{"id":"tiny","max_model_len":4096},{"id":""},{"id":"x","max_model_len":-5}]}`)
			default:
				w.Write(list)
			}
		})
		rows, log := run(t, &p, 14*time.Second, scrape.Hooks{}, "a:8000")
		want := "[[{tiny  4096} {x  0}] [{tiny  4096} {x  0}] [{tiny  1024} {sql tiny 0} {chat tiny 0}]]"
		if got := fmt.Sprint(rows[0].models); got != want || asked != 6 {
			t.Errorf("models = %v after %d requests, want %v after 6", got, asked, want)
		}
		if strings.Count(log, "\n") != 1 {
			t.Errorf("log = %s, want one line", log)
		}
	})
}

func ExampleParse() {
	page := []byte(`vllm:num_requests_waiting{engine="0"} 3
vllm:num_requests_running{engine="0"} 2
vllm:kv_cache_usage_perc{engine="0"} NaN
`)
	var p scrape.Page
	err := scrape.Parse(page, scrape.VLLM.Names, "", &p)
	fmt.Println(p.Load.Waiting, p.Load.Running, p.Load.KVUsage)
	fmt.Println(err)
	// Output:
	// {3 true} {2 true} {0 false}
	// kv_cache_usage_perc: bad value "NaN"
}
