package proxy

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"epp.internal/epp/picker"
)

// Whatever a client's or an endpoint's header block holds, nothing that
// concerns a connection or steers a picker passes, and the requestID is ours.
func FuzzHeader(f *testing.F) {
	for _, s := range []string{
		"A: b\r\n", "Connection: x-a, close\r\nX-A: 1\r\n", "connection: ,, ,x-epp-request-id\r\nX-Epp-Request-Id: mine\r\n", "Te: trailers\r\nTrailer: X\r\n",
		"X-Gateway-Destination-Endpoint-Subset: a\r\nX-Llm-D-Anything: b\r\n", "Connection: X-Forwarded-For\r\nX-Forwarded-For: 192.0.2.1\r\nX-Forwarded-For: 192.0.2.2\r\n",
		"Location: http://10.0.0.1:8000/x?y#z\r\n", "Location: //10.0.0.1:8000\r\n", "Location: http://u:p@10.0.0.1:8000/\r\n", "Location: /x\r\n", "Connection: connection\r\n", "\xff: \xff\r\n",
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, block string) {
		req, err := http.ReadRequest(bufio.NewReader(strings.NewReader("POST / HTTP/1.1\r\nHost: a\r\n" + block + "\r\n")))
		if err != nil {
			return
		}
		const address = "10.0.0.1:8000"
		toEndpoint := requestHeader(req.Header, "192.0.2.9:1234", "ours")
		toClient := http.Header{idHeader: {"ours"}, "Connection": {"close"}}
		copyHeader(toClient, req.Header, address)
		for _, h := range []http.Header{toEndpoint, toClient} {
			if id := h[idHeader]; len(id) != 1 || id[0] != "ours" {
				t.Errorf("requestID is %q", id)
			}
			for name := range h {
				if hopHeaders[name] && name != "Connection" {
					t.Errorf("%s passed", name)
				}
			}
			for _, list := range req.Header["Connection"] {
				for name := range strings.SplitSeq(list, ",") {
					name = http.CanonicalHeaderKey(strings.Trim(name, " \t"))
					if _, ok := h[name]; ok && name != "X-Forwarded-For" && name != "User-Agent" && name != idHeader && name != "Connection" && name != "Location" {
						t.Errorf("%s passed, which Connection lists", name)
					}
				}
			}
		}
		if c := toClient["Connection"]; len(c) != 1 || c[0] != "close" {
			t.Errorf("our own Connection header is %q", c)
		}
		for name := range toEndpoint {
			if picker.IsControl(name) || name == "Connection" {
				t.Errorf("%s reached the endpoint", name)
			}
		}
		if f := toEndpoint["X-Forwarded-For"]; len(f) != 1 || !strings.HasSuffix(f[0], "192.0.2.9") {
			t.Errorf("X-Forwarded-For is %q", f)
		}
		if u, err := url.Parse(toClient.Get("Location")); err == nil && u.Host == address {
			t.Errorf("Location names the endpoint: %q", toClient.Get("Location"))
		}
	})
}

// Whatever bytes an endpoint answers with, the client gets an answer or an
// error, the pick is ended, and nothing panics.
func FuzzAnswer(f *testing.F) {
	for _, s := range []string{
		"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}", "HTTP/1.0 200 OK\r\n\r\n{}", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTrailer: A\r\n\r\n1\r\na\r\n0\r\nA: b\r\nC: d\r\n\r\n",
		"HTTP/1.1 012 Odd\r\n\r\n", "HTTP/1.1 999 Odd\r\nContent-Length: 0\r\n\r\n", "HTTP/1.1 103 Hints\r\nLink: a\r\n\r\nHTTP/1.1 204 None\r\n\r\n", "HTTP/1.1 101 Switching\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n",
		"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nabc", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffffffff\r\n", "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 304 Not Modified\r\nContent-Length: 5\r\n\r\n",
		"HTTP/1.1 200 OK\r\nTrailer: Content-Length\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nContent-Length: 7\r\n\r\n", "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nX-A: \x00\x7f\xff\r\n\r\n{}", "HTTP/2.0 200 OK\r\n\r\n", "", "\r\n",
		"HTTP/1.1 200 OK\r\nDate: never\r\nContent-Type:\r\nConnection: close, x\r\n\r\nx",
	} {
		f.Add(s)
	}
	answer := ""
	a := rawPod(f, func(c net.Conn, _, _ string) {
		io.WriteString(c, answer)
		c.Close()
	})
	h := newHouse(f, Options{}, a)
	f.Fuzz(func(t *testing.T, s string) {
		answer = s
		res, err := h.client.Post("http://"+h.address+"/v1/completions", "application/json", strings.NewReader(chat))
		if err == nil {
			body, _ := io.ReadAll(res.Body)
			res.Body.Close()
			wantID(t, res)
			if strings.Contains(string(body), a) && !strings.Contains(s, a) {
				t.Errorf("the client was told the endpoint's address: %s", body)
			}
		}
		r := <-h.rides
		switch o := <-r.outcome; o {
		case picker.Served:
			if err != nil {
				t.Errorf("pick ended as served, the client got %v", err)
			}
		case picker.Reset:
		default:
			t.Errorf("pick ended as %v", o)
		}
		if log := h.log.take(); strings.Contains(log, "panic") {
			t.Fatalf("panic:\n%s", log)
		}
	})
}
