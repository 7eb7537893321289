package jinja

import "fmt"

// tests are those of jinja2.tests.TESTS; the number is how many arguments each
// takes.
var tests = map[string]test{
	"defined":     {0, func(v Value, _ []Value) (bool, error) { return v.kind != KindUndefined, nil }},
	"undefined":   ofKind(KindUndefined),
	"none":        ofKind(KindNone),
	"boolean":     ofKind(KindBool),
	"integer":     ofKind(KindInt),
	"float":       ofKind(KindFloat),
	"string":      ofKind(KindString),
	"mapping":     ofKind(KindDict),
	"number":      {0, func(v Value, _ []Value) (bool, error) { return v.numeric(), nil }},
	"true":        {0, func(v Value, _ []Value) (bool, error) { return v.kind == KindBool && v.n != 0, nil }},
	"false":       {0, func(v Value, _ []Value) (bool, error) { return v.kind == KindBool && v.n == 0, nil }},
	"callable":    {0, func(v Value, _ []Value) (bool, error) { return v.kind == KindCallable || v.kind == KindUndefined, nil }},
	"escaped":     {0, func(Value, []Value) (bool, error) { return false, nil }},
	"iterable":    {0, func(v Value, _ []Value) (bool, error) { return sized(v) || v.kind == KindList, nil }},
	"sequence":    {0, func(v Value, _ []Value) (bool, error) { return sized(v), nil }},
	"upper":       {0, func(v Value, _ []Value) (bool, error) { return isUpper(printValue(v)), nil }},
	"lower":       {0, func(v Value, _ []Value) (bool, error) { return isLower(printValue(v)), nil }},
	"odd":         remainder(1),
	"even":        remainder(0),
	"divisibleby": {1, divisibleBy},
	"filter": {0, func(v Value, _ []Value) (bool, error) {
		_, ok := filters[v.s]
		return ok, nil
	}},
	"in":     {1, func(v Value, a []Value) (bool, error) { return contains(a[0], v) }},
	"sameas": {1, sameAs},
	"eq":     operator("=="), "equalto": operator("=="), "==": operator("=="),
	"ne": operator("!="), "!=": operator("!="),
	"gt": operator(">"), "greaterthan": operator(">"), ">": operator(">"),
	"ge": operator(">="), ">=": operator(">="),
	"lt": operator("<"), "lessthan": operator("<"), "<": operator("<"),
	"le": operator("<="), "<=": operator("<="),
}

type test struct {
	args int
	fn   func(v Value, args []Value) (bool, error)
}

func ofKind(k Kind) test {
	return test{0, func(v Value, _ []Value) (bool, error) { return v.kind == k, nil }}
}

func operator(op string) test {
	return test{1, func(v Value, a []Value) (bool, error) {
		result, err := binary(op, v, a[0])
		return result.IsTruthy(), err
	}}
}

// sized reports whether Python's len works on v and v has items; an undefined
// value passes for an empty one.
func sized(v Value) bool {
	switch v.kind {
	case KindUndefined, KindString, KindDict:
		return true
	case KindList:
		return v.AsList().indexed()
	}
	return false
}

func remainder(want int64) test {
	return test{0, func(v Value, _ []Value) (bool, error) {
		r, err := binary("%", v, NewInt(2))
		return r.Equals(NewInt(want)), err
	}}
}

func divisibleBy(v Value, a []Value) (bool, error) {
	r, err := binary("%", v, a[0])
	return r.Equals(NewInt(0)), err
}

// sameAs is Python's "is": the same object, or for small values the same value.
func sameAs(v Value, a []Value) (bool, error) {
	if v.p != nil || a[0].p != nil {
		return v.p == a[0].p, nil
	}
	return v.kind == a[0].kind && v.Equals(a[0]), nil
}

func applyTest(name string, v Value, args []Value) (bool, error) {
	t, ok := tests[name]
	if !ok {
		return false, fmt.Errorf("unknown test %q", name)
	}
	if len(args) != t.args {
		return false, fmt.Errorf("test %q: takes %d arguments, got %d", name, t.args, len(args))
	}
	return t.fn(v, args)
}
