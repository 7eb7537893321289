package jinja

import (
	"fmt"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"golang.org/x/text/cases"
	"golang.org/x/text/language"
)

// pythonWhitespace reports what str.isspace does.
func pythonWhitespace(r rune) bool {
	return unicode.IsSpace(r) || r >= '\x1c' && r <= '\x1f'
}

// upper and lower map as Python does: one character may become several.
func upper(s string) string {
	if isASCII(s) {
		return strings.ToUpper(s)
	}
	return cases.Upper(language.Und).String(s)
}

func lower(s string) string {
	if isASCII(s) {
		return strings.ToLower(s)
	}
	return cases.Lower(language.Und).String(s)
}

// capitalize makes the first character a title-case one, the rest lower.
func capitalize(s string) string {
	r, n := utf8.DecodeRuneInString(s)
	if n == 0 {
		return ""
	}
	first := string(unicode.ToTitle(r))
	if r == 'ß' {
		first = "Ss"
	}
	return first + lower(s[n:])
}

// title is str.title: each run of letters that have case begins with a title-case
// one.
func title(s string) string {
	var b strings.Builder
	for s != "" {
		cased := func(r rune) bool { return unicode.IsUpper(r) || unicode.IsLower(r) || unicode.IsTitle(r) }
		start := strings.IndexFunc(s, cased)
		if start < 0 {
			break
		}
		b.WriteString(s[:start])
		s = s[start:]
		end := strings.IndexFunc(s, func(r rune) bool { return !cased(r) })
		if end < 0 {
			end = len(s)
		}
		b.WriteString(capitalize(s[:end]))
		s = s[end:]
	}
	return b.String() + s
}

// strip trims white space, or the characters of the argument if there is one.
func strip(s string, chars Value, left, right bool) (string, error) {
	cut := pythonWhitespace
	switch {
	case chars.kind == KindString:
		cut = func(r rune) bool { return strings.ContainsRune(chars.s, r) }
	case chars.kind == KindUndefined:
		return "", undefinedError(chars)
	case chars.kind != KindNone && chars.kind != kindAbsent:
		return "", fmt.Errorf("strip arg must be None or str, not %s", chars.typeName())
	}
	if left {
		s = strings.TrimLeftFunc(s, cut)
	}
	if right {
		s = strings.TrimRightFunc(s, cut)
	}
	return s, nil
}

// A method of strings: its parameters and what it does with them.
type method struct {
	params []param
	fn     func(s string, args []Value) (Value, error)
}

// text makes a method's result of a string.
func text(s string, err error) (Value, error) { return NewString(s), err }

func is(test func(s string) bool) method {
	return method{fn: func(s string, _ []Value) (Value, error) { return NewBool(s != "" && test(s)), nil }}
}

func all(test func(r rune) bool) func(string) bool {
	return func(s string) bool { return !strings.ContainsFunc(s, func(r rune) bool { return !test(r) }) }
}

func mapped(f func(string) string) method {
	return method{fn: func(s string, _ []Value) (Value, error) { return NewString(f(s)), nil }}
}

func padded(align byte) method {
	return method{params: []param{num("width"), opt("fillchar")}, fn: func(s string, a []Value) (Value, error) {
		fill := " "
		if a[1].kind == KindString {
			fill = a[1].s
		}
		if utf8.RuneCountInString(fill) != 1 || a[0].n > maxPadding {
			return Value{}, unsupported("padding of %d by %q", a[0].n, fill)
		}
		if align == '^' {
			// str.center puts the odd one to the left of an odd width.
			missing := int(a[0].n) - utf8.RuneCountInString(s)
			left := missing/2 + missing&int(a[0].n)&1
			if missing <= 0 {
				return NewString(s), nil
			}
			return NewString(strings.Repeat(fill, left) + s + strings.Repeat(fill, missing-left)), nil
		}
		return NewString(pad(s, int(a[0].n), align, fill)), nil
	}}
}

var stringMethods = map[string]method{
	"strip":      {[]param{opt("chars")}, func(s string, a []Value) (Value, error) { return text(strip(s, a[0], true, true)) }},
	"lstrip":     {[]param{opt("chars")}, func(s string, a []Value) (Value, error) { return text(strip(s, a[0], true, false)) }},
	"rstrip":     {[]param{opt("chars")}, func(s string, a []Value) (Value, error) { return text(strip(s, a[0], false, true)) }},
	"upper":      mapped(upper),
	"lower":      mapped(lower),
	"casefold":   mapped(func(s string) string { return cases.Fold().String(s) }),
	"title":      mapped(title),
	"capitalize": mapped(capitalize),
	"ljust":      padded('<'),
	"rjust":      padded('>'),
	"center":     padded('^'),
	"zfill":      {[]param{num("width")}, zfill},
	"split":      {[]param{opt("sep"), optNum("maxsplit")}, split},
	"rsplit":     {[]param{opt("sep"), optNum("maxsplit")}, rsplit},
	"splitlines": {[]param{opt("keepends")}, func(s string, a []Value) (Value, error) {
		return NewList(stringValues(splitLines(s, a[0].IsTruthy()))), nil
	}},
	"partition":  {[]param{str("sep")}, func(s string, a []Value) (Value, error) { return partition(s, a[0].s, false) }},
	"rpartition": {[]param{str("sep")}, func(s string, a []Value) (Value, error) { return partition(s, a[0].s, true) }},
	"join":       {[]param{req("iterable")}, joinStrings},
	"replace":    {[]param{str("old"), str("new"), optNum("count")}, replace},
	"removeprefix": {[]param{str("prefix")}, func(s string, a []Value) (Value, error) {
		return NewString(strings.TrimPrefix(s, a[0].s)), nil
	}},
	"removesuffix": {[]param{str("suffix")}, func(s string, a []Value) (Value, error) {
		return NewString(strings.TrimSuffix(s, a[0].s)), nil
	}},
	"startswith": affix(strings.HasPrefix),
	"endswith":   affix(strings.HasSuffix),
	"find":       find(strings.Index, false),
	"rfind":      find(strings.LastIndex, false),
	"index":      find(strings.Index, true),
	"rindex":     find(strings.LastIndex, true),
	"count": {within("sub"), func(s string, a []Value) (Value, error) {
		part, _, ok := window(s, a[1], a[2])
		if !ok {
			return NewInt(0), nil
		}
		return NewInt(int64(strings.Count(part, a[0].s))), nil
	}},
	"isdigit":   is(all(unicode.IsDigit)),
	"isdecimal": is(all(unicode.IsDigit)),
	"isnumeric": is(all(unicode.IsNumber)),
	"isalpha":   is(all(unicode.IsLetter)),
	"isalnum":   is(all(func(r rune) bool { return unicode.IsLetter(r) || unicode.IsNumber(r) })),
	"isspace":   is(all(pythonWhitespace)),
	"isascii":   {fn: func(s string, _ []Value) (Value, error) { return NewBool(isASCII(s)), nil }},
	"isupper":   is(isUpper),
	"islower":   is(isLower),
}

func isUpper(s string) bool {
	return strings.ContainsFunc(s, unicode.IsUpper) && !strings.ContainsFunc(s, func(r rune) bool { return unicode.IsLower(r) || unicode.IsTitle(r) })
}

func isLower(s string) bool {
	return strings.ContainsFunc(s, unicode.IsLower) && !strings.ContainsFunc(s, func(r rune) bool { return unicode.IsUpper(r) || unicode.IsTitle(r) })
}

func stringMethod(s, name string) (Value, bool) {
	if name == "format" {
		return NewCallable("str.format", func(args []Value, kwargs Kwargs) (Value, error) {
			return formatBraces(s, args, kwargs)
		}), true
	}
	m, ok := stringMethods[name]
	if !ok {
		return Value{}, false
	}
	return NewCallable("str."+name, func(args []Value, kwargs Kwargs) (Value, error) {
		bound, err := bindParams("str."+name, m.params, args, kwargs)
		if err != nil {
			return Value{}, err
		}
		return m.fn(s, bound)
	}), true
}

func zfill(s string, a []Value) (Value, error) {
	if a[0].n > maxPadding {
		return Value{}, fmt.Errorf("a width of %d is more than %d", a[0].n, maxPadding)
	}
	sign := ""
	if s != "" && (s[0] == '-' || s[0] == '+') {
		sign, s = s[:1], s[1:]
	}
	return NewString(sign + pad(s, int(a[0].n)-len(sign), '>', "0")), nil
}

// split is str.split; a separator of none splits at runs of white space.
func split(s string, a []Value) (Value, error) {
	limit := -1
	if a[1].kind != kindAbsent {
		limit = int(min(a[1].n, 1<<31))
	}
	if a[0].kind == KindNone || a[0].kind == kindAbsent {
		var parts []string
		rest := strings.TrimLeftFunc(s, pythonWhitespace)
		for rest != "" {
			at := strings.IndexFunc(rest, pythonWhitespace)
			if at < 0 || limit >= 0 && len(parts) == limit {
				parts = append(parts, rest)
				break
			}
			parts = append(parts, rest[:at])
			rest = strings.TrimLeftFunc(rest[at:], pythonWhitespace)
		}
		return NewList(stringValues(parts)), nil
	}
	if a[0].s == "" {
		return Value{}, fmt.Errorf("split: the separator must be a string that is not empty")
	}
	if limit >= 0 {
		limit++
	}
	return NewList(stringValues(strings.SplitN(s, a[0].s, limit))), nil
}

func rsplit(s string, a []Value) (Value, error) {
	if a[1].kind == kindAbsent || a[1].n < 0 {
		return split(s, a)
	}
	var parts []string
	space := a[0].kind != KindString
	if !space && a[0].s == "" {
		return Value{}, fmt.Errorf("rsplit: the separator must be a string that is not empty")
	}
	if space {
		s = strings.TrimRightFunc(s, pythonWhitespace)
	}
	for int64(len(parts)) < a[1].n {
		at, after := strings.LastIndex(s, a[0].s), 0
		if space {
			at = strings.LastIndexFunc(s, pythonWhitespace)
			_, after = utf8.DecodeRuneInString(s[max(at, 0):])
		} else {
			after = len(a[0].s)
		}
		if at < 0 || space && s == "" {
			break
		}
		parts = append(parts, s[at+after:])
		if s = s[:at]; space {
			s = strings.TrimRightFunc(s, pythonWhitespace)
		}
	}
	if !space || strings.TrimFunc(s, pythonWhitespace) != "" {
		parts = append(parts, s)
	}
	slices.Reverse(parts)
	return NewList(stringValues(parts)), nil
}

// splitLines is str.splitlines.
func splitLines(s string, keep bool) []string {
	var lines []string
	for s != "" {
		at := strings.IndexFunc(s, func(r rune) bool {
			return r >= '\n' && r <= '\r' || r >= '\x1c' && r <= '\x1e' || r == '\u0085' || r == '\u2028' || r == '\u2029'
		})
		if at < 0 {
			return append(lines, s)
		}
		_, n := utf8.DecodeRuneInString(s[at:])
		if strings.HasPrefix(s[at:], "\r\n") {
			n = 2
		}
		if keep {
			lines = append(lines, s[:at+n])
		} else {
			lines = append(lines, s[:at])
		}
		s = s[at+n:]
	}
	return lines
}

func partition(s, sep string, last bool) (Value, error) {
	if sep == "" {
		return Value{}, fmt.Errorf("partition: empty separator")
	}
	at := strings.Index(s, sep)
	if last {
		at = strings.LastIndex(s, sep)
	}
	switch {
	case at >= 0:
		return newTuple(NewString(s[:at]), NewString(sep), NewString(s[at+len(sep):])), nil
	case last:
		return newTuple(NewString(""), NewString(""), NewString(s)), nil
	}
	return newTuple(NewString(s), NewString(""), NewString("")), nil
}

func joinStrings(s string, a []Value) (Value, error) {
	items, err := iterate(a[0])
	if err != nil {
		return Value{}, err
	}
	parts := make([]string, len(items))
	for i, item := range items {
		if item.kind != KindString {
			return Value{}, fmt.Errorf("join: item %d is of type %s, a string is expected", i, item.typeName())
		}
		parts[i] = item.s
	}
	return NewString(strings.Join(parts, s)), nil
}

func replace(s string, a []Value) (Value, error) {
	count := -1
	if a[2].integral() {
		count = int(min(a[2].n, 1<<31))
	}
	if a[0].s == "" && count != 0 && len(a[1].s) > 0 && utf8.RuneCountInString(s) > maxRepeat/len(a[1].s) {
		return Value{}, fmt.Errorf("replace: the result exceeds %d bytes", maxRepeat)
	}
	return NewString(strings.Replace(s, a[0].s, a[1].s, count)), nil
}

// within are the parameters of the methods that look at a part of a string.
func within(name string) []param { return []param{str(name), opt("start"), opt("end")} }

// window returns s[start:end], with the number of characters before it; ok is
// false where start lies behind end.
func window(s string, start, end Value) (part string, from int, ok bool) {
	if (start.kind == KindNone || start.kind == kindAbsent) && (end.kind == KindNone || end.kind == kindAbsent) {
		return s, 0, true
	}
	n := utf8.RuneCountInString(s)
	to := n
	for _, b := range []struct {
		v  Value
		to *int
	}{{start, &from}, {end, &to}} {
		if b.v.integral() {
			at := b.v.n
			if at < 0 {
				at = max(at+int64(n), 0)
			}
			*b.to = int(min(at, int64(n)+1))
		}
	}
	to = min(to, n)
	if from > to {
		return "", from, false
	}
	return sliceRunes(s, from, to), from, true
}

func affix(has func(s, part string) bool) method {
	params := []param{req("prefix"), opt("start"), opt("end")}
	return method{params, func(s string, a []Value) (Value, error) {
		patterns := []Value{a[0]}
		if l := a[0].AsList(); l != nil && l.form == formTuple {
			patterns = l.Items
		}
		part, _, ok := window(s, a[1], a[2])
		for _, p := range patterns {
			if p.kind == KindUndefined {
				return Value{}, undefinedError(p)
			}
			if p.kind != KindString {
				return Value{}, fmt.Errorf("first arg must be str or a tuple of str, not %s", p.typeName())
			}
			if ok && has(part, p.s) {
				return NewBool(true), nil
			}
		}
		return NewBool(false), nil
	}}
}

func find(index func(s, part string) int, must bool) method {
	return method{within("sub"), func(s string, a []Value) (Value, error) {
		part, from, ok := window(s, a[1], a[2])
		at := index(part, a[0].s)
		switch {
		case ok && at >= 0:
			return NewInt(int64(from + utf8.RuneCountInString(part[:at]))), nil
		case must:
			return Value{}, fmt.Errorf("substring %q not found", a[0].s)
		}
		return NewInt(-1), nil
	}}
}

// unsafeMethods change a list or a dict: the sandbox gives them out as undefined.
var unsafeMethods = []string{"append", "clear", "extend", "insert", "pop", "popitem", "remove", "reverse", "setdefault", "sort", "update"}

func listMethod(l *List, name string) (Value, bool) {
	switch {
	case l.form == formLazy || l.form == formView:
		return Value{}, false
	case name == "index":
		return NewCallable("list.index", func(args []Value, kwargs Kwargs) (Value, error) {
			a, err := bindParams("list.index", []param{req("value")}, args, kwargs)
			if err != nil {
				return Value{}, err
			}
			if i := slices.IndexFunc(l.Items, a[0].Equals); i >= 0 {
				return NewInt(int64(i)), nil
			}
			return Value{}, fmt.Errorf("%s is not in list", a[0])
		}), true
	case name == "count":
		return NewCallable("list.count", func(args []Value, kwargs Kwargs) (Value, error) {
			a, err := bindParams("list.count", []param{req("value")}, args, kwargs)
			if err != nil {
				return Value{}, err
			}
			n := 0
			for _, item := range l.Items {
				if item.Equals(a[0]) {
					n++
				}
			}
			return NewInt(int64(n)), nil
		}), true
	case l.form == formList && name == "copy":
		return NewCallable("list.copy", func([]Value, Kwargs) (Value, error) {
			return NewList(slices.Clone(l.Items)), nil
		}), true
	case slices.Contains(unsafeMethods, name):
		return undefined(name + " (it would change a list, which the sandbox forbids)"), true
	}
	return Value{}, false
}

func dictMethod(d *Dict, name string) (Value, bool) {
	switch name {
	case "items", "keys", "values":
		return NewCallable("dict."+name, func(args []Value, kwargs Kwargs) (Value, error) {
			if _, err := bindParams("dict."+name, nil, args, kwargs); err != nil {
				return Value{}, err
			}
			return Value{kind: KindList, p: &List{Items: d.view(name), form: formView, view: name}}, nil
		}), true
	case "get":
		return NewCallable("dict.get", func(args []Value, kwargs Kwargs) (Value, error) {
			a, err := bindParams("dict.get", []param{req("key"), opt("default")}, args, kwargs)
			if err != nil {
				return Value{}, err
			}
			if v, ok := d.Get(a[0].s); ok && a[0].kind == KindString {
				return v, nil
			}
			if a[1].kind == kindAbsent {
				return None(), nil
			}
			return a[1], nil
		}), true
	case "copy":
		return NewCallable("dict.copy", func([]Value, Kwargs) (Value, error) {
			out := &Dict{}
			for i, key := range d.keys {
				out.Set(key, d.vals[i])
			}
			return Value{kind: KindDict, p: out}, nil
		}), true
	case "clear", "pop", "popitem", "setdefault", "update":
		return undefined(name + " (it would change a dict, which the sandbox forbids)"), true
	}
	return Value{}, false
}

// view returns what d.items(), d.keys() or d.values() goes through.
func (d *Dict) view(name string) []Value {
	switch name {
	case "keys":
		return stringValues(d.keys)
	case "values":
		return slices.Clone(d.vals)
	}
	items := make([]Value, len(d.keys))
	for i, key := range d.keys {
		items[i] = newTuple(NewString(key), d.vals[i])
	}
	return items
}
