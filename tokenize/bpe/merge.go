package bpe

import (
	"math/bits"
	"unicode/utf8"
)

// shortSymbols is the length up to which a word is merged by scanning all its
// pairs for the best each time; longer ones, which scanning would cost the
// square of their length, use a heap. BenchmarkMerge puts the crossing near it.
const shortSymbols = 48

// noRank is the rank of a pair that does not merge. Lower ranks merge first.
const noRank = maxMerges

// maxMerges keeps a rank, like an ID, within 21 bits, so that a pair and its
// rank fit into 64. The longest known list, Gemma 3's, has 514,906.
const maxMerges = 1<<21 - 1

// pairTable maps two neighbouring token IDs to the rank of their merge: open
// addressing, linear probing, at most two thirds full. Most pairs that are asked for
// don't merge, and a filter that fits into a core's own cache answers for most
// of those.
type pairTable struct {
	slots  []uint64 // left<<42 | right<<21 | rank; a power of two; noPair if free
	shift  uint     // 64 - log2(len(slots))
	filter []uint64 // filterBits × len(slots) bits, by the same hash
	// offset is what a merge's rank lacks to the ID it gives, which is the same
	// for all merges of most models. Where it is not, merged has the IDs by rank.
	offset uint32
	merged []uint32
}

const (
	noPair     = 1<<64 - 1
	filterLog  = 2
	filterBits = 1 << filterLog
)

func newPairTable(pairs int) pairTable {
	log := uint(max(bits.Len(uint(pairs*3/2)), 6-filterLog))
	t := pairTable{slots: make([]uint64, 1<<log), shift: 64 - log}
	for i := range t.slots {
		t.slots[i] = noPair
	}
	t.filter = make([]uint64, filterBits*len(t.slots)/64)
	return t
}

// hashPair is multiplicative hashing by 2^64 divided by the golden ratio
// (Knuth, The Art of Computer Programming, volume 3, section 6.4): its upper
// bits are the good ones.
func hashPair(key uint64) uint64 { return key * 0x9E3779B97F4A7C15 }

// put adds a pair; one that is there already gets the new rank.
func (t *pairTable) put(left, right, rank uint32) {
	key := uint64(left)<<21 | uint64(right)
	hash := hashPair(key)
	i := hash >> t.shift
	for t.slots[i] != noPair && t.slots[i]>>21 != key {
		i = (i + 1) & uint64(len(t.slots)-1)
	}
	t.slots[i] = key<<21 | uint64(rank)
	bit := hash >> (t.shift - filterLog)
	t.filter[bit/64] |= 1 << (bit % 64)
}

// setIDs says which ID each merge gives, by rank.
func (t *pairTable) setIDs(ids []uint32) {
	for rank, id := range ids {
		if offset := id - uint32(rank); rank == 0 {
			t.offset = offset
		} else if offset != t.offset {
			t.merged = ids
			return
		}
	}
}

// id returns what the merge of this rank gives.
func (t *pairTable) id(rank uint32) uint32 {
	if t.merged == nil {
		return rank + t.offset
	}
	return t.merged[rank]
}

// rank returns the rank of a pair, noRank if it does not merge.
func (t *pairTable) rank(left, right uint32) uint32 {
	key := uint64(left)<<21 | uint64(right)
	hash := hashPair(key)
	bit := hash >> (t.shift - filterLog)
	if t.filter[bit/64]>>(bit%64)&1 == 0 {
		return noRank
	}
	for i := hash >> t.shift; ; i = (i + 1) & uint64(len(t.slots)-1) {
		switch s := t.slots[i]; {
		case s == noPair:
			return noRank
		case s>>21 == key:
			return uint32(s) & (1<<21 - 1)
		}
	}
}

// appendMerged appends the tokens of a word: its characters or bytes, of which
// the neighbours of the lowest rank are merged, the leftmost first, until none
// merges.
func (t *Tokenizer) appendMerged(dst []uint32, word string, p *patience) []uint32 {
	if len(word) > utf8.UTFMax*shortSymbols {
		return t.appendMergedLong(dst, word, p)
	}
	var ids, ranks [shortSymbols]uint32 // ranks[i] is that of ids[i] and ids[i+1]
	n := len(t.appendSymbols(ids[:0], word))
	if n > shortSymbols {
		return t.appendMergedLong(dst, word, p)
	}
	for i := range n - 1 {
		ranks[i] = t.pairs.rank(ids[i], ids[i+1])
	}
	for n > 1 {
		best, lowest := 0, uint32(noRank)
		for i, rank := range ranks[:n-1] {
			if rank < lowest {
				best, lowest = i, rank
			}
		}
		if lowest == noRank {
			break
		}
		ids[best] = t.pairs.id(lowest)
		n--
		copy(ids[best+1:n], ids[best+2:n+1])
		copy(ranks[best:n-1], ranks[best+1:n])
		if best > 0 {
			ranks[best-1] = t.pairs.rank(ids[best-1], ids[best])
		}
		if best < n-1 {
			ranks[best] = t.pairs.rank(ids[best], ids[best+1])
		}
	}
	return append(dst, ids[:n]...)
}

// appendSymbols appends the tokens that the merging of a word starts from.
func (t *Tokenizer) appendSymbols(dst []uint32, word string) []uint32 {
	for i := 0; i < len(word); {
		if word[i] < utf8.RuneSelf {
			dst = append(dst, t.bytes[word[i]])
			i++
			continue
		}
		r, n := utf8.DecodeRuneInString(word[i:])
		if n > 1 {
			if id, ok := t.chars.find(r, word, i, i+n); ok {
				dst = append(dst, id)
				i += n
				continue
			}
		}
		for ; n > 0; n-- {
			dst = append(dst, t.bytes[word[i]])
			i++
		}
	}
	return dst
}

// appendMergedLong is appendMerged by a heap over a linked list: n log n. It takes
// up to 28 bytes of memory for each byte of word, beside the tokens.
func (t *Tokenizer) appendMergedLong(dst []uint32, word string, p *patience) []uint32 {
	ids := t.appendSymbols(make([]uint32, 0, len(word)), word)
	list := make([]symbol, len(ids))
	for i, id := range ids {
		list[i] = symbol{id: id, prev: int32(i - 1), next: int32(i + 1)}
	}
	end := int32(len(list))
	// rank returns that of list[i] and the symbol after it.
	rank := func(i int32) uint32 {
		if next := list[i].next; next != end {
			return t.pairs.rank(list[i].id, list[next].id)
		}
		return noRank
	}
	queue := make(mergeQueue, 0, len(list))
	offer := func(i int32) {
		if r := rank(i); r != noRank {
			queue.push(candidate(r, i))
		}
	}
	for i := int32(0); i < end && p.spend(1); i++ {
		offer(i)
	}
	for len(queue) > 0 && p.spend(1) {
		top := queue.pop()
		i := int32(uint32(top))
		s := &list[i]
		if s.next == gone || candidate(rank(i), i) != top {
			continue // one of the two has merged since
		}
		s.id = t.pairs.id(uint32(top >> 32))
		merged := s.next
		s.next = list[merged].next
		list[merged].next = gone
		if s.next != end {
			list[s.next].prev = i
		}
		if s.prev >= 0 {
			offer(s.prev)
		}
		offer(i)
	}
	for i := int32(0); i != end && !p.over; i = list[i].next {
		dst = append(dst, list[i].id)
	}
	return dst
}

// symbol is a token of a long word while it is merged.
type symbol struct {
	id         uint32
	prev, next int32 // -1 and len(list) beyond the ends
}

// gone is the next of a symbol that is merged into the one before it.
const gone = -1

// candidate is a pair that may merge, as a number: the rank in the upper half,
// the place of its left symbol in the lower. The smallest merges first.
func candidate(rank uint32, at int32) uint64 { return uint64(rank)<<32 | uint64(uint32(at)) }

// mergeQueue is a binary heap of candidates, smallest first.
type mergeQueue []uint64

func (q *mergeQueue) push(c uint64) {
	*q = append(*q, c)
	h := *q
	i := len(h) - 1
	for i > 0 && h[(i-1)/2] > c {
		h[i] = h[(i-1)/2]
		i = (i - 1) / 2
	}
	h[i] = c
}

func (q *mergeQueue) pop() uint64 {
	h := *q
	top, c := h[0], h[len(h)-1]
	h = h[:len(h)-1]
	*q = h
	i := 0
	for 2*i+1 < len(h) {
		child := 2*i + 1
		if child+1 < len(h) && h[child+1] < h[child] {
			child++
		}
		if h[child] >= c {
			break
		}
		h[i] = h[child]
		i = child
	}
	if len(h) > 0 {
		h[i] = c
	}
	return top
}
