// Package block turns token IDs into chained block hashes: step 3 of a
// request's way in, and what kvindex does with the tokens of a KV event.
//
// A block is a fixed number of tokens (16 by default in vLLM). Its hash is the
// XXH64 of its tokens with its parent's hash as the seed, so one 64-bit number
// names a whole path from the root: two prompts have the same i-th hash only if
// they agree on everything before it too. The parent of a prompt's first block
// is a [Root]: what else prompts must share before an engine would reuse one's
// blocks for the other, and the process [Key].
//
// Only full blocks have a hash; the tokens after the last full one have none,
// because engines do not reuse them either.
//
//	root := key.Root(block.Root{Adapter: "sql", BlockTokens: 16})
//	chain := block.AppendChain(nil, root, tokens, 16) // len(tokens)/16 hashes
//
// The hashes are ours alone. An engine's own block hashes depend on its version
// and settings; kvindex treats them as opaque names.
package block

import (
	"encoding/binary"
	"math/bits"
	"slices"
)

// The primes of XXH64.
// Source: github.com/Cyan4973/xxHash, doc/xxhash_spec.md, "XXH64 Algorithm".
const (
	prime1 uint64 = 0x9E3779B185EBCA87
	prime2 uint64 = 0xC2B2AE3D27D4EB4F
	prime3 uint64 = 0x165667B19E3779F9
	prime4 uint64 = 0x85EBCA77C2B2AE63
	prime5 uint64 = 0x27D4EB2F165667C5
)

// mediaDomain is mixed into the seed under which media are hashed, so that no
// block of tokens can be crafted that hashes like a picture: fractional bits of
// the square root of 7.
const mediaDomain uint64 = 0xA54FF53A5F1D36F1

// Key is a process's secret, drawn at start. Chains of two keys never meet, so
// hashes that leave the process do not tell which tokens they stand for, and
// colliding prompts are harder to craft. XXH64 is no cryptographic hash: the
// key hides, it proves nothing.
type Key uint64

// Root is what two prompts must have in common before their blocks can be the
// same, besides the tokens.
type Root struct {
	Adapter     string // LoRA adapter's served name; empty for the base model
	Salt        string // the request's cache_salt; empty for none
	BlockTokens int    // tokens per block: chains of two sizes never meet
}

// Root returns the parent hash of a prompt's first block. The strings are
// hashed with their lengths, so no two roots share an encoding.
func (k Key) Root(r Root) uint64 {
	var space [64]uint32
	words := append(space[:0], uint32(r.BlockTokens))
	words = appendString(words, r.Adapter)
	words = appendString(words, r.Salt)
	return Extend(uint64(k), words)
}

// appendString appends the length of s in bytes and then its bytes, four to a
// word, little-endian, the last word filled up with zeros.
func appendString(dst []uint32, s string) []uint32 {
	dst = append(dst, uint32(len(s)))
	for len(s) >= 4 {
		dst = append(dst, uint32(s[0])|uint32(s[1])<<8|uint32(s[2])<<16|uint32(s[3])<<24)
		s = s[4:]
	}
	if len(s) > 0 {
		var tail [4]byte
		copy(tail[:], s)
		dst = append(dst, binary.LittleEndian.Uint32(tail[:]))
	}
	return dst
}

// AppendChain appends to dst the hash of each full block of tokens, in order,
// beginning after parent: len(tokens)/blockTokens hashes. It appends nothing if
// blockTokens is not positive.
func AppendChain(dst []uint64, parent uint64, tokens []uint32, blockTokens int) []uint64 {
	if blockTokens <= 0 {
		return dst
	}
	if blockTokens == 16 {
		return appendChain16(dst, parent, tokens)
	}
	for len(tokens) >= blockTokens {
		parent = Extend(parent, tokens[:blockTokens])
		dst = append(dst, parent)
		tokens = tokens[blockTokens:]
	}
	return dst
}

// appendChain16 is AppendChain for blocks of 16 tokens. What does not depend on
// the parent comes first: a chain is as slow as the path from one parent to the
// next.
func appendChain16(dst []uint64, parent uint64, tokens []uint32) []uint64 {
	from := len(dst)
	dst = slices.Grow(dst, len(tokens)/16)[:from+len(tokens)/16]
	for i := from; i < len(dst) && len(tokens) >= 16; i++ {
		t := (*[16]uint32)(tokens)
		tokens = tokens[16:]
		a1, b1 := pair(t[0], t[1])*prime2, pair(t[8], t[9])*prime2
		a2, b2 := pair(t[2], t[3])*prime2, pair(t[10], t[11])*prime2
		a3, b3 := pair(t[4], t[5])*prime2, pair(t[12], t[13])*prime2
		a4, b4 := pair(t[6], t[7])*prime2, pair(t[14], t[15])*prime2
		v1 := bits.RotateLeft64(bits.RotateLeft64(parent+(a1+prime1+prime2), 31)*prime1+b1, 31) * prime1
		v2 := bits.RotateLeft64(bits.RotateLeft64(parent+(a2+prime2), 31)*prime1+b2, 31) * prime1
		v3 := bits.RotateLeft64(bits.RotateLeft64(parent+a3, 31)*prime1+b3, 31) * prime1
		v4 := bits.RotateLeft64(bits.RotateLeft64(parent+(a4-prime1), 31)*prime1+b4, 31) * prime1
		h := bits.RotateLeft64(v1, 1) + bits.RotateLeft64(v2, 7) + bits.RotateLeft64(v3, 12) + bits.RotateLeft64(v4, 18)
		h = merge(merge(merge(merge(h, v1), v2), v3), v4) + 16*4
		h = (h ^ h>>33) * prime2
		h = (h ^ h>>29) * prime3
		parent = h ^ h>>32
		dst[i] = parent
	}
	return dst
}

// ExtendMedia is Extend for a block that holds something besides text: media
// names what it is (an image's hash, say), and where it lies in the block. With
// empty media it is Extend.
func ExtendMedia(parent uint64, media string, tokens []uint32) uint64 {
	if media != "" {
		var space [64]uint32
		parent = Extend(parent^mediaDomain, appendString(space[:0], media))
	}
	return Extend(parent, tokens)
}

// Extend returns the hash of the block with these tokens after parent: the
// XXH64 of the tokens, each as four bytes little-endian, with parent as seed.
func Extend(parent uint64, tokens []uint32) uint64 {
	size := uint64(len(tokens)) * 4
	var h uint64
	if len(tokens) >= 8 {
		v1 := parent + prime1 + prime2
		v2 := parent + prime2
		v3 := parent
		v4 := parent - prime1
		for len(tokens) >= 8 {
			t := (*[8]uint32)(tokens)
			v1 = round(v1, pair(t[0], t[1]))
			v2 = round(v2, pair(t[2], t[3]))
			v3 = round(v3, pair(t[4], t[5]))
			v4 = round(v4, pair(t[6], t[7]))
			tokens = tokens[8:]
		}
		h = bits.RotateLeft64(v1, 1) + bits.RotateLeft64(v2, 7) +
			bits.RotateLeft64(v3, 12) + bits.RotateLeft64(v4, 18)
		h = merge(merge(merge(merge(h, v1), v2), v3), v4)
	} else {
		h = parent + prime5
	}
	h += size
	for len(tokens) >= 2 {
		h = bits.RotateLeft64(h^round(0, pair(tokens[0], tokens[1])), 27)*prime1 + prime4
		tokens = tokens[2:]
	}
	if len(tokens) > 0 {
		h = bits.RotateLeft64(h^uint64(tokens[0])*prime1, 23)*prime2 + prime3
	}
	h = (h ^ h>>33) * prime2
	h = (h ^ h>>29) * prime3
	return h ^ h>>32
}

func pair(low, high uint32) uint64 { return uint64(low) | uint64(high)<<32 }

func round(v, input uint64) uint64 { return bits.RotateLeft64(v+input*prime2, 31) * prime1 }

func merge(h, v uint64) uint64 { return (h^round(0, v))*prime1 + prime4 }
