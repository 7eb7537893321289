package proxy

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"pgregory.net/rapid"

	"epp.internal/epp"
	"epp.internal/epp/picker"
)

// A body over the limit is refused by its length before it was read, or when it
// is over; one at the limit is served.
func TestBodyLimit(t *testing.T) {
	const limit = 100_000
	served := 0
	h := newHouse(t, Options{MaxBodyBytes: limit}, pod(t, func(w http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		served = len(b)
	}))
	if res, _ := h.post("/v1/completions", strings.Repeat("x", limit)); res.StatusCode != 200 || served != limit {
		t.Errorf("at the limit: status %d, %d bytes served", res.StatusCode, served)
	}
	h.ended(picker.Served)
	res, body := h.post("/v1/completions", strings.Repeat("x", limit+1))
	wantError(t, res, body, 413, "body_too_large")
	h.wantRefusedLine(res, "body_too_large")

	// With 100-continue nothing of it is asked for.
	_, r := h.raw(fmt.Sprintf("POST /v1/completions HTTP/1.1\r\nHost: epp\r\nExpect: 100-continue\r\nContent-Length: %d\r\n\r\n", limit+1))
	res, err := http.ReadResponse(r, nil)
	if err != nil || res.StatusCode != 413 || !res.Close {
		t.Errorf("announced by 100-continue: %v, %v", res, err)
	}
	// Chunked, it is refused as it passes the limit, before the client ended it.
	_, r = h.raw(fmt.Sprintf("POST /v1/completions HTTP/1.1\r\nHost: epp\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n1\r\nx", limit, strings.Repeat("x", limit)))
	if res, err := http.ReadResponse(r, nil); err != nil || res.StatusCode != 413 || !res.Close {
		t.Errorf("chunked: %v, %v", res, err)
	}
}

// A client that sends its body too slowly, or not to its end, is answered and
// let go.
func TestBodySlowOrCutOff(t *testing.T) {
	h := newHouse(t, Options{BodyTimeout: 50 * time.Millisecond}, nobody)
	head := "POST /v1/completions HTTP/1.1\r\nHost: epp\r\nContent-Length: 57\r\n\r\n"
	_, r := h.raw(head + chat[:10])
	res, err := http.ReadResponse(r, nil)
	if err != nil {
		t.Fatal(err)
	}
	body, err := io.ReadAll(res.Body)
	if wantError(t, res, string(body), 400, "body_too_slow"); err != nil || !res.Close {
		t.Errorf("slow: %v, close %v", err, res.Close)
	}
	if _, err := r.ReadByte(); err != io.EOF {
		t.Errorf("slow: the connection was not closed: %v", err)
	}

	h = newHouse(t, Options{}, nobody)
	conn, r := h.raw(head + chat[:10])
	conn.(interface{ CloseWrite() error }).CloseWrite()
	if res, err = http.ReadResponse(r, nil); err != nil {
		t.Fatal(err)
	}
	body, _ = io.ReadAll(res.Body)
	wantError(t, res, string(body), 400, "body_cut_off") // it may read still
}

// A client that goes away while it sends its body is one that went away, by whichever
// end of its connection; what does not arrive in time, or is no body, is not.
func TestClientGoneWhileSending(t *testing.T) {
	// The answer 100 Continue says that the body is awaited.
	const head = "POST /v1/completions HTTP/1.1\r\nHost: epp\r\nX-Request-Id: theirs\r\nExpect: 100-continue\r\n"
	const awaited = "HTTP/1.1 100 Continue\r\n\r\n"
	gone := make(chan picker.Incoming, 1)
	o := Options{Gone: func(in picker.Incoming) { gone <- in }}
	reset := func(c *net.TCPConn) error { return errors.Join(c.SetLinger(0), c.Close()) }
	for name, way := range map[string]struct {
		length, body string
		leave        func(*net.TCPConn) error
	}{
		"closed":         {"Content-Length: 57", "{", (*net.TCPConn).Close},
		"half closed":    {"Content-Length: 57", "{", (*net.TCPConn).CloseWrite},
		"reset":          {"Content-Length: 57", "{", reset},
		"closed, chunks": {"Transfer-Encoding: chunked", "1\r\n{\r\n", (*net.TCPConn).Close},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHouse(t, o, nobody)
			conn, r := h.raw(head + way.length + "\r\n\r\n")
			if _, err := io.ReadFull(r, make([]byte, len(awaited))); err != nil {
				t.Fatal(err)
			}
			if _, err := io.WriteString(conn, way.body); err != nil {
				t.Fatal(err)
			}
			if err := way.leave(conn.(*net.TCPConn)); err != nil {
				t.Error(err)
			}
			wantGone(t, h, gone)
		})
	}
	protocols(t, func(t *testing.T, client *http.Client) {
		h := newHouse(t, o, nobody)
		r, w := io.Pipe()
		req := h.request("POST", "/v1/completions", "", "X-Request-Id", "theirs")
		req.Body, req.ContentLength = r, -1
		done := make(chan error, 1)
		go func() {
			_, err := client.Do(req)
			done <- err
		}()
		for range 2 { // the first one is under way when the second is taken
			if _, err := io.WriteString(w, "{"); err != nil {
				t.Error(err)
			}
		}
		w.CloseWithError(errors.New("no more"))
		if err := <-done; err == nil {
			t.Error("an answer to half a request")
		}
		wantGone(t, h, gone)
	})
	h := newHouse(t, o, nobody)
	conn, r := h.raw(head + "Transfer-Encoding: chunked\r\n\r\nno chunk\r\n")
	defer conn.Close()
	if _, err := io.ReadFull(r, make([]byte, len(awaited))); err != nil {
		t.Fatal(err)
	}
	res, err := http.ReadResponse(r, nil)
	if err != nil {
		t.Fatal(err)
	}
	body, _ := io.ReadAll(res.Body)
	wantError(t, res, string(body), 400, "body_malformed")
	if len(gone) != 0 {
		t.Error("a body that is none counts as a client that went away")
	}
}

// wantGone waits until a house knows that its one client went away.
func wantGone(t *testing.T, h *house, gone <-chan picker.Incoming) {
	t.Helper()
	in := <-gone
	if in.Path != "/v1/completions" || in.ClientID != "theirs" || in.ID == "" || in.Body != nil {
		t.Errorf("told %+v", in)
	}
	h.proxy.flights.wait()
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.answers) != 1 || h.answers[0] != "/v1/completions 499" {
		t.Errorf("counted as %q", h.answers)
	}
}

// A pause between two requests of one connection is no slow body, and a slow
// answer is no slow client.
func TestDeadlinesEndWithTheirPhase(t *testing.T) {
	const short = 100 * time.Millisecond
	wait := make(chan time.Time)
	protocols(t, func(t *testing.T, client *http.Client) {
		h := newHouse(t, Options{BodyTimeout: short, StallTimeout: short, HeaderTimeout: short}, pod(t, func(w http.ResponseWriter, r *http.Request) {
			io.Copy(io.Discard, r.Body)
			io.WriteString(w, "a")
			flush(w)
			select {
			case <-wait:
				io.WriteString(w, "b")
			case <-r.Context().Done():
			}
		}))
		for range 2 {
			res, err := client.Do(h.request("POST", "/v1/completions", chat))
			if err != nil {
				t.Fatal(err)
			}
			wait <- <-time.After(2 * short)
			body, err := io.ReadAll(res.Body)
			res.Body.Close()
			if err != nil || string(body) != "ab" {
				t.Errorf("got %q, %v", body, err)
			}
			h.ended(picker.Served)
			<-time.After(2 * short)
		}
	})
}

// All bodies together have a bound: what is over it gets 429 and may come
// again, and the bytes are given back when their request ends.
func TestBodiesLimit(t *testing.T) {
	arrived, leave := make(chan struct{}, 2), make(chan struct{})
	h := newHouse(t, Options{MaxBodiesBytes: 50_000}, pod(t, func(w http.ResponseWriter, r *http.Request) {
		arrived <- struct{}{}
		<-leave
	}))
	big := strings.Repeat("x", 40_000)
	var wg sync.WaitGroup
	wg.Go(func() { h.post("/v1/completions", big) })
	<-arrived
	res, body := h.post("/v1/completions", big)
	wantError(t, res, body, 429, "bodies_full")
	if res.Header.Get("Retry-After") == "" {
		t.Error("429 has no Retry-After")
	}
	close(leave)
	wg.Wait()
	h.ended(picker.Served)
	h.post("/v1/completions", big)
	h.ended(picker.Served)
}

// Second tries are at most a tenth of what is in flight, and three always may be.
func TestRetryBudget(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var f flights
		f.init()
		flying, retries := 0, 0
		t.Repeat(map[string]func(*rapid.T){
			"begin": func(*rapid.T) { f.begin(); flying++ },
			"end": func(t *rapid.T) {
				if flying == 0 {
					t.Skip()
				}
				f.end()
				flying--
			},
			"retry": func(t *rapid.T) {
				want := retries < 3 || retries < flying/10
				if got := f.retry(); got != want {
					t.Fatalf("with %d in flight and %d retries: %v, want %v", flying, retries, got, want)
				} else if got {
					retries++
				}
			},
			"retry ends": func(t *rapid.T) {
				if retries == 0 {
					t.Skip()
				}
				f.retryEnd()
				retries--
			},
			"": func(t *rapid.T) {
				if f.count() != flying {
					t.Fatalf("count is %d, want %d", f.count(), flying)
				}
			},
		})
	})
}

// A pool that refuses everything is not asked twice as often: of ten requests
// in flight three are tried again.
func TestRetryBudgetThroughTheProxy(t *testing.T) {
	const requests, retries = 10, 3
	var picked sync.WaitGroup
	picked.Add(requests)
	leave := make(chan struct{})
	b := pod(t, func(http.ResponseWriter, *http.Request) { <-leave })
	var h *house
	h = newHouse(t, Options{Pick: func(_ context.Context, in picker.Incoming) (Carried, error) {
		picked.Done()
		picked.Wait() // so all ten are in flight when the first is refused
		return h.ride(in, nobody, b), nil
	}})
	statuses := make(chan int, requests)
	var wg sync.WaitGroup
	for range requests {
		wg.Go(func() {
			res, _ := h.post("/v1/completions", chat)
			statuses <- res.StatusCode
		})
	}
	for range requests - retries { // the others are held
		if s := <-statuses; s != 503 {
			t.Errorf("a request without a retry got %d", s)
		}
	}
	close(leave)
	for range retries {
		if s := <-statuses; s != 200 {
			t.Errorf("a request with a retry got %d", s)
		}
	}
	wg.Wait()
	h.mu.Lock()
	slices.Sort(h.events)
	h.mu.Unlock()
	h.wantEvents(append(slices.Repeat([]string{"denied refused"}, requests-retries), slices.Repeat([]string{"retried refused"}, retries)...)...)
}

// A second try that fails is the last one, and with no other endpoint there is none.
func TestRetryOnce(t *testing.T) {
	h := newHouse(t, Options{}, nobody, nobody, pod(t, func(http.ResponseWriter, *http.Request) {}))
	res, body := h.post("/v1/completions", chat)
	wantError(t, res, body, 503, "endpoint_refused")
	if r := h.ended(picker.Refused); len(r.failed) != 1 {
		t.Errorf("Next was called %d times", len(r.failed))
	}
	h.wantEvents("retried refused")

	h = newHouse(t, Options{}, nobody)
	res, body = h.post("/v1/completions", chat)
	wantError(t, res, body, 503, "endpoint_refused")
	h.ended(picker.Refused)
	h.wantEvents()
}

// Shutdown loses nothing: /health turns first, new requests are served while
// the drain time runs, and streams finish after it.
func TestShutdownLosesNothing(t *testing.T) {
	arrived, leave := make(chan struct{}, 2), make(chan struct{})
	p := pod(t, func(w http.ResponseWriter, r *http.Request) {
		io.WriteString(w, "data: 1\n\n")
		flush(w)
		arrived <- struct{}{}
		<-leave
		io.WriteString(w, "data: 2\n\n")
	})
	h := &house{t: t, client: &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}}
	rides := make(chan *ride, 2)
	const drainTime = 20 * time.Millisecond
	h.proxy = New(Options{DrainTime: drainTime, Pick: func(_ context.Context, in picker.Incoming) (Carried, error) {
		r := &ride{endpoints: []epp.Endpoint{{Address: p}}, body: in.Body, first: make(chan struct{}), outcome: make(chan picker.Outcome, 1)}
		rides <- r
		return r, nil
	}})
	l := listen(t)
	h.address = l.Addr().String()
	served, down := make(chan error, 1), make(chan error, 1)
	go func() { served <- h.proxy.Serve(l) }()
	if res, _ := h.do("GET", "/health", ""); res.StatusCode != 200 {
		t.Fatalf("/health says %d before", res.StatusCode)
	}
	answers := make(chan string, 2)
	ask := func() {
		_, body := h.post("/v1/completions", chat)
		answers <- body
	}
	go ask()
	<-arrived
	h.proxy.Drain()
	res, body := h.do("GET", "/health", "")
	wantError(t, res, body, 503, "draining")
	go ask()
	<-arrived // new requests are still served
	if !res.Close {
		t.Error("a draining proxy keeps its connections")
	}
	began := time.Now()
	go func() { down <- h.proxy.Shutdown(context.Background()) }()
	if err := <-served; err != nil { // the listener is closed; both streams go on
		t.Errorf("serve: %v", err)
	}
	if took := time.Since(began); took < drainTime {
		t.Errorf("the listener was closed after %v, want %v at least", took, drainTime)
	}
	close(leave)
	for range 2 {
		if got := <-answers; got != "data: 1\n\ndata: 2\n\n" {
			t.Errorf("a stream ended with %q", got)
		}
		if o := <-(<-rides).outcome; o != picker.Served {
			t.Errorf("pick ended as %v", o)
		}
	}
	if err := <-down; err != nil {
		t.Errorf("shutdown: %v", err)
	}
}

// A shutdown that runs out of time cuts off what still runs, and has ended
// every pick when it returns.
func TestShutdownOutOfTime(t *testing.T) {
	arrived := make(chan struct{})
	p := pod(t, func(w http.ResponseWriter, r *http.Request) {
		io.WriteString(w, "data: 1\n\n")
		flush(w)
		close(arrived)
		<-r.Context().Done()
	})
	r := &ride{endpoints: []epp.Endpoint{{Address: p}}, first: make(chan struct{}), outcome: make(chan picker.Outcome, 1)}
	proxy := New(Options{DrainTime: time.Hour, Logger: slog.New(slog.DiscardHandler), Pick: func(_ context.Context, in picker.Incoming) (Carried, error) {
		r.body = in.Body
		return r, nil
	}})
	l := listen(t)
	served := make(chan error, 1)
	go func() { served <- proxy.Serve(l) }()
	h := &house{t: t, address: l.Addr().String(), client: &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}}
	res, err := h.client.Do(h.request("POST", "/v1/completions", chat))
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	<-arrived
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if err := proxy.Shutdown(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("shutdown: %v", err)
	}
	select {
	case o := <-r.outcome:
		if o != picker.Undelivered {
			t.Errorf("pick ended as %v", o)
		}
	default:
		t.Error("Shutdown returned before the pick was ended")
	}
	if _, err := io.ReadAll(res.Body); err == nil {
		t.Error("the stream ended cleanly")
	}
	if err := <-served; err != nil {
		t.Errorf("serve: %v", err)
	}
}

// Nothing of a prompt, a query or a credential reaches the log, at any level.
func TestCaseQ5(t *testing.T) {
	const canary = "canary-7f3a"
	for _, a := range []string{pod(t, func(w http.ResponseWriter, r *http.Request) { io.WriteString(w, canary) }), nobody, "bad " + "address"} {
		h := newHouse(t, Options{}, a)
		for _, path := range []string{"/v1/chat/completions", "/v1/messages", "/nowhere", "/v1/models"} {
			h.post(path+"?key="+canary, canary, "Authorization", "Bearer "+canary, "Api-Key", canary, "Cookie", "a="+canary)
		}
		conn, r := h.raw("POST /v1/completions HTTP/1.1\r\nHost: " + canary + "\r\nContent-Length: 57\r\n\r\n" + canary)
		conn.(interface{ CloseWrite() error }).CloseWrite()
		if res, err := http.ReadResponse(r, nil); err != nil || res.StatusCode != 400 {
			t.Errorf("got %v, %v", res, err)
		}
		if log := h.log.String(); strings.Contains(log, canary) {
			t.Errorf("the log tells a secret:\n%s", log)
		}
	}
}
