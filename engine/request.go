package engine

import (
	"time"

	"epp.internal/epp"
	"epp.internal/epp/block"
)

// Request is one request in the engine. The caller fills the exported fields,
// gives it to [Engine.Add] once and changes nothing after that.
type Request struct {
	// ID is the caller's; the engine does not look at it.
	ID uint64
	// Tokens is the prompt; at least one.
	Tokens []uint32
	// Answer is what the engine will say, token by token. A request without one
	// ends when its prompt is computed, as an embedding does.
	Answer []uint32
	// Adapter is the LoRA adapter's name, empty for the base model; Salt is the
	// cache_salt.
	Adapter, Salt string
	// Owner is the caller's; the engine does not look at it.
	Owner any

	arrived  time.Time
	admitted bool // at least once
	ended    bool
	cached   int // prompt tokens found in the cache when first admitted
	computed int // tokens whose keys and values the step under way will leave
	produced int // answer tokens told

	root   uint64
	hashes []uint64 // of the leading full blocks, as far as they were needed
	blocks []int32  // that hold the first computed tokens
	stored int      // leading blocks that were known when admitted or told since
}

// Arrived is when the request was added.
func (r *Request) Arrived() time.Time { return r.arrived }

// CachedTokens is how many tokens of the prompt were in the cache when the
// request was first admitted; 0 before that.
func (r *Request) CachedTokens() int { return r.cached }

// known is how many tokens the request has: its prompt and the answer so far.
func (r *Request) known() int { return len(r.Tokens) + r.produced }

// decodes reports whether a chunk behind computed tokens is an answer's token
// and not a part of a prompt, or of what a preemption lost.
func (r *Request) decodes() bool { return r.produced > 0 && r.computed == r.known()-1 }

// hash returns the hash of block i, which must be full of known tokens: XXH64 of
// the tokens, little-endian, with the hash before as seed. It is package block's
// function under another root, so no hash is one of a picker's.
func (r *Request) hash(c *cache, i int) uint64 {
	n := len(r.hashes)
	if i < n {
		return r.hashes[i]
	}
	parent := r.root
	if n > 0 {
		parent = r.hashes[n-1]
	}
	to := i + 1
	if to*c.blockTokens <= len(r.Tokens) {
		to = len(r.Tokens) / c.blockTokens // the prompt's are all needed sooner or later
	}
	if r.hashes == nil {
		r.hashes = make([]uint64, 0, (len(r.Tokens)+len(r.Answer))/c.blockTokens)
	}
	r.hashes = block.AppendChain(r.hashes, parent, r.slice(c, n, to), c.blockTokens)
	return r.hashes[i]
}

// slice returns the tokens of blocks i to j-1: a part of the prompt or of the
// answer where one holds them all, else a copy.
func (r *Request) slice(c *cache, i, j int) []uint32 {
	from, to, p := i*c.blockTokens, j*c.blockTokens, len(r.Tokens)
	if to <= p {
		return r.Tokens[from:to:to]
	}
	if from >= p {
		return r.Answer[from-p : to-p : to-p]
	}
	return append(append(make([]uint32, 0, to-from), r.Tokens[from:]...), r.Answer[:to-p]...)
}

// store makes the blocks known that are full now, and tells of them in one event.
func (r *Request) store(c *cache) {
	from, to := r.stored, r.computed/c.blockTokens
	if from >= to {
		return
	}
	r.hash(c, to-1)
	before := int32(nullBlock)
	if from > 0 {
		before = r.blocks[from-1]
	}
	for i := from; i < to; i++ {
		c.store(r.blocks[i], r.hashes[i], before)
		before = r.blocks[i]
	}
	r.stored = to
	ev := epp.BlockEvent{
		Kind:        epp.BlockStored,
		Hashes:      r.hashes[from:to:to],
		Tokens:      r.slice(c, from, to),
		BlockTokens: c.blockTokens,
		Adapter:     r.Adapter,
		Tier:        tier,
	}
	if from > 0 {
		ev.Parent, ev.HasParent = r.hashes[from-1], true
	} else {
		ev.Salt = r.Salt
	}
	c.events = append(c.events, ev)
}
