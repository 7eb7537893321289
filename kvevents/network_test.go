package kvevents

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"epp.internal/epp"
)

// zmq4's publisher, which TestZMQSockets uses, can miss its own Close and then
// leaves this goroutine.
func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction("github.com/go-zeromq/zmq4.(*pubMWriter).run"))
}

// fakeEngine is an engine's two sockets in memory: what is sent to it over
// net.Pipe is ZMTP, byte for byte, so tests of timing run in a synctest bubble.
type fakeEngine struct {
	// oldAnswers makes the replay answer as vLLM before #45177.
	oldAnswers bool

	mu      sync.Mutex // guards the following fields
	down    bool
	silent  bool // the replay socket takes questions and answers none
	topic   string
	history [][3][]byte
	asked   []uint64
	conns   []net.Conn
	subs    []*conn
	ready   chan struct{} // closed when a subscription stands
}

func newEngine() *fakeEngine {
	return &fakeEngine{topic: "kv@10.0.0.7@m", ready: make(chan struct{})}
}

// dial makes a connection to the socket that address names: "pub" or "replay".
func (e *fakeEngine) dial(ctx context.Context, address string) (net.Conn, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.down {
		return nil, errors.New("refused")
	}
	here, there := net.Pipe()
	e.conns = append(e.conns, there)
	switch address {
	case "pub":
		go e.publisher(there)
	case "replay":
		go e.router(there)
	}
	return here, nil
}

// accept is the other side of open.
func accept(c net.Conn, typ string) (*conn, error) {
	z := newConn(c)
	go c.Write(greeting())
	if err := z.readGreeting(); err != nil {
		return nil, err
	}
	_, size, err := z.header()
	if err != nil {
		return nil, err
	}
	if _, err := io.CopyN(io.Discard, z.r, int64(size)); err != nil {
		return nil, err
	}
	return z, z.write(flagCommand, appendProperty([]byte("\x05READY"), "Socket-Type", typ))
}

func (e *fakeEngine) publisher(c net.Conn) {
	defer c.Close()
	z, err := accept(c, "PUB")
	if err != nil {
		return
	}
	var m message
	if z.read(&m) != nil || len(m.frames) != 1 || m.frames[0][0] != 1 {
		return
	}
	e.mu.Lock()
	e.subs = append(e.subs, z)
	close(e.ready)
	e.ready = make(chan struct{})
	e.mu.Unlock()
	io.Copy(io.Discard, z.r)
}

func (e *fakeEngine) router(c net.Conn) {
	defer c.Close()
	z, err := accept(c, "ROUTER")
	if err != nil {
		return
	}
	var m message
	if z.read(&m) != nil || len(m.frames) != 2 || len(m.frames[0]) != 0 || len(m.frames[1]) != 8 {
		return
	}
	from := binary.BigEndian.Uint64(m.frames[1])
	e.mu.Lock()
	e.asked = append(e.asked, from)
	silent, history := e.silent, slices.Clone(e.history)
	e.mu.Unlock()
	if silent {
		io.Copy(io.Discard, z.r)
		return
	}
	for _, b := range history {
		if binary.BigEndian.Uint64(b[1]) < from {
			continue
		}
		if e.oldAnswers {
			sendFrames(z, nil, b[1], b[2])
		} else {
			sendFrames(z, nil, b[0], b[1], b[2])
		}
	}
	end := []byte("\xff\xff\xff\xff\xff\xff\xff\xff")
	if e.oldAnswers {
		sendFrames(z, nil, end, nil)
	} else {
		sendFrames(z, nil, nil, end, nil)
	}
	io.Copy(io.Discard, z.r)
}

// sendFrames sends one message.
func sendFrames(z *conn, frames ...[]byte) error {
	var b []byte
	for i, f := range frames {
		flags := byte(flagMore)
		if i == len(frames)-1 {
			flags = 0
		}
		b = appendFrame(b, flags, f)
	}
	_, err := z.net.Write(b)
	return err
}

// send sends raw frames to all subscribers.
func (e *fakeEngine) send(frames ...[]byte) {
	e.mu.Lock()
	subs := slices.Clone(e.subs)
	e.mu.Unlock()
	for _, z := range subs {
		sendFrames(z, frames...)
	}
}

// publish sends the next batch; where lost is true it is only kept for replays.
func (e *fakeEngine) publish(lost bool, payload []byte) {
	e.mu.Lock()
	b := [3][]byte{[]byte(e.topic), binary.BigEndian.AppendUint64(nil, uint64(len(e.history))), payload}
	e.history = append(e.history, b)
	e.mu.Unlock()
	if !lost {
		e.send(b[0], b[1], b[2])
	}
}

// restart closes all connections and forgets the history.
func (e *fakeEngine) restart() {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, c := range e.conns {
		c.Close()
	}
	e.conns, e.subs, e.history = nil, nil, nil
}

// stop closes all connections for good.
func (e *fakeEngine) stop() {
	e.mu.Lock()
	e.down = true
	e.mu.Unlock()
	e.restart()
}

// subscribed is closed when the next subscription stands.
func (e *fakeEngine) subscribed() <-chan struct{} {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.ready
}

// stored is a batch that stores blocks of one token each, named by their hashes.
func stored(t testing.TB, at float64, hashes ...uint64) []byte {
	tokens := make([]uint32, len(hashes))
	return encode(t, []any{at, []any{map[string]any{"type": "BlockStored", "block_hashes": hashes, "token_ids": tokens, "block_size": 1, "medium": "GPU"}}})
}

// sink is a naive index of one endpoint, and a log of what it was told.
type sink struct {
	mu         sync.Mutex
	blocks     map[uint64]bool
	log        []string
	incomplete bool
	told       chan struct{} // gets a value with each call
}

func newSink() *sink { return &sink{blocks: map[uint64]bool{}, told: make(chan struct{}, 1<<16)} }

func (s *sink) note(format string, args ...any) {
	s.log = append(s.log, fmt.Sprintf(format, args...))
	select {
	case s.told <- struct{}{}:
	default:
	}
}

func (s *sink) Apply(now time.Time, events []epp.BlockEvent) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, e := range events {
		switch e.Kind {
		case epp.BlockStored:
			for _, h := range e.Hashes {
				s.blocks[h] = true
			}
			s.note("stored %v", e.Hashes)
		case epp.BlockRemoved:
			for _, h := range e.Hashes {
				delete(s.blocks, h)
			}
			s.note("removed %v", e.Hashes)
		case epp.AllBlocksCleared:
			clear(s.blocks)
			s.note("cleared")
		}
	}
}

func (s *sink) Reset(now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	clear(s.blocks)
	s.note("reset")
}

func (s *sink) Incomplete(now time.Time, incomplete bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.incomplete = incomplete
	s.note("incomplete=%v", incomplete)
}

// story returns what the sink was told since the last call.
func (s *sink) story() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := strings.Join(s.log, ", ")
	s.log = nil
	return out
}

func (s *sink) holds() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var hs []uint64
	for h := range s.blocks {
		hs = append(hs, h)
	}
	slices.Sort(hs)
	return fmt.Sprint(hs)
}

// counts are what the hooks were told.
type counts struct {
	mu       sync.Mutex
	messages int
	events   map[epp.BlockEventKind]int
	bad      map[Reason]int
	gaps     int
	restarts int
	replays  map[bool]int
}

func (c *counts) hooks() Hooks {
	c.events, c.bad, c.replays = map[epp.BlockEventKind]int{}, map[Reason]int{}, map[bool]int{}
	count := func(f func()) {
		c.mu.Lock()
		defer c.mu.Unlock()
		f()
	}
	return Hooks{
		Message: func() { count(func() { c.messages++ }) },
		Event:   func(k epp.BlockEventKind, n int) { count(func() { c.events[k] += n }) },
		Bad:     func(r Reason) { count(func() { c.bad[r]++ }) },
		Gap:     func(uint64) { count(func() { c.gaps++ }) },
		Restart: func() { count(func() { c.restarts++ }) },
		Replay:  func(done bool) { count(func() { c.replays[done]++ }) },
	}
}

// follow runs a subscriber of e until the test ends, and returns its sink and
// what it counted. Call the returned function before the test's bubble ends.
func follow(t *testing.T, e *fakeEngine, replay bool) (*sink, *counts, func()) {
	t.Helper()
	in, c := newSink(), new(counts)
	s := &Subscriber{Address: "pub", Sink: in, Hooks: c.hooks(), Dial: e.dial}
	if replay {
		s.Replay = "replay"
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx) }()
	return in, c, func() {
		cancel()
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Errorf("Run = %v, want %v", err, context.Canceled)
		}
		e.stop()
	}
}

// discard is a sink that does nothing.
type discard struct{}

func (discard) Apply(time.Time, []epp.BlockEvent) {}
func (discard) Reset(time.Time)                   {}
func (discard) Incomplete(time.Time, bool)        {}
