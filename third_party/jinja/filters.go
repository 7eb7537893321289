package jinja

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// A filter has its input as the first parameter. The ones with any number of
// arguments have raw in place of params and fn.
type filter struct {
	params []param
	fn     func(a []Value) (Value, error)
	raw    func(args []Value, kwargs Kwargs) (Value, error)
}

var value = req("value")

// filters are those of jinja2.filters.FILTERS that chat templates have use for.
// It is filled by init: map looks into it.
var filters map[string]filter

func init() {
	filters = map[string]filter{
		"abs":        {params: []param{value}, fn: filterAbs},
		"attr":       {params: []param{value, str("name")}, fn: filterAttr},
		"batch":      {params: []param{value, num("linecount"), opt("fill_with")}, fn: filterBatch},
		"capitalize": ofString(capitalize),
		"center":     {params: []param{value, optNum("width")}, fn: filterCenter},
		"count":      {params: []param{value}, fn: filterLength},
		"d":          {params: []param{value, opt("default_value"), opt("boolean")}, fn: filterDefault},
		"default":    {params: []param{value, opt("default_value"), opt("boolean")}, fn: filterDefault},
		"dictsort":   {params: []param{value, opt("case_sensitive"), opt("by"), opt("reverse")}, fn: filterDictsort},
		"e":          ofString(escapeHTML),
		"escape":     ofString(escapeHTML),
		"first":      {params: []param{value}, fn: filterFirst},
		"float":      {params: []param{value, opt("default")}, fn: filterFloat},
		"format":     {raw: filterFormat},
		"groupby":    {params: []param{value, req("attribute"), opt("default"), opt("case_sensitive")}, fn: filterGroupby},
		"indent":     {params: []param{value, opt("width"), opt("first"), opt("blank")}, fn: filterIndent},
		"int":        {params: []param{value, opt("default"), optNum("base")}, fn: filterInt},
		"items":      {params: []param{value}, fn: filterItems},
		"join":       {params: []param{value, opt("d"), opt("attribute")}, fn: filterJoin},
		"last":       {params: []param{value}, fn: filterLast},
		"length":     {params: []param{value}, fn: filterLength},
		"list":       {params: []param{value}, fn: filterList},
		"lower":      ofString(lower),
		"map":        {raw: filterMap},
		"max":        {params: []param{value, opt("case_sensitive"), opt("attribute")}, fn: extremum(1)},
		"min":        {params: []param{value, opt("case_sensitive"), opt("attribute")}, fn: extremum(-1)},
		"reject":     {raw: picking(false, false)},
		"rejectattr": {raw: picking(false, true)},
		"replace":    {params: []param{value, req("old"), req("new"), optNum("count")}, fn: filterReplace},
		"reverse":    {params: []param{value}, fn: filterReverse},
		"round":      {params: []param{value, optNum("precision"), opt("method")}, fn: filterRound},
		"safe":       ofString(func(s string) string { return s }),
		"select":     {raw: picking(true, false)},
		"selectattr": {raw: picking(true, true)},
		"slice":      {params: []param{value, num("slices"), opt("fill_with")}, fn: filterSlice},
		"sort":       {params: []param{value, opt("reverse"), opt("case_sensitive"), opt("attribute")}, fn: filterSort},
		"string":     ofString(func(s string) string { return s }),
		"sum":        {params: []param{value, opt("attribute"), opt("start")}, fn: filterSum},
		"title":      ofString(titleWords),
		"tojson":     {params: []param{value, opt("ensure_ascii"), opt("indent"), opt("separators"), opt("sort_keys")}, fn: filterTojson},
		"trim":       {params: []param{value, opt("chars")}, fn: filterTrim},
		"truncate":   {params: []param{value, optNum("length"), opt("killwords"), opt("end"), optNum("leeway")}, fn: filterTruncate},
		"unique":     {params: []param{value, opt("case_sensitive"), opt("attribute")}, fn: filterUnique},
		"upper":      ofString(upper),
		"wordcount":  {params: []param{value}, fn: filterWordcount},
	}
}

// ofString makes a filter of a function of the value's text.
func ofString(f func(string) string) filter {
	return filter{params: []param{value}, fn: func(a []Value) (Value, error) { return NewString(f(printValue(a[0]))), nil }}
}

func applyFilter(name string, args []Value, kwargs Kwargs) (v Value, err error) {
	f, ok := filters[name]
	switch {
	case !ok:
		return v, fmt.Errorf("unknown filter %q", name)
	case f.raw != nil:
		v, err = f.raw(args, kwargs)
	default:
		var a []Value
		if a, err = bindParams(name, f.params, args, kwargs); err == nil {
			v, err = f.fn(a)
		}
	}
	if _, raised := err.(*Raised); err != nil && !raised {
		err = fmt.Errorf("filter %q: %w", name, err)
	}
	return v, err
}

func filterAbs(a []Value) (Value, error) {
	switch {
	case a[0].kind == KindFloat:
		return NewFloat(math.Abs(a[0].float())), nil
	case a[0].integral() && a[0].s == "" && a[0].n != math.MinInt64:
		return NewInt(max(a[0].n, -a[0].n)), nil
	}
	return Value{}, fmt.Errorf("bad operand type for abs(): '%s'", a[0].typeName())
}

func filterAttr(a []Value) (Value, error) {
	// The filter looks at attributes alone, never at items.
	if a[0].kind == KindDict {
		if m, ok := dictMethod(a[0].AsDict(), a[1].s); ok {
			return m, nil
		}
		return undefined(a[1].s), nil
	}
	return getAttr(a[0], a[1].s)
}

func filterBatch(a []Value) (Value, error) {
	items, err := iterate(a[0])
	if err != nil {
		return Value{}, err
	}
	n := int(min(a[1].n, int64(len(items))+1))
	if n <= 0 {
		return Value{}, fmt.Errorf("linecount must be above 0")
	}
	var batches []Value
	for batch := range slices.Chunk(items, n) {
		batch = slices.Clone(batch)
		for a[2].kind != kindAbsent && a[2].kind != KindNone && int64(len(batch)) < min(a[1].n, maxRange) {
			batch = append(batch, a[2])
		}
		batches = append(batches, NewList(batch))
	}
	return newLazy(batches), nil
}

func filterSlice(a []Value) (Value, error) {
	items, err := iterate(a[0])
	n := int(a[1].n)
	if err != nil || n <= 0 || n > maxRange {
		return Value{}, fmt.Errorf("slices of %s into %d are not possible", a[0].typeName(), n)
	}
	size, more := len(items)/n, len(items)%n
	var out []Value
	at := 0
	for i := range n {
		end := at + size
		if i < more {
			end++
		}
		part := slices.Clone(items[at:end])
		if i >= more && more > 0 && a[2].kind != kindAbsent && a[2].kind != KindNone {
			part = append(part, a[2])
		}
		out = append(out, NewList(part))
		at = end
	}
	return newLazy(out), nil
}

func filterCenter(a []Value) (Value, error) {
	width := NewInt(80)
	if a[1].kind == KindInt {
		width = a[1]
	}
	return stringMethods["center"].fn(printValue(a[0]), []Value{width, {kind: kindAbsent}})
}

func filterDefault(a []Value) (Value, error) {
	if a[0].kind != KindUndefined && (!a[2].IsTruthy() || a[0].IsTruthy()) {
		return a[0], nil
	}
	if a[1].kind == kindAbsent {
		return NewString(""), nil
	}
	return a[1], nil
}

// folded returns what is compared where case makes no difference.
func folded(v Value, caseSensitive bool) Value {
	if !caseSensitive && v.kind == KindString {
		return NewString(lower(v.s))
	}
	return v
}

func filterDictsort(a []Value) (Value, error) {
	d := a[0].AsDict()
	if a[0].kind != KindDict {
		return Value{}, fmt.Errorf("'%s' object has no items", a[0].typeName())
	}
	pos := 0
	switch {
	case a[2].kind == kindAbsent || a[2].s == "key":
	case a[2].s == "value":
		pos = 1
	default:
		return Value{}, fmt.Errorf("by must be \"key\" or \"value\"")
	}
	items := d.view("items")
	err := sortValues(items, a[3].IsTruthy(), func(v Value) (Value, error) {
		return folded(v.AsList().Items[pos], a[1].IsTruthy()), nil
	})
	return NewList(items), err
}

// sortValues sorts by key, stably, also where reversed, as Python does.
func sortValues(items []Value, reverse bool, key func(Value) (Value, error)) error {
	type keyed struct{ key, item Value }
	all := make([]keyed, len(items))
	for i, item := range items {
		k, err := key(item)
		if err != nil {
			return err
		}
		all[i] = keyed{k, item}
	}
	var failed error
	slices.SortStableFunc(all, func(x, y keyed) int {
		order, _, err := compare(x.key, y.key)
		if err != nil {
			failed = err
		}
		if reverse {
			return -order
		}
		return order
	})
	for i, k := range all {
		items[i] = k.item
	}
	return failed
}

var htmlEscaper = strings.NewReplacer("&", "&amp;", "<", "&lt;", ">", "&gt;", `"`, "&#34;", "'", "&#39;")

func escapeHTML(s string) string { return htmlEscaper.Replace(s) }

func filterFirst(a []Value) (Value, error) {
	if l := a[0].AsList(); l != nil && l.form == formLazy && len(l.Items) > 0 {
		v := l.Items[0]
		l.Items = l.Items[1:]
		return v, nil
	}
	items, err := iterate(a[0])
	if err != nil || len(items) == 0 {
		return undefined("no first item, sequence was empty"), err
	}
	return items[0], nil
}

func filterLast(a []Value) (Value, error) {
	if a[0].kind == KindList && a[0].AsList().form == formLazy {
		return Value{}, fmt.Errorf("'%s' object is not reversible", a[0].typeName())
	}
	items, err := iterate(a[0])
	if err != nil || len(items) == 0 {
		return undefined("no last item, sequence was empty"), err
	}
	return items[len(items)-1], nil
}

func filterFloat(a []Value) (Value, error) {
	if a[0].numeric() {
		return NewFloat(a[0].float()), nil
	}
	if a[0].kind == KindString {
		if f, err := parseFloat(a[0].s); err == nil {
			return NewFloat(f), nil
		}
	}
	if a[0].kind == KindUndefined {
		return Value{}, undefinedError(a[0])
	}
	if a[1].kind == kindAbsent {
		return NewFloat(0), nil
	}
	return a[1], nil
}

// parseFloat reads what Python's float does, but for underscores.
func parseFloat(s string) (float64, error) {
	s = strings.TrimFunc(s, pythonWhitespace)
	if strings.ContainsAny(s, "xXpP_") {
		return 0, strconv.ErrSyntax
	}
	f, err := strconv.ParseFloat(s, 64)
	if math.IsInf(f, 0) {
		err = nil
	}
	return f, err
}

func filterFormat(args []Value, kwargs Kwargs) (Value, error) {
	if len(kwargs) > 0 {
		if len(args) > 1 {
			return Value{}, fmt.Errorf("can't handle positional and keyword arguments at the same time")
		}
		d, err := makeDict(nil, kwargs)
		if err != nil {
			return Value{}, err
		}
		return formatPercent(printValue(args[0]), d)
	}
	return formatPercent(printValue(args[0]), newTuple(args[1:]...))
}

// attribute returns what a path like "function.name" or "0" leads to.
func attribute(v Value, path Value) (Value, error) {
	if path.kind == KindInt {
		return getItem(v, path)
	}
	var err error
	for part := range strings.SplitSeq(printValue(path), ".") {
		key := NewString(part)
		if n, isNumber := strconv.Atoi(part); isNumber == nil && n >= 0 {
			key = NewInt(int64(n))
		}
		if v, err = getItem(v, key); err != nil {
			return Value{}, err
		}
	}
	return v, nil
}

func given(v Value) bool { return v.kind != kindAbsent && v.kind != KindNone }

func filterGroupby(a []Value) (Value, error) {
	items, err := iterate(a[0])
	if err != nil {
		return Value{}, err
	}
	items = slices.Clone(items)
	key := func(v Value) (Value, error) {
		v, err := attribute(v, a[1])
		if v.kind == KindUndefined && given(a[2]) {
			v = a[2]
		}
		return folded(v, a[3].IsTruthy()), err
	}
	if err := sortValues(items, false, key); err != nil {
		return Value{}, err
	}
	var groups []Value
	var last Value
	for i, item := range items {
		k, err := key(item)
		if err != nil {
			return Value{}, err
		}
		if i == 0 || !k.Equals(last) {
			name, _ := attribute(item, a[1])
			if name.kind == KindUndefined && given(a[2]) {
				name = a[2]
			}
			groups = append(groups, newTuple(name, NewList(nil)))
			last = k
		}
		members := groups[len(groups)-1].AsList().Items[1].AsList()
		members.Items = append(members.Items, item)
	}
	return NewList(groups), nil
}

func filterIndent(a []Value) (Value, error) {
	if a[0].kind != KindString {
		return Value{}, fmt.Errorf("a string is expected, not %s", a[0].typeName())
	}
	pad := "    "
	switch a[1].kind {
	case KindString:
		pad = a[1].s
	case KindInt:
		if a[1].n > maxPadding {
			return Value{}, fmt.Errorf("a width of %d is more than %d", a[1].n, maxPadding)
		}
		pad = strings.Repeat(" ", int(max(a[1].n, 0)))
	}
	blank := a[3].IsTruthy()
	lines := splitLines(a[0].s+"\n", false)
	if len(lines)*len(pad) > maxRepeat {
		return Value{}, fmt.Errorf("the result exceeds %d bytes", maxRepeat)
	}
	for i, line := range lines {
		if i > 0 && (line != "" || blank) || i == 0 && a[2].IsTruthy() {
			lines[i] = pad + line
		}
	}
	return NewString(strings.Join(lines, "\n")), nil
}

func filterInt(a []Value) (Value, error) {
	switch v := a[0]; {
	case v.integral():
		if v.kind == KindBool {
			return NewInt(v.n), nil
		}
		return v, nil
	case v.kind == KindUndefined:
		return Value{}, undefinedError(v)
	case v.kind == KindString:
		base := 10
		if a[2].kind == KindInt {
			base = int(a[2].n)
		}
		if n, ok := parseInt(v.s, base); ok {
			return n, nil
		}
		if f, err := parseFloat(v.s); err == nil && math.Abs(f) < 0x1p63 {
			return NewInt(int64(f)), nil
		}
	case v.kind == KindFloat && math.Abs(v.float()) < 0x1p63:
		return NewInt(int64(v.float())), nil
	}
	if a[1].kind == kindAbsent {
		return NewInt(0), nil
	}
	return a[1], nil
}

// parseInt reads what Python's int(s, base) does.
func parseInt(s string, base int) (Value, bool) {
	s = strings.TrimFunc(s, pythonWhitespace)
	if base < 2 || base > 36 || strings.Contains(s, "_") {
		return Value{}, false
	}
	sign, digits := "", s
	if digits != "" && (digits[0] == '+' || digits[0] == '-') {
		sign, digits = digits[:1], digits[1:]
	}
	if prefix := map[int]string{2: "0b", 8: "0o", 16: "0x"}[base]; prefix != "" && strings.HasPrefix(strings.ToLower(digits), prefix) {
		digits = digits[2:]
	}
	if digits == "" || digits[0] == '+' || digits[0] == '-' {
		return Value{}, false
	}
	n, err := strconv.ParseInt(strings.TrimPrefix(sign, "+")+digits, base, 64)
	return NewInt(n), err == nil
}

func filterItems(a []Value) (Value, error) {
	switch a[0].kind {
	case KindUndefined:
		return newLazy(nil), nil
	case KindDict:
		return newLazy(a[0].AsDict().view("items")), nil
	}
	return Value{}, fmt.Errorf("can only get item pairs from a mapping")
}

func filterJoin(a []Value) (Value, error) {
	items, err := iterate(a[0])
	if err != nil {
		return Value{}, err
	}
	sep := ""
	if a[1].kind != kindAbsent {
		sep = printValue(a[1])
	}
	parts := make([]string, len(items))
	for i, item := range items {
		if given(a[2]) {
			if item, err = attribute(item, a[2]); err != nil {
				return Value{}, err
			}
		}
		parts[i] = printValue(item)
	}
	return NewString(strings.Join(parts, sep)), nil
}

func filterLength(a []Value) (Value, error) {
	switch v := a[0]; v.kind {
	case KindUndefined:
		return NewInt(0), nil
	case KindString:
		return NewInt(int64(utf8.RuneCountInString(v.s))), nil
	case KindDict:
		return NewInt(int64(v.AsDict().Len())), nil
	case KindList:
		if v.AsList().form != formLazy {
			return NewInt(int64(len(v.AsList().Items))), nil
		}
	}
	return Value{}, fmt.Errorf("object of type '%s' has no len()", a[0].typeName())
}

func filterList(a []Value) (Value, error) {
	items, err := iterate(a[0])
	return NewList(slices.Clone(items)), err
}

// filterMap is map("filter", …) and map(attribute="name", default=…).
func filterMap(args []Value, kwargs Kwargs) (Value, error) {
	items, err := iterate(args[0])
	if err != nil {
		return Value{}, err
	}
	out := make([]Value, len(items))
	if path, ok := kwargs.Get("attribute"); ok && len(args) == 1 {
		fallback, hasFallback := kwargs.Get("default")
		for i, item := range items {
			if out[i], err = attribute(item, path); err != nil {
				return Value{}, err
			}
			if out[i].kind == KindUndefined && hasFallback {
				out[i] = fallback
			}
		}
		return newLazy(out), nil
	}
	if len(args) < 2 || args[1].kind != KindString {
		return Value{}, fmt.Errorf("a filter's name is expected")
	}
	for i, item := range items {
		if out[i], err = applyFilter(args[1].s, append([]Value{item}, args[2:]...), kwargs); err != nil {
			return Value{}, err
		}
	}
	return newLazy(out), nil
}

// picking is select, reject, selectattr and rejectattr.
func picking(want, byAttribute bool) func(args []Value, kwargs Kwargs) (Value, error) {
	return func(args []Value, kwargs Kwargs) (Value, error) {
		items, err := iterate(args[0])
		if err != nil {
			return Value{}, err
		}
		rest := args[1:]
		var path Value
		if byAttribute {
			if len(rest) == 0 {
				return Value{}, fmt.Errorf("an attribute's name is expected")
			}
			path, rest = rest[0], rest[1:]
		}
		var out []Value
		for _, item := range items {
			v := item
			if byAttribute {
				if v, err = attribute(item, path); err != nil {
					return Value{}, err
				}
			}
			ok := v.IsTruthy()
			if len(rest) > 0 {
				if ok, err = applyTest(printValue(rest[0]), v, rest[1:]); err != nil {
					return Value{}, err
				}
			}
			if ok == want {
				out = append(out, item)
			}
		}
		return newLazy(out), nil
	}
}

func extremum(direction int) func(a []Value) (Value, error) {
	return func(a []Value) (Value, error) {
		items, err := iterate(a[0])
		if err != nil || len(items) == 0 {
			return undefined("no aggregated item, sequence was empty"), err
		}
		var best, bestKey Value
		for i, item := range items {
			key := item
			if given(a[2]) {
				if key, err = attribute(item, a[2]); err != nil {
					return Value{}, err
				}
			}
			key = folded(key, a[1].IsTruthy())
			order := 1
			if i > 0 {
				if order, _, err = compare(key, bestKey); err != nil {
					return Value{}, err
				}
				order *= direction
			}
			if order > 0 {
				best, bestKey = item, key
			}
		}
		return best, nil
	}
}

func filterReplace(a []Value) (Value, error) {
	return replace(printValue(a[0]), []Value{NewString(printValue(a[1])), NewString(printValue(a[2])), a[3]})
}

func filterReverse(a []Value) (Value, error) {
	if a[0].kind == KindString {
		runes := []rune(a[0].s)
		slices.Reverse(runes)
		return NewString(string(runes)), nil
	}
	items, err := iterate(a[0])
	items = slices.Clone(items)
	slices.Reverse(items)
	return newLazy(items), err
}

func filterRound(a []Value) (Value, error) {
	if !a[0].numeric() {
		return Value{}, fmt.Errorf("type %s doesn't define __round__ method", a[0].typeName())
	}
	f, precision, method := a[0].float(), 0, "common"
	if a[1].kind == KindInt {
		precision = int(min(max(a[1].n, -400), 400))
	}
	if a[2].kind != kindAbsent {
		method = printValue(a[2])
	}
	pow := math.Pow(10, float64(precision))
	switch method {
	case "ceil":
		return NewFloat(math.Ceil(f*pow) / pow), nil
	case "floor":
		return NewFloat(math.Floor(f*pow) / pow), nil
	case "common":
	default:
		return Value{}, fmt.Errorf("method must be common, ceil or floor")
	}
	if a[0].integral() { // round(int) stays an int
		if precision >= 0 {
			return a[0], nil
		}
		return NewInt(int64(math.RoundToEven(f*pow) / pow)), nil
	}
	if precision >= 0 && !math.IsInf(f, 0) && !math.IsNaN(f) {
		// Decimal formatting rounds the actual binary value, not f*10^n.
		n, err := strconv.ParseFloat(strconv.FormatFloat(f, 'f', precision, 64), 64)
		return NewFloat(n), err
	}
	return NewFloat(math.RoundToEven(f*pow) / pow), nil
}

func filterSort(a []Value) (Value, error) {
	items, err := iterate(a[0])
	if err != nil {
		return Value{}, err
	}
	items = slices.Clone(items)
	err = sortValues(items, a[1].IsTruthy(), func(v Value) (Value, error) {
		if !given(a[3]) {
			return folded(v, a[2].IsTruthy()), nil
		}
		if a[3].kind != KindString {
			v, err := attribute(v, a[3])
			return folded(v, a[2].IsTruthy()), err
		}
		var keys []Value
		for path := range strings.SplitSeq(a[3].s, ",") {
			key, err := attribute(v, NewString(path))
			if err != nil {
				return Value{}, err
			}
			keys = append(keys, folded(key, a[2].IsTruthy()))
		}
		return NewList(keys), nil
	})
	return NewList(items), err
}

func filterSum(a []Value) (Value, error) {
	items, err := iterate(a[0])
	if err != nil {
		return Value{}, err
	}
	sum := NewInt(0)
	if a[2].kind != kindAbsent {
		sum = a[2]
	}
	for _, item := range items {
		if given(a[1]) {
			if item, err = attribute(item, a[1]); err != nil {
				return Value{}, err
			}
		}
		if sum, err = binary("+", sum, item); err != nil {
			return Value{}, err
		}
	}
	return sum, nil
}

// titleWords is the filter's own title case: words begin after white space and
// after one of "-({[<", as jinja2's _word_beginning_split_re has it.
func titleWords(s string) string {
	var b strings.Builder
	word := 0
	flush := func(end int) {
		if end > word {
			_, n := utf8.DecodeRuneInString(s[word:end])
			b.WriteString(upper(s[word : word+n]))
			b.WriteString(lower(s[word+n : end]))
		}
	}
	for i, r := range s {
		if strings.ContainsRune("-({[<", r) || pythonWhitespace(r) {
			flush(i)
			b.WriteRune(r)
			word = i + utf8.RuneLen(r)
		}
	}
	flush(len(s))
	return b.String()
}

func filterTrim(a []Value) (Value, error) {
	return text(strip(printValue(a[0]), a[1], true, true))
}

// filterTruncate cuts at the last space before the length.
func filterTruncate(a []Value) (Value, error) {
	s, length, leeway, end := []rune(printValue(a[0])), 255, 5, "..."
	if a[1].kind == KindInt {
		length = int(min(a[1].n, 1<<31))
	}
	if a[3].kind == KindString {
		end = a[3].s
	}
	if a[4].kind == KindInt {
		leeway = int(min(a[4].n, 1<<31))
	}
	if length < utf8.RuneCountInString(end) || leeway < 0 {
		return Value{}, fmt.Errorf("a length of %d is less than that of %q", length, end)
	}
	if len(s) <= length+leeway {
		return NewString(string(s)), nil
	}
	cut := string(s[:length-utf8.RuneCountInString(end)])
	if !a[2].IsTruthy() {
		if at := strings.LastIndexByte(cut, ' '); at >= 0 {
			cut = cut[:at]
		}
	}
	return NewString(cut + end), nil
}

func filterUnique(a []Value) (Value, error) {
	items, err := iterate(a[0])
	if err != nil {
		return Value{}, err
	}
	var out, seen []Value
	texts := make(map[string]bool)
	for _, item := range items {
		key := item
		if given(a[2]) {
			if key, err = attribute(item, a[2]); err != nil {
				return Value{}, err
			}
		}
		key = folded(key, a[1].IsTruthy())
		switch {
		case key.kind == KindList || key.kind == KindDict:
			return Value{}, fmt.Errorf("unhashable type: '%s'", key.typeName())
		case key.kind == KindString && texts[key.s], key.kind != KindString && slices.ContainsFunc(seen, key.Equals):
			continue
		case key.kind == KindString:
			texts[key.s] = true
		default:
			seen = append(seen, key)
		}
		out = append(out, item)
	}
	return newLazy(out), nil
}

func filterWordcount(a []Value) (Value, error) {
	words := strings.FieldsFunc(printValue(a[0]), func(r rune) bool {
		return r != '_' && !unicode.IsLetter(r) && !unicode.IsNumber(r)
	})
	return NewInt(int64(len(words))), nil
}
