package picker

import (
	"sync"
	"time"

	"epp.internal/epp"
)

// The defaults of learning from our own picks.
const (
	// DefaultLearnTTL is how long a prompt counts as cached where it ran. A guess:
	// an engine under load evicts within minutes.
	DefaultLearnTTL = 5 * time.Minute
	// DefaultLearnBlocks bounds the blocks that are remembered, one for each
	// endpoint that holds it: about 100 bytes each.
	DefaultLearnBlocks = 1 << 20
)

// learned is what our own picks have taught of the endpoints' caches, where the
// engines tell nothing: a prompt whose first token came is cached where it came
// from, for a while. It is a guess, and never more: an engine evicts in silence.
type learned struct {
	ttl time.Duration
	max int

	mu     sync.Mutex // guards the following fields
	blocks map[uint64][]holder
	// generation is, by slot, that of the endpoint that the blocks belong to.
	generation []uint32
	// queue is what to forget, in the order of its time; queue[head:] is live.
	queue []lapse
	head  int
}

// holder says that a slot's endpoint holds a block until then.
type holder struct {
	slot       epp.Slot
	generation uint32
	until      int64 // Unix nanoseconds
}

// lapse is a block of a slot to look at when its time is over.
type lapse struct {
	hash  uint64
	slot  epp.Slot
	until int64
}

func newLearned(opt *Options) *learned {
	if !opt.Learn {
		return nil
	}
	return &learned{ttl: opt.LearnTTL, max: opt.LearnBlocks, blocks: map[uint64][]holder{}}
}

// add remembers that the endpoint holds the blocks of a chain.
func (l *learned) add(at epp.Endpoint, chain []uint64, now time.Time) {
	until := now.Add(l.ttl).UnixNano()
	l.mu.Lock()
	defer l.mu.Unlock()
	for int(at.Slot) >= len(l.generation) {
		l.generation = append(l.generation, 0)
	}
	l.generation[at.Slot] = at.Generation
	for _, hash := range chain {
		holders := l.blocks[hash]
		i := 0
		for i < len(holders) && holders[i].slot != at.Slot {
			i++
		}
		if i < len(holders) {
			holders[i].generation, holders[i].until = at.Generation, until
			continue // its lapse is in the queue already
		}
		l.expire(now.UnixNano(), l.max-1)
		l.blocks[hash] = append(l.blocks[hash], holder{at.Slot, at.Generation, until})
		l.queue = append(l.queue, lapse{hash, at.Slot, until})
	}
}

// OwnBlocks is how many blocks of endpoints our own picks have taught, at most
// Options.LearnBlocks; 0 without Options.Learn.
func (p *Picker) OwnBlocks() int {
	l := p.learned
	if l == nil {
		return 0
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.queue) - l.head
}

// expire forgets what is over, and what is too much for the bound.
func (l *learned) expire(now int64, most int) {
	for n := len(l.queue) - l.head; n > 0 && (l.queue[l.head].until <= now || n > most); n-- {
		e := l.queue[l.head]
		l.head++
		holders := l.blocks[e.hash]
		for i := range holders {
			if holders[i].slot != e.slot {
				continue
			}
			if u := holders[i].until; u > now && n <= most { // it was seen again since
				l.queue = append(l.queue, lapse{e.hash, e.slot, u})
			} else if holders = append(holders[:i], holders[i+1:]...); len(holders) == 0 {
				delete(l.blocks, e.hash)
			} else {
				l.blocks[e.hash] = holders
			}
			break
		}
	}
	if l.head > 1024 && l.head > len(l.queue)/2 {
		l.queue = append(l.queue[:0], l.queue[l.head:]...)
		l.head = 0
	}
}

// match sets out[slot] to how many leading blocks of the chain the slot's
// endpoint is taken to hold.
func (l *learned) match(chain []uint64, now time.Time, out []uint32) {
	at := now.UnixNano()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.expire(at, l.max)
	clear(out)
	for i, hash := range chain {
		held := false
		for _, h := range l.blocks[hash] {
			if int(h.slot) < len(out) && out[h.slot] == uint32(i) && h.until > at && h.generation == l.generation[h.slot] {
				out[h.slot]++
				held = true
			}
		}
		if !held {
			break
		}
	}
}

// former takes back, by slot, what a match owes to endpoints that had their slots
// before those of the view: match becomes what heard says there.
func (l *learned) former(v epp.View, heard, match []epp.Match) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for i := range v.Endpoints {
		e := &v.Endpoints[i]
		if s := int(e.Slot); s < len(l.generation) && s < len(match) && l.generation[s] != e.Generation {
			match[s] = heard[s]
		}
	}
}
