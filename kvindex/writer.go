package kvindex

import (
	"math"
	"slices"
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
	blocks     int          // different blocks held
	shown      atomic.Int64 // blocks, as the last turn left them: read without the lock
	parked     parking
	joined     step        // the last one from a set to the one with this endpoint in it
	parted     step        // and from a set to the one without it
	lap        lap         // over this endpoint's copies alone
	incomplete atomic.Bool // read without the lock
	closed     bool
	counts     Counts
}

// step is a way from one set to another, as long as no set's number was given up
// since. The zero step leads nowhere: the empty set is never at both ends.
type step struct {
	from, to uint32
	epoch    int // of the sets, when it was made
}

// leads reports whether s is a step from a set, in this epoch.
func (s *step) leads(from uint32, epoch int) bool {
	return s.from == from && s.epoch == epoch && s.from|s.to != 0
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
		w.unlock()
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

// unlock ends a turn.
func (w *Writer) unlock() {
	w.shown.Store(int64(w.blocks))
	w.index.unlock()
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
func (w *Writer) Blocks() int { return int(w.shown.Load()) }

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
	return WriterStats{w.blocks, w.copies, len(w.parked.blocks), w.incomplete.Load(), w.counts}
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
	before := parent{place, own}
	for n := 0; i < len(e.Hashes); i += n {
		hashes := e.Hashes[i:min(i+warmBlocks, len(e.Hashes))]
		var space [warmBlocks]uint64
		chain := appendOwn(space[:0], before.hash, e, i, len(hashes))
		if n, before = w.holdAll(l, hashes, chain, before); n < len(hashes) {
			w.refuse(len(e.Hashes) - i - n)
			return
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

// holdAll holds up to warmBlocks blocks that follow one another, the first behind
// before: hashes are the engine's, chain has ours. It returns how many it held, which
// are less than all where a bound forbids one, and the last of them.
func (w *Writer) holdAll(l *lane, hashes, chain []uint64, before parent) (n int, last parent) {
	var begins [warmBlocks]uint32
	w.warm(l, hashes, &begins)
	if w.roomy(l, len(hashes)) {
		n, before = w.holdNew(l, hashes, chain, before, &begins)
	}
	for ; n < len(hashes); n++ {
		place := w.hold(l, hashes[n], chain[n], before)
		if place == 0 {
			break
		}
		before = parent{place, chain[n]}
		if len(w.parked.blocks) > 0 {
			w.unpark(l, hashes[n], before)
		}
	}
	return n, before
}

// roomy reports whether n more copies in l are far from every bound, no lap is on and
// no block waits for a parent: what hold does for each block beside holding it.
func (w *Writer) roomy(l *lane, n int) bool {
	x := w.index
	return !x.lap.on && !w.lap.on && len(w.parked.blocks) == 0 &&
		(l.live+n)*5 <= len(l.copies)*4 &&
		w.copies+n < nearly(x.most) && x.copies+n < nearly(x.options.MaxCopies) &&
		x.nodes.spare()-n >= x.nodes.chunks*chunkNodes/spareShare
}

// holdNew holds blocks, as holdAll says, up to the first whose engine hash l has
// already, or which a bound forbids. There is room for all. begins says where in l the
// search for each begins.
//
// It looks all blocks up that may be the heads of runs before it plants one: each node
// that is written is a barrier for the loads that follow.
func (w *Writer) holdNew(l *lane, hashes, chain []uint64, before parent, begins *[warmBlocks]uint32) (n int, last parent) {
	x := w.index
	now := x.clock.Load()
	after := before.of(x)
	var heads [warmBlocks]uint32
	ahead := after == 0 || !x.holds(after+1, chain[0])
	if ahead {
		for i, own := range chain {
			heads[i] = x.headOf(own)
		}
	}
	for n < len(hashes) {
		if ahead && after != 0 {
			if m := w.sow(l, hashes[n:], chain[n:], after+1, begins[n:], heads[n:]); m > 0 {
				n += m
				after += uint32(m)
				continue
			}
		}
		slot, place := l.findFrom(int(begins[n]), hashes[n])
		if place != 0 {
			break
		}
		switch {
		case after != 0 && x.holds(after+1, chain[n]):
			place = after + 1
		case ahead:
			place = heads[n]
		default:
			place = x.headOf(chain[n])
		}
		if place != 0 {
			if !w.share(place) {
				break
			}
		} else {
			if place = w.plant(chain[n], after); place == 0 {
				break
			}
			// heads does not have it.
			ahead = ahead && !slices.Contains(chain[n+1:], chain[n])
		}
		l.put(slot, hashes[n], place, now)
		w.shift(place, l.depth, 1)
		after = place
		n++
	}
	w.copies += n
	x.copies += n
	w.counts.Stored += uint64(n)
	if n == 0 {
		return 0, before
	}
	return n, parent{after, chain[n-1]}
}

// sow makes a run of the leading blocks whose engine hashes l does not have, which are
// no heads and for which there are free places from place on, and returns how many.
func (w *Writer) sow(l *lane, hashes, chain []uint64, place uint32, begins, heads []uint32) (n int) {
	x := w.index
	now := x.clock.Load()
	room := x.nodes.freeRun(place)
	for n < len(hashes) && n < room && heads[n] == 0 {
		slot, known := l.findFrom(int(begins[n]), hashes[n])
		if known != 0 {
			break
		}
		l.put(slot, hashes[n], place+uint32(n), now)
		if l.depth != near {
			w.shift(place+uint32(n), l.depth, 1)
		}
		n++
	}
	if n > 0 {
		x.sow(place, chain[:n], w.join(0))
		w.blocks += n
	}
	return n
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
		if w.drop(l, slot) { // the engine gave its name to another block
			x.uproot(run{place, 1})
		}
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
	if place = x.placeOf(own, after); place != 0 {
		if !w.share(place) {
			return 0
		}
	} else if place = w.plant(own, after); place == 0 {
		return 0
	}
	l.put(slot, hash, place, x.clock.Load())
	w.shift(place, l.depth, 1)
	w.copies++
	x.copies++
	w.counts.Stored++
	return place
}

// plant makes a node for a block that nobody holds and returns its place, or 0 where
// a bound forbids it. after is the place of the block's parent, or 0.
func (w *Writer) plant(own uint64, after uint32) uint32 {
	to := w.join(0)
	place := w.index.plant(own, to, after)
	if place == 0 {
		w.index.abandon(to)
		return 0
	}
	w.blocks++
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
	w.blocks++
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
	if !w.joined.leads(from, w.index.sets.epoch) {
		w.find(&w.joined, from)
	}
	return w.joined.to
}

// find makes s the step from a set to the one that differs from it by this endpoint.
func (w *Writer) find(s *step, from uint32) {
	x := w.index
	to, grown := x.sets.get(from, w.slot)
	x.bytes += grown
	*s = step{from, to, x.sets.epoch}
}

// remove removes copies, or what is parked under their names. Nodes that nobody holds
// any more go run by run.
func (w *Writer) remove(l *lane, hashes []uint64) {
	var begins [warmBlocks]uint32
	var left run
	for len(hashes) > 0 {
		batch := hashes[:min(warmBlocks, len(hashes))]
		hashes = hashes[len(batch):]
		w.warm(l, batch, &begins)
		for i, hash := range batch {
			slot, place := l.findFrom(int(begins[i]), hash)
			switch {
			case len(l.again) > 0 && w.removeAgain(l, hash):
			case place != 0:
				w.counts.Removed++
				if w.drop(l, slot) && !left.extend(place) {
					w.index.uproot(left)
					left = run{place, 1}
				}
			case w.unparkOnly(parkedKey{l, hash}):
			default:
				w.counts.UnknownRemovals++
			}
		}
	}
	w.index.uproot(left)
	w.shrink(l)
}

// warmBlocks is how many blocks warm reads ahead. It is a guess: a core has room
// for about as many loads on their way.
const warmBlocks = 16

// warm reads where the blocks with these engine hashes have their copies, one
// load not waiting for another, and says in slots where the search for each begins.
// One block after another would wait for memory at each: BenchmarkStoreRemove.
func (w *Writer) warm(l *lane, hashes []uint64, begins *[warmBlocks]uint32) {
	if len(l.copies) == 0 {
		return
	}
	var sum uint32
	for i, hash := range hashes {
		slot := l.first(hash)
		begins[i] = uint32(slot)
		sum += l.copies[slot].place
	}
	w.index.warmed += sum
}

// drop removes the copy in a slot of l, however often it is there, and the
// endpoint from its block if that was the last copy. It reports whether that was the
// last endpoint: then the caller uproots the block.
func (w *Writer) drop(l *lane, slot int) (last bool) {
	place := l.copies[slot].place
	if len(l.again) > 0 {
		if hash := l.copies[slot].hash(); l.again[hash] > 0 {
			delete(l.again, hash)
			w.index.bytes -= mapEntryBytes
		}
	}
	l.remove(slot)
	if l.depth != near {
		w.shift(place, l.depth, -1)
	}
	w.copies--
	w.index.copies--
	extra := uint32(0)
	if len(w.extra) > 0 {
		extra = w.extra[place]
	}
	switch extra {
	case 0:
		return w.leave(place)
	case 1:
		delete(w.extra, place)
		w.index.bytes -= mapEntryBytes
	default:
		w.extra[place]--
	}
	return false
}

// leave takes the endpoint out of a block's set, if it is in it, and reports whether it
// was the last one there: then the caller uproots the block.
func (w *Writer) leave(place uint32) (last bool) {
	x := w.index
	n := x.nodes.at(place)
	if n == nil {
		return false
	}
	if from := n.set(); !w.parted.leads(from, x.sets.epoch) {
		if from == 0 || !x.sets.at(from).has(w.slot) {
			return false
		}
		w.find(&w.parted, from)
	}
	to := w.parted.to
	x.change(n, to)
	w.blocks--
	return to == 0
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
	defer w.unlock()
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
				w.unlock()
				x.mu.Lock()
			}
			if c.place != 0 {
				if w.leave(c.place) {
					x.uproot(run{c.place, 1})
				}
				w.copies--
				x.copies--
				w.counts.Removed++
			}
		}
		x.bytes -= len(l.copies) * x.slot
	}
}
