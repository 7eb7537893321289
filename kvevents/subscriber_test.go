package kvevents

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"net"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"epp.internal/epp"
)

// Case A1: an engine without a replay socket restarts in place and counts from 0
// again. With its first batch, well within a second, all that it had is gone and
// one restart is counted.
func TestCaseA1(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEngine()
		in, c, end := follow(t, e, false)
		defer end()
		synctest.Wait()
		for i := range 10 {
			h := uint64(4 * i)
			e.publish(false, stored(t, float64(i), h, h+1, h+2, h+3))
		}
		synctest.Wait()
		if got := len(in.blocks); got != 40 || in.incomplete {
			t.Fatalf("blocks = %d, incomplete = %v; want 40 and complete", got, in.incomplete)
		}
		restarted := time.Now()
		e.restart()
		<-e.subscribed()
		e.publish(false, stored(t, 100, 1000))
		synctest.Wait()
		if took := time.Since(restarted); took >= time.Second {
			t.Errorf("followed again after %v, want below 1 s", took)
		}
		if got := in.holds(); got != "[1000]" || c.restarts != 1 || in.incomplete {
			t.Errorf("blocks = %s, restarts = %d, incomplete = %v; want [1000], 1, complete", got, c.restarts, in.incomplete)
		}
	})
}

// The same with a replay socket, before the restarted engine has said a word:
// the replay alone tells.
func TestRestartIsSeenByReplay(t *testing.T) {
	for _, batches := range []int{0, 2, 5, 8} {
		t.Run(fmt.Sprintf("%d batches since", batches), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				e := newEngine()
				in, c, end := follow(t, e, true)
				defer end()
				synctest.Wait()
				for i := range 5 {
					e.publish(false, stored(t, float64(i), uint64(i)))
				}
				synctest.Wait()
				want := []uint64{}
				e.restart()
				for i := range batches {
					e.publish(true, stored(t, float64(100+i), uint64(100+i)))
					want = append(want, uint64(100+i))
				}
				<-e.subscribed()
				synctest.Wait()
				if got := in.holds(); got != fmt.Sprint(want) || c.restarts != 1 || in.incomplete {
					t.Errorf("blocks = %s, restarts = %d, incomplete = %v; want %v, 1, complete", got, c.restarts, in.incomplete, want)
				}
			})
		})
	}
}

// Case A5, first run: batches 5 to 7 are kept for replays alone, 8 comes live.
// All four are applied once and in order, for both forms of a replay's answers.
func TestCaseA5(t *testing.T) {
	for _, old := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			e := newEngine()
			e.oldAnswers = old
			in, c, end := follow(t, e, true)
			defer end()
			synctest.Wait()
			for i := range 9 {
				e.publish(5 <= i && i <= 7, stored(t, float64(i), uint64(i)))
			}
			synctest.Wait()
			want := "incomplete=true, incomplete=false, stored [0], stored [1], stored [2], stored [3], stored [4], " +
				"incomplete=true, stored [5], stored [6], stored [7], stored [8], incomplete=false"
			if got := in.story(); got != want {
				t.Errorf("old answers %v:\ntold %s\nwant %s", old, got, want)
			}
			if c.gaps != 1 || fmt.Sprint(e.asked) != "[0 5]" || c.replays[true] != 2 || c.restarts != 0 {
				t.Errorf("gaps = %d, asked from %v, replays %v, restarts %d; want 1, [0 5], two done, 0", c.gaps, e.asked, c.replays, c.restarts)
			}
		})
	}
}

// Case A5, second run: the replay socket never answers. Live events flow on after
// two seconds, the endpoint is incomplete, and the retries wait longer each time.
func TestCaseA5ReplayNeverAnswers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEngine()
		in, c, end := follow(t, e, true)
		defer end()
		synctest.Wait()
		for i := range 5 {
			e.publish(false, stored(t, float64(i), uint64(i)))
		}
		synctest.Wait()
		e.mu.Lock()
		e.silent = true
		e.mu.Unlock()
		in.story()
		for i := 5; i < 9; i++ {
			e.publish(i < 8, stored(t, float64(i), uint64(i)))
		}
		time.Sleep(3 * time.Second)
		e.publish(false, stored(t, 9, 9))
		synctest.Wait()
		if got, want := in.story(), "incomplete=true, stored [8], stored [9]"; got != want || !in.incomplete {
			t.Errorf("told %q, want %q", got, want)
		}
		time.Sleep(10 * time.Minute)
		synctest.Wait()
		if n := len(e.asked); n < 5 || n > 10 {
			t.Errorf("questions in 10 minutes = %d, want 5 to 10: no storm", n)
		}
		e.publish(false, stored(t, 10, 10))
		synctest.Wait()
		if got, want := in.story(), "stored [10]"; got != want || c.gaps == 0 {
			t.Errorf("told %q, gaps = %d; want %q, at least 1", got, c.gaps, want)
		}
		// It answers at last, and all is well again.
		e.mu.Lock()
		e.silent = false
		e.mu.Unlock()
		time.Sleep(3 * time.Minute)
		synctest.Wait()
		if got := in.holds(); got != "[0 1 2 3 4 5 6 7 8 9 10]" || in.incomplete {
			t.Errorf("blocks = %s, incomplete = %v; want all, complete", got, in.incomplete)
		}
	})
}

// Case B2: no malformed message ends the process or the subscription. Each is
// counted by its reason, and the good store that follows is applied.
func TestCaseB2(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEngine()
		in, c, end := follow(t, e, false)
		defer end()
		synctest.Wait()
		number := func(n uint64) []byte { return binary.BigEndian.AppendUint64(nil, n) }
		topic, good := []byte("kv"), stored(t, 1, 1)
		noise := make([]byte, 300)
		random := rand.New(rand.NewPCG(1, 2))
		for i := range noise {
			noise[i] = byte(random.Uint32())
		}
		event := func(fields ...any) []byte { return encode(t, []any{1.5, []any{fields}}) }
		e.send(topic)
		e.send(topic, good)
		e.send(topic, number(0), good, good)
		e.send(topic, number(0), good, good, good, good, good, good, good, good, good)
		e.send(topic, []byte{0, 0, 1}, good)
		e.send(topic, number(0), nil)
		e.send(topic, number(1), noise)
		e.send(topic, number(2), []byte{7})
		e.send(topic, number(3), event("BlockStored", []uint64{1}, nil, []int{1, 2}, 0, nil, "GPU"))
		e.send(topic, number(4), event("BlockStored", []uint64{1, 2}, nil, []int{1, 2, 3}, 2, nil, "GPU"))
		e.send(topic, number(5), event("BlockStored", []uint64{}, nil, []int{}, 2, nil, "GPU"))
		e.send(topic, number(6), make([]byte, 64<<20))
		e.send(topic, number(7), stored(t, 7, 77))
		synctest.Wait()
		want := "map[block_size:1 frames:4 hashes:1 payload:3 seq:1 tokens:1 too_large:1]"
		if got := fmt.Sprint(c.bad); got != want {
			t.Errorf("bad = %s, want %s", got, want)
		}
		if got := in.holds(); got != "[77]" || c.gaps != 0 || c.restarts != 0 {
			t.Errorf("blocks = %s, gaps = %d, restarts = %d; want [77], none", got, c.gaps, c.restarts)
		}
		if !in.incomplete {
			t.Errorf("incomplete = false, want true: what was in the refused batches is unknown")
		}
		e.mu.Lock()
		if n := len(e.conns); n != 1 {
			t.Errorf("connections = %d, want the first one still", n)
		}
		e.mu.Unlock()
	})
}

// Case A3, our side: a clear is told to the endpoint whose socket it came from,
// and to no other; a clear settles what was missing.
func TestCaseA3(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := newEngine(), newEngine()
		inA, countsA, endA := follow(t, a, false)
		defer endA()
		inB, _, endB := follow(t, b, false)
		defer endB()
		synctest.Wait()
		for _, e := range []*fakeEngine{a, b} {
			e.publish(true, stored(t, 0, 1))
			e.publish(false, stored(t, 1, 2, 3))
		}
		synctest.Wait()
		if !inA.incomplete || !inB.incomplete {
			t.Fatal("incomplete = false, want true: batch 0 was lost")
		}
		a.publish(false, encode(t, []any{2.5, []any{map[string]any{"type": "AllBlocksCleared"}}}))
		synctest.Wait()
		if got := inA.holds() + inB.holds(); got != "[][2 3]" || inA.incomplete || !inB.incomplete {
			t.Errorf("blocks of A and B = %s, incomplete %v, %v; want [][2 3], A complete", got, inA.incomplete, inB.incomplete)
		}
		if countsA.events[epp.AllBlocksCleared] != 1 || countsA.events[epp.BlockStored] != 1 {
			t.Errorf("events = %v, want one of each", countsA.events)
		}
	})
}

// Case Q7, our side: a topic that names another engine changes nothing about
// whose blocks they are.
func TestCaseQ7(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := newEngine(), newEngine()
		inA, _, endA := follow(t, a, true)
		defer endA()
		inB, _, endB := follow(t, b, true)
		defer endB()
		synctest.Wait()
		b.publish(false, stored(t, 0, 5))
		a.topic = b.topic
		a.publish(false, encode(t, []any{0.5, []any{map[string]any{"type": "AllBlocksCleared"}}}))
		a.publish(false, stored(t, 1, 6))
		synctest.Wait()
		if got := inA.holds() + inB.holds(); got != "[6][5]" {
			t.Errorf("blocks of A and B = %s, want [6][5]", got)
		}
	})
}

// What a replay socket answers beside the protocol is counted and ends the
// replay; the subscription goes on.
func TestReplayAnswersNonsense(t *testing.T) {
	for _, frames := range [][][]byte{
		{nil},
		{nil, nil},
		{[]byte("x"), make([]byte, 8), nil},
		{nil, make([]byte, 7), nil},
		{nil, nil, nil, make([]byte, 8), nil},
	} {
		synctest.Test(t, func(t *testing.T) {
			c, far := net.Pipe()
			go func() {
				z, err := accept(far, "ROUTER")
				if err != nil {
					t.Error(err)
					return
				}
				var m message
				z.read(&m)
				sendFrames(z, frames...)
				far.Close()
			}()
			z, err := open(c, socketDealer, "me", time.Now().Add(time.Second))
			if err != nil {
				t.Fatal(err)
			}
			if err := z.ask(0); err != nil {
				t.Fatal(err)
			}
			var m message
			if err := z.read(&m); err != nil {
				t.Fatal(err)
			}
			if _, _, end, ok := replayFrames(&m); end || ok {
				t.Errorf("%q: end %v, ok %v; want neither", m.frames, end, ok)
			}
			c.Close()
		})
	}
}

// A peer that is no ZMQ publisher is left alone, with an error that says why.
func TestOpenRefuses(t *testing.T) {
	ready := func(props ...string) []byte {
		b := []byte("\x05READY")
		for i := 0; i < len(props); i += 2 {
			b = appendProperty(b, props[i], props[i+1])
		}
		return appendFrame(nil, flagCommand, b)
	}
	plain := greeting()
	copy(plain[mechanismAt:], "PLAIN")
	old := greeting()
	old[10] = 2
	for _, c := range []struct {
		name, want string
		say        []byte
	}{
		{"http", "not a ZMQ socket", []byte(strings.Repeat("HTTP/1.1 400 Bad Request\r\n\r\n", 4))},
		{"zmtp 2", "version 2", old},
		{"plain", `mechanism "PLAIN"`, plain},
		{"silent", "timeout", nil},
		{"no ready", `command "ERROR"`, append(greeting(), appendFrame(nil, flagCommand, []byte("\x05ERROR\x03bad"))...)},
		{"no type", "without a Socket-Type", append(greeting(), ready("Identity", "x")...)},
		{"cut property", "without a Socket-Type", append(greeting(), appendFrame(nil, flagCommand, []byte("\x05READY\x0bSocket-Type\xff\xff\xff\xff"))...)},
		{"pull", `peer is a "PULL"`, append(greeting(), ready("Socket-Type", "PULL")...)},
		{"huge", "want READY", append(greeting(), 6, 0, 0, 0, 1, 0, 0, 0, 0)},
	} {
		synctest.Test(t, func(t *testing.T) {
			here, there := net.Pipe()
			go there.Write(c.say)
			go func() {
				var b [256]byte
				for {
					if _, err := there.Read(b[:]); err != nil {
						return
					}
				}
			}()
			_, err := open(here, socketSub, "", time.Now().Add(time.Second))
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%s: %v, want %q", c.name, err, c.want)
			}
			here.Close()
			there.Close()
		})
	}
}

// Live batches that come during a replay beyond the bound are dropped, and asked
// for when the replay has ended.
func TestPendingIsBounded(t *testing.T) {
	s := sequencer{replays: true}
	now := time.Unix(1_800_000_000, 0)
	s.start()
	s.connected(now)
	dropped := 0
	for i := range uint64(MaxPending + 100) {
		for _, p := range s.liveBatch(now, i, batchOf("A", i)) {
			if p.act == actDropped {
				dropped++
			}
		}
	}
	if dropped != 100 || len(s.waiting) != MaxPending {
		t.Errorf("dropped = %d, waiting = %d; want 100, %d", dropped, len(s.waiting), MaxPending)
	}
	s.replayEnd(now)
	var told []string
	for _, p := range s.liveBatch(now, MaxPending+100, nil) {
		told = append(told, p.String())
	}
	if want := fmt.Sprintf("[(gap of 100 before %d) ask from %d incomplete]", MaxPending+100, MaxPending); fmt.Sprint(told) != want {
		t.Errorf("steps = %v, want %s", told, want)
	}
	for i := range uint64(20) {
		s.liveBatch(now, MaxPending+101+i, make([]byte, 1<<20))
	}
	if s.waitingBytes > maxPendingBytes {
		t.Errorf("waiting = %d bytes, at most %d", s.waitingBytes, maxPendingBytes)
	}
}

// FuzzRead: no bytes of a peer end the process or are kept beyond their bound.
func FuzzRead(f *testing.F) {
	f.Add([]byte{1, 2, 'k', 'v', 1, 8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 7})
	f.Add([]byte{4, 7, 4, 'P', 'I', 'N', 'G', 0, 1, 0, 1, 'x'})
	f.Add([]byte{2, 0, 0, 0, 0, 4, 0, 0, 0, 1})
	f.Add(append(bytes.Repeat([]byte{1, 0}, 20), 0, 0))
	f.Fuzz(func(t *testing.T, in []byte) {
		here, there := net.Pipe()
		go func() {
			there.Write(in)
			there.Close()
		}()
		go func() {
			var b [64]byte
			for {
				if _, err := there.Read(b[:]); err != nil {
					return
				}
			}
		}()
		z := newConn(here)
		var m message
		for z.read(&m) == nil {
			if len(m.frames) > maxFrames || len(m.buf) > MaxPayload+maxHead {
				t.Fatalf("frames %d, bytes %d", len(m.frames), len(m.buf))
			}
			liveFrames(&m)
			replayFrames(&m)
		}
		here.Close()
	})
}

// A PING between two messages is answered with its context, and is no message.
func TestPing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		here, there := net.Pipe()
		defer here.Close()
		defer there.Close()
		go func() {
			there.Write(appendFrame(nil, flagCommand, []byte("\x04PING\x00\x0actx")))
			there.Write(appendFrame(nil, 0, []byte("hello")))
		}()
		pong := make(chan string, 1)
		go func() {
			var b [64]byte
			n, _ := there.Read(b[:])
			pong <- string(b[:n])
		}()
		var m message
		if err := newConn(here).read(&m); err != nil || len(m.frames) != 1 || string(m.frames[0]) != "hello" {
			t.Errorf("message = %q, %v; want hello", m.frames, err)
		}
		if got, want := <-pong, "\x04\x08\x04PONGctx"; got != want {
			t.Errorf("answer = %q, want %q", got, want)
		}
	})
}
