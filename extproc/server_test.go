package extproc

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"testing"
	"time"

	filterv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	"epp.internal/epp/decision"
	"epp.internal/epp/epptest"
	"epp.internal/epp/picker"
)

const chat = `{"model":"m","messages":[{"role":"user","content":"Hi"}]}`

func post(more ...string) []string {
	return append([]string{":method", "POST", ":path", "/v1/chat/completions", "content-type", "application/json"}, more...)
}

// In every pair of body modes the same request gets the same answer, its bytes
// reach the endpoint and the client as they were, and the pick sees what it can.
func TestModes(t *testing.T) {
	h := newHouse(t, Options{}, "10.0.0.1:8000", "[::1]:8000")
	answer := [][]byte{[]byte("data: 1\n\n"), []byte("data: [DONE]\n\n")}
	for _, c := range []struct {
		x     epptest.Exchange
		sight picker.Sight
		sees  string
	}{
		{epptest.Exchange{RequestMode: modeBuffered, ResponseMode: modeNone}, picker.SeesEnd, ""},
		{epptest.Exchange{RequestMode: modeBuffered, ResponseMode: modeStreamed}, picker.SeesAll, "data: 1\n\ndata: [DONE]\n\n"},
		{epptest.Exchange{RequestMode: modeDuplex, ResponseMode: modeDuplex}, picker.SeesAll, "data: 1\n\ndata: [DONE]\n\n"},
		{epptest.Exchange{RequestMode: modeDuplex, ResponseMode: modeDuplex, ChunkBytes: 7}, picker.SeesAll, "data: 1\n\ndata: [DONE]\n\n"},
		{epptest.Exchange{RequestMode: modeDuplex, ResponseMode: modeDuplex, Quiet: true}, picker.SeesAll, "data: 1\n\ndata: [DONE]\n\n"},
		{epptest.Exchange{RequestMode: modeBuffered, ResponseMode: modeStreamed, Quiet: true}, picker.SeesEnd, "data: 1\n\ndata: [DONE]\n\n"},
		{epptest.Exchange{RequestMode: modeDuplex, ResponseMode: modeNone}, picker.SeesHeaders, ""},
		{epptest.Exchange{RequestMode: modeNone, ResponseMode: modeNone}, picker.SeesEnd, ""},
	} {
		x := c.x
		x.Headers, x.Body = post("X-Request-Id", "theirs"), []byte(chat)
		x.ResponseHeaders, x.Response = []string{":status", "200", "content-type", "text/event-stream"}, answer
		got := h.carry(x)
		r := h.ended(picker.Served)
		const want = "10.0.0.1:8000,[::1]:8000"
		if got.Destination != want || got.Metadata != want {
			t.Errorf("%v, %v: header %q, metadata %q, want %q in both", x.RequestMode, x.ResponseMode, got.Destination, got.Metadata, want)
		}
		if string(got.Body) != chat || string(got.ResponseBody) != "data: 1\n\ndata: [DONE]\n\n" {
			t.Errorf("%v, %v: bodies %q and %q", x.RequestMode, x.ResponseMode, got.Body, got.ResponseBody)
		}
		if got.Set[picker.IDHeader] != r.in.ID || got.ResponseSet[picker.IDHeader] != r.in.ID || len(r.in.ID) != 36 {
			t.Errorf("%v, %v: requestID %q to the endpoint, %q to the client, want %q", x.RequestMode, x.ResponseMode,
				got.Set[picker.IDHeader], got.ResponseSet[picker.IDHeader], r.in.ID)
		}
		if r.in.Sight != c.sight || r.answer.String() != c.sees || strings.Join(r.header, ";") != `200 "text/event-stream" ""` {
			t.Errorf("%v, %v: sight %v, saw %v and %q, want %v and %q", x.RequestMode, x.ResponseMode, r.in.Sight, r.header, &r.answer, c.sight, c.sees)
		}
		if wantBody := x.RequestMode != modeNone; (string(r.in.Body) == chat) != wantBody || r.in.ClientID != "theirs" {
			t.Errorf("%v, %v: picked with %+v", x.RequestMode, x.ResponseMode, r.in)
		}
	}
}

// open begins a request in a mode and returns its stream when it is routed.
func (h *house) open(ctx context.Context, request, response filterv3.ProcessingMode_BodySendMode) *epptest.Stream {
	h.t.Helper()
	s, err := h.driver.Open(ctx)
	if err != nil {
		h.t.Fatal(err)
	}
	s.Send(epptest.Announce(epptest.RequestHeaders(false, post()...), request, response))
	s.Send(epptest.RequestBody([]byte(chat), true))
	for range 2 {
		if _, err := s.Recv(); err != nil {
			h.t.Fatal(err)
		}
	}
	return s
}

// An abort is seen when the stream is reset, in each mode that shows it.
func TestClientGone(t *testing.T) {
	h := newHouse(t, Options{})
	for _, m := range ownModes {
		for _, answered := range []bool{false, true} {
			ctx, cancel := context.WithCancel(t.Context())
			s := h.open(ctx, m.RequestMode, m.ResponseMode)
			if answered {
				if _, err := s.Call(epptest.ResponseHeaders(false, ":status", "200")); err != nil {
					t.Fatal(err)
				}
			}
			cancel()
			h.ended(picker.ClientGone)
			if e := <-h.ends; e.Outcome != "client_gone" || e.Messages != 2 && !answered {
				t.Errorf("%v, %v: %+v", m.RequestMode, m.ResponseMode, e)
			}
		}
	}
}

// Shutdown says so at once, takes streams while it drains, and returns when the
// last one has ended.
func TestShutdown(t *testing.T) {
	h := newHouse(t, Options{DrainTime: time.Second})
	w, err := grpc_health_v1.NewHealthClient(dial(t, h.health)).Watch(t.Context(), &grpc_health_v1.HealthCheckRequest{Service: "readiness"})
	if err != nil {
		t.Fatal(err)
	}
	watched := func(want grpc_health_v1.HealthCheckResponse_ServingStatus) {
		t.Helper()
		if r, err := w.Recv(); err != nil || r.Status != want {
			t.Fatalf("watched %v, %v, want %v", r, err, want)
		}
	}
	watched(grpc_health_v1.HealthCheckResponse_SERVING)
	before := h.open(t.Context(), modeBuffered, modeNone)
	done := make(chan error, 1)
	go func() { done <- h.server.Shutdown(context.Background()) }()
	watched(grpc_health_v1.HealthCheckResponse_NOT_SERVING)
	during := h.open(t.Context(), modeBuffered, modeNone)
	if r, err := w.Recv(); status.Code(err) != codes.Unavailable {
		t.Errorf("after the drain the watch got %v, %v", r, err)
	}
	for _, s := range []*epptest.Stream{before, during} {
		select {
		case err := <-done:
			t.Fatalf("shutdown has not waited: %v", err)
		default:
		}
		if _, err := s.Call(epptest.ResponseHeaders(false, ":status", "200")); err != nil {
			t.Fatal(err)
		}
		s.CloseSend()
		if _, err := s.Collect(); err != nil {
			t.Errorf("a stream ended with %v", err)
		}
		h.ended(picker.Served)
	}
	if err := <-done; err != nil {
		t.Errorf("shutdown: %v", err)
	}
}

// Where its time runs out, it cuts off, and the picks know that it was us.
func TestShutdownCutsOff(t *testing.T) {
	h := newHouse(t, Options{DrainTime: time.Hour})
	s := h.open(t.Context(), modeBuffered, modeNone)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := h.server.Shutdown(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("shutdown: %v", err)
	}
	h.ended(picker.Undelivered)
	if _, err := s.Collect(); err == nil {
		t.Error("the stream ended in order")
	}
}

// One request's fault costs no other: the stream ends with Internal, and what it
// held is given back.
func TestPanic(t *testing.T) {
	h := newHouse(t, Options{Pick: func(_ context.Context, in picker.Incoming) (Carried, error) {
		if in.ClientID == "bad" {
			panic("a fault of ours")
		}
		return newRide(in, "10.0.0.1:8000"), nil
	}})
	x := epptest.Exchange{RequestMode: modeBuffered, ResponseMode: modeNone, Headers: post("x-request-id", "bad"), Body: []byte(chat)}
	if c, err := h.driver.Exchange(t.Context(), x); status.Code(err) != codes.Internal || strings.Contains(err.Error(), "fault") {
		t.Errorf("got %+v, %v", c, err)
	}
	if !strings.Contains(h.log.String(), "a fault of ours") {
		t.Errorf("logged %s", h.log)
	}
	x.Headers = post()
	if c := h.carry(x); c.Destination == "" {
		t.Errorf("the next one: %+v", c)
	}
}

// The bound on all bodies is one of all streams; what is refused gives back what
// it took.
func TestBodiesBound(t *testing.T) {
	h := newHouse(t, Options{MaxBodiesBytes: 2*len(chat) + 1})
	first := h.open(t.Context(), modeBuffered, modeNone)
	second := h.open(t.Context(), modeDuplex, modeDuplex)
	x := epptest.Exchange{RequestMode: modeBuffered, ResponseMode: modeNone, Headers: post(), Body: []byte(chat)}
	if c := h.carry(x); int(c.Immediate.GetStatus().GetCode()) != 429 {
		t.Errorf("the third: %+v", c)
	}
	<-h.ends
	first.CloseSend()
	<-h.ends
	if c := h.carry(x); c.Destination == "" {
		t.Errorf("after the first ended: %+v", c)
	}
	second.CloseSend()
}

// Many streams at once, in every mode, that end in every way: nothing stays
// booked.
func TestManyStreams(t *testing.T) {
	p := newPool(t, decision.Defaults(), Options{}, picker.Options{Fallbacks: 1}, "10.0.0.1:8000", "10.0.0.2:8000", "10.0.0.3:8000")
	const each = 25
	var wg sync.WaitGroup
	for w := range 16 {
		wg.Go(func() {
			for i := range each {
				m := ownModes[(w+i)%len(ownModes)]
				x := epptest.Exchange{
					RequestMode: m.RequestMode, ResponseMode: m.ResponseMode, Headers: []string{":method", "POST", ":path", "/v1/completions"},
					Body: fmt.Appendf(nil, `{"model":"m","prompt":[%d,%d]}`, w, i), ChunkBytes: 5, Response: [][]byte{[]byte("{"), []byte("}")},
				}
				if i%5 != 0 {
					if c, err := p.driver.Exchange(t.Context(), x); err != nil || c.Destination == "" || string(c.Body) != string(x.Body) {
						t.Errorf("%+v, %v", c, err)
					}
					continue
				}
				ctx, cancel := context.WithCancel(t.Context())
				s, err := p.driver.Open(ctx)
				if err != nil {
					t.Error(err)
				}
				s.Send(epptest.Announce(epptest.RequestHeaders(false, x.Headers...), x.RequestMode, x.ResponseMode))
				s.Send(epptest.RequestBody(x.Body, true))
				if i%10 == 0 {
					s.Recv()
				}
				cancel()
				s.Collect()
			}
		})
	}
	wg.Wait()
	if err := p.server.Shutdown(context.Background()); err != nil {
		t.Error(err)
	}
	p.wantRest()
}

// A compressed body is read, and goes on decoded: with its new length, and
// without its encoding.
func TestCompressedBody(t *testing.T) {
	p := newPool(t, decision.Defaults(), Options{}, picker.Options{}, "10.0.0.1:8000")
	var zipped bytes.Buffer
	z := gzip.NewWriter(&zipped)
	io.WriteString(z, completion)
	z.Close()
	for _, x := range ownModes {
		x.Headers = []string{":method", "POST", ":path", "/v1/completions", "content-encoding", "gzip", "content-length", fmt.Sprint(zipped.Len())}
		x.Body = zipped.Bytes()
		c := p.carry(x)
		if string(c.Body) != completion || fmt.Sprint(c.Removed) != "[content-encoding]" || p.last().PromptTokens != 3 {
			t.Errorf("%v: body %q, removed %q, %d tokens, %v", x.RequestMode, c.Body, c.Removed, p.last().PromptTokens, c.Immediate)
		}
		<-p.ends
	}
	p.wantRest()
}
