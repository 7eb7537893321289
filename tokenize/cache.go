package tokenize

import (
	"hash/maphash"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
)

const (
	// CacheBytes bounds the texts and tokens that a Tokenizer remembers: about
	// 500 conversations of 16 KB.
	CacheBytes = 16 << 20
	// minChunkBytes is the least length of a chunk. Below it, looking up costs
	// about as much as tokenizing.
	minChunkBytes = 256
	// chunkOverhead is what an entry takes beside its text and its tokens.
	chunkOverhead = 128
	chunkShards   = 8
)

// chunkCache remembers the tokens of chunks of text. The key is the text itself,
// so a hit is exact; the hash only finds it. What is forgotten first is what was
// put in first and not looked up since (FIFO with a second chance).
type chunkCache struct {
	seed   maphash.Seed
	shards [chunkShards]chunkShard
}

type chunkShard struct {
	mu    sync.RWMutex // guards the following fields
	byKey map[uint64]*chunk
	queue []*chunk // oldest first
	bytes int
	limit int
}

// A chunk does not change but for used.
type chunk struct {
	hash uint64
	text string
	ids  []uint32
	used atomic.Bool // looked up since it was last passed over
}

func (c *chunk) bytes() int { return len(c.text) + 4*len(c.ids) + chunkOverhead }

func newChunkCache(bytes int) *chunkCache {
	c := &chunkCache{seed: maphash.MakeSeed()}
	for i := range c.shards {
		c.shards[i].byKey = make(map[uint64]*chunk)
		c.shards[i].limit = bytes / chunkShards
	}
	return c
}

// get returns the tokens of text, which must not be changed, and text's hash.
func (c *chunkCache) get(text string) (ids []uint32, hash uint64, ok bool) {
	hash = maphash.String(c.seed, text)
	s := &c.shards[hash%chunkShards]
	s.mu.RLock()
	found := s.byKey[hash]
	s.mu.RUnlock()
	if found == nil || found.text != text {
		return nil, hash, false
	}
	if !found.used.Load() {
		found.used.Store(true)
	}
	return found.ids, hash, true
}

// put remembers the tokens of text; it keeps copies of both. What is larger than
// a shard is not remembered.
func (c *chunkCache) put(hash uint64, text string, ids []uint32) {
	s := &c.shards[hash%chunkShards]
	entry := &chunk{hash: hash, text: strings.Clone(text), ids: slices.Clone(ids)}
	if entry.bytes() > s.limit {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.byKey[hash] != nil {
		return // another goroutine was first, or, hardly ever, another text has the hash
	}
	for s.bytes+entry.bytes() > s.limit {
		oldest := s.queue[0]
		s.queue[0] = nil
		s.queue = s.queue[1:]
		if oldest.used.Swap(false) {
			s.queue = append(s.queue, oldest)
			continue
		}
		delete(s.byKey, oldest.hash)
		s.bytes -= oldest.bytes()
	}
	s.byKey[hash] = entry
	s.queue = append(s.queue, entry)
	s.bytes += entry.bytes()
}
