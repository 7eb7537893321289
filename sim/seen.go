package sim

import (
	"time"

	"epp.internal/epp"
)

// seen is what a router remembers of where it has sent prompts, without any word
// of the engines: for each slot the units of prompts that went there, the least
// recently used leaving first. A unit is some leading blocks of a chain, named by
// the hash of its last one.
type seen struct {
	unit int           // blocks of 16 tokens
	most int           // units remembered of each slot; 0: all
	ttl  time.Duration // 0: for ever
	// every is how often what is over most is forgotten, 0: at once. shared says that
	// most is the bound of all slots together.
	every  time.Duration
	shared bool

	slots   []*memory
	evicted time.Duration // when that was done last
}

// memory is one slot's: a map into a list in the order of use.
type memory struct {
	at    map[uint64]int32
	units []memoryUnit // [0] is the list's sentinel
	free  int32        // linked by next
}

type memoryUnit struct {
	hash       uint64
	used       time.Duration
	prev, next int32
}

func (s *seen) memory(slot epp.Slot) *memory {
	for int(slot) >= len(s.slots) {
		s.slots = append(s.slots, &memory{at: map[uint64]int32{}, units: make([]memoryUnit, 1)})
	}
	return s.slots[slot]
}

// size is how many units the slot has.
func (s *seen) size(slot epp.Slot) int { return len(s.memory(slot).at) }

// match is how many leading blocks of the chain the slot has seen, and when the
// last of them was used.
func (s *seen) match(slot epp.Slot, chain []uint64, now time.Duration) (blocks int, used time.Duration) {
	m := s.memory(slot)
	for i := s.unit - 1; i < len(chain); i += s.unit {
		u, ok := m.at[chain[i]]
		if !ok || s.ttl > 0 && now-m.units[u].used > s.ttl {
			break
		}
		blocks, used = i+1, m.units[u].used
	}
	return blocks, used
}

// add remembers that the chain went to the slot. The last unit is the first to be
// forgotten of it.
func (s *seen) add(slot epp.Slot, chain []uint64, now time.Duration) {
	m := s.memory(slot)
	for i := len(chain)/s.unit*s.unit - 1; i >= 0; i -= s.unit {
		u, ok := m.at[chain[i]]
		if ok {
			m.unlink(u)
		} else {
			u = m.take(chain[i])
		}
		m.units[u].used = now
		m.append(u)
	}
	if s.most > 0 && now-s.evicted >= s.every {
		s.evicted = now
		s.evict(m)
	}
	for s.ttl > 0 && len(m.at) > 0 && now-m.units[m.units[0].next].used > s.ttl {
		m.drop(m.units[0].next)
	}
}

// evict forgets what is over the bound: of m, to which was added, where that is done
// at once, else of all slots.
func (s *seen) evict(m *memory) {
	switch {
	case s.shared:
		s.evictShared()
	case s.every == 0:
		m.shrink(s.most)
	default:
		for _, m := range s.slots {
			m.shrink(s.most)
		}
	}
}

// evictShared forgets the least recently used unit of any slot, until all slots
// together are within the bound.
func (s *seen) evictShared() {
	total := 0
	for _, m := range s.slots {
		total += len(m.at)
	}
	for ; total > s.most; total-- {
		var oldest *memory
		for _, m := range s.slots {
			if len(m.at) > 0 && (oldest == nil || m.units[m.units[0].next].used < oldest.units[oldest.units[0].next].used) {
				oldest = m
			}
		}
		oldest.drop(oldest.units[0].next)
	}
}

// shrink forgets the least recently used units until most are left.
func (m *memory) shrink(most int) {
	for len(m.at) > most {
		m.drop(m.units[0].next)
	}
}

func (m *memory) take(hash uint64) int32 {
	u := m.free
	if u == 0 {
		m.units = append(m.units, memoryUnit{})
		u = int32(len(m.units) - 1)
	} else {
		m.free = m.units[u].next
	}
	m.units[u].hash = hash
	m.at[hash] = u
	return u
}

func (m *memory) drop(u int32) {
	m.unlink(u)
	delete(m.at, m.units[u].hash)
	m.units[u].next = m.free
	m.free = u
}

func (m *memory) unlink(u int32) {
	p, n := m.units[u].prev, m.units[u].next
	m.units[p].next, m.units[n].prev = n, p
}

func (m *memory) append(u int32) {
	last := m.units[0].prev
	m.units[u].prev, m.units[u].next = last, 0
	m.units[last].next, m.units[0].prev = u, u
}
