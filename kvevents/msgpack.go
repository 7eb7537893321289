package kvevents

import (
	"encoding/binary"
	"math"
)

// reader reads MessagePack values off b, one after the other. The first fault
// sticks: bad is set, i stays within b, and every later read gives zeros.
//
// Format: https://github.com/msgpack/msgpack/blob/master/spec.md
type reader struct {
	b   []byte
	i   int
	bad bool
}

// class is what kind of value begins at the reader's place.
type class uint8

const (
	classBad class = iota
	classNil
	classBool
	classInt
	classFloat
	classString
	classBytes
	classArray
	classMap
	classExt
)

// maxDepth bounds the nesting of a value that is passed over.
const maxDepth = 32

// fixed-size headers of MessagePack.
const (
	codeNil     = 0xc0
	codeFalse   = 0xc2
	codeTrue    = 0xc3
	codeBin8    = 0xc4
	codeBin16   = 0xc5
	codeBin32   = 0xc6
	codeExt8    = 0xc7
	codeExt16   = 0xc8
	codeExt32   = 0xc9
	codeFloat32 = 0xca
	codeFloat64 = 0xcb
	codeUint8   = 0xcc
	codeUint16  = 0xcd
	codeUint32  = 0xce
	codeUint64  = 0xcf
	codeInt8    = 0xd0
	codeInt16   = 0xd1
	codeInt32   = 0xd2
	codeInt64   = 0xd3
	codeFixExt1 = 0xd4
	codeStr8    = 0xd9
	codeStr16   = 0xda
	codeStr32   = 0xdb
	codeArray16 = 0xdc
	codeArray32 = 0xdd
	codeMap16   = 0xde
	codeMap32   = 0xdf
)

// classes maps a value's first byte to its class.
var classes = func() (t [256]class) {
	for c := range t {
		switch {
		case c <= 0x7f || c >= 0xe0 || c >= codeUint8 && c <= codeInt64:
			t[c] = classInt
		case c <= 0x8f || c == codeMap16 || c == codeMap32:
			t[c] = classMap
		case c <= 0x9f || c == codeArray16 || c == codeArray32:
			t[c] = classArray
		case c <= 0xbf || c >= codeStr8 && c <= codeStr32:
			t[c] = classString
		case c == codeNil:
			t[c] = classNil
		case c == codeFalse || c == codeTrue:
			t[c] = classBool
		case c >= codeBin8 && c <= codeBin32:
			t[c] = classBytes
		case c == codeFloat32 || c == codeFloat64:
			t[c] = classFloat
		case c >= codeExt8 && c <= codeExt32 || c >= codeFixExt1 && c < codeStr8:
			t[c] = classExt
		}
	}
	return t
}()

// class tells what comes next, without moving.
func (r *reader) class() class {
	if r.bad || r.i >= len(r.b) {
		return classBad
	}
	return classes[r.b[r.i]]
}

// fail marks the reader as bad.
func (r *reader) fail() { r.bad = true }

// take moves over n bytes and returns them; nil where there are fewer.
func (r *reader) take(n int) []byte {
	if r.bad || n < 0 || n > len(r.b)-r.i {
		r.fail()
		return nil
	}
	p := r.b[r.i : r.i+n]
	r.i += n
	return p
}

// code moves over a value's first byte.
func (r *reader) code() byte {
	if r.bad || r.i >= len(r.b) {
		r.fail()
		return codeNil
	}
	c := r.b[r.i]
	r.i++
	return c
}

// size reads a big-endian number of width bytes.
func (r *reader) size(width int) int {
	p := r.take(width)
	switch len(p) {
	case 1:
		return int(p[0])
	case 2:
		return int(binary.BigEndian.Uint16(p))
	case 4:
		return int(binary.BigEndian.Uint32(p))
	}
	r.fail()
	return 0
}

// isNil moves over a nil and says that it was one.
func (r *reader) isNil() bool {
	if r.bad || r.i >= len(r.b) || r.b[r.i] != codeNil {
		return false
	}
	r.i++
	return true
}

// array reads an array's header and returns its length. Every element takes at
// least a byte, so a length beyond the rest of the bytes is a fault.
func (r *reader) array() int {
	c, n := r.code(), 0
	switch {
	case c&0xf0 == 0x90:
		n = int(c & 0x0f)
	case c == codeArray16:
		n = r.size(2)
	case c == codeArray32:
		n = r.size(4)
	default:
		r.fail()
	}
	return r.bounded(n, 1)
}

// object reads a map's header and returns how many pairs it has.
func (r *reader) object() int {
	c, n := r.code(), 0
	switch {
	case c&0xf0 == 0x80:
		n = int(c & 0x0f)
	case c == codeMap16:
		n = r.size(2)
	case c == codeMap32:
		n = r.size(4)
	default:
		r.fail()
	}
	return r.bounded(n, 2)
}

// bounded returns n, or fails where n values of min bytes can't follow.
func (r *reader) bounded(n, min int) int {
	if r.bad || n > (len(r.b)-r.i)/min {
		r.fail()
		return 0
	}
	return n
}

// text reads a string or binary value; it is valid as long as the payload is.
func (r *reader) text() []byte {
	c := r.code()
	switch {
	case c&0xe0 == 0xa0:
		return r.take(int(c & 0x1f))
	case c == codeStr8 || c == codeBin8:
		return r.take(r.size(1))
	case c == codeStr16 || c == codeBin16:
		return r.take(r.size(2))
	case c == codeStr32 || c == codeBin32:
		return r.take(r.size(4))
	}
	r.fail()
	return nil
}

// integer reads an integer as its 64 bits; negative is true where it is below 0,
// and then u is its two's complement.
func (r *reader) integer() (u uint64, negative bool) {
	c := r.code()
	switch {
	case c <= 0x7f:
		return uint64(c), false
	case c >= 0xe0:
		return uint64(int64(int8(c))), true
	case c >= codeUint8 && c <= codeInt64:
		width := 1 << ((c - codeUint8) & 3)
		signed := c >= codeInt8
		p := r.take(width)
		if p == nil {
			return 0, false
		}
		switch width {
		case 1:
			u = uint64(p[0])
		case 2:
			u = uint64(binary.BigEndian.Uint16(p))
		case 4:
			u = uint64(binary.BigEndian.Uint32(p))
		case 8:
			u = binary.BigEndian.Uint64(p)
		}
		if !signed {
			return u, false
		}
		shift := 64 - 8*width
		s := int64(u<<shift) >> shift
		return uint64(s), s < 0
	}
	r.fail()
	return 0, false
}

// number reads an integer or a float as a float.
func (r *reader) number() float64 {
	if r.class() == classInt {
		u, negative := r.integer()
		if negative {
			return float64(int64(u))
		}
		return float64(u)
	}
	switch r.code() {
	case codeFloat32:
		if p := r.take(4); p != nil {
			return float64(math.Float32frombits(binary.BigEndian.Uint32(p)))
		}
	case codeFloat64:
		if p := r.take(8); p != nil {
			return math.Float64frombits(binary.BigEndian.Uint64(p))
		}
	default:
		r.fail()
	}
	return 0
}

// skip moves over one value of any class.
func (r *reader) skip() { r.skipNested(maxDepth) }

func (r *reader) skipNested(depth int) {
	if depth == 0 {
		r.fail()
		return
	}
	switch r.class() {
	case classNil, classBool:
		r.i++
	case classInt:
		r.integer()
	case classFloat:
		r.number()
	case classString, classBytes:
		r.text()
	case classArray:
		for n := r.array(); n > 0 && !r.bad; n-- {
			r.skipNested(depth - 1)
		}
	case classMap:
		for n := 2 * r.object(); n > 0 && !r.bad; n-- {
			r.skipNested(depth - 1)
		}
	case classExt:
		r.skipExt()
	default:
		r.fail()
	}
}

// skipExt moves over an extension value: a type byte and its data.
func (r *reader) skipExt() {
	switch c := r.code(); c {
	case codeExt8, codeExt16, codeExt32:
		n := r.size(1 << (c - codeExt8))
		r.take(1)
		r.take(n)
	default: // fixext 1, 2, 4, 8, 16
		r.take(1 + 1<<(c-codeFixExt1))
	}
}
