package jinja

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
)

// =============================================================================
// Expression tokenizer
// =============================================================================

type tokKind int

const (
	tokName     tokKind = iota // identifier or keyword
	tokInt                     // integer literal
	tokFloat                   // float literal
	tokString                  // string literal
	tokOp                      // operator (+, -, ==, etc)
	tokComma                   // ,
	tokDot                     // .
	tokColon                   // :
	tokLParen                  // (
	tokRParen                  // )
	tokLBracket                // [
	tokRBracket                // ]
	tokLBrace                  // {
	tokRBrace                  // }
	tokPipe                    // |
	tokTilde                   // ~
	tokPower                   // **
	tokFloorDiv                // //
	tokEOF
)

type tok struct {
	kind tokKind
	val  string
}

func tokenizeExpr(s string) ([]tok, error) {
	var tokens []tok
	i := 0

	for i < len(s) {
		ch := s[i]

		// Skip whitespace.
		if ch == ' ' || ch == '\t' || ch == '\n' || ch == '\r' {
			i++
			continue
		}

		// String literals.
		if ch == '\'' || ch == '"' {
			quote := ch
			i++
			var b strings.Builder
			for i < len(s) && s[i] != quote {
				if s[i] == '\\' && i+1 < len(s) {
					i++
					switch s[i] {
					case 'n':
						b.WriteByte('\n')
					case 't':
						b.WriteByte('\t')
					case 'r':
						b.WriteByte('\r')
					case 'a':
						b.WriteByte('\a')
					case 'b':
						b.WriteByte('\b')
					case 'f':
						b.WriteByte('\f')
					case 'v':
						b.WriteByte('\v')
					case 'x', 'u', 'U', '0', '1', '2', '3', '4', '5', '6', '7':
						width, base := 0, 16
						switch s[i] {
						case 'x':
							width = 2
						case 'u':
							width = 4
						case 'U':
							width = 8
						default:
							base = 8
						}
						start := i + 1
						if base == 8 {
							start = i
							for width < 3 && start+width < len(s) && s[start+width] >= '0' && s[start+width] <= '7' {
								width++
							}
						}
						if start+width <= len(s) {
							if r, err := strconv.ParseInt(s[start:start+width], base, 32); err == nil {
								b.WriteRune(rune(r))
								i = start + width - 1
								break
							}
						}
						b.WriteByte('\\')
						b.WriteByte(s[i])
					case '\\':
						b.WriteByte('\\')
					case '\'':
						b.WriteByte('\'')
					case '"':
						b.WriteByte('"')
					default:
						b.WriteByte('\\')
						b.WriteByte(s[i])
					}
				} else {
					b.WriteByte(s[i])
				}
				i++
			}
			if i >= len(s) {
				return nil, fmt.Errorf("unclosed string")
			}
			i++ // skip closing quote
			tokens = append(tokens, tok{kind: tokString, val: b.String()})
			continue
		}

		// Numbers.
		if ch >= '0' && ch <= '9' {
			start := i
			for i < len(s) && (s[i] >= '0' && s[i] <= '9' || s[i] == '_' || i == start+1 && ch == '0' && strings.IndexByte("xXoObB", s[i]) >= 0 || i > start+1 && (s[start+1]|0x20) == 'x' && strings.IndexByte("abcdefABCDEF", s[i]) >= 0) {
				i++
			}
			isFloat := false
			if i < len(s) && s[i] == '.' && i+1 < len(s) && s[i+1] >= '0' && s[i+1] <= '9' && (len(tokens) == 0 || tokens[len(tokens)-1].kind != tokDot) {
				isFloat = true
				i++
				for i < len(s) && s[i] >= '0' && s[i] <= '9' {
					i++
				}
			}
			// Exponents do not require a decimal point.
			if i < len(s) && (s[i] == 'e' || s[i] == 'E') {
				isFloat = true
				i++
				if i < len(s) && (s[i] == '+' || s[i] == '-') {
					i++
				}
				for i < len(s) && s[i] >= '0' && s[i] <= '9' {
					i++
				}
			}
			if isFloat {
				tokens = append(tokens, tok{kind: tokFloat, val: s[start:i]})
			} else {
				tokens = append(tokens, tok{kind: tokInt, val: s[start:i]})
			}
			continue
		}

		// Identifiers and keywords.
		if ch == '_' || (ch >= 'a' && ch <= 'z') || (ch >= 'A' && ch <= 'Z') {
			start := i
			for i < len(s) && (s[i] == '_' || (s[i] >= 'a' && s[i] <= 'z') || (s[i] >= 'A' && s[i] <= 'Z') || (s[i] >= '0' && s[i] <= '9')) {
				i++
			}
			tokens = append(tokens, tok{kind: tokName, val: s[start:i]})
			continue
		}

		// Two-character operators.
		if i+1 < len(s) {
			two := s[i : i+2]
			switch two {
			case "**":
				tokens = append(tokens, tok{kind: tokPower, val: two})
				i += 2
				continue
			case "//":
				tokens = append(tokens, tok{kind: tokFloorDiv, val: two})
				i += 2
				continue
			case "==", "!=", "<=", ">=":
				tokens = append(tokens, tok{kind: tokOp, val: two})
				i += 2
				continue
			}
		}

		// Single-character tokens.
		switch ch {
		case ',':
			tokens = append(tokens, tok{kind: tokComma, val: ","})
		case '.':
			tokens = append(tokens, tok{kind: tokDot, val: "."})
		case ':':
			tokens = append(tokens, tok{kind: tokColon, val: ":"})
		case '(':
			tokens = append(tokens, tok{kind: tokLParen, val: "("})
		case ')':
			tokens = append(tokens, tok{kind: tokRParen, val: ")"})
		case '[':
			tokens = append(tokens, tok{kind: tokLBracket, val: "["})
		case ']':
			tokens = append(tokens, tok{kind: tokRBracket, val: "]"})
		case '{':
			tokens = append(tokens, tok{kind: tokLBrace, val: "{"})
		case '}':
			tokens = append(tokens, tok{kind: tokRBrace, val: "}"})
		case '|':
			tokens = append(tokens, tok{kind: tokPipe, val: "|"})
		case '~':
			tokens = append(tokens, tok{kind: tokTilde, val: "~"})
		case '+', '-', '*', '/', '%', '<', '>':
			tokens = append(tokens, tok{kind: tokOp, val: string(ch)})
		case '=':
			tokens = append(tokens, tok{kind: tokOp, val: "="})
		default:
			return nil, fmt.Errorf("unexpected character %q", s[i:i+1])
		}
		i++
	}

	tokens = append(tokens, tok{kind: tokEOF, val: ""})
	return tokens, nil
}

// =============================================================================
// Expression parser (recursive descent)
// =============================================================================

type exprParser struct {
	tokens []tok
	pos    int
	depth  int
}

func newExprParser(s string) (*exprParser, error) {
	tokens, err := tokenizeExpr(s)
	return &exprParser{tokens: tokens}, err
}

// maxNesting bounds how deep an expression nests: the parser calls itself.
const maxNesting = 200

func (p *exprParser) peek() tok {
	if p.pos >= len(p.tokens) {
		return tok{kind: tokEOF}
	}
	return p.tokens[p.pos]
}

func (p *exprParser) advance() tok {
	t := p.peek()
	p.pos++
	return t
}

func (p *exprParser) expect(kind tokKind, val string) (tok, error) {
	t := p.advance()
	if t.kind != kind {
		return t, fmt.Errorf("expected %q but got %q", val, t.val)
	}
	if val != "" && t.val != val {
		return t, fmt.Errorf("expected %q but got %q", val, t.val)
	}
	return t, nil
}

func (p *exprParser) matchName(name string) bool {
	if p.peek().kind == tokName && p.peek().val == name {
		p.advance()
		return true
	}
	return false
}

// parseExpr parses a whole expression.
func parseExpr(s string) (expr, error) {
	p, err := newExprParser(s)
	if err != nil {
		return nil, err
	}
	if p.peek().kind == tokEOF {
		return nil, fmt.Errorf("expected an expression")
	}
	e, err := p.parseTuple(p.parseExpression)
	if err != nil {
		return nil, err
	}
	return e, p.end()
}

// parseExpression handles the lowest precedence: inline if/else.
func (p *exprParser) parseExpression() (expr, error) {
	e, err := p.parseOr()
	for err == nil && p.matchName("if") {
		cond := &condExpr{trueExpr: e}
		if cond.condition, err = p.parseOr(); err != nil {
			return nil, err
		}
		if p.matchName("else") {
			if cond.falseExpr, err = p.parseExpression(); err != nil {
				return nil, err
			}
		}
		e = cond
	}
	return e, err
}

// parseTuple parses one or more expressions with commas between them, each by
// item; several, or one with a comma after it, are a tuple.
func (p *exprParser) parseTuple(item func() (expr, error)) (expr, error) {
	first, err := item()
	if err != nil || p.peek().kind != tokComma {
		return first, err
	}
	items := []expr{first}
	for p.peek().kind == tokComma {
		p.advance()
		if t := p.peek(); t.kind == tokEOF || t.kind == tokRParen || t.kind == tokOp && t.val == "=" {
			break
		}
		e, err := item()
		if err != nil {
			return nil, err
		}
		items = append(items, e)
	}
	return &listExpr{items: items, tuple: true}, nil
}

// parseTarget parses what is assigned to: names, tuples of them, and where
// namespaces are allowed "ns.attr".
func (p *exprParser) parseTarget(namespaces bool) (target, error) {
	var items []target
	for {
		var item target
		var err error
		if p.peek().kind == tokLParen {
			p.advance()
			if item, err = p.parseTarget(false); err != nil {
				return target{}, err
			}
			if _, err = p.expect(tokRParen, ")"); err != nil {
				return target{}, err
			}
		} else {
			name, err := p.expect(tokName, "")
			if err != nil {
				return target{}, err
			}
			item.name = name.val
			switch item.name {
			case "true", "false", "none", "True", "False", "None":
				return target{}, fmt.Errorf("can't assign to %q", item.name)
			}
			if namespaces && p.peek().kind == tokDot {
				p.advance()
				attr, err := p.expect(tokName, "")
				if err != nil {
					return target{}, err
				}
				item.attr = attr.val
			}
		}
		items = append(items, item)
		if p.peek().kind != tokComma {
			break
		}
		p.advance()
		if t := p.peek(); t.kind != tokName && t.kind != tokLParen || t.val == "in" {
			return target{items: items}, nil
		}
	}
	if len(items) == 1 {
		return items[0], nil
	}
	return target{items: items}, nil
}

// end returns an error if tokens are left.
func (p *exprParser) end() error {
	if t := p.peek(); t.kind != tokEOF {
		return fmt.Errorf("unexpected %q", t.val)
	}
	return nil
}

func (p *exprParser) parseOr() (expr, error) {
	left, err := p.parseAnd()
	if err != nil {
		return nil, err
	}

	for p.peek().kind == tokName && p.peek().val == "or" {
		p.advance()
		right, err := p.parseAnd()
		if err != nil {
			return nil, err
		}
		left = &binExpr{op: "or", left: left, right: right}
	}

	return left, nil
}

func (p *exprParser) parseAnd() (expr, error) {
	left, err := p.parseNot()
	if err != nil {
		return nil, err
	}

	for p.peek().kind == tokName && p.peek().val == "and" {
		p.advance()
		right, err := p.parseNot()
		if err != nil {
			return nil, err
		}
		left = &binExpr{op: "and", left: left, right: right}
	}

	return left, nil
}

func (p *exprParser) parseNot() (expr, error) {
	if p.peek().kind == tokName && p.peek().val == "not" {
		p.advance()
		operand, err := p.parseNot()
		if err != nil {
			return nil, err
		}
		return &unaryExpr{op: "not", operand: operand}, nil
	}

	return p.parseComparison()
}

func (p *exprParser) parseComparison() (expr, error) {
	left, err := p.parseAddSub()
	if err != nil {
		return nil, err
	}

	chain := &compareExpr{operands: []expr{left}}
	for {
		t := p.peek()

		// Standard comparison operators.
		if t.kind == tokOp {
			switch t.val {
			case "==", "!=", "<", ">", "<=", ">=":
				p.advance()
				right, err := p.parseAddSub()
				if err != nil {
					return nil, err
				}
				chain.ops = append(chain.ops, t.val)
				chain.operands = append(chain.operands, right)
				continue
			}
		}

		// "in" operator.
		if t.kind == tokName && t.val == "in" {
			p.advance()
			right, err := p.parseAddSub()
			if err != nil {
				return nil, err
			}
			chain.ops = append(chain.ops, "in")
			chain.operands = append(chain.operands, right)
			continue
		}

		// "not in" operator.
		if t.kind == tokName && t.val == "not" && p.pos+1 < len(p.tokens) && p.tokens[p.pos+1].kind == tokName && p.tokens[p.pos+1].val == "in" {
			p.advance() // not
			p.advance() // in
			right, err := p.parseAddSub()
			if err != nil {
				return nil, err
			}
			chain.ops = append(chain.ops, "not in")
			chain.operands = append(chain.operands, right)
			continue
		}

		break
	}

	if len(chain.ops) == 1 {
		return &binExpr{op: chain.ops[0], left: chain.operands[0], right: chain.operands[1]}, nil
	}
	if len(chain.ops) > 1 {
		return chain, nil
	}
	return left, nil
}

func (p *exprParser) parseAddSub() (expr, error) {
	left, err := p.parseConcat()
	if err != nil {
		return nil, err
	}

	for p.peek().kind == tokOp && (p.peek().val == "+" || p.peek().val == "-") {
		op := p.advance().val
		right, err := p.parseConcat()
		if err != nil {
			return nil, err
		}
		left = &binExpr{op: op, left: left, right: right}
	}

	return left, nil
}

// parseConcat binds tighter than + and -, as in Jinja2.
func (p *exprParser) parseConcat() (expr, error) {
	left, err := p.parseMulDiv()
	if err != nil {
		return nil, err
	}

	for p.peek().kind == tokTilde {
		p.advance()
		right, err := p.parseMulDiv()
		if err != nil {
			return nil, err
		}
		left = &binExpr{op: "~", left: left, right: right}
	}

	return left, nil
}

func (p *exprParser) parseMulDiv() (expr, error) {
	left, err := p.parsePower()
	if err != nil {
		return nil, err
	}

	for {
		t := p.peek()
		if t.kind == tokOp && (t.val == "*" || t.val == "/" || t.val == "%") {
			op := p.advance().val
			right, err := p.parsePower()
			if err != nil {
				return nil, err
			}
			left = &binExpr{op: op, left: left, right: right}
			continue
		}
		if t.kind == tokFloorDiv {
			p.advance()
			right, err := p.parsePower()
			if err != nil {
				return nil, err
			}
			left = &binExpr{op: "//", left: left, right: right}
			continue
		}
		break
	}

	return left, nil
}

func (p *exprParser) parsePower() (expr, error) {
	base, err := p.parseUnary()
	if err != nil {
		return nil, err
	}

	for p.peek().kind == tokPower {
		p.advance()
		exp, err := p.parseUnary()
		if err != nil {
			return nil, err
		}
		base = &binExpr{op: "**", left: base, right: exp}
	}

	return base, nil
}

func (p *exprParser) parseUnary() (expr, error) {
	if p.depth++; p.depth > maxNesting {
		return nil, fmt.Errorf("expression nests more than %d levels deep", maxNesting)
	}
	defer func() { p.depth-- }()
	if p.peek().kind == tokOp && (p.peek().val == "-" || p.peek().val == "+") {
		op := p.advance().val
		// MinInt64 is valid, but its positive magnitude exceeds int64.
		// Continue through postfix parsing so filters are not skipped.
		if t := p.peek(); op == "-" && t.kind == tokInt && t.val == "9223372036854775808" {
			p.advance()
			return p.parsePostfix(&litExpr{val: NewInt(math.MinInt64)})
		}
		operand, err := p.parseUnaryOperand()
		if err != nil {
			return nil, err
		}
		// Fold signed numeric literals so slice bounds do not allocate per render.
		if literal, ok := operand.(*litExpr); ok {
			value := literal.val
			if value.kind == KindInt {
				if op == "-" {
					value = NewInt(-value.n)
				}
				return p.parsePostfix(&litExpr{val: value})
			}
			if value.kind == KindFloat {
				if op == "-" {
					value = NewFloat(-value.float())
				}
				return p.parsePostfix(&litExpr{val: value})
			}
		}
		return p.parsePostfix(&unaryExpr{op: op, operand: operand})
	}

	e, err := p.parseAtom()
	if err != nil {
		return nil, err
	}
	return p.parsePostfix(e)
}

// Unary signs bind before filters, unlike the rest of the postfix operations.
func (p *exprParser) parseUnaryOperand() (expr, error) {
	if p.peek().kind == tokOp && (p.peek().val == "-" || p.peek().val == "+") {
		op := p.advance().val
		operand, err := p.parseUnaryOperand()
		return &unaryExpr{op: op, operand: operand}, err
	}
	e, err := p.parseAtom()
	if err != nil {
		return nil, err
	}
	return p.parsePostfixMode(e, false)
}

func (p *exprParser) parsePostfix(e expr) (expr, error) {
	return p.parsePostfixMode(e, true)
}

func (p *exprParser) parsePostfixMode(e expr, filters bool) (expr, error) {
	var err error
	for {
		t := p.peek()

		// Attribute access: e.attr
		if t.kind == tokDot {
			p.advance()
			attrTok := p.advance()
			if attrTok.kind != tokName && attrTok.kind != tokInt {
				return nil, fmt.Errorf("expected attribute name after '.', got %q", attrTok.val)
			}

			// Check if this is a method call: e.method(args)
			if p.peek().kind == tokLParen {
				p.advance()
				args, kwargs, err := p.parseCallArgs()
				if err != nil {
					return nil, err
				}
				e = &callExpr{
					fn:     &attrExpr{obj: e, attr: attrTok.val},
					args:   args,
					kwargs: kwargs,
				}
			} else {
				e = &attrExpr{obj: e, attr: attrTok.val}
			}
			continue
		}

		// Subscript / slice: e[key] or e[start:stop]
		if t.kind == tokLBracket {
			p.advance()

			// Check for slice: e[start:stop:step]
			var startExpr, stopExpr, stepExpr expr
			isSlice := false

			if p.peek().kind == tokColon {
				isSlice = true
			} else {
				startExpr, err = p.parseExpression()
				if err != nil {
					return nil, err
				}
				if p.peek().kind == tokColon {
					isSlice = true
				}
			}

			if isSlice {
				if p.peek().kind == tokColon {
					p.advance()
				}
				if p.peek().kind != tokRBracket && p.peek().kind != tokColon {
					stopExpr, err = p.parseExpression()
					if err != nil {
						return nil, err
					}
				}
				if p.peek().kind == tokColon {
					p.advance()
					if p.peek().kind != tokRBracket {
						stepExpr, err = p.parseExpression()
						if err != nil {
							return nil, err
						}
					}
				}
				if _, err := p.expect(tokRBracket, "]"); err != nil {
					return nil, err
				}
				e = &sliceExpr{obj: e, start: startExpr, stop: stopExpr, step: stepExpr}
			} else {
				if _, err := p.expect(tokRBracket, "]"); err != nil {
					return nil, err
				}
				e = &itemExpr{obj: e, key: startExpr}
			}
			continue
		}

		// Function call: e(args)
		if t.kind == tokLParen {
			p.advance()
			args, kwargs, err := p.parseCallArgs()
			if err != nil {
				return nil, err
			}
			e = &callExpr{fn: e, args: args, kwargs: kwargs}
			continue
		}

		// Filter: e | filtername or e | filtername(args)
		if filters && t.kind == tokPipe {
			p.advance()
			filterTok := p.advance()
			if filterTok.kind != tokName {
				return nil, fmt.Errorf("expected filter name after '|', got %q", filterTok.val)
			}

			var filterArgs []expr
			var filterKwargs []kwarg
			if p.peek().kind == tokLParen {
				p.advance()
				filterArgs, filterKwargs, err = p.parseCallArgs()
				if err != nil {
					return nil, err
				}
			}

			e = &filterExpr{
				expr:   e,
				name:   filterTok.val,
				args:   filterArgs,
				kwargs: filterKwargs,
			}
			continue
		}

		if filters && p.matchName("is") {
			negated := p.matchName("not")
			name, err := p.expect(tokName, "")
			if err != nil {
				return nil, err
			}
			var args []expr
			if p.peek().kind == tokLParen {
				p.advance()
				args, _, err = p.parseCallArgs()
			} else if p.testArgument() {
				var arg expr
				arg, err = p.parseUnaryOperand()
				args = []expr{arg}
			}
			if err != nil {
				return nil, err
			}
			e = &testExpr{expr: e, name: name.val, negated: negated, args: args}
			continue
		}

		break
	}

	return e, nil
}

// testArgument reports whether an argument of a test follows without brackets:
// "x is divisibleby 3", "x is in [1, 2]".
func (p *exprParser) testArgument() bool {
	switch t := p.peek(); t.kind {
	case tokInt, tokFloat, tokString, tokLBracket, tokLBrace:
		return true
	case tokName:
		return !slices.Contains([]string{"and", "or", "else", "if", "in", "not", "is", "recursive"}, t.val)
	}
	return false
}

func (p *exprParser) parseAtom() (expr, error) {
	t := p.peek()

	// None
	if t.kind == tokName && (t.val == "None" || t.val == "none") {
		p.advance()
		return &litExpr{val: None()}, nil
	}

	// True / true
	if t.kind == tokName && (t.val == "True" || t.val == "true") {
		p.advance()
		return &litExpr{val: NewBool(true)}, nil
	}

	// False / false
	if t.kind == tokName && (t.val == "False" || t.val == "false") {
		p.advance()
		return &litExpr{val: NewBool(false)}, nil
	}

	// Integer literal.
	if t.kind == tokInt {
		p.advance()
		n, err := strconv.ParseInt(t.val, 0, 64)
		if err != nil {
			return nil, fmt.Errorf("invalid integer %q: %w", t.val, err)
		}
		return &litExpr{val: NewInt(n)}, nil
	}

	// Float literal.
	if t.kind == tokFloat {
		p.advance()
		f, err := strconv.ParseFloat(t.val, 64)
		if err != nil && !math.IsInf(f, 0) {
			return nil, fmt.Errorf("invalid float %q: %w", t.val, err)
		}
		return &litExpr{val: NewFloat(f)}, nil
	}

	// String literal.
	if t.kind == tokString {
		p.advance()
		var value strings.Builder
		value.WriteString(t.val)
		for p.peek().kind == tokString {
			value.WriteString(p.advance().val)
		}
		return &litExpr{val: NewString(value.String())}, nil
	}

	// Identifier.
	if t.kind == tokName {
		p.advance()
		return &nameExpr{name: t.val}, nil
	}

	// Parenthesized expression or tuple.
	if t.kind == tokLParen {
		p.advance()
		if p.peek().kind == tokRParen {
			p.advance()
			return &listExpr{items: nil, tuple: true}, nil
		}
		e, err := p.parseExpression()
		if err != nil {
			return nil, err
		}

		// Check if tuple: (a, b, ...)
		if p.peek().kind == tokComma {
			items := []expr{e}
			for p.peek().kind == tokComma {
				p.advance()
				if p.peek().kind == tokRParen {
					break
				}
				item, err := p.parseExpression()
				if err != nil {
					return nil, err
				}
				items = append(items, item)
			}
			if _, err := p.expect(tokRParen, ")"); err != nil {
				return nil, err
			}
			return &listExpr{items: items, tuple: true}, nil
		}

		if _, err := p.expect(tokRParen, ")"); err != nil {
			return nil, err
		}
		return e, nil
	}

	// List literal: [a, b, ...]
	if t.kind == tokLBracket {
		p.advance()
		var items []expr
		for p.peek().kind != tokRBracket && p.peek().kind != tokEOF {
			item, err := p.parseExpression()
			if err != nil {
				return nil, err
			}
			items = append(items, item)
			if p.peek().kind == tokComma {
				p.advance()
			}
		}
		if _, err := p.expect(tokRBracket, "]"); err != nil {
			return nil, err
		}
		return &listExpr{items: items}, nil
	}

	// Dict literal: {k: v, ...}
	if t.kind == tokLBrace {
		p.advance()
		var pairs []dictPair
		for p.peek().kind != tokRBrace && p.peek().kind != tokEOF {
			key, err := p.parseExpression()
			if err != nil {
				return nil, err
			}
			if _, err := p.expect(tokColon, ":"); err != nil {
				return nil, err
			}
			value, err := p.parseExpression()
			if err != nil {
				return nil, err
			}
			pairs = append(pairs, dictPair{key: key, value: value})
			if p.peek().kind == tokComma {
				p.advance()
			}
		}
		if _, err := p.expect(tokRBrace, "}"); err != nil {
			return nil, err
		}
		return &dictExpr{pairs: pairs}, nil
	}

	// Negative number: handle case where we get here with "-" as op token.
	if t.kind == tokOp && t.val == "-" {
		p.advance()
		operand, err := p.parseAtom()
		if err != nil {
			return nil, err
		}
		return &unaryExpr{op: "-", operand: operand}, nil
	}

	return nil, fmt.Errorf("unexpected token %q (kind=%d)", t.val, t.kind)
}

func (p *exprParser) parseCallArgs() ([]expr, []kwarg, error) {
	var args []expr
	var kwargs []kwarg

	for p.peek().kind != tokRParen && p.peek().kind != tokEOF {
		// Check for kwarg: name=value
		if p.peek().kind == tokPower {
			p.advance()
			val, err := p.parseExpression()
			if err != nil {
				return nil, nil, err
			}
			// An empty name denotes a mapping expanded into keyword arguments.
			kwargs = append(kwargs, kwarg{value: val})
		} else if p.peek().kind == tokName && p.pos+1 < len(p.tokens) && p.tokens[p.pos+1].kind == tokOp && p.tokens[p.pos+1].val == "=" {
			name := p.advance().val
			p.advance() // skip =
			val, err := p.parseExpression()
			if err != nil {
				return nil, nil, err
			}
			kwargs = append(kwargs, kwarg{name: name, value: val})
		} else {
			arg, err := p.parseExpression()
			if err != nil {
				return nil, nil, err
			}
			args = append(args, arg)
		}

		if p.peek().kind == tokComma {
			p.advance()
		}
	}

	if _, err := p.expect(tokRParen, ")"); err != nil {
		return nil, nil, err
	}

	return args, kwargs, nil
}
