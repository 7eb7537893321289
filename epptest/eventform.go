package epptest

import (
	"bytes"
	"time"

	"epp.internal/epp"
	"github.com/vmihailenco/msgpack/v5"
)

// EventForm is how an engine encodes its KV events. A batch is always the array
// [timestamp, [event, …], data-parallel rank].
type EventForm uint8

// The forms, by the versions of vLLM that have them.
const (
	// MapEvents: an event is a map with a "type". vLLM 0.24 and later, with the
	// fields of 0.32.
	MapEvents EventForm = iota
	// ArrayEvents: an event is an array, its type first. vLLM 0.22.
	ArrayEvents
	// OldArrayEvents: an array without the adapter's name, extra keys and group.
	// vLLM 0.12.
	OldArrayEvents
)

// specKind is the kind of KV cache of an ordinary model.
const specKind = "full_attention"

// field is one field of an event: maps have names and values, arrays the values
// alone.
type field struct {
	name  string
	value any
}

// encodeEvents returns a batch's payload. adapterID gives an adapter's number.
// Source: vllm/distributed/kv_events.py.
func encodeEvents(form EventForm, at time.Time, events []epp.BlockEvent, adapterID func(string) int) []byte {
	batch := make([]any, len(events))
	for i := range events {
		batch[i] = eventFields(form, &events[i], adapterID)
	}
	var buf bytes.Buffer
	enc := msgpack.NewEncoder(&buf)
	enc.UseCompactInts(true)
	payload := []any{float64(at.UnixNano()) / 1e9, batch, 0}
	if err := enc.Encode(payload); err != nil {
		panic(err) // a bytes.Buffer and values of our own: cannot fail
	}
	return buf.Bytes()
}

// eventFields returns an event in the order of the wire.
func eventFields(form EventForm, ev *epp.BlockEvent, adapterID func(string) int) any {
	var fields eventMap
	switch ev.Kind {
	case epp.BlockStored:
		fields = storedFields(form, ev, adapterID)
	case epp.BlockRemoved:
		fields = eventMap{{"block_hashes", ev.Hashes}, {"medium", ev.Tier}}
		if form != OldArrayEvents {
			fields = append(fields, field{"group_idx", ev.Group})
		}
	}
	fields = append(eventMap{{"type", ev.Kind.String()}}, fields...)
	if form == MapEvents {
		return fields
	}
	values := make([]any, len(fields))
	for i, f := range fields {
		values[i] = f.value
	}
	return values
}

func storedFields(form EventForm, ev *epp.BlockEvent, adapterID func(string) int) eventMap {
	fields := eventMap{
		{"block_hashes", ev.Hashes},
		{"parent_block_hash", nil},
		{"token_ids", ev.Tokens},
		{"block_size", ev.BlockTokens},
		{"lora_id", nil},
		{"medium", ev.Tier},
	}
	if ev.HasParent {
		fields[1].value = ev.Parent
	}
	if ev.Adapter != "" {
		fields[4].value = adapterID(ev.Adapter)
	}
	if form == OldArrayEvents {
		return fields
	}
	var adapter any
	if ev.Adapter != "" {
		adapter = ev.Adapter
	}
	fields = append(fields,
		field{"lora_name", adapter},
		field{"extra_keys", extraKeys(ev)},
		field{"group_idx", ev.Group},
		field{"kv_cache_spec_kind", specKind})
	if form == ArrayEvents {
		fields = append(fields, field{"kv_cache_spec_sliding_window", nil})
	}
	return fields
}

// extraKeys returns what else went into each block's identity: the adapter's
// name, and the salt for a prompt's first block; nil for a block of tokens alone.
func extraKeys(ev *epp.BlockEvent) []any {
	keys := make([]any, len(ev.Hashes))
	for i := range keys {
		var of []string
		if ev.Adapter != "" {
			of = append(of, ev.Adapter)
		}
		if ev.Salt != "" && i == 0 {
			of = append(of, ev.Salt)
		}
		if of != nil {
			keys[i] = of
		}
	}
	return keys
}

// eventMap encodes as a map whose keys keep their order.
type eventMap []field

// EncodeMsgpack implements msgpack.CustomEncoder.
func (m eventMap) EncodeMsgpack(enc *msgpack.Encoder) error {
	if err := enc.EncodeMapLen(len(m)); err != nil {
		return err
	}
	for _, f := range m {
		if err := enc.EncodeString(f.name); err != nil {
			return err
		}
		if err := enc.Encode(f.value); err != nil {
			return err
		}
	}
	return nil
}
