package jinja

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
	"unsafe"
)

// scope holds the variables of one block; few enough for a walk.
type scope struct {
	vars   []variable
	parent *scope
}

type variable struct {
	name string
	val  Value
}

// scopeRoom is how many variables most blocks have at most.
const scopeRoom = 4

func (s *scope) find(name string) *variable {
	for i := range s.vars {
		if s.vars[i].name == name {
			return &s.vars[i]
		}
	}
	return nil
}

func (s *scope) get(name string) (Value, bool) {
	for ; s != nil; s = s.parent {
		if v := s.find(name); v != nil {
			return v.val, true
		}
	}
	return Value{}, false
}

func (s *scope) set(name string, val Value) {
	if v := s.find(name); v != nil {
		v.val = val
		return
	}
	if s.vars == nil {
		s.vars = make([]variable, 0, scopeRoom)
	}
	s.vars = append(s.vars, variable{name, val})
}

// run counts what one rendering has cost so far.
type run struct {
	steps, bytes, calls int
}

type evaluator struct {
	scope *scope
	out   *output
	run   *run
}

// output is what was written so far.
type output struct{ text []byte }

// String returns the text, which must not be written to any longer.
func (o *output) String() string { return unsafe.String(unsafe.SliceData(o.text), len(o.text)) }

// inner returns an evaluator for a block with variables of its own.
func (e *evaluator) inner() *evaluator {
	return &evaluator{scope: &scope{parent: e.scope}, out: e.out, run: e.run}
}

// capture returns what the nodes write, executed in scope.
func (e *evaluator) capture(s *scope, nodes []node) (Value, error) {
	if e.run.calls++; e.run.calls > maxCalls {
		return Value{}, fmt.Errorf("calls nest more than %d levels deep", maxCalls)
	}
	inside := evaluator{scope: s, out: &output{}, run: e.run}
	err := inside.execNodes(nodes)
	e.run.calls--
	return NewString(inside.out.String()), err
}

func (e *evaluator) write(s string) error {
	if e.run.bytes += len(s); e.run.bytes > MaxOutputBytes {
		return fmt.Errorf("the output is longer than %d bytes", MaxOutputBytes)
	}
	e.out.text = append(e.out.text, s...)
	return nil
}

// writeValue writes what is put between {{ and }}.
func (e *evaluator) writeValue(v Value) error {
	if l := v.AsList(); v.kind >= KindCallable || l != nil && l.form == formLazy {
		return unsupported("the output of an object of type '%s'", v.typeName()) // Python writes its address
	}
	return e.write(printValue(v))
}

func (e *evaluator) execNodes(nodes []node) error {
	for _, n := range nodes {
		if err := e.execNode(n); err != nil {
			return err
		}
	}
	return nil
}

func (e *evaluator) execNode(n node) error {
	switch nd := n.(type) {
	case *textNode:
		return e.write(nd.text)
	case *outputNode:
		if sum, ok := nd.expression.(*binExpr); ok && sum.op == "+" {
			return e.writeSum(sum)
		}
		val, err := e.evalExpr(nd.expression)
		if err != nil {
			return err
		}
		return e.writeValue(val)
	case *ifNode:
		return e.execIf(nd)
	case *forNode:
		iter, err := e.evalExpr(nd.iter)
		if err != nil {
			return err
		}
		return e.execFor(nd, iter, 0)
	case *setNode:
		val, err := e.evalExpr(nd.value)
		if err != nil {
			return err
		}
		return e.assign(nd.target, val)
	case *setBlockNode:
		val, err := e.filtered(nd.filter, nd.body)
		if err != nil {
			return err
		}
		return e.assign(nd.target, val)
	case *filterBlockNode:
		val, err := e.filtered(nd.filter, nd.body)
		if err != nil {
			return err
		}
		return e.write(printValue(val))
	case *withNode:
		return e.execWith(nd)
	case *macroNode:
		e.scope.set(nd.name, e.macro(nd.name, nd.params, nd.body))
		return nil
	case *callNode:
		return e.execCall(nd)
	case *breakNode:
		return errBreak
	case *continueNode:
		return errContinue
	}
	return fmt.Errorf("unknown node type %T", n)
}

func (e *evaluator) execIf(n *ifNode) error {
	for _, branch := range n.branches {
		if branch.condition != nil {
			cond, err := e.evalExpr(branch.condition)
			if err != nil {
				return err
			}
			if !cond.IsTruthy() {
				continue
			}
		}
		return e.execNodes(branch.body)
	}
	return nil
}

func (e *evaluator) execWith(n *withNode) error {
	inside := e.inner()
	for i, value := range n.values {
		val, err := e.evalExpr(value)
		if err != nil {
			return err
		}
		inside.scope.set(n.targets[i].name, val)
	}
	return inside.execNodes(n.body)
}

// filtered returns a block's text, put through a filter if there is one.
func (e *evaluator) filtered(filter expr, body []node) (Value, error) {
	s := &scope{parent: e.scope}
	text, err := e.capture(s, body)
	if err != nil || filter == nil {
		return text, err
	}
	inside := e.inner()
	inside.scope.set(filterBody, text)
	return inside.evalExpr(filter)
}

// assign binds a value to a target, unpacking it into a tuple's parts.
func (e *evaluator) assign(t target, val Value) error {
	switch {
	case t.items != nil:
		items, err := iterate(val)
		if err != nil {
			return err
		}
		if len(items) != len(t.items) {
			return fmt.Errorf("unpacking: expected %d values, got %d", len(t.items), len(items))
		}
		for i, item := range t.items {
			if err := e.assign(item, items[i]); err != nil {
				return err
			}
		}
	case t.attr != "":
		v, _ := e.scope.get(t.name)
		ns, ok := v.p.(*namespace)
		if !ok {
			return fmt.Errorf("set: %q is no namespace: can't assign attribute %q", t.name, t.attr)
		}
		ns.dict.Set(t.attr, val)
	default:
		e.scope.set(t.name, val)
	}
	return nil
}

// loop is the variable "loop" inside of a for.
type loop struct {
	items    []Value
	i        int
	depth    int
	previous *Value // loop.changed's last arguments
	recurse  func(args []Value, kwargs Kwargs) (Value, error)
}

func (l *loop) attr(name string) (Value, bool) {
	n := len(l.items)
	switch name {
	case "index":
		return NewInt(int64(l.i + 1)), true
	case "index0":
		return NewInt(int64(l.i)), true
	case "revindex":
		return NewInt(int64(n - l.i)), true
	case "revindex0":
		return NewInt(int64(n - l.i - 1)), true
	case "first":
		return NewBool(l.i == 0), true
	case "last":
		return NewBool(l.i == n-1), true
	case "length":
		return NewInt(int64(n)), true
	case "depth":
		return NewInt(int64(l.depth + 1)), true
	case "depth0":
		return NewInt(int64(l.depth)), true
	case "previtem":
		if l.i > 0 {
			return l.items[l.i-1], true
		}
		return undefined("there is no previous item"), true
	case "nextitem":
		if l.i < n-1 {
			return l.items[l.i+1], true
		}
		return undefined("there is no next item"), true
	case "cycle":
		return NewCallable("loop.cycle", func(args []Value, _ Kwargs) (Value, error) {
			if len(args) == 0 {
				return Value{}, fmt.Errorf("loop.cycle: no items for cycling given")
			}
			return args[l.i%len(args)], nil
		}), true
	case "changed":
		return NewCallable("loop.changed", func(args []Value, _ Kwargs) (Value, error) {
			current := newTuple(args...)
			changed := l.previous == nil || !current.Equals(*l.previous)
			l.previous = &current
			return NewBool(changed), nil
		}), true
	}
	return Value{}, false
}

func (e *evaluator) execFor(n *forNode, iter Value, depth int) error {
	items, err := iterate(iter)
	if err != nil {
		return err
	}
	if n.filterExpr != nil {
		if items, err = e.keep(n, items); err != nil {
			return err
		}
	}
	if len(items) == 0 {
		return e.inner().execNodes(n.elseBody)
	}
	l := &loop{items: items, depth: depth}
	if n.recursive {
		l.recurse = func(args []Value, _ Kwargs) (Value, error) {
			if len(args) != 1 {
				return Value{}, fmt.Errorf("loop: one iterable is expected")
			}
			if e.run.calls++; e.run.calls > maxCalls {
				return Value{}, fmt.Errorf("loops nest more than %d levels deep", maxCalls)
			}
			inside := evaluator{scope: e.scope, out: &output{}, run: e.run}
			err := inside.execFor(n, args[0], depth+1)
			e.run.calls--
			return NewString(inside.out.String()), err
		}
	}
	var inside *evaluator
	for i, item := range items {
		if e.run.steps++; e.run.steps > maxSteps {
			return fmt.Errorf("loops take more than %d rounds", maxSteps)
		}
		l.i = i
		if i == 0 || n.captured {
			inside = e.inner()
		} else {
			inside.scope.vars = inside.scope.vars[:0]
		}
		inside.scope.set("loop", newObject(l))
		if err := inside.assign(n.target, item); err != nil {
			return err
		}
		err := inside.execNodes(n.body)
		if errors.Is(err, errBreak) {
			break
		}
		if err != nil && !errors.Is(err, errContinue) {
			return err
		}
	}
	return nil
}

// keep returns the items that a for's "if" lets through.
func (e *evaluator) keep(n *forNode, items []Value) ([]Value, error) {
	var kept []Value
	for _, item := range items {
		inside := e.inner()
		if err := inside.assign(n.target, item); err != nil {
			return nil, err
		}
		ok, err := inside.evalExpr(n.filterExpr)
		if err != nil {
			return nil, err
		}
		if ok.IsTruthy() {
			kept = append(kept, item)
		}
	}
	return kept, nil
}

// macro returns the function that a macro, or a call block's body, is.
func (e *evaluator) macro(name string, params []macroParam, body []node) Value {
	parent := e.scope
	takesArgs, takesKwargs, takesCaller := referencesName("varargs", body...), referencesName("kwargs", body...), referencesName("caller", body...)
	return NewCallable(name, func(args []Value, kwargs Kwargs) (Value, error) {
		s := &scope{parent: parent}
		inside := evaluator{scope: s, out: e.out, run: e.run}
		for i, param := range params {
			val, given := kwargs.Get(param.name)
			switch {
			case i < len(args) && given:
				return Value{}, fmt.Errorf("macro %q: argument %q is given twice", name, param.name)
			case i < len(args):
				val = args[i]
			case !given && param.defaultVal != nil:
				var err error
				if val, err = inside.evalExpr(param.defaultVal); err != nil {
					return Value{}, err
				}
			case !given:
				val = undefined(param.name)
			}
			s.set(param.name, val)
		}
		if len(args) > len(params) {
			if !takesArgs {
				return Value{}, fmt.Errorf("macro %q: takes not more than %d arguments", name, len(params))
			}
		}
		s.set("varargs", newTuple(args[min(len(args), len(params)):]...))
		extra := &Dict{}
		for _, kw := range kwargs {
			isParam := slices.ContainsFunc(params, func(p macroParam) bool { return p.name == kw.Name })
			switch {
			case isParam:
			case kw.Name == "caller" && takesCaller:
				s.set("caller", kw.Value)
			case !takesKwargs:
				return Value{}, fmt.Errorf("macro %q: takes no keyword argument %q", name, kw.Name)
			default:
				extra.Set(kw.Name, kw.Value)
			}
		}
		s.set("kwargs", Value{kind: KindDict, p: extra})
		return inside.capture(s, body)
	})
}

func (e *evaluator) execCall(n *callNode) error {
	call := n.expr.(*callExpr)
	fn, args, kwargs, err := e.evalCallee(call)
	if err != nil {
		return err
	}
	kwargs = append(slices.Clip(kwargs), NamedValue{"caller", e.macro("caller", n.params, n.body)})
	val, err := fn.Fn(args, kwargs)
	if err != nil {
		return err
	}
	return e.write(printValue(val))
}

func (e *evaluator) evalExpr(ex expr) (Value, error) {
	switch n := ex.(type) {
	case *litExpr:
		return n.val, nil
	case *nameExpr:
		if v, ok := e.scope.get(n.name); ok {
			return v, nil
		}
		if v, ok := globals[n.name]; ok {
			return v, nil
		}
		return undefined(n.name), nil
	case *attrExpr:
		obj, err := e.evalExpr(n.obj)
		if err != nil {
			return Value{}, err
		}
		return getAttr(obj, n.attr)
	case *itemExpr:
		obj, err := e.evalExpr(n.obj)
		if err != nil {
			return Value{}, err
		}
		key, err := e.evalExpr(n.key)
		if err != nil {
			return Value{}, err
		}
		return getItem(obj, key)
	case *sliceExpr:
		return e.evalSlice(n)
	case *unaryExpr:
		return e.evalUnary(n)
	case *binExpr:
		return e.evalBinary(n)
	case *compareExpr:
		return e.evalCompare(n)
	case *condExpr:
		cond, err := e.evalExpr(n.condition)
		switch {
		case err != nil:
			return Value{}, err
		case cond.IsTruthy():
			return e.evalExpr(n.trueExpr)
		case n.falseExpr != nil:
			return e.evalExpr(n.falseExpr)
		}
		return undefined("the inline if-expression has no else"), nil
	case *callExpr:
		fn, args, kwargs, err := e.evalCallee(n)
		if err != nil {
			return Value{}, err
		}
		return fn.Fn(args, kwargs)
	case *filterExpr:
		return e.evalFilter(n)
	case *testExpr:
		return e.evalTest(n)
	case *listExpr:
		items, err := e.evalList(n.items)
		if n.tuple {
			return newTuple(items...), err
		}
		return NewList(items), err
	case *dictExpr:
		return e.evalDict(n)
	}
	return Value{}, fmt.Errorf("unknown expression type %T", ex)
}

func (e *evaluator) evalList(exprs []expr) ([]Value, error) {
	if len(exprs) == 0 {
		return nil, nil
	}
	items := make([]Value, len(exprs))
	for i, item := range exprs {
		v, err := e.evalExpr(item)
		if err != nil {
			return nil, err
		}
		items[i] = v
	}
	return items, nil
}

func (e *evaluator) evalDict(n *dictExpr) (Value, error) {
	d := NewDict()
	for _, pair := range n.pairs {
		key, err := e.evalExpr(pair.key)
		if err != nil {
			return Value{}, err
		}
		val, err := e.evalExpr(pair.value)
		if err != nil {
			return Value{}, err
		}
		if key.kind != KindString {
			return Value{}, unsupported("a dict key of type %s", key.typeName())
		}
		d.AsDict().Set(key.s, val)
	}
	return d, nil
}

// undefinedError is what Python raises for any use of an undefined value.
func undefinedError(v Value) error {
	if v.s == "" {
		return fmt.Errorf("a value is undefined")
	}
	return fmt.Errorf("'%s' is undefined", v.s)
}

// getAttr returns obj.name as jinja2's environment.getattr does: an attribute of
// the Python object, else an item.
func getAttr(obj Value, name string) (Value, error) {
	switch obj.kind {
	case KindUndefined:
		return Value{}, undefinedError(obj)
	case KindDict:
		if m, ok := dictMethod(obj.AsDict(), name); ok {
			return m, nil
		}
		if v, ok := obj.AsDict().Get(name); ok {
			return v, nil
		}
	case KindString:
		if m, ok := stringMethod(obj.s, name); ok {
			return m, nil
		}
	case KindList:
		if i, err := strconv.Atoi(name); err == nil {
			return getItem(obj, NewInt(int64(i)))
		}
		if m, ok := listMethod(obj.AsList(), name); ok {
			return m, nil
		}
	case KindObject:
		if v, ok := obj.p.(object).attr(name); ok {
			return v, nil
		}
	}
	return undefined(name), nil
}

// getItem returns obj[key] as jinja2's environment.getitem does: an item, else
// an attribute.
func getItem(obj, key Value) (Value, error) {
	switch {
	case obj.kind == KindUndefined:
		return Value{}, undefinedError(obj)
	case obj.kind == KindDict && key.kind == KindString:
		if v, ok := obj.AsDict().Get(key.s); ok {
			return v, nil
		}
		if m, ok := dictMethod(obj.AsDict(), key.s); ok {
			return m, nil
		}
		return undefined(key.s), nil
	case key.kind == KindString:
		return getAttr(obj, key.s)
	case !key.integral():
		return undefined(printValue(key)), nil
	case obj.kind == KindList && obj.AsList().indexed():
		items := obj.AsList().Items
		if i := fromEnd(key.n, len(items)); i >= 0 {
			return items[i], nil
		}
	case obj.kind == KindString:
		if i := fromEnd(key.n, utf8.RuneCountInString(obj.s)); i >= 0 {
			return NewString(sliceRunes(obj.s, i, i+1)), nil
		}
	}
	return undefined(printValue(key)), nil
}

// fromEnd resolves an index that may count from the end; -1 is out of range.
func fromEnd(i int64, n int) int {
	if i < 0 {
		i += int64(n)
	}
	if i < 0 || i >= int64(n) {
		return -1
	}
	return int(i)
}

// sliceRunes returns the characters from start up to end, both in range.
func sliceRunes(s string, start, end int) string {
	if isASCII(s) {
		return s[start:end]
	}
	from, at := 0, 0
	for i := range s {
		if at == start {
			from = i
		}
		if at == end {
			return s[from:i]
		}
		at++
	}
	if at == start {
		return ""
	}
	return s[from:]
}

func isASCII(s string) bool {
	for i := range len(s) {
		if s[i] >= 0x80 {
			return false
		}
	}
	return true
}

func runeLen(s string, r rune) int {
	if r == utf8.RuneError {
		_, n := utf8.DecodeRuneInString(s)
		return n
	}
	return utf8.RuneLen(r)
}

func (e *evaluator) evalSlice(n *sliceExpr) (Value, error) {
	obj, err := e.evalExpr(n.obj)
	if err != nil {
		return Value{}, err
	}
	var bounds [3]Value
	for i, ex := range [3]expr{n.start, n.stop, n.step} {
		bounds[i] = None()
		if ex != nil {
			if bounds[i], err = e.evalExpr(ex); err != nil {
				return Value{}, err
			}
		}
	}
	switch {
	case obj.kind == KindUndefined:
		return Value{}, undefinedError(obj)
	case obj.kind == KindList && obj.AsList().indexed():
		l := obj.AsList()
		picked, err := sliceIndexes(bounds, len(l.Items))
		if err != nil {
			return foldedSlice(n, err)
		}
		items := make([]Value, 0, picked.len())
		for i := range picked.all {
			items = append(items, l.Items[i])
		}
		return Value{kind: KindList, p: &List{Items: items, form: l.form}}, nil
	case obj.kind == KindString:
		picked, err := sliceIndexes(bounds, utf8.RuneCountInString(obj.s))
		if err != nil {
			return foldedSlice(n, err)
		}
		if picked.step == 1 {
			return NewString(sliceRunes(obj.s, picked.start, max(picked.start, picked.stop))), nil
		}
		runes := []rune(obj.s)
		var b strings.Builder
		for i := range picked.all {
			b.WriteRune(runes[i])
		}
		return NewString(b.String()), nil
	}
	return Value{}, fmt.Errorf("'%s' object is not subscriptable by a slice", obj.typeName())
}

// foldedSlice returns what a slice with wrong bounds is: an error, but for one of
// constants alone, which jinja2 evaluates beforehand, to an undefined value.
func foldedSlice(n *sliceExpr, err error) (Value, error) {
	for _, part := range [...]expr{n.obj, n.start, n.stop, n.step} {
		if part != nil && !constant(part) {
			return Value{}, err
		}
	}
	return undefined("slice"), nil
}

func constant(e expr) bool {
	switch e.(type) {
	case *litExpr:
		return true
	case *unaryExpr, *binExpr, *listExpr:
		for _, part := range children(e) {
			if !constant(part.(expr)) {
				return false
			}
		}
		return true
	}
	return false
}

// indexes are those of a Python slice.
type indexes struct{ start, stop, step int }

func (x indexes) all(yield func(int) bool) {
	for i := x.start; x.step > 0 && i < x.stop || x.step < 0 && i > x.stop; i += x.step {
		if !yield(i) {
			return
		}
	}
}

func (x indexes) len() int {
	n := 0
	for range x.all {
		n++
	}
	return n
}

func sliceIndexes(bounds [3]Value, length int) (indexes, error) {
	for _, b := range bounds {
		if b.kind == KindUndefined {
			return indexes{}, undefinedError(b)
		}
		if !b.integral() && b.kind != KindNone {
			return indexes{}, fmt.Errorf("slice indices must be integers or none")
		}
	}
	x := indexes{start: 0, stop: length, step: 1}
	if bounds[2].kind != KindNone {
		x.step = int(min(max(bounds[2].n, -1<<31), 1<<31-1))
	}
	if x.step == 0 {
		return indexes{}, fmt.Errorf("slice step must not be zero")
	}
	low, high := 0, length
	if x.step < 0 {
		low, high = -1, length-1
		x.start, x.stop = high, low
	}
	for i, to := range []*int{&x.start, &x.stop} {
		if bounds[i].kind == KindNone {
			continue
		}
		at := bounds[i].n
		if at < 0 {
			at += int64(length)
		}
		*to = int(min(max(at, int64(low)), int64(high)))
	}
	return x, nil
}

// evalCallee evaluates what is called, and the arguments.
func (e *evaluator) evalCallee(n *callExpr) (*Callable, []Value, Kwargs, error) {
	v, err := e.evalExpr(n.fn)
	if err != nil {
		return nil, nil, nil, err
	}
	fn, ok := v.p.(*Callable)
	if l, isLoop := v.p.(*loop); isLoop && l.recurse != nil {
		fn, ok = &Callable{Name: "loop", Fn: l.recurse}, true
	}
	switch {
	case v.kind == KindUndefined:
		return nil, nil, nil, undefinedError(v)
	case !ok:
		return nil, nil, nil, fmt.Errorf("'%s' object is not callable", v.typeName())
	}
	args, err := e.evalList(n.args)
	if err != nil {
		return nil, nil, nil, err
	}
	kwargs, err := e.evalKwargs(n.kwargs)
	return fn, args, kwargs, err
}

func (e *evaluator) evalKwargs(keywords []kwarg) (Kwargs, error) {
	var out Kwargs
	for _, kw := range keywords {
		v, err := e.evalExpr(kw.value)
		if err != nil {
			return nil, err
		}
		more := Kwargs{{kw.name, v}}
		if kw.name == "" { // **mapping
			if v.kind != KindDict {
				return nil, fmt.Errorf("argument after ** must be a mapping, not %s", v.typeName())
			}
			more = more[:0]
			for i, key := range v.AsDict().keys {
				more = append(more, NamedValue{key, v.AsDict().vals[i]})
			}
		}
		for _, arg := range more {
			if _, twice := out.Get(arg.Name); twice {
				return nil, fmt.Errorf("keyword argument %q is given twice", arg.Name)
			}
			out = append(out, arg)
		}
	}
	return out, nil
}

func (e *evaluator) evalFilter(n *filterExpr) (Value, error) {
	input, err := e.evalExpr(n.expr)
	if err != nil {
		return Value{}, err
	}
	args := make([]Value, 1, 1+len(n.args))
	args[0] = input
	more, err := e.evalList(n.args)
	if err != nil {
		return Value{}, err
	}
	kwargs, err := e.evalKwargs(n.kwargs)
	if err != nil {
		return Value{}, err
	}
	return applyFilter(n.name, append(args, more...), kwargs)
}

func (e *evaluator) evalTest(n *testExpr) (Value, error) {
	val, err := e.evalExpr(n.expr)
	if err != nil {
		return Value{}, err
	}
	args, err := e.evalList(n.args)
	if err != nil {
		return Value{}, err
	}
	ok, err := applyTest(n.name, val, args)
	return NewBool(ok != n.negated), err
}
