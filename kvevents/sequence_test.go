package kvevents

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"
	"pgregory.net/rapid"
)

// TestSequence runs the conversations of testdata/sequence. The answer of each
// command is what the sequencer wants done.
//
//	new [replay]             a sequencer, of an engine with or without a replay socket
//	connect, disconnect      of the live connection
//	live N… [engine=B]       live batches; engine names whose they are, "A" at first
//	replay N… [engine=B]     batches of the running replay
//	end, fail                of the running replay
//	wait 2s                  time passes
//	damaged, cleared         what the last batch turned out to be
func TestSequence(t *testing.T) {
	var s *sequencer
	now := time.Date(2026, 11, 29, 12, 0, 0, 0, time.UTC)
	datadriven.RunTest(t, "testdata/sequence", func(t *testing.T, d *datadriven.TestData) string {
		var out strings.Builder
		say := func(steps []step) {
			for _, p := range steps {
				out.WriteString(p.String() + "\n")
			}
		}
		engine := "A"
		d.MaybeScanArgs(t, "engine", &engine)
		switch d.Cmd {
		case "new":
			s = &sequencer{replays: d.HasArg("replay")}
			say(s.start())
		case "connect":
			say(s.connected(now))
		case "disconnect":
			say(s.disconnected())
		case "live", "replay":
			for _, a := range d.CmdArgs {
				var seq uint64
				if _, err := fmt.Sscan(a.Key, &seq); err != nil {
					continue
				}
				if d.Cmd == "live" {
					say(s.liveBatch(now, seq, batchOf(engine, seq)))
				} else {
					say(s.replayBatch(now, seq, batchOf(engine, seq)))
				}
			}
		case "end":
			say(s.replayEnd(now))
		case "fail":
			say(s.replayFailed(now))
		case "wait":
			d, err := time.ParseDuration(d.CmdArgs[0].Key)
			if err != nil {
				t.Fatal(err)
			}
			for end := now.Add(d); ; {
				due := s.due()
				if due.IsZero() || due.After(end) {
					now = end
					break
				}
				now = due
				say(s.tick(now))
			}
		case "damaged":
			say(s.damaged())
		case "cleared":
			say(s.cleared())
		default:
			d.Fatalf(t, "unknown command %q", d.Cmd)
		}
		if out.Len() == 0 {
			return "-\n"
		}
		return out.String()
	})
}

// batchOf is a payload that no other engine or number has.
func batchOf(engine string, seq uint64) []byte { return fmt.Appendf(nil, "%s%d", engine, seq) }

func (p step) String() string {
	switch p.act {
	case actApply:
		return fmt.Sprintf("apply %s", p.payload)
	case actReset:
		return "reset"
	case actAsk:
		return fmt.Sprintf("ask from %d", p.seq)
	case actStop:
		return "stop"
	case actIncomplete:
		return "incomplete"
	case actComplete:
		return "complete"
	case actGap:
		return fmt.Sprintf("(gap of %d before %d)", p.count, p.seq)
	case actRestart:
		return "(restart)"
	case actDuplicate:
		return fmt.Sprintf("(duplicate %d)", p.seq)
	case actDropped:
		return fmt.Sprintf("(dropped %d)", p.seq)
	case actReplayed:
		return "(replayed)"
	case actFailed:
		return "(replay failed)"
	}
	return fmt.Sprintf("act %d", p.act)
}

// world is an engine, its sockets and a sequencer that follows it, in one
// goroutine: rapid chooses what happens next.
type world struct {
	seq sequencer
	now time.Time

	engine  byte     // whose batches are made now: 'A', 'B', …
	made    []uint64 // how many batches each engine has made, by engine - 'A'
	oldest  uint64   // the oldest batch that the engine keeps
	kept    uint64   // how many it keeps
	linked  bool     // the live connection stands
	wire    []uint64 // live batches under way
	asking  bool     // a replay runs …
	asked   uint64
	served  bool     // … and the engine has answered
	answers []uint64 // answers under way

	applied    []string // since the last reset
	incomplete bool
}

// perform does what the sequencer wants, and checks that it keeps its word.
func (w *world) perform(t *rapid.T, steps []step) {
	for _, p := range steps {
		switch p.act {
		case actApply:
			w.applied = append(w.applied, string(p.payload))
		case actReset:
			w.applied = nil
		case actAsk:
			w.asking, w.asked, w.served, w.answers = true, p.seq, false, nil
		case actStop, actReplayed, actFailed:
			w.asking, w.served, w.answers = false, false, nil
		case actIncomplete:
			w.incomplete = true
		case actComplete:
			w.incomplete = false
		}
	}
	w.check(t)
}

// check: what was applied since the last reset came from one engine, once and in
// order; and where it is said to be complete, it is the engine's first batches
// without a hole.
func (w *world) check(t *rapid.T) {
	var last int64 = -1
	for i, a := range w.applied {
		var n int64
		fmt.Sscan(a[1:], &n)
		if a[0] != w.applied[0][0] || n <= last {
			t.Fatalf("applied %v: not one engine's batches in order", w.applied)
		}
		if !w.incomplete && n != int64(i) {
			t.Fatalf("applied %v: said to be complete", w.applied)
		}
		last = n
	}
	if len(w.seq.waiting) > MaxPending {
		t.Fatalf("waiting: %d", len(w.seq.waiting))
	}
}

func (w *world) actions() map[string]func(*rapid.T) {
	return map[string]func(*rapid.T){
		"connect": func(t *rapid.T) {
			if w.linked {
				t.Skip()
			}
			w.linked = true
			w.perform(t, w.seq.connected(w.now))
		},
		"disconnect": func(t *rapid.T) {
			if !w.linked {
				t.Skip()
			}
			w.linked, w.wire = false, nil
			w.perform(t, w.seq.disconnected())
		},
		"restart": func(t *rapid.T) {
			if w.engine == 'Z' {
				t.Skip()
			}
			if w.linked {
				w.linked, w.wire = false, nil
				w.perform(t, w.seq.disconnected())
			}
			w.engine++
			w.made = append(w.made, 0)
			w.oldest = 0
			if w.asking {
				w.fail(t)
			}
		},
		"make": func(t *rapid.T) {
			n := &w.made[w.engine-'A']
			if w.linked && rapid.IntRange(0, 9).Draw(t, "lost") < 8 {
				w.wire = append(w.wire, *n)
			}
			*n++
			if *n-w.oldest > w.kept {
				w.oldest = *n - w.kept
			}
		},
		"deliver": func(t *rapid.T) {
			if len(w.wire) == 0 {
				t.Skip()
			}
			w.deliver(t)
		},
		"serve": func(t *rapid.T) {
			if !w.asking || w.served {
				t.Skip()
			}
			w.serve()
		},
		"answer": func(t *rapid.T) {
			if !w.served {
				t.Skip()
			}
			w.answer(t)
		},
		"fail": func(t *rapid.T) {
			if !w.asking || rapid.IntRange(0, 3).Draw(t, "really") > 0 {
				t.Skip()
			}
			w.fail(t)
		},
		"wait": func(t *rapid.T) {
			w.now = w.now.Add(time.Duration(rapid.IntRange(1, 10_000).Draw(t, "ms")) * time.Millisecond)
			w.perform(t, w.seq.tick(w.now))
		},
		"": func(t *rapid.T) {},
	}
}

func (w *world) deliver(t *rapid.T) {
	n := w.wire[0]
	w.wire = w.wire[1:]
	w.perform(t, w.seq.liveBatch(w.now, n, batchOf(string(w.engine), n)))
}

func (w *world) serve() {
	w.served = true
	for n := max(w.asked, w.oldest); n < w.made[w.engine-'A']; n++ {
		w.answers = append(w.answers, n)
	}
}

func (w *world) answer(t *rapid.T) {
	if len(w.answers) == 0 {
		w.perform(t, w.seq.replayEnd(w.now))
		return
	}
	n := w.answers[0]
	w.answers = w.answers[1:]
	w.perform(t, w.seq.replayBatch(w.now, n, batchOf(string(w.engine), n)))
}

func (w *world) fail(t *rapid.T) {
	w.asking, w.served, w.answers = false, false, nil
	w.perform(t, w.seq.replayFailed(w.now))
}

// settle lets the world come to rest: the connection stands, all that is under
// way arrives, one more batch is made and arrives, and replays that are due run.
func (w *world) settle(t *rapid.T) {
	if !w.linked {
		w.linked = true
		w.perform(t, w.seq.connected(w.now))
	}
	w.wire = append(w.wire, w.made[w.engine-'A'])
	w.made[w.engine-'A']++
	w.oldest = max(w.oldest, w.made[w.engine-'A']-min(w.kept, w.made[w.engine-'A']))
	for range 100_000 {
		switch {
		case len(w.wire) > 0:
			w.deliver(t)
		case w.asking && !w.served:
			w.serve()
		case w.served:
			w.answer(t)
		case !w.seq.due().IsZero():
			w.now = w.seq.due()
			w.perform(t, w.seq.tick(w.now))
		default:
			return
		}
	}
	t.Fatal("never at rest")
}

// Whatever happens on the way – losses, reconnects, restarts, replays that fail
// or come late – a sequencer with a replay socket ends with the newest engine's
// batches to the last one, in order and once; and with all of them, and the word
// that it has them, where the engine still kept them.
func TestSequencerEndsWhereTheEngineIs(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := &world{engine: 'A', made: []uint64{0}, kept: rapid.Uint64Range(2, 40).Draw(t, "kept")}
		w.seq.replays = true
		w.now = time.Date(2026, 11, 29, 12, 0, 0, 0, time.UTC)
		w.perform(t, w.seq.start())
		t.Repeat(w.actions())
		w.settle(t)
		made := w.made[w.engine-'A']
		if got, want := w.applied[len(w.applied)-1], string(batchOf(string(w.engine), made-1)); got != want {
			t.Fatalf("last applied = %s, want %s", got, want)
		}
		if w.kept >= made && (w.incomplete || uint64(len(w.applied)) != made) {
			t.Fatalf("applied %v, incomplete %v; want all of %d", w.applied, w.incomplete, made)
		}
		if !w.incomplete && uint64(len(w.applied)) != made {
			t.Fatalf("applied %v of %d: said to be complete", w.applied, made)
		}
	})
}

// FuzzSequencer: no order of calls breaks order, uniqueness or bounds.
func FuzzSequencer(f *testing.F) {
	f.Add([]byte{0x81, 0, 3, 0, 3, 1, 3, 8, 4, 5, 4, 6, 5, 0})
	f.Add([]byte{0x80, 0, 3, 0, 3, 1, 1, 0, 0, 0, 3, 0, 7, 255})
	f.Add([]byte{0x81, 0, 7, 200, 3, 9, 7, 200, 4, 0, 4, 1, 5, 0})
	f.Fuzz(func(t *testing.T, calls []byte) {
		if len(calls) == 0 {
			return
		}
		s := sequencer{replays: calls[0]&1 == 1}
		now := time.Unix(1_800_000_000, 0)
		next := int64(-1)
		check := func(steps []step) {
			for _, p := range steps {
				switch p.act {
				case actReset:
					next = -1
				case actApply:
					if int64(p.seq) < next {
						t.Fatalf("applied %d after %d", p.seq, next-1)
					}
					next = int64(p.seq) + 1
				case actAsk:
					if !s.replays {
						t.Fatal("asked an engine without a replay socket")
					}
				}
			}
			if len(s.waiting) > MaxPending || s.waitingBytes > maxPendingBytes {
				t.Fatalf("waiting: %d of %d bytes", len(s.waiting), s.waitingBytes)
			}
		}
		check(s.start())
		for c := range slices.Chunk(calls[1:], 2) {
			if len(c) < 2 {
				break
			}
			seq := uint64(c[1] & 0x3f)
			payload := []byte{c[1] >> 6, c[1] & 0x3f}
			switch c[0] & 7 {
			case 0:
				check(s.connected(now))
			case 1:
				check(s.disconnected())
			case 2, 3:
				check(s.liveBatch(now, seq, payload))
			case 4:
				check(s.replayBatch(now, seq, payload))
			case 5:
				check(s.replayEnd(now))
			case 6:
				check(s.replayFailed(now))
			case 7:
				now = now.Add(time.Duration(c[1]) * 50 * time.Millisecond)
				check(s.tick(now))
			}
		}
	})
}
