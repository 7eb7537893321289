package report

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"epp.internal/epp"
	"epp.internal/epp/report/wire"
)

// heard writes down what a feed is told.
type heard struct {
	lines []string
	marks int
}

func (h *heard) say(format string, args ...any) {
	h.lines = append(h.lines, fmt.Sprintf(format, args...))
}

func (h *heard) Begin(time.Time) int {
	h.marks++
	h.say("begin mark=%d", h.marks)
	return h.marks
}

func (h *heard) Load(mark int, began time.Time, l epp.Load) {
	h.say("load mark=%d began=%d running=%v", mark, began.Sub(time.Unix(0, 0)).Milliseconds(), l.Running)
}
func (h *heard) Failed(_ time.Time, err error) { h.say("failed: %v", err) }
func (h *heard) Apply(_ time.Time, events []epp.BlockEvent) {
	for _, e := range events {
		h.say("%v %v", e.Kind, e.Hashes)
	}
}
func (h *heard) GPU(time.Time, epp.GPU)                { h.say("gpu") }
func (h *heard) Probed(_ time.Time, err error, _ bool) { h.say("probed: %v", err) }
func (h *heard) Reset(time.Time)                       { h.say("reset") }
func (h *heard) Incomplete(_ time.Time, is bool)       { h.say("incomplete=%v", is) }

// A stream's story: each report, what the picker is told by it, and what is
// ordered of the agent.
func TestIntake(t *testing.T) {
	three := 3.0
	stored := func(names ...uint64) []*wire.BlockEvent {
		return []*wire.BlockEvent{{Kind: wire.BlockEvent_STORED, Names: names, Keys: names, BlockTokens: 16}}
	}
	h := &heard{}
	in := &intake{feed: Feed{Readings: h, Blocks: h, Health: h}, interval: 2 * time.Second, probes: true}
	at := func(ms int) time.Time { return time.Unix(0, 0).Add(time.Duration(ms) * time.Millisecond) }
	in.open(at(0))
	for _, s := range []struct {
		what string
		ms   int
		r    *wire.Report
		want string
	}{
		{"blocks before the snapshot are none of its", 10, &wire.Report{Number: 2, Events: stored(9)}, "incomplete=true"},
		{"a snapshot begins", 20, &wire.Report{Number: 3, SnapshotBegin: true, Events: stored(1)}, "reset; BlockStored [1]"},
		{"and ends", 30, &wire.Report{Number: 4, SnapshotEnd: true, Events: stored(2)}, "BlockStored [2]; incomplete=false"},
		{"a delta", 40, &wire.Report{Number: 5, Events: stored(3)}, "BlockStored [3]"},
		{"the same again is late", 50, &wire.Report{Number: 5, Events: stored(3)}, "(late)"},
		{"the engine may have more than the agent knows", 60, &wire.Report{Number: 6, Incomplete: true}, "incomplete=true"},
		{"no longer", 70, &wire.Report{Number: 7}, "incomplete=false"},
		{"one is missing", 80, &wire.Report{Number: 9, Events: stored(5)}, "incomplete=true; (1 missed); (order)"},
		{"what was missing comes too late", 90, &wire.Report{Number: 8, Events: stored(4)}, "(late)"},
		{"no second order at once", 100, &wire.Report{Number: 10, Events: stored(6)}, ""},
		{"but after an interval", 2080, &wire.Report{Number: 11}, "(order)"},
		{"the snapshot, in one", 2090, &wire.Report{Number: 12, SnapshotBegin: true, SnapshotEnd: true, Events: stored(1)}, "reset; BlockStored [1]; incomplete=false"},
		{"an empty one", 2100, &wire.Report{Number: 13, SnapshotBegin: true, SnapshotEnd: true}, "reset"},
		{"half of one", 2110, &wire.Report{Number: 14, SnapshotBegin: true}, "reset; incomplete=true"},
		{"whose rest is lost", 2120, &wire.Report{Number: 16, SnapshotEnd: true}, "(1 missed); (order)"},
		{"a reading begins", 3000, &wire.Report{Number: 17, Begins: 4}, "begin mark=1"},
		{"and ends", 3020, &wire.Report{Number: 18, Reading: &wire.Reading{Number: 4, AgeMs: 21, Running: &three}}, "load mark=1 began=3000 running={3 true}"},
		{"one whose beginning was not seen", 3030, &wire.Report{Number: 19, Reading: &wire.Reading{Number: 6, AgeMs: 20}}, "begin mark=2; load mark=2 began=3010 running={0 false}"},
		{"one that is too old to be believed", 90_000, &wire.Report{Number: 20, Reading: &wire.Reading{Number: 7, AgeMs: 1 << 31}}, "begin mark=3; load mark=3 began=30000 running={0 false}; (order)"},
		{"one that failed", 90_010, &wire.Report{Number: 21, Reading: &wire.Reading{Number: 8, Failed: "no answer"}}, "begin mark=4; failed: agent: no answer"},
		{"one that ends as the next begins", 90_020, &wire.Report{Number: 22, Begins: 10, Reading: &wire.Reading{Number: 9, Refused: true, Failed: "x"}},
			"begin mark=5; failed: agent: x: connection refused; begin mark=6"},
		{"a probe that failed", 90_030, &wire.Report{Number: 23, Probe: &wire.Probe{Number: 1, Failed: "no answer"}}, "probed: agent: probe: no answer"},
		{"a snapshot repeats it", 90_040, &wire.Report{Number: 24, SnapshotBegin: true, SnapshotEnd: true, Probe: &wire.Probe{Number: 1, Failed: "no answer"}},
			"reset; incomplete=false"},
		{"the next", 90_050, &wire.Report{Number: 25, Probe: &wire.Probe{Number: 2}}, "probed: <nil>"},
	} {
		order, late, missed, err := in.take(at(s.ms), s.r)
		if err != nil {
			t.Fatalf("%s: %v", s.what, err)
		}
		if missed > 0 {
			h.say("(%d missed)", missed)
		}
		if late {
			h.say("(late)")
		}
		if order {
			h.say("(order)")
		}
		if got := strings.Join(h.lines, "; "); got != s.want {
			t.Errorf("%s: %s\nwant %s", s.what, got, s.want)
		}
		h.lines = nil
	}
}
