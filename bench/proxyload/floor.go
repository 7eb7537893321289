package main

import (
	"bytes"
	"io"
	"net/http"
	"net/http/httputil"
	"net/url"
	"sync/atomic"
)

// serveFloor is the least that a proxy can be which looks at bodies: it reads each
// whole and passes it on to the next engine, all by the standard library.
func serveFloor(address string, engines []string) error {
	urls := make([]*url.URL, len(engines))
	for i, e := range engines {
		var err error
		if urls[i], err = url.Parse(e); err != nil {
			return err
		}
	}
	var next atomic.Uint64
	proxy := &httputil.ReverseProxy{
		Transport: &http.Transport{MaxIdleConnsPerHost: 1024, DisableCompression: true, WriteBufferSize: 32 << 10},
		Rewrite: func(r *httputil.ProxyRequest) {
			r.SetURL(urls[next.Add(1)%uint64(len(urls))])
		},
	}
	return http.ListenAndServe(address, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { //nolint:gosec // as the engine's
		body := bytes.NewBuffer(make([]byte, 0, max(r.ContentLength, 0)+bytes.MinRead))
		if _, err := body.ReadFrom(r.Body); err != nil {
			return
		}
		r.Body = io.NopCloser(body)
		proxy.ServeHTTP(w, r)
	}))
}
