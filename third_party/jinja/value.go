package jinja

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"unicode"
)

// Kind represents the type of a template value.
type Kind uint8

// The kinds of a value. KindObject is one of the engine's own objects: a loop, a
// namespace, a cycler.
const (
	KindUndefined Kind = iota
	KindNone
	KindBool
	KindInt
	KindFloat
	KindString
	KindList
	KindDict
	KindCallable
	KindObject
	kindAbsent // an argument that was not given
)

// Value is a tagged union over the types that templates know. The zero Value is
// undefined.
type Value struct {
	kind Kind
	n    int64  // bool, int, or a float's bits
	s    string // string; an int beyond 64 bits in decimal; an undefined value's name
	p    any    // *List, *Dict, *Callable, object
}

// Undefined returns an undefined value.
func Undefined() Value { return Value{} }

// undefined returns an undefined value that knows what was asked for.
func undefined(name string) Value { return Value{s: name} }

// None returns a none value.
func None() Value { return Value{kind: KindNone} }

// NewBool returns a boolean value.
func NewBool(b bool) Value {
	v := Value{kind: KindBool}
	if b {
		v.n = 1
	}
	return v
}

// NewInt returns an integer value.
func NewInt(n int64) Value { return Value{kind: KindInt, n: n} }

// NewFloat returns a floating-point value.
func NewFloat(f float64) Value { return Value{kind: KindFloat, n: int64(math.Float64bits(f))} }

// NewNumber returns the value of a JSON number's text, as Python's json reads it:
// an int, of any size, unless there is a point or an exponent.
func NewNumber(text string) Value {
	if !strings.ContainsAny(text, ".eENI") {
		n, err := strconv.ParseInt(text, 10, 64)
		if err == nil {
			return NewInt(n)
		}
		return Value{kind: KindInt, n: n, s: text}
	}
	f, _ := strconv.ParseFloat(text, 64) // out of range is an infinity, as in Python
	return NewFloat(f)
}

// NewString returns a string value.
func NewString(s string) Value { return Value{kind: KindString, s: s} }

// NewList returns a list value; it takes over items.
func NewList(items []Value) Value { return Value{kind: KindList, p: &List{Items: items}} }

func newTuple(items ...Value) Value {
	return Value{kind: KindList, p: &List{Items: items, form: formTuple}}
}

// newLazy returns what is a generator in Python: always true, of no length, gone
// once it has been iterated.
func newLazy(items []Value) Value {
	return Value{kind: KindList, p: &List{Items: items, form: formLazy}}
}

// NewDict returns an empty dict value.
func NewDict() Value {
	d := &struct {
		Dict
		keys [dictRoom]string
		vals [dictRoom]Value
	}{}
	d.Dict.keys, d.Dict.vals = d.keys[:0], d.vals[:0]
	return Value{kind: KindDict, p: &d.Dict}
}

// NewCallable returns a callable value.
func NewCallable(name string, fn func(args []Value, kwargs Kwargs) (Value, error)) Value {
	return Value{kind: KindCallable, p: &Callable{Name: name, Fn: fn}}
}

func newObject(o object) Value { return Value{kind: KindObject, p: o} }

// Kind returns the value's kind.
func (v Value) Kind() Kind { return v.kind }

// IsUndefined reports whether v is undefined.
func (v Value) IsUndefined() bool { return v.kind == KindUndefined }

// IsNone reports whether v is none.
func (v Value) IsNone() bool { return v.kind == KindNone }

// IsString reports whether v is a string.
func (v Value) IsString() bool { return v.kind == KindString }

// AsString returns the string held by v, "" if it is no string.
func (v Value) AsString() string {
	if v.kind != KindString {
		return ""
	}
	return v.s
}

// AsList returns the *List held by v, or nil.
func (v Value) AsList() *List {
	l, _ := v.p.(*List)
	return l
}

// AsDict returns the *Dict held by v, or nil.
func (v Value) AsDict() *Dict {
	d, _ := v.p.(*Dict)
	return d
}

func (v Value) float() float64 {
	switch v.kind {
	case KindFloat:
		return math.Float64frombits(uint64(v.n))
	case KindInt:
		if v.s != "" {
			f, _ := strconv.ParseFloat(v.s, 64)
			return f
		}
	}
	return float64(v.n)
}

// integral reports whether v is an int or a bool, which Python counts as one.
func (v Value) integral() bool { return v.kind == KindInt || v.kind == KindBool }

// numeric reports whether v is an int, a bool or a float.
func (v Value) numeric() bool { return v.integral() || v.kind == KindFloat }

// IsTruthy returns the Python-style truthiness of the value.
func (v Value) IsTruthy() bool {
	switch v.kind {
	case KindBool, KindInt:
		return v.n != 0
	case KindFloat:
		return v.float() != 0
	case KindString:
		return v.s != ""
	case KindList:
		l := v.AsList()
		return len(l.Items) > 0 || l.form == formLazy
	case KindDict:
		return v.AsDict().Len() > 0
	case KindCallable, KindObject:
		return true
	}
	return false
}

// typeName returns the name of v's type as Python's error messages give it.
func (v Value) typeName() string {
	switch v.kind {
	case KindList:
		return [...]string{"list", "tuple", "generator", "dict_keys"}[v.AsList().form]
	case KindObject:
		return "object"
	}
	return [...]string{"Undefined", "NoneType", "bool", "int", "float", "str", "list", "dict", "function", "object", "absent"}[v.kind]
}

// String returns a Python-style repr of the value.
func (v Value) String() string {
	var b strings.Builder
	v.repr(&b, nil)
	return b.String()
}

// repr tracks ancestors, not all visited containers: shared references are not
// cycles.
func (v Value) repr(b *strings.Builder, ancestors []any) {
	switch v.kind {
	case KindString:
		reprString(b, v.s)
	case KindList:
		v.AsList().repr(b, ancestors)
	case KindDict:
		d := v.AsDict()
		if slices.Contains(ancestors, any(d)) {
			b.WriteString("{...}")
			return
		}
		ancestors = append(ancestors, d)
		b.WriteByte('{')
		for i, key := range d.keys {
			if i > 0 {
				b.WriteString(", ")
			}
			reprString(b, key)
			b.WriteString(": ")
			d.vals[i].repr(b, ancestors)
		}
		b.WriteByte('}')
	case KindUndefined:
		b.WriteString("Undefined")
	default:
		b.WriteString(printValue(v))
	}
}

func (l *List) repr(b *strings.Builder, ancestors []any) {
	if slices.Contains(ancestors, any(l)) {
		b.WriteString("[...]")
		return
	}
	ancestors = append(ancestors, l)
	open, end := "[", "]"
	switch {
	case l.form == formTuple && len(l.Items) == 1:
		open, end = "(", ",)"
	case l.form == formTuple:
		open, end = "(", ")"
	case l.form == formView:
		open, end = "dict_"+l.view+"([", "])"
	case l.form == formLazy:
		b.WriteString("<generator object>")
		return
	}
	b.WriteString(open)
	for i, item := range l.Items {
		if i > 0 {
			b.WriteString(", ")
		}
		item.repr(b, ancestors)
	}
	b.WriteString(end)
}

func reprString(b *strings.Builder, s string) {
	quote := '\''
	if strings.ContainsRune(s, '\'') && !strings.ContainsRune(s, '"') {
		quote = '"'
	}
	b.WriteRune(quote)
	for _, r := range s {
		switch {
		case r == quote || r == '\\':
			b.WriteByte('\\')
			b.WriteRune(r)
		case r == '\n':
			b.WriteString(`\n`)
		case r == '\r':
			b.WriteString(`\r`)
		case r == '\t':
			b.WriteString(`\t`)
		case r == ' ' || unicode.IsPrint(r):
			b.WriteRune(r)
		case r < 0x100:
			fmt.Fprintf(b, `\x%02x`, r)
		case r < 0x10000:
			fmt.Fprintf(b, `\u%04x`, r)
		default:
			fmt.Fprintf(b, `\U%08x`, r)
		}
	}
	b.WriteRune(quote)
}

// printValue converts a Value to its template output, Python's str().
func printValue(v Value) string {
	switch v.kind {
	case KindUndefined:
		return ""
	case KindNone:
		return "None"
	case KindBool:
		if v.n != 0 {
			return "True"
		}
		return "False"
	case KindInt:
		if v.s != "" {
			return v.s
		}
		return strconv.FormatInt(v.n, 10)
	case KindFloat:
		return pythonFloat(v.float())
	case KindString:
		return v.s
	case KindCallable:
		return "<" + v.p.(*Callable).Name + ">"
	case KindObject:
		return "<object>"
	}
	return v.String()
}

func pythonFloat(f float64) string {
	switch {
	case math.IsNaN(f):
		return "nan"
	case math.IsInf(f, 1):
		return "inf"
	case math.IsInf(f, -1):
		return "-inf"
	}
	format := byte('f')
	if a := math.Abs(f); a != 0 && (a < 1e-4 || a >= 1e16) {
		format = 'e'
	}
	s := strconv.FormatFloat(f, format, -1, 64)
	if !strings.ContainsAny(s, ".e") {
		s += ".0"
	}
	return s
}

// Equals reports whether v and other are equal in Python. Numeric values compare
// across integer, float, and boolean types without rounding integers.
func (v Value) Equals(other Value) bool {
	if v.numeric() && other.numeric() {
		if v.kind != KindFloat && other.kind != KindFloat {
			return v.n == other.n && (v.s == other.s || v.kind == KindBool || other.kind == KindBool)
		}
		order, ordered := compareNumbers(v, other)
		return ordered && order == 0
	}
	if v.kind != other.kind {
		return false
	}
	switch v.kind {
	case KindUndefined, KindNone:
		return true
	case KindString:
		return v.s == other.s
	case KindList:
		a, b := v.AsList(), other.AsList()
		if a == b {
			return true
		}
		if a.form != b.form || a.form == formLazy || len(a.Items) != len(b.Items) {
			return false
		}
		for i := range a.Items {
			if !a.Items[i].Equals(b.Items[i]) {
				return false
			}
		}
		return true
	case KindDict:
		a, b := v.AsDict(), other.AsDict()
		if a.Len() != b.Len() {
			return false
		}
		for i, key := range a.keys {
			if bv, ok := b.Get(key); !ok || !a.vals[i].Equals(bv) {
				return false
			}
		}
		return true
	}
	return v.p == other.p
}

type listForm uint8

const (
	formList listForm = iota
	formTuple
	formLazy // a generator
	formView // of a dict: items, keys or values
)

// List holds an ordered sequence of values.
type List struct {
	Items []Value
	form  listForm
	view  string // "items", "keys" or "values" of a formView
}

// indexed reports whether the list has items by number, as lists and tuples do.
func (l *List) indexed() bool { return l.form == formList || l.form == formTuple }

// Dict is an ordered map of string keys to values.
type Dict struct {
	keys  []string
	vals  []Value
	index map[string]int // kept from indexFrom keys on
}

const (
	indexFrom = 12
	dictRoom  = 4 // as many as a message has fields
)

func (d *Dict) find(key string) int {
	if d.index != nil {
		if i, ok := d.index[key]; ok {
			return i
		}
		return -1
	}
	return slices.Index(d.keys, key)
}

// Get returns the value for key and reports whether it was found.
func (d *Dict) Get(key string) (Value, bool) {
	if i := d.find(key); i >= 0 {
		return d.vals[i], true
	}
	return Value{}, false
}

// Set inserts or updates a key-value pair; a new key comes last.
func (d *Dict) Set(key string, val Value) {
	if i := d.find(key); i >= 0 {
		d.vals[i] = val
		return
	}
	d.keys, d.vals = append(d.keys, key), append(d.vals, val)
	switch {
	case d.index != nil:
		d.index[key] = len(d.keys) - 1
	case len(d.keys) == indexFrom:
		d.index = make(map[string]int, 2*indexFrom)
		for i, k := range d.keys {
			d.index[k] = i
		}
	}
}

// Len returns the number of entries in the dict.
func (d *Dict) Len() int { return len(d.keys) }

// Callable represents a named function within the template engine.
type Callable struct {
	Name string
	Fn   func(args []Value, kwargs Kwargs) (Value, error)
}

// NamedValue is one keyword argument.
type NamedValue struct {
	Name  string
	Value Value
}

// Kwargs are keyword arguments in the order in which they were written.
type Kwargs []NamedValue

// Get returns the argument of that name.
func (k Kwargs) Get(name string) (Value, bool) {
	for _, kw := range k {
		if kw.Name == name {
			return kw.Value, true
		}
	}
	return Value{}, false
}

// object is one of the engine's own objects.
type object interface {
	attr(name string) (Value, bool)
}

// iterate returns what a loop over v goes through. A generator is gone after it.
func iterate(v Value) ([]Value, error) {
	switch v.kind {
	case KindUndefined:
		return nil, nil
	case KindList:
		l := v.AsList()
		items := l.Items
		if l.form == formLazy {
			l.Items = nil
		}
		return items, nil
	case KindDict:
		return stringValues(v.AsDict().keys), nil
	case KindString:
		items := make([]Value, 0, len(v.s))
		for i, r := range v.s {
			items = append(items, NewString(v.s[i:i+runeLen(v.s[i:], r)]))
		}
		return items, nil
	}
	return nil, fmt.Errorf("'%s' object is not iterable", v.typeName())
}

func stringValues(texts []string) []Value {
	items := make([]Value, len(texts))
	for i, text := range texts {
		items[i] = NewString(text)
	}
	return items
}
