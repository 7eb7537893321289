package kvindex

import (
	"math"
	"math/bits"
	"slices"
	"sync/atomic"
	"unsafe"

	"epp.internal/epp"
)

// inlineSlots is how many slots a set holds without a bitmap.
const inlineSlots = 4

// set is which endpoints hold a block. It never changes once it can be seen.
type set struct {
	n    int
	few  [inlineSlots]epp.Slot // the first n, in order, if n <= inlineSlots
	bits epp.Slots             // else this
}

func (s *set) has(slot epp.Slot) bool {
	if s.n > inlineSlots {
		return s.bits.Has(slot)
	}
	return slices.Contains(s.few[:s.n], slot)
}

// all calls f with each slot of s, in order.
func (s *set) all(f func(epp.Slot)) {
	if s.n <= inlineSlots {
		for _, slot := range s.few[:s.n] {
			f(slot)
		}
		return
	}
	for i, w := range s.bits {
		for ; w != 0; w &= w - 1 {
			f(epp.Slot(i*64 + bits.TrailingZeros64(w)))
		}
	}
}

// held marks, while Match walks, a slot that holds all blocks so far.
const held = math.MaxUint32

// tally is what Match knows of the slots of out. Until the first block whose set
// is another than the one before, that set is all there is to know.
type tally struct {
	out     []uint32
	last    *set // of the block before; nil: there was none
	marked  bool // the slots of out that hold all blocks so far are marked held
	holders int  // how many these are
}

// next goes on to block i, which s has, and reports whether some slot of out
// still holds all. If none does the tally is at its end.
func (t *tally) next(s *set, i uint32) bool {
	last := t.last
	if s == last {
		return true
	}
	t.last = s
	if last == nil {
		return s.reaches(len(t.out))
	}
	if !t.marked {
		t.marked, t.holders = true, last.fill(t.out, held)
	}
	t.holders -= last.leave(s, t.out, i)
	return t.holders > 0
}

// end gives i blocks to the slots that hold all of them.
func (t *tally) end(i uint32) {
	switch {
	case t.last == nil:
	case t.marked:
		t.last.credit(t.out, i)
	default:
		t.last.fill(t.out, i)
	}
}

// reaches reports whether some slot of s is below n.
func (s *set) reaches(n int) bool {
	if s.n <= inlineSlots {
		return int(s.few[0]) < n
	}
	for i, w := range s.bits {
		if w != 0 {
			return i*64+bits.TrailingZeros64(w) < n
		}
	}
	return false
}

// fill sets out[slot] to v for the slots of s and returns for how many.
func (s *set) fill(out []uint32, v uint32) (n int) {
	if s.n <= inlineSlots {
		for _, slot := range s.few[:s.n] {
			if int(slot) < len(out) {
				out[slot] = v
				n++
			}
		}
		return n
	}
	for i, w := range s.bits {
		if w == math.MaxUint64 && (i+1)*64 <= len(out) {
			for j := range out[i*64 : (i+1)*64] {
				out[i*64+j] = v
			}
			n += 64
			continue
		}
		for ; w != 0; w &= w - 1 {
			if slot := i*64 + bits.TrailingZeros64(w); slot < len(out) {
				out[slot] = v
				n++
			}
		}
	}
	return n
}

// leave gives i blocks to the slots of s that are held so far and are not in
// next, and returns how many they were.
func (s *set) leave(next *set, out []uint32, i uint32) (n int) {
	if s.n > inlineSlots && next.n > inlineSlots {
		for j, w := range s.bits {
			if j < len(next.bits) {
				w &^= next.bits[j]
			}
			for ; w != 0; w &= w - 1 {
				if slot := j*64 + bits.TrailingZeros64(w); slot < len(out) && out[slot] == held {
					out[slot] = i
					n++
				}
			}
		}
		return n
	}
	s.all(func(slot epp.Slot) {
		if int(slot) < len(out) && out[slot] == held && !next.has(slot) {
			out[slot] = i
			n++
		}
	})
	return n
}

// credit gives i blocks to the slots of s that are held to the end.
func (s *set) credit(out []uint32, i uint32) {
	s.all(func(slot epp.Slot) {
		if int(slot) < len(out) && out[slot] == held {
			out[slot] = i
		}
	})
}

// with and without return a new set that has one slot more or less than s.
func (s *set) with(slot epp.Slot) *set {
	var slots epp.Slots
	t := &set{n: s.n + 1}
	if t.n <= inlineSlots {
		i, _ := slices.BinarySearch(s.few[:s.n], slot)
		copy(t.few[:i], s.few[:i])
		t.few[i] = slot
		copy(t.few[i+1:], s.few[i:s.n])
		return t
	}
	s.all(func(other epp.Slot) { slots = slots.Add(other) })
	t.bits = slots.Add(slot)
	return t
}

func (s *set) without(slot epp.Slot) *set {
	t := &set{n: s.n - 1}
	if t.n > inlineSlots {
		t.bits = slices.Clone(s.bits)
		t.bits.Remove(slot)
		return t
	}
	i := 0
	s.all(func(other epp.Slot) {
		if other != slot {
			t.few[i] = other
			i++
		}
	})
	return t
}

// bytes is what s costs, with its place in sets and in the map of prints.
func (s *set) bytes() int {
	return int(unsafe.Sizeof(*s)) + 8*cap(s.bits) + mapEntryBytes
}

const (
	setChunkBits = 10
	setChunkSize = 1 << setChunkBits
	// setChunkBytes is what setChunkSize numbers cost: the pointer, twice the
	// record (a slice that grows), the place among the unused ones.
	setChunkBytes = setChunkSize * (8 + 2*int(unsafe.Sizeof(record{})) + 8)
	// mapEntryBytes is a Go map's cost per entry of up to 16 bytes, at the usual
	// two thirds of its room, rounded up.
	mapEntryBytes = 40
)

// sets keeps each different set once, by number: blocks of one conversation, or
// of one system prompt, share theirs. Number 0 is the empty set. Readers find a
// set by its number without a lock.
type sets struct {
	spine   []atomic.Pointer[[setChunkSize]atomic.Pointer[set]]
	records []record // by number
	numbers map[uint64]uint32
	unused  []uint32
	live    int
	key     uint64
	epoch   int // changes when a number is given up
}

// record is what writers know of a set.
type record struct {
	nodes int    // that have the set
	print uint64 // exclusive or of its slots' prints
}

func (ss *sets) init(maxBytes int, key uint64) {
	// Each set but one on its way has a node, so there are never more.
	ss.spine = make([]atomic.Pointer[[setChunkSize]atomic.Pointer[set]], (maxBytes/chunkBytes+1)*chunkNodes/setChunkSize+1)
	ss.records = make([]record, 1)
	ss.numbers = map[uint64]uint32{}
	ss.key = key
}

func (ss *sets) fixedBytes() int { return 8 * len(ss.spine) }

// at returns the set with this number, or nil if there is none now.
func (ss *sets) at(number uint32) *set {
	c := ss.spine[number>>setChunkBits].Load()
	return c[number%setChunkSize].Load()
}

// print of a slot: a mix of its number and the key, so that sets which agree in
// their print are nearly always equal.
func (ss *sets) print(slot epp.Slot) uint64 {
	hi, lo := bits.Mul64(uint64(slot)+1^ss.key, 0x9E3779B97F4A7C15)
	hi, lo = bits.Mul64(hi^lo^ss.key, 0xD6E8FEB86659FD93)
	return hi ^ lo
}

var empty set

// get returns the number of the set that number is, but for slot: with it where
// it has not, and the other way round; and by how many bytes the index grew.
func (ss *sets) get(number uint32, slot epp.Slot) (other uint32, grown int) {
	s := &empty
	if number != 0 {
		s = ss.at(number)
	}
	had := s.has(slot)
	if had && s.n == 1 {
		return 0, 0
	}
	print := ss.records[number].print ^ ss.print(slot)
	known, taken := ss.numbers[print]
	if taken && ss.at(known).differsBy(s, slot) {
		return known, 0
	}
	if had {
		other, grown = ss.add(s.without(slot), print)
	} else {
		other, grown = ss.add(s.with(slot), print)
	}
	if !taken {
		ss.numbers[print] = other
	}
	return other, grown
}

// differsBy reports whether t and s are equal but for slot.
func (t *set) differsBy(s *set, slot epp.Slot) bool {
	small, large := t, s
	if small.n > large.n {
		small, large = large, small
	}
	if large.n != small.n+1 || small.has(slot) || !large.has(slot) {
		return false
	}
	same := true
	small.all(func(other epp.Slot) { same = same && large.has(other) })
	return same
}

func (ss *sets) add(s *set, print uint64) (number uint32, grown int) {
	if n := len(ss.unused); n > 0 {
		number = ss.unused[n-1]
		ss.unused = ss.unused[:n-1]
	} else {
		number = uint32(len(ss.records))
		if c := &ss.spine[number>>setChunkBits]; c.Load() == nil {
			c.Store(new([setChunkSize]atomic.Pointer[set]))
			grown = setChunkBytes
		}
		ss.records = append(ss.records, record{})
	}
	ss.records[number] = record{print: print}
	ss.spine[number>>setChunkBits].Load()[number%setChunkSize].Store(s)
	ss.live++
	return number, grown + s.bytes()
}

// drop gives up a set that no node has and returns by how many bytes the index
// shrank. The generation has changed before.
func (ss *sets) drop(number uint32) int {
	slot := &ss.spine[number>>setChunkBits].Load()[number%setChunkSize]
	size := slot.Load().bytes()
	slot.Store(nil)
	if print := ss.records[number].print; ss.numbers[print] == number {
		delete(ss.numbers, print)
	}
	ss.unused = append(ss.unused, number)
	ss.live--
	ss.epoch++
	return size
}
