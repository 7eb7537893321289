package engine

import "math/bits"

// lookup finds the first block of each known content by its hash: open addressing
// with linear probing, sized once, since a cache has only so many blocks. Go's map
// takes five times as long for what a simulated run does most.
type lookup struct {
	entries []lookupEntry
	shift   uint // a hash's highest bits are where the search begins
	len     int
}

// lookupEntry is a block, or free where block is the null block. The tag is the
// upper half of the block's hash.
type lookupEntry struct {
	tag   uint32
	block int32
}

// newLookup has room for n blocks, at most half full.
func newLookup(n int) lookup {
	size := bits.Len(uint(2 * n))
	return lookup{entries: make([]lookupEntry, 1<<size), shift: uint(32 - size)}
}

// at returns where the entry of the hash is, or the free one where it would be.
func (l *lookup) at(hash uint64, blocks []cacheBlock) int {
	tag := uint32(hash >> 32)
	for i := int(tag >> l.shift); ; i = (i + 1) & (len(l.entries) - 1) {
		e := l.entries[i]
		if e.block == nullBlock || e.tag == tag && blocks[e.block].hash == hash {
			return i
		}
	}
}

// find returns the first block with the hash, or the null block.
func (l *lookup) find(hash uint64, blocks []cacheBlock) int32 {
	return l.entries[l.at(hash, blocks)].block
}

// put makes b the block in entry i, which at has returned for the hash.
func (l *lookup) put(i int, hash uint64, b int32) {
	if l.entries[i].block == nullBlock {
		l.len++
	}
	l.entries[i] = lookupEntry{uint32(hash >> 32), b}
}

// remove frees entry i and moves those behind it up that would not be found else.
func (l *lookup) remove(i int) {
	mask := len(l.entries) - 1
	for k := (i + 1) & mask; l.entries[k].block != nullBlock; k = (k + 1) & mask {
		home := int(l.entries[k].tag >> l.shift)
		if (k-home)&mask >= (k-i)&mask {
			l.entries[i] = l.entries[k]
			i = k
		}
	}
	l.entries[i] = lookupEntry{}
	l.len--
}

// clear frees all entries.
func (l *lookup) clear() {
	clear(l.entries)
	l.len = 0
}
