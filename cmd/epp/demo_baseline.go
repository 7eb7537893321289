package main

import (
	"context"
	"math/rand/v2"
	"net"
	"sync"

	"epp.internal/epp"
	"epp.internal/epp/picker"
	"epp.internal/epp/proxy"
)

// baseline is a way of routing that knows nothing of caches: what the demo
// compares with. It counts its own requests in flight.
type baseline struct {
	endpoints []epp.Endpoint
	choose    func(*baseline) int

	mu       sync.Mutex // guards the following fields
	rng      *rand.Rand
	inFlight []int
}

// random takes any endpoint.
func (b *baseline) random() int { return b.rng.IntN(len(b.endpoints)) }

// leastConnections takes the endpoint with the fewest requests in flight, any of
// several.
func (b *baseline) leastConnections() int {
	best, ties := 0, 0
	for i, n := range b.inFlight {
		switch {
		case n < b.inFlight[best]:
			best, ties = i, 1
		case n == b.inFlight[best]:
			if ties++; b.rng.IntN(ties) == 0 {
				best = i
			}
		}
	}
	return best
}

// pick is what the proxy asks.
func (b *baseline) pick(_ context.Context, in picker.Incoming) (proxy.Carried, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	i := b.choose(b)
	b.inFlight[i]++
	return &sent{b: b, i: i, in: in}, nil
}

// sent is a request that a baseline has sent.
type sent struct {
	b    *baseline
	i    int
	in   picker.Incoming
	once sync.Once
}

// Target is the endpoint that was chosen.
func (s *sent) Target() (epp.Endpoint, []byte) { return s.b.endpoints[s.i], s.in.Body }

// Encoding is what the body came in.
func (s *sent) Encoding() string { return s.in.ContentEncoding }

// Next gives up: these do not try again.
func (s *sent) Next(picker.Outcome) bool { return false }

// ResponseHeader is not looked at.
func (s *sent) ResponseHeader(int, string, string) {}

// ResponseBody is not looked at.
func (s *sent) ResponseBody([]byte) {}

// End takes the request off the count.
func (s *sent) End(picker.Outcome) {
	s.once.Do(func() {
		s.b.mu.Lock()
		defer s.b.mu.Unlock()
		s.b.inFlight[s.i]--
	})
}

// runBaseline runs the plan through a baseline on fresh engines.
func (d *demo) runBaseline(ctx context.Context, p *plan, choose func(*baseline) int) (*outcome, error) {
	engines, err := d.startEngines()
	defer closeEngines(engines)
	if err != nil {
		return nil, err
	}
	b := &baseline{choose: choose, rng: rand.New(rand.NewPCG(d.seed, 1)), inFlight: make([]int, len(engines))}
	for _, e := range engines {
		b.endpoints = append(b.endpoints, epp.Endpoint{Name: e.Name(), Address: e.Address()})
	}
	front := proxy.New(proxy.Options{Pick: b.pick})
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	served := make(chan error, 1)
	go func() { served <- front.Serve(l) }()
	out := p.run(ctx, "http://"+l.Addr().String(), nil)
	stop, cancel := context.WithCancel(context.Background())
	cancel() // nothing is left to wait for
	_ = front.Shutdown(stop)
	return out, <-served
}
