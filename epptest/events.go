package epptest

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"net"
	"strings"
	"sync"
	"time"

	"epp.internal/epp"
	"github.com/go-zeromq/zmq4"
	"github.com/go-zeromq/zmq4/security/null"
)

// Bounds of a publisher.
const (
	maxQueuedMessages = 10_000 // for one subscriber; more are lost to it
	maxHeldBatches    = 10_000 // while events are held; more are lost
	maxSubscribers    = 1_000  // more connections are closed
)

// endMarker is the sequence number of the message that ends a replay.
var endMarker = bytes.Repeat([]byte{0xff}, 8)

// publisher is the ZMQ side of an engine: a PUB and a ROUTER socket. The wire is
// go-zeromq's, connection by connection; the sockets' queues are our own, so
// that a crash is abrupt, a slow subscriber holds up nobody, and a subscription
// can be waited for.
//
// A message has three frames: the topic, the sequence number in 8 bytes,
// big-endian, from 0, and a batch of events. Source: ZmqEventPublisher in
// vllm/distributed/kv_events.py.
type publisher struct {
	cfg         *EngineConfig
	pub, replay net.Listener
	running     sync.WaitGroup

	mu       sync.Mutex // guards the following fields
	seq      uint64
	buffer   []message // the last BufferSteps messages
	held     bool
	pending  [][]byte // payloads held back
	dropping int      // messages still to be dropped
	conns    map[*zmqConn]struct{}
	changed  chan struct{} // closed and replaced when a subscription changes
	closed   bool
}

type message struct {
	seq     uint64
	payload []byte
}

// zmqConn is a connection of one of the two sockets.
type zmqConn struct {
	net    net.Conn
	queue  chan zmq4.Msg // of a subscriber, else nil
	topics map[string]struct{}
}

func startPublisher(cfg *EngineConfig) (*publisher, error) {
	p := &publisher{cfg: cfg, conns: make(map[*zmqConn]struct{}), changed: make(chan struct{})}
	var err error
	if p.pub, err = listen(cfg.EventAddress); err != nil {
		return nil, err
	}
	if p.replay, err = listen(cfg.ReplayAddress); err != nil {
		p.pub.Close()
		return nil, err
	}
	p.running.Add(2)
	go p.accept(p.pub, zmq4.Pub, p.serveSubscriber)
	go p.accept(p.replay, zmq4.Router, p.serveReplay)
	return p, nil
}

// accept serves the connections of one socket until its listener is closed.
func (p *publisher) accept(l net.Listener, kind zmq4.SocketType, serve func(*zmqConn, *zmq4.Conn)) {
	defer p.running.Done()
	for {
		conn, err := l.Accept()
		if err != nil {
			return
		}
		c := &zmqConn{net: conn, topics: make(map[string]struct{})}
		if !p.add(c) {
			conn.Close()
			continue
		}
		p.running.Go(func() {
			defer p.remove(c)
			z, err := zmq4.Open(conn, null.Security(), kind, nil, true, nil)
			if err == nil {
				serve(c, z)
			}
		})
	}
}

func (p *publisher) add(c *zmqConn) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed || len(p.conns) == maxSubscribers {
		return false
	}
	p.conns[c] = struct{}{}
	return true
}

func (p *publisher) remove(c *zmqConn) {
	c.net.Close()
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.conns, c)
	if c.queue != nil {
		close(c.queue)
		c.queue = nil
	}
	p.noteChange()
}

// noteChange wakes those who wait for subscribers. p.mu is held.
func (p *publisher) noteChange() {
	close(p.changed)
	p.changed = make(chan struct{})
}

// serveSubscriber reads subscriptions until the connection ends. A subscription
// is a message of 1 and the topic's prefix, its end one of 0 and the prefix.
func (p *publisher) serveSubscriber(c *zmqConn, z *zmq4.Conn) {
	queue := make(chan zmq4.Msg, maxQueuedMessages)
	p.mu.Lock()
	c.queue = queue
	p.mu.Unlock()
	p.running.Go(func() {
		for m := range queue {
			if z.SendMsg(m) != nil {
				c.net.Close()
			}
		}
	})
	for {
		m, err := z.RecvMsg()
		if err != nil {
			return
		}
		if len(m.Frames) == 1 && len(m.Frames[0]) > 0 {
			p.subscribe(c, m.Frames[0][0], string(m.Frames[0][1:]))
		}
	}
}

func (p *publisher) subscribe(c *zmqConn, on byte, topic string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch on {
	case 1:
		c.topics[topic] = struct{}{}
	case 0:
		delete(c.topics, topic)
	}
	p.noteChange()
}

// serveReplay answers requests for past messages until the connection ends.
func (p *publisher) serveReplay(_ *zmqConn, z *zmq4.Conn) {
	for {
		m, err := z.RecvMsg()
		if err != nil {
			return
		}
		if len(m.Frames) != 2 || len(m.Frames[0]) != 0 || len(m.Frames[1]) != 8 {
			continue
		}
		for _, past := range p.since(binary.BigEndian.Uint64(m.Frames[1])) {
			if z.SendMsg(p.replayMessage(past)) != nil {
				return
			}
		}
		if z.SendMsg(p.replayEnd()) != nil {
			return
		}
	}
}

// replayMessage is ["", topic, seq, payload]; engines of the array forms leave
// the topic out.
func (p *publisher) replayMessage(m message) zmq4.Msg {
	seq := binary.BigEndian.AppendUint64(nil, m.seq)
	if p.cfg.EventForm == MapEvents {
		return zmq4.NewMsgFrom(nil, []byte(p.cfg.EventTopic), seq, m.payload)
	}
	return zmq4.NewMsgFrom(nil, seq, m.payload)
}

func (p *publisher) replayEnd() zmq4.Msg {
	if p.cfg.EventForm == MapEvents {
		return zmq4.NewMsgFrom(nil, nil, endMarker, nil)
	}
	return zmq4.NewMsgFrom(nil, endMarker, nil)
}

// since returns the buffered messages from seq on.
func (p *publisher) since(seq uint64) []message {
	p.mu.Lock()
	defer p.mu.Unlock()
	var out []message
	for _, m := range p.buffer {
		if m.seq >= seq {
			out = append(out, m)
		}
	}
	return out
}

// publish sends a batch of events, or keeps it back. It does not block.
func (p *publisher) publish(at time.Time, events []epp.BlockEvent, adapterID func(string) int) {
	payload := encodeEvents(p.cfg.EventForm, at, events, adapterID)
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case !p.held:
		p.send(payload)
	case len(p.pending) < maxHeldBatches:
		p.pending = append(p.pending, payload)
	}
}

// send numbers a payload, buffers it and queues it for every subscriber. p.mu is
// held.
func (p *publisher) send(payload []byte) {
	m := message{seq: p.seq, payload: payload}
	p.seq++
	if len(p.buffer) == p.cfg.BufferSteps {
		p.buffer = p.buffer[min(1, len(p.buffer)):]
	}
	if p.cfg.BufferSteps > 0 {
		p.buffer = append(p.buffer, m)
	}
	if p.dropping > 0 {
		p.dropping--
		return
	}
	msg := zmq4.NewMsgFrom([]byte(p.cfg.EventTopic), binary.BigEndian.AppendUint64(nil, m.seq), payload)
	for c := range p.conns {
		if !c.wants(p.cfg.EventTopic) {
			continue
		}
		select {
		case c.queue <- msg:
		default: // full: lost to this subscriber, as with ZMQ's high-water mark
		}
	}
}

// wants reports whether a connection has subscribed to the topic.
func (c *zmqConn) wants(topic string) bool {
	if c.queue == nil {
		return false
	}
	for prefix := range c.topics {
		if strings.HasPrefix(topic, prefix) {
			return true
		}
	}
	return false
}

func (p *publisher) hold(on bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.held = on
	if on {
		return
	}
	for _, payload := range p.pending {
		p.send(payload)
	}
	p.pending = nil
}

func (p *publisher) drop(n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.dropping = n
}

func (p *publisher) awaitSubscribers(ctx context.Context, n int) error {
	for {
		p.mu.Lock()
		have, changed := 0, p.changed
		for c := range p.conns {
			if c.wants(p.cfg.EventTopic) {
				have++
			}
		}
		closed := p.closed
		p.mu.Unlock()
		switch {
		case have >= n:
			return nil
		case closed:
			return fmt.Errorf("engine %s: ended with %d of %d subscribers", p.cfg.Name, have, n)
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return fmt.Errorf("engine %s: %d of %d subscribers: %w", p.cfg.Name, have, n, ctx.Err())
		}
	}
}

// close ends both sockets at once, resets their connections and waits for their
// goroutines.
func (p *publisher) close() {
	p.pub.Close()
	p.replay.Close()
	p.mu.Lock()
	p.closed = true
	for c := range p.conns {
		reset(c.net)
	}
	p.noteChange()
	p.mu.Unlock()
	p.running.Wait()
}
