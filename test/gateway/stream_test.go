//go:build gateway

package gateway

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
)

// TestStreamIsNotHeldBack: each event of a stream is with the client before the
// engine writes the next, though all of them pass the picker.
func TestStreamIsNotHeldBack(t *testing.T) {
	const events = 20
	s := newScene(t)
	p := s.start(&pool{name: "vllm", engines: 1, image: "front"})
	s.route("all", front, to("vllm"))
	s.served(front, p)
	next := make(chan struct{})
	frontAt(p.addresses[0]).answerBy(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		w.Header().Set("Content-Type", "text/event-stream")
		for n := range events {
			fmt.Fprintf(w, "data: {\"choices\":[{\"delta\":{\"content\":\"%d\"}}]}\n\n", n)
			_ = http.NewResponseController(w).Flush()
			select {
			case <-next:
			case <-r.Context().Done():
				return
			}
		}
		fmt.Fprint(w, "data: [DONE]\n\n")
	})
	resp := s.stream(s.ctx, events)
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		t.Fatalf("status %d", resp.StatusCode)
	}
	lines := bufio.NewScanner(resp.Body)
	for n := 0; n < events && lines.Scan(); {
		if lines.Text() == "" {
			continue
		}
		if want := fmt.Sprintf(`"content":"%d"`, n); !strings.Contains(lines.Text(), want) {
			t.Fatalf("event %d is %s", n, lines.Text())
		}
		n++
		next <- struct{}{} // the engine waits for this before it writes on
	}
	rest, err := io.ReadAll(resp.Body)
	for lines.Scan() {
		rest = append(rest, lines.Text()...)
	}
	if err != nil || lines.Err() != nil || !strings.Contains(string(rest), "[DONE]") {
		t.Errorf("the stream ends with %q: %v, %v", rest, err, lines.Err())
	}
	p.servedAsPicked()
}

// TestClientLeaves: where a client leaves in the middle of its answer, the engine
// is told, and the picker's booking ends.
func TestClientLeaves(t *testing.T) {
	s := newScene(t)
	p := s.start(&pool{name: "vllm", engines: 1, image: "front"})
	s.route("all", front, to("vllm"))
	s.served(front, p)
	left := make(chan struct{})
	frontAt(p.addresses[0]).answerBy(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		w.Header().Set("Content-Type", "text/event-stream")
		fmt.Fprint(w, "data: {\"choices\":[{\"delta\":{\"content\":\"x\"}}]}\n\n")
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
		close(left)
	})
	ctx, leave := context.WithCancel(s.ctx)
	resp := s.stream(ctx, 5)
	defer resp.Body.Close()
	if _, err := bufio.NewReader(resp.Body).ReadString('x'); err != nil {
		t.Fatal(err)
	}
	inFlight := func(want float64) {
		t.Helper()
		s.must(poll(s.ctx, func(ctx context.Context) (bool, error) {
			n, err := p.metric(ctx, "epp_in_flight_requests", "")
			return err == nil && n == want, fmt.Errorf("%v requests in flight, want %v: %w", n, want, err)
		}))
	}
	inFlight(1)
	leave()
	<-left
	inFlight(0)
}

// TestHTTP2Pool: a pool whose appProtocol is kubernetes.io/h2c gets HTTP/2 without
// TLS; one without it gets HTTP/1.1.
func TestHTTP2Pool(t *testing.T) {
	s := newScene(t)
	two := s.start(&pool{name: "two", engines: 2, image: "front", protocol: "kubernetes.io/h2c", headers: toPool("two")})
	one := s.start(&pool{name: "one", engines: 1, image: "front"})
	s.route("all", front, byHeader("two"), to("one"))
	s.served(front, two, one)
	prompt := words(3, 320)
	first := s.ok(chat(prompt, 1), two.headers...)
	two.knows(first.servedBy)
	for range 5 {
		a := s.ok(chat(prompt, 1), two.headers...)
		if by := a.header.Get("x-came-by"); by != "HTTP/2.0" || a.servedBy != first.servedBy {
			t.Errorf("a request to %s came by %s: %v", first.servedBy, by, a)
		}
	}
	if a := s.ok(chat(prompt, 1)); a.header.Get("x-came-by") != "HTTP/1.1" || a.servedBy != one.addresses[0] {
		t.Errorf("a request to a pool of HTTP/1.1 came by %s: %v", a.header.Get("x-came-by"), a)
	}
	two.servedAsPicked()
	one.servedAsPicked()
}

// stream asks for an answer of so many tokens that is streamed, and returns when it
// has begun.
func (s *scene) stream(ctx context.Context, tokens int) *http.Response {
	s.t.Helper()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, s.url(front)+chatPath, bytes.NewReader(chat("hello", tokens, "stream", "true")))
	s.must(err)
	req.Host = s.host()
	req.Header.Set("Content-Type", "application/json")
	resp, err := http1.Do(req)
	s.must(err)
	return resp
}
