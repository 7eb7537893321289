package openai

import (
	"hash/maphash"
	"strings"

	"epp.internal/epp/recall"
)

const (
	// ReaderBytes is a good bound for what a Reader remembers: about 400
	// conversations of 16 KB.
	ReaderBytes = 16 << 20
	// minLongBytes is the least length of a string that is remembered, headBytes
	// how much of its beginning it is found by. A guess: a shorter one is read in
	// less than half a microsecond.
	minLongBytes = 512
	headBytes    = 256
	// ways is how many strings that begin alike are remembered.
	ways = 4
)

// A Reader reads bodies and remembers their long strings. A conversation sends
// again what was said before: of that a Reader compares the bytes, and neither
// looks for escapes nor resolves them once more. What it returns is what [Read]
// returns. The zero Reader remembers nothing; the methods may be called by any
// number of goroutines.
type Reader struct {
	seed maphash.Seed
	long *recall.Cache[longString]
}

// A longString is a string as it stands between its quotes, which the scanner has
// accepted, and its text.
type longString struct{ raw, text string }

// NewReader returns a reader that remembers at most so many bytes.
func NewReader(bytes int) *Reader {
	return &Reader{seed: maphash.MakeSeed(), long: recall.New[longString](bytes)}
}

// find returns the string that rest begins with, if it was read before and its end
// is there, and the hash to remember it by if not. A free way may stand before
// taken ones: what it had was forgotten.
func (r *Reader) find(rest []byte) (found *longString, hash uint64) {
	hash = maphash.Bytes(r.seed, rest[:headBytes])
	for way := range uint64(ways) {
		found, _ := r.long.Find(hash+way, func(s *longString) bool {
			n := len(s.raw)
			return n < len(rest) && rest[n] == '"' && string(rest[:n]) == s.raw
		})
		if found != nil {
			return found, hash
		}
	}
	return nil, hash
}

// remember keeps the string of a node, and has the document use its text.
func (r *Reader) remember(d *document, l learnable) {
	n := &d.nodes[l.node]
	s := longString{raw: strings.Clone(d.src[n.start+1 : n.end-1])}
	s.text = s.raw
	bytes := len(s.raw)
	if n.escaped {
		s.text = unescape(s.raw)
		bytes += len(s.text)
	}
	d.known = append(d.known, s.text)
	n.size = uint32(len(d.known))
	for way := range uint64(ways) {
		if _, taken := r.long.Find(l.hash+way, func(*longString) bool { return false }); !taken {
			r.long.Put(l.hash+way, s, bytes)
			return
		}
	}
}

// learnable is a string that is worth remembering under a hash.
type learnable struct {
	node int
	hash uint64
}
