package jinja

import (
	"fmt"
	"slices"
	"strings"
	"unicode"
)

// templateParser turns segments into nodes.
type templateParser struct {
	segs  []segment
	pos   int
	depth int
	loops int // for blocks that are open: break and continue need one
}

func parseTemplate(segs []segment) ([]node, error) {
	p := &templateParser{segs: segs}
	return p.parseUntil()
}

// tag returns the keyword of the current segment, or "" if it is no statement.
func (p *templateParser) tag() string {
	if p.pos >= len(p.segs) || p.segs[p.pos].kind != segStmt {
		return ""
	}
	return stmtKeyword(p.segs[p.pos].text)
}

// stmtKeyword extracts the first word from a statement segment text.
func stmtKeyword(text string) string {
	text = strings.TrimSpace(text)
	for i, r := range text {
		if !unicode.IsLetter(r) && r != '_' {
			return text[:i]
		}
	}
	return text
}

// parseUntil parses nodes up to a statement that begins with one of the stop
// keywords, which it does not consume; without any, up to the end.
func (p *templateParser) parseUntil(stop ...string) ([]node, error) {
	if p.depth++; p.depth > maxNesting {
		return nil, fmt.Errorf("blocks nest more than %d levels deep", maxNesting)
	}
	defer func() { p.depth-- }()
	var nodes []node
	for p.pos < len(p.segs) {
		seg := p.segs[p.pos]
		if seg.kind == segStmt && slices.Contains(stop, p.tag()) {
			return nodes, nil
		}
		p.pos++
		added, err := p.parseSegment(seg)
		if err != nil {
			return nil, err
		}
		nodes = append(nodes, added...)
	}
	if len(stop) > 0 {
		return nil, fmt.Errorf("unexpected end of template: {%% %s %%} is missing", stop[len(stop)-1])
	}
	return nodes, nil
}

// at puts a segment's line in front of an error, once.
func at(seg segment, err error) error {
	if err == nil || strings.HasPrefix(err.Error(), "line ") || strings.HasPrefix(err.Error(), "unexpected end of template") {
		return err
	}
	return fmt.Errorf("line %d: %w", seg.line, err)
}

func (p *templateParser) parseSegment(seg segment) ([]node, error) {
	switch seg.kind {
	case segText:
		return []node{&textNode{text: seg.text}}, nil
	case segExpr:
		e, err := parseExpr(seg.text)
		if err != nil {
			return nil, at(seg, err)
		}
		return []node{&outputNode{expression: e}}, nil
	}
	keyword := stmtKeyword(seg.text)
	args, err := newExprParser(strings.TrimSpace(seg.text)[len(keyword):])
	if err != nil {
		return nil, at(seg, err)
	}
	nodes, err := p.parseStatement(keyword, args)
	return nodes, at(seg, err)
}

// parseStatement parses a statement whose keyword has been read, args is what
// follows it in the tag.
func (p *templateParser) parseStatement(keyword string, args *exprParser) ([]node, error) {
	var n node
	var err error
	switch keyword {
	case "if":
		n, err = p.parseIf(args)
	case "for":
		p.loops++
		n, err = p.parseFor(args)
		p.loops--
	case "set":
		n, err = p.parseSet(args)
	case "with":
		n, err = p.parseWith(args)
	case "macro":
		n, err = p.parseMacro(args)
	case "call":
		n, err = p.parseCall(args)
	case "filter":
		n, err = p.parseFilterBlock(args)
	case "break", "continue":
		if p.loops == 0 {
			return nil, fmt.Errorf("%q outside of a loop", keyword)
		}
		n = &breakNode{}
		if keyword == "continue" {
			n = &continueNode{}
		}
		err = args.end()
	case "generation", "block":
		// Both render their body where they stand, with variables of its own;
		// generation is a hint for the training of models.
		if keyword == "block" {
			if _, err := args.expect(tokName, ""); err != nil {
				return nil, err
			}
		}
		if err := args.end(); err != nil {
			return nil, err
		}
		body, err := p.body("end" + keyword)
		return []node{&withNode{body: body}}, err
	default:
		return nil, fmt.Errorf("unknown tag %q", keyword)
	}
	if err != nil {
		return nil, err
	}
	return []node{n}, nil
}

// body parses nodes up to one of the end tags and consumes that.
func (p *templateParser) body(end ...string) ([]node, error) {
	nodes, err := p.parseUntil(end...)
	p.pos++
	return nodes, err
}

func (p *templateParser) parseIf(args *exprParser) (*ifNode, error) {
	n := &ifNode{}
	for {
		cond, err := args.parseTuple(args.parseExpression)
		if err == nil {
			err = args.end()
		}
		if err != nil {
			return nil, err
		}
		body, err := p.parseUntil("elif", "else", "endif")
		if err != nil {
			return nil, err
		}
		n.branches = append(n.branches, condBranch{condition: cond, body: body})
		seg := p.segs[p.pos]
		p.pos++
		switch stmtKeyword(seg.text) {
		case "endif":
			return n, nil
		case "else":
			body, err := p.body("endif")
			n.branches = append(n.branches, condBranch{body: body})
			return n, err
		}
		args, err = newExprParser(strings.TrimSpace(seg.text)[len("elif"):])
		if err != nil {
			return nil, at(seg, err)
		}
	}
}

// parseFor parses: for target in iter [if filter] [recursive].
func (p *templateParser) parseFor(args *exprParser) (*forNode, error) {
	n := &forNode{}
	var err error
	if n.target, err = args.parseTarget(false); err != nil {
		return nil, err
	}
	if !args.matchName("in") {
		return nil, fmt.Errorf("for: \"in\" is missing")
	}
	if n.iter, err = args.parseTuple(args.parseOr); err != nil {
		return nil, err
	}
	if args.matchName("if") {
		if n.filterExpr, err = args.parseExpression(); err != nil {
			return nil, err
		}
	}
	n.recursive = args.matchName("recursive")
	if err = args.end(); err != nil {
		return nil, err
	}
	if n.body, err = p.parseUntil("else", "endfor"); err != nil {
		return nil, err
	}
	if p.tag() == "else" {
		p.pos++
		if n.elseBody, err = p.parseUntil("endfor"); err != nil {
			return nil, err
		}
	}
	p.pos++
	n.captured = captures(n.body)
	return n, nil
}

// parseSet parses: set target = value, and: set target [| filter] … endset.
func (p *templateParser) parseSet(args *exprParser) (node, error) {
	t, err := args.parseTarget(true)
	if err != nil {
		return nil, err
	}
	if next := args.peek(); next.kind == tokOp && next.val == "=" {
		args.advance()
		value, err := args.parseTuple(args.parseExpression)
		if err != nil {
			return nil, err
		}
		return &setNode{target: t, value: value}, args.end()
	}
	n := &setBlockNode{target: t}
	if args.peek().kind == tokPipe {
		if n.filter, err = args.parsePostfix(&nameExpr{name: filterBody}); err != nil {
			return nil, err
		}
	}
	if err = args.end(); err != nil {
		return nil, err
	}
	n.body, err = p.body("endset")
	return n, err
}

// filterBody is the name under which a block's text is passed to its filter; no
// template can write it.
const filterBody = " body"

func (p *templateParser) parseWith(args *exprParser) (*withNode, error) {
	n := &withNode{}
	for args.peek().kind != tokEOF {
		name, err := args.expect(tokName, "")
		if err != nil {
			return nil, err
		}
		if _, err = args.expect(tokOp, "="); err != nil {
			return nil, err
		}
		value, err := args.parseExpression()
		if err != nil {
			return nil, err
		}
		n.targets, n.values = append(n.targets, target{name: name.val}), append(n.values, value)
		if args.peek().kind != tokEOF {
			if _, err := args.expect(tokComma, ","); err != nil {
				return nil, err
			}
		}
	}
	var err error
	n.body, err = p.body("endwith")
	return n, err
}

// parseParams parses the parameters of a macro or a call block, brackets included.
func parseParams(args *exprParser) ([]macroParam, error) {
	if _, err := args.expect(tokLParen, "("); err != nil {
		return nil, err
	}
	var params []macroParam
	for args.peek().kind != tokRParen {
		name, err := args.expect(tokName, "")
		if err != nil {
			return nil, err
		}
		param := macroParam{name: name.val}
		if next := args.peek(); next.kind == tokOp && next.val == "=" {
			args.advance()
			if param.defaultVal, err = args.parseExpression(); err != nil {
				return nil, err
			}
		}
		params = append(params, param)
		if args.peek().kind != tokRParen {
			if _, err := args.expect(tokComma, ","); err != nil {
				return nil, err
			}
		}
	}
	args.advance()
	return params, nil
}

func (p *templateParser) parseMacro(args *exprParser) (*macroNode, error) {
	name, err := args.expect(tokName, "")
	if err != nil {
		return nil, err
	}
	n := &macroNode{name: name.val}
	if n.params, err = parseParams(args); err != nil {
		return nil, err
	}
	if err = args.end(); err != nil {
		return nil, err
	}
	n.body, err = p.body("endmacro")
	return n, err
}

func (p *templateParser) parseCall(args *exprParser) (*callNode, error) {
	n := &callNode{}
	if args.peek().kind == tokLParen {
		params, err := parseParams(args)
		if err != nil {
			return nil, err
		}
		n.params = params
	}
	var err error
	if n.expr, err = args.parseExpression(); err != nil {
		return nil, err
	}
	if _, ok := n.expr.(*callExpr); !ok {
		return nil, fmt.Errorf("call: a call is expected")
	}
	if err = args.end(); err != nil {
		return nil, err
	}
	n.body, err = p.body("endcall")
	return n, err
}

func (p *templateParser) parseFilterBlock(args *exprParser) (*filterBlockNode, error) {
	// The tag names the filter without the pipe.
	args.tokens = slices.Insert(args.tokens, 0, tok{kind: tokPipe, val: "|"})
	filter, err := args.parsePostfix(&nameExpr{name: filterBody})
	if err == nil {
		err = args.end()
	}
	if err != nil {
		return nil, err
	}
	body, err := p.body("endfilter")
	return &filterBlockNode{filter: filter, body: body}, err
}

// breakNode and continueNode for loop control.
type breakNode struct{}

func (n *breakNode) nodeType() string { return "break" }

type continueNode struct{}

func (n *continueNode) nodeType() string { return "continue" }
