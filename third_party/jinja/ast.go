package jinja

// node is the interface for all AST nodes.
type node interface {
	nodeType() string
}

// expr is the interface for expression nodes (evaluable).
type expr interface {
	node
	exprNode()
}

// =========================================================================
// Template-level nodes
// =========================================================================

// textNode represents literal text output.
type textNode struct {
	text string
}

func (n *textNode) nodeType() string { return "text" }

// outputNode represents {{ expression }} output.
type outputNode struct {
	expression expr
}

func (n *outputNode) nodeType() string { return "output" }

// target is what a set or a for assigns to: a name, an attribute of a namespace
// (ns.attr), or a tuple of targets.
type target struct {
	name  string
	attr  string
	items []target
}

// names appends the names that the target binds.
func (t target) names(to []string) []string {
	for _, item := range t.items {
		to = item.names(to)
	}
	if t.items == nil && t.attr == "" {
		to = append(to, t.name)
	}
	return to
}

// withNode represents {% with a = 1, b = 2 %} body {% endwith %}.
type withNode struct {
	targets []target
	values  []expr
	body    []node
}

func (n *withNode) nodeType() string { return "with" }

// condBranch holds one branch of an if/elif/else chain.
// condition is nil for the else branch.
type condBranch struct {
	condition expr
	body      []node
}

// ifNode represents an if/elif/else chain.
type ifNode struct {
	branches []condBranch
}

func (n *ifNode) nodeType() string { return "if" }

// forNode represents a for loop.
type forNode struct {
	target     target
	iter       expr
	body       []node
	elseBody   []node
	filterExpr expr
	recursive  bool
	captured   bool // a macro or a call block in the body keeps a round's variables
}

func (n *forNode) nodeType() string { return "for" }

// setNode represents variable assignment.
type setNode struct {
	target target
	value  expr
}

func (n *setNode) nodeType() string { return "set" }

// setBlockNode represents a block set assignment: {% set var %}body{% endset %}.
// A filter, if any, is applied to the body: {% set var | upper %}.
type setBlockNode struct {
	target target
	filter expr
	body   []node
}

func (n *setBlockNode) nodeType() string { return "setBlock" }

// macroParam holds a single macro parameter definition.
type macroParam struct {
	name       string
	defaultVal expr
}

// macroNode represents a macro definition.
type macroNode struct {
	name   string
	params []macroParam
	body   []node
}

func (n *macroNode) nodeType() string { return "macro" }

// callNode represents {% call(args) macro_expr %} body {% endcall %}.
type callNode struct {
	params []macroParam
	expr   expr
	body   []node
}

func (n *callNode) nodeType() string { return "call" }

// filterBlockNode represents {% filter filterexpr %} body {% endfilter %}.
type filterBlockNode struct {
	filter expr
	body   []node
}

func (n *filterBlockNode) nodeType() string { return "filterBlock" }

// =========================================================================
// Expression nodes
// =========================================================================

// litExpr represents a literal value (string, int, float, bool, none).
type litExpr struct {
	val Value
}

func (n *litExpr) nodeType() string { return "literal" }
func (n *litExpr) exprNode()        {}

// nameExpr represents a variable reference.
type nameExpr struct {
	name string
}

func (n *nameExpr) nodeType() string { return "name" }
func (n *nameExpr) exprNode()        {}

// attrExpr represents attribute access (a.b).
type attrExpr struct {
	obj  expr
	attr string
}

func (n *attrExpr) nodeType() string { return "attr" }
func (n *attrExpr) exprNode()        {}

// itemExpr represents subscript access (a[b]).
type itemExpr struct {
	obj expr
	key expr
}

func (n *itemExpr) nodeType() string { return "item" }
func (n *itemExpr) exprNode()        {}

// sliceExpr represents slice access (a[start:stop:step]).
type sliceExpr struct {
	obj   expr
	start expr
	stop  expr
	step  expr
}

func (n *sliceExpr) nodeType() string { return "slice" }
func (n *sliceExpr) exprNode()        {}

// unaryExpr represents a unary operation (not, -, +).
type unaryExpr struct {
	op      string
	operand expr
}

func (n *unaryExpr) nodeType() string { return "unary" }
func (n *unaryExpr) exprNode()        {}

// binExpr represents a binary operation.
type binExpr struct {
	op    string
	left  expr
	right expr
}

func (n *binExpr) nodeType() string { return "binary" }
func (n *binExpr) exprNode()        {}

// compareExpr evaluates a comparison chain once per operand, short-circuiting.
type compareExpr struct {
	operands []expr
	ops      []string
}

func (n *compareExpr) nodeType() string { return "compare" }
func (n *compareExpr) exprNode()        {}

// condExpr represents an inline ternary (a if cond else b).
type condExpr struct {
	trueExpr  expr
	condition expr
	falseExpr expr
}

func (n *condExpr) nodeType() string { return "condExpr" }
func (n *condExpr) exprNode()        {}

// kwarg holds a single keyword argument.
type kwarg struct {
	name  string
	value expr
}

// callExpr represents a function/method call.
type callExpr struct {
	fn     expr
	args   []expr
	kwargs []kwarg
}

func (n *callExpr) nodeType() string { return "call" }
func (n *callExpr) exprNode()        {}

// filterExpr represents a pipe filter chain (value | filter(args)).
type filterExpr struct {
	expr   expr
	name   string
	args   []expr
	kwargs []kwarg
}

func (n *filterExpr) nodeType() string { return "filter" }
func (n *filterExpr) exprNode()        {}

// testExpr represents an is/is not test (value is testname).
type testExpr struct {
	expr    expr
	name    string
	negated bool
	args    []expr
}

func (n *testExpr) nodeType() string { return "test" }
func (n *testExpr) exprNode()        {}

// listExpr represents an array literal [a, b, c].
type listExpr struct {
	items []expr
	tuple bool
}

func (n *listExpr) nodeType() string { return "list" }
func (n *listExpr) exprNode()        {}

// dictPair holds a single key-value pair in a dict literal.
type dictPair struct {
	key   expr
	value expr
}

// dictExpr represents a dict literal {k: v}.
type dictExpr struct {
	pairs []dictPair
}

func (n *dictExpr) nodeType() string { return "dict" }
func (n *dictExpr) exprNode()        {}

// referencesName finds variable references, including those in inactive branches.
// Literal text, attribute names, and nested macro bodies are not references in
// the enclosing macro's scope.
func referencesName(name string, nodes ...node) bool {
	for _, n := range nodes {
		if n, ok := n.(*nameExpr); ok && n.name == name {
			return true
		}
		if _, ok := n.(*macroNode); ok {
			continue
		}
		if referencesName(name, children(n)...) {
			return true
		}
	}
	return false
}

// captures reports whether one of the nodes is a macro or a call block.
func captures(nodes []node) bool {
	for _, n := range nodes {
		switch n.(type) {
		case *macroNode, *callNode:
			return true
		}
		if captures(children(n)) {
			return true
		}
	}
	return false
}

// children returns the nodes directly below n.
func children(n node) []node {
	var out []node
	add := func(e expr) {
		if e != nil {
			out = append(out, e)
		}
	}
	call := func(args []expr, kwargs []kwarg) {
		for _, arg := range args {
			add(arg)
		}
		for _, kw := range kwargs {
			add(kw.value)
		}
	}
	switch n := n.(type) {
	case *outputNode:
		add(n.expression)
	case *ifNode:
		for _, branch := range n.branches {
			add(branch.condition)
			out = append(out, branch.body...)
		}
	case *forNode:
		add(n.iter)
		add(n.filterExpr)
		out = append(append(out, n.body...), n.elseBody...)
	case *setNode:
		add(n.value)
	case *setBlockNode:
		add(n.filter)
		out = append(out, n.body...)
	case *withNode:
		call(n.values, nil)
		out = append(out, n.body...)
	case *macroNode:
		for _, param := range n.params {
			add(param.defaultVal)
		}
		out = append(out, n.body...)
	case *callNode:
		add(n.expr)
		out = append(out, n.body...)
	case *filterBlockNode:
		add(n.filter)
		out = append(out, n.body...)
	case *attrExpr:
		add(n.obj)
	case *itemExpr:
		add(n.obj)
		add(n.key)
	case *sliceExpr:
		add(n.obj)
		add(n.start)
		add(n.stop)
		add(n.step)
	case *unaryExpr:
		add(n.operand)
	case *binExpr:
		add(n.left)
		add(n.right)
	case *compareExpr:
		call(n.operands, nil)
	case *condExpr:
		add(n.condition)
		add(n.trueExpr)
		add(n.falseExpr)
	case *callExpr:
		add(n.fn)
		call(n.args, n.kwargs)
	case *filterExpr:
		add(n.expr)
		call(n.args, n.kwargs)
	case *testExpr:
		add(n.expr)
		call(n.args, nil)
	case *listExpr:
		call(n.items, nil)
	case *dictExpr:
		for _, pair := range n.pairs {
			add(pair.key)
			add(pair.value)
		}
	}
	return out
}
