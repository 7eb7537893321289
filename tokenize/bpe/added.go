package bpe

import "strings"

// addedSet finds added tokens in text: a trie over bytes. Matches don't
// overlap; the leftmost wins, and of several there the longest.
type addedSet struct {
	nodes []addedNode // nodes[0] is the root; empty if there are no tokens
	// starts tells which bytes tokens begin with, for skipping what lies between;
	// first is one of them, the only one if single.
	starts [256]bool
	first  byte
	single bool
}

// addedNode has children for the bytes low, low+1, …; 0 means none.
type addedNode struct {
	low  byte
	next []uint32
	id   int64 // the token that ends here, or -1
}

// add puts a token into the set. text is not empty.
func (s *addedSet) add(text string, id uint32) {
	if len(s.nodes) == 0 {
		s.nodes = []addedNode{{id: -1}}
		s.first = text[0]
	}
	s.starts[text[0]] = true
	s.single = text[0] == s.first && (s.single || len(s.nodes) == 1)
	at := uint32(0)
	for i := range len(text) {
		next := s.child(at, text[i])
		if next == 0 {
			next = uint32(len(s.nodes))
			s.nodes = append(s.nodes, addedNode{id: -1})
			s.nodes[at].link(text[i], next)
		}
		at = next
	}
	s.nodes[at].id = int64(id)
}

// link makes next the child for byte c.
func (n *addedNode) link(c byte, next uint32) {
	switch {
	case len(n.next) == 0:
		n.low = c
	case c < n.low:
		n.next = append(make([]uint32, n.low-c, 256), n.next...)
		n.low = c
	}
	for int(c-n.low) >= len(n.next) {
		n.next = append(n.next, 0)
	}
	n.next[c-n.low] = next
}

func (s *addedSet) child(at uint32, c byte) uint32 {
	n := &s.nodes[at]
	if i := int(c) - int(n.low); i >= 0 && i < len(n.next) {
		return n.next[i]
	}
	return 0
}

// find returns the first token in text at or after from: text[start:end] is its
// text. ok is false if there is none.
func (s *addedSet) find(text string, from int) (start, end int, id uint32, ok bool) {
	if len(s.nodes) == 0 {
		return 0, 0, 0, false
	}
	for start = s.skip(text, from); start < len(text); start = s.skip(text, start+1) {
		at, found := s.child(0, text[start]), int64(-1)
		for i := start; at != 0; {
			i++
			if s.nodes[at].id >= 0 {
				found, end = s.nodes[at].id, i
			}
			if i == len(text) {
				break
			}
			at = s.child(at, text[i])
		}
		if found >= 0 {
			return start, end, uint32(found), true
		}
	}
	return 0, 0, 0, false
}

// skip returns the offset of the first byte at or after from that a token begins
// with, the length of text if there is none.
func (s *addedSet) skip(text string, from int) int {
	if s.single {
		if n := strings.IndexByte(text[from:], s.first); n >= 0 {
			return from + n
		}
		return len(text)
	}
	for from < len(text) && !s.starts[text[from]] {
		from++
	}
	return from
}
