package kvevents

import (
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"strconv"

	"epp.internal/epp"
)

// MaxPayload bounds one message's payload in bytes: 16 MiB, five times a
// BlockStored of a million tokens.
const MaxPayload = 16 << 20

// Reason says why something that came in was passed over. It is the value of a
// metric's label, lower snake case, stable.
type Reason string

// Reasons for which a whole message is refused.
const (
	BadFrames  Reason = "frames"    // not topic, sequence number, payload
	BadSeq     Reason = "seq"       // a sequence number that is not 8 bytes
	TooLarge   Reason = "too_large" // a payload over MaxPayload
	BadPayload Reason = "payload"   // not MessagePack, or not an event batch
)

// Reasons for which one event of a batch is passed over.
const (
	UnknownType  Reason = "unknown_type" // a kind of event that is not ours to know
	OtherGroup   Reason = "other_group"  // a cache group whose blocks are not a prefix: sliding window, mamba
	Placeholder  Reason = "placeholder"  // blocks beside the GPU that are announced without tokens
	BadHashes    Reason = "hashes"       // no hash, or one that is neither integer nor bytes
	BadTokens    Reason = "tokens"       // not BlockTokens tokens for each hash, or not token IDs
	BadBlockSize Reason = "block_size"   // 0, or absurd
	BadExtraKeys Reason = "extra_keys"   // not one entry for each block, or not what vLLM sends
	BadField     Reason = "field"        // another field of a wrong type
)

const (
	// maxBlockTokens bounds a block's size in tokens: vLLM's largest is 1,024 or
	// so, hybrid models pad to a few thousand.
	maxBlockTokens = 1 << 16
	// maxStrings bounds the strings that a Batch keeps to give out again.
	maxStrings = 1024
	// keepTokens is the most memory for tokens that a Batch keeps for the next
	// payload: 1 MiB.
	keepTokens = 1 << 18
	// defaultTier is where a block lies that names no medium: engines before
	// vLLM #19737 knew nothing else.
	defaultTier = "GPU"
)

// anonymousAdapter begins the name that stands for an adapter of which only the
// lora_id is known (vLLM before #27577). Served names come as JSON and so are
// valid UTF-8; 0xff never is, so no served name equals it.
const anonymousAdapter = "\xfflora_id:"

// Batch is one decoded message. The zero Batch is ready for use; Decode reuses
// its memory, so what it holds is valid until the next Decode into it.
type Batch struct {
	// Time is when the engine made the batch, in Unix seconds.
	Time float64
	// Rank is the data-parallel rank that the engine names; -1 where it does not.
	Rank int
	// Events are in the order of the message.
	Events []epp.BlockEvent
	// Skipped holds one reason for each event that was passed over.
	Skipped []Reason

	// The slices of Events are cut from these.
	hashes []uint64
	tokens []uint32
	media  []string
	// strings holds the few strings that come again and again: adapters, salts.
	strings map[string]string
	scratch []byte
}

// reset empties b and keeps its memory.
func (b *Batch) reset() {
	b.Time, b.Rank = 0, -1
	b.Events, b.Skipped = b.Events[:0], b.Skipped[:0]
	b.hashes, b.tokens, b.media = b.hashes[:0], b.tokens[:0], b.media[:0]
	if cap(b.tokens) > keepTokens {
		b.tokens, b.hashes, b.media, b.Events = nil, nil, nil, nil
	}
}

// intern returns s as a string that is kept for the next time.
func (b *Batch) intern(s []byte) string {
	if len(s) == 0 {
		return ""
	}
	if t, ok := b.strings[string(s)]; ok {
		return t
	}
	if b.strings == nil || len(b.strings) >= maxStrings {
		b.strings = make(map[string]string)
	}
	t := string(s)
	b.strings[t] = t
	return t
}

// Decode reads one payload into b. It knows every form that vLLM 0.12 to 0.32
// and SGLang send:
//
//	batch  [ts, events, data_parallel_rank?, …]   or  {"ts": …, "events": …, …}
//	event  ["BlockStored", block_hashes, …]       or  {"type": "BlockStored", …}
//
// The positions of an array and the keys of a map are in fields.go. What comes
// after the known positions, and unknown keys, are ignored; missing ones have
// their defaults.
//
// Decode returns an error that holds a [Reason] where nothing of the payload
// can be used; b then has no events. An event that can't be used leaves its
// reason in b.Skipped, and the rest is used.
//
// Cost: about 1 ns a token, no allocation once b has grown.
// Source: vllm/distributed/kv_events.py.
func Decode(payload []byte, b *Batch) error {
	b.reset()
	if len(payload) > MaxPayload {
		return fmt.Errorf("payload: %d bytes, at most %d: %w", len(payload), MaxPayload, reasonError(TooLarge))
	}
	r := reader{b: payload}
	switch r.class() {
	case classArray:
		b.decodeArray(&r)
	case classMap:
		b.decodeMap(&r)
	default:
		r.fail()
	}
	if r.bad || r.i != len(payload) {
		b.reset()
		return fmt.Errorf("payload: %d bytes, fault at byte %d: %w", len(payload), r.i, reasonError(BadPayload))
	}
	return nil
}

// reasonError is a Reason as an error, for ReasonOf.
type reasonError Reason

func (e reasonError) Error() string { return string(e) }

// ReasonOf returns the reason that an error of this package holds, or "".
func ReasonOf(err error) Reason {
	var e reasonError
	if errors.As(err, &e) {
		return Reason(e)
	}
	return ""
}

// decodeArray reads [ts, events, data_parallel_rank?, …].
func (b *Batch) decodeArray(r *reader) {
	n := r.array()
	if n < 2 {
		r.fail()
		return
	}
	b.Time = r.number()
	b.decodeEvents(r)
	if n > 2 {
		b.decodeRank(r)
	}
	for ; n > 3 && !r.bad; n-- {
		r.skip()
	}
}

// decodeMap reads {"ts": …, "events": …, "data_parallel_rank": …, …}.
func (b *Batch) decodeMap(r *reader) {
	seen := false
	for n := r.object(); n > 0 && !r.bad; n-- {
		switch string(r.text()) {
		case "ts":
			b.Time = r.number()
		case "events":
			if seen {
				r.fail()
				return
			}
			seen = true
			b.decodeEvents(r)
		case "data_parallel_rank":
			b.decodeRank(r)
		default:
			r.skip()
		}
	}
	if !seen {
		r.fail()
	}
}

// decodeRank reads the rank; what is no small integer leaves it unknown.
func (b *Batch) decodeRank(r *reader) {
	if r.class() != classInt {
		r.skip()
		return
	}
	if u, negative := r.integer(); !negative && u < 1<<16 {
		b.Rank = int(u)
	}
}

// decodeEvents reads the list of events.
func (b *Batch) decodeEvents(r *reader) {
	for n := r.array(); n > 0 && !r.bad; n-- {
		start := r.i
		hashes, tokens, media := len(b.hashes), len(b.tokens), len(b.media)
		var f fields
		reason := f.read(r, b)
		if reason == "" {
			reason = b.add(&f, r.b)
		}
		if reason == "" {
			continue
		}
		// Whatever of the event was read so far is taken back, and the event is
		// passed over as the plain value that it is.
		b.hashes, b.tokens, b.media = b.hashes[:hashes], b.tokens[:tokens], b.media[:media]
		*r = reader{b: r.b, i: start}
		r.skip()
		b.Skipped = append(b.Skipped, reason)
	}
}

// add checks the event that was read and puts it on the list.
func (b *Batch) add(f *fields, payload []byte) Reason {
	e := epp.BlockEvent{Kind: f.kind, Group: f.group, Tier: f.tier}
	if e.Tier == "" {
		e.Tier = defaultTier
	}
	if f.remote {
		b.scratch = append(append(b.scratch[:0], remoteTier...), e.Tier...)
		e.Tier = b.intern(b.scratch)
	}
	switch f.kind {
	case epp.AllBlocksCleared:
		// It names no blocks: whatever the endpoint holds, in each tier, is gone.
		e.Tier = ""
	case epp.BlockRemoved:
		if len(f.hashes) == 0 {
			return BadHashes
		}
		e.Hashes = f.hashes
	case epp.BlockStored:
		if reason := b.stored(&e, f, payload); reason != "" {
			return reason
		}
	default:
		return UnknownType
	}
	b.Events = append(b.Events, e)
	return ""
}

// stored fills in what only a BlockStored has.
func (b *Batch) stored(e *epp.BlockEvent, f *fields, payload []byte) Reason {
	switch {
	case f.otherGroup:
		return OtherGroup
	case e.Tier != defaultTier && (f.blockTokens == 0 || len(f.tokens) == 0):
		return Placeholder
	case len(f.hashes) == 0:
		return BadHashes
	case f.blockTokens <= 0 || f.blockTokens > maxBlockTokens:
		return BadBlockSize
	case len(f.tokens) != f.blockTokens*len(f.hashes):
		return BadTokens
	}
	e.Hashes, e.Tokens, e.BlockTokens = f.hashes, f.tokens, f.blockTokens
	e.Parent, e.HasParent = f.parent, f.hasParent
	e.Adapter, e.Salt = f.adapter, f.salt
	if e.Adapter == "" && f.adapterID > 0 {
		b.scratch = strconv.AppendUint(append(b.scratch[:0], anonymousAdapter...), f.adapterID, 10)
		e.Adapter = b.intern(b.scratch)
	}
	if f.extraKeys == 0 {
		return ""
	}
	r := reader{b: payload, i: f.extraKeys}
	if !b.extraKeys(&r, e, f.adapter) {
		return BadExtraKeys
	}
	return ""
}

// extraKeys reads what else went into the identity of each block: a list with
// an entry for each, nil or a list of
//
//	"sql"              the adapter's name, first, where the event has one
//	["a8f1…", -12]     an image's identifier and where in the block it begins
//	"a8f1…"            the same before vLLM told the place
//	"tenant-a"         the cache_salt, last string of a prompt's first block
//	<bytes>            the digest of prompt embeddings
//
// (A list of nothing but nil is not looked at.) It takes the adapter out, sets e.Salt, and leaves the rest in e.Media as
// "a8f1…@-12", "a8f1…" or "embeds:<hex>", joined by commas.
func (b *Batch) extraKeys(r *reader, e *epp.BlockEvent, adapter string) bool {
	n := r.array()
	if r.bad || n != 0 && n != len(e.Hashes) {
		return false
	}
	first := len(b.media)
	text := true
	for i := range n {
		if r.isNil() {
			b.media = append(b.media, "")
			continue
		}
		media, salt := b.blockKeys(r, adapter, i == 0 && !e.HasParent)
		if r.bad {
			return false
		}
		if salt != "" {
			e.Salt = salt
		}
		text = text && media == ""
		b.media = append(b.media, media)
	}
	if text {
		b.media = b.media[:first]
		return true
	}
	e.Media = b.media[first:len(b.media):len(b.media)]
	return true
}

// blockKeys reads the list of one block. Of a prompt's first block the last
// plain string is the salt.
func (b *Batch) blockKeys(r *reader, adapter string, prompt bool) (media, salt string) {
	b.scratch = b.scratch[:0]
	var last []byte // a plain string that waits: salt or media
	for n, i := r.array(), 0; i < n && !r.bad; i++ {
		switch r.class() {
		case classString:
			s := r.text()
			if i == 0 && adapter != "" && string(s) == adapter {
				continue
			}
			if !prompt {
				b.appendMedia(s)
				continue
			}
			if last != nil {
				b.appendMedia(last)
			}
			last = s
		case classBytes:
			b.appendMedia([]byte("embeds:"))
			b.scratch = hex.AppendEncode(b.scratch, r.text())
		case classArray:
			if r.array() != 2 {
				r.fail()
				return "", ""
			}
			b.appendMedia(r.text())
			u, _ := r.integer()
			b.scratch = strconv.AppendInt(append(b.scratch, '@'), int64(u), 10)
		default:
			r.skip()
		}
	}
	return b.intern(b.scratch), b.intern(last)
}

// appendMedia puts s behind what a block's media name holds so far.
func (b *Batch) appendMedia(s []byte) {
	if len(b.scratch) > 0 {
		b.scratch = append(b.scratch, ',')
	}
	b.scratch = append(b.scratch, s...)
}

// fold returns a hash of any length as 64 bits: the last 8 bytes, big-endian.
// For vLLM that is the number it would have sent in its integer form.
func fold(p []byte) uint64 {
	if len(p) >= 8 {
		return binary.BigEndian.Uint64(p[len(p)-8:])
	}
	var u uint64
	for _, c := range p {
		u = u<<8 | uint64(c)
	}
	return u
}
