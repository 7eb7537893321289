package epptest

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"io"
	"log"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"epp.internal/epp"
	"epp.internal/epp/engine"
	"github.com/go-zeromq/zmq4"
	"github.com/google/go-cmp/cmp"
	"github.com/vmihailenco/msgpack/v5"
)

// batch is a decoded event message.
type batch struct {
	topic  string
	seq    uint64
	events []map[string]any
}

// subscribe connects a SUB socket of a library that is not the fake's own, and
// returns a function that waits for the next message.
func subscribe(t *testing.T, e *Engine, topic string, subscribers int) func() batch {
	t.Helper()
	ctx := within(t)
	sub := zmq4.NewSub(ctx, zmq4.WithLogger(log.New(io.Discard, "", 0)))
	t.Cleanup(func() { sub.Close() })
	if err := sub.Dial(e.EventEndpoint()); err != nil {
		t.Fatal(err)
	}
	if err := sub.SetOption(zmq4.OptionSubscribe, topic); err != nil {
		t.Fatal(err)
	}
	if err := e.AwaitSubscribers(ctx, subscribers); err != nil {
		t.Fatal(err)
	}
	return func() batch {
		t.Helper()
		m, err := sub.Recv()
		if err != nil {
			t.Fatal(err)
		}
		return decodeFrames(t, m.Frames)
	}
}

// decodeFrames decodes the three frames of an event message in map form.
func decodeFrames(t *testing.T, frames [][]byte) batch {
	t.Helper()
	if len(frames) != 3 || len(frames[1]) != 8 {
		t.Fatalf("%d frames: %x", len(frames), frames)
	}
	var payload []any
	if err := msgpack.Unmarshal(frames[2], &payload); err != nil {
		t.Fatalf("payload: %v", err)
	}
	if _, ok := payload[0].(float64); len(payload) != 3 || !ok {
		t.Fatalf("payload: %v", payload)
	}
	b := batch{topic: string(frames[0]), seq: binary.BigEndian.Uint64(frames[1])}
	for _, ev := range payload[1].([]any) {
		b.events = append(b.events, ev.(map[string]any))
	}
	return b
}

// keySets are the keys of events by what they depend on: type, and whether an
// adapter or a salt is there.
func keySets(batches []batch) map[string]string {
	out := map[string]string{}
	for _, b := range batches {
		for _, ev := range b.events {
			name := fmt.Sprint(ev["type"])
			if ev["lora_name"] != nil {
				name += " of an adapter"
			}
			keys := slices.Sorted(maps.Keys(ev))
			for i, k := range keys {
				keys[i] = fmt.Sprintf("%s:%T", k, kindOf(ev[k]))
			}
			out[name] = strings.Join(keys, " ")
		}
	}
	return out
}

// kindOf makes all integers alike, and a parent that is there like one that is
// not.
func kindOf(v any) any {
	switch v.(type) {
	case nil, int8, int16, int32, int64, uint8, uint16, uint32, uint64:
		return int64(0)
	}
	return v
}

// The fake's messages, read by the code that reads the real ones, have the same
// topic, numbers, events and fields.
func TestEventsAreVLLMs(t *testing.T) {
	var real []batch
	for _, m := range readLines[struct{ Frames []string }](t, "events.jsonl") {
		real = append(real, decodeFrames(t, unhex(t, m.Frames)))
	}
	e := start(t, EngineConfig{
		Adapters: []string{"sql"}, EventTopic: real[0].topic,
		Engine: engine.Config{BlockTokens: 32, Blocks: 20},
	})
	next := subscribe(t, e, "kv@", 1)
	var fake []batch
	ask := func(body string) {
		t.Helper()
		var got usageOf
		fetchJSON(t, e, "/v1/completions", body, &got)
		fake = append(fake, next())
	}
	text := func(letter string, n int) string { return strings.Repeat(letter, n) }
	ask(`{"max_tokens":1,"prompt":"` + text("a", 70) + `"}`)
	ask(`{"max_tokens":1,"prompt":"` + text("a", 140) + `"}`)
	ask(`{"max_tokens":1,"prompt":"` + text("a", 70) + `","cache_salt":"tenant-b","model":"sql"}`)
	ask(`{"max_tokens":1,"prompt":"` + text("b", 470) + `"}`)
	fetch(t, e, "/reset_prefix_cache", "{}")
	ask(`{"max_tokens":1,"prompt":"` + text("c", 40) + `"}`)

	if d := cmp.Diff(keySets(real), keySets(fake)); d != "" {
		t.Errorf("fields (-vLLM +fake):\n%s", d)
	}
	for i, b := range fake {
		if b.seq != uint64(i) || b.topic != real[0].topic {
			t.Errorf("message %d: topic %q, number %d", i, b.topic, b.seq)
		}
	}
	if got := fmt.Sprint(fake[2].events[0]["extra_keys"]); got != "[[sql tenant-b] [sql]]" {
		t.Errorf("extra keys %s", got)
	}
	if types := eventTypes(fake[3]); types[0] != "BlockRemoved" || types[len(types)-1] != "BlockStored" {
		t.Errorf("an eviction is told as %v", types)
	}
	if types := eventTypes(fake[4]); !slices.Equal(types, []string{"AllBlocksCleared", "BlockStored"}) {
		t.Errorf("a reset is told with the next step: %v", types)
	}
}

func eventTypes(b batch) []string {
	var out []string
	for _, ev := range b.events {
		out = append(out, fmt.Sprint(ev["type"]))
	}
	return out
}

func unhex(t *testing.T, frames []string) [][]byte {
	t.Helper()
	out := make([][]byte, len(frames))
	for i, f := range frames {
		var err error
		if out[i], err = hex.DecodeString(f); err != nil {
			t.Fatal(err)
		}
	}
	return out
}

// Byte for byte, events are encoded as vLLM's own classes encode them. What
// those of 0.22 and 0.32 leave unset and a running engine sets is the kind of KV
// cache.
func TestEventForms(t *testing.T) {
	stored := epp.BlockEvent{
		Kind: epp.BlockStored, Hashes: []uint64{9561501211280363793, 15292913576410714033},
		Tokens: []uint32{1, 2, 3, 4, 5, 6, 7, 8}, BlockTokens: 4, Tier: "GPU",
	}
	for _, c := range readLines[struct {
		VLLM    string `json:"vllm"`
		Event   string `json:"event"`
		Payload string `json:"payload_hex"`
	}](t, "event_forms.jsonl") {
		form := map[string]EventForm{"0.12.0": OldArrayEvents, "0.22.1": ArrayEvents, "0.32.0": MapEvents}[c.VLLM]
		ev := stored
		switch c.Event {
		case "BlockRemoved":
			ev = epp.BlockEvent{Kind: epp.BlockRemoved, Hashes: stored.Hashes[:1], Tier: "GPU"}
		case "AllBlocksCleared":
			ev = epp.BlockEvent{Kind: epp.AllBlocksCleared}
		}
		got := encodeEvents(form, time.Unix(1, 5e8), []epp.BlockEvent{ev}, nil)
		kind := append([]byte{0xa0 + byte(len(specKind))}, specKind...)
		switch form {
		case MapEvents:
			named := append([]byte("\xb2kv_cache_spec_kind"), kind...)
			if bytes.Contains(got, named) {
				got = bytes.Replace(got, named, nil, 1)
				got = bytes.Replace(got, []byte{0x8b}, []byte{0x8a}, 1) // one entry less
			}
		case ArrayEvents:
			got = bytes.Replace(got, kind, []byte{0xc0}, 1)
		}
		if hex.EncodeToString(got) != c.Payload {
			t.Errorf("%s %s:\n got %x\nwant %s", c.VLLM, c.Event, got, c.Payload)
		}
	}
}

// The replay socket answers as the real one does: an empty frame, topic, number
// and payload of each message from the number that was asked for, then the end
// marker. Engines of the array forms leave the topic out.
func TestReplay(t *testing.T) {
	real := readLines[struct{ Frames []string }](t, "replay.jsonl")
	end := unhex(t, real[len(real)-1].Frames)
	for _, c := range []struct {
		form  EventForm
		first int // frames of a message
		end   [][]byte
	}{
		{MapEvents, 4, end},
		{ArrayEvents, 3, [][]byte{{}, endMarker, {}}},
	} {
		e := start(t, EngineConfig{EventForm: c.form, EventTopic: "kv", BufferSteps: 3})
		for i := range 5 { // messages 0 to 4, of which 2 to 4 are kept
			var got usageOf
			fetchJSON(t, e, "/v1/completions", fmt.Sprintf(`{"max_tokens":1,"prompt":"%s"}`, strings.Repeat(string(rune('a'+i)), 40)), &got)
		}
		for from, want := range map[uint64][]uint64{0: {2, 3, 4}, 4: {4}, 9: nil} {
			var seqs []uint64
			replies := replay(t, within(t), e, from)
			for _, frames := range replies[:len(replies)-1] {
				if len(frames) != c.first || len(frames[0]) != 0 {
					t.Fatalf("reply of %d frames: %x", len(frames), frames)
				}
				if c.form == MapEvents {
					seqs = append(seqs, decodeFrames(t, frames[1:]).seq)
				} else {
					seqs = append(seqs, binary.BigEndian.Uint64(frames[1]))
				}
			}
			if !slices.Equal(seqs, want) {
				t.Errorf("form %d from %d: %v, want %v", c.form, from, seqs, want)
			}
			if last := replies[len(replies)-1]; !slices.EqualFunc(last, c.end, bytes.Equal) {
				t.Errorf("form %d: end marker %x, want %x", c.form, last, c.end)
			}
		}
	}
}

// replay asks for the messages from a number on and returns all replies.
func replay(t *testing.T, ctx context.Context, e *Engine, from uint64) [][][]byte {
	t.Helper()
	dealer := zmq4.NewDealer(ctx, zmq4.WithLogger(log.New(io.Discard, "", 0)))
	defer dealer.Close()
	if err := dealer.Dial(e.ReplayEndpoint()); err != nil {
		t.Fatal(err)
	}
	if err := dealer.SendMulti(zmq4.NewMsgFrom(nil, binary.BigEndian.AppendUint64(nil, from))); err != nil {
		t.Fatal(err)
	}
	var out [][][]byte
	for {
		m, err := dealer.Recv()
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, m.Frames)
		if len(m.Frames) >= 2 && bytes.Equal(m.Frames[len(m.Frames)-2], endMarker) {
			return out
		}
	}
}

// Events that are held come later, in their order; events that are dropped leave
// a gap in the numbers and can be replayed.
func TestHeldAndDroppedEvents(t *testing.T) {
	e := start(t, EngineConfig{})
	next := subscribe(t, e, "", 1)
	ask := func(letter string) {
		t.Helper()
		var got usageOf
		fetchJSON(t, e, "/v1/completions", `{"max_tokens":1,"prompt":"`+strings.Repeat(letter, 20)+`"}`, &got)
	}
	first := func(b batch) string {
		tokens := b.events[0]["token_ids"].([]any)
		return fmt.Sprint(tokens[0])
	}
	e.HoldEvents(true)
	ask("a")
	ask("b")
	if got := replay(t, within(t), e, 0); len(got) != 1 {
		t.Errorf("held events are replayed: %d replies", len(got))
	}
	e.HoldEvents(false)
	for i, letter := range []string{"97", "98"} {
		if b := next(); b.seq != uint64(i) || first(b) != letter {
			t.Errorf("message %d: number %d of %s", i, b.seq, first(b))
		}
	}
	e.DropEvents(2)
	ask("c")
	ask("d")
	ask("e")
	if b := next(); b.seq != 4 || first(b) != "101" {
		t.Errorf("after a gap: number %d of %s", b.seq, first(b))
	}
	if got := replay(t, within(t), e, 2); len(got) != 4 {
		t.Errorf("replay of the gap: %d replies", len(got))
	}
}

// A subscriber hears the topics that begin as it asked, and several hear each
// message.
func TestSubscriptions(t *testing.T) {
	e := start(t, EngineConfig{EventTopic: "kv@a"})
	one, two := subscribe(t, e, "kv@", 1), subscribe(t, e, "kv@a", 2)
	ctx := within(t)
	deaf := zmq4.NewSub(ctx, zmq4.WithLogger(log.New(io.Discard, "", 0)))
	defer deaf.Close()
	if err := deaf.Dial(e.EventEndpoint()); err != nil {
		t.Fatal(err)
	}
	if err := deaf.SetOption(zmq4.OptionSubscribe, "kv@b"); err != nil {
		t.Fatal(err)
	}
	var got usageOf
	fetchJSON(t, e, "/v1/completions", `{"max_tokens":1,"prompt":"a prompt of a full block"}`, &got)
	if a, b := one(), two(); a.seq != 0 || b.seq != 0 {
		t.Errorf("numbers %d and %d", a.seq, b.seq)
	}
}

// An engine without events has no sockets for them and says nothing of them.
func TestNoEvents(t *testing.T) {
	e := start(t, EngineConfig{NoEvents: true})
	if status, _ := fetch(t, e, "/kv_event_sources", ""); status != 404 || e.EventEndpoint() != "" || e.ReplayEndpoint() != "" {
		t.Errorf("status %d, endpoints %q %q", status, e.EventEndpoint(), e.ReplayEndpoint())
	}
	e = start(t, EngineConfig{NoEventSources: true})
	if status, _ := fetch(t, e, "/kv_event_sources", ""); status != 404 || e.EventEndpoint() == "" {
		t.Errorf("status %d, endpoint %q", status, e.EventEndpoint())
	}
}
