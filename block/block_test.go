package block

import (
	"encoding/binary"
	"testing"

	"github.com/cespare/xxhash/v2"
	"pgregory.net/rapid"
)

// reference is Extend by the library.
func reference(parent uint64, tokens []uint32) uint64 {
	var bytes []byte
	for _, t := range tokens {
		bytes = binary.LittleEndian.AppendUint32(bytes, t)
	}
	d := xxhash.NewWithSeed(parent)
	d.Write(bytes)
	return d.Sum64()
}

// Blocks of every length, empty ones too, hash as the xxhash library says.
func TestExtendIsXXH64(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		parent := rapid.Uint64().Draw(t, "parent")
		tokens := rapid.SliceOfN(rapid.Uint32(), 0, 70).Draw(t, "tokens")
		if got, want := Extend(parent, tokens), reference(parent, tokens); got != want {
			t.Fatalf("Extend(%#x, %d tokens) = %#x, want %#x", parent, len(tokens), got, want)
		}
	})
}

// A chain is the blocks one after another, each with its parent as the seed;
// tokens beyond the last full block count for nothing.
func TestAppendChain(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		parent := rapid.Uint64().Draw(t, "parent")
		size := rapid.IntRange(1, 33).Draw(t, "size")
		tokens := rapid.SliceOfN(rapid.Uint32(), 0, 200).Draw(t, "tokens")
		chain := AppendChain([]uint64{7}, parent, tokens, size)
		if len(chain) != 1+len(tokens)/size || chain[0] != 7 {
			t.Fatalf("%d tokens in blocks of %d: %d hashes after the one that was there", len(tokens), size, len(chain)-1)
		}
		for i, h := range chain[1:] {
			if want := reference(parent, tokens[i*size:(i+1)*size]); h != want {
				t.Fatalf("block %d = %#x, want %#x", i, h, want)
			}
			parent = h
		}
	})
}

func TestAppendChainWithoutSize(t *testing.T) {
	for _, size := range []int{0, -1} {
		if got := AppendChain(nil, 1, []uint32{1, 2, 3}, size); got != nil {
			t.Errorf("blocks of %d tokens: %v, want none", size, got)
		}
	}
}

// Roots differ in whatever they are made of, and no string can be shifted from
// one field into the next.
func TestRootsDiffer(t *testing.T) {
	roots := []Root{
		{BlockTokens: 16},
		{BlockTokens: 32},
		{BlockTokens: 16, Adapter: "sql"},
		{BlockTokens: 16, Salt: "sql"},
		{BlockTokens: 16, Adapter: "sql", Salt: "s1"},
		{BlockTokens: 16, Adapter: "sqls1"},
		{BlockTokens: 16, Adapter: "sqls", Salt: "1"},
		{BlockTokens: 16, Adapter: "sql\x00"},
		{BlockTokens: 16, Salt: "\x03\x00\x00\x00sql"},
	}
	seen := map[uint64]string{}
	for _, key := range []Key{0, 1} {
		for _, r := range roots {
			h := key.Root(r)
			if other, ok := seen[h]; ok {
				t.Errorf("key %d, %+v has the root of %s", key, r, other)
			}
			seen[h] = r.Adapter + "/" + r.Salt
			if h != key.Root(r) {
				t.Errorf("key %d, %+v: two roots", key, r)
			}
		}
	}
}

// A block with a picture is another block than the one with the same tokens
// and another picture, or none, or with the picture's name spelt in tokens.
func TestExtendMedia(t *testing.T) {
	tokens := []uint32{1, 2, 3, 4}
	text := Extend(9, tokens)
	if got := ExtendMedia(9, "", tokens); got != text {
		t.Errorf("no media: %#x, want %#x as for text", got, text)
	}
	cat, dog := ExtendMedia(9, "cat@0", tokens), ExtendMedia(9, "dog@0", tokens)
	if cat == dog || cat == text || dog == text {
		t.Errorf("cat %#x, dog %#x, text %#x: want three hashes", cat, dog, text)
	}
	if spelt := Extend(Extend(9, appendString(nil, "cat@0")), tokens); spelt == cat {
		t.Errorf("tokens that spell the picture's name hash like the picture")
	}
}

// Hashing allocates nothing where dst has room.
func TestNoAllocations(t *testing.T) {
	tokens, dst := make([]uint32, 4096), make([]uint64, 0, 256)
	allocs := testing.AllocsPerRun(10, func() {
		root := Key(1).Root(Root{Adapter: "sql", Salt: "tenant-a", BlockTokens: 16})
		dst = AppendChain(dst[:0], root, tokens, 16)
		ExtendMedia(root, "image", tokens[:16])
	})
	if allocs != 0 {
		t.Errorf("%v allocations, want 0", allocs)
	}
}

// BenchmarkChain hashes 4,096 tokens to 256 blocks.
func BenchmarkChain(b *testing.B) {
	tokens, dst := make([]uint32, 4096), make([]uint64, 0, 256)
	for i := range tokens {
		tokens[i] = uint32(i * 7)
	}
	b.ReportAllocs()
	for b.Loop() {
		dst = AppendChain(dst[:0], 1, tokens, 16)
	}
}

// BenchmarkChainByLibrary is the same chain by the xxhash library, with the
// parent as the first eight bytes of what is hashed.
func BenchmarkChainByLibrary(b *testing.B) {
	tokens, dst := make([]uint32, 4096), make([]uint64, 0, 256)
	var bytes [8 + 16*4]byte
	b.ReportAllocs()
	for b.Loop() {
		parent := uint64(1)
		dst = dst[:0]
		for i := 0; i+16 <= len(tokens); i += 16 {
			binary.LittleEndian.PutUint64(bytes[:], parent)
			for j, t := range tokens[i : i+16] {
				binary.LittleEndian.PutUint32(bytes[8+4*j:], t)
			}
			parent = xxhash.Sum64(bytes[:])
			dst = append(dst, parent)
		}
	}
}
