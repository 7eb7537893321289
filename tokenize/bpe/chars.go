package bpe

import "unicode/utf8"

// charTable maps characters to the token from which their merging may start.
type charTable struct {
	// page[r>>8] is the number of r's page of 256 characters; page 0 is empty.
	page  [(utf8.MaxRune + 1) >> 8]uint16
	pages [][256]charStart
}

// charStart is a character's token, 1 + its ID in the lower 22 bits, and above
// them beside which neighbours it must not be taken as a whole: 3 bits for the
// one before it, then lastClass+1 bits for the one after it. 0 is no character.
type charStart uint64

const (
	charIDBits = 22
	afterSpace = 1 << charIDBits
	afterASCII = 2 << charIDBits // but a space
	afterWide  = 4 << charIDBits // what has several bytes
	anyBefore  = afterSpace | afterASCII | afterWide
	charBefore = charIDBits + 3
)

// lastClass is the highest class of leadClass.
const lastClass = 32

// leadClass puts the first bytes of characters into classes: ASCII, those of two
// bytes by twos, those of three by one, those of four. A byte that begins no
// character has a class that nothing uses.
var leadClass = func() (class [256]uint8) {
	for b := range class {
		switch {
		case b < utf8.RuneSelf:
			class[b] = 0
		case b >= 0xF0:
			class[b] = lastClass
		case b >= 0xE0:
			class[b] = uint8(16 + b - 0xE0)
		case b >= 0xC2:
			class[b] = uint8(1 + (b-0xC2)/2)
		default:
			class[b] = lastClass + 1
		}
	}
	return class
}()

func (c *charTable) put(r rune, id uint32, not charStart) {
	if len(c.pages) == 0 {
		c.pages = make([][256]charStart, 1)
	}
	p := &c.page[r>>8]
	if *p == 0 {
		*p = uint16(len(c.pages))
		c.pages = append(c.pages, [256]charStart{})
	}
	c.pages[*p][r&0xff] = charStart(id+1) | not
}

// find returns the token of the character in word[i:end], the code point r, if
// it is to be taken as a whole there.
func (c *charTable) find(r rune, word string, i, end int) (id uint32, ok bool) {
	p := c.page[r>>8]
	if p == 0 {
		return 0, false
	}
	v := c.pages[p][r&0xff]
	var at charStart
	if i > 0 {
		at = before(word[i-1])
	}
	if end < len(word) {
		at |= 1 << (charBefore + leadClass[word[end]])
	}
	return uint32(v&(1<<charIDBits-1)) - 1, v != 0 && v&at == 0
}

// before returns the class of a character that ends with this byte.
func before(last byte) charStart {
	switch {
	case last == ' ':
		return afterSpace
	case last < utf8.RuneSelf:
		return afterASCII
	}
	return afterWide
}

// proveCharacters finds the characters of several bytes, in the byte-level way,
// that may count as one token from the start: then a word of Chinese has a third
// of the symbols to merge.
//
// That is exact for a character if nothing can come between its own merges. Let
// its bytes alone merge to one token, by merges of rising ranks. While it is not
// whole, its next merge is there, so a merge of its first or last part with a
// neighbour only happens if it ranks before the one that takes this part inside
// the character. Where the list has no such merge with a neighbour of that class
// it never happens; and where the merges of the whole character with neighbours
// rank after its own, it does not matter that they could be had earlier now.
func (t *Tokenizer) proveCharacters(vocab map[string]uint32) {
	edges := t.edgeMerges()
	var buf [utf8.UTFMax]uint32
	for _, id := range vocab {
		text := t.texts.text(id)
		r, n := utf8.DecodeRuneInString(text)
		if n < 2 || n != len(text) {
			continue
		}
		for i := range n {
			buf[i] = t.bytes[text[i]]
		}
		if not, ok := t.proveCharacter(buf[:n], id, edges); ok {
			t.chars.put(r, id, not)
		}
	}
}

// edge is a merge of a token with a neighbour of a class at a border between
// characters.
type edge struct {
	rank uint32
	at   charStart // the neighbour's class
}

// edges holds, by token, the merges with what can stand before it where it
// begins a character, and after it where it ends one.
type edges struct{ before, after map[uint32][]edge }

// edgeMerges collects the edges of the tokens that can be a part of a character,
// or a whole one.
func (t *Tokenizer) edgeMerges() edges {
	all := edges{make(map[uint32][]edge), make(map[uint32][]edge)}
	for _, slot := range t.pairs.slots {
		if slot == noPair {
			continue
		}
		left, right, rank := uint32(slot>>42), uint32(slot>>21&(1<<21-1)), uint32(slot&(1<<21-1))
		x, y := t.texts.text(left), t.texts.text(right)
		if x == "" || y == "" || !utf8.RuneStart(y[0]) {
			continue // a border between characters is never there
		}
		if len(y) <= utf8.UTFMax && y[0] >= utf8.RuneSelf {
			all.before[right] = append(all.before[right], edge{rank, before(x[len(x)-1])})
		}
		if len(x) <= utf8.UTFMax && x[len(x)-1] >= utf8.RuneSelf {
			all.after[left] = append(all.after[left], edge{rank, 1 << (charBefore + leadClass[y[0]])})
		}
	}
	return all
}

// proveCharacter merges the bytes of a character, which it overwrites. ok tells
// whether it may be taken as token id from the start, not beside which
// neighbours it may not.
func (t *Tokenizer) proveCharacter(ids []uint32, id uint32, edges edges) (not charStart, ok bool) {
	// claim adds the classes of those neighbours that would merge by this rank.
	claim := func(list []edge, rank uint32) {
		for _, e := range list {
			if e.rank <= rank {
				not |= e.at
			}
		}
	}
	last, first := uint32(0), true
	for ; len(ids) > 1; first = false {
		at, lowest := 0, uint32(noRank)
		for i := range len(ids) - 1 {
			if rank := t.pairs.rank(ids[i], ids[i+1]); rank < lowest {
				at, lowest = i, rank
			}
		}
		if lowest == noRank || !first && lowest <= last {
			return 0, false
		}
		last = lowest
		if at == 0 {
			claim(edges.before[ids[0]], lowest)
		}
		if at == len(ids)-2 {
			claim(edges.after[ids[at+1]], lowest)
		}
		ids[at] = t.pairs.id(lowest)
		ids = append(ids[:at+1], ids[at+2:]...)
	}
	claim(edges.before[ids[0]], last)
	claim(edges.after[ids[0]], last)
	return not, ids[0] == id && not&anyBefore != anyBefore
}
