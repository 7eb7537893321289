package proxy

import (
	"bufio"
	"compress/gzip"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"epp.internal/epp"
	"epp.internal/epp/picker"
)

// Query strings, a trailing slash, sub-paths and requests without a body all
// find their way, and the endpoint sees the path and the query as they came.
func TestCaseG5(t *testing.T) {
	var seen string
	h := newHouse(t, Options{Models: func() []epp.Model {
		return []epp.Model{{Name: "m", MaxTokens: 4096}, {Name: "m-sql", Parent: "m"}}
	}}, pod(t, func(w http.ResponseWriter, r *http.Request) { seen = r.Method + " " + r.RequestURI }))
	for _, c := range []struct{ path, picked string }{
		{"/v1/messages?beta=true", "/v1/messages"},
		{"/v1/chat/completions", "/v1/chat/completions"},
		{"/v1/chat/completions/", "/v1/chat/completions"},
		{"/v1/chat/completions/?a=%2F&b", "/v1/chat/completions"},
		{"/v1/chat/completions/render", "/v1/chat/completions/render"},
		{"/v1/completions/render/", "/v1/completions/render"},
		{"/v1/completions?", "/v1/completions"},
		{"/v1/embeddings", "/v1/embeddings"},
		{"/v1/responses", "/v1/responses"},
		{"/v1/rerank", "/v1/rerank"},
		{"/v2/rerank", "/v2/rerank"},
		{"/rerank", "/rerank"},
		{"/tokenize", "/tokenize"},
		{"/detokenize", "/detokenize"},
	} {
		res, _ := h.post(c.path, chat)
		if res.StatusCode != 200 || seen != "POST "+c.path {
			t.Errorf("POST %s: status %d, the endpoint saw %q", c.path, res.StatusCode, seen)
		}
		if r := h.ended(picker.Served); r.in.Path != c.picked || r.in.Method != "POST" {
			t.Errorf("POST %s was picked as %s %q", c.path, r.in.Method, r.in.Path)
		}
	}

	for _, path := range []string{"/v1/models", "/v1/models/", "/v1/models?x=y"} {
		res, body := h.do("GET", path, "")
		if res.StatusCode != 200 || !strings.Contains(body, `{"id":"m","object":"model",`) || !strings.Contains(body, `"max_model_len":4096`) ||
			!strings.Contains(body, `"id":"m-sql"`) || !strings.Contains(body, `"parent":"m"`) {
			t.Errorf("GET %s: %d %s", path, res.StatusCode, body)
		}
		wantID(t, res)
	}
	for _, method := range []string{"GET", "HEAD"} {
		res, _ := h.do(method, "/health", "")
		if res.StatusCode != 200 {
			t.Errorf("%s /health: %d", method, res.StatusCode)
		}
		wantID(t, res)
	}
	for _, path := range []string{"/", "/v1", "/v1/chat/completions//", "//v1/chat/completions", "/v1/chat/../chat/completions", "/metrics", "/v1/load_lora_adapter", "/health/x"} {
		res, body := h.post(path, chat)
		wantError(t, res, body, 404, "path_unknown")
		h.wantRefusedLine(res, "path_unknown")
	}
	res, body := h.do("GET", "/v1/chat/completions", "")
	wantError(t, res, body, 405, "method_not_allowed")
	h.wantRefusedLine(res, "method_not_allowed")
	if got := res.Header.Get("Allow"); got != "POST" {
		t.Errorf("Allow is %q", got)
	}
	res, body = h.post("/v1/models", "")
	wantError(t, res, body, 405, "method_not_allowed")
	if got := res.Header.Get("Allow"); got != "GET, HEAD" {
		t.Errorf("Allow is %q", got)
	}
}

// Whatever way a body comes in, it goes out whole with a length of its own, and
// never with two ways of telling it.
func TestCaseG7(t *testing.T) {
	const padding = 3 << 10
	long := strings.Replace(chat, "Hi", strings.Repeat("x", padding), 1)
	renamed := strings.Replace(long, `"m"`, `"a-longer-name"`, 1)
	heads, bodies := make(chan string, 1), make(chan string, 1)
	strict := rawPod(t, func(c net.Conn, head, body string) {
		heads <- head
		bodies <- body
		status := "200 OK"
		if !strings.Contains(head, "\r\nContent-Length: ") {
			status = "411 Length Required"
		}
		io.WriteString(c, "HTTP/1.1 "+status+"\r\nContent-Length: 0\r\n\r\n")
	})
	h := newHouse(t, Options{}, strict)
	rewriting := newHouse(t, Options{Pick: func(_ context.Context, in picker.Incoming) (Carried, error) {
		return &nullCarried{epp.Endpoint{Address: strict}, []byte(renamed)}, nil
	}})
	head := "POST /v1/chat/completions HTTP/1.1\r\nHost: epp\r\n"
	chunked := fmt.Sprintf("10\r\n%s\r\n%x;ext=1\r\n%s\r\n0\r\nX-Late: 1\r\n\r\n", long[:16], len(long)-16, long[16:])
	for _, c := range []struct {
		name, head, body, want string
		house                  *house
	}{
		{"length", fmt.Sprintf("Content-Length: %d\r\n", len(long)), long, long, h},
		{"chunked", "Transfer-Encoding: chunked\r\nTrailer: X-Late\r\n", chunked, long, h},
		{"100-continue", fmt.Sprintf("Content-Length: %d\r\nExpect: 100-continue\r\n", len(long)), long, long, h},
		{"100-continue, chunked", "Transfer-Encoding: chunked\r\nExpect: 100-continue\r\n", chunked, long, h},
		{"rewritten to another length", fmt.Sprintf("Content-Length: %d\r\n", len(long)), long, renamed, rewriting},
	} {
		conn, r := c.house.raw(head + c.head + "\r\n")
		if strings.Contains(c.head, "Expect") {
			// Nothing of the body was sent: the 100 comes without it, not after a wait.
			line, err := r.ReadString('\n')
			if blank, _ := r.ReadString('\n'); err != nil || line != "HTTP/1.1 100 Continue\r\n" || blank != "\r\n" {
				t.Fatalf("%s: got %q %q, %v, want 100 Continue", c.name, line, blank, err)
			}
		}
		io.WriteString(conn, c.body)
		res, err := http.ReadResponse(r, nil)
		if err != nil || res.StatusCode != 200 {
			t.Fatalf("%s: got %v, %v", c.name, res, err)
		}
		got := <-heads
		if n := strings.Count(got, "\r\nContent-Length: "); n != 1 || !strings.Contains(got, fmt.Sprintf("\r\nContent-Length: %d", len(c.want))) {
			t.Errorf("%s: the endpoint got %d lengths, want one of %d:\n%s", c.name, n, len(c.want), got)
		}
		for _, name := range []string{"Transfer-Encoding", "Trailer", "X-Late", "Expect"} {
			if strings.Contains(got, "\r\n"+name+":") {
				t.Errorf("%s: the endpoint got %s:\n%s", c.name, name, got)
			}
		}
		if b := <-bodies; b != c.want {
			t.Errorf("%s: the endpoint got a body of %d bytes, want %d: %.80q", c.name, len(b), len(c.want), b)
		}
	}
}

// Headers that concern one connection stay on it, in both directions; what
// describes the answer passes untouched.
func TestCaseJ2(t *testing.T) {
	var zipped strings.Builder
	z := gzip.NewWriter(&zipped)
	io.WriteString(z, chat)
	z.Close()
	heads := make(chan string, 1)
	answers := map[string]string{
		"gzip": fmt.Sprintf("Content-Type: application/json\r\nContent-Encoding: gzip\r\nContent-Length: %d\r\n\r\n%s", zipped.Len(), zipped.String()),
		"hop": "Content-Type: application/json\r\nConnection: x-foo\r\nConnection: X-Bar\r\nX-Foo: 1\r\nX-Bar: 1\r\nX-Stays: 1\r\nKeep-Alive: timeout=5\r\n" +
			"Proxy-Authenticate: Basic\r\nUpgrade: h2c\r\nServer: uvicorn\r\nContent-Length: 2\r\n\r\n{}",
		"trailer without chunks": "Trailer: X-Sum\r\nContent-Length: 2\r\n\r\n{}",
		"audio":                  "Content-Type: audio/wav\r\nContent-Length: 4\r\n\r\nRIFF",
		"no type":                "Content-Length: 15\r\n\r\n<html>not html<",
		"trailers":               "Content-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\nTrailer: X-Sum\r\n\r\n3\r\nabc\r\n0\r\nX-Sum: 6\r\nX-Unannounced: 7\r\n\r\n",
	}
	h := newHouse(t, Options{}, rawPod(t, func(c net.Conn, head, body string) {
		heads <- head
		_, name, _ := strings.Cut(head, "\r\nX-Case: ")
		name, _, _ = strings.Cut(name, "\r\n")
		io.WriteString(c, "HTTP/1.1 200 OK\r\n"+answers[name])
	}))
	ask := func(name string) *http.Response {
		_, r := h.raw("POST /v1/chat/completions HTTP/1.1\r\nHost: epp\r\nConnection: x-secret, close\r\nX-Secret: 1\r\nTE: trailers, deflate\r\nTrailer: X-T\r\n" +
			"Proxy-Authorization: Basic c2VjcmV0\r\nProxy-Connection: keep-alive\r\nKeep-Alive: timeout=5\r\nUpgrade: websocket\r\nAuthorization: Bearer k\r\n" +
			"Cookie: a=b\r\nX-Request-Id: client-7\r\nX-Forwarded-For: 192.0.2.1\r\nX-Case: " + name + "\r\nAccept-Encoding: br\r\nContent-Length: 57\r\n\r\n" + chat)
		res, err := http.ReadResponse(r, nil)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		return res
	}
	// The request's way.
	res := ask("hop")
	io.Copy(io.Discard, res.Body)
	head := "\r\n" + <-heads + "\r\n"
	for _, name := range []string{"Connection", "X-Secret", "Te", "Trailer", "Proxy-Authorization", "Proxy-Connection", "Keep-Alive", "Upgrade"} {
		if strings.Contains(strings.ToLower(head), "\r\n"+strings.ToLower(name)+":") {
			t.Errorf("the endpoint got %s", name)
		}
	}
	address := h.ended(picker.Served).endpoints[0].Address
	for _, line := range []string{"Host: " + address, "Authorization: Bearer k", "Cookie: a=b", "X-Request-Id: client-7", "X-Forwarded-For: 192.0.2.1, 127.0.0.1",
		"Accept-Encoding: br", "X-Epp-Request-Id: " + wantID(t, res), "Content-Length: 57"} {
		if strings.Count(head, "\r\n"+line+"\r\n") != 1 {
			t.Errorf("the endpoint did not get %q once:\n%s", line, head)
		}
	}
	if strings.Contains(head, "\r\nUser-Agent") {
		t.Errorf("the endpoint got a User-Agent that the client did not send:\n%s", head)
	}
	// The answer's way.
	for _, name := range []string{"X-Foo", "X-Bar", "Keep-Alive", "Proxy-Authenticate", "Upgrade"} {
		if v, ok := res.Header[name]; ok {
			t.Errorf("the client got %s: %q", name, v)
		}
	}
	if got := res.Header.Values("Server"); !slices.Equal(got, []string{"uvicorn"}) || res.Header.Get("X-Stays") != "1" || res.ContentLength != 2 {
		t.Errorf("Server %q, X-Stays %q, length %d", got, res.Header.Get("X-Stays"), res.ContentLength)
	}
	for _, c := range []struct {
		name, contentType, encoding, body string
		length                            int64
		trailer                           http.Header
	}{
		{"gzip", "application/json", "gzip", zipped.String(), int64(zipped.Len()), nil},
		{"trailer without chunks", "", "", "{}", 2, nil},
		{"audio", "audio/wav", "", "RIFF", 4, nil},
		{"no type", "", "", "<html>not html<", 15, nil},
		{"trailers", "text/event-stream", "", "abc", -1, http.Header{"X-Sum": {"6"}, "X-Unannounced": {"7"}}},
	} {
		res := ask(c.name)
		<-heads
		body, err := io.ReadAll(res.Body)
		if err != nil || string(body) != c.body || res.ContentLength != c.length || res.Header.Get("Content-Encoding") != c.encoding || res.Header.Get("Content-Type") != c.contentType {
			t.Errorf("%s: got %q, %v, length %d, header %v", c.name, body, err, res.ContentLength, res.Header)
		}
		if (c.length >= 0) != (len(res.TransferEncoding) == 0) {
			t.Errorf("%s: length %d and transfer encoding %q", c.name, res.ContentLength, res.TransferEncoding)
		}
		if fmt.Sprint(res.Trailer) != fmt.Sprint(c.trailer) || res.Header.Get("Trailer") != "" {
			t.Errorf("%s: trailer %v, want %v", c.name, res.Trailer, c.trailer)
		}
		want := fmt.Sprintf("200 %q %q", c.contentType, c.encoding)
		if r := h.ended(picker.Served); r.answer.String() != c.body || !slices.Equal(r.header, []string{want}) {
			t.Errorf("%s: the pick was shown %q %q", c.name, r.header, r.answer.String())
		}
	}
}

// A refused or reset connection costs the client nothing while another endpoint
// is there; a stream that broke is never begun again.
func TestCaseJ4(t *testing.T) {
	got := make(chan string, 1)
	b := pod(t, func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		got <- string(body)
		w.Header().Set("X-Served-By", "b")
		io.WriteString(w, "ok")
	})
	resetting := rawPod(t, func(c net.Conn, head, body string) {
		if body != chat {
			t.Errorf("the first endpoint got %q", body)
		}
		reset(c)
	})
	closing := rawPod(t, func(c net.Conn, _, _ string) { c.Close() })
	for _, c := range []struct {
		name, a string
		failed  picker.Outcome
	}{
		{"A refuses connections", nobody, picker.Refused},
		{"A accepts and resets before headers", resetting, picker.Reset},
		{"A accepts and closes before headers", closing, picker.Reset},
	} {
		t.Run(c.name, func(t *testing.T) {
			h := newHouse(t, Options{}, c.a, b)
			res, body := h.post("/v1/chat/completions", chat)
			if res.StatusCode != 200 || res.Header.Get("X-Served-By") != "b" || body != "ok" {
				t.Errorf("got %d %q from %q", res.StatusCode, body, res.Header.Get("X-Served-By"))
			}
			if sent := <-got; sent != chat {
				t.Errorf("the second endpoint got %q, not the whole body again", sent)
			}
			if r := h.ended(picker.Served); !slices.Equal(r.failed, []picker.Outcome{c.failed}) {
				t.Errorf("Next was called with %v", r.failed)
			}
			h.wantEvents("retried " + c.failed.String())
			if log := h.log.String(); !strings.Contains(log, wantID(t, res)) || !strings.Contains(log, "request retried") {
				t.Errorf("the log does not tell the retry of the requestID:\n%s", log)
			}
		})
	}

	t.Run("A resets after 3 chunks", func(t *testing.T) {
		for _, end := range []struct {
			name string
			do   func(net.Conn)
		}{{"reset", reset}, {"closed without the last chunk", func(c net.Conn) { c.Close() }}} {
			seen := make(chan struct{})
			a := rawPod(t, func(c net.Conn, _, _ string) {
				io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
				for i := range 3 {
					fmt.Fprintf(c, "9\r\ndata: %d\n\n\r\n", i)
				}
				<-seen
				end.do(c)
			})
			h := newHouse(t, Options{}, a, b)
			res, err := h.client.Do(h.request("POST", "/v1/chat/completions", chat))
			if err != nil {
				t.Fatal(err)
			}
			r := bufio.NewReader(res.Body)
			three := make([]byte, 27)
			if _, err := io.ReadFull(r, three); err != nil || string(three) != "data: 0\n\ndata: 1\n\ndata: 2\n\n" {
				t.Fatalf("%s: got %q, %v", end.name, three, err)
			}
			close(seen)
			rest, err := io.ReadAll(r)
			if err == nil || len(rest) > 0 {
				t.Errorf("%s: the stream ended with %q and no error", end.name, rest)
			}
			res.Body.Close()
			if r := h.ended(picker.Reset); len(r.failed) > 0 || len(r.endpoints) != 2 {
				t.Errorf("%s: the stream was begun again", end.name)
			}
			h.wantEvents("cut off reset")
		}
		if len(got) != 0 {
			t.Error("the second endpoint got a request")
		}
	})
}

// A client that names an endpoint itself is not heard: in no spelling, and not
// where there is no decision either.
func TestCaseQ1(t *testing.T) {
	victim := listen(t)
	defer victim.Close()
	reached := make(chan string, 1)
	go func() {
		if c, err := victim.Accept(); err == nil {
			c.Close()
			reached <- "reached"
		} else {
			reached <- ""
		}
	}()
	heads := make(chan http.Header, 1)
	a := pod(t, func(w http.ResponseWriter, r *http.Request) { heads <- r.Header })
	h := newHouse(t, Options{}, a)
	v := victim.Addr().String()
	control := []string{"x-gateway-destination-endpoint", v, "X-GATEWAY-DESTINATION-ENDPOINT", v + "," + a, "x-gateway-destination-endpoint-subset", v, "x-gateway-destination-endpoint-scores", "1",
		"x-prefiller-host-port", v, "x-encoder-hosts-ports", v, "x-data-parallel-host-port", v, "x-kv-cache-source-host-port", v,
		"x-llm-d-inference-fairness-id", "t", "x-gateway-inference-fairness-id", "t", "x-llm-d-inference-objective", "o", "x-gateway-inference-objective", "o",
		"x-llm-d-model-name-rewrite", "m", "x-gateway-model-name-rewrite", "m", "x-llm-d-slo-ttft-ms", "1", "x-slo-ttft-ms", "1", "x-slo-tpot-ms", "1",
		"x-session-token", v, "epp-profile", "p", "test-epp-endpoint-selection", v, "x-epp-request-id", "mine", "connection", "x-epp-request-id"}
	res, _ := h.post("/v1/chat/completions", chat, control...)
	got := <-heads
	for i := 0; i < len(control); i += 2 {
		if values := got.Values(control[i]); len(values) > 0 && !strings.EqualFold(control[i], idHeader) {
			t.Errorf("the endpoint got %s: %q", control[i], values)
		}
	}
	if ids := got.Values(idHeader); len(ids) != 1 || ids[0] != wantID(t, res) || ids[0] == "mine" {
		t.Errorf("the endpoint got the requestID %q", ids)
	}
	if r := h.ended(picker.Served); r.in.Subset != nil || r.in.ID == "mine" {
		t.Errorf("the picker was asked with subset %q and ID %q", r.in.Subset, r.in.ID)
	}
	for _, r := range [][2]string{{"GET", "/v1/models"}, {"GET", "/health"}, {"GET", "/"}, {"POST", "/v1/chat/completions"}} {
		h.do(r[0], r[1], "", control...) // the last one is refused: its body is empty
	}
	// The address in the request line is no address either.
	_, r := h.raw("POST http://" + v + "/v1/chat/completions HTTP/1.1\r\nHost: " + v + "\r\nContent-Length: 57\r\n\r\n" + chat)
	if res, err := http.ReadResponse(r, nil); err != nil || res.StatusCode != 200 {
		t.Errorf("absolute form: %v, %v", res, err)
	}
	<-heads
	victim.Close()
	if <-reached != "" {
		t.Error("the victim got a connection")
	}
}

// Odd small inputs get an answer of the 400s, say nothing of the house, and
// leave the proxy alive.
func TestCaseQ9(t *testing.T) {
	heads := make(chan http.Header, 16)
	a := pod(t, func(w http.ResponseWriter, r *http.Request) { heads <- r.Header })
	h := newHouse(t, Options{}, a)
	head := "POST /v1/chat/completions HTTP/1.1\r\nHost: epp\r\n"
	good := "Content-Length: 57\r\n\r\n" + chat
	for _, c := range []struct {
		name, text string
		status     int
	}{
		{"bearer alone", head + "Authorization: bearer\r\n" + good, 200},
		{"bearer and a space", head + "Authorization: bearer \r\n" + good, 200},
		{"UTF-8 in a value", head + "X-Name: Zoë 漢\r\n" + good, 200},
		{"bytes in a value", head + "X-Name: \xff\xfe\x80\r\n" + good, 200},
		{"64 KB header", head + "X-Long: " + strings.Repeat("x", 70<<10) + "\r\n" + good, 431},
		{"NUL in a value", head + "X-Name: a\x00b\r\n" + good, 400},
		{"negative length", head + "Content-Length: -1\r\n\r\n" + chat, 400},
		{"length near 2^32", head + "Content-Length: 4294967295\r\n\r\n" + chat, 413},
		{"length over 2^63", head + "Content-Length: 9223372036854775808\r\n\r\n" + chat, 400},
		{"two lengths", head + "Content-Length: 57\r\nContent-Length: 58\r\n\r\n" + chat, 400},
		{"a chunk of 2^64", head + "Transfer-Encoding: chunked\r\n\r\n10000000000000000\r\n" + chat, 400},
		{"a chunk without an end", head + "Transfer-Encoding: chunked\r\n\r\n1\r\nxyz", 400},
		{"an unknown coding", head + "Transfer-Encoding: gzip\r\n\r\n" + chat, 501},
		{"no body", head + "Content-Length: 0\r\n\r\n", 400},
		{"a bad escape", "POST /v1/%zz HTTP/1.1\r\nHost: epp\r\n" + good, 400},
		{"no HTTP", "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\x00\x00\r\n\r\n", 400},
	} {
		conn, r := h.raw(c.text)
		res, err := http.ReadResponse(r, nil)
		if err != nil || res.StatusCode != c.status {
			t.Errorf("%s: got %v, %v, want %d", c.name, res, err, c.status)
			continue
		}
		if c.status == 200 {
			<-heads
			h.ended(picker.Served)
			continue
		}
		conn.(*net.TCPConn).CloseWrite()
		body, _ := io.ReadAll(res.Body)
		wantSilence(t, c.name, string(body), a)
	}
	if len(heads) > 0 {
		t.Error("an endpoint got a request that was refused")
	}

	// The picker's errors, and those of endpoints, in the client's words.
	secret := "dial tcp 10.1.2.3:8000: /etc/epp/key"
	for _, c := range []struct {
		err    error
		status int
		code   string
	}{
		{epp.Errorf(epp.NotFound, "model_unknown", "model %q does not exist", "x"), 404, "model_unknown"},
		{&epp.Error{Kind: epp.Unavailable, Reason: "no_endpoint", Message: "no endpoint is there", Err: fmt.Errorf("%s", secret)}, 503, "no_endpoint"},
		{epp.Errorf(epp.UnsupportedEncoding, "encoding_unknown", "encoding %q is not read", "br"), 415, "encoding_unknown"},
		{fmt.Errorf("a fault of ours: %s", secret), 500, "internal"},
	} {
		failing := newHouse(t, Options{Pick: func(context.Context, picker.Incoming) (Carried, error) { return nil, c.err }})
		res, body := failing.post("/v1/chat/completions", chat)
		wantError(t, res, body, c.status, c.code)
		wantSilence(t, c.code, body, secret)
	}
	for _, c := range []struct {
		address string
		status  int
		code    string
	}{
		{nobody, 503, "endpoint_refused"},
		{"not an address", 503, "endpoint_refused"},
		{rawPod(t, func(c net.Conn, _, _ string) { reset(c) }), 502, "endpoint_reset"},
		{rawPod(t, func(c net.Conn, _, _ string) { io.WriteString(c, "SSH-2.0-OpenSSH\r\n\r\n") }), 502, "endpoint_reset"},
		{rawPod(t, func(c net.Conn, _, _ string) { io.WriteString(c, "HTTP/1.1 012 Odd\r\n\r\n") }), 502, "endpoint_reset"},
		{rawPod(t, func(c net.Conn, _, _ string) {
			io.WriteString(c, "HTTP/1.1 101 Switching\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n")
		}), 502, "endpoint_reset"},
		{rawPod(t, func(c net.Conn, _, _ string) {
			io.WriteString(c, "HTTP/1.1 200 OK\r\nX-Half: ")
			c.Close()
		}), 502, "endpoint_reset"},
		{rawPod(t, func(c net.Conn, _, _ string) {
			io.WriteString(c, "HTTP/1.1 200 OK\r\nX-Long: "+strings.Repeat("x", 1<<20)+"\r\n\r\n")
		}), 502, "endpoint_reset"},
	} {
		odd := newHouse(t, Options{}, c.address)
		res, body := odd.post("/v1/chat/completions", chat)
		wantError(t, res, body, c.status, c.code)
		wantSilence(t, c.address, body, c.address)
	}
	if res, _ := h.post("/v1/chat/completions", chat); res.StatusCode != 200 {
		t.Error("the proxy does not serve any more")
	}
}

// wantSilence checks that an error for a client tells nothing of the house.
func wantSilence(t testing.TB, name, body string, secrets ...string) {
	t.Helper()
	for _, s := range append(secrets, "127.0.0.1", "goroutine", ".go:", "dial", "tcp", "uvicorn", "net/http") {
		if strings.Contains(body, s) {
			t.Errorf("%s: the client was told of %q: %s", name, s, body)
		}
	}
}

// unpacked is the pick of a body that came compressed and is sent plain.
type unpacked struct{ nullCarried }

// TestCaseG3Header: the endpoint gets the Content-Encoding of the body that it
// gets, whatever the client's was.
func TestCaseG3Header(t *testing.T) {
	seen := make(chan string, 1)
	engine := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		seen <- fmt.Sprintf("%q %s", r.Header["Content-Encoding"], body)
	}))
	defer engine.Close()
	at := epp.Endpoint{Address: engine.Listener.Addr().String()}
	kept := newHouse(t, Options{}, at.Address)
	decoded := newHouse(t, Options{Pick: func(_ context.Context, in picker.Incoming) (Carried, error) {
		if in.ContentEncoding != "gzip" {
			t.Errorf("the pick was told %q", in.ContentEncoding)
		}
		return &unpacked{nullCarried{at, []byte("plain")}}, nil
	}})
	for _, c := range []struct {
		house *house
		want  string
	}{{kept, `["gzip"] packed`}, {decoded, `[] plain`}} {
		res, _ := c.house.do("POST", "/v1/completions", "packed", "Content-Encoding", "gzip")
		if got := <-seen; res.StatusCode != 200 || got != c.want {
			t.Errorf("status %d, the endpoint saw %s, want %s", res.StatusCode, got, c.want)
		}
	}
}
