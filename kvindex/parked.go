package kvindex

import (
	"slices"
	"strings"

	"epp.internal/epp/block"
)

const (
	// parkedBlockBytes times MaxParkedBlocks bounds the memory of an endpoint's
	// parked blocks: enough for 64 tokens each, or fewer of more.
	parkedBlockBytes = parkedFixedBytes + 64*4
	// parkedFixedBytes is what a parked block costs besides tokens and media: an
	// entry each of blocks and children, and its turn in order.
	parkedFixedBytes = 256
)

// parking holds an endpoint's blocks whose parent is not known, each by itself:
// one can be removed while the others wait.
type parking struct {
	blocks   map[parkedKey]parkedBlock
	children map[parkedKey][]uint64 // by parent, their engine hashes
	order    []parkedTurn           // oldest first, with turns that are over
	last     uint64                 // turn given
	bytes    int
}

type parkedKey struct {
	lane *lane
	hash uint64
}

type parkedTurn struct {
	key  parkedKey
	turn uint64
}

type parkedBlock struct {
	parent uint64 // engine hash
	turn   uint64
	tokens []uint32
	media  string
}

func (b *parkedBlock) bytes() int { return parkedFixedBytes + 4*len(b.tokens) + len(b.media) }

// park lets a block wait for its parent. It keeps copies of tokens and media.
func (w *Writer) park(key parkedKey, b parkedBlock) {
	x, p := w.index, &w.parked
	w.unparkOnly(key)
	w.counts.Parked++
	if x.bytes+b.bytes() > x.options.MaxBytes {
		w.counts.ParkedDropped++
		w.incomplete.Store(true)
		return
	}
	if p.blocks == nil {
		p.blocks = map[parkedKey]parkedBlock{}
		p.children = map[parkedKey][]uint64{}
	}
	p.last++
	b.turn = p.last
	b.tokens, b.media = slices.Clone(b.tokens), strings.Clone(b.media)
	p.blocks[key] = b
	parent := parkedKey{key.lane, b.parent}
	p.children[parent] = append(p.children[parent], key.hash)
	p.order = append(p.order, parkedTurn{key, b.turn})
	p.bytes += b.bytes()
	x.bytes += b.bytes()

	most := x.options.MaxParkedBlocks
	for len(p.blocks) > most || p.bytes > most*parkedBlockBytes {
		if oldest := p.order[0]; p.waits(oldest) {
			w.unparkOnly(oldest.key)
			w.counts.ParkedDropped++
			w.incomplete.Store(true)
		}
		p.order = p.order[1:]
	}
	if len(p.order) > 2*most {
		p.order = slices.DeleteFunc(slices.Clone(p.order), func(t parkedTurn) bool { return !p.waits(t) })
	}
}

func (p *parking) waits(t parkedTurn) bool { return p.blocks[t.key].turn == t.turn }

// unparkOnly takes a block out of the parked ones and reports whether it was
// there. Those that wait for it go on waiting.
func (w *Writer) unparkOnly(key parkedKey) bool {
	p := &w.parked
	b, ok := p.blocks[key]
	if !ok {
		return false
	}
	delete(p.blocks, key)
	p.bytes -= b.bytes()
	w.index.bytes -= b.bytes()
	parent := parkedKey{key.lane, b.parent}
	siblings := p.children[parent]
	i := slices.Index(siblings, key.hash)
	if siblings = slices.Delete(siblings, i, i+1); len(siblings) == 0 {
		delete(p.children, parent)
	} else {
		p.children[parent] = siblings
	}
	return true
}

// unpark stores the blocks that waited for the one with this engine hash, which
// is now there, and those that waited for them.
func (w *Writer) unpark(l *lane, hash uint64, there parent) {
	type stored struct {
		hash  uint64
		there parent
	}
	p := &w.parked
	w.unparkOnly(parkedKey{l, hash}) // it was announced again, with a parent
	for todo := []stored{{hash, there}}; len(todo) > 0; todo = todo[1:] {
		waited := todo[0]
		for _, child := range slices.Clone(p.children[parkedKey{l, waited.hash}]) {
			key := parkedKey{l, child}
			b := p.blocks[key]
			w.unparkOnly(key)
			own := block.ExtendMedia(waited.there.hash, b.media, b.tokens)
			place := w.hold(l, child, own, waited.there)
			if place == 0 {
				w.counts.Refused++
				w.incomplete.Store(true)
				continue
			}
			todo = append(todo, stored{child, parent{place, own}})
		}
	}
}
