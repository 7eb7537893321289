//go:build vllm

package vllm

import (
	"context"
	"encoding/binary"
	"fmt"
	"maps"
	"math"
	"slices"
	"testing"
	"time"

	"github.com/go-zeromq/zmq4"
	"github.com/vmihailenco/msgpack/v5"
)

// event is one KV event as a general MessagePack reader sees it.
type event map[string]any

// batch is one message of an engine's history.
type batch struct {
	seq     uint64
	payload []byte
	events  []event
}

// history asks an engine's replay socket for all it ever published: its buffer
// holds 10,000 batches, more than any of these tests makes. The reader is zmq4's
// and msgpack's, none of ours.
func (e *server) history(t *testing.T) (all []batch) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	s := zmq4.NewDealer(ctx)
	defer s.Close()
	if err := s.Dial("tcp://" + e.replay); err != nil {
		t.Fatal(err)
	}
	if err := s.SendMulti(zmq4.NewMsgFrom(nil, make([]byte, 8))); err != nil {
		t.Fatal(err)
	}
	for {
		m, err := s.Recv()
		if err != nil {
			t.Fatalf("replay of engine %s after %d batches: %v", e.name, len(all), err)
		}
		if len(m.Frames) != 4 || len(m.Frames[2]) != 8 {
			t.Fatalf("replay of engine %s: frames %q", e.name, m.Frames)
		}
		seq := binary.BigEndian.Uint64(m.Frames[2])
		if seq == math.MaxUint64 {
			return all
		}
		if seq != uint64(len(all)) {
			t.Fatalf("replay of engine %s: batch %d stands at %d", e.name, seq, len(all))
		}
		all = append(all, batch{seq, m.Frames[3], readBatch(t, m.Frames[3])})
	}
}

// readBatch reads [time, [event, …], rank].
func readBatch(t *testing.T, payload []byte) (events []event) {
	t.Helper()
	var fields []any
	if err := msgpack.Unmarshal(payload, &fields); err != nil || len(fields) < 2 {
		t.Fatalf("a batch of %d fields: %v", len(fields), err)
	}
	list, ok := fields[1].([]any)
	if !ok {
		t.Fatalf("events are a %T", fields[1])
	}
	for _, one := range list {
		m, ok := one.(map[string]any)
		if !ok {
			t.Fatalf("an event is a %T", one)
		}
		events = append(events, m)
	}
	return events
}

// hashes are the names of an event's blocks.
func (e event) hashes(t *testing.T) (names []string) {
	list, ok := e["block_hashes"].([]any)
	if !ok {
		t.Fatalf("block_hashes is a %T", e["block_hashes"])
	}
	for _, h := range list {
		names = append(names, fmt.Sprint(h))
	}
	return names
}

// held counts what an engine says it holds: by each block's name, how many
// physical copies. vLLM keeps two where two requests computed a block at the same
// time, and tells of each when it is stored and when it is removed.
func held(t *testing.T, all []batch) map[string]int {
	t.Helper()
	copies := map[string]int{}
	for _, b := range all {
		for _, e := range b.events {
			switch e["type"] {
			case "BlockStored":
				for _, h := range e.hashes(t) {
					copies[h]++
				}
			case "BlockRemoved":
				for _, h := range e.hashes(t) {
					if copies[h]--; copies[h] == 0 {
						delete(copies, h)
					} else if copies[h] < 0 {
						t.Fatalf("batch %d removes a block that is not there", b.seq)
					}
				}
			case "AllBlocksCleared":
				clear(copies)
			default:
				t.Fatalf("event of type %v", e["type"])
			}
		}
	}
	return copies
}

// duplicates is how many blocks have a second copy.
func duplicates(copies map[string]int) (n int) {
	for _, c := range copies {
		if c > 1 {
			n++
		}
	}
	return n
}

// form describes the shape of an event: its keys, each with the kind of its value.
func (e event) form() string {
	out := fmt.Sprint(e["type"])
	for _, key := range slices.Sorted(maps.Keys(e)) {
		out += fmt.Sprintf(" %s:%s", key, kind(e[key]))
	}
	return out
}

// kind is a MessagePack value's type: integers of all widths are one.
func kind(v any) string {
	switch v := v.(type) {
	case nil:
		return "nil"
	case int8, int16, int32, int64, uint8, uint16, uint32, uint64:
		return "int"
	case string:
		return "text"
	case []byte:
		return "bytes"
	case []any:
		if len(v) == 0 {
			return "[]"
		}
		return "[" + kind(v[0]) + "]"
	}
	return fmt.Sprintf("%T", v)
}
