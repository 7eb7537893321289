package proxy

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/textproto"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"epp.internal/epp/picker"
)

// protocols are the clients' ways of talking to the proxy.
func protocols(t *testing.T, do func(t *testing.T, client *http.Client)) {
	for _, name := range []string{"HTTP/1.1", "HTTP/2"} {
		t.Run(name, func(t *testing.T) {
			var p http.Protocols
			p.SetHTTP1(name == "HTTP/1.1")
			p.SetUnencryptedHTTP2(name == "HTTP/2")
			transport := &http.Transport{Protocols: &p, DisableCompression: true}
			defer transport.CloseIdleConnections()
			do(t, &http.Client{Transport: transport})
		})
	}
}

// Each event reaches the client before the endpoint sends the next one: the
// endpoint waits for the client's word. So does the header, before the first.
func TestStreamIsNotHeldBack(t *testing.T) {
	protocols(t, func(t *testing.T, client *http.Client) {
		seen := make(chan struct{})
		h := newHouse(t, Options{}, pod(t, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", "text/event-stream; charset=utf-8")
			flush(w)
			for i := range 5 {
				<-seen
				fmt.Fprintf(w, "data: %d\n\n", i)
				flush(w)
			}
			<-seen
			io.WriteString(w, "data: [DONE]\n\n")
		}))
		res, err := client.Do(h.request("POST", "/v1/chat/completions", chat))
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		if got := res.Header.Get("Content-Type"); got != "text/event-stream; charset=utf-8" {
			t.Errorf("Content-Type is %q", got)
		}
		ride := <-h.rides
		seen <- struct{}{}
		lines := bufio.NewReader(res.Body)
		for i := range 5 {
			line, err := lines.ReadString('\n')
			if blank, _ := lines.ReadString('\n'); err != nil || line != fmt.Sprintf("data: %d\n", i) || blank != "\n" {
				t.Fatalf("event %d is %q %q, %v", i, line, blank, err)
			}
			<-ride.first // the pick saw the first event before the endpoint sent the second
			seen <- struct{}{}
		}
		if rest, err := io.ReadAll(lines); err != nil || string(rest) != "data: [DONE]\n\n" {
			t.Errorf("the end is %q, %v", rest, err)
		}
		if o := <-ride.outcome; o != picker.Served {
			t.Errorf("pick ended as %v", o)
		}
	})
}

// A body of known length is not held back either.
func TestKnownLengthIsNotHeldBack(t *testing.T) {
	seen := make(chan struct{})
	h := newHouse(t, Options{}, pod(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Length", "4")
		io.WriteString(w, "ab")
		flush(w)
		<-seen
		io.WriteString(w, "cd")
	}))
	res, err := h.client.Do(h.request("POST", "/v1/embeddings", chat))
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	half := make([]byte, 2)
	if _, err := io.ReadFull(res.Body, half); err != nil {
		t.Fatal(err)
	}
	close(seen)
	if rest, err := io.ReadAll(res.Body); err != nil || string(half)+string(rest) != "abcd" || res.ContentLength != 4 {
		t.Errorf("got %q and %q, %v, length %d", half, rest, err, res.ContentLength)
	}
}

// Whatever way a stream is cut, the client and the pick see the same bytes,
// each of them before the next one is sent.
func TestStreamCutAnywhere(t *testing.T) {
	const stream = "data: {\"choices\":[]}\n\ndata: {\"usage\":{\"prompt_tokens\":17,\"completion_tokens\":5}}\n\ndata: [DONE]\n\n"
	seen := make(chan struct{})
	cut := 0
	h := newHouse(t, Options{}, pod(t, func(w http.ResponseWriter, r *http.Request) {
		io.WriteString(w, stream[:cut])
		flush(w)
		<-seen
		io.WriteString(w, stream[cut:])
	}))
	for cut = 1; cut < len(stream); cut++ {
		res, err := h.client.Do(h.request("POST", "/v1/chat/completions", chat))
		if err != nil {
			t.Fatal(err)
		}
		first := make([]byte, cut)
		if _, err := io.ReadFull(res.Body, first); err != nil {
			t.Fatal(err)
		}
		seen <- struct{}{}
		rest, err := io.ReadAll(res.Body)
		res.Body.Close()
		if err != nil || string(first)+string(rest) != stream {
			t.Errorf("cut at %d: the client got %q and %q, %v", cut, first, rest, err)
		}
		if r := h.ended(picker.Served); r.answer.String() != stream {
			t.Errorf("cut at %d: the pick was shown %q", cut, r.answer.String())
		}
	}
}

// A client that leaves, before the answer or within it, takes its request with
// it: the endpoint sees its connection end.
func TestClientAbort(t *testing.T) {
	protocols(t, func(t *testing.T, client *http.Client) {
		for _, streaming := range []bool{false, true} {
			arrived, gone := make(chan struct{}), make(chan struct{})
			h := newHouse(t, Options{}, pod(t, func(w http.ResponseWriter, r *http.Request) {
				io.Copy(io.Discard, r.Body)
				if streaming {
					io.WriteString(w, "data: 1\n\n")
					flush(w)
				}
				close(arrived)
				<-r.Context().Done()
				close(gone)
			}))
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan struct{})
			go func() {
				defer close(done)
				res, err := client.Do(h.request("POST", "/v1/chat/completions", chat).WithContext(ctx))
				if err == nil {
					io.Copy(io.Discard, res.Body)
					res.Body.Close()
				}
			}()
			<-arrived
			ride := <-h.rides
			if streaming {
				<-ride.first
			}
			left := time.Now()
			cancel()
			<-gone
			if took := time.Since(left); took > time.Second {
				t.Errorf("streaming %v: the abort reached the endpoint after %v", streaming, took)
			}
			if o := <-ride.outcome; o != picker.ClientGone {
				t.Errorf("streaming %v: pick ended as %v", streaming, o)
			}
			<-done
		}
	})
}

// A client that leaves while the picker thinks books nothing.
func TestClientAbortDuringPick(t *testing.T) {
	picking, returned := make(chan struct{}), make(chan struct{})
	h := newHouse(t, Options{Pick: func(ctx context.Context, _ picker.Incoming) (Carried, error) {
		defer close(returned)
		close(picking)
		<-ctx.Done()
		return nil, ctx.Err()
	}})
	conn, _ := h.raw("POST /tokenize HTTP/1.1\r\nHost: epp\r\nContent-Length: 57\r\n\r\n" + chat)
	<-picking
	conn.Close()
	<-returned
}

// A client that stops reading is let go, and its request with it.
func TestClientStalls(t *testing.T) {
	gone := make(chan struct{})
	h := newHouse(t, Options{StallTimeout: 50 * time.Millisecond}, pod(t, func(w http.ResponseWriter, r *http.Request) {
		defer close(gone)
		for r.Context().Err() == nil {
			w.Write(make([]byte, 64<<10))
		}
	}))
	h.raw("POST /v1/completions HTTP/1.1\r\nHost: epp\r\nContent-Length: 57\r\n\r\n" + chat)
	<-gone
	h.ended(picker.ClientGone)
	h.wantEvents("cut off client_gone")
}

// An endpoint that says nothing for too long: 504 before its answer, an error
// within it. It is not asked again, nor is another one.
func TestEndpointSilent(t *testing.T) {
	protocols(t, func(t *testing.T, client *http.Client) {
		for _, streaming := range []bool{false, true} {
			h := newHouse(t, Options{EngineTimeout: 300 * time.Millisecond}, pod(t, func(w http.ResponseWriter, r *http.Request) {
				io.Copy(io.Discard, r.Body)
				if streaming {
					io.WriteString(w, "data: 1\n\n")
					flush(w)
				}
				<-r.Context().Done()
			}), nobody)
			res, err := client.Do(h.request("POST", "/v1/chat/completions", chat))
			if err != nil {
				t.Fatal(err)
			}
			body, err := io.ReadAll(res.Body)
			res.Body.Close()
			if streaming {
				if err == nil || string(body) != "data: 1\n\n" {
					t.Errorf("the stream ended with %q, %v", body, err)
				}
				h.wantEvents("cut off timed_out")
			} else {
				wantError(t, res, string(body), 504, "endpoint_silent")
			}
			if r := h.ended(picker.TimedOut); len(r.failed) > 0 {
				t.Errorf("Next was called with %v", r.failed)
			}
		}
	})
}

// A silence is counted anew with each byte, so a long answer is no silent one.
func TestEngineTimeoutIsOfSilence(t *testing.T) {
	const timeout = 300 * time.Millisecond
	h := newHouse(t, Options{EngineTimeout: timeout}, pod(t, func(w http.ResponseWriter, r *http.Request) {
		tick := time.NewTicker(timeout / 6)
		defer tick.Stop()
		for range 12 {
			<-tick.C
			io.WriteString(w, "x")
			flush(w)
		}
	}))
	if res, body := h.post("/v1/completions", chat); res.StatusCode != 200 || body != "xxxxxxxxxxxx" {
		t.Errorf("got %d %q", res.StatusCode, body)
	}
	h.ended(picker.Served)
}

// HTTP/2 clients get the same as the others: status, header, trailer, errors.
func TestHTTP2(t *testing.T) {
	protocols(t, func(t *testing.T, client *http.Client) {
		h := newHouse(t, Options{}, pod(t, func(w http.ResponseWriter, r *http.Request) {
			body, _ := io.ReadAll(r.Body)
			w.Header().Set("Trailer", "X-Sum")
			w.Header().Set("X-Foo", "1")
			w.Header().Set("Connection", "x-foo")
			w.WriteHeader(418)
			fmt.Fprintf(w, "%s %s", r.Proto, body)
			w.Header().Set("X-Sum", "6")
		}))
		res, err := client.Do(h.request("POST", "/v1/chat/completions/?x=y", chat))
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(res.Body)
		res.Body.Close()
		if err != nil || res.StatusCode != 418 || string(body) != "HTTP/1.1 "+chat || res.Trailer.Get("X-Sum") != "6" || res.Header.Get("X-Foo") != "" {
			t.Errorf("%s: got %d %q, %v, header %v, trailer %v", res.Proto, res.StatusCode, body, err, res.Header, res.Trailer)
		}
		wantID(t, res)
		h.ended(picker.Served)
		res, err = client.Do(h.request("GET", "/nowhere", ""))
		if err != nil {
			t.Fatal(err)
		}
		body, _ = io.ReadAll(res.Body)
		res.Body.Close()
		wantError(t, res, string(body), 404, "path_unknown")
	})
}

// What an endpoint answers is passed on as it is, errors too, and is not asked
// for again.
func TestAnswerIsPassedOn(t *testing.T) {
	status := 0
	h := newHouse(t, Options{}, pod(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("X-Epp-Request-Id", "the endpoint's own")
		w.Header().Set("Retry-After", "7")
		if status == 307 {
			w.Header().Set("Location", "http://"+r.Host+"/v1/completions?a=b#c")
			w.Header().Set("Content-Location", "http://elsewhere.example/x")
		}
		w.WriteHeader(status)
		if status != 204 {
			fmt.Fprintf(w, "status %d", status)
		}
	}), nobody)
	for _, status = range []int{200, 201, 204, 307, 400, 401, 404, 422, 429, 500, 502, 503, 599} {
		res, body := h.post("/v1/completions", chat)
		if res.StatusCode != status || status != 204 && body != fmt.Sprintf("status %d", status) || res.Header.Get("Retry-After") != "7" {
			t.Errorf("status %d: got %d %q %v", status, res.StatusCode, body, res.Header)
		}
		if id := wantID(t, res); strings.Contains(id, "own") {
			t.Errorf("the endpoint's requestID %q was passed on", id)
		}
		if status == 307 { // back to us, not to the endpoint's address
			if got, other := res.Header.Get("Location"), res.Header.Get("Content-Location"); got != "/v1/completions?a=b#c" || other != "http://elsewhere.example/x" {
				t.Errorf("Location is %q, Content-Location %q", got, other)
			}
		}
		if r := h.ended(picker.Served); len(r.failed) > 0 {
			t.Errorf("status %d: Next was called with %v", status, r.failed)
		}
	}
	h.wantEvents()
}

// Informational answers are passed on before the final one, with the requestID.
func TestInformationalAnswer(t *testing.T) {
	protocols(t, func(t *testing.T, client *http.Client) {
		seen := make(chan struct{})
		h := newHouse(t, Options{}, pod(t, func(w http.ResponseWriter, r *http.Request) {
			io.Copy(io.Discard, r.Body)
			w.Header().Set("Link", "</style.css>")
			w.WriteHeader(103)
			<-seen
			w.Header().Del("Link")
			io.WriteString(w, "ok")
		}))
		var hints []string
		ctx := httptrace.WithClientTrace(t.Context(), &httptrace.ClientTrace{Got1xxResponse: func(code int, header textproto.MIMEHeader) error {
			hints = append(hints, fmt.Sprintf("%d %s %d", code, header.Get("Link"), len(header.Get(idHeader))))
			close(seen)
			return nil
		}})
		res, err := client.Do(h.request("POST", "/v1/completions", chat).WithContext(ctx))
		if err != nil {
			t.Fatal(err)
		}
		body, _ := io.ReadAll(res.Body)
		res.Body.Close()
		if res.StatusCode != 200 || string(body) != "ok" || !slices.Equal(hints, []string{"103 </style.css> 36"}) || res.Header.Get("Link") != "" {
			t.Errorf("got %d %q after %q, header %v", res.StatusCode, body, hints, res.Header)
		}
		wantID(t, res)
	})
}

// net/http never sends a request twice by itself: not where a kept connection
// turned out to be dead, whatever the client says of idempotence.
func TestKeptConnectionDies(t *testing.T) {
	var mu sync.Mutex
	var got []string
	a := rawPod(t, func(c net.Conn, head, _ string) {
		mu.Lock()
		defer mu.Unlock()
		got = append(got, head)
		if len(got) == 2 {
			reset(c) // the second request on the connection that the first one left
			return
		}
		io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\na")
	})
	h := newHouse(t, Options{}, a, pod(t, func(w http.ResponseWriter, r *http.Request) { io.WriteString(w, "b") }))
	for _, want := range []string{"a", "b", "a"} {
		if _, body := h.post("/v1/completions", chat, "Idempotency-Key", "k", "X-Idempotency-Key", "k"); body != want {
			t.Errorf("served by %q, want %q", body, want)
		}
		h.ended(picker.Served)
	}
	if len(got) != 3 {
		t.Errorf("the first endpoint got %d requests, want 3", len(got))
	}
	h.wantEvents("retried reset")
}

func flush(w http.ResponseWriter) { w.(http.Flusher).Flush() }
