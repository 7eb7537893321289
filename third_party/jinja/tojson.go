package jinja

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
)

// jsonWriter writes values as Python's json.dumps does, without HTML escaping.
type jsonWriter struct {
	out                strings.Builder
	itemSep, keySep    string
	indent             string
	indented, sortKeys bool
	ascii              bool
	ancestors          []any
}

// filterTojson is the tojson that transformers puts in the place of jinja2's own.
//
// Source: transformers/utils/chat_template_utils.py, tojson.
func filterTojson(a []Value) (Value, error) {
	w := jsonWriter{itemSep: ", ", keySep: ": ", ascii: a[1].IsTruthy(), sortKeys: a[4].IsTruthy()}
	switch a[2].kind {
	case kindAbsent, KindNone:
	case KindString:
		w.indented, w.indent = true, a[2].s
	case KindInt, KindBool:
		if a[2].n > 100 {
			return Value{}, fmt.Errorf("an indent of %d is more than 100", a[2].n)
		}
		w.indented, w.indent = true, strings.Repeat(" ", int(max(a[2].n, 0)))
	default:
		return Value{}, fmt.Errorf("indent is of type %s", a[2].typeName())
	}
	if w.indented {
		w.itemSep = ","
	}
	if given(a[3]) {
		l := a[3].AsList()
		if l == nil || len(l.Items) != 2 || !l.Items[0].IsString() || !l.Items[1].IsString() {
			return Value{}, fmt.Errorf("separators must be two strings")
		}
		w.itemSep, w.keySep = l.Items[0].s, l.Items[1].s
	}
	err := w.value(a[0], 0)
	return NewString(w.out.String()), err
}

func (w *jsonWriter) newline(depth int) error {
	if !w.indented {
		return nil
	}
	if w.out.Len() > MaxOutputBytes {
		return fmt.Errorf("the result exceeds %d bytes", MaxOutputBytes)
	}
	w.out.WriteByte('\n')
	w.out.WriteString(strings.Repeat(w.indent, depth))
	return nil
}

func (w *jsonWriter) value(v Value, depth int) error {
	switch v.kind {
	case KindNone:
		w.out.WriteString("null")
	case KindBool:
		w.out.WriteString(strconv.FormatBool(v.n != 0))
	case KindInt:
		w.out.WriteString(printValue(v))
	case KindFloat:
		switch f := v.float(); {
		case math.IsNaN(f):
			w.out.WriteString("NaN")
		case math.IsInf(f, 1):
			w.out.WriteString("Infinity")
		case math.IsInf(f, -1):
			w.out.WriteString("-Infinity")
		default:
			w.out.WriteString(pythonFloat(f))
		}
	case KindString:
		w.text(v.s)
	case KindList, KindDict:
		if l := v.AsList(); l != nil && !l.indexed() {
			return fmt.Errorf("object of type %s is not JSON serializable", v.typeName())
		}
		if slices.Contains(w.ancestors, v.p) {
			return fmt.Errorf("circular reference detected")
		}
		w.ancestors = append(w.ancestors, v.p)
		err := w.container(v, depth)
		w.ancestors = w.ancestors[:len(w.ancestors)-1]
		return err
	default:
		return fmt.Errorf("object of type %s is not JSON serializable", v.typeName())
	}
	return nil
}

func (w *jsonWriter) container(v Value, depth int) error {
	open, end, n := byte('['), byte(']'), 0
	d := v.AsDict()
	var order []int
	if d != nil {
		open, end, n = '{', '}', d.Len()
		if w.sortKeys {
			order = make([]int, n)
			for i := range order {
				order[i] = i
			}
			slices.SortFunc(order, func(i, j int) int { return strings.Compare(d.keys[i], d.keys[j]) })
		}
	} else {
		n = len(v.AsList().Items)
	}
	w.out.WriteByte(open)
	for i := range n {
		if i > 0 {
			w.out.WriteString(w.itemSep)
		}
		if err := w.newline(depth + 1); err != nil {
			return err
		}
		at := i
		if order != nil {
			at = order[i]
		}
		item := Value{}
		if d != nil {
			w.text(d.keys[at])
			w.out.WriteString(w.keySep)
			item = d.vals[at]
		} else {
			item = v.AsList().Items[at]
		}
		if err := w.value(item, depth+1); err != nil {
			return err
		}
	}
	if n > 0 {
		if err := w.newline(depth); err != nil {
			return err
		}
	}
	w.out.WriteByte(end)
	return nil
}

// text writes a JSON string; the bytes between characters that need an escape
// are copied in one go.
func (w *jsonWriter) text(s string) {
	w.out.WriteByte('"')
	from := 0
	for i, r := range s {
		if r >= 0x20 && r != '"' && r != '\\' && (!w.ascii || r < 0x7f) {
			continue
		}
		w.out.WriteString(s[from:i])
		from = i + runeLen(s[i:], r)
		switch r {
		case '"', '\\':
			w.out.WriteByte('\\')
			w.out.WriteRune(r)
		case '\b':
			w.out.WriteString(`\b`)
		case '\f':
			w.out.WriteString(`\f`)
		case '\n':
			w.out.WriteString(`\n`)
		case '\r':
			w.out.WriteString(`\r`)
		case '\t':
			w.out.WriteString(`\t`)
		default:
			if r > 0xffff {
				r -= 0x10000
				fmt.Fprintf(&w.out, `\u%04x`, 0xd800+(r>>10))
				r = 0xdc00 + r&0x3ff
			}
			fmt.Fprintf(&w.out, `\u%04x`, r)
		}
	}
	w.out.WriteString(s[from:])
	w.out.WriteByte('"')
}
