package kvindex

import (
	"math"
	"math/bits"
	"sync/atomic"
	"unsafe"
)

// node is one block. What a reader reads of it counts only if the index's
// generation is the same before and after: then the set is that of the block with
// this hash.
type node struct {
	hash atomic.Uint64
	// state is when the block was last stored or matched, in Unix seconds, over 32
	// bits of its set's number, which is 0 in a free node. One word has both: a
	// reader compares them at once, and a store is dear.
	state atomic.Uint64
}

func state(stamp, set uint32) uint64 { return uint64(stamp)<<32 | uint64(set) }

func (n *node) set() uint32   { return uint32(n.state.Load()) }
func (n *node) stamp() uint32 { return uint32(n.state.Load() >> 32) }

// A run is a stretch of nodes whose blocks follow each other in some prompt. Its
// first node is its head, the only one in the table: every other is found by its
// place, which is the one after its parent's.

// live reports whether n is a block now.
func (n *node) live() bool { return n.set() != 0 }

// touch stamps a block that is matched or stored. A stamp that comes together with
// a writer's is lost.
func (n *node) touch(now uint32) {
	if s := n.state.Load(); uint32(s>>32) != now && uint32(s) != 0 {
		n.state.CompareAndSwap(s, state(now, uint32(s)))
	}
}

const (
	chunkBits  = 12
	chunkNodes = 1 << chunkBits
	chunkBytes = int(unsafe.Sizeof(chunk{}) + unsafe.Sizeof(ledger{}))
)

// chunk is a stretch of nodes that lie beside each other.
type chunk [chunkNodes]node

// ledger says which nodes of a chunk are free, and which are heads of runs, one
// bit each. A free one is no head.
type ledger struct {
	free, heads [chunkNodes / 64]uint64
	live        int
}

// arena gives places to nodes. Place 0 is never given. The spine of chunks is
// made once, for as many as MaxBytes can hold, so readers find a node without a
// lock; a chunk without nodes is let go.
type arena struct {
	spine   []atomic.Pointer[chunk]
	ledgers []*ledger // of each chunk of the spine
	chunks  int       // that are there
	live    int       // nodes in use
	cursor  int       // word of free bits where the search for a free node goes on
}

func (a *arena) init(maxBytes int) {
	n := maxBytes/chunkBytes + 1
	a.spine = make([]atomic.Pointer[chunk], n)
	a.ledgers = make([]*ledger, n)
}

func (a *arena) fixedBytes() int { return 16 * len(a.spine) }

// at returns the node at place, or nil if there is no memory for it.
func (a *arena) at(place uint32) *node {
	i := place >> chunkBits
	if int(i) >= len(a.spine) {
		return nil
	}
	c := a.spine[i].Load()
	if c == nil {
		return nil
	}
	return &c[place%chunkNodes]
}

// from returns the node at place and those after it, as far as they lie beside it.
func (a *arena) from(place uint32) []node {
	c := a.spine[place>>chunkBits].Load()
	if c == nil {
		return nil
	}
	return c[place%chunkNodes:]
}

// spare returns how many nodes can be given without a new chunk.
func (a *arena) spare() int { return a.chunks*chunkNodes - a.live - 1 }

// run is places one after another.
type run struct{ place, n uint32 }

// extend adds a place at an end of r, or returns false if it is at none.
func (r *run) extend(place uint32) bool {
	switch place {
	case r.place - 1: // engines remove the last block of a prompt first
		r.place--
	case r.place + r.n:
	default:
		return false
	}
	r.n++
	return true
}

// bits are those of r in a word of its ledger. It does not reach beyond that.
func (r run) bits() uint64 { return math.MaxUint64 >> (64 - r.n) << (r.place % 64) }

// freeRun returns how many places from this one on are free, as far as its word says.
func (a *arena) freeRun(place uint32) int {
	i := int(place >> chunkBits)
	if i >= len(a.ledgers) || a.ledgers[i] == nil {
		return 0
	}
	return bits.TrailingZeros64(^(a.ledgers[i].free[place%chunkNodes/64] >> (place % 64)))
}

// take takes free places, of one word. That of a block is the one behind its parent's,
// so that blocks that follow each other lie so, else search's.
func (a *arena) take(r run) {
	l := a.ledgers[r.place>>chunkBits]
	l.free[r.place%chunkNodes/64] &^= r.bits()
	l.live += int(r.n)
	a.live += int(r.n)
}

func (a *arena) free(place uint32) bool {
	i := int(place >> chunkBits)
	if i >= len(a.ledgers) || a.ledgers[i] == nil {
		return false
	}
	return a.ledgers[i].free[place%chunkNodes/64]&(1<<(place%64)) != 0
}

// isHead reports whether the node at place, which is in use, is in the table.
func (a *arena) isHead(place uint32) bool {
	return a.ledgers[place>>chunkBits].heads[place%chunkNodes/64]&(1<<(place%64)) != 0
}

func (a *arena) setHead(place uint32) {
	a.ledgers[place>>chunkBits].heads[place%chunkNodes/64] |= 1 << (place % 64)
}

// stretch is how many words of free bits search looks at, beyond the first that
// has one, in the hope of a word that is free altogether. It is a guess.
const stretch = 16

// search finds a free place, the first of a free stretch: next fit over the words of
// free bits. There must be a spare one.
func (a *arena) search() uint32 {
	const words = chunkNodes / 64
	found, last := -1, 0
	for i := a.cursor; ; i++ {
		if i >= len(a.ledgers)*words {
			i = 0
		}
		l := a.ledgers[i/words]
		if l == nil {
			i += words - 1 - i%words
			continue
		}
		if w := l.free[i%words]; w == math.MaxUint64 {
			found = i
			break
		} else if w != 0 && found < 0 {
			found, last = i, stretch
		}
		if found >= 0 {
			if last--; last < 0 {
				break
			}
		}
	}
	a.cursor = found
	word := a.ledgers[found/words].free[found%words]
	return uint32(found*64 + bits.TrailingZeros64(word))
}

// addChunk makes room for chunkNodes nodes more; false if the spine is full.
func (a *arena) addChunk() bool {
	for i, l := range a.ledgers {
		if l != nil {
			continue
		}
		l = new(ledger)
		for j := range l.free {
			l.free[j] = math.MaxUint64
		}
		if i == 0 {
			l.free[0] &^= 1 // place 0 is no place
		}
		a.ledgers[i] = l
		a.spine[i].Store(new(chunk))
		a.chunks++
		a.cursor = i * (chunkNodes / 64)
		return true
	}
	return false
}

// headsOf returns which nodes of r, of one word, are in the table, a bit each.
func (a *arena) headsOf(r run) uint64 {
	return a.ledgers[r.place>>chunkBits].heads[r.place%chunkNodes/64] & r.bits()
}

// give takes places back, of one word, and reports whether a chunk was let go with them.
func (a *arena) give(r run) bool {
	i := r.place >> chunkBits
	l := a.ledgers[i]
	l.free[r.place%chunkNodes/64] |= r.bits()
	l.heads[r.place%chunkNodes/64] &^= r.bits()
	l.live -= int(r.n)
	a.live -= int(r.n)
	if l.live > 0 || a.spare() < 2*chunkNodes {
		return false
	}
	a.ledgers[i] = nil
	a.spine[i].Store(nil)
	a.chunks--
	return true
}

// The table leads from the hash of a run's first block to its node's place. It
// has shards, so that making one anew is short work. Readers take no lock: a shard's slots are
// exchanged as a whole when they grow, and an entry that goes leaves a mark, so
// that a search that is under way does not end early.
const (
	shardBits = 8
	minSlots  = 16
)

// gone marks a slot whose entry was removed.
const gone uint64 = math.MaxUint32

type table struct {
	shards [1 << shardBits]shard
}

type shard struct {
	// slots holds entries: 32 bits of the block's hash (see tag), then the place.
	// 0 ends a search; there always is one.
	slots atomic.Pointer[[]atomic.Uint64]
	live  int // entries
	used  int // entries and marks
}

func (t *table) init() {
	for i := range t.shards {
		slots := make([]atomic.Uint64, minSlots)
		t.shards[i].slots.Store(&slots)
	}
}

func (t *table) fixedBytes() int {
	return int(unsafe.Sizeof(*t)) + len(t.shards)*(minSlots*8+24)
}

func (t *table) shard(hash uint64) *shard { return &t.shards[hash>>(64-shardBits)] }

// tag is the part of a hash that an entry keeps: the 32 bits after those that
// chose the shard. It is also the key by which an entry finds its slot, so slots
// can be made anew without a look at the nodes.
func tag(hash uint64) uint64 { return hash << shardBits >> 32 }

// first and next are the slots to look at for a key, of n: the key's share of
// its range, and on from there.
func first(key uint64, n int) int {
	i, _ := bits.Mul64(key, uint64(n))
	return int(i)
}

func next(i, n int) int {
	if i++; i == n {
		return 0
	}
	return i
}

// full reports whether an entry more needs the slots made anew: above 4/5 a
// search gets long.
func (s *shard) full() bool { return (s.used+1)*5 > len(*s.slots.Load())*4 }

// size returns how many slots the shard has, and how many it gets when made
// anew: a third of them stays free.
func (s *shard) size() (now, renewed int) {
	return len(*s.slots.Load()), max(minSlots, s.live+s.live/2+8)
}

// renew puts the entries into new slots, without the marks.
func (s *shard) renew() {
	_, n := s.size()
	slots := make([]atomic.Uint64, n)
	former := *s.slots.Load()
	for i := range former {
		e := former[i].Load()
		if e == 0 || e == gone {
			continue
		}
		j := first(e>>32<<32, n)
		for slots[j].Load() != 0 {
			j = next(j, n)
		}
		slots[j].Store(e)
	}
	s.used = s.live
	s.slots.Store(&slots)
}

func (s *shard) insert(hash uint64, place uint32) {
	slots := *s.slots.Load()
	i := first(tag(hash)<<32, len(slots))
	for {
		e := slots[i].Load()
		if e == 0 {
			s.used++
			break
		}
		if e == gone {
			break
		}
		i = next(i, len(slots))
	}
	s.live++
	slots[i].Store(tag(hash)<<32 | uint64(place))
}

func (s *shard) remove(hash uint64, place uint32) {
	slots := *s.slots.Load()
	want := tag(hash)<<32 | uint64(place)
	i := first(want>>32<<32, len(slots))
	for slots[i].Load() != want {
		i = next(i, len(slots))
	}
	s.live--
	slots[i].Store(gone)
	if slots[next(i, len(slots))].Load() == 0 {
		slots[i].Store(0) // a search that gets here ends one slot later anyway
		s.used--
	}
}
