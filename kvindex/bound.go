package kvindex

import (
	"maps"
	"math"
	"math/bits"
	"slices"
)

const (
	// lapSteps is how many copies a lap looks at for each block that is stored
	// meanwhile: a lap ends while the index grows by a thirty-second.
	lapSteps = 32
	// urgentSteps is the same where something waits for the room.
	urgentSteps = 64
	// lapShare is one over the part of the copies that a lap drops at most.
	lapShare = 4
	// copyBytes is what a block held by one endpoint costs (BenchmarkBytes); it
	// makes copies of MaxEndpointShare's bytes.
	copyBytes = 42
	// samples is how many stamps tell which copies a lap drops.
	samples = 512
)

// lap is one round of a hand over the copies of some endpoints. It drops those
// whose blocks were last stored or matched at the cutoff or before, until the
// quota is used up; or, in a sweep, those that were themselves stored then.
type lap struct {
	on      bool
	sweep   bool
	cutoff  uint32
	quota   int
	writers []*Writer // still to do, the first one being in work
	lane    int
	slot    int
}

// step moves the hand over n copies, if the lap is on.
func (x *Index) step(l *lap, n int) {
	for ; n > 0 && l.on; n-- {
		if len(l.writers) == 0 || l.quota <= 0 {
			*l = lap{}
			return
		}
		w := l.writers[0]
		if l.lane >= len(w.lanes) {
			l.writers, l.lane, l.slot = l.writers[1:], 0, 0
			continue
		}
		lane := w.lanes[l.lane]
		if l.slot >= len(lane.copies) {
			w.shrink(lane)
			l.lane, l.slot = l.lane+1, 0
			continue
		}
		place := lane.copies[l.slot].place
		if place == 0 {
			l.slot++
			continue
		}
		at := uint32(0)
		if l.sweep {
			at = lane.stored[l.slot]
		} else {
			at = x.nodes.at(place).stamp()
		}
		if at > l.cutoff {
			l.slot++
			continue
		}
		if w.drop(lane, l.slot) {
			x.uproot(run{place, 1})
		}
		w.shown.Store(int64(w.blocks))
		if l.quota--; l.sweep {
			w.counts.Lapsed++
			continue
		}
		w.counts.Evicted++
		w.incomplete.Store(true)
	}
}

// startLap starts a lap over all endpoints, if none is on.
func (x *Index) startLap() {
	if !x.lap.on {
		x.lap = lap{on: true, quota: x.copies/lapShare + 1, cutoff: quantile(x.stamps()), writers: x.everyone()}
	}
}

// everyone returns all writers, in no order: none is always the first.
func (x *Index) everyone() []*Writer { return slices.Collect(maps.Values(x.writers)) }

const (
	// ttlParts is one over the part of Options.TTL that lies between two sweeps, so that
	// a copy may live by as much longer, and by which it may live shorter, since who
	// stores it again within that time does not change when it goes. It is a guess.
	ttlParts = 32
	// sweepSteps is how many slots of lanes one Advance looks at, at least, and
	// sweepPart one over the part of all that it looks at if that is more: they lie side
	// by side, so that this takes some ten microseconds.
	sweepSteps = 4096
	sweepPart  = 64
)

// lapse goes on with the sweep over the copies whose time is over, if it is time
// for one and nobody else has the writers' turn.
func (x *Index) lapse() {
	now := x.clock.Load()
	if x.ttl == 0 || now < x.ttl || now-x.swept.Load() < max(1, x.ttl/ttlParts) || !x.mu.TryLock() {
		return
	}
	defer x.unlock()
	if !x.sweep.on {
		x.sweep = lap{on: true, sweep: true, quota: math.MaxInt, cutoff: now - x.ttl, writers: x.everyone()}
	}
	x.step(&x.sweep, max(sweepSteps, x.copies/sweepPart))
	x.settle()
	if !x.sweep.on {
		x.swept.Store(now)
	}
}

// startLap starts a lap over the endpoint's own copies, if none is on.
func (w *Writer) startLap() {
	if !w.lap.on {
		w.lap = lap{on: true, quota: w.copies/lapShare + 1, cutoff: quantile(w.stamps()), writers: []*Writer{w}}
	}
}

// stamps samples the blocks of all endpoints.
func (x *Index) stamps() []uint32 {
	each := max(1, samples/max(1, x.nodes.chunks))
	var stamps []uint32
	for i := range x.nodes.spine {
		c := x.nodes.spine[i].Load()
		if c == nil {
			continue
		}
		for j := range each {
			if n := &c[j*chunkNodes/each]; n.live() {
				stamps = append(stamps, n.stamp())
			}
		}
	}
	return stamps
}

// stamps samples the endpoint's blocks.
func (w *Writer) stamps() []uint32 {
	var stamps []uint32
	for _, l := range w.lanes {
		for i := 0; i < len(l.copies); i += 1 + len(l.copies)/samples {
			if place := l.copies[i].place; place != 0 {
				stamps = append(stamps, w.index.nodes.at(place).stamp())
			}
		}
	}
	return stamps
}

// quantile returns the stamp that a lapShare-th of the sample does not exceed.
func quantile(stamps []uint32) uint32 {
	if len(stamps) == 0 {
		return 0
	}
	slices.Sort(stamps)
	return stamps[len(stamps)/lapShare]
}

// nearly is the part of a bound from which on room is made.
func nearly(bound int) int { return bound - bound/16 }

// soft is where growth begins to start laps.
func (x *Index) soft() int { return nearly(x.options.MaxBytes) }

// grow books memory that is about to be allocated, if the bound allows it.
func (x *Index) grow(bytes int) bool {
	if x.bytes+bytes > x.soft() {
		x.startLap()
	}
	if x.bytes+bytes > x.options.MaxBytes {
		return false
	}
	x.bytes += bytes
	return true
}

// settle pays off what removals may have booked beyond the bound.
func (x *Index) settle() {
	if x.bytes > x.options.MaxBytes {
		x.startLap()
		x.step(&x.lap, urgentSteps)
	}
}

// makeRoom makes room for one more copy in l, if the bounds allow it.
func (w *Writer) makeRoom(l *lane) bool {
	x := w.index
	if all := x.options.MaxCopies; x.copies >= nearly(all) {
		x.startLap()
		if x.copies >= all {
			if x.step(&x.lap, urgentSteps); x.copies >= all {
				return false
			}
		}
	}
	most := x.most
	if w.copies >= nearly(most) {
		w.startLap()
	}
	if w.copies >= most {
		if x.step(&w.lap, urgentSteps); w.copies >= most {
			return false
		}
	}
	if !l.full() {
		return true
	}
	former, n := len(l.copies), laneSize(l.live)
	if x.grow(n * x.slot) {
		l.resize(n)
		x.bytes -= former * x.slot
		return true
	}
	w.startLap()
	x.step(&w.lap, urgentSteps)
	return !l.full()
}

// spareShare is one over the part of the nodes that is spare at least, as far as the
// bound allows: with less the search for a free one gets long.
const spareShare = 8

// plant makes a node for a block and returns its place, or 0 where the bound
// forbids it. after is the place of the block's parent, or 0 if that is not
// there.
func (x *Index) plant(hash uint64, set, after uint32) uint32 {
	place := after + 1
	next := after != 0 && x.nodes.free(place)
	if !next && !x.makeEntry(hash) {
		return 0
	}
	if spare := x.nodes.spare(); spare <= 0 {
		if !x.grow(chunkBytes) || !x.nodes.addChunk() {
			return 0
		}
	} else if spare < x.nodes.chunks*chunkNodes/spareShare && x.bytes+chunkBytes <= x.soft() && x.nodes.addChunk() {
		x.bytes += chunkBytes
	}
	// A new chunk may have made room behind the parent.
	if next = next || after != 0 && x.nodes.free(place); !next {
		place = x.nodes.search()
	}
	x.sow(place, []uint64{hash}, set)
	if !next {
		x.nodes.setHead(place)
		x.table.shard(hash).insert(hash, place)
	}
	return place
}

// makeEntry makes room for the head of a run in the table, if the bound allows it.
func (x *Index) makeEntry(hash uint64) bool {
	s := x.table.shard(hash)
	if !s.full() {
		return true
	}
	now, renewed := s.size()
	if renewed <= now {
		x.bytes += renewed * 8
	} else if !x.grow(renewed * 8) {
		return false
	}
	s.renew()
	x.bytes -= now * 8
	return true
}

// sow makes nodes for blocks that follow each other, from place on, where as many are
// free and spare, behind the parent of the first. None is in the table.
func (x *Index) sow(place uint32, hashes []uint64, set uint32) {
	x.nodes.take(run{place, uint32(len(hashes))})
	x.reuse()
	s := state(x.clock.Load(), set)
	for i, n := 0, x.nodes.from(place); i < len(hashes); i++ {
		n[i].hash.Store(hashes[i])
		n[i].state.Store(s) // after the hash: a reader reads them the other way round
	}
	x.sets.records[set].nodes += len(hashes)
}

// reuse is to be called before a place is written that was given up.
func (x *Index) reuse() {
	if x.given {
		x.given = false
		x.generation.Add(1)
	}
}

// uproot frees the nodes of blocks that no endpoint holds.
func (x *Index) uproot(r run) {
	if r.n == 0 {
		return
	}
	x.given = true
	x.behead(r.place + r.n)
	for r.n > 0 {
		word := run{r.place, min(r.n, 64-r.place%64)}
		for heads := x.nodes.headsOf(word); heads != 0; heads &= heads - 1 {
			x.unlist(word.place&^63 + uint32(bits.TrailingZeros64(heads)))
		}
		if x.nodes.give(word) {
			x.bytes -= chunkBytes
		}
		r.place, r.n = r.place+word.n, r.n-word.n
	}
}

// unlist takes the head of a run out of the table.
func (x *Index) unlist(place uint32) {
	hash := x.nodes.at(place).hash.Load()
	s := x.table.shard(hash)
	s.remove(hash, place)
	if now, renewed := s.size(); renewed*4 < now {
		s.renew()
		x.bytes -= (now - renewed) * 8
	}
}

// behead makes the node at place the head of a run of its own, if it is in the
// run of the node before, which is about to go.
func (x *Index) behead(place uint32) {
	n := x.nodes.at(place)
	if n == nil || !n.live() || x.nodes.isHead(place) {
		return
	}
	s := x.table.shard(n.hash.Load())
	if s.full() {
		now, renewed := s.size()
		s.renew()
		x.bytes += (renewed - now) * 8
	}
	x.nodes.setHead(place)
	s.insert(n.hash.Load(), place)
}

// change gives a node another set, or none.
func (x *Index) change(n *node, to uint32) {
	was := n.state.Load()
	if to != 0 {
		x.sets.records[to].nodes++
	}
	n.state.Store(state(uint32(was>>32), to))
	x.release(uint32(was))
}

// release ends one node's use of a set.
func (x *Index) release(set uint32) {
	r := &x.sets.records[set]
	if r.nodes--; r.nodes == 0 {
		x.generation.Add(1)
		x.bytes -= x.sets.drop(set)
	}
}

// abandon gives up a set that was made for a block and that no block got.
func (x *Index) abandon(set uint32) {
	if x.sets.records[set].nodes == 0 {
		x.generation.Add(1)
		x.bytes -= x.sets.drop(set)
	}
}
