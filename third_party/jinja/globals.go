package jinja

import (
	"fmt"
	"slices"
	"strings"
)

// globals are the functions that every template has.
var globals = map[string]Value{
	"namespace":       NewCallable("namespace", makeNamespace),
	"dict":            NewCallable("dict", makeDict),
	"range":           NewCallable("range", makeRange),
	"joiner":          NewCallable("joiner", makeJoiner),
	"cycler":          NewCallable("cycler", makeCycler),
	"raise_exception": NewCallable("raise_exception", raiseException),
}

// A namespace is what {% set ns.x = … %} writes to.
type namespace struct{ dict *Dict }

func (ns *namespace) attr(name string) (Value, bool) { return ns.dict.Get(name) }

func makeNamespace(args []Value, kwargs Kwargs) (Value, error) {
	d, err := makeDict(args, kwargs)
	return newObject(&namespace{d.AsDict()}), err
}

func makeDict(args []Value, kwargs Kwargs) (Value, error) {
	d := &Dict{}
	v := Value{kind: KindDict, p: d}
	if len(args) > 1 {
		return v, fmt.Errorf("dict: expected at most 1 argument, got %d", len(args))
	}
	if len(args) == 1 && args[0].kind == KindDict {
		for i, key := range args[0].AsDict().keys {
			d.Set(key, args[0].AsDict().vals[i])
		}
	} else if len(args) == 1 {
		pairs, err := iterate(args[0])
		if err != nil {
			return v, err
		}
		for _, pair := range pairs {
			items, err := iterate(pair)
			if err != nil {
				return v, err
			}
			if len(items) != 2 || items[0].kind != KindString {
				return v, fmt.Errorf("dict: pairs of a string and a value are expected")
			}
			d.Set(items[0].s, items[1])
		}
	}
	for _, kw := range kwargs {
		d.Set(kw.Name, kw.Value)
	}
	return v, nil
}

func raiseException(args []Value, kwargs Kwargs) (Value, error) {
	a, err := bindParams("raise_exception", []param{req("message")}, args, kwargs)
	if err != nil {
		return Value{}, err
	}
	return Value{}, &Raised{Message: strings.Clone(printValue(a[0]))}
}

// maxRange is the sandbox's own limit, jinja2.sandbox.MAX_RANGE.
const maxRange = 100_000

func makeRange(args []Value, kwargs Kwargs) (Value, error) {
	if len(args) < 1 || len(args) > 3 || len(kwargs) > 0 {
		return Value{}, fmt.Errorf("range: expected 1 to 3 arguments, got %d", len(args))
	}
	for _, arg := range args {
		if !arg.integral() {
			return Value{}, fmt.Errorf("range: '%s' object cannot be interpreted as an integer", arg.typeName())
		}
	}
	start, stop, step := int64(0), args[0].n, int64(1)
	if len(args) > 1 {
		start, stop = args[0].n, args[1].n
	}
	if len(args) > 2 {
		step = args[2].n
	}
	if step == 0 {
		return Value{}, fmt.Errorf("range: arg 3 must not be zero")
	}
	var items []Value
	for i := start; step > 0 && i < stop || step < 0 && i > stop; i += step {
		if len(items) >= maxRange {
			return Value{}, fmt.Errorf("range: more than %d items", maxRange)
		}
		items = append(items, NewInt(i))
		if step > 0 && i > stop-step || step < 0 && i < stop-step {
			break
		}
	}
	return NewList(items), nil
}

func makeJoiner(args []Value, kwargs Kwargs) (Value, error) {
	a, err := bindParams("joiner", []param{opt("sep")}, args, kwargs)
	if err != nil {
		return Value{}, err
	}
	sep, used := ", ", false
	if a[0].kind != kindAbsent {
		sep = printValue(a[0])
	}
	return NewCallable("joiner", func([]Value, Kwargs) (Value, error) {
		if !used {
			used = true
			return NewString(""), nil
		}
		return NewString(sep), nil
	}), nil
}

type cycler struct {
	items []Value
	pos   int
}

func (c *cycler) attr(name string) (Value, bool) {
	switch name {
	case "current":
		return c.items[c.pos], true
	case "next":
		return NewCallable("cycler.next", func([]Value, Kwargs) (Value, error) {
			v := c.items[c.pos]
			c.pos = (c.pos + 1) % len(c.items)
			return v, nil
		}), true
	case "reset":
		return NewCallable("cycler.reset", func([]Value, Kwargs) (Value, error) {
			c.pos = 0
			return None(), nil
		}), true
	}
	return Value{}, false
}

func makeCycler(args []Value, _ Kwargs) (Value, error) {
	if len(args) == 0 {
		return Value{}, fmt.Errorf("cycler: at least one item is expected")
	}
	return newObject(&cycler{items: slices.Clone(args)}), nil
}

// A param is one parameter of a function: its name, and what must be passed.
type param struct {
	name     string
	optional bool
	kind     Kind // KindString or KindInt where nothing else will do
}

func req(name string) param    { return param{name: name} }
func opt(name string) param    { return param{name: name, optional: true} }
func str(name string) param    { return param{name: name, kind: KindString} }
func num(name string) param    { return param{name: name, kind: KindInt} }
func optNum(name string) param { return param{name: name, optional: true, kind: KindInt} }

// bindParams orders arguments by parameters, as a call in Python does: one Value
// for each parameter, of kindAbsent where it was not given.
func bindParams(name string, params []param, args []Value, kwargs Kwargs) ([]Value, error) {
	if len(args) > len(params) {
		return nil, fmt.Errorf("%s: takes at most %d arguments, got %d", name, len(params), len(args))
	}
	bound := make([]Value, len(params))
	copy(bound, args)
	for i := len(args); i < len(params); i++ {
		bound[i].kind = kindAbsent
	}
	for _, kw := range kwargs {
		i := slices.IndexFunc(params, func(p param) bool { return p.name == kw.Name })
		if i < 0 {
			return nil, fmt.Errorf("%s: takes no argument %q", name, kw.Name)
		}
		if i < len(args) {
			return nil, fmt.Errorf("%s: argument %q is given twice", name, kw.Name)
		}
		bound[i] = kw.Value
	}
	for i, p := range params {
		v := bound[i]
		switch {
		case v.kind == kindAbsent && !p.optional:
			return nil, fmt.Errorf("%s: argument %q is missing", name, p.name)
		case v.kind == kindAbsent || p.kind == KindUndefined:
		case v.kind == KindUndefined:
			return nil, undefinedError(v)
		case p.kind == KindString && v.kind != KindString, p.kind == KindInt && (!v.integral() || v.s != ""):
			return nil, fmt.Errorf("%s: argument %q is of type %s", name, p.name, v.typeName())
		}
	}
	return bound, nil
}
