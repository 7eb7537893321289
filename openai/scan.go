package openai

import (
	"encoding/binary"
	"math/bits"
	"strings"
	"unicode/utf8"
	"unsafe"

	"epp.internal/epp"
)

const (
	// MaxDepth is how deep objects and lists may nest. Python's json gives up at
	// about 1,000; the deepest tool schemas seen in use have about 20.
	MaxDepth = 512
	// MaxValues is how many values, keys included, a body may hold, a list of
	// numbers counting as one: 20 bytes are kept for each. A chat of 10,000
	// messages has about 50,000.
	MaxValues = 1 << 18
	// maxDigits is how long an integer may be. Source: the limit of Python's int,
	// sys.int_info.default_max_str_digits.
	maxDigits = 4300
)

// Kind is the type of a JSON value.
type Kind uint8

// The kinds of a value. The zero Kind is that of a value that is not there.
const (
	Missing Kind = iota
	Null
	Bool
	Number
	String
	List
	Object
)

// String returns the kind's name with its article, as error messages show it.
func (k Kind) String() string {
	return [...]string{"nothing", "null", "a boolean", "a number", "a string", "a list", "an object", ""}[k&7]
}

// A node is one value in the tree. The nodes of a body are in the order of its
// text: an object's node is followed by key, value, key, value …, a list's by
// its items, each with all that is below it. A list of numbers alone has no
// nodes below it: its items are found in its text.
type node struct {
	start, end uint32 // the value's text is src[start:end], quotes included
	next       uint32 // index of the node after this one and all below it
	size       uint32 // items of a list, members of an object; of a string whose text is known, 1 + its place there
	kind       Kind
	escaped    bool // a string that has a backslash
	numbers    bool // a list of numbers alone, at least one
}

// A scanner reads one JSON text from front to back.
type scanner struct {
	src     []byte
	pos     int
	nodes   []node
	depth   int
	notUTF8 bool // a string is not

	// reader, if not nil, knows long strings; known are the texts of those that were
	// here, learn are others.
	reader *Reader
	known  []string
	learn  []learnable
}

// scan reads src, which must hold one JSON value and white space around it. It
// appends the tree to nodes, whose memory it takes over. What is in strings need
// not be UTF-8.
func scan(src []byte, nodes []node) ([]node, *epp.Error) {
	s := scanner{src: src, nodes: nodes[:0]}
	if err := s.whole(); err != nil {
		return nil, err
	}
	return s.nodes, nil
}

// readDocument is scan of a text that must be UTF-8. Where it is not, the document
// is nil and there is no error, whatever else is wrong. It keeps src.
func (r *Reader) readDocument(src []byte, nodes []node) (*document, *epp.Error) {
	s := scanner{src: src, nodes: nodes[:0]}
	if r.long != nil {
		s.reader = r
	}
	err := s.whole()
	// Outside of strings the scanner takes nothing but ASCII and a byte order mark.
	if s.notUTF8 || err != nil && !utf8.Valid(src) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	d := &document{src: unsafe.String(unsafe.SliceData(src), len(src)), nodes: s.nodes, known: s.known}
	for _, l := range s.learn {
		r.remember(d, l)
	}
	return d, nil
}

// whole reads the one value and what is around it.
func (s *scanner) whole() *epp.Error {
	src := s.src
	if len(src) >= 3 && string(src[:3]) == "\uFEFF" {
		s.pos = 3
	}
	s.space()
	if s.pos == len(src) {
		return epp.Errorf(epp.BadRequest, "body_empty", "the body is empty: a JSON object is expected")
	}
	if err := s.value(); err != nil {
		return err
	}
	s.space()
	if s.pos != len(src) {
		return s.invalid("the end of the body")
	}
	return nil
}

// invalid returns the error for a byte at pos where want was expected.
func (s *scanner) invalid(want string) *epp.Error {
	if s.pos >= len(s.src) {
		return epp.Errorf(epp.BadRequest, "json_cut_off", "the body ends after %d bytes in the middle of its JSON: expected %s", len(s.src), want)
	}
	r, _ := utf8.DecodeRune(s.src[s.pos:])
	return epp.Errorf(epp.BadRequest, "json_invalid", "the body is not JSON: at byte %d found %q, expected %s", s.pos, r, want)
}

func (s *scanner) space() {
	for s.pos < len(s.src) {
		switch s.src[s.pos] {
		case ' ', '\n', '\t', '\r':
			s.pos++
		default:
			return
		}
	}
}

// open appends a node that begins at pos and returns its index.
func (s *scanner) open(k Kind) (int, *epp.Error) {
	if len(s.nodes) >= MaxValues {
		return 0, epp.Errorf(epp.TooLarge, "too_many_values", "the body holds more than %d JSON values", MaxValues)
	}
	s.nodes = append(s.nodes, node{start: uint32(s.pos), kind: k})
	return len(s.nodes) - 1, nil
}

func (s *scanner) close(i int) {
	s.nodes[i].end = uint32(s.pos)
	s.nodes[i].next = uint32(len(s.nodes))
}

func (s *scanner) value() *epp.Error {
	if s.pos >= len(s.src) {
		return s.invalid("a value")
	}
	switch c := s.src[s.pos]; {
	case c == '"':
		return s.text()
	case c == '{':
		return s.container(Object, '}')
	case c == '[':
		return s.container(List, ']')
	case c == 't':
		return s.word("true", Bool)
	case c == 'f':
		return s.word("false", Bool)
	case c == 'n':
		return s.word("null", Null)
	case numberStart(c):
		i, err := s.open(Number)
		if err == nil {
			err = s.number()
		}
		if err == nil {
			s.close(i)
		}
		return err
	}
	return s.invalid("a value")
}

// word reads a literal and, where k is not Missing, makes a node of it.
func (s *scanner) word(w string, k Kind) *epp.Error {
	start := s.pos
	for i := range len(w) {
		if s.pos >= len(s.src) || s.src[s.pos] != w[i] {
			return s.invalid(`"` + w + `"`)
		}
		s.pos++
	}
	if k == Missing {
		return nil
	}
	end := s.pos
	s.pos = start
	i, err := s.open(k)
	if err != nil {
		return err
	}
	s.pos = end
	s.close(i)
	return nil
}

func (s *scanner) container(k Kind, end byte) *epp.Error {
	if s.depth++; s.depth > MaxDepth {
		return epp.Errorf(epp.BadRequest, "nesting_too_deep", "the body nests more than %d levels deep, at byte %d", MaxDepth, s.pos)
	}
	defer func() { s.depth-- }()
	i, err := s.open(k)
	if err != nil {
		return err
	}
	s.pos++
	s.space()
	if k == List && s.pos < len(s.src) && numberStart(s.src[s.pos]) {
		ok, err := s.numberList(i)
		if ok || err != nil {
			return err
		}
	}
	if s.pos < len(s.src) && s.src[s.pos] == end {
		s.pos++
		s.close(i)
		return nil
	}
	for {
		if k == Object {
			if err := s.key(); err != nil {
				return err
			}
		}
		if err := s.value(); err != nil {
			return err
		}
		s.nodes[i].size++
		s.space()
		if s.pos >= len(s.src) || s.src[s.pos] != ',' && s.src[s.pos] != end {
			return s.invalid(`"," or "` + string(end) + `"`)
		}
		s.pos++
		if s.src[s.pos-1] == end {
			s.close(i)
			return nil
		}
		s.space()
	}
}

// key reads a member's key and its colon.
func (s *scanner) key() *epp.Error {
	if s.pos >= len(s.src) || s.src[s.pos] != '"' {
		return s.invalid("a key in double quotes")
	}
	if err := s.text(); err != nil {
		return err
	}
	s.space()
	if s.pos >= len(s.src) || s.src[s.pos] != ':' {
		return s.invalid(`":"`)
	}
	s.pos++
	s.space()
	return nil
}

// numberList reads the list of node i if it holds numbers alone. If it does
// not, it leaves pos at the first item and returns false.
func (s *scanner) numberList(i int) (bool, *epp.Error) {
	first, size := s.pos, uint32(0)
	for {
		if s.pos >= len(s.src) || !numberStart(s.src[s.pos]) {
			break
		}
		if !s.shortWhole() {
			if err := s.number(); err != nil {
				return false, err
			}
			s.space()
		}
		size++
		if s.pos < len(s.src) && s.src[s.pos] == ']' {
			s.pos++
			s.nodes[i].size, s.nodes[i].numbers = size, true
			s.close(i)
			return true, nil
		}
		if s.pos >= len(s.src) || s.src[s.pos] != ',' {
			return false, s.invalid(`"," or "]"`)
		}
		s.pos++
		s.space()
	}
	s.pos = first
	return false, nil
}

// shortWhole moves pos over a number of one to nine digits with a comma or a bracket
// right behind it, as most lists of token IDs have them.
func (s *scanner) shortWhole() bool {
	p := s.pos
	for p < len(s.src) && s.src[p]-'0' <= 9 {
		p++
	}
	n := p - s.pos
	if n == 0 || n > 9 || n > 1 && s.src[s.pos] == '0' || p == len(s.src) || s.src[p] != ',' && s.src[p] != ']' {
		return false
	}
	s.pos = p
	return true
}

// numberStart reports whether a number, or one of the three words that Python
// takes for one, begins with c.
func numberStart(c byte) bool {
	return c >= '0' && c <= '9' || c == '-' || c == 'N' || c == 'I'
}

// number reads a number and makes no node.
func (s *scanner) number() *epp.Error {
	if s.src[s.pos] == 'N' {
		return s.word("NaN", Missing)
	}
	if s.src[s.pos] == '-' {
		s.pos++
	}
	if s.pos < len(s.src) && s.src[s.pos] == 'I' {
		return s.word("Infinity", Missing)
	}
	whole := s.pos
	if s.pos < len(s.src) && s.src[s.pos] == '0' {
		s.pos++
	} else if err := s.digits(); err != nil {
		return err
	}
	digits, integer := s.pos-whole, true
	if s.pos < len(s.src) && s.src[s.pos] == '.' {
		integer = false
		s.pos++
		if err := s.digits(); err != nil {
			return err
		}
	}
	if s.pos < len(s.src) && s.src[s.pos]|0x20 == 'e' {
		integer = false
		s.pos++
		if s.pos < len(s.src) && (s.src[s.pos] == '+' || s.src[s.pos] == '-') {
			s.pos++
		}
		if err := s.digits(); err != nil {
			return err
		}
	}
	if integer && digits > maxDigits {
		return epp.Errorf(epp.BadRequest, "json_invalid", "the integer at byte %d has %d digits: at most %d are read", whole, digits, maxDigits)
	}
	return nil
}

func (s *scanner) digits() *epp.Error {
	start := s.pos
	for s.pos < len(s.src) && s.src[s.pos] >= '0' && s.src[s.pos] <= '9' {
		s.pos++
	}
	if s.pos == start {
		return s.invalid("a digit")
	}
	return nil
}

// text reads a string, which begins at pos: eight bytes at a time up to a quote, a
// backslash or a control character. A long one is looked up behind its head.
func (s *scanner) text() *epp.Error {
	i, err := s.open(String)
	if err != nil {
		return err
	}
	src, p := s.src, s.pos+1
	start, stop := p, len(src)
	if s.reader != nil && stop-start > headBytes {
		stop = start + headBytes
	}
	wide, escaped := uint64(0), false // wide is all words or'ed: what is not ASCII shows
	for {
		for p+8 <= stop {
			x := binary.LittleEndian.Uint64(src[p:])
			wide |= x
			quote, back := x^(ones*'"'), x^(ones*'\\')
			if m := ((quote-ones)&^quote | (back-ones)&^back | (x-ones*0x20)&^x) & high; m != 0 {
				p += bits.TrailingZeros64(m) / 8 // the lowest is right, those above may be its borrow
				break
			}
			p += 8
		}
		if p+8 > stop && stop < len(src) {
			stop = len(src)
			found, hash := s.reader.find(src[start:])
			if found == nil {
				s.learn = append(s.learn, learnable{i, hash})
				continue
			}
			s.known = append(s.known, found.text)
			s.nodes[i].size = uint32(len(s.known))
			p, wide, escaped = start+len(found.raw), 0, len(found.raw) != len(found.text)
		}
		if p >= len(src) {
			s.pos = p
			return s.invalid(`the end of a string, '"'`)
		}
		switch c := src[p]; {
		case c == '\\' && p+1 < len(src) && unescaped[src[p+1]] != 0:
			p, escaped = p+2, true
		case c == '"':
			s.pos = p + 1
			s.endText(i, wide, escaped)
			return nil
		case c == '\\':
			s.pos, escaped = p, true
			if err := s.escape(); err != nil {
				return err
			}
			p = s.pos
		case c < 0x20:
			s.pos = p
			return s.invalid(`no control character in a string: write it as "\n", "\t" or "\u00XX"`)
		default: // less than eight bytes are left
			wide |= uint64(c)
			p++
		}
	}
}

// endText ends the string of node i at pos.
func (s *scanner) endText(i int, wide uint64, escaped bool) {
	s.close(i)
	n := &s.nodes[i]
	n.escaped = escaped
	if wide&high != 0 && !utf8.Valid(s.src[n.start:n.end]) {
		s.notUTF8 = true
	}
	if k := len(s.learn) - 1; k >= 0 && s.learn[k].node == i && n.end-n.start < minLongBytes {
		s.learn = s.learn[:k]
	}
}

// Every byte of a word is 1, or has its highest bit set alone.
const ones, high = 0x0101010101010101, 0x8080808080808080

// eight returns the eight bytes of s from i on, which must be there, the first one
// lowest.
func eight(s string, i int) uint64 {
	s = s[i : i+8]
	return uint64(s[0]) | uint64(s[1])<<8 | uint64(s[2])<<16 | uint64(s[3])<<24 |
		uint64(s[4])<<32 | uint64(s[5])<<40 | uint64(s[6])<<48 | uint64(s[7])<<56
}

// escape reads one escape sequence, or the two of a surrogate pair.
func (s *scanner) escape() *epp.Error {
	start := s.pos
	s.pos++
	if s.pos >= len(s.src) {
		return s.invalid("an escape sequence")
	}
	switch s.src[s.pos] {
	case '"', '\\', '/', 'b', 'f', 'n', 'r', 't':
		s.pos++
		return nil
	case 'u':
	default:
		return s.invalid(`an escape sequence: one of "\/bfnrtu after the backslash`)
	}
	s.pos++
	r, err := s.hex4()
	if err != nil {
		return err
	}
	if r < 0xd800 || r > 0xdfff {
		return nil
	}
	if r <= 0xdbff && s.pos+1 < len(s.src) && s.src[s.pos] == '\\' && s.src[s.pos+1] == 'u' {
		s.pos += 2
		low, err := s.hex4()
		if err != nil {
			return err
		}
		if low >= 0xdc00 && low <= 0xdfff {
			return nil
		}
	}
	if r <= 0xdbff && strings.HasPrefix(`\u`, string(s.src[s.pos:min(s.pos+2, len(s.src))])) {
		s.pos = len(s.src)
		return s.invalid("the rest of a surrogate pair")
	}
	return epp.Errorf(epp.BadRequest, "json_invalid", `the string at byte %d holds a lone surrogate, \u%04x: it is no character`, start, r)
}

func (s *scanner) hex4() (r uint32, err *epp.Error) {
	for range 4 {
		if s.pos >= len(s.src) {
			return 0, s.invalid("four hex digits")
		}
		switch c := s.src[s.pos]; {
		case c >= '0' && c <= '9':
			r = r<<4 | uint32(c-'0')
		case c|0x20 >= 'a' && c|0x20 <= 'f':
			r = r<<4 | uint32(c|0x20-'a'+10)
		default:
			return 0, s.invalid("four hex digits")
		}
		s.pos++
	}
	return r, nil
}
