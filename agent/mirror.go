package agent

import (
	"cmp"
	"slices"
	"strings"

	"epp.internal/epp"
	"epp.internal/epp/block"
)

// name is what the engine calls a block.
type name struct {
	tier  string
	group int
	hash  uint64
}

// node is a block that the engine holds, or one that another has as its parent.
type node struct {
	name   name
	id     uint64 // its name in reports; not 0
	parent *node  // nil for a prompt's first block, and where that is not known
	// The blocks after this one: the first of them, and of each the next and the
	// one before.
	child, next, prev *node

	held bool // by the engine
	told bool // it can be reached: pickers hold it too

	// The following fields are set where held is.

	first       bool // it begins a prompt
	root        block.Root
	tokens      []uint32
	media       string
	keys        []uint64 // its hash for each picker whose key is known
	blockTokens int
}

// nodeBytes is what a node costs besides tokens, media and keys: itself, its entry
// in the map, and what the allocator adds.
const nodeBytes = 320

func (n *node) bytes(pickers int) int {
	if !n.held {
		return nodeBytes
	}
	return nodeBytes + 4*len(n.tokens) + 8*pickers + len(n.media) + len(n.root.Adapter) + len(n.root.Salt)
}

// mirror is the engine's blocks. All its methods need Agent.mu.
type mirror struct {
	pickers int
	// tell is called with each block that pickers come to hold, parents first, and
	// with each that they hold no longer.
	tell func(n *node, stored bool)

	nodes    map[name]*node
	lastID   uint64
	bytes    int
	maxBytes int
	full     bool // some were not kept since the last clear
	held     int
}

// clear forgets all.
func (m *mirror) clear() {
	m.nodes, m.bytes, m.full, m.held = map[name]*node{}, 0, false, 0
}

// malformed says whether a BlockStored does not say what is needed to hash it.
func malformed(e *epp.BlockEvent) bool {
	n := len(e.Hashes)
	return n == 0 || e.BlockTokens <= 0 || len(e.Tokens) != n*e.BlockTokens || e.Media != nil && len(e.Media) != n
}

// store keeps the blocks of a BlockStored.
func (m *mirror) store(e *epp.BlockEvent) {
	if malformed(e) {
		return
	}
	var parent *node
	if e.HasParent {
		if parent = m.node(name{e.Tier, e.Group, e.Parent}); parent == nil {
			return
		}
	}
	for i, hash := range e.Hashes {
		n := m.node(name{e.Tier, e.Group, hash})
		if n == nil || n == parent {
			m.prune(parent)
			return
		}
		tokens, media := e.Tokens[i*e.BlockTokens:(i+1)*e.BlockTokens], ""
		if e.Media != nil {
			media = e.Media[i]
		}
		former := n.parent
		if n.held && (n.parent != parent || n.media != media || !slices.Equal(n.tokens, tokens) ||
			parent == nil && n.root != rootOf(e)) {
			m.drop(n) // the engine gave its name to another block
		}
		if !n.held {
			n.tokens, n.media, n.blockTokens = slices.Clone(tokens), strings.Clone(media), e.BlockTokens
			n.keys = make([]uint64, m.pickers)
			if n.first = parent == nil; n.first {
				n.root = rootOf(e)
			}
			m.bytes -= nodeBytes
			n.held = true
			m.bytes += n.bytes(m.pickers)
			m.held++
			m.link(n, parent)
			m.prune(former)
			if n.first || parent.told {
				m.reach(n)
			}
		}
		parent = n
	}
}

func rootOf(e *epp.BlockEvent) block.Root {
	return block.Root{Adapter: strings.Clone(e.Adapter), Salt: strings.Clone(e.Salt), BlockTokens: e.BlockTokens}
}

// node returns the node of a name, made where there is none, or nil where there is
// no room for it.
func (m *mirror) node(at name) *node {
	if n := m.nodes[at]; n != nil {
		return n
	}
	if m.bytes+nodeBytes >= m.maxBytes {
		m.full = true
		return nil
	}
	at.tier = strings.Clone(at.tier)
	m.lastID++
	n := &node{name: at, id: m.lastID}
	m.nodes[at] = n
	m.bytes += nodeBytes
	return n
}

// remove forgets a block that the engine holds no longer.
func (m *mirror) remove(at name) {
	if n := m.nodes[at]; n != nil && n.held {
		parent := n.parent
		m.drop(n)
		m.prune(n)
		m.prune(parent)
	}
}

// drop makes a node one that is not held. Its children wait for it.
func (m *mirror) drop(n *node) {
	if n.told {
		m.unreach(n)
	}
	m.bytes -= n.bytes(m.pickers)
	n.held, n.tokens, n.media, n.keys, n.root = false, nil, "", nil, block.Root{}
	m.bytes += nodeBytes
	m.held--
	m.link(n, nil)
}

// prune forgets a node that is not held and that nothing waits for.
func (m *mirror) prune(n *node) {
	if n != nil && !n.held && n.child == nil && m.nodes[n.name] == n {
		delete(m.nodes, n.name)
		m.bytes -= nodeBytes
	}
}

// link makes n a child of parent, nil for none, and of nobody else.
func (m *mirror) link(n, parent *node) {
	if former := n.parent; former != nil {
		if n.prev != nil {
			n.prev.next = n.next
		} else {
			former.child = n.next
		}
		if n.next != nil {
			n.next.prev = n.prev
		}
		n.parent, n.prev, n.next = nil, nil, nil
	}
	if parent == nil {
		return
	}
	n.parent, n.next = parent, parent.child
	if n.next != nil {
		n.next.prev = n
	}
	parent.child = n
}

// reach tells of a node, and of all that can be reached by way of it.
func (m *mirror) reach(n *node) {
	m.walk(n, func(n *node) bool {
		if !n.held || n.told {
			return false
		}
		n.told = true
		m.tell(n, true)
		return true
	})
}

// unreach is the inverse of reach.
func (m *mirror) unreach(n *node) {
	m.walk(n, func(n *node) bool {
		if !n.told {
			return false
		}
		n.told = false
		m.tell(n, false)
		return true
	})
}

// walk visits a node, and below those for which visit is true their children,
// parents first.
func (m *mirror) walk(n *node, visit func(*node) bool) {
	for todo := []*node{n}; len(todo) > 0; {
		n, todo = todo[len(todo)-1], todo[:len(todo)-1]
		if !visit(n) {
			continue
		}
		for c := n.child; c != nil; c = c.next {
			todo = append(todo, c)
		}
	}
}

// reached visits all that can be reached, parents first.
func (m *mirror) reached(visit func(*node)) {
	var firsts []*node
	for _, n := range m.nodes {
		if n.told && n.first {
			firsts = append(firsts, n)
		}
	}
	slices.SortFunc(firsts, func(a, b *node) int { return cmp.Compare(a.id, b.id) })
	for _, n := range firsts {
		m.walk(n, func(n *node) bool {
			if n.told {
				visit(n)
			}
			return n.told
		})
	}
}
