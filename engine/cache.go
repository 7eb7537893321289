package engine

import (
	"encoding/binary"

	"epp.internal/epp"
	"github.com/cespare/xxhash/v2"
)

// tier is where all blocks lie; vLLM says "GPU" on every platform.
const tier = "GPU"

// nullBlock is the block that holds no tokens. It counts as one of the engine's
// blocks, as in vLLM.
const nullBlock = 0

// cacheBlock is one physical block of the KV cache. The known blocks form a tree:
// each hangs below the one before it in its prompt.
type cacheBlock struct {
	hash uint64
	// copy is the next block with the same hash, in the order they were stored.
	copy int32
	// refs counts the requests that hold the block. Invariant: refs >= 0.
	refs int32
	// up is the block above in the tree, the null block for one that the index
	// finds. Of a copy it is the first block with its hash, which alone is in the
	// tree.
	up int32
	// child is the first of the blocks below; sibling is the next one below up, and
	// elder the one before, the null block for the first.
	child, sibling, elder int32
	// known is true while the block can be found by its hash.
	known   bool
	copied  bool // a first block with the hash is there
	indexed bool // in the index
	orphan  bool // what was above is not known any more
}

// cache is the KV cache: all blocks, the free ones in the order in which they are
// taken, and the index of the known ones.
type cache struct {
	blockTokens int
	root        uint64

	blocks []cacheBlock
	free   int // blocks that no request holds
	// empty are the free blocks that have nothing to lose, the last one to be taken
	// first; the others are taken after them, from lru.
	empty []int32
	lru   queue
	// index finds prompts' first blocks, every block below another but the first of
	// them, and orphans: what was below a block that is not known any more.
	index   lookup
	orphans int
	known   int // blocks that can be found

	events  []epp.BlockEvent
	removed []uint64 // backing of the Hashes of BlockRemoved
	join    bool     // Config.JoinRemovals
}

func newCache(blocks, blockTokens int, seed uint64) *cache {
	c := &cache{
		blockTokens: blockTokens,
		root:        seed,
		blocks:      make([]cacheBlock, blocks),
		free:        blocks - 1,
		empty:       make([]int32, 0, blocks-1),
		lru:         newQueue(blocks),
		index:       newLookup(blocks),
	}
	for i := blocks - 1; i > 0; i-- {
		c.empty = append(c.empty, int32(i))
	}
	return c
}

// take returns the free block that is to be taken next, with one reference and no
// content. There must be one.
func (c *cache) take() int32 {
	var b int32
	if last := len(c.empty) - 1; last >= 0 {
		b, c.empty = c.empty[last], c.empty[:last]
	} else {
		b = c.lru.take()
		c.forget(b)
	}
	c.free--
	c.blocks[b].refs = 1
	return b
}

// hold adds a reference to a known block.
func (c *cache) hold(b int32) {
	if c.blocks[b].refs == 0 {
		c.lru.leave(b)
		c.free--
	}
	c.blocks[b].refs++
}

// release gives up one reference to each block, last first: so the tail of a
// prompt is evicted before its head. A block that is not known has nothing to
// lose and is taken next.
func (c *cache) release(blocks []int32) {
	for i := len(blocks) - 1; i >= 0; i-- {
		b := blocks[i]
		k := &c.blocks[b]
		if k.refs--; k.refs > 0 {
			continue
		}
		c.free++
		if k.known {
			c.lru.put(b)
		} else {
			c.empty = append(c.empty, b)
		}
	}
}

// find returns the first block with the hash behind p, which is one itself, or
// the null block for a prompt's first; it returns the null block where none is.
// In the tree the next block lies beside the last one as a rule: a search by hash
// would wait for memory at each.
func (c *cache) find(hash uint64, p int32) int32 {
	if p != nullBlock {
		b := c.blocks[p].child
		if b != nullBlock && c.blocks[b].hash == hash {
			return b
		}
		if c.orphans == 0 && (b == nullBlock || c.blocks[b].sibling == nullBlock) {
			return nullBlock
		}
	}
	return c.index.find(hash, c.blocks)
}

// first returns the first block with b's hash.
func (c *cache) first(b int32) int32 {
	if c.blocks[b].copied {
		return c.blocks[b].up
	}
	return b
}

// store makes b known by hash, behind the known block before, or the null block
// for a prompt's first; the event that tells of it is the caller's.
func (c *cache) store(b int32, hash uint64, before int32) {
	p := c.first(before)
	k := &c.blocks[b]
	k.hash, k.known, k.copied, k.indexed, k.orphan = hash, true, false, false, false
	k.up, k.child, k.sibling, k.elder, k.copy = p, nullBlock, nullBlock, nullBlock, nullBlock
	c.known++
	if first := c.find(hash, p); first != nullBlock {
		k.copied, k.up = true, first
		for c.blocks[first].copy != nullBlock {
			first = c.blocks[first].copy
		}
		c.blocks[first].copy = b
		return
	}
	if p == nullBlock {
		c.list(b)
		return
	}
	elder, sibling := c.blocks[p].child, int32(nullBlock)
	if elder != nullBlock {
		sibling = c.blocks[elder].sibling
		c.list(b)
	}
	c.link(p, elder, b)
	c.link(p, b, sibling)
}

// list puts b into the index, in the place of the block with its hash if one is there.
func (c *cache) list(b int32) {
	k := &c.blocks[b]
	k.indexed = true
	c.index.put(c.index.at(k.hash, c.blocks), k.hash, b)
}

// link makes elder and sibling neighbours below p. The null block is none.
func (c *cache) link(p, elder, sibling int32) {
	if sibling != nullBlock {
		c.blocks[sibling].elder = elder
	}
	switch {
	case elder != nullBlock:
		c.blocks[elder].sibling = sibling
	case p != nullBlock:
		c.blocks[p].child = sibling
	}
}

// forget makes b unknown and tells of it, if it was known.
func (c *cache) forget(b int32) {
	k := &c.blocks[b]
	if !k.known {
		return
	}
	switch {
	case k.copied:
		last := k.up
		for c.blocks[last].copy != b {
			last = c.blocks[last].copy
		}
		c.blocks[last].copy = k.copy
	case k.copy != nullBlock:
		c.promote(b)
	default:
		c.prune(b)
	}
	k.known = false
	c.known--
	c.tellRemoved(k.hash)
}

// tellRemoved tells that a block is not known any more.
func (c *cache) tellRemoved(hash uint64) {
	c.removed = append(c.removed, hash)
	to := len(c.removed)
	if last := len(c.events) - 1; c.join && last >= 0 && c.events[last].Kind == epp.BlockRemoved {
		from := to - 1 - len(c.events[last].Hashes)
		c.events[last].Hashes = c.removed[from:to:to]
		return
	}
	c.events = append(c.events, epp.BlockEvent{
		Kind: epp.BlockRemoved, Hashes: c.removed[to-1 : to : to], Tier: tier,
	})
}

// promote puts the first copy of b in b's place.
func (c *cache) promote(b int32) {
	k := &c.blocks[b]
	n := k.copy
	heir := &c.blocks[n]
	heir.copied, heir.orphan = false, k.orphan
	heir.up, heir.child = k.up, k.child
	for i := heir.copy; i != nullBlock; i = c.blocks[i].copy {
		c.blocks[i].up = n
	}
	for i := heir.child; i != nullBlock; i = c.blocks[i].sibling {
		c.blocks[i].up = n
	}
	c.link(k.up, k.elder, n)
	c.link(k.up, n, k.sibling)
	if k.indexed {
		c.list(n)
	}
}

// prune takes b, which has no copy, out of the tree. What is below becomes orphans;
// as blocks are taken tail first, nothing is as a rule.
func (c *cache) prune(b int32) {
	k := &c.blocks[b]
	if k.indexed {
		c.index.remove(c.index.at(k.hash, c.blocks))
	}
	if k.orphan {
		c.orphans--
	}
	c.link(k.up, k.elder, k.sibling)
	for i := k.child; i != nullBlock; {
		o := &c.blocks[i]
		if !o.indexed {
			c.list(i)
		}
		c.orphans++
		i, o.up, o.sibling, o.elder, o.orphan = o.sibling, nullBlock, nullBlock, nullBlock, true
	}
}

// clear makes every block unknown and tells of it once.
func (c *cache) clear() {
	for i := range c.blocks {
		c.blocks[i].known = false
	}
	c.index.clear()
	c.known, c.orphans = 0, 0
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
