package kvevents

import (
	"bytes"
	"time"

	"github.com/cespare/xxhash/v2"
)

const (
	// MaxPending bounds the live messages that wait while a replay runs, and
	// maxPendingBytes their payloads. What is over it is dropped: the gap that it
	// leaves is seen, and asked for, when the replay has ended.
	MaxPending      = 4096
	maxPendingBytes = 16 << 20

	// replaySilence is how long a replay may be silent before it is given up. A
	// guess: vLLM answers from memory, between two batches.
	replaySilence = 2 * time.Second
	// replayLimit is how long a replay may take in all. A guess: 10,000 batches
	// of 1 KB take well below a second.
	replayLimit = 60 * time.Second
	// After a replay that failed the next one waits retryMin, and twice as long
	// after each further failure, up to retryMax.
	retryMin = 5 * time.Second
	retryMax = 2 * time.Minute
)

// act is what the sequencer tells its caller to do.
type act uint8

const (
	actApply      act = iota + 1 // apply payload, the batch of number seq
	actReset                     // forget all blocks of the endpoint
	actAsk                       // end the running replay, if any, and ask for one from seq
	actStop                      // end the running replay
	actIncomplete                // from now on blocks may be missing
	actComplete                  // from now on they are not

	// For counters and logs alone.
	actGap       // count batches before seq did not come
	actRestart   // the engine is another one than before
	actDuplicate // batch seq was seen before and is ignored
	actDropped   // live batch seq did not fit in what waits for a replay
	actReplayed  // the replay came to its end
	actFailed    // the replay was given up
)

// step is one thing to do. payload is valid until the sequencer's next call.
type step struct {
	act     act
	seq     uint64
	count   uint64
	payload []byte
}

// phase is what the sequencer waits for.
type phase uint8

const (
	offline  phase = iota // no live connection
	flowing               // live batches are applied as they come
	filling               // live batches wait for the replay that closes a gap
	checking              // live batches wait for the replay that tells whether the engine is still the same
	fetching              // live batches wait for the replay of all that the engine keeps
	retrying              // live batches are applied while another replay of all is awaited
)

// pending is a live batch that waits.
type pending struct {
	seq     uint64
	payload []byte
}

// sequencer decides, without a socket or a clock, what is to be done with the
// batches of one engine. Its caller tells it what happened and carries out the
// steps that it returns, in order; they are valid until the next call.
//
// The caller runs one replay at a time and tells nothing more of one that it
// was told to stop or to follow by another.
type sequencer struct {
	// replays is true where the engine has a replay socket.
	replays bool

	phase phase
	// known is true when next and print say something: a batch was applied since
	// the last reset. next is the number of the batch that is to be applied next,
	// print the hash of the payload before it.
	known bool
	next  uint64
	print uint64
	// lost is true where batches are missing; heal is true where a replay of all
	// that the engine keeps might bring them.
	lost, heal bool
	// unproven is true after a reconnect until it is known whether the engine is
	// still the one that sent what was applied.
	unproven bool
	// incomplete is what was last told.
	incomplete bool

	// live is one more than the number of the last live batch on this connection.
	live uint64
	// replayed is the first number that came by replay on this connection, where
	// any is true. A live batch from there up to next is one that came twice.
	any      bool
	replayed uint64

	again    bool      // a replay that found nothing is being repeated, once
	asked    uint64    // where the running replay begins
	answered bool      // it has answered
	silence  time.Time // when it is given up for silence
	limit    time.Time // when it is given up at all
	retryAt  time.Time // when the next one is due; zero: none is
	backoff  time.Duration

	waiting      []pending
	waitingBytes int

	steps []step
}

// begin starts a call that returns steps.
func (s *sequencer) begin() { s.steps = s.steps[:0] }

func (s *sequencer) do(a act, seq uint64) {
	s.steps = append(s.steps, step{act: a, seq: seq})
}

// end finishes a call: whether blocks may be missing is told where it changed.
func (s *sequencer) end() []step {
	incomplete := s.lost || s.phase != flowing || !s.known && !s.replays
	if incomplete != s.incomplete {
		s.incomplete = incomplete
		if incomplete {
			s.do(actIncomplete, 0)
		} else {
			s.do(actComplete, 0)
		}
	}
	return s.steps
}

// start is called once, before anything else.
func (s *sequencer) start() []step {
	s.begin()
	s.phase = offline
	return s.end()
}

// connected is called when the live connection stands, after it was asked for
// its messages.
func (s *sequencer) connected(now time.Time) []step {
	s.begin()
	s.live, s.any, s.again = 0, false, false
	s.drop()
	s.retryAt, s.backoff = time.Time{}, 0
	switch {
	case !s.replays && s.known:
		// Until the first live batch nothing tells whether this is the same engine.
		s.phase = checking
		s.silence, s.limit = time.Time{}, time.Time{}
	case !s.replays:
		s.phase = flowing
	case s.known && s.heal:
		s.unproven = true
		s.ask(now, fetching, 0)
	case s.known:
		s.unproven = true
		s.ask(now, checking, s.next-1)
	default:
		s.ask(now, fetching, 0)
	}
	return s.end()
}

// disconnected is called when the live connection is lost.
func (s *sequencer) disconnected() []step {
	s.begin()
	if s.asking() {
		s.do(actStop, 0)
	}
	s.phase = offline
	s.retryAt = time.Time{}
	s.drop()
	return s.end()
}

// asking says whether a replay runs.
func (s *sequencer) asking() bool {
	return s.replays && s.phase >= filling
}

// ask begins a replay.
func (s *sequencer) ask(now time.Time, p phase, from uint64) {
	s.phase, s.asked, s.answered = p, from, false
	s.silence, s.limit = now.Add(replaySilence), now.Add(replayLimit)
	s.do(actAsk, from)
}

// reset forgets the endpoint's blocks, and what is known of its numbers.
func (s *sequencer) reset() {
	if s.known || s.lost {
		s.do(actReset, 0)
	}
	s.known, s.next, s.any = false, 0, false
	s.lost, s.heal, s.unproven = false, false, false
}

// restart is a reset because the engine is another one.
func (s *sequencer) restart() {
	s.do(actRestart, 0)
	s.reset()
	s.retryAt, s.backoff = time.Time{}, 0
}

// apply hands over the batch that is next.
func (s *sequencer) apply(seq uint64, payload []byte) {
	s.steps = append(s.steps, step{act: actApply, seq: seq, payload: payload})
	s.known, s.next, s.again = true, seq+1, false
	s.print = xxhash.Sum64(payload)
}

// liveBatch is called for each batch of the live connection.
func (s *sequencer) liveBatch(now time.Time, seq uint64, payload []byte) []step {
	s.begin()
	if s.restarted(seq) {
		s.restart()
		s.drop()
		s.live = seq + 1
		if s.replays && seq > 0 {
			s.ask(now, fetching, 0)
			s.keep(seq, payload)
			return s.end()
		}
		if s.asking() {
			s.do(actStop, 0)
		}
		s.phase = flowing
		s.take(now, seq, payload)
		return s.end()
	}
	s.live = seq + 1
	switch {
	case s.phase == checking && !s.replays:
		s.phase = flowing
		if seq > s.next {
			// Batches are missing from while there was no connection, and without
			// them nothing tells this engine from a restarted one.
			s.steps = append(s.steps, step{act: actGap, seq: seq, count: seq - s.next})
			s.reset()
		}
		s.take(now, seq, payload)
	case s.phase == flowing:
		s.take(now, seq, payload)
	case s.phase == retrying:
		// What is applied now is forgotten when the replay answers, and may have
		// come too late to be in it.
		s.keep(seq, payload)
		s.take(now, seq, payload)
	case s.phase != offline:
		s.keep(seq, payload)
	}
	return s.end()
}

// restarted says whether a live batch of this number can only come from another
// engine than the one that was followed so far: on one connection the numbers
// rise, and a connection brings nothing that was sent before it stood.
func (s *sequencer) restarted(seq uint64) bool {
	switch {
	case seq < s.live:
		return true
	case !s.known || seq >= s.next:
		return false
	}
	return !s.any || seq < s.replayed
}

// take applies a live batch, or sees that some before it are missing.
func (s *sequencer) take(now time.Time, seq uint64, payload []byte) {
	switch {
	case !s.known && seq > 0 && s.phase == flowing && s.replays && s.retryAt.IsZero() && !s.again:
		// The replay found nothing, and yet something was sent: it ended before.
		s.again = true
		s.ask(now, fetching, 0)
		s.keep(seq, payload)
	case !s.known && seq > 0:
		// We came late, and nothing can tell what was before.
		s.lost = true
		s.apply(seq, payload)
	case !s.known || seq == s.next:
		s.apply(seq, payload)
	case seq < s.next:
		s.do(actDuplicate, seq)
	case s.phase == flowing && s.replays && s.retryAt.IsZero():
		s.steps = append(s.steps, step{act: actGap, seq: seq, count: seq - s.next})
		s.ask(now, filling, s.next)
		s.keep(seq, payload)
	default:
		s.steps = append(s.steps, step{act: actGap, seq: seq, count: seq - s.next})
		s.lost = true
		s.apply(seq, payload)
	}
}

// keep lets a live batch wait for the end of the replay.
func (s *sequencer) keep(seq uint64, payload []byte) {
	if len(s.waiting) >= MaxPending || s.waitingBytes+len(payload) > maxPendingBytes {
		s.do(actDropped, seq)
		return
	}
	s.waiting = append(s.waiting, pending{seq, bytes.Clone(payload)})
	s.waitingBytes += len(payload)
}

// drop forgets the batches that wait.
func (s *sequencer) drop() { s.waiting, s.waitingBytes = nil, 0 }

// replayBatch is called for each batch of the running replay.
func (s *sequencer) replayBatch(now time.Time, seq uint64, payload []byte) []step {
	s.begin()
	if !s.asking() {
		return s.end()
	}
	first := !s.answered
	s.answered = true
	s.silence = now.Add(replaySilence)
	if s.phase == checking {
		s.check(now, seq, payload)
		if s.phase != fetching || !s.answered {
			return s.end()
		}
	}
	if first && (s.phase == retrying || s.unproven) {
		s.reset()
		s.phase = fetching
	}
	switch {
	case s.known && seq < s.next:
		s.do(actDuplicate, seq)
	case s.known && seq > s.next:
		// The engine no longer keeps what is missing: what the lost batches
		// removed would stay for ever, so all goes.
		s.reset()
		fallthrough
	case !s.known:
		s.lost = seq > 0
		s.any, s.replayed = true, seq
		s.apply(seq, payload)
	default:
		if !s.any {
			s.any, s.replayed = true, seq
		}
		s.apply(seq, payload)
	}
	return s.end()
}

// check compares the first batch of a replay that begins with the last one that
// is known.
func (s *sequencer) check(now time.Time, seq uint64, payload []byte) {
	switch {
	case seq < s.asked: // more than was asked for
	case seq > s.asked:
		// The engine keeps no batch that we have: what comes is all there is.
		s.steps = append(s.steps, step{act: actGap, seq: seq, count: seq - s.next})
		s.reset()
		s.phase = fetching
	case xxhash.Sum64(payload) == s.print:
		// The same engine: what follows is what was missed.
		s.any, s.replayed = true, s.next
		s.phase, s.unproven = filling, false
	default:
		s.restart()
		s.ask(now, fetching, 0)
	}
}

// replayEnd is called when the running replay has come to its end.
func (s *sequencer) replayEnd(now time.Time) []step {
	s.begin()
	if !s.asking() {
		return s.end()
	}
	if s.phase == checking {
		// The last batch that we have is unknown to this engine.
		s.restart()
		s.ask(now, fetching, 0)
		return s.end()
	}
	if s.phase == retrying && s.known {
		// It kept nothing when it was asked, and sends something all the same.
		s.giveUp(now)
		return s.end()
	}
	if s.unproven {
		// It keeps nothing at all, so it is not the engine that sent what we have.
		s.restart()
	}
	if !s.known {
		// It has sent nothing yet, so nothing is missing.
		s.lost = false
	}
	s.heal = false
	s.do(actReplayed, 0)
	s.retryAt, s.backoff = time.Time{}, 0
	unfilled := s.phase == filling && len(s.waiting) > 0 && s.waiting[0].seq > s.next
	if unfilled {
		s.reset()
		s.lost = true
	}
	s.phase = flowing
	s.release(now)
	return s.end()
}

// release takes the batches that waited, until one of them begins a replay.
func (s *sequencer) release(now time.Time) {
	waiting := s.waiting
	s.drop()
	for i, p := range waiting {
		s.take(now, p.seq, p.payload)
		if s.phase != flowing {
			for _, q := range waiting[i+1:] {
				s.keep(q.seq, q.payload)
			}
			return
		}
	}
}

// replayFailed is called when the running replay can't go on: no connection, or
// an answer that makes no sense.
func (s *sequencer) replayFailed(now time.Time) []step {
	s.begin()
	if s.asking() {
		s.giveUp(now)
	}
	return s.end()
}

// giveUp ends the running replay without its end: live batches flow again, the
// endpoint is incomplete, and a replay of all follows later.
func (s *sequencer) giveUp(now time.Time) {
	s.do(actFailed, 0)
	if s.unproven {
		s.reset()
	}
	s.lost, s.heal = true, true
	s.backoff = min(max(2*s.backoff, retryMin), retryMax)
	s.retryAt = now.Add(s.backoff)
	s.phase = flowing
	s.release(now)
}

// due is when tick wants to be called; zero: not before something else happens.
func (s *sequencer) due() time.Time {
	switch {
	case s.asking() && s.silence.Before(s.limit):
		return s.silence
	case s.asking():
		return s.limit
	}
	return s.retryAt
}

// tick is called when due has come.
func (s *sequencer) tick(now time.Time) []step {
	s.begin()
	switch {
	case s.asking() && (!now.Before(s.silence) || !now.Before(s.limit)):
		s.do(actStop, 0)
		s.giveUp(now)
	case s.phase == flowing && !s.retryAt.IsZero() && !now.Before(s.retryAt):
		s.retryAt = time.Time{}
		s.ask(now, retrying, 0)
	}
	return s.end()
}

// damaged is called when the batch that was applied last could not be used.
func (s *sequencer) damaged() []step {
	s.begin()
	s.lost = true
	return s.end()
}

// cleared is called when the batch that was applied last said that the engine
// has forgotten all blocks: nothing can be missing any more.
func (s *sequencer) cleared() []step {
	s.begin()
	s.lost, s.heal, s.retryAt = false, false, time.Time{}
	return s.end()
}
