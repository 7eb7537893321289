package kvevents

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net"
	"sync"
	"time"

	"epp.internal/epp"
)

const (
	// dialTimeout bounds the making of a connection, its handshake included.
	dialTimeout = 5 * time.Second
	// After a connection that failed the next one waits redialMin, and twice as
	// long after each further failure, up to redialMax: a restarted engine is
	// followed again within a second of its return.
	redialMin = 50 * time.Millisecond
	redialMax = time.Second
)

// keepAlive finds peers that vanished without a word: after 10 s of silence the
// kernel asks three times, 5 s apart.
var keepAlive = net.KeepAliveConfig{Enable: true, Idle: 10 * time.Second, Interval: 5 * time.Second, Count: 3}

// A Sink takes what one engine's events say. A [Subscriber] calls it from
// several goroutines, one call at a time.
type Sink interface {
	// Apply is called for each batch, once and in order. It must not keep events
	// or what their slices hold, and should not block: while it runs the engine's
	// messages pile up, first in our socket's buffers and then in the engine's,
	// which drops them when its own bound is reached. That drop is seen as a gap.
	Apply(now time.Time, events []epp.BlockEvent)
	// Reset is called when all that was applied is void: the endpoint holds
	// nothing but what is applied from now on.
	Reset(now time.Time)
	// Incomplete is called when it changes whether blocks may be missing, and
	// once, with true, before anything else.
	Incomplete(now time.Time, incomplete bool)
}

// Hooks are told of what happened, for metrics. A nil hook is not called; none
// may block.
type Hooks struct {
	// Message is called for each message that had the right frames, live or
	// replayed, duplicates included.
	Message func()
	// Event is called for each kind of event of a batch that was applied.
	Event func(kind epp.BlockEventKind, count int)
	// Bad is called for each message or event that was passed over.
	Bad func(reason Reason)
	// Gap is called for each gap, with the number of batches in it.
	Gap func(missed uint64)
	// Restart is called for each restart of the engine that was noticed.
	Restart func()
	// Lost is called each time the live connection ended, or could not be made.
	Lost func()
	// Replay is called for each end of a replay: done, or given up.
	Replay func(done bool)
	// Dropped is called for each live message that found no room to wait.
	Dropped func()
}

// Subscriber follows one engine. Set its fields, then call Run once.
type Subscriber struct {
	// Address is host:port of the engine's PUB socket.
	Address string
	// Replay is host:port of its replay ROUTER socket; empty where it has none.
	Replay string
	// Topic is the beginning of the topics that are wanted; empty for all, which
	// is right wherever the socket is the engine's own.
	Topic string

	Sink  Sink
	Hooks Hooks
	// Log gets a line for each change of state; nil discards.
	Log *slog.Logger
	// Now is the clock; nil is time.Now.
	Now func() time.Time
	// Dial makes a connection; nil is TCP with keep-alive probes.
	Dial func(ctx context.Context, address string) (net.Conn, error)

	mu sync.Mutex // guards the following fields

	seq   sequencer
	batch Batch
	clock clock
	// stop ends the replay that runs; nil where none does. replay is its number:
	// what comes of another is too late.
	stop   context.CancelFunc
	replay uint64
	timer  *time.Timer
	due    time.Time // what the timer is set to; zero: to nothing
	// running holds the goroutines of replays.
	running sync.WaitGroup
	ctx     context.Context
}

// Run follows the engine until ctx ends, and then returns its error. Nothing
// that the engine does ends it: lost connections are made anew for ever. All its
// goroutines have ended when it returns. Run is called once.
func (s *Subscriber) Run(ctx context.Context) error {
	s.begin(ctx)
	defer s.finish()
	wait := redialMin
	told := false
	for ctx.Err() == nil {
		began := s.Now()
		stood, err := s.follow(ctx)
		if ctx.Err() != nil {
			break
		}
		if s.Hooks.Lost != nil {
			s.Hooks.Lost()
		}
		if stood || !told {
			s.Log.Warn("kv events: no connection", "address", s.Address, "error", err)
			told = true
		}
		if stood && s.Now().Sub(began) >= redialMax {
			wait = redialMin
		}
		select {
		case <-ctx.Done():
		case <-time.After(wait):
		}
		wait = min(2*wait, redialMax)
	}
	return ctx.Err()
}

// begin sets up what Run needs.
func (s *Subscriber) begin(ctx context.Context) {
	if s.Log == nil {
		s.Log = slog.New(slog.DiscardHandler)
	}
	if s.Now == nil {
		s.Now = time.Now
	}
	if s.Dial == nil {
		dialer := net.Dialer{KeepAliveConfig: keepAlive}
		s.Dial = func(ctx context.Context, address string) (net.Conn, error) {
			return dialer.DialContext(ctx, "tcp", address)
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ctx = ctx
	s.seq = sequencer{replays: s.Replay != ""}
	s.timer = time.AfterFunc(time.Hour, s.tick)
	s.timer.Stop()
	s.perform(s.Now(), s.seq.start())
}

// finish ends the timer and the replay, and waits for the latter.
func (s *Subscriber) finish() {
	s.mu.Lock()
	s.timer.Stop()
	if s.stop != nil {
		s.stop()
	}
	s.mu.Unlock()
	s.running.Wait()
}

// follow makes the live connection and reads it to its end. stood is true where
// it came to stand.
func (s *Subscriber) follow(ctx context.Context) (stood bool, err error) {
	z, release, err := s.connect(ctx, s.Address, socketSub)
	if err != nil {
		return false, err
	}
	defer release()
	if err := z.subscribe(s.Topic); err != nil {
		return false, err
	}
	s.mu.Lock()
	now := s.Now()
	s.perform(now, s.seq.connected(now))
	s.mu.Unlock()
	s.Log.Info("kv events: connected", "address", s.Address, "replay", s.Replay)

	err = s.readLive(z)

	s.mu.Lock()
	s.perform(s.Now(), s.seq.disconnected())
	s.mu.Unlock()
	return true, err
}

// connect makes a connection and its handshake. The connection is closed when
// ctx ends or release is called.
func (s *Subscriber) connect(ctx context.Context, address, typ string) (z *conn, release func(), err error) {
	dialing, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	c, err := s.Dial(dialing, address)
	if err != nil {
		return nil, nil, err
	}
	unhook := context.AfterFunc(ctx, func() { c.Close() })
	release = func() {
		unhook()
		c.Close()
	}
	z, err = open(c, typ, identity(), time.Now().Add(dialTimeout))
	if err != nil {
		release()
		return nil, nil, fmt.Errorf("%s: %w", address, err)
	}
	return z, release, nil
}

// identity returns a name that no other connection has: a ROUTER that is asked
// twice under one name, by a connection that it believes alive and by a new one,
// may answer the dead one.
func identity() string {
	b := make([]byte, 8)
	rand.Read(b)
	return fmt.Sprintf("epp-%x", b)
}

// readLive reads live messages until the connection ends.
func (s *Subscriber) readLive(z *conn) error {
	var m message
	for {
		if err := z.read(&m); err != nil {
			return err
		}
		s.mu.Lock()
		if seq, payload, reason := liveFrames(&m); reason != "" {
			s.bad(reason)
		} else {
			s.message()
			now := s.Now()
			s.perform(now, s.seq.liveBatch(now, seq, payload))
		}
		s.mu.Unlock()
	}
}

// liveFrames reads a live message: topic, number, payload. The payload of a
// message that was too large is nil: its number counts all the same.
func liveFrames(m *message) (seq uint64, payload []byte, reason Reason) {
	switch {
	case m.count != 3:
		return 0, nil, BadFrames
	case len(m.frames[1]) != 8 && m.tooLarge:
		return 0, nil, TooLarge
	case len(m.frames[1]) != 8:
		return 0, nil, BadSeq
	}
	return binary.BigEndian.Uint64(m.frames[1]), m.frames[2], ""
}

// fetch runs one replay and tells the sequencer what came of it.
func (s *Subscriber) fetch(ctx context.Context, number, from uint64) {
	defer s.running.Done()
	err := s.readReplay(ctx, number, from)
	s.mu.Lock()
	defer s.mu.Unlock()
	if number != s.replay || ctx.Err() != nil {
		return
	}
	now := s.Now()
	if err != nil {
		s.Log.Warn("kv events: replay", "address", s.Replay, "error", err)
		s.perform(now, s.seq.replayFailed(now))
		return
	}
	s.perform(now, s.seq.replayEnd(now))
}

// errAnswer is an answer of a replay socket that makes no sense.
var errAnswer = errors.New("answer is not a replay's")

// readReplay asks for a replay and reads it to its end.
func (s *Subscriber) readReplay(ctx context.Context, number, from uint64) error {
	z, release, err := s.connect(ctx, s.Replay, socketDealer)
	if err != nil {
		return err
	}
	defer release()
	if err := z.ask(from); err != nil {
		return err
	}
	var m message
	for {
		if err := z.read(&m); err != nil {
			return err
		}
		seq, payload, end, ok := replayFrames(&m)
		if end {
			return nil
		}
		s.mu.Lock()
		if number != s.replay {
			s.mu.Unlock()
			return nil
		}
		if !ok {
			s.bad(BadFrames)
			s.mu.Unlock()
			return errAnswer
		}
		s.message()
		now := s.Now()
		s.perform(now, s.seq.replayBatch(now, seq, payload))
		s.mu.Unlock()
	}
}

// replayFrames reads one answer of a replay. Its frames are
//
//	"", number, payload           and at the end  "", ff×8, ""       before vLLM #45177
//	"", topic, number, payload    and at the end  "", "", ff×8, ""   since
func replayFrames(m *message) (seq uint64, payload []byte, end, ok bool) {
	n := len(m.frames)
	if m.count != n || n < 3 || n > 4 || len(m.frames[0]) != 0 || len(m.frames[n-2]) != 8 {
		return 0, nil, false, false
	}
	seq = binary.BigEndian.Uint64(m.frames[n-2])
	return seq, m.frames[n-1], seq == math.MaxUint64, true
}

// perform carries out the sequencer's steps. s.mu is held.
func (s *Subscriber) perform(now time.Time, steps []step) {
	lost, cleared := false, false
	for i := range steps {
		p := &steps[i]
		switch p.act {
		case actApply:
			switch s.apply(now, p.payload) {
			case wasDamaged:
				lost, cleared = true, false
			case wasCleared:
				lost, cleared = false, true
			}
		case actReset:
			s.Sink.Reset(now)
			lost, cleared = false, false
		case actIncomplete:
			s.Sink.Incomplete(now, true)
		case actComplete:
			s.Sink.Incomplete(now, false)
		case actAsk:
			s.ask(p.seq)
		case actStop:
			s.end()
		default:
			s.tell(p)
		}
	}
	switch {
	case lost:
		s.perform(now, s.seq.damaged())
	case cleared:
		s.perform(now, s.seq.cleared())
	}
	s.wake(now)
}

// tell counts and logs what calls for nothing else.
func (s *Subscriber) tell(p *step) {
	switch h := &s.Hooks; p.act {
	case actGap:
		s.Log.Warn("kv events: gap", "address", s.Address, "missed", p.count, "before", p.seq)
		if h.Gap != nil {
			h.Gap(p.count)
		}
	case actRestart:
		s.Log.Warn("kv events: engine restarted", "address", s.Address)
		if h.Restart != nil {
			h.Restart()
		}
	case actDropped:
		if h.Dropped != nil {
			h.Dropped()
		}
	case actReplayed, actFailed:
		s.end()
		if h.Replay != nil {
			h.Replay(p.act == actReplayed)
		}
	}
}

// ask starts a replay, in place of the one that runs.
func (s *Subscriber) ask(from uint64) {
	s.end()
	if s.ctx.Err() != nil {
		return
	}
	ctx, cancel := context.WithCancel(s.ctx)
	s.stop = cancel
	s.running.Add(1)
	go s.fetch(ctx, s.replay, from)
}

// end ends the replay that runs.
func (s *Subscriber) end() {
	if s.stop != nil {
		s.stop()
		s.stop = nil
	}
	s.replay++
}

// wake sets the timer to when the sequencer wants to be called.
func (s *Subscriber) wake(now time.Time) {
	due := s.seq.due()
	if due.Equal(s.due) {
		return
	}
	s.due = due
	if due.IsZero() {
		s.timer.Stop()
		return
	}
	s.timer.Reset(max(due.Sub(now), 0))
}

// tick is the timer's call.
func (s *Subscriber) tick() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ctx.Err() != nil {
		return
	}
	now := s.Now()
	s.due = time.Time{}
	s.perform(now, s.seq.tick(now))
}

// What a batch was, beside its events.
type verdict uint8

const (
	wasFine verdict = iota
	wasDamaged
	wasCleared
)

// apply decodes a batch and hands it over.
func (s *Subscriber) apply(now time.Time, payload []byte) verdict {
	if payload == nil {
		s.bad(TooLarge)
		return wasDamaged
	}
	if err := Decode(payload, &s.batch); err != nil {
		s.bad(ReasonOf(err))
		return wasDamaged
	}
	for _, reason := range s.batch.Skipped {
		s.bad(reason)
	}
	if len(s.batch.Events) == 0 {
		return wasFine
	}
	if at := s.clock.at(now, s.batch.Time); !at.IsZero() {
		for i := range s.batch.Events {
			if s.batch.Events[i].Kind != epp.BlockStored {
				s.batch.Events[i].At = at
			}
		}
	}
	s.Sink.Apply(now, s.batch.Events)
	return s.countEvents()
}

// countEvents tells the hook of the batch's events.
func (s *Subscriber) countEvents() verdict {
	var counts [epp.AllBlocksCleared + 1]int
	for i := range s.batch.Events {
		counts[s.batch.Events[i].Kind]++
	}
	for kind, n := range counts {
		if n > 0 && s.Hooks.Event != nil {
			s.Hooks.Event(epp.BlockEventKind(kind), n)
		}
	}
	if counts[epp.AllBlocksCleared] > 0 {
		return wasCleared
	}
	return wasFine
}

func (s *Subscriber) bad(reason Reason) {
	if s.Hooks.Bad != nil {
		s.Hooks.Bad(reason)
	}
}

func (s *Subscriber) message() {
	if s.Hooks.Message != nil {
		s.Hooks.Message()
	}
}
