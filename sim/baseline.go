package sim

import (
	"time"

	"epp.internal/epp"
	"epp.internal/epp/block"
	"epp.internal/epp/fleet"
	"epp.internal/epp/health"
	"epp.internal/epp/picker"
	"epp.internal/epp/trace"
)

// input is what another router's policy sees of a decision.
type input struct {
	req       *trace.Request
	tokens    []uint32
	chain     []uint64 // hashes of the prompt's full blocks of blockTokens
	endpoints []epp.Endpoint
	// signals are the readings and the router's own requests in flight, one for
	// each of endpoints.
	signals []epp.Signals
	// match is leading blocks held by slot, from KV events; nil without them.
	match []uint32
	now   time.Duration
}

// blockTokens is the size of the blocks of chain, as of the engines' default.
const blockTokens = 16

// matched is how many leading blocks endpoint i holds.
func (in *input) matched(i int) int {
	if s := int(in.endpoints[i].Slot); s < len(in.match) {
		return int(in.match[s])
	}
	return 0
}

// uncached is how many tokens endpoint i has to compute.
func (in *input) uncached(i int) int {
	return len(in.tokens) - min(in.matched(i)*blockTokens, (len(in.tokens)-1)/blockTokens*blockTokens)
}

// chooser is another router's policy. choose returns an index into in.endpoints,
// of which there is one at least; it keeps nothing of in.
type chooser interface {
	choose(in *input) int
}

// follower is a chooser that hears how its requests go on.
type follower interface {
	firstToken(s *sent)
	ended(s *sent)
}

// sent is a request as a baseline has sent it.
type sent struct {
	booking fleet.Booking
	slot    epp.Slot
	tried   epp.Slots
	chain   []uint64
	tokens  int
	ttft    time.Duration
	left    bool // ended has been called
}

// baseline carries out another router's policy with the fleet's table: its ledger
// counts requests in flight, its members hold readings and health.
type baseline struct {
	w      *world
	policy chooser
	index  bool
	in     input
}

func newBaseline(w *world, policy chooser, index bool) *baseline {
	return &baseline{w: w, policy: policy, index: index}
}

func (b *baseline) pick(f *flight) (uint32, bool) {
	w, in := b.w, &b.in
	root := w.key.Root(block.Root{Adapter: f.req.Adapter, BlockTokens: blockTokens})
	if f.chain == nil {
		f.chain = block.AppendChain(make([]uint64, 0, len(f.tokens)/blockTokens), root, f.tokens, blockTokens)
		f.sent.tokens = len(f.tokens)
	}
	in.req, in.tokens, in.chain, in.now = f.req, f.tokens, f.chain, time.Duration(w.at)
	if b.index {
		in.match = make([]uint32, w.fleet.Slots())
		w.index.Match(in.chain, in.match)
	}
	var picked epp.Endpoint
	booking, ok := w.fleet.Pick(fleet.Query{Target: baseModel, Adapter: f.req.Adapter}, w.now(), func(v epp.View) (int, int) {
		places := b.usable(v, f.tried)
		if len(in.endpoints) == 0 {
			return -1, 0
		}
		i := b.policy.choose(in)
		picked = in.endpoints[i]
		return places[i], in.uncached(i)
	})
	if !ok {
		return 0, false
	}
	f.booking, f.slot, f.left = booking, picked.Slot, false
	return picked.Generation, true
}

// usable fills the input with the endpoints that are healthy and were not tried,
// or that were not tried where none is healthy, and returns their places in v.
func (b *baseline) usable(v epp.View, tried epp.Slots) []int {
	in := &b.in
	for _, cutoff := range [...]float64{health.Cutoff, 0} {
		var places []int
		in.endpoints, in.signals = in.endpoints[:0], in.signals[:0]
		for i := range v.Endpoints {
			if v.Signals[i].Health >= cutoff && !tried.Has(v.Endpoints[i].Slot) {
				places = append(places, i)
				in.endpoints, in.signals = append(in.endpoints, v.Endpoints[i]), append(in.signals, v.Signals[i])
			}
		}
		if len(places) > 0 {
			return places
		}
	}
	return nil
}

func (b *baseline) again(f *flight, o picker.Outcome) (uint32, bool) {
	b.leave(f, fleet.Bad)
	f.tried = f.tried.Add(f.slot)
	return b.pick(f)
}

func (b *baseline) answered(f *flight, status int) {
	f.booking.Answered()
	v := fleet.Good
	switch {
	case status >= 500:
		v = fleet.Bad
	case status >= 400:
		v = fleet.Undecided
	}
	f.booking.Judge(b.w.now(), v)
	f.booking.FirstToken(b.w.now())
	f.ttft = b.w.outcomes[f.number].TTFT
	if h, ok := b.policy.(follower); ok && status == 200 {
		h.firstToken(&f.sent)
	}
}

func (b *baseline) end(f *flight, o picker.Outcome) {
	v := fleet.Good
	if o != picker.Served {
		v = fleet.Bad
	}
	b.leave(f, v)
}

// leave ends the booking, once.
func (b *baseline) leave(f *flight, v fleet.Verdict) {
	if f.left {
		return
	}
	f.left = true
	if v == fleet.Bad {
		f.booking.Judge(b.w.now(), v)
	}
	f.booking.End()
	if h, ok := b.policy.(follower); ok {
		h.ended(&f.sent)
	}
}
