package jinja

import (
	"fmt"
	"slices"
)

// check refuses a template that uses what the engine does not know: filters and
// tests by name, functions that nothing defines, methods of Python's types that
// are not there.
func check(nodes []node, names []string) error {
	c := checker{known: slices.Concat(names, []string{"loop", "caller", "varargs", "kwargs"})}
	c.collect(nodes)
	return c.walk(nodes)
}

type checker struct {
	// known are the names that something gives a value to, or that the template
	// itself asks for with "is defined" before it calls them.
	known []string
}

// collect gathers the names that the template assigns to anywhere.
func (c *checker) collect(nodes []node) {
	for _, n := range nodes {
		switch n := n.(type) {
		case *setNode:
			c.known = n.target.names(c.known)
		case *setBlockNode:
			c.known = n.target.names(c.known)
		case *forNode:
			c.known = n.target.names(c.known)
		case *withNode:
			for _, t := range n.targets {
				c.known = t.names(c.known)
			}
		case *macroNode:
			c.known = append(c.known, n.name)
			c.params(n.params)
		case *callNode:
			c.params(n.params)
		case *testExpr:
			if name, ok := n.expr.(*nameExpr); ok && (n.name == "defined" || n.name == "undefined") {
				c.known = append(c.known, name.name)
			}
		}
		c.collect(children(n))
	}
}

func (c *checker) params(params []macroParam) {
	for _, p := range params {
		c.known = append(c.known, p.name)
	}
}

// missingMethods are methods of Python's str and dict that the engine lacks.
var missingMethods = []string{
	"encode", "expandtabs", "format_map", "fromkeys", "isidentifier", "isprintable", "istitle", "maketrans", "swapcase", "translate",
}

func (c *checker) walk(nodes []node) error {
	for _, n := range nodes {
		switch n := n.(type) {
		case *filterExpr:
			if err := c.filter(n); err != nil {
				return err
			}
		case *testExpr:
			t, ok := tests[n.name]
			if !ok {
				return fmt.Errorf("unknown test %q", n.name)
			}
			if len(n.args) != t.args {
				return fmt.Errorf("test %q: takes %d arguments, got %d", n.name, t.args, len(n.args))
			}
		case *callExpr:
			switch fn := n.fn.(type) {
			case *nameExpr:
				if _, ok := globals[fn.name]; !ok && !slices.Contains(c.known, fn.name) {
					return fmt.Errorf("unknown function %q", fn.name)
				}
			case *attrExpr:
				if slices.Contains(missingMethods, fn.attr) {
					return fmt.Errorf("unknown method %q", fn.attr)
				}
			}
		}
		if err := c.walk(children(n)); err != nil {
			return err
		}
	}
	return nil
}

// filter checks a filter's name, and the one that it passes on by name.
func (c *checker) filter(n *filterExpr) error {
	if _, ok := filters[n.name]; !ok {
		return fmt.Errorf("unknown filter %q", n.name)
	}
	at := map[string]int{"map": 0, "select": 0, "reject": 0, "selectattr": 1, "rejectattr": 1}
	i, passes := at[n.name]
	if !passes || i >= len(n.args) {
		return nil
	}
	lit, ok := n.args[i].(*litExpr)
	if !ok || lit.val.kind != KindString {
		return nil
	}
	if _, known := filters[lit.val.s]; n.name == "map" && !known {
		return fmt.Errorf("unknown filter %q", lit.val.s)
	}
	if _, known := tests[lit.val.s]; n.name != "map" && !known {
		return fmt.Errorf("unknown test %q", lit.val.s)
	}
	return nil
}
