package extproc

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"testing"
	"time"

	filterv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"epp.internal/epp"
	"epp.internal/epp/epptest"
	"epp.internal/epp/picker"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// Envoy's own names of the modes, as the driver takes them.
const (
	modeNone     = filterv3.ProcessingMode_NONE
	modeStreamed = filterv3.ProcessingMode_STREAMED
	modeBuffered = filterv3.ProcessingMode_BUFFERED
	modeDuplex   = filterv3.ProcessingMode_FULL_DUPLEX_STREAMED
)

// ride is the pick of a test: the endpoints in a given order, and what it was told.
type ride struct {
	in        picker.Incoming
	endpoints []epp.Endpoint
	body      []byte
	encoding  string

	served  []string
	header  []string
	answer  bytes.Buffer
	outcome chan picker.Outcome
}

func newRide(in picker.Incoming, addresses ...string) *ride {
	r := &ride{in: in, body: in.Body, encoding: in.ContentEncoding, outcome: make(chan picker.Outcome, 1)}
	for i, a := range addresses {
		r.endpoints = append(r.endpoints, epp.Endpoint{Name: string(rune('a' + i)), Address: a})
	}
	return r
}

func (r *ride) Target() (epp.Endpoint, []byte) { return r.endpoints[0], r.body }
func (r *ride) Alternatives() []epp.Endpoint   { return r.endpoints[1:] }
func (r *ride) Encoding() string               { return r.encoding }
func (r *ride) Served(address string)          { r.served = append(r.served, address) }
func (r *ride) ResponseBody(chunk []byte)      { r.answer.Write(chunk) }

func (r *ride) ResponseHeader(status int, contentType, contentEncoding string) {
	r.header = append(r.header, fmt.Sprintf("%d %q %q", status, contentType, contentEncoding))
}

// End panics where it is called a second time.
func (r *ride) End(o picker.Outcome) {
	r.outcome <- o
	close(r.outcome)
}

// house is a server on the loopback, with a gateway in front of it, whose picks
// are rides.
type house struct {
	t      testing.TB
	server *Server
	driver *epptest.Driver
	target string // of Serve, and of ServeHealth:
	health string
	rides  chan *ride     // each pick, in order
	ends   chan StreamEnd // of each stream, in order
	log    *syncBuffer
}

// newHouse starts a server that sends every request to the addresses, 10.0.0.1:8000
// by default. At the test's end it checks that nothing is held any more.
func newHouse(t testing.TB, o Options, addresses ...string) *house {
	t.Helper()
	if len(addresses) == 0 {
		addresses = []string{"10.0.0.1:8000"}
	}
	h := &house{t: t, rides: make(chan *ride, 1024), ends: make(chan StreamEnd, 1024), log: new(syncBuffer)}
	if o.Pick == nil {
		o.Pick = func(_ context.Context, in picker.Incoming) (Carried, error) {
			r := newRide(in, addresses...)
			h.rides <- r
			return r, nil
		}
	}
	if o.DrainTime == 0 {
		o.DrainTime = time.Nanosecond
	}
	o.Insecure = true
	o.Logger = slog.New(slog.NewJSONHandler(h.log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	o.Hooks.Ended = func(e StreamEnd) { h.ends <- e }
	h.server = NewServer(o)
	l := listen(t)
	h.target = l.Addr().String()
	l2 := listen(t)
	h.health = l2.Addr().String()
	served := make(chan error, 2)
	go func() { served <- h.server.Serve(l) }()
	go func() { served <- h.server.ServeHealth(l2) }()
	var err error
	h.driver, err = epptest.NewDriver(h.target, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(64<<20)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		h.driver.Close()
		if err := h.server.Shutdown(context.Background()); err != nil {
			t.Errorf("shutdown: %v", err)
		}
		for range 2 {
			if err := <-served; err != nil {
				t.Errorf("serve: %v", err)
			}
		}
		if n := h.server.bodyBytes.Load(); n != 0 {
			t.Errorf("at rest: %d bytes of bodies, want 0", n)
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

// carry is an exchange that must work.
func (h *house) carry(x epptest.Exchange) *epptest.Carried {
	h.t.Helper()
	c, err := h.driver.Exchange(h.t.Context(), x)
	if err != nil {
		h.t.Fatalf("exchange in %v, %v: %v", x.RequestMode, x.ResponseMode, err)
	}
	return c
}

// ended takes the next pick and checks how it ended.
func (h *house) ended(want picker.Outcome) *ride {
	h.t.Helper()
	r := <-h.rides
	if got := <-r.outcome; got != want {
		h.t.Errorf("the pick ended as %v, want %v", got, want)
	}
	return r
}

func listen(t testing.TB) net.Listener {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// syncBuffer is a buffer that several goroutines may write.
type syncBuffer struct {
	mu sync.Mutex // guards b
	b  bytes.Buffer
}

func (b *syncBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *syncBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

// dial returns a plain connection that ends with the test.
func dial(t testing.TB, target string) *grpc.ClientConn {
	t.Helper()
	c, err := grpc.NewClient(target, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}
