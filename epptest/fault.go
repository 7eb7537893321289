package epptest

import (
	"net"
	"net/http"
	"time"
)

// Fault is what an engine does wrong. The fields can be combined; the zero value
// is a sound engine. Those without "Metrics" in their name concern the inference
// paths alone, and each request takes the fault that is set when it arrives.
type Fault struct {
	// Slow delays each answer by so much (real time, not the model's).
	Slow time.Duration
	// Status, if not 0, is answered at once, in the form of vLLM's errors.
	Status int
	// Hang accepts requests, for tokens too, and never answers.
	Hang bool
	// ResetBeforeHeaders resets the connection when the request was read.
	ResetBeforeHeaders bool
	// ResetAfterChunks, if > 0, resets the connection after so many events of a
	// stream.
	ResetAfterChunks int

	// MetricsStatus, if not 0, is answered for /metrics; MetricsDelay delays its
	// answer.
	MetricsStatus int
	MetricsDelay  time.Duration
}

// SetFault sets what the engine does wrong from now on.
func (e *Engine) SetFault(f Fault) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.fault = f
}

func (e *Engine) currentFault() Fault {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.fault
}

// HoldAnswers stops every answer while on is true: requests are accepted, run or
// wait, and nothing is produced. Streams have sent their headers.
func (e *Engine) HoldAnswers(on bool) {
	if p := e.process(); p != nil {
		p.change(func(now time.Time) { p.model.Hold(now, on) })
	}
}

// HoldEvents keeps KV events back while on is true. Those that come up meanwhile
// are published in their order with HoldEvents(false), at most maxHeldBatches of
// them.
func (e *Engine) HoldEvents(on bool) {
	if p := e.process(); p != nil && p.events != nil {
		p.events.hold(on)
	}
}

// DropEvents sends the next n event messages to no subscriber: they have their
// numbers and can be replayed, so subscribers see a gap.
func (e *Engine) DropEvents(n int) {
	if p := e.process(); p != nil && p.events != nil {
		p.events.drop(n)
	}
}

// RefuseConnections closes the HTTP port and idle connections while on is true;
// what is under way goes on. It returns an error if the port cannot be opened
// again.
func (e *Engine) RefuseConnections(on bool) error {
	e.life.Lock()
	defer e.life.Unlock()
	if p := e.process(); p != nil {
		return p.refuse(on)
	}
	return nil
}

// Sleep puts the engine to sleep, as POST /sleep does; Wake ends it.
func (e *Engine) Sleep() {
	if p := e.process(); p != nil {
		p.sleep(1)
	}
}

// Wake wakes the engine.
func (e *Engine) Wake() {
	if p := e.process(); p != nil {
		p.change(p.model.Wake)
	}
}

// ResetPrefixCache empties the cache, as POST /reset_prefix_cache does. It
// returns false if a request runs. Subscribers hear of it with the next step.
func (e *Engine) ResetPrefixCache() bool {
	p := e.process()
	if p == nil {
		return false
	}
	var done bool
	p.change(func(time.Time) { done = p.model.ResetPrefixCache() })
	return done
}

// resetConnection ends the connection of a request with a TCP reset.
func resetConnection(w http.ResponseWriter) {
	conn, _, err := http.NewResponseController(w).Hijack()
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	reset(conn)
}

// reset closes a connection with a TCP reset.
func reset(conn net.Conn) {
	if tcp, ok := conn.(*net.TCPConn); ok {
		tcp.SetLinger(0)
	}
	conn.Close()
}
