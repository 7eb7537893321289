package kvindex

import (
	"math/bits"
	"unsafe"
)

// lane is one tier and group of one endpoint: its copies by the engine's hash.
type lane struct {
	tier  string
	group int
	depth depth // of the tier

	seed uint64 // so that no engine can choose hashes that fall together
	// Linear probing; a removal moves the copies behind it up.
	copies []laneCopy
	live   int
	// stored is, by slot, when the copy was last stored, in Unix seconds; nil where
	// copies stay until they are removed.
	stored []uint32
	// again is, by engine hash, how many more times a copy is there than once: at
	// most maxCopies-1 of each. Nil where none is.
	again map[uint64]uint32
}

// laneCopy is a copy of a block, or a free slot if place is 0. The engine's hash
// is in halves, which saves four bytes in sixteen.
type laneCopy struct {
	low, high uint32
	place     uint32
}

func (c laneCopy) hash() uint64 { return uint64(c.high)<<32 | uint64(c.low) }

const (
	laneSlotBytes = int(unsafe.Sizeof(laneCopy{}))
	laneMinSlots  = 16
	storedBytes   = 4 // of an entry of lane.stored
)

// first is the slot where the search for an engine hash begins.
func (l *lane) first(hash uint64) int {
	hi, lo := bits.Mul64(hash^l.seed, 0xA0761D6478BD642F)
	return first(hi^lo, len(l.copies))
}

// find returns the slot and place of the copy with this engine hash, or a free
// slot and 0. A lane without slots has none of them.
func (l *lane) find(hash uint64) (slot int, place uint32) {
	if len(l.copies) == 0 {
		return -1, 0
	}
	return l.findFrom(l.first(hash), hash)
}

// findFrom is find for who knows the slot where the search begins.
func (l *lane) findFrom(slot int, hash uint64) (int, uint32) {
	if len(l.copies) == 0 {
		return -1, 0
	}
	for l.copies[slot].place != 0 && l.copies[slot].hash() != hash {
		slot = next(slot, len(l.copies))
	}
	return slot, l.copies[slot].place
}

// full reports whether an entry more needs more slots: above 4/5 a search gets
// long.
func (l *lane) full() bool { return (l.live+1)*5 > len(l.copies)*4 }

// resize gives the lane n slots, more than it has entries.
func (l *lane) resize(n int) {
	copies, stored := l.copies, l.stored
	l.copies, l.live = make([]laneCopy, n), 0
	if stored != nil {
		l.stored = make([]uint32, n)
	}
	for i, c := range copies {
		if c.place == 0 {
			continue
		}
		at := uint32(0)
		if stored != nil {
			at = stored[i]
		}
		l.insert(c.hash(), c.place, at)
	}
}

// insert adds a copy that is not there; there must be room.
func (l *lane) insert(hash uint64, place, now uint32) {
	slot, _ := l.find(hash)
	l.put(slot, hash, place, now)
}

// put adds a copy that is not there into the free slot that find returned.
func (l *lane) put(slot int, hash uint64, place, now uint32) {
	if l.stored != nil {
		l.stored[slot] = now
	}
	l.copies[slot] = laneCopy{uint32(hash), uint32(hash >> 32), place}
	l.live++
}

// remove frees a slot and closes the gap: a copy behind it moves up if the slot
// lies between the one where its search begins and its own.
func (l *lane) remove(slot int) {
	n := len(l.copies)
	gap := slot
	for i := next(slot, n); l.copies[i].place != 0; i = next(i, n) {
		begin := l.first(l.copies[i].hash())
		if distance(begin, i, n) >= distance(gap, i, n) {
			l.copies[gap] = l.copies[i]
			if l.stored != nil {
				l.stored[gap] = l.stored[i]
			}
			gap = i
		}
	}
	l.copies[gap].place = 0
	l.live--
}

// distance is how many steps lead from one slot to another, of n.
func distance(from, to, n int) int {
	if to < from {
		to += n
	}
	return to - from
}
