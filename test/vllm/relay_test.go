//go:build vllm

package vllm

import (
	"context"
	"net"
	"sync"
	"testing"

	"github.com/go-zeromq/zmq4"
)

// relay stands between an engine's event socket and the picker, and can keep
// messages back.
type relay struct {
	address string
	gate    sync.Mutex // held while messages wait

	mu     sync.Mutex // guards the following fields
	drop   int        // so many of the next ones
	passed int
	next   chan struct{} // closed with the next message
}

// newRelay starts a relay of an engine's events.
func newRelay(t *testing.T, e *server) *relay {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	sub, pub := zmq4.NewSub(ctx), zmq4.NewPub(ctx)
	if err := sub.Dial("tcp://" + e.pub); err != nil {
		t.Fatal(err)
	}
	if err := sub.SetOption(zmq4.OptionSubscribe, ""); err != nil {
		t.Fatal(err)
	}
	if err := pub.Listen("tcp://127.0.0.1:0"); err != nil {
		t.Fatal(err)
	}
	r := &relay{address: pub.Addr().String(), next: make(chan struct{})}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			m, err := sub.Recv()
			if err != nil {
				return
			}
			if r.keeps() {
				continue
			}
			r.gate.Lock()
			r.gate.Unlock() //nolint:staticcheck // it is only passed through
			if err := pub.Send(m); err != nil && ctx.Err() == nil {
				t.Errorf("relay: %v", err)
			}
		}
	}()
	t.Cleanup(func() {
		cancel()
		_ = sub.Close()
		_ = pub.Close()
		<-done
	})
	return r
}

// hold lets messages wait until release is called, in their order.
func (r *relay) hold(t *testing.T) (release func()) {
	r.gate.Lock()
	release = sync.OnceFunc(r.gate.Unlock)
	t.Cleanup(release)
	return release
}

// keeps counts a message and reports whether it is kept back.
func (r *relay) keeps() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	close(r.next)
	r.next = make(chan struct{})
	if r.drop > 0 {
		r.drop--
		return true
	}
	r.passed++
	return false
}

// await waits until n messages have passed and none is left to drop.
func (r *relay) await(ctx context.Context, t *testing.T, n int) {
	t.Helper()
	for {
		r.mu.Lock()
		next, done := r.next, r.passed >= n && r.drop == 0
		r.mu.Unlock()
		if done {
			return
		}
		select {
		case <-next:
		case <-ctx.Done():
			t.Fatal("the relay waits for a message that does not come")
		}
	}
}

// keepBack has the next n messages kept back, and returns how many have passed.
func (r *relay) keepBack(n int) (passed int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.drop = n
	return r.passed
}

// mute is a socket that takes connections and says nothing.
func mute(t *testing.T) (address string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			defer c.Close()
		}
	}()
	t.Cleanup(func() {
		_ = l.Close()
		<-done
	})
	return l.Addr().String()
}
