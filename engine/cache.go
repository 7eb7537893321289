package engine

import (
	"encoding/binary"

	"epp.internal/epp"
	"epp.internal/epp/block"
	"github.com/cespare/xxhash/v2"
)

// tier is where all blocks lie; vLLM says "GPU" on every platform.
const tier = "GPU"

// nullBlock is the block that holds no tokens. It counts as one of the engine's
// blocks, as in vLLM, and is the free queue's sentinel here.
const nullBlock = 0

// cacheBlock is one physical block of the KV cache.
type cacheBlock struct {
	hash uint64
	// prev and next link the free queue; they mean nothing while refs > 0.
	prev, next int32
	// copy is the next block with the same hash, in the order they were stored.
	copy int32
	// refs counts the requests that hold the block. Invariant: refs >= 0.
	refs int32
	// known is true while the block can be found by its hash.
	known bool
}

// cache is the KV cache: all blocks, the queue of free ones, and the index of
// the known ones.
type cache struct {
	blockTokens int
	root        uint64

	blocks []cacheBlock // [nullBlock] is the sentinel of the free queue
	free   int          // length of the free queue
	index  lookup
	warmed int32 // means nothing: where warm's loads go
	known  int   // blocks that can be found; >= index.len

	events   []epp.BlockEvent
	removed  []uint64 // backing of the Hashes of BlockRemoved
	straddle []uint32 // backing of Tokens that lie in prompt and answer
}

func newCache(blocks, blockTokens int, seed uint64) *cache {
	c := &cache{
		blockTokens: blockTokens,
		root:        seed,
		blocks:      make([]cacheBlock, blocks),
		index:       newLookup(blocks),
	}
	for i := 1; i < blocks; i++ {
		c.insert(int32(i), int32(i-1))
	}
	return c
}

// insert puts b into the free queue behind p: at its tail where p is the last
// block, at its head where p is the null block.
func (c *cache) insert(b, p int32) {
	n := c.blocks[p].next
	c.blocks[b].prev, c.blocks[b].next = p, n
	c.blocks[p].next, c.blocks[n].prev = b, b
	c.free++
}

// unlink takes b out of the free queue.
func (c *cache) unlink(b int32) {
	p, n := c.blocks[b].prev, c.blocks[b].next
	c.blocks[p].next, c.blocks[n].prev = n, p
	c.free--
}

// take returns the block at the head of the free queue, with one reference and
// no content. The queue must not be empty.
func (c *cache) take() int32 {
	b := c.blocks[nullBlock].next
	c.unlink(b)
	c.forget(b)
	c.blocks[b].refs = 1
	return b
}

// warm reads where the index has these hashes, one load not waiting for another:
// one block after another would wait for memory at each.
func (c *cache) warm(hashes []uint64) {
	var sum int32
	for _, h := range hashes {
		sum += c.index.entries[uint32(h>>32)>>c.index.shift].block
	}
	c.warmed += sum
}

// warmFree is warm for the n blocks that will be taken next.
func (c *cache) warmFree(n int) {
	var sum int32
	for b := c.blocks[nullBlock].next; n > 0; n-- {
		k := &c.blocks[b]
		sum += c.index.entries[uint32(k.hash>>32)>>c.index.shift].block
		b = k.next
	}
	c.warmed += sum
}

// hold adds a reference to a known block.
func (c *cache) hold(b int32) {
	if c.blocks[b].refs == 0 {
		c.unlink(b)
	}
	c.blocks[b].refs++
}

// release gives up one reference to each block, last first: so the tail of a
// prompt is evicted before its head. A block that is not known has nothing to
// lose and is taken next.
func (c *cache) release(blocks []int32) {
	for i := len(blocks) - 1; i >= 0; i-- {
		b := blocks[i]
		c.blocks[b].refs--
		switch {
		case c.blocks[b].refs > 0:
		case c.blocks[b].known:
			c.insert(b, c.blocks[nullBlock].prev)
		default:
			c.insert(b, nullBlock)
		}
	}
}

// store makes b known by hash; the event that tells of it is the caller's.
func (c *cache) store(b int32, hash uint64) {
	c.blocks[b].hash, c.blocks[b].known, c.blocks[b].copy = hash, true, 0
	c.known++
	at := c.index.at(hash, c.blocks)
	first := c.index.entries[at].block
	if first == nullBlock {
		c.index.put(at, hash, b)
		return
	}
	for c.blocks[first].copy != 0 {
		first = c.blocks[first].copy
	}
	c.blocks[first].copy = b
}

// forget makes b unknown and tells of it, if it was known.
func (c *cache) forget(b int32) {
	k := &c.blocks[b]
	if !k.known {
		return
	}
	at := c.index.at(k.hash, c.blocks)
	first := c.index.entries[at].block
	switch {
	case first != b:
		for c.blocks[first].copy != b {
			first = c.blocks[first].copy
		}
		c.blocks[first].copy = k.copy
	case k.copy != 0:
		c.index.put(at, k.hash, k.copy)
	default:
		c.index.remove(at)
	}
	k.known, k.copy = false, 0
	c.known--
	c.removed = append(c.removed, k.hash)
	n := len(c.removed)
	c.events = append(c.events, epp.BlockEvent{
		Kind: epp.BlockRemoved, Hashes: c.removed[n-1 : n : n], Tier: tier,
	})
}

// clear makes every block unknown and tells of it once.
func (c *cache) clear() {
	for i := range c.blocks {
		c.blocks[i].known, c.blocks[i].copy = false, 0
	}
	c.index.clear()
	c.known = 0
	c.events = append(c.events, epp.BlockEvent{Kind: epp.AllBlocksCleared})
}

// usage is the fraction of blocks that requests hold.
func (c *cache) usage() float64 {
	return 1 - float64(c.free)/float64(len(c.blocks)-1)
}

// rootHash is the parent of a prompt's first block: it keeps prompts of
// different adapters and salts apart.
func (c *cache) rootHash(adapter, salt string) uint64 {
	var d xxhash.Digest
	d.ResetWithSeed(c.root)
	var n [8]byte
	binary.LittleEndian.PutUint64(n[:], uint64(len(adapter)))
	d.Write(n[:])
	d.WriteString(adapter)
	d.WriteString(salt)
	return d.Sum64()
}

// blockHash is the hash of the block of tokens that follows parent: XXH64 of the
// tokens, little-endian, with parent as seed. len(tokens) == blockTokens. It is
// package block's function under another root, so no hash is one of a picker's.
func (c *cache) blockHash(parent uint64, tokens []uint32) uint64 {
	return block.Extend(parent, tokens)
}
