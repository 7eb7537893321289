package kvevents

import (
	"encoding/binary"
	"math"
	"slices"

	"epp.internal/epp"
)

// field is one of an event's fields that are read.
type field uint8

const (
	fieldUnknown field = iota // passed over
	fieldType
	fieldHashes
	fieldParent
	fieldTokens
	fieldBlockSize
	fieldAdapterID
	fieldMedium
	fieldAdapter
	fieldExtraKeys
	fieldGroup
	fieldSpecKind
	fieldSalt
	fieldLocality
)

// storedFields are the positions of an array-form BlockStored behind its tag,
// in the order in which vLLM grew them.
var storedFields = [...]field{
	fieldHashes,    // block_hashes: [uint64 | int64 | bytes]
	fieldParent,    // parent_block_hash: the same, or nil
	fieldTokens,    // token_ids: [uint32]
	fieldBlockSize, // block_size
	fieldAdapterID, // lora_id: int or nil                     vLLM #16750
	fieldMedium,    // medium: str or nil                      #19737
	fieldAdapter,   // lora_name: str or nil                   #27577
	fieldExtraKeys, // extra_keys: [[…] or nil] or nil         #33304
	fieldGroup,     // group_idx: int or nil                   #37688
	fieldSpecKind,  // kv_cache_spec_kind: str or nil          #40984
	fieldUnknown,   // kv_cache_spec_sliding_window            #40984
	fieldLocality,  // locality: LOCAL or REMOTE               #48281
}

// removedFields are the positions of an array-form BlockRemoved behind its tag.
var removedFields = [...]field{
	fieldHashes, // block_hashes
	fieldMedium, // medium
	fieldGroup,  // group_idx

	fieldLocality, // locality
}

// fieldOf returns the field that a map-form event's key names. cache_salt is
// SGLang's.
func fieldOf(key []byte) field {
	switch string(key) {
	case "type":
		return fieldType
	case "block_hashes":
		return fieldHashes
	case "parent_block_hash":
		return fieldParent
	case "token_ids":
		return fieldTokens
	case "block_size":
		return fieldBlockSize
	case "lora_id":
		return fieldAdapterID
	case "medium":
		return fieldMedium
	case "lora_name":
		return fieldAdapter
	case "extra_keys":
		return fieldExtraKeys
	case "group_idx":
		return fieldGroup
	case "kv_cache_spec_kind":
		return fieldSpecKind
	case "cache_salt":
		return fieldSalt
	case "locality":
		return fieldLocality
	}
	return fieldUnknown
}

// fields are one event as it was read, before it is checked as a whole.
type fields struct {
	kind        epp.BlockEventKind
	hashes      []uint64
	parent      uint64
	hasParent   bool
	tokens      []uint32
	blockTokens int
	adapterID   uint64
	adapter     string
	salt        string
	tier        string
	remote      bool // in a store that is not the endpoint's own
	group       int
	otherGroup  bool
	extraKeys   int // where in the payload extra_keys begin; 0: none
}

// read reads one event, of either form. It returns the reason for which the
// event can't be used, or "".
func (f *fields) read(r *reader, b *Batch) Reason {
	switch r.class() {
	case classArray:
		return f.readArray(r, b)
	case classMap:
		return f.readMap(r, b)
	}
	return UnknownType
}

// readArray reads ["BlockStored", block_hashes, …].
func (f *fields) readArray(r *reader, b *Batch) Reason {
	n := r.array()
	if n == 0 || r.class() != classString {
		return UnknownType
	}
	f.kind = kindOf(r.text())
	var positions []field
	switch f.kind {
	case epp.BlockStored:
		positions = storedFields[:]
	case epp.BlockRemoved:
		positions = removedFields[:]
	case epp.AllBlocksCleared:
	default:
		return UnknownType
	}
	for i := range n - 1 {
		if i >= len(positions) {
			r.skip()
			continue
		}
		if reason := f.value(positions[i], r, b); reason != "" {
			return reason
		}
	}
	return f.whole(r)
}

// readMap reads {"type": "BlockStored", "block_hashes": …}, in any order.
func (f *fields) readMap(r *reader, b *Batch) Reason {
	n := r.object()
	for ; n > 0 && !r.bad; n-- {
		if r.class() != classString {
			return BadField
		}
		if reason := f.value(fieldOf(r.text()), r, b); reason != "" {
			return reason
		}
	}
	return f.whole(r)
}

// whole says whether the event could be read to its end.
func (f *fields) whole(r *reader) Reason {
	if r.bad {
		return BadField
	}
	return ""
}

// value reads one field's value.
func (f *fields) value(name field, r *reader, b *Batch) Reason {
	switch name {
	case fieldUnknown:
		r.skip()
	case fieldType:
		if r.class() != classString {
			return UnknownType
		}
		if f.kind = kindOf(r.text()); f.kind == 0 {
			return UnknownType
		}
	case fieldHashes:
		return f.readHashes(r, b)
	case fieldParent:
		if r.isNil() {
			return ""
		}
		f.hasParent = true
		var ok bool
		if f.parent, ok = readHash(r); !ok {
			return BadHashes
		}
	case fieldTokens:
		return f.readTokens(r, b)
	case fieldBlockSize:
		return f.readBlockSize(r)
	case fieldAdapterID:
		f.adapterID = optionalInt(r)
	case fieldGroup:
		f.group = int(optionalInt(r) & math.MaxInt32)
	case fieldExtraKeys:
		f.readExtraKeys(r, b)
	default:
		return f.readName(name, r, b)
	}
	return ""
}

// readName reads one of the fields that are a string or nil.
func (f *fields) readName(name field, r *reader, b *Batch) Reason {
	if r.isNil() {
		return ""
	}
	if r.class() != classString {
		return BadField
	}
	s := r.text()
	switch name {
	case fieldMedium:
		f.tier = tierOf(s, b)
	case fieldAdapter:
		f.adapter = b.intern(s)
	case fieldSalt:
		f.salt = b.intern(s)
	case fieldLocality:
		f.remote = string(s) == "REMOTE"
	case fieldSpecKind:
		f.otherGroup = !prefixKind(s)
	}
	return ""
}

// readHashes reads a list of hashes into b's memory.
func (f *fields) readHashes(r *reader, b *Batch) Reason {
	if r.class() != classArray {
		return BadHashes
	}
	first := len(b.hashes)
	for n := r.array(); n > 0 && !r.bad; n-- {
		if p := r.b[r.i:]; len(p) >= 9 && p[0] == codeUint64 { // nearly all are
			b.hashes = append(b.hashes, binary.BigEndian.Uint64(p[1:9]))
			r.i += 9
			continue
		}
		h, ok := readHash(r)
		if !ok {
			return BadHashes
		}
		b.hashes = append(b.hashes, h)
	}
	f.hashes = b.hashes[first:len(b.hashes):len(b.hashes)]
	return ""
}

// readHash reads one hash: an integer, of which SGLang's may be negative, or
// the digest's bytes.
func readHash(r *reader) (uint64, bool) {
	switch r.class() {
	case classInt:
		u, _ := r.integer()
		return u, !r.bad
	case classBytes:
		p := r.text()
		return fold(p), len(p) > 0
	}
	return 0, false
}

// readTokens reads a list of token IDs into b's memory. This loop is most of
// Decode, so the forms that nearly all IDs of a real vocabulary have are read with
// one load each; the last bytes of a payload and all else go the long way.
func (f *fields) readTokens(r *reader, b *Batch) Reason {
	if r.class() != classArray {
		return BadTokens
	}
	n := r.array()
	first := len(b.tokens)
	b.tokens = slices.Grow(b.tokens, n)[:first+n]
	out := b.tokens[first : first+n : first+n]
	p := r.b[r.i:]
	for k := range out {
		if len(p) >= 5 {
			v := binary.BigEndian.Uint32(p[1:5])
			if p[0] == codeUint16 {
				out[k], p = v>>16, p[3:]
				continue
			}
			if p[0] == codeUint32 {
				out[k], p = v, p[5:]
				continue
			}
			if p[0] <= 0x7f {
				out[k], p = uint32(p[0]), p[1:]
				continue
			}
		}
		r.i = len(r.b) - len(p)
		if r.class() != classInt {
			return BadTokens
		}
		u, negative := r.integer()
		if negative || u > math.MaxUint32 {
			return BadTokens
		}
		out[k], p = uint32(u), r.b[r.i:]
	}
	r.i = len(r.b) - len(p)
	f.tokens = out
	return ""
}

// readBlockSize reads a block's size in tokens.
func (f *fields) readBlockSize(r *reader) Reason {
	if r.isNil() {
		return ""
	}
	if r.class() != classInt {
		return BadBlockSize
	}
	u, negative := r.integer()
	if negative || u > maxBlockTokens {
		return BadBlockSize
	}
	f.blockTokens = int(u)
	return ""
}

// readExtraKeys notes where extra_keys begin, for the adapter's name must be
// known before they are read. SGLang's older events have a map in this place,
// whose cache_salt is read.
func (f *fields) readExtraKeys(r *reader, b *Batch) {
	switch r.class() {
	case classArray:
		start := r.i
		n := r.array()
		if !r.bad && allNil(r.b[r.i:r.i+n]) {
			r.i += n // plain text, nearly always
			return
		}
		r.i, f.extraKeys = start, start
		r.skip()
	case classMap:
		for n := r.object(); n > 0 && !r.bad; n-- {
			key := r.text()
			if string(key) == "cache_salt" && r.class() == classString {
				f.salt = b.intern(r.text())
				continue
			}
			r.skip()
		}
	default:
		r.skip()
	}
}

// allNil says whether each of these bytes is a nil.
func allNil(p []byte) bool {
	for _, c := range p {
		if c != codeNil {
			return false
		}
	}
	return true
}

// optionalInt reads an integer that is not negative; 0 for anything else.
func optionalInt(r *reader) uint64 {
	if r.class() != classInt {
		r.skip()
		return 0
	}
	u, negative := r.integer()
	if negative {
		return 0
	}
	return u
}

// kindOf returns the kind of event that a tag names, or 0.
func kindOf(tag []byte) epp.BlockEventKind {
	switch string(tag) {
	case "BlockStored":
		return epp.BlockStored
	case "BlockRemoved":
		return epp.BlockRemoved
	case "AllBlocksCleared":
		return epp.AllBlocksCleared
	}
	return 0
}

// remoteTier begins the name of a tier whose blocks lie in a store elsewhere: what
// is removed there is still held here.
const remoteTier = "REMOTE:"

// tierOf returns a medium's name; the common ones cost nothing.
func tierOf(medium []byte, b *Batch) string {
	switch string(medium) {
	case "GPU":
		return "GPU"
	case "CPU":
		return "CPU"
	case "STORAGE":
		return "STORAGE"
	}
	return b.intern(medium)
}

// prefixKind says whether the blocks of a cache group of this kind make up a
// prefix without holes. Those of a sliding window or a state-space group don't.
// Source: KVCacheSpecKind in vllm/v1/kv_cache_interface.py.
func prefixKind(kind []byte) bool {
	switch string(kind) {
	case "full_attention", "mla_attention", "sink_full_attention":
		return true
	}
	return false
}
