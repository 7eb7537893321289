// Package recall is a bounded memory of what was worked out before: under a hash
// lies a value, and its owner says whether it is the one that is sought, so that a
// hash shared by two costs time and never a wrong value. The body's reader keeps
// long strings in one, the tokenizer the tokens of a conversation's turns: steps 1
// and 2 of a request's way in.
//
//	c := recall.New[string](1 << 20)
//	c.Put(hash, "text", len("text"))
//	found, _ := c.Find(hash, func(s *string) bool { return *s == "text" })
//
// Invariants: the bytes that its owner states never exceed the bound; a value does
// not change once it is put; readers of different shards don't meet.
package recall

import (
	"sync"
	"sync/atomic"
)

const (
	// overheadBytes is what an entry takes beside what its owner states.
	overheadBytes = 128
	shards        = 8
)

// Cache remembers values by hash. What is forgotten first is what was put in first
// and not found since (FIFO with a second chance). Its methods may be called by
// any number of goroutines.
type Cache[V any] struct {
	shards [shards]shard[V]
}

type shard[V any] struct {
	mu     sync.RWMutex // guards the following fields
	byHash map[uint64]*entry[V]
	queue  []*entry[V] // oldest first
	bytes  int
	limit  int
}

// An entry does not change but for used.
type entry[V any] struct {
	value V
	hash  uint64
	bytes int
	used  atomic.Bool // found since it was last passed over
}

// New returns a cache that holds at most so many bytes.
func New[V any](bytes int) *Cache[V] {
	c := &Cache[V]{}
	for i := range c.shards {
		c.shards[i].byHash = make(map[uint64]*entry[V])
		c.shards[i].limit = bytes / shards
	}
	return c
}

// Find returns the value under hash if same says that it is the one, else nil; taken
// is true where any lies there. What it points to must not be changed.
func (c *Cache[V]) Find(hash uint64, same func(*V) bool) (_ *V, taken bool) {
	s := &c.shards[hash%shards]
	s.mu.RLock()
	found := s.byHash[hash]
	s.mu.RUnlock()
	if found == nil {
		return nil, false
	}
	if !same(&found.value) {
		return nil, true
	}
	if !found.used.Load() {
		found.used.Store(true)
	}
	return &found.value, true
}

// Usage returns how many values the cache holds, and their bytes.
func (c *Cache[V]) Usage() (values, bytes int) {
	for i := range c.shards {
		s := &c.shards[i]
		s.mu.RLock()
		values += len(s.byHash)
		bytes += s.bytes
		s.mu.RUnlock()
	}
	return values, bytes
}

// Put remembers a value that takes so many bytes, unless one lies under the hash
// already or it is larger than a shard.
func (c *Cache[V]) Put(hash uint64, value V, bytes int) {
	s := &c.shards[hash%shards]
	e := &entry[V]{value: value, hash: hash, bytes: bytes + overheadBytes}
	if e.bytes > s.limit {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.byHash[hash] != nil {
		return // another goroutine was first, or, hardly ever, another value has the hash
	}
	for s.bytes+e.bytes > s.limit {
		oldest := s.queue[0]
		s.queue[0] = nil
		s.queue = s.queue[1:]
		if oldest.used.Swap(false) {
			s.queue = append(s.queue, oldest)
			continue
		}
		delete(s.byHash, oldest.hash)
		s.bytes -= oldest.bytes
	}
	s.byHash[hash] = e
	s.queue = append(s.queue, e)
	s.bytes += e.bytes
}
