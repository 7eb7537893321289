package jinja

import (
	"cmp"
	"fmt"
	"math"
	"strings"
)

func (e *evaluator) evalUnary(n *unaryExpr) (Value, error) {
	v, err := e.evalExpr(n.operand)
	if err != nil {
		return Value{}, err
	}
	switch {
	case n.op == "not":
		return NewBool(!v.IsTruthy()), nil
	case v.kind == KindUndefined:
		return Value{}, undefinedError(v)
	case v.integral() && v.s == "" && n.op == "-":
		return NewInt(-v.n), nil
	case v.integral() && v.s == "":
		return NewInt(v.n), nil
	case v.kind == KindFloat && n.op == "-":
		return NewFloat(-v.float()), nil
	case v.kind == KindFloat:
		return v, nil
	}
	return Value{}, fmt.Errorf("bad operand type for unary %s: '%s'", n.op, v.typeName())
}

func (e *evaluator) evalBinary(n *binExpr) (Value, error) {
	if n.op == "+" {
		return e.evalSum(n)
	}
	left, err := e.evalExpr(n.left)
	if err != nil {
		return Value{}, err
	}
	switch {
	case n.op == "and" && !left.IsTruthy(), n.op == "or" && left.IsTruthy():
		return left, nil
	}
	right, err := e.evalExpr(n.right)
	if err != nil || n.op == "and" || n.op == "or" {
		return right, err
	}
	return binary(n.op, left, right)
}

// evalSum evaluates a chain, a + b + c …, from left to right. Strings at its
// beginning are put together once, not once for each +.
func (e *evaluator) evalSum(n *binExpr) (Value, error) {
	var room [sumRoom]string
	texts, sum, err := e.sum(n, room[:0])
	if err == nil && len(texts) > 0 {
		sum = NewString(strings.Join(texts, ""))
	}
	return sum, err
}

// writeSum writes a chain, a + b + c …: strings without putting them together.
func (e *evaluator) writeSum(n *binExpr) error {
	var room [sumRoom]string
	texts, sum, err := e.sum(n, room[:0])
	if err != nil {
		return err
	}
	if len(texts) == 0 {
		return e.writeValue(sum)
	}
	for _, text := range texts {
		if err := e.write(text); err != nil {
			return err
		}
	}
	return nil
}

// sumRoom is how many operands most sums have at most.
const sumRoom = 8

// sum evaluates a chain. It returns the strings to put together, appended to texts,
// or none and the sum.
func (e *evaluator) sum(n *binExpr, texts []string) ([]string, Value, error) {
	var room [sumRoom]expr
	chain := append(room[:0], n.right)
	left := n.left
	for {
		b, ok := left.(*binExpr)
		if !ok || b.op != "+" {
			break
		}
		chain = append(chain, b.right)
		left = b.left
	}
	sum, err := e.evalExpr(left)
	if err != nil {
		return nil, Value{}, err
	}
	for i := len(chain) - 1; i >= 0; i-- {
		v, err := e.evalExpr(chain[i])
		switch {
		case err != nil:
			return nil, Value{}, err
		case v.kind == KindString && (len(texts) > 0 || sum.kind == KindString):
			if len(texts) == 0 {
				texts = append(texts, sum.s)
			}
			texts = append(texts, v.s)
			continue
		case len(texts) > 0:
			sum, texts = NewString(strings.Join(texts, "")), texts[:0]
		}
		if sum, err = binary("+", sum, v); err != nil {
			return nil, Value{}, err
		}
	}
	return texts, sum, nil
}

// evalCompare evaluates a chain, a < b < c: each operand once.
func (e *evaluator) evalCompare(n *compareExpr) (Value, error) {
	left, err := e.evalExpr(n.operands[0])
	if err != nil {
		return Value{}, err
	}
	result := NewBool(true)
	for i, op := range n.ops {
		right, err := e.evalExpr(n.operands[i+1])
		if err != nil {
			return Value{}, err
		}
		if result, err = binary(op, left, right); err != nil || !result.IsTruthy() {
			return result, err
		}
		left = right
	}
	return result, nil
}

func binary(op string, a, b Value) (Value, error) {
	switch op {
	case "~":
		return NewString(printValue(a) + printValue(b)), nil
	case "==":
		return NewBool(a.Equals(b)), nil
	case "!=":
		return NewBool(!a.Equals(b)), nil
	case "in", "not in":
		in, err := contains(b, a)
		return NewBool(in == (op == "in")), err
	case "%":
		if a.kind == KindString {
			return formatPercent(a.s, b)
		}
	}
	for _, v := range [2]Value{a, b} {
		if v.kind == KindUndefined {
			return Value{}, undefinedError(v)
		}
	}
	switch op {
	case "<", ">", "<=", ">=":
		order, ordered, err := compare(a, b)
		if err != nil {
			return Value{}, fmt.Errorf("'%s' not supported: %w", op, err)
		}
		return NewBool(ordered && (order < 0 && op[0] == '<' || order > 0 && op[0] == '>' || order == 0 && len(op) == 2)), nil
	case "+", "*":
		if v, done, err := sequences(op, a, b); done || err != nil {
			return v, err
		}
	}
	if !a.numeric() || !b.numeric() {
		return Value{}, fmt.Errorf("unsupported operand types for %s: '%s' and '%s'", op, a.typeName(), b.typeName())
	}
	if a.s != "" || b.s != "" {
		return Value{}, unsupported("%s on integers beyond 64 bits", op)
	}
	return arithmetic(op, a, b)
}

// maxRepeat bounds what "*" makes of a sequence: bytes of a string, items of a list.
const maxRepeat = 16 << 20

// sequences evaluates + and * where an operand is a string or a list.
func sequences(op string, a, b Value) (v Value, done bool, err error) {
	if op == "+" {
		switch {
		case a.kind == KindString && b.kind == KindString:
			return NewString(a.s + b.s), true, nil
		case a.kind == KindList && b.kind == KindList && a.AsList().indexed() && a.AsList().form == b.AsList().form:
			l := a.AsList()
			items := append(append(make([]Value, 0, len(l.Items)+len(b.AsList().Items)), l.Items...), b.AsList().Items...)
			return Value{kind: KindList, p: &List{Items: items, form: l.form}}, true, nil
		}
		return Value{}, false, nil
	}
	if a.integral() {
		a, b = b, a
	}
	if !b.integral() {
		return Value{}, false, nil
	}
	count := max(b.n, 0)
	switch {
	case a.kind == KindString:
		if int64(len(a.s)) > 0 && count > maxRepeat/int64(len(a.s)) {
			return Value{}, true, fmt.Errorf("a repeated string exceeds %d bytes", maxRepeat)
		}
		if a.s == "" {
			count = 0
		}
		return NewString(strings.Repeat(a.s, int(count))), true, nil
	case a.kind == KindList && a.AsList().indexed():
		l := a.AsList()
		if n := int64(len(l.Items)); n > 0 && count > maxRepeat/64/n {
			return Value{}, true, fmt.Errorf("a repeated list exceeds %d items", maxRepeat/64)
		}
		var items []Value
		for i := int64(0); i < count && len(l.Items) > 0; i++ {
			items = append(items, l.Items...)
		}
		return Value{kind: KindList, p: &List{Items: items, form: l.form}}, true, nil
	}
	return Value{}, false, nil
}

// arithmetic evaluates an operator on two numbers that fit 64 bits. An integer
// result that does not is an error, where Python would go on.
func arithmetic(op string, a, b Value) (Value, error) {
	if op == "/" || a.kind == KindFloat || b.kind == KindFloat {
		return floatArithmetic(op, a.float(), b.float())
	}
	x, y := a.n, b.n
	var r int64
	fits := true
	switch op {
	case "+":
		r = x + y
		fits = (r > x) == (y > 0)
	case "-":
		r = x - y
		fits = (r < x) == (y > 0)
	case "*":
		r = x * y
		fits = x == 0 || r/x == y && !(x == -1 && y == math.MinInt64)
	case "//", "%":
		if y == 0 {
			return Value{}, fmt.Errorf("integer division or modulo by zero")
		}
		q, m := x/y, x%y
		if m != 0 && (m < 0) != (y < 0) {
			q--
			m += y
		}
		if r = q; op == "%" {
			r = m
		}
	case "**":
		if y < 0 {
			return floatArithmetic(op, float64(x), float64(y))
		}
		r = 1
		for ; y > 0 && fits; y-- {
			fits = x == 0 || (r*x)/x == r
			r *= x
			if r == 0 || r == 1 && x == 1 {
				break
			}
		}
	}
	if !fits {
		return Value{}, fmt.Errorf("%s: the result is beyond 64 bits", op)
	}
	return NewInt(r), nil
}

func floatArithmetic(op string, x, y float64) (Value, error) {
	if y == 0 && (op == "/" || op == "//" || op == "%") {
		return Value{}, fmt.Errorf("division by zero")
	}
	switch op {
	case "+":
		return NewFloat(x + y), nil
	case "-":
		return NewFloat(x - y), nil
	case "*":
		return NewFloat(x * y), nil
	case "/":
		return NewFloat(x / y), nil
	case "**":
		return NewFloat(math.Pow(x, y)), nil
	}
	mod := math.Mod(x, y)
	div := (x - mod) / y
	if mod != 0 && math.Signbit(mod) != math.Signbit(y) {
		mod += y
		div--
	}
	if op == "%" {
		if mod == 0 {
			mod = math.Copysign(0, y)
		}
		return NewFloat(mod), nil
	}
	if div == 0 {
		return NewFloat(math.Copysign(0, x/y)), nil
	}
	floor := math.Floor(div)
	if div-floor > 0.5 {
		floor++
	}
	return NewFloat(floor), nil
}

// compare returns the order of two values; ordered is false for NaN. It is an
// error where Python raises a TypeError.
func compare(a, b Value) (order int, ordered bool, err error) {
	switch {
	case a.numeric() && b.numeric():
		order, ordered = compareNumbers(a, b)
		return order, ordered, nil
	case a.kind == KindString && b.kind == KindString:
		return strings.Compare(a.s, b.s), true, nil
	case a.kind == KindList && b.kind == KindList && a.AsList().form == b.AsList().form && a.AsList().indexed():
		left, right := a.AsList().Items, b.AsList().Items
		for i := range min(len(left), len(right)) {
			if !left[i].Equals(right[i]) {
				return compare(left[i], right[i])
			}
		}
		return cmp.Compare(len(left), len(right)), true, nil
	}
	return 0, false, fmt.Errorf("no order between '%s' and '%s'", a.typeName(), b.typeName())
}

func compareNumbers(a, b Value) (int, bool) {
	switch {
	case a.kind != KindFloat && b.kind != KindFloat:
		if a.s != "" && b.s != "" && a.n == b.n { // both beyond 64 bits, on the same side
			order := cmp.Or(cmp.Compare(len(a.s), len(b.s)), strings.Compare(a.s, b.s))
			if a.n < 0 {
				order = -order
			}
			return order, true
		}
		return cmp.Or(cmp.Compare(a.n, b.n), cmp.Compare(len(a.s), len(b.s))), true
	case a.kind == KindFloat && b.kind == KindFloat:
		return cmp.Compare(a.float(), b.float()), !math.IsNaN(a.float()) && !math.IsNaN(b.float())
	case a.kind == KindFloat:
		return -compareIntFloat(b.n, a.float()), !math.IsNaN(a.float())
	}
	return compareIntFloat(a.n, b.float()), !math.IsNaN(b.float())
}

// compareIntFloat compares without rounding i to a float.
func compareIntFloat(i int64, f float64) int {
	if f >= 0x1p63 {
		return -1
	}
	if f < -0x1p63 {
		return 1
	}
	// Where the integer parts match only a fraction can differ.
	return cmp.Or(cmp.Compare(i, int64(f)), cmp.Compare(float64(i), f))
}

// contains is Python's "item in container".
func contains(container, item Value) (bool, error) {
	switch container.kind {
	case KindUndefined:
		return false, nil
	case KindList:
		items, _ := iterate(container)
		for _, v := range items {
			if v.Equals(item) {
				return true, nil
			}
		}
		return false, nil
	case KindDict:
		if item.kind == KindList || item.kind == KindDict {
			return false, fmt.Errorf("unhashable type: '%s'", item.typeName())
		}
		_, ok := container.AsDict().Get(item.s)
		return ok && item.kind == KindString, nil
	case KindString:
		if item.kind != KindString {
			return false, fmt.Errorf("'in <string>' requires string as left operand, not %s", item.typeName())
		}
		return strings.Contains(container.s, item.s), nil
	}
	return false, fmt.Errorf("argument of type '%s' is not iterable", container.typeName())
}
