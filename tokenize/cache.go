package tokenize

import (
	"hash/maphash"
	"slices"
	"strings"

	"epp.internal/epp/recall"
)

const (
	// CacheBytes bounds the texts and tokens that a Tokenizer remembers: about
	// 500 conversations of 16 KB.
	CacheBytes = 16 << 20
	// minChunkBytes is the least length of a chunk. Below it, looking up costs
	// about as much as tokenizing.
	minChunkBytes = 256
)

// chunkCache remembers the tokens of chunks of text. The key is the text itself,
// so a hit is exact; the hash only finds it.
type chunkCache struct {
	seed   maphash.Seed
	chunks *recall.Cache[chunk]
}

type chunk struct {
	text string
	ids  []uint32
}

func newChunkCache(bytes int) *chunkCache {
	return &chunkCache{seed: maphash.MakeSeed(), chunks: recall.New[chunk](bytes)}
}

// get returns the tokens of text, which must not be changed, and text's hash.
func (c *chunkCache) get(text string) (ids []uint32, hash uint64, ok bool) {
	hash = maphash.String(c.seed, text)
	found, _ := c.chunks.Find(hash, func(k *chunk) bool { return k.text == text })
	if found == nil {
		return nil, hash, false
	}
	return found.ids, hash, true
}

// put remembers the tokens of text; it keeps copies of both.
func (c *chunkCache) put(hash uint64, text string, ids []uint32) {
	c.chunks.Put(hash, chunk{text: strings.Clone(text), ids: slices.Clone(ids)}, len(text)+4*len(ids))
}
