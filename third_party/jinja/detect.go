package jinja

// LoopsOverContent reports whether the template goes through the parts of a
// message's content in a loop: "for part in message.content", directly, through
// variables that were set to it, through a macro's parameter, or in a loop over a
// variable named "content".
//
// Source: vllm/renderers/hf.py, _iter_nodes_assign_content_item, which decides by
// it whether a template gets a message's text as parts or as one string.
func (t *Template) LoopsOverContent() bool {
	d := detector{}
	d.walk(t.nodes, nil)
	messages := d.aliases("messages")
	var message []string
	for _, f := range d.fors {
		if accessesAny(f.loop.iter, messages, "") {
			message = append(message, f.loop.target.name)
		}
	}
	for _, f := range d.fors {
		if accessesAny(f.loop.iter, message, "content") {
			return true
		}
		name, ok := f.loop.iter.(*nameExpr)
		switch {
		case !ok:
		case f.macro == nil:
			if name.name == "content" {
				return true
			}
		case d.contentParam(f.macro, name.name, message):
			return true
		}
	}
	return false
}

type detector struct {
	sets  []*setNode
	calls []*callExpr
	fors  []foundLoop
}

type foundLoop struct {
	loop  *forNode
	macro *macroNode // the macro that the loop stands in, or nil
}

func (d *detector) walk(nodes []node, macro *macroNode) {
	for _, n := range nodes {
		inside := macro
		switch n := n.(type) {
		case *setNode:
			d.sets = append(d.sets, n)
		case *callExpr:
			d.calls = append(d.calls, n)
		case *forNode:
			d.fors = append(d.fors, foundLoop{n, macro})
		case *macroNode:
			inside = n
		}
		d.walk(children(n), inside)
	}
}

// aliases returns a variable and those that were set to it or a part of it.
func (d *detector) aliases(name string) []string {
	names := []string{name}
	for i := 0; i < len(names); i++ {
		for _, s := range d.sets {
			t := s.target
			if t.items != nil || t.attr != "" || !accesses(s.value, names[i], "") {
				continue
			}
			seen := false
			for _, n := range names {
				seen = seen || n == t.name
			}
			if !seen {
				names = append(names, t.name)
			}
		}
	}
	return names
}

// contentParam reports whether a macro's parameter is called with a message's
// content anywhere.
func (d *detector) contentParam(m *macroNode, param string, message []string) bool {
	for _, call := range d.calls {
		if fn, ok := call.fn.(*nameExpr); !ok || fn.name != m.name {
			continue
		}
		for i, arg := range call.args {
			if i < len(m.params) && m.params[i].name == param && accessesAny(arg, message, "content") {
				return true
			}
		}
		for _, kw := range call.kwargs {
			if kw.name == param && accessesAny(kw.value, message, "content") {
				return true
			}
		}
	}
	return false
}

func accessesAny(e expr, names []string, key string) bool {
	for _, name := range names {
		if accesses(e, name, key) {
			return true
		}
	}
	return false
}

// accesses reports whether e is the variable, or its member key where key is not
// empty, perhaps behind filters, tests and slices.
func accesses(e expr, name, key string) bool {
	isName := func(e expr) bool {
		n, ok := e.(*nameExpr)
		return ok && n.name == name
	}
	switch n := e.(type) {
	case *filterExpr:
		return accesses(n.expr, name, key)
	case *testExpr:
		return accesses(n.expr, name, key)
	case *sliceExpr:
		return accesses(n.obj, name, key)
	case *nameExpr:
		return key == "" && isName(n)
	case *attrExpr:
		return key != "" && n.attr == key && isName(n.obj)
	case *itemExpr:
		lit, ok := n.key.(*litExpr)
		return key != "" && ok && lit.val.s == key && isName(n.obj)
	}
	return false
}
