package kvindex

import (
	"math"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"epp.internal/epp"
	"epp.internal/epp/block"
)

// maxLanes bounds an endpoint's (tier, group) pairs. Engines have up to four
// tiers, and two or three groups that count.
const maxLanes = 64

// maxCopies bounds the copies of one block that an endpoint can have, and how
// often one of them can be there. Engines have one a tier and group, each as many
// times as requests computed it side by side.
const maxCopies = 256

// clearStep is how many copies a clear drops before it lets other writers on.
const clearStep = 4096

// Writer is one endpoint's side of the index. Its methods may be called from any
// goroutine; events take effect in the order of the calls.
type Writer struct {
	index *Index
	slot  epp.Slot

	turn sync.Mutex // held by Apply, Clear and Close; taken before index.mu

	// The following fields are guarded by index.mu.

	lanes      []*lane
	extra      map[uint32]uint32 // by place: copies beyond the first
	besides    map[uint32]besides
	copies     int          // entries of all lanes
	blocks     atomic.Int64 // different blocks held; read without the lock
	parked     parking
	joined     step        // the last one from a set to the one with this endpoint in it
	parted     step        // and from a set to the one without it
	lap        lap         // over this endpoint's copies alone
	incomplete atomic.Bool // read without the lock
	closed     bool
	counts     Counts
}

// step is a way from one set to another, as long as no set's number was given up
// since.
type step struct {
	from, to uint32
	epoch    int // of the sets, when it was made
}

// Apply applies events in order. now is the time of their arrival; the index
// keeps the latest that any writer brought. Events of unknown kind are counted
// as malformed, as are those whose tokens do not fit their hashes. It keeps
// nothing of events.
func (w *Writer) Apply(now time.Time, events []epp.BlockEvent) {
	w.turn.Lock()
	defer w.turn.Unlock()
	w.index.Advance(now)
	for i := range events {
		if events[i].Kind == epp.AllBlocksCleared {
			w.clear()
			continue
		}
		w.index.mu.Lock()
		w.apply(&events[i])
		w.index.unlock()
	}
}

func (w *Writer) apply(e *epp.BlockEvent) {
	if w.closed {
		return
	}
	l := w.lane(e.Tier, e.Group)
	switch {
	case l == nil:
		w.counts.Malformed++
	case e.Kind == epp.BlockStored && wellFormed(e):
		w.store(l, e)
	case e.Kind == epp.BlockRemoved:
		w.remove(l, e.Hashes)
	default:
		w.counts.Malformed++
	}
	w.index.settle()
}

// Clear drops all that the endpoint holds: it restarted, or its events begin
// anew after a gap. It makes an incomplete endpoint complete again.
func (w *Writer) Clear(now time.Time) {
	w.turn.Lock()
	defer w.turn.Unlock()
	w.index.Advance(now)
	w.clear()
}

// Close drops all that the endpoint holds and gives its slot free. What is
// called on the writer after that does nothing.
func (w *Writer) Close() {
	w.turn.Lock()
	defer w.turn.Unlock()
	w.clear()
	x := w.index
	x.mu.Lock()
	defer x.unlock()
	if !w.closed {
		w.closed = true
		x.counts.add(w.counts)
		delete(x.writers, w.slot)
	}
}

// Blocks returns how many different blocks the endpoint holds.
// It waits for nothing.
func (w *Writer) Blocks() int { return int(w.blocks.Load()) }

// Incomplete reports whether blocks that the endpoint announced were dropped, by
// a bound of ours, since it was last cleared. It waits for nothing.
func (w *Writer) Incomplete() bool { return w.incomplete.Load() }

// WriterStats are one endpoint's figures at one moment.
type WriterStats struct {
	Blocks     int // different blocks held
	Copies     int // (tier, group, engine hash) that hold them
	Parked     int // blocks that wait for a parent
	Incomplete bool
	Counts
}

// Stats returns the endpoint's figures.
func (w *Writer) Stats() WriterStats {
	w.index.mu.Lock()
	defer w.index.mu.Unlock()
	return WriterStats{int(w.blocks.Load()), w.copies, len(w.parked.blocks), w.incomplete.Load(), w.counts}
}

// Advance sets the index's clock to now, if that is later, and lets copies go whose
// time is over. Writers do it; whoever gives Options.TTL does it before a Match too.
// It waits for nobody.
func (x *Index) Advance(now time.Time) {
	seconds := uint32(min(max(now.Unix(), 0), math.MaxUint32))
	for {
		clock := x.clock.Load()
		if seconds <= clock || x.clock.CompareAndSwap(clock, seconds) {
			x.lapse()
			return
		}
	}
}

// lane returns the lane of a tier and group, made if need be, or nil where the
// endpoint has too many.
func (w *Writer) lane(tier string, group int) *lane {
	for _, l := range w.lanes {
		if l.group == group && l.tier == tier {
			return l
		}
	}
	if len(w.lanes) == maxLanes {
		return nil
	}
	l := &lane{tier: strings.Clone(tier), group: group, depth: depthOf(tier), seed: uint64(w.index.options.Key)}
	if w.index.ttl > 0 {
		l.stored = []uint32{}
	}
	w.lanes = append(w.lanes, l)
	return l
}

// wellFormed reports whether a BlockStored says of each of its blocks what is
// needed to hash it.
func wellFormed(e *epp.BlockEvent) bool {
	n := len(e.Hashes)
	if e.Keys != nil {
		return n > 0 && len(e.Keys) == n && len(e.Tokens) == 0
	}
	return n > 0 && e.BlockTokens > 0 &&
		len(e.Tokens)%n == 0 && len(e.Tokens)/n == e.BlockTokens &&
		(e.Media == nil || len(e.Media) == n)
}

// store stores the blocks of e. Where the parent is not known, blocks are parked
// up to the first that is known itself: an engine may announce again what it
// holds, and its name for a block stands for the whole path.
func (w *Writer) store(l *lane, e *epp.BlockEvent) {
	if e.Keys != nil {
		w.storeKeyed(l, e)
		return
	}
	x := w.index
	var own uint64
	var place uint32
	i, slot := 0, 0
	if !e.HasParent {
		own = x.options.Key.Root(block.Root{Adapter: e.Adapter, Salt: e.Salt, BlockTokens: e.BlockTokens})
	} else if _, place = l.find(e.Parent); place != 0 {
		own = x.nodes.at(place).hash.Load()
	} else {
		parent := e.Parent
		for ; ; i++ {
			if i == len(e.Hashes) {
				return
			}
			if slot, place = l.find(e.Hashes[i]); place != 0 {
				break
			}
			tokens, media := blockOf(e, i)
			w.park(parkedKey{l, e.Hashes[i]}, parkedBlock{parent: parent, tokens: tokens, media: media})
			parent = e.Hashes[i]
		}
		n := x.nodes.at(place)
		own = n.hash.Load()
		n.touch(x.clock.Load())
		w.holdAgain(l, slot, e.Hashes[i])
		i++
	}
	for ; i < len(e.Hashes); i += warmBlocks {
		hashes := e.Hashes[i:min(i+warmBlocks, len(e.Hashes))]
		former := own
		var space [warmBlocks]uint64
		chain := appendOwn(space[:0], own, e, i, len(hashes))
		own = chain[len(chain)-1]
		w.warm(l, hashes)
		for j, hash := range hashes {
			if place = w.hold(l, hash, chain[j], parent{place, former}); place == 0 {
				w.counts.Refused += uint64(len(e.Hashes) - i - j)
				w.incomplete.Store(true)
				return
			}
			former = chain[j]
			if len(w.parked.blocks) > 0 {
				w.unpark(l, hash, parent{place, former})
			}
		}
	}
}

// appendOwn appends our hashes of n blocks of e, from block i on, after parent.
func appendOwn(dst []uint64, parent uint64, e *epp.BlockEvent, i, n int) []uint64 {
	if e.Media == nil {
		return block.AppendChain(dst, parent, e.Tokens[i*e.BlockTokens:(i+n)*e.BlockTokens], e.BlockTokens)
	}
	for ; n > 0; n-- {
		tokens, media := blockOf(e, i)
		parent = block.ExtendMedia(parent, media, tokens)
		dst = append(dst, parent)
		i++
	}
	return dst
}

// blockOf returns what block i of e is made of.
func blockOf(e *epp.BlockEvent, i int) (tokens []uint32, media string) {
	if e.Media != nil {
		media = e.Media[i]
	}
	return e.Tokens[i*e.BlockTokens : (i+1)*e.BlockTokens], media
}

// parent is the block before another: its place and our hash of it. The place is
// 0 for a prompt's first block.
type parent struct {
	place uint32
	hash  uint64
}

// of returns the parent's place, or 0 if it is not there any more: a lap may
// have dropped it.
func (p parent) of(x *Index) uint32 {
	if p.place != 0 && x.holds(p.place, p.hash) {
		return p.place
	}
	return 0
}

// hold adds the copy with this engine hash of the block with this hash of ours,
// and returns the block's place, or 0 where a bound forbids it.
func (w *Writer) hold(l *lane, hash, own uint64, before parent) uint32 {
	x := w.index
	if x.lap.on || w.lap.on {
		x.step(&x.lap, lapSteps)
		x.step(&w.lap, lapSteps)
	}
	slot, place := l.find(hash)
	if place != 0 {
		if n := x.nodes.at(place); n.hash.Load() == own {
			n.touch(x.clock.Load())
			w.holdAgain(l, slot, hash)
			return place
		}
		w.drop(l, slot) // the engine gave its name to another block
		w.counts.Removed++
		slot, _ = l.find(hash)
	}
	if l.full() || w.copies >= nearly(x.most) || x.copies >= nearly(x.options.MaxCopies) {
		if !w.makeRoom(l) {
			return 0
		}
		slot, _ = l.find(hash)
	}
	after := before.of(x)
	if place = x.placeOf(own, after); place == 0 {
		to := w.join(0)
		if place = x.plant(own, to, after); place == 0 {
			x.abandon(to)
			return 0
		}
		w.blocks.Add(1)
	} else if !w.share(place) {
		return 0
	}
	l.put(slot, hash, place, x.clock.Load())
	w.shift(place, l.depth, 1)
	w.copies++
	x.copies++
	w.counts.Stored++
	return place
}

// share adds a copy to a block that some endpoint holds, or returns false where a
// bound forbids it.
func (w *Writer) share(place uint32) bool {
	x := w.index
	n := x.nodes.at(place)
	n.touch(x.clock.Load())
	if x.sets.at(n.set()).has(w.slot) {
		if w.extra[place] == maxCopies-1 {
			return false
		}
		if w.extra == nil {
			w.extra = map[uint32]uint32{}
		}
		if w.extra[place]++; w.extra[place] == 1 {
			x.bytes += mapEntryBytes
		}
		return true
	}
	to := w.join(n.set())
	if x.bytes > x.options.MaxBytes {
		x.abandon(to)
		return false
	}
	x.change(n, to)
	w.blocks.Add(1)
	return true
}

// holdAgain counts that a copy is there once more: requests that compute the same
// tokens side by side each store a block of them, and each of these is removed for
// itself. Where a bound forbids it the copy is there as often as before, and where
// copies go by themselves its time begins anew instead.
//
// Source: vllm/v1/core/block_pool.py, BlockHashToBlockMap.
func (w *Writer) holdAgain(l *lane, slot int, hash uint64) {
	w.counts.Duplicates++
	if l.stored != nil {
		l.stored[slot] = w.index.clock.Load()
		return
	}
	n := l.again[hash]
	switch {
	case n == maxCopies-1:
		return
	case n == 0:
		if w.index.bytes+mapEntryBytes > w.index.options.MaxBytes {
			return
		}
		if l.again == nil {
			l.again = map[uint64]uint32{}
		}
		w.index.bytes += mapEntryBytes
	}
	l.again[hash] = n + 1
}

// removeAgain takes back what holdAgain counted, and returns false where the copy
// is there no more than once.
func (w *Writer) removeAgain(l *lane, hash uint64) bool {
	switch n := l.again[hash]; n {
	case 0:
		return false
	case 1:
		delete(l.again, hash)
		w.index.bytes -= mapEntryBytes
	default:
		l.again[hash] = n - 1
	}
	return true
}

// join returns the number of the set that has this endpoint besides those in
// from.
func (w *Writer) join(from uint32) uint32 {
	return w.take(&w.joined, from)
}

// take returns where s leads to from a set, and makes it a step from there where
// it is not.
func (w *Writer) take(s *step, from uint32) uint32 {
	if s.to == 0 || s.from != from || s.epoch != w.index.sets.epoch {
		w.find(s, from)
	}
	return s.to
}

func (w *Writer) find(s *step, from uint32) {
	x := w.index
	to, grown := x.sets.get(from, w.slot)
	x.bytes += grown
	*s = step{from, to, x.sets.epoch}
}

// remove removes copies, or what is parked under their names.
func (w *Writer) remove(l *lane, hashes []uint64) {
	for i, hash := range hashes {
		if i%warmBlocks == 0 {
			w.warm(l, hashes[i:min(i+warmBlocks, len(hashes))])
		}
		slot, place := l.find(hash)
		switch {
		case len(l.again) > 0 && w.removeAgain(l, hash):
		case place != 0:
			w.drop(l, slot)
			w.counts.Removed++
		case w.unparkOnly(parkedKey{l, hash}):
		default:
			w.counts.UnknownRemovals++
		}
	}
	w.shrink(l)
}

// warmBlocks is how many blocks warm reads ahead. It is a guess: a core has room
// for about as many loads on their way.
const warmBlocks = 16

// warm reads where the blocks with these engine hashes have their copies, one
// load not waiting for another. One block after another would wait for memory at
// each: BenchmarkStoreRemove.
func (w *Writer) warm(l *lane, hashes []uint64) {
	if len(l.copies) == 0 {
		return
	}
	var sum uint32
	for _, hash := range hashes {
		sum += l.copies[l.first(hash)].place
	}
	w.index.warmed += sum
}

// drop removes the copy in a slot of l, however often it is there, and the
// endpoint from its block if that was the last copy.
func (w *Writer) drop(l *lane, slot int) {
	place := l.copies[slot].place
	if len(l.again) > 0 {
		if hash := l.copies[slot].hash(); l.again[hash] > 0 {
			delete(l.again, hash)
			w.index.bytes -= mapEntryBytes
		}
	}
	l.remove(slot)
	w.shift(place, l.depth, -1)
	w.copies--
	w.index.copies--
	extra := uint32(0)
	if len(w.extra) > 0 {
		extra = w.extra[place]
	}
	switch extra {
	case 0:
		w.leave(place)
	case 1:
		delete(w.extra, place)
		w.index.bytes -= mapEntryBytes
	default:
		w.extra[place]--
	}
}

// leave takes the endpoint out of a block's set, if it is in it.
func (w *Writer) leave(place uint32) {
	x := w.index
	n := x.nodes.at(place)
	if n == nil || !n.live() {
		return
	}
	s := x.sets.at(n.set())
	if !s.has(w.slot) {
		return
	}
	to := uint32(0)
	if s.n > 1 {
		to = w.take(&w.parted, n.set())
	}
	x.change(n, to)
	if to == 0 {
		x.uproot(place)
	}
	w.blocks.Add(-1)
}

// shrink gives back slots of a lane that is less than a quarter full.
func (w *Writer) shrink(l *lane) {
	former := len(l.copies)
	if n := laneSize(l.live); l.live*4 < former && n < former {
		l.resize(n)
		w.index.bytes -= (former - n) * w.index.slot
	}
}

// laneSize is how many slots a lane gets for so many copies: half as many more as
// it had, where it was full.
func laneSize(copies int) int { return copies + copies*7/8 + laneMinSlots }

// clear drops everything, in steps. What is left in the lanes between two steps
// is out of reach of a lap, and a copy that is dropped twice does no harm: leave
// looks whether the endpoint is in the set, and only this writer can put it in.
func (w *Writer) clear() {
	x := w.index
	x.mu.Lock()
	defer x.unlock()
	lanes := w.lanes
	w.lanes = nil
	x.bytes -= len(w.extra)*mapEntryBytes + w.parked.bytes
	w.extra = nil
	w.forgetBesides()
	w.parked = parking{}
	w.incomplete.Store(false)
	for _, l := range lanes {
		x.bytes -= len(l.again) * mapEntryBytes
		l.again = nil
		for i, c := range l.copies {
			if i%clearStep == clearStep-1 {
				x.unlock()
				x.mu.Lock()
			}
			if c.place != 0 {
				w.leave(c.place)
				w.copies--
				x.copies--
				w.counts.Removed++
			}
		}
		x.bytes -= len(l.copies) * x.slot
	}
}
