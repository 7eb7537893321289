package report

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"epp.internal/epp"
	"epp.internal/epp/report/wire"
)

// ends keeps what Blocks are told of blocks that went, and when.
type ends struct {
	heard
	start time.Time
}

func (h *ends) Apply(_ time.Time, events []epp.BlockEvent) {
	var b strings.Builder
	for _, e := range events {
		at := "?"
		if !e.At.IsZero() {
			at = e.At.Sub(h.start).String()
		}
		fmt.Fprintf(&b, " %v@%s", e.Kind, at)
	}
	h.say("apply%s", b.String())
}

// Blocks that went have the time at which they did, on the picker's clock: the
// agent tells an age, so that clocks need not agree. What went at different times
// comes apart, in order, and what is stored has no time. An age that can't be
// believed is none. Events are counted by kind; a restart of the engine is told
// once, and one from before the stream is not.
func TestGone(t *testing.T) {
	start := time.Unix(1000, 0)
	h := &ends{start: start}
	var counted [epp.AllBlocksCleared + 1]int
	restarts := 0
	in := &intake{interval: time.Second, feed: Feed{
		Blocks: h, Event: func(kind epp.BlockEventKind, n int) { counted[kind] += n }, Restarted: func() { restarts++ },
	}}
	in.open(start)
	age := func(ms uint32) *uint32 { return &ms }
	stored := &wire.BlockEvent{Kind: wire.BlockEvent_STORED, Names: []uint64{1}, Keys: []uint64{1}, BlockTokens: 16, AgeMs: age(7)}
	removed := func(ms *uint32) *wire.BlockEvent {
		return &wire.BlockEvent{Kind: wire.BlockEvent_REMOVED, Names: []uint64{1}, AgeMs: ms}
	}
	cleared := &wire.BlockEvent{Kind: wire.BlockEvent_CLEARED, AgeMs: age(30)}
	for _, s := range []struct {
		r    *wire.Report
		want string
	}{
		{&wire.Report{Number: 2, Restarts: 4, SnapshotBegin: true, SnapshotEnd: true, Events: []*wire.BlockEvent{cleared, stored}},
			"reset; apply AllBlocksCleared@70ms BlockStored@?; incomplete=false"},
		{&wire.Report{Number: 3, Restarts: 4, Events: []*wire.BlockEvent{removed(age(20)), stored, removed(age(20)), removed(age(5)), removed(nil)}},
			"apply BlockRemoved@80ms BlockStored@? BlockRemoved@80ms; apply BlockRemoved@95ms BlockRemoved@?"},
		{&wire.Report{Number: 4, Restarts: 5, Events: []*wire.BlockEvent{removed(age(60_001)), {Kind: 7}}}, "apply BlockRemoved@?"},
		{&wire.Report{Number: 5, Restarts: 5, Events: []*wire.BlockEvent{{Kind: 7}}}, ""},
	} {
		if _, _, _, err := in.take(start.Add(100*time.Millisecond), s.r); err != nil {
			t.Fatal(err)
		}
		if got := strings.TrimPrefix(strings.Join(h.lines, "; "), "incomplete=true; "); got != s.want {
			t.Errorf("report %d: %s\nwant %s", s.r.Number, got, s.want)
		}
		h.lines = nil
	}
	if want := [...]int{epp.BlockStored: 2, epp.BlockRemoved: 5, epp.AllBlocksCleared: 1}; counted != want || restarts != 1 {
		t.Errorf("counted %v, want %v; %d restarts, want 1", counted, want, restarts)
	}
}
