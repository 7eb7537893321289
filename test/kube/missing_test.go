//go:build kube

package kube

import (
	"crypto/tls"
	"errors"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"path/filepath"
	"sync/atomic"
	"testing"
)

// TestKindMissingForAMoment: an API server that says once that it has no InferencePools,
// as one may that starts, takes no endpoint away.
func TestKindMissingForAMoment(t *testing.T) {
	t.Parallel()
	p := newPool(t, "a", "b")
	var asked, missing atomic.Int32
	server, err := url.Parse("https://" + apiAddress)
	if err != nil {
		t.Fatal(err)
	}
	proxy := httputil.NewSingleHostReverseProxy(server)
	upstream := &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}
	proxy.Transport, proxy.FlushInterval, proxy.ErrorLog = upstream, -1, log.New(io.Discard, "", 0)
	dir := filepath.Dir(kubeconfig)
	pair, err := tls.LoadX509KeyPair(dir+"/apiserver.crt", dir+"/apiserver.key")
	if err != nil {
		t.Fatal(err)
	}
	front := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/apis/inference.networking.k8s.io/v1" && asked.Add(1) == 2 {
			missing.Add(1)
			http.NotFound(w, r)
			return
		}
		proxy.ServeHTTP(w, r)
	}))
	front.TLS = &tls.Config{Certificates: []tls.Certificate{pair}}
	front.StartTLS()
	t.Cleanup(func() {
		front.CloseClientConnections()
		front.Close()
		upstream.CloseIdleConnections()
	})

	k := p.serveBy(through(t, front.Listener.Addr().String()), "")
	k.ready()
	k.has(patience, "a", "b")
	l := traffic(t, "http://"+k.proxy)
	within(t, patience, "the API server has said that it has no pools", func() error {
		if missing.Load() == 0 {
			return errors.New("it has not")
		}
		return nil
	})
	p.start("c")
	k.has(second10, "a", "b", "c")
	if lines := k.said(`"msg":"pool changed"`); len(lines) != 2 {
		t.Errorf("the pool has changed: %v", lines)
	}
	l.more(t, 50)
	l.unharmed(t)
}
