package bpe

import (
	"math/bits"
	"sync/atomic"

	"github.com/cespare/xxhash/v2"
)

func hashWord(word string) uint64 { return xxhash.Sum64String(word) }

// wordTable finds the token whose text is a whole word. It holds the tokens
// alone that merging that word gives, so that a find saves the merging: open
// addressing, linear probing, at most two thirds full.
type wordTable struct {
	slots []wordSlot // a power of two
	shift uint
	texts *textTable
}

// wordSlot is 8 bytes. A slot without a word has id noWord.
type wordSlot struct {
	tag uint32 // the lower half of the word's hash
	id  uint32
}

const noWord = 1<<32 - 1

func newWordTable(words int, texts *textTable) wordTable {
	log := uint(bits.Len(uint(words*3/2 + 1)))
	t := wordTable{slots: make([]wordSlot, 1<<log), shift: 64 - log, texts: texts}
	for i := range t.slots {
		t.slots[i].id = noWord
	}
	return t
}

// put adds the word that is token id's text; it is not there yet.
func (t *wordTable) put(id uint32) {
	hash := hashWord(t.texts.text(id))
	i := hash >> t.shift
	for t.slots[i].id != noWord {
		i = (i + 1) & uint64(len(t.slots)-1)
	}
	t.slots[i] = wordSlot{tag: uint32(hash), id: id}
}

// find returns the token of a word with this hash.
func (t *wordTable) find(hash uint64, word string) (id uint32, ok bool) {
	for i := hash >> t.shift; ; i = (i + 1) & uint64(len(t.slots)-1) {
		s := t.slots[i]
		if s.id == noWord {
			return 0, false
		}
		if s.tag == uint32(hash) && t.texts.text(s.id) == word {
			return s.id, true
		}
	}
}

// textTable holds the text of every token by ID, in one string.
type textTable struct {
	all   string
	start []uint32 // len: 1 + the number of IDs
}

// text returns the bytes of a token, "" if there is none.
func (t *textTable) text(id uint32) string {
	if int(id) >= len(t.start)-1 {
		return ""
	}
	return t.all[t.start[id]:t.start[id+1]]
}

// The word cache's bounds: cacheSlots words of at most cachedBytes and
// cachedTokens, in 128 bytes each: 2.1 MB when full. Measured by BenchmarkAppend:
// a conversation's words fit many times over; longer words are rare.
const (
	cacheSlots   = 1 << 14
	cachedBytes  = 46
	cachedTokens = 20
)

// wordCache remembers how the latest words were merged. A word has one place; a
// new one takes it. Readers and writers never wait for each other: an entry
// does not change once it is in.
type wordCache [cacheSlots]atomic.Pointer[cachedWord]

type cachedWord struct {
	size, tokens uint8
	word         [cachedBytes]byte
	ids          [cachedTokens]uint32
}

// append appends the tokens of a word with this hash, if it is there.
func (c *wordCache) append(dst []uint32, hash uint64, word string) ([]uint32, bool) {
	w := c[hash%cacheSlots].Load()
	if w == nil || string(w.word[:w.size]) != word {
		return dst, false
	}
	return append(dst, w.ids[:w.tokens]...), true
}

// put remembers the tokens of a word, unless it is over the bounds.
func (c *wordCache) put(hash uint64, word string, ids []uint32) {
	if len(word) > cachedBytes || len(ids) > cachedTokens {
		return
	}
	w := &cachedWord{size: uint8(len(word)), tokens: uint8(len(ids))}
	copy(w.word[:], word)
	copy(w.ids[:], ids)
	c[hash%cacheSlots].Store(w)
}
