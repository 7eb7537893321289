//go:build vllm

package vllm

import (
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	"epp.internal/epp/kvevents"
)

// TestCapturedFramesAgree: the events that this engine publishes have the keys,
// and values of the kinds, that the captured ones have on which the tests of
// package kvevents run; and our own decoder reads each as a general one does.
func TestCapturedFramesAgree(t *testing.T) {
	p := startPicker(t, pool.a.auto(), pool.b.auto()).settled("A", "B")
	prompt := tokens(300, 100)
	p.direct(pool.a, completion("tiny", prompt))
	p.direct(pool.a, completion("sql", prompt))
	p.direct(pool.a, completion("sql", prompt, "cache_salt", "s"))
	captured := map[string]bool{}
	for _, name := range []string{"base", "lora-evict", "cleared"} {
		text, err := os.ReadFile("../../kvevents/testdata/frames/" + name + ".jsonl")
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(text)) {
			var m struct {
				Frames []string `json:"frames_hex"`
			}
			if err := json.Unmarshal([]byte(line), &m); err != nil || len(m.Frames) != 3 {
				t.Fatalf("%s: %d frames: %v", name, len(m.Frames), err)
			}
			payload, err := hex.DecodeString(m.Frames[2])
			if err != nil {
				t.Fatal(err)
			}
			for _, e := range readBatch(t, payload) {
				captured[e.form()] = true
			}
		}
	}
	live := map[string]int{}
	var ours kvevents.Batch
	for _, e := range []*server{pool.a, pool.b} {
		for _, b := range e.history(t) {
			if err := kvevents.Decode(b.payload, &ours); err != nil || len(ours.Skipped) > 0 || len(ours.Events) != len(b.events) {
				t.Fatalf("batch %d of %s: %d events, we read %d and skip %v: %v", b.seq, e.name, len(b.events), len(ours.Events), ours.Skipped, err)
			}
			for i, ev := range b.events {
				live[ev.form()]++
				got, want := ours.Events[i], ev
				if got.Kind.String() != want["type"] {
					t.Fatalf("batch %d of %s: %v is read as %v", b.seq, e.name, want["type"], got.Kind)
				}
				if want["type"] == "BlockStored" && (fmt.Sprint(got.Tokens) != fmt.Sprint(want["token_ids"]) || fmt.Sprint(got.BlockTokens) != fmt.Sprint(want["block_size"]) ||
					len(got.Hashes) != len(want.hashes(t)) || got.HasParent != (want["parent_block_hash"] != nil)) {
					t.Fatalf("batch %d of %s: %v is read as %+v", b.seq, e.name, want, got)
				}
			}
		}
	}
	for form, n := range live {
		if !captured[form] {
			t.Errorf("%d live events have a form that none captured has:\n%s", n, form)
		}
	}
	if len(live) < 3 {
		t.Errorf("only %d forms of events were seen: %v", len(live), live)
	}
	t.Logf("%d forms of live events, all captured: %q", len(live), slices.Sorted(maps.Keys(live)))
}
