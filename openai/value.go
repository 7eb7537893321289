package openai

import (
	"encoding/binary"
	"iter"
	"math/bits"
	"slices"
	"strconv"
	"strings"
	"unicode/utf16"
	"unicode/utf8"
	"unsafe"
)

// A document is one JSON text and the tree over it.
type document struct {
	src   string
	nodes []node
	known []string // the texts of strings that a Reader knows
}

// Value is one value of a body: a span of its text. The zero Value is one that
// is not there; every method may be called on every Value, and those that ask a
// value of another kind return the zero of what they return.
//
// A Value stays good as long as its Body; it may be used by several goroutines.
type Value struct {
	doc *document
	// i is the node's index; for an item of a list of numbers it is that of the
	// list, and start is above 0 (an item is never the first byte of a text).
	i          uint32
	start, end uint32
}

// Kind returns the value's type, Missing for one that is not there.
func (v Value) Kind() Kind {
	switch {
	case v.doc == nil:
		return Missing
	case v.start > 0:
		return Number
	}
	return v.doc.nodes[v.i].kind
}

// Raw returns the value's text as the client wrote it, quotes included.
func (v Value) Raw() string {
	if v.doc == nil {
		return ""
	}
	if v.start > 0 {
		return v.doc.src[v.start:v.end]
	}
	n := &v.doc.nodes[v.i]
	return v.doc.src[n.start:n.end]
}

// String returns a string's text, its escapes resolved. It costs nothing for a
// string without a backslash.
func (v Value) String() string {
	if v.Kind() != String {
		return ""
	}
	n := &v.doc.nodes[v.i]
	if n.size > 0 {
		return v.doc.known[n.size-1]
	}
	raw := v.doc.src[n.start+1 : n.end-1]
	if !n.escaped {
		return raw
	}
	return unescape(raw)
}

// AppendText appends a string's text, its escapes resolved, to dst and returns the
// longer slice: dst as it was for a value of another kind. The text is never longer
// than Raw.
func (v Value) AppendText(dst []byte) []byte {
	if !v.Escaped() {
		return append(dst, v.String()...)
	}
	n := &v.doc.nodes[v.i]
	return appendUnescaped(dst, v.doc.src[n.start+1:n.end-1])
}

// Escaped reports whether the value is a string whose text String must make: one
// with a backslash, unless a Reader knows it.
func (v Value) Escaped() bool {
	if v.Kind() != String {
		return false
	}
	n := &v.doc.nodes[v.i]
	return n.escaped && n.size == 0
}

// unescape resolves the escapes of a string that the scanner has accepted.
func unescape(s string) string {
	text := appendUnescaped(make([]byte, 0, len(s)), s)
	return unsafe.String(unsafe.SliceData(text), len(text))
}

// unescaped maps the byte behind a backslash to what both stand for; 0 is for 'u'
// alone.
var unescaped = [256]byte{'"': '"', '\\': '\\', '/': '/', 'b': '\b', 'f': '\f', 'n': '\n', 'r': '\r', 't': '\t'}

// appendUnescaped appends the text of s to dst. What stands between two escapes is
// mostly short: it is copied eight bytes at a time, as long as both sides have room
// for eight, and what is too much is written over.
func appendUnescaped(dst []byte, s string) []byte {
	dst = slices.Grow(dst, len(s))
	out := dst[:cap(dst)]
	n, i := len(dst), 0
	for i < len(s) {
		for i+8 <= len(s) && n+8 <= len(out) {
			x := eight(s, i)
			binary.LittleEndian.PutUint64(out[n:], x)
			back := x ^ ones*'\\'
			if m := (back - ones) &^ back & high; m != 0 {
				k := bits.TrailingZeros64(m) / 8
				i, n = i+k, n+k
				break
			}
			i, n = i+8, n+8
		}
		if i == len(s) {
			break
		}
		c := s[i]
		if c != '\\' { // less than eight are left on one side
			out[n] = c
			i, n = i+1, n+1
			continue
		}
		if c = unescaped[s[i+1]]; c != 0 {
			out[n] = c
			i, n = i+2, n+1
			continue
		}
		r, size := unescapeRune(s[i:])
		n += utf8.EncodeRune(out[n:], r)
		i += size
	}
	return out[:n]
}

// unescapeRune returns the character of the \u sequence, or the two of a surrogate
// pair, that s begins with, and how long they are: longer than the character.
func unescapeRune(s string) (rune, int) {
	r, _ := strconv.ParseUint(s[2:6], 16, 16)
	if !utf16.IsSurrogate(rune(r)) {
		return rune(r), 6
	}
	low, _ := strconv.ParseUint(s[8:12], 16, 16)
	return utf16.DecodeRune(rune(r), rune(low)), 12
}

// Bool reports whether the value is true.
func (v Value) Bool() bool { return v.Kind() == Bool && v.Raw() == "true" }

// Number returns a number's text, "14.0" or "NaN".
func (v Value) Number() string {
	if v.Kind() != Number {
		return ""
	}
	return v.Raw()
}

// Int returns a number that is an integer in the range of int, or a string that
// holds one, as pydantic reads them: "12", 12 and 12.0 are 12.
func (v Value) Int() (int, bool) {
	text := v.Number()
	if v.Kind() == String {
		text = strings.TrimSpace(v.String())
	}
	if n, err := strconv.Atoi(text); err == nil {
		return n, true
	}
	if v.Kind() != Number {
		return 0, false
	}
	f, err := strconv.ParseFloat(text, 64)
	if err != nil || f != float64(int(f)) || f < -(1<<53) || f > 1<<53 {
		return 0, false
	}
	return int(f), true
}

// Truth reads a boolean as pydantic does when it is not strict: also 0 and 1,
// and the words for yes and no. One that is not there or null is false.
func (v Value) Truth() (value, ok bool) {
	switch v.Kind() {
	case Missing, Null:
		return false, true
	case Bool:
		return v.Bool(), true
	case Number:
		n, ok := v.Int()
		return n == 1, ok && (n == 0 || n == 1)
	case String:
		switch strings.ToLower(v.String()) {
		case "1", "on", "t", "true", "y", "yes":
			return true, true
		case "0", "off", "f", "false", "n", "no":
			return false, true
		}
	}
	return false, false
}

// Len returns how many items a list or members an object has; a key that is
// there twice counts twice.
func (v Value) Len() int {
	if k := v.Kind(); k != List && k != Object {
		return 0
	}
	return int(v.doc.nodes[v.i].size)
}

// At returns item i of a list. It costs the walk to it: use Items for all.
func (v Value) At(i int) Value {
	for at, item := range v.Items() {
		if at == i {
			return item
		}
	}
	return Value{}
}

// Items yields a list's items with their indexes.
func (v Value) Items() iter.Seq2[int, Value] {
	return func(yield func(int, Value) bool) {
		if v.Kind() != List {
			return
		}
		n := &v.doc.nodes[v.i]
		if n.numbers {
			v.numbers(yield)
			return
		}
		at := v.i + 1
		for i := range int(n.size) {
			if !yield(i, Value{doc: v.doc, i: at}) {
				return
			}
			at = v.doc.nodes[at].next
		}
	}
}

// numbers yields the items of a list of numbers, which have no nodes.
func (v Value) numbers(yield func(int, Value) bool) {
	n := &v.doc.nodes[v.i]
	src := v.doc.src
	p := n.start + 1
	for i := range int(n.size) {
		for p < n.end && (src[p] == ',' || src[p] <= ' ') {
			p++
		}
		start := p
		for p < n.end && src[p] != ',' && src[p] != ']' && src[p] > ' ' {
			p++
		}
		if !yield(i, Value{doc: v.doc, i: v.i, start: start, end: p}) {
			return
		}
	}
}

// Members yields an object's keys and values as Python's dict has them: in the
// text's order, each key once, in the place where it first stands, with the
// value that stands last.
func (v Value) Members() iter.Seq2[string, Value] {
	return func(yield func(string, Value) bool) {
		if v.Kind() != Object {
			return
		}
		last := v.repeated()
		at := v.i + 1
		for range v.Len() {
			key := Value{doc: v.doc, i: at}.String()
			value := at + 1
			at = v.doc.nodes[value].next
			if last != nil {
				i, there := last[key]
				if !there {
					continue
				}
				delete(last, key)
				value = i
			}
			if !yield(key, Value{doc: v.doc, i: value}) {
				return
			}
		}
	}
}

// repeated returns, for an object in which a key stands more than once, the node
// of each key's last value, else nil. Small objects are compared pairwise.
func (v Value) repeated() map[string]uint32 {
	const pairwise = 16
	size := v.Len()
	last := map[string]uint32{}
	var keys [pairwise]string
	at, twice := v.i+1, false
	for i := range size {
		key := Value{doc: v.doc, i: at}.String()
		if size <= pairwise {
			for _, k := range keys[:i] {
				twice = twice || k == key
			}
			keys[i] = key
		} else {
			last[key] = at + 1
		}
		at = v.doc.nodes[at+1].next
	}
	if size <= pairwise && twice {
		at = v.i + 1
		for i := range size {
			last[keys[i]] = at + 1
			at = v.doc.nodes[at+1].next
		}
	}
	if len(last) == 0 || len(last) == size {
		return nil
	}
	return last
}

// Get returns the member of an object that has the key, the last of several.
func (v Value) Get(key string) Value {
	var found Value
	if v.Kind() != Object {
		return found
	}
	at := v.i + 1
	for range v.Len() {
		k := Value{doc: v.doc, i: at}
		if n := &v.doc.nodes[at]; n.escaped && k.String() == key || !n.escaped && v.doc.src[n.start+1:n.end-1] == key {
			found = Value{doc: v.doc, i: at + 1}
		}
		at = v.doc.nodes[at+1].next
	}
	return found
}
