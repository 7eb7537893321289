package proxy

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"epp.internal/epp"
	"epp.internal/epp/picker"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// ride is the pick of a test: endpoints in a given order, and what it was told.
type ride struct {
	in        picker.Incoming
	endpoints []epp.Endpoint
	body      []byte

	failed  []picker.Outcome // of each Next
	header  []string         // of ResponseHeader
	answer  bytes.Buffer     // of ResponseBody
	first   chan struct{}    // closed by the first ResponseBody
	outcome chan picker.Outcome
}

func (r *ride) Target() (epp.Endpoint, []byte) { return r.endpoints[0], r.body }

func (r *ride) Encoding() string { return r.in.ContentEncoding }

func (r *ride) Next(failed picker.Outcome) bool {
	r.failed = append(r.failed, failed)
	if len(r.endpoints) == 1 {
		return false
	}
	r.endpoints = r.endpoints[1:]
	return true
}

func (r *ride) ResponseHeader(status int, contentType, contentEncoding string) {
	r.header = append(r.header, fmt.Sprintf("%d %q %q", status, contentType, contentEncoding))
}

func (r *ride) ResponseBody(chunk []byte) {
	if r.answer.Len() == 0 {
		close(r.first)
	}
	r.answer.Write(chunk)
}

// End panics where it is called a second time.
func (r *ride) End(o picker.Outcome) {
	r.outcome <- o
	close(r.outcome)
}

// house is a proxy on the loopback whose picks are rides.
type house struct {
	t       testing.TB
	proxy   *Proxy
	address string
	client  *http.Client
	rides   chan *ride // each pick, in order
	log     *syncBuffer

	mu      sync.Mutex // guards the following fields
	answers []string   // of Hooks.Answered
	events  []string   // of the other hooks
}

// newHouse starts a proxy that sends every request to the first of endpoints,
// then the second, and so on. At the test's end it checks that nothing is held
// any more.
func newHouse(t testing.TB, o Options, endpoints ...string) *house {
	t.Helper()
	h := &house{t: t, rides: make(chan *ride, 1024), log: new(syncBuffer)}
	if o.Pick == nil {
		o.Pick = func(_ context.Context, in picker.Incoming) (Carried, error) { return h.ride(in, endpoints...), nil }
	}
	if o.DrainTime == 0 {
		o.DrainTime = time.Nanosecond
	}
	o.Logger = slog.New(slog.NewJSONHandler(h.log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	o.Hooks = Hooks{
		Answered: func(path string, status int, _ time.Duration) {
			h.mu.Lock()
			defer h.mu.Unlock()
			h.answers = append(h.answers, fmt.Sprintf("%s %d", path, status))
		},
		Retried:     func(o picker.Outcome) { h.event("retried", o) },
		RetryDenied: func(o picker.Outcome) { h.event("denied", o) },
		CutOff:      func(o picker.Outcome) { h.event("cut off", o) },
	}
	h.proxy = New(o)
	l := listen(t)
	h.address = l.Addr().String()
	served := make(chan error, 1)
	go func() { served <- h.proxy.Serve(l) }()
	transport := &http.Transport{DisableCompression: true}
	h.client = &http.Client{Transport: transport, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	t.Cleanup(func() {
		transport.CloseIdleConnections()
		if err := h.proxy.Shutdown(context.Background()); err != nil {
			t.Errorf("shutdown: %v", err)
		}
		if err := <-served; err != nil {
			t.Errorf("serve: %v", err)
		}
		if n, b, r := h.proxy.InFlight(), h.proxy.bodyBytes.Load(), h.proxy.flights.retries; n != 0 || b != 0 || r != 0 {
			t.Errorf("at rest: %d in flight, %d bytes of bodies, %d retries; want 0", n, b, r)
		}
		close(h.rides)
		for r := range h.rides { // those that the test did not look at
			if _, ok := <-r.outcome; !ok {
				t.Error("a pick was not ended")
			}
		}
	})
	return h
}

func (h *house) ride(in picker.Incoming, endpoints ...string) *ride {
	r := &ride{in: in, body: in.Body, first: make(chan struct{}), outcome: make(chan picker.Outcome, 1)}
	for i, a := range endpoints {
		r.endpoints = append(r.endpoints, epp.Endpoint{Name: string(rune('a' + i)), Address: a})
	}
	h.rides <- r
	return r
}

func (h *house) event(what string, o picker.Outcome) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.events = append(h.events, what+" "+o.String())
}

// wantEvents checks what the hooks but Answered were told.
func (h *house) wantEvents(want ...string) {
	h.t.Helper()
	h.mu.Lock()
	defer h.mu.Unlock()
	if !slices.Equal(h.events, want) {
		h.t.Errorf("hooks were told %q, want %q", h.events, want)
	}
}

// ended takes the next ride and waits for its end.
func (h *house) ended(want picker.Outcome) *ride {
	h.t.Helper()
	r := <-h.rides
	if got := <-r.outcome; got != want {
		h.t.Errorf("pick ended as %v, want %v", got, want)
	}
	return r
}

const chat = `{"model":"m","messages":[{"role":"user","content":"Hi"}]}`

// post sends body to path and returns the whole answer.
func (h *house) post(path, body string, header ...string) (*http.Response, string) {
	h.t.Helper()
	return h.do("POST", path, body, header...)
}

func (h *house) do(method, path, body string, header ...string) (*http.Response, string) {
	h.t.Helper()
	res, err := h.client.Do(h.request(method, path, body, header...))
	if err != nil {
		h.t.Fatal(err)
	}
	defer res.Body.Close()
	got, err := io.ReadAll(res.Body)
	if err != nil {
		h.t.Fatal(err)
	}
	return res, string(got)
}

func (h *house) request(method, path, body string, header ...string) *http.Request {
	h.t.Helper()
	r, err := http.NewRequest(method, "http://"+h.address+path, bytes.NewReader([]byte(body)))
	if err != nil {
		h.t.Fatal(err)
	}
	for i := 0; i < len(header); i += 2 {
		r.Header.Add(header[i], header[i+1])
	}
	return r
}

// raw sends text as it is over a connection of its own and returns both: the
// connection for what comes next, and a reader of it.
func (h *house) raw(text string) (net.Conn, *bufio.Reader) {
	h.t.Helper()
	c, err := net.Dial("tcp", h.address)
	if err != nil {
		h.t.Fatal(err)
	}
	h.t.Cleanup(func() { c.Close() })
	if _, err := io.WriteString(c, text); err != nil {
		h.t.Fatal(err)
	}
	return c, bufio.NewReader(c)
}

// wantError checks an answer against the shape of OpenAI's errors, and returns
// its message.
func wantError(t testing.TB, res *http.Response, body string, status int, code string) string {
	t.Helper()
	var e struct {
		Error struct{ Message, Type, Code string }
	}
	if err := json.Unmarshal([]byte(body), &e); err != nil {
		t.Errorf("error body %q: %v", body, err)
	}
	if res.StatusCode != status || e.Error.Code != code || e.Error.Message == "" || e.Error.Type == "" {
		t.Errorf("answer is %d %s, want %d with code %q", res.StatusCode, body, status, code)
	}
	if got := res.Header.Get("Content-Type"); got != "application/json" {
		t.Errorf("Content-Type of an error is %q", got)
	}
	wantID(t, res)
	return e.Error.Message
}

// wantID checks that an answer carries one requestID, a UUID of version 4.
func wantID(t testing.TB, res *http.Response) string {
	t.Helper()
	id := res.Header.Values("x-epp-request-id")
	if len(id) != 1 || len(id[0]) != 36 || id[0][14] != '4' {
		t.Errorf("x-epp-request-id is %q, want one UUID v4", id)
	}
	return res.Header.Get("x-epp-request-id")
}

// wantRefusedLine looks for the line of a request that never reached the picker, by
// the ID that its client was given.
func (h *house) wantRefusedLine(res *http.Response, reason string) {
	h.t.Helper()
	id := wantID(h.t, res)
	for line := range strings.Lines(h.log.String()) {
		if strings.Contains(line, id) && strings.Contains(line, `"request refused"`) && strings.Contains(line, `"reason":"`+reason+`"`) {
			return
		}
	}
	h.t.Errorf("no line says that %s was refused for %s", id, reason)
}

// pod starts an endpoint and returns its address.
func pod(t testing.TB, handler http.HandlerFunc) string {
	t.Helper()
	s := httptest.NewServer(handler)
	t.Cleanup(s.Close)
	return s.Listener.Addr().String()
}

// rawPod starts an endpoint of bytes: serve is called for each request that was
// read whole. A connection ends when serve or the proxy closes it.
func rawPod(t testing.TB, serve func(c net.Conn, head, body string)) string {
	t.Helper()
	l := listen(t)
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			wg.Go(func() {
				defer c.Close()
				r := bufio.NewReader(c)
				for {
					head, body, err := readRequest(r)
					if err != nil {
						return
					}
					serve(c, head, body)
				}
			})
		}
	})
	t.Cleanup(func() {
		l.Close()
		wg.Wait()
	})
	return l.Addr().String()
}

// readRequest returns a request's head as it came, and the bytes of its body,
// of which there are as many as Content-Length says.
func readRequest(r *bufio.Reader) (head, body string, err error) {
	var raw bytes.Buffer
	tee := bufio.NewReader(io.TeeReader(r, &raw))
	req, err := http.ReadRequest(tee)
	if err != nil {
		return "", "", err
	}
	b, err := io.ReadAll(req.Body)
	if err != nil {
		return "", "", err
	}
	head, _, _ = strings.Cut(raw.String(), "\r\n\r\n")
	return head, string(b), nil
}

// reset closes c so that its peer sees a reset.
func reset(c net.Conn) {
	c.(*net.TCPConn).SetLinger(0)
	c.Close()
}

// nobody is an address of the loopback that refuses connections: port 1, tcpmux.
const nobody = "127.0.0.1:1"

// syncBuffer is a buffer for many writers.
type syncBuffer struct {
	mu sync.Mutex // guards the following field
	b  bytes.Buffer
}

func (s *syncBuffer) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *syncBuffer) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}

// take returns what was written and forgets it.
func (s *syncBuffer) take() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	defer s.b.Reset()
	return s.b.String()
}
