package jinja

import (
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"
)

// formatPercent is Python's format % args for %s, %r, %d, %i, %f, %e, %g, %x, %o,
// %c and %%, with flags, width and precision.
func formatPercent(format string, arg Value) (Value, error) {
	args := []Value{arg}
	if l := arg.AsList(); arg.kind == KindList && l.form == formTuple {
		args = l.Items
	}
	named := arg.AsDict()
	used := 0
	var b strings.Builder
	for i := 0; i < len(format); i++ {
		if format[i] != '%' {
			b.WriteByte(format[i])
			continue
		}
		i++
		var value *Value
		if i < len(format) && format[i] == '(' {
			end := strings.IndexByte(format[i:], ')')
			if end < 0 || named == nil {
				return Value{}, fmt.Errorf("%%: a mapping is expected for %q", format)
			}
			v, ok := named.Get(format[i+1 : i+end])
			if !ok {
				return Value{}, fmt.Errorf("%%: key %q is missing", format[i+1:i+end])
			}
			value = &v
			i += end + 1
		}
		start := i
		for i < len(format) && strings.IndexByte("#0- +123456789.", format[i]) >= 0 {
			i++
		}
		if i >= len(format) {
			return Value{}, fmt.Errorf("%%: incomplete format %q", format)
		}
		if format[i] == '%' {
			b.WriteByte('%')
			continue
		}
		if value == nil {
			if used >= len(args) {
				return Value{}, fmt.Errorf("%%: not enough arguments for %q", format)
			}
			value = &args[used]
			used++
		}
		text, err := formatOne(format[start:i], format[i], *value)
		if err != nil {
			return Value{}, err
		}
		b.WriteString(text)
	}
	if used < len(args) && named == nil {
		return Value{}, fmt.Errorf("%%: not all arguments are used by %q", format)
	}
	return NewString(b.String()), nil
}

// maxPadding bounds a width or a precision.
const maxPadding = 10_000

func formatOne(flags string, verb byte, v Value) (string, error) {
	for _, number := range strings.FieldsFunc(flags, func(r rune) bool { return r < '0' || r > '9' }) {
		if n, err := strconv.Atoi(number); err != nil || n > maxPadding {
			return "", fmt.Errorf("%%: a width of %s is more than %d", number, maxPadding)
		}
	}
	spec := "%" + flags
	switch verb {
	case 's':
		return fmt.Sprintf(spec+"s", printValue(v)), nil
	case 'r':
		return fmt.Sprintf(spec+"s", v.String()), nil
	case 'd', 'i', 'x', 'X', 'o':
		if verb == 'i' {
			verb = 'd'
		}
		if v.kind == KindFloat && verb == 'd' {
			return fmt.Sprintf(spec+"d", int64(v.float())), nil
		}
		if v.integral() && v.s == "" {
			return fmt.Sprintf(spec+string(verb), v.n), nil
		}
	case 'f', 'F', 'e', 'E', 'g', 'G':
		if v.numeric() {
			if verb == 'g' || verb == 'G' {
				if !strings.Contains(flags, ".") {
					spec += ".6"
				}
			}
			return fmt.Sprintf(spec+string(verb), v.float()), nil
		}
	case 'c':
		if v.kind == KindString && utf8.RuneCountInString(v.s) == 1 {
			return fmt.Sprintf(spec+"s", v.s), nil
		}
		if v.integral() && v.n >= 0 && v.n <= utf8.MaxRune {
			return fmt.Sprintf(spec+"s", string(rune(v.n))), nil
		}
	default:
		return "", unsupported("format character %q of %%", verb)
	}
	return "", fmt.Errorf("%%%c: a number is required, not %s", verb, v.typeName())
}

// formatBraces is Python's str.format for fields {}, {0}, {name} and what hangs on
// them by dots and brackets, with !r and !s, and format specifications of a
// fill, an alignment, a width, and for numbers a precision.
func formatBraces(format string, args []Value, kwargs Kwargs) (Value, error) {
	var b strings.Builder
	next := 0
	for i := 0; i < len(format); i++ {
		c := format[i]
		if (c == '{' || c == '}') && i+1 < len(format) && format[i+1] == c {
			b.WriteByte(c)
			i++
			continue
		}
		if c == '}' {
			return Value{}, fmt.Errorf("format: single '}' in %q", format)
		}
		if c != '{' {
			b.WriteByte(c)
			continue
		}
		end := strings.IndexByte(format[i:], '}')
		if end < 0 {
			return Value{}, fmt.Errorf("format: single '{' in %q", format)
		}
		field := format[i+1 : i+end]
		i += end
		field, spec, _ := strings.Cut(field, ":")
		field, conversion, _ := strings.Cut(field, "!")
		v, err := formatField(field, &next, args, kwargs)
		if err != nil {
			return Value{}, err
		}
		if conversion == "r" {
			v = NewString(v.String())
		}
		text, err := formatSpec(spec, v)
		if err != nil {
			return Value{}, err
		}
		b.WriteString(text)
	}
	return NewString(b.String()), nil
}

// formatField returns the value that a field of str.format names.
func formatField(field string, next *int, args []Value, kwargs Kwargs) (Value, error) {
	end := strings.IndexAny(field, ".[")
	if end >= 0 {
		return Value{}, unsupported("format: field %q", field)
	}
	if field == "" {
		field = strconv.Itoa(*next)
		*next++
	}
	if n, err := strconv.Atoi(field); err == nil {
		if n < 0 || n >= len(args) {
			return Value{}, fmt.Errorf("format: there is no argument %d", n)
		}
		return args[n], nil
	}
	v, ok := kwargs.Get(field)
	if !ok {
		return Value{}, fmt.Errorf("format: there is no argument %q", field)
	}
	return v, nil
}

func formatSpec(spec string, v Value) (string, error) {
	if spec == "" {
		return printValue(v), nil
	}
	fill, align := " ", byte(0)
	if r, n := utf8.DecodeRuneInString(spec); len(spec) > n && strings.IndexByte("<>^", spec[n]) >= 0 {
		fill, align, spec = string(r), spec[n], spec[n+1:]
	} else if strings.IndexByte("<>^", spec[0]) >= 0 {
		align, spec = spec[0], spec[1:]
	}
	if strings.HasPrefix(spec, "0") && align == 0 {
		fill, align = "0", '>'
	}
	digits := len(spec) - len(strings.TrimLeft(spec, "0123456789"))
	width, _ := strconv.Atoi(spec[:digits])
	spec = spec[digits:]
	text := printValue(v)
	switch {
	case width > maxPadding:
		return "", fmt.Errorf("format: a width of %d is more than %d", width, maxPadding)
	case spec == "" || spec == "s" && v.kind == KindString || spec == "d" && v.kind == KindInt:
	case len(spec) > 2 && spec[0] == '.' && spec[len(spec)-1] == 'f' && v.numeric():
		precision, err := strconv.Atoi(spec[1 : len(spec)-1])
		if err != nil || precision > maxPadding {
			return "", unsupported("format: specification %q", spec)
		}
		text = strconv.FormatFloat(v.float(), 'f', precision, 64)
	default:
		return "", unsupported("format: specification %q for %s", spec, v.typeName())
	}
	if align == 0 && v.numeric() {
		align = '>'
	}
	return pad(text, width, align, fill), nil
}

// pad fills s up to width characters, on the side that align leaves.
func pad(s string, width int, align byte, fill string) string {
	missing := width - utf8.RuneCountInString(s)
	if missing <= 0 {
		return s
	}
	left := 0
	switch align {
	case '>':
		left = missing
	case '^':
		left = missing / 2
	}
	return strings.Repeat(fill, left) + s + strings.Repeat(fill, missing-left)
}
