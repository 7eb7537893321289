package kvevents

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"
	"github.com/google/go-cmp/cmp"
	"github.com/vmihailenco/msgpack/v5"
	"pgregory.net/rapid"

	"epp.internal/epp"
)

// frame is one line of a capture.
type frame struct {
	VLLM    string
	Seq     uint64
	Frames  []string `json:"frames_hex"`
	Payload string   `json:"payload_hex"`
	Decoded any
}

func (f *frame) payload(t testing.TB) []byte {
	s := f.Payload
	if s == "" {
		s = f.Frames[2]
	}
	b, err := hex.DecodeString(s)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// capture reads a file of captured messages.
func capture(t testing.TB, name string) []frame {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("testdata", "frames", name+".jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	var frames []frame
	in := bufio.NewScanner(bytes.NewReader(b))
	in.Buffer(nil, 1<<20)
	for in.Scan() {
		var f frame
		d := json.NewDecoder(bytes.NewReader(in.Bytes()))
		d.UseNumber()
		if err := d.Decode(&f); err != nil {
			t.Fatal(err)
		}
		frames = append(frames, f)
	}
	return frames
}

// captures are all files of messages, and how many events of each kind they hold.
var captures = map[string]string{
	"base":        "93 BlockStored",
	"lora-evict":  "95 BlockStored, 77 BlockRemoved",
	"cleared":     "1 BlockStored, 2 AllBlocksCleared",
	"report-full": "5 BlockStored, 1 AllBlocksCleared",
	"usage":       "11 BlockStored",
	"algos":       "7 BlockStored",
	"old-formats": "8 BlockStored, 8 BlockRemoved, 8 AllBlocksCleared",
}

// Every captured payload decodes to what Python's msgpack made of it.
func TestDecodeCaptures(t *testing.T) {
	for name, want := range captures {
		t.Run(name, func(t *testing.T) {
			var b Batch
			counts := map[epp.BlockEventKind]int{}
			for i, f := range capture(t, name) {
				if err := Decode(f.payload(t), &b); err != nil {
					t.Fatalf("message %d: %v", i, err)
				}
				want, at := naive(f.Decoded)
				if diff := cmp.Diff(want, b.Events); diff != "" || len(b.Skipped) > 0 {
					t.Errorf("message %d: skipped %v, want none; events (-want +got):\n%s", i, b.Skipped, diff)
				}
				if b.Time != at || b.Rank != 0 {
					t.Errorf("message %d: time %v, rank %d; want %v, 0", i, b.Time, b.Rank, at)
				}
				for _, e := range b.Events {
					counts[e.Kind]++
				}
			}
			if got := kinds(counts); got != want {
				t.Errorf("events = %s, want %s", got, want)
			}
		})
	}
}

func kinds(counts map[epp.BlockEventKind]int) string {
	var s []string
	for k := epp.BlockStored; k <= epp.AllBlocksCleared; k++ {
		if counts[k] > 0 {
			s = append(s, fmt.Sprintf("%d %s", counts[k], k))
		}
	}
	return strings.Join(s, ", ")
}

// naive is the slow twin of Decode for what real engines send: it walks what a
// general MessagePack library made of the payload.
func naive(batch any) (events []epp.BlockEvent, at float64) {
	a := batch.([]any)
	at, _ = a[0].(json.Number).Float64()
	for _, e := range a[1].([]any) {
		m, ok := e.(map[string]any)
		if !ok {
			m = named(e.([]any))
		}
		ev := epp.BlockEvent{Group: int(number(m["group_idx"])), Tier: "GPU"}
		switch m["type"] {
		case "AllBlocksCleared":
			ev.Kind, ev.Tier = epp.AllBlocksCleared, ""
		case "BlockRemoved":
			ev.Kind = epp.BlockRemoved
		case "BlockStored":
			ev.Kind = epp.BlockStored
			ev.BlockTokens = int(number(m["block_size"]))
			ev.HasParent = m["parent_block_hash"] != nil
			ev.Parent = hash(m["parent_block_hash"])
			ev.Adapter, _ = m["lora_name"].(string)
			for _, token := range m["token_ids"].([]any) {
				ev.Tokens = append(ev.Tokens, uint32(number(token)))
			}
			if keys, _ := m["extra_keys"].([]any); len(keys) > 0 && keys[0] != nil && !ev.HasParent {
				first := keys[0].([]any)
				if last, _ := first[len(first)-1].(string); last != ev.Adapter {
					ev.Salt = last
				}
			}
		}
		hashes, _ := m["block_hashes"].([]any)
		for _, h := range hashes {
			ev.Hashes = append(ev.Hashes, hash(h))
		}
		events = append(events, ev)
	}
	return events, at
}

// named gives an array-form event's values their names.
func named(a []any) map[string]any {
	names := []string{"type", "block_hashes", "medium", "group_idx"}
	if a[0] == "BlockStored" {
		names = []string{"type", "block_hashes", "parent_block_hash", "token_ids", "block_size", "lora_id", "medium", "lora_name", "extra_keys", "group_idx", "kv_cache_spec_kind", "kv_cache_spec_sliding_window"}
	}
	m := map[string]any{}
	for i, v := range a {
		m[names[i]] = v
	}
	return m
}

func number(v any) uint64 {
	n, _ := v.(json.Number)
	var u uint64
	fmt.Sscan(string(n), &u)
	return u
}

func hash(v any) uint64 {
	if m, ok := v.(map[string]any); ok {
		digest, _ := hex.DecodeString(m["__bytes__"].(string))
		return binary.BigEndian.Uint64(digest[len(digest)-8:])
	}
	return number(v)
}

// One prompt's blocks have other hashes under each algorithm and seed, but the
// bytes of a digest and its integer form are one hash.
func TestHashesAsBytesAndIntegers(t *testing.T) {
	var b Batch
	seen := map[string]int{}
	for _, f := range capture(t, "algos") {
		if err := Decode(f.payload(t), &b); err != nil {
			t.Fatal(err)
		}
		seen[fmt.Sprint(b.Events[0].Hashes)]++
	}
	if len(seen) < 5 {
		t.Errorf("distinct hashes = %v, want one for each algorithm and seed", seen)
	}
	digest := []byte("0123456789abcdef")
	for _, h := range []any{digest, digest[8:], binary.BigEndian.Uint64(digest[8:])} {
		if err := Decode(encode(t, []any{1.5, []any{[]any{"BlockRemoved", []any{h}}}}), &b); err != nil || len(b.Events) != 1 {
			t.Fatalf("%v: %v, events %v", h, err, b.Events)
		}
		if got := b.Events[0].Hashes[0]; got != binary.BigEndian.Uint64([]byte("89abcdef")) {
			t.Errorf("hash %v = %x, want the last 8 bytes", h, got)
		}
	}
}

// encode writes a value as MessagePack, integers as short as they go.
func encode(t testing.TB, v any) []byte {
	t.Helper()
	var b bytes.Buffer
	e := msgpack.NewEncoder(&b)
	e.UseCompactInts(true)
	if err := e.Encode(v); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// TestDecode runs the worked examples of testdata/decode: a payload written as
// JSON, where {"bytes": "00ff"} stands for bytes, {"nil": 1} for nil as such.
func TestDecode(t *testing.T) {
	var b Batch
	datadriven.RunTest(t, "testdata/decode", func(t *testing.T, d *datadriven.TestData) string {
		var v any
		in := json.NewDecoder(strings.NewReader(d.Input))
		in.UseNumber()
		if err := in.Decode(&v); err != nil {
			d.Fatalf(t, "%v", err)
		}
		err := Decode(encode(t, plain(v)), &b)
		return describe(&b, err)
	})
}

// plain turns what encoding/json made into what MessagePack would say.
func plain(v any) any {
	switch v := v.(type) {
	case json.Number:
		var u uint64
		if _, err := fmt.Sscan(v.String(), &u); err == nil && !strings.ContainsAny(v.String(), ".-") {
			return u
		}
		if i, err := v.Int64(); err == nil {
			return i
		}
		f, _ := v.Float64()
		return f
	case []any:
		out := make([]any, len(v))
		for i := range v {
			out[i] = plain(v[i])
		}
		return out
	case map[string]any:
		if s, ok := v["bytes"].(string); ok && len(v) == 1 {
			b, _ := hex.DecodeString(s)
			return b
		}
		out := map[string]any{}
		for k := range v {
			out[k] = plain(v[k])
		}
		return out
	}
	return v
}

// describe writes a batch as text, one event a line.
func describe(b *Batch, err error) string {
	var s strings.Builder
	if err != nil {
		fmt.Fprintf(&s, "error: %v (reason %q)\n", err, ReasonOf(err))
	}
	if b.Rank >= 0 {
		fmt.Fprintf(&s, "rank %d\n", b.Rank)
	}
	for _, e := range b.Events {
		fmt.Fprintf(&s, "%s hashes=%v", e.Kind, e.Hashes)
		if e.Kind == epp.BlockStored {
			if e.HasParent {
				fmt.Fprintf(&s, " parent=%d", e.Parent)
			}
			fmt.Fprintf(&s, " tokens=%v of %d", e.Tokens, e.BlockTokens)
		}
		for _, f := range [...][2]string{{"adapter", e.Adapter}, {"salt", e.Salt}, {"tier", e.Tier}} {
			if f[1] != "" {
				fmt.Fprintf(&s, " %s=%q", f[0], f[1])
			}
		}
		if e.Media != nil {
			fmt.Fprintf(&s, " media=%q", e.Media)
		}
		if e.Group > 0 {
			fmt.Fprintf(&s, " group=%d", e.Group)
		}
		s.WriteString("\n")
	}
	for _, r := range b.Skipped {
		fmt.Fprintf(&s, "skipped: %s\n", r)
	}
	return s.String()
}

// Whatever a general library encodes, in either form, with the map's keys in any
// order and unknown ones between them, decodes to the same event.
func TestDecodeReadsWhatWasEncoded(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		size := rapid.IntRange(1, 4).Draw(rt, "size")
		hashes := rapid.SliceOfN(rapid.Uint64(), 1, 4).Draw(rt, "hashes")
		tokens := rapid.SliceOfN(rapid.Uint32(), size*len(hashes), size*len(hashes)).Draw(rt, "tokens")
		want := epp.BlockEvent{Kind: epp.BlockStored, Hashes: hashes, Tokens: tokens, BlockTokens: size, Tier: "GPU"}
		var parent, adapter any
		if rapid.Bool().Draw(rt, "parent") {
			want.Parent, want.HasParent = rapid.Uint64().Draw(rt, "hash"), true
			parent = want.Parent
		}
		if rapid.Bool().Draw(rt, "lora") {
			want.Adapter = rapid.StringN(1, 8, -1).Draw(rt, "adapter")
			adapter = want.Adapter
		}
		want.Group = rapid.IntRange(0, 3).Draw(rt, "group")
		array := []any{"BlockStored", hashes, parent, tokens, size, nil, "GPU", adapter, nil, want.Group, "full_attention", nil, "LOCAL", "future"}
		object := map[string]any{"type": "BlockStored", "block_hashes": hashes, "parent_block_hash": parent, "token_ids": tokens, "block_size": size,
			"lora_name": adapter, "group_idx": want.Group, "future": map[string]any{"a": []any{1.5, nil, true}}}
		for _, event := range []any{array, object} {
			for _, batch := range []any{[]any{1.5, []any{event}, 3, "future"}, map[string]any{"ts": 1.5, "events": []any{event}, "data_parallel_rank": 3}} {
				var b Batch
				if err := Decode(encode(t, batch), &b); err != nil {
					rt.Fatal(err)
				}
				if diff := cmp.Diff([]epp.BlockEvent{want}, b.Events); diff != "" || b.Time != 1.5 || b.Rank != 3 {
					rt.Errorf("%T: time %v, rank %d, skipped %v, events (-want +got):\n%s", event, b.Time, b.Rank, b.Skipped, diff)
				}
			}
		}
	})
}

// A payload that was cut at any byte is refused whole: half a batch would store
// blocks whose removal was in the other half.
func TestDecodeCutAnywhere(t *testing.T) {
	var b Batch
	for _, name := range []string{"cleared", "old-formats"} {
		for _, f := range capture(t, name) {
			p := f.payload(t)
			for n := range p {
				if err := Decode(p[:n], &b); ReasonOf(err) != BadPayload || len(b.Events) > 0 {
					t.Fatalf("%s: first %d of %d bytes: error %v, %d events; want %q, none", name, n, len(p), err, len(b.Events), BadPayload)
				}
			}
			if err := Decode(append(p, 0xc0), &b); ReasonOf(err) != BadPayload {
				t.Fatalf("a byte more: error %v, want %q", err, BadPayload)
			}
		}
	}
}

// What claims to be long, or is deep, costs no more than its bytes.
func TestDecodeIsBounded(t *testing.T) {
	var b Batch
	huge := []byte{0xdd, 0xff, 0xff, 0xff, 0xff, 0xc0}
	if err := Decode(huge, &b); ReasonOf(err) != BadPayload {
		t.Errorf("array of 2^32-1: %v", err)
	}
	deep := append(bytes.Repeat([]byte{0x92, 0xc0}, 100_000), 0xc0)
	if err := Decode(append([]byte{0x92, 0x01}, deep...), &b); ReasonOf(err) != BadPayload {
		t.Errorf("100,000 deep: %v", err)
	}
	if err := Decode(make([]byte, 64<<20), &b); ReasonOf(err) != TooLarge {
		t.Errorf("64 MiB: %v", err)
	}
}

// FuzzDecode: no payload ends the process, and no event breaks its invariants.
func FuzzDecode(f *testing.F) {
	for name := range captures {
		for i, c := range capture(f, name) {
			if i < 8 {
				f.Add(c.payload(f))
			}
		}
	}
	var b Batch
	f.Fuzz(func(t *testing.T, payload []byte) {
		err := Decode(payload, &b)
		if err != nil && (len(b.Events) > 0 || ReasonOf(err) == "") {
			t.Errorf("error %v with %d events, reason %q", err, len(b.Events), ReasonOf(err))
		}
		for _, e := range b.Events {
			switch e.Kind {
			case epp.BlockStored:
				if len(e.Hashes) == 0 || e.BlockTokens <= 0 || len(e.Tokens) != e.BlockTokens*len(e.Hashes) || e.Media != nil && len(e.Media) != len(e.Hashes) {
					t.Errorf("stored %+v", e)
				}
			case epp.BlockRemoved:
				if len(e.Hashes) == 0 || e.Tokens != nil {
					t.Errorf("removed %+v", e)
				}
			case epp.AllBlocksCleared:
			default:
				t.Errorf("kind %d", e.Kind)
			}
		}
	})
}

// sixteen is one BlockStored of 16 blocks of 16 tokens, as vLLM 0.32 sends it.
func sixteen(t testing.TB) []byte {
	hashes, tokens, keys := []any{}, []any{}, []any{}
	for i := range 16 {
		hashes = append(hashes, 0x9e3779b97f4a7c15*uint64(i+1))
		keys = append(keys, nil)
	}
	for i := range 256 {
		tokens = append(tokens, uint32(i*i*37)%151_936)
	}
	return encode(t, []any{1795983860.25, []any{map[string]any{"type": "BlockStored", "block_hashes": hashes, "parent_block_hash": uint64(1) << 63, "token_ids": tokens,
		"block_size": 16, "lora_id": nil, "medium": "GPU", "lora_name": nil, "extra_keys": keys, "group_idx": 0, "kv_cache_spec_kind": "full_attention"}}, 0})
}

// Decoding into a used Batch allocates nothing, with an adapter and a salt too.
func TestDecodeAllocatesNothing(t *testing.T) {
	var b Batch
	payloads := [][]byte{sixteen(t)}
	for _, f := range capture(t, "lora-evict") {
		payloads = append(payloads, f.payload(t))
	}
	all := func() {
		for _, p := range payloads {
			if err := Decode(p, &b); err != nil {
				t.Fatal(err)
			}
		}
	}
	all()
	if n := testing.AllocsPerRun(100, all); n != 0 {
		t.Errorf("allocations = %v, want 0", n)
	}
}

func BenchmarkDecode16Blocks(b *testing.B) {
	payload := sixteen(b)
	var batch Batch
	b.SetBytes(int64(len(payload)))
	b.ReportAllocs()
	for b.Loop() {
		if err := Decode(payload, &batch); err != nil || len(batch.Events) != 1 {
			b.Fatal(err, batch.Skipped)
		}
	}
}
