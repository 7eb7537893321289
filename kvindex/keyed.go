package kvindex

import "epp.internal/epp"

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
	for n := range e.Hashes {
		if n%warmBlocks == 0 {
			w.warm(l, e.Hashes[n:min(n+warmBlocks, len(e.Hashes))])
		}
		place := w.hold(l, e.Hashes[n], e.Keys[n], before)
		if place == 0 {
			w.refuse(len(e.Hashes) - n)
			return
		}
		before = parent{place, e.Keys[n]}
	}
}

// refuse counts blocks that are not stored.
func (w *Writer) refuse(blocks int) {
	w.counts.Refused += uint64(blocks)
	w.incomplete.Store(true)
}
