package proxy

import (
	"bytes"
	"context"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"epp.internal/epp"
	"epp.internal/epp/picker"
)

// nullCarried is the pick of no picker: one endpoint, nothing kept.
type nullCarried struct {
	at   epp.Endpoint
	body []byte
}

func (n *nullCarried) Target() (epp.Endpoint, []byte)     { return n.at, n.body }
func (n *nullCarried) Encoding() string                   { return "" }
func (n *nullCarried) Next(picker.Outcome) bool           { return false }
func (n *nullCarried) ResponseHeader(int, string, string) {}
func (n *nullCarried) ResponseBody([]byte)                {}
func (n *nullCarried) End(picker.Outcome)                 {}

// BenchmarkChat sends 16 KB chats to an endpoint over 64 connections and over
// one, directly and through the proxy with a picker that costs nothing. The
// client, the proxy and the endpoint share the process, so the figure to read
// is the ratio of the two.
func BenchmarkChat(b *testing.B) {
	chat := []byte(`{"model":"m","messages":[{"role":"user","content":"` + strings.Repeat("word ", 16<<10/5) + `"}]}`)
	answer := []byte(`{"id":"x","object":"chat.completion","choices":[{"index":0,"message":{"role":"assistant","content":"` + strings.Repeat("word ", 100) + `"}}]}`)
	endpoint := listen(b)
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body)
		w.Header().Set("Content-Type", "application/json")
		w.Write(answer)
	})}
	go server.Serve(endpoint)
	defer server.Close()
	at := epp.Endpoint{Name: "a", Address: endpoint.Addr().String()}
	front := listen(b)
	p := New(Options{
		Pick: func(_ context.Context, in picker.Incoming) (Carried, error) {
			return &nullCarried{at, in.Body}, nil
		},
		DrainTime: time.Nanosecond,
	})
	go p.Serve(front)
	defer p.Shutdown(context.Background())

	for _, connections := range []int{64, 1} {
		for _, to := range []struct{ name, address string }{{"direct", at.Address}, {"proxy", front.Addr().String()}} {
			b.Run(to.name+"/connections="+map[int]string{64: "64", 1: "1"}[connections], func(b *testing.B) {
				benchmarkChat(b, to.address, chat, connections)
			})
		}
	}
}

func benchmarkChat(b *testing.B, address string, chat []byte, connections int) {
	b.ReportAllocs()
	transport := &http.Transport{MaxIdleConnsPerHost: connections}
	defer transport.CloseIdleConnections()
	var left atomic.Int64
	left.Store(int64(b.N))
	var wg sync.WaitGroup
	for range connections {
		wg.Go(func() {
			for left.Add(-1) >= 0 {
				r, _ := http.NewRequest("POST", "http://"+address+"/v1/chat/completions", bytes.NewReader(chat))
				res, err := transport.RoundTrip(r)
				if err != nil {
					b.Error(err)
					return
				}
				io.Copy(io.Discard, res.Body)
				res.Body.Close()
				if res.StatusCode != 200 {
					b.Errorf("status %d", res.StatusCode)
					return
				}
			}
		})
	}
	wg.Wait()
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "requests/s")
}

// listen returns a listener on a free port of the loopback.
func listen(t testing.TB) net.Listener {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return l
}
