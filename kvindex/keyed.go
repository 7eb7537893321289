package kvindex

import (
	"sort"

	"epp.internal/epp"
)

// storeKeyed stores blocks whose hashes are there already. Who hashed them knows
// their parents, so none is waited for: blocks whose parent the endpoint does not
// hold are refused, and it counts as incomplete.
func (w *Writer) storeKeyed(l *lane, e *epp.BlockEvent) {
	var before parent
	if e.HasParent {
		_, place := l.find(e.Parent)
		if place == 0 {
			w.refuse(len(e.Hashes))
			return
		}
		before = parent{place, w.index.nodes.at(place).hash.Load()}
	}
	from := 0
	if l.stored != nil {
		if from = w.fresh(l, e); from > 0 {
			_, place := l.find(e.Hashes[from-1])
			before = parent{place, e.Keys[from-1]}
		}
	}
	for i, n := from, 0; i < len(e.Hashes); i += n {
		end := min(i+warmBlocks, len(e.Hashes))
		if n, before = w.holdAll(l, e.Hashes[i:end], e.Keys[i:end], before); i+n < end {
			w.refuse(len(e.Hashes) - i - n)
			return
		}
	}
}

// fresh returns how many leading blocks of e were stored so short a time ago that
// they need not be stored again. Who stores a block stores what is before it too, so
// the blocks that are fresh are in front, and a prompt that is sent again and again
// costs a few look-ups.
func (w *Writer) fresh(l *lane, e *epp.BlockEvent) int {
	x := w.index
	now := x.clock.Load()
	return sort.Search(len(e.Hashes), func(i int) bool {
		slot, place := l.find(e.Hashes[i])
		return place == 0 || x.nodes.at(place).hash.Load() != e.Keys[i] || now-l.stored[slot] >= x.ttl/ttlParts
	})
}

// refuse counts blocks that are not stored.
func (w *Writer) refuse(blocks int) {
	w.counts.Refused += uint64(blocks)
	w.incomplete.Store(true)
}
