package picker

import (
	"sync"
	"sync/atomic"
	"time"

	"epp.internal/epp"
	"epp.internal/epp/kvindex"
)

// The defaults of learning from our own picks.
const (
	// DefaultLearnTTL is how long a prompt counts as cached where it ran. A guess:
	// an engine under load evicts within minutes.
	DefaultLearnTTL = 5 * time.Minute
	// DefaultLearnBlocks bounds the blocks that are remembered, one for each
	// endpoint that holds it: under learnBytes each.
	DefaultLearnBlocks = 1 << 20
	// learnBytes is what a block of an endpoint costs at most, in the index: a node, its
	// place in the table, half-empty slots of a lane, and a part of a set.
	learnBytes = 100
)

// learned is what our own picks have taught of the endpoints' caches, where the
// engines tell nothing: a prompt whose first token came is cached where it came
// from, for a while. It is a guess, and never more: an engine evicts in silence.
type learned struct {
	index *kvindex.Index

	mu sync.Mutex // held while owners changes
	// owners are, by slot, those that the blocks belong to. What it points to never
	// changes.
	owners atomic.Pointer[[]owner]
}

// owner is an endpoint of which something was learned.
type owner struct {
	generation uint32
	writer     *kvindex.Writer // nil: there was none in this slot
}

func newLearned(opt *Options) *learned {
	if !opt.Learn {
		return nil
	}
	l := &learned{index: kvindex.New(kvindex.Options{
		Key: opt.Key, TTL: opt.LearnTTL, MaxCopies: opt.LearnBlocks,
		MaxBytes:         kvindex.MinMaxBytes + opt.LearnBlocks*learnBytes,
		MaxEndpointShare: 1, // what is learned is of our own choosing: nobody claims it
	})}
	l.owners.Store(new([]owner))
	return l
}

// writer returns the endpoint's side of what is learned, or nil where another has
// its slot since. What the slot's owner before it had is forgotten.
func (l *learned) writer(at epp.Endpoint) *kvindex.Writer {
	find := func() (o owner, current bool) {
		if owners := *l.owners.Load(); int(at.Slot) < len(owners) {
			o = owners[at.Slot]
		}
		return o, o.writer != nil && o.generation == at.Generation
	}
	if o, current := find(); current {
		return o.writer
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	o, current := find()
	if current {
		return o.writer
	}
	if o.writer != nil && int32(at.Generation-o.generation) < 0 {
		return nil
	}
	former := *l.owners.Load()
	owners := make([]owner, max(len(former), int(at.Slot)+1))
	copy(owners, former)
	w := l.index.Endpoint(at.Slot)
	owners[at.Slot] = owner{at.Generation, w}
	l.owners.Store(&owners)
	return w
}

// add remembers that the endpoint holds the blocks of a chain.
func (l *learned) add(at epp.Endpoint, chain []uint64, now time.Time) {
	if w := l.writer(at); w != nil && len(chain) > 0 {
		w.Apply(now, []epp.BlockEvent{{Kind: epp.BlockStored, Hashes: chain, Keys: chain}})
	}
}

// OwnBlocks is how many blocks of endpoints our own picks have taught, at most
// Options.LearnBlocks; 0 without Options.Learn.
func (p *Picker) OwnBlocks() int {
	if p.learned == nil {
		return 0
	}
	return p.learned.index.Copies()
}

// match sets out[slot] to how many leading blocks of the chain the slot's
// endpoint is taken to hold.
func (l *learned) match(chain []uint64, now time.Time, out []uint32) {
	l.index.Advance(now)
	l.index.Match(chain, out)
}

// former takes back, by slot, what a match owes to endpoints that had their slots
// before those of the view: match becomes what heard says there.
func (l *learned) former(v epp.View, heard, match []epp.Match) {
	owners := *l.owners.Load()
	for i := range v.Endpoints {
		e := &v.Endpoints[i]
		if s := int(e.Slot); s < len(owners) && s < len(match) && owners[s].writer != nil && owners[s].generation != e.Generation {
			match[s] = heard[s]
		}
	}
}
