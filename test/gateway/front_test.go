//go:build gateway

package gateway

import (
	"context"
	"errors"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"strconv"
	"sync"
	"time"
)

// fronts are the servers in front of engines, by address.
var fronts sync.Map

// frontServer stands in front of an engine. It speaks HTTP/2 without TLS beside
// HTTP/1.1, which vLLM does not, and says which of them a request came by; and a
// test can have it answer in the engine's place.
type frontServer struct {
	engine *enginePod
	server *http.Server
	served chan error

	mu      sync.Mutex // guards the following fields
	instead http.HandlerFunc
}

// startFront is the image of an engine behind such a server, at the engine's
// address; the engine itself is at the port behind it.
func startFront(p *pod, ip string) (running, error) {
	port := p.Spec.Containers[0].Ports[0].ContainerPort
	e := &enginePod{set: &world.engines, name: p.Metadata.Namespace + "/" + p.Metadata.Name}
	address := net.JoinHostPort(ip, strconv.Itoa(port))
	if err := e.add(address, ip, net.JoinHostPort(ip, strconv.Itoa(port+1))); err != nil {
		return nil, err
	}
	l, err := net.Listen("tcp", address)
	if err != nil {
		e.stop(0)
		return nil, err
	}
	f := &frontServer{engine: e, served: make(chan error, 1)}
	through := httputil.NewSingleHostReverseProxy(&url.URL{Scheme: "http", Host: world.engines.at(address).Address()})
	through.Transport = plain.Transport
	through.FlushInterval = -1
	f.server = &http.Server{Protocols: new(http.Protocols), ReadHeaderTimeout: patience, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("x-came-by", r.Proto)
		f.mu.Lock()
		instead := f.instead
		f.mu.Unlock()
		if r.Method == http.MethodPost && instead != nil {
			instead(w, r)
			return
		}
		through.ServeHTTP(w, r)
	})}
	f.server.Protocols.SetHTTP1(true)
	f.server.Protocols.SetUnencryptedHTTP2(true)
	go func() { f.served <- f.server.Serve(l) }()
	fronts.Store(address, f)
	return f, nil
}

// frontAt returns the server at an address.
func frontAt(address string) *frontServer {
	f, _ := fronts.Load(address)
	return f.(*frontServer)
}

// answerBy has a handler answer in the engine's place.
func (f *frontServer) answerBy(h http.HandlerFunc) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.instead = h
}

func (f *frontServer) ready(context.Context) (bool, error) { return true, nil }

func (f *frontServer) stop(time.Duration) {
	_ = f.server.Close()
	if err := <-f.served; !errors.Is(err, http.ErrServerClosed) {
		panic(err) // of a listener of ours, on an address of ours
	}
	f.engine.stop(0)
}

func (f *frontServer) log(int) string { return f.engine.log(0) }
