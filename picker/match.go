package picker

import (
	"slices"

	"epp.internal/epp"
	"epp.internal/epp/block"
	"epp.internal/epp/decision"
)

// bytesDomain roots the chains of prompts that are known by their bytes alone, so
// that they meet no chain of tokens.
const bytesDomain = "bytes"

// mediaDomain begins the name under which a picture is folded into a chain. No
// engine names one so, and so no block behind a picture meets an engine's.
const mediaDomain = "reference:"

// chain hashes the prompts' full blocks, once for each block size of the pool.
func (pk *Pick) chain() {
	s, r := pk.s, &pk.Request
	s.sizes = pk.owner.opt.Fleet.BlockSizes(s.sizes[:0])
	for len(s.chains) < len(s.sizes) {
		s.chains = append(s.chains, nil)
	}
	s.chains = s.chains[:len(s.sizes)]
	for i, size := range s.sizes {
		root := pk.owner.opt.Key.Root(block.Root{Adapter: r.Adapter, Salt: r.Salt, BlockTokens: size})
		if pk.byBytes {
			root = block.ExtendMedia(root, bytesDomain, nil)
		}
		chain, from := s.chains[i][:0], 0
		for _, p := range s.prompts {
			chain = appendPrompt(chain, root, pk.promptTokens[from:p.end], &p, size)
			from = p.end
		}
		s.chains[i] = chain
	}
}

// chainOf is what Hooks.Decided is given: valid until the next decision.
func (pk *Pick) chainOf() []uint64 {
	if len(pk.s.sizes) == 0 || len(pk.s.prompts) != 1 {
		return nil
	}
	return pk.s.chains[0]
}

// appendPrompt appends the hashes of one prompt's full blocks. A picture is
// folded into the block that it begins in, and so into all behind it.
func appendPrompt(chain []uint64, root uint64, tokens []uint32, p *prompt, size int) []uint64 {
	if p.media == "" {
		return block.AppendChain(chain, root, tokens, size)
	}
	from, at := len(chain), p.mediaAt/size*size
	chain = block.AppendChain(chain, root, tokens[:at], size)
	if len(tokens)-at < size {
		return chain
	}
	if len(chain) > from {
		root = chain[len(chain)-1]
	}
	root = block.ExtendMedia(root, mediaDomain+p.media, tokens[at:at+size])
	return block.AppendChain(append(chain, root), root, tokens[at+size:], size)
}

// matchAll fills s.match by slot with the longest match of each endpoint: the
// leading blocks of every prompt, counted together.
func (pk *Pick) matchAll() {
	s, p := pk.s, pk.owner
	n := p.opt.Fleet.Slots()
	s.match = append(s.match[:0], make([]epp.Match, n)...)
	s.counts, s.sums = sized(s.counts, n), sized(s.sums, n)
	s.lacks = append(s.lacks[:0], make([]float32, n)...)
	if !pk.byBytes {
		for i, size := range s.sizes {
			clear(s.lacks)
			pk.matchSize(i, size, func(chain []uint64, out []uint32) {
				p.opt.Index.Match(chain, out)
				p.opt.Index.Discounts(chain, out, s.lacks)
			})
		}
	}
	if pk.guessed = p.learned != nil && (pk.ownAlone() || p.opt.Fleet.Silent() > 0); !pk.guessed {
		return
	}
	s.heard = append(s.heard[:0], s.match...)
	now := p.opt.Now()
	clear(s.lacks)
	for i, size := range s.sizes {
		pk.matchSize(i, size, func(chain []uint64, out []uint32) { p.learned.match(chain, now, out) })
	}
}

// sized returns a slice of n zeros, s's memory used again.
func sized(s []uint32, n int) []uint32 {
	if cap(s) < n {
		return make([]uint32, n)
	}
	clear(s[:n])
	return s[:n]
}

// matchSize matches the chains of one block size. look sets out[slot] to how many
// leading blocks of a chain the slot's endpoint holds.
func (pk *Pick) matchSize(i, size int, look func(chain []uint64, out []uint32)) {
	s := pk.s
	chain := s.chains[i]
	if len(chain) == 0 {
		return
	}
	sums := s.counts
	if len(s.prompts) == 1 {
		look(chain, sums)
	} else {
		sums = s.sums
		clear(sums)
		from := 0
		for _, p := range s.prompts {
			blocks := (p.end - from) / size
			look(chain[:blocks], s.counts)
			for slot, c := range s.counts {
				sums[slot] += c
			}
			chain, from = chain[blocks:], p.end
		}
	}
	for slot, blocks := range sums {
		if int(blocks)*size > s.match[slot].Tokens() {
			s.match[slot] = epp.Match{Blocks: blocks, BlockTokens: uint32(size), Discount: s.lacks[slot]}
		}
	}
}

// ownAlone reports whether no engine's events can tell all of the prompt's blocks:
// then our own picks are what is known, of every endpoint.
func (pk *Pick) ownAlone() bool {
	return pk.byBytes || slices.ContainsFunc(pk.s.prompts, func(p prompt) bool { return p.media != "" })
}

// trust leaves what was learned from our own picks out of the match of endpoints
// that tell of their caches themselves.
func (pk *Pick) trust(v epp.View) {
	s := pk.s
	pk.owner.learned.former(v, s.heard, s.match) // here a slot has one owner
	if pk.ownAlone() {
		return
	}
	for i := range v.Endpoints {
		if slot := int(v.Endpoints[i].Slot); v.Signals[i].Heard && slot < len(s.match) {
			s.match[slot] = s.heard[slot]
		}
	}
}

// cachedAt is how many of the prompts' tokens a candidate is predicted not to
// compute. Each of several prompts has a last token that is always computed;
// which prompts matched is not kept, so that counts only where nearly all did.
func (pk *Pick) cachedAt(c *decision.Candidate) int {
	n := len(pk.s.prompts)
	if n <= 1 {
		return c.CachedTokens(len(pk.promptTokens))
	}
	size := int(c.Match.BlockTokens)
	if size == 0 {
		return 0
	}
	most, from := 0, 0
	for _, p := range pk.s.prompts {
		most += max(0, p.end-from-1) / size * size
		from = p.end
	}
	return min(c.Match.Tokens(), most)
}

// learn remembers that an endpoint has computed the prompt.
func (pk *Pick) learn(at epp.Endpoint) {
	l := pk.owner.learned
	if l == nil || !pk.unheard || pk.learnt || pk.elsewhere() || pk.s == nil || pk.status >= 300 {
		return
	}
	pk.learnt = true
	now := pk.owner.opt.Now()
	for i, chain := range pk.s.chains {
		from := 0
		for _, p := range pk.s.prompts { // none is behind another
			blocks := (p.end - from) / pk.s.sizes[i]
			l.add(at, chain[:blocks], now)
			chain, from = chain[blocks:], p.end
		}
	}
}
