package kvindex

import (
	"math"
	"sync"
	"sync/atomic"
	"time"

	"epp.internal/epp"
	"epp.internal/epp/block"
)

// The defaults and lower bounds of Options.
const (
	// DefaultMaxBytes has room for about 25 million blocks held by one endpoint
	// each (BenchmarkBytes).
	DefaultMaxBytes = 1 << 30
	// MinMaxBytes is the least that MaxBytes can be set to: a chunk of nodes is
	// 65 KiB, and below a few of them the bound would be all there is.
	MinMaxBytes = 1 << 20
	// DefaultMaxParkedBlocks is a guess: events arrive in order, so blocks wait
	// for a parent only after a gap or a late subscription.
	DefaultMaxParkedBlocks = 4096
	// DefaultMaxEndpointShare is a guess: four liars fill the index, one does not.
	DefaultMaxEndpointShare = 0.25
)

// Options are an index's settings. A zero field stands for its default.
type Options struct {
	// Key is the key under which the chains that will be looked up are hashed.
	Key block.Key
	// MaxBytes bounds the memory of the index, everything counted; at least
	// MinMaxBytes.
	MaxBytes int
	// MaxParkedBlocks bounds the blocks of one endpoint that wait for a parent.
	MaxParkedBlocks int
	// MaxEndpointShare, in (0, 1], bounds one endpoint's part of MaxBytes.
	MaxEndpointShare float64
	// MaxCopies bounds the copies of all endpoints together. 0: MaxBytes alone does.
	MaxCopies int
	// TTL is for what nobody takes back: a copy goes when it was not stored again for
	// so long, rounded up to a second, give or take a 32nd of it, and is there once
	// however often it was stored. 0: copies stay until they are removed.
	TTL time.Duration
	// Tiers are what blocks beside the GPU are worth.
	Tiers Tiers
}

func (o Options) withDefaults() Options {
	if o.MaxBytes == 0 {
		o.MaxBytes = DefaultMaxBytes
	}
	o.MaxBytes = min(max(o.MaxBytes, MinMaxBytes), chunkBytes*(math.MaxInt32/chunkNodes))
	if o.MaxParkedBlocks <= 0 {
		o.MaxParkedBlocks = DefaultMaxParkedBlocks
	}
	if !(o.MaxEndpointShare > 0 && o.MaxEndpointShare <= 1) {
		o.MaxEndpointShare = DefaultMaxEndpointShare
	}
	if o.MaxCopies <= 0 {
		o.MaxCopies = math.MaxInt
	}
	o.Tiers = o.Tiers.withDefaults()
	return o
}

// Index is the prefix tree. Its methods may be called from any goroutine.
type Index struct {
	options Options
	clock   atomic.Uint32 // the latest time a writer brought, in Unix seconds
	ttl     uint32        // seconds; 0: copies stay
	swept   atomic.Uint32 // when the last sweep ended
	nodes   arena
	table   table
	sets    sets

	// generation changes before a node's place is used again that was given up, and
	// when a set's number is given up.
	generation atomic.Uint64
	// slow counts the blocks of which an endpoint has a copy beside its GPU, once
	// for each endpoint.
	slow atomic.Int64
	// shown are figures as the last writer's turn left them, for who must not wait
	// for one.
	shown struct{ nodes, copies, bytes atomic.Int64 }

	mu      sync.Mutex // guards the following fields, and all but atomics above
	given   bool       // places were given up since the generation changed
	most    int        // copies that one endpoint may have
	slot    int        // bytes of a lane's slot
	bytes   int
	copies  int // of all writers
	writers map[epp.Slot]*Writer
	lap     lap
	sweep   lap    // over the copies whose time is over
	counts  Counts // of the writers that are closed
	warmed  uint32 // means nothing: where warm's loads go
}

// New returns an empty index.
func New(o Options) *Index {
	x := &Index{options: o.withDefaults(), writers: map[epp.Slot]*Writer{}}
	x.most = int(float64(x.options.MaxBytes) * x.options.MaxEndpointShare / copyBytes)
	if x.slot = laneSlotBytes; o.TTL > 0 {
		x.ttl = uint32(min((o.TTL+time.Second-1)/time.Second, math.MaxInt32))
		x.slot += storedBytes
	}
	x.nodes.init(x.options.MaxBytes)
	x.sets.init(x.options.MaxBytes, uint64(x.options.Key))
	x.table.init()
	x.bytes = x.nodes.fixedBytes() + x.sets.fixedBytes() + x.table.fixedBytes()
	x.shown.bytes.Store(int64(x.bytes))
	return x
}

// Match sets out[slot] to how many leading blocks of chain the slot's endpoint
// holds, for all slots below len(out), and returns how many leading blocks at
// least one of these endpoints holds. The chain's hashes are in order from the
// root, of one block size.
//
// It takes no lock and allocates nothing; its cost is that of the blocks some
// endpoint holds in a row, it ends with the first one that none does. A block
// that is stored or removed meanwhile counts or does not.
func (x *Index) Match(chain []uint64, out []uint32) int {
	clear(out)
	t := tally{out: out}
	now := x.clock.Load()
	var place uint32
	i := 0
	for i < len(chain) {
		// The next block of the run, or the head of another one.
		var at look
		if place != 0 {
			at = x.read(place+1, chain[i])
		}
		if at.set == nil {
			at = x.find(chain[i])
		}
		if at.set == nil {
			break
		}
		if !t.next(at.set, uint32(i)) {
			return i
		}
		at.node.touch(now)
		place = at.place
		i++
		n := x.follow(&at, chain[i:], now)
		place += uint32(n)
		i += n
	}
	t.end(uint32(i))
	return i
}

// look is what a reader has seen of a block: its place and its set, which held
// together in this generation. The set is nil where nobody holds the block.
type look struct {
	node       *node
	set        *set
	place      uint32
	number     uint32 // of the set
	generation uint64
}

// followBlocks is how many blocks follow trusts to one generation. More would be
// read in vain more often while there are writers, fewer cost more. It is a guess.
const followBlocks = 32

// follow returns how many blocks of chain lie behind the one that was seen, in
// its run, and have the same set. As long as the generation is the same, its
// number is the same set, and there is nothing to do but compare.
func (x *Index) follow(at *look, chain []uint64, now uint32) int {
	nodes := x.nodes.from(at.place)
	if len(nodes) > 0 {
		nodes = nodes[1:min(len(nodes), len(chain)+1)]
	}
	done := 0
	for {
		n := alike(nodes[done:min(len(nodes), done+followBlocks)], chain[done:], state(now, at.number))
		if x.generation.Load() != at.generation {
			return done
		}
		if done += n; n < followBlocks {
			return done
		}
	}
}

// alike returns how many nodes in a row have these hashes, and the set of the
// state, and gives them its stamp. There are hashes for all.
func alike(nodes []node, hashes []uint64, want uint64) int {
	hashes = hashes[:len(nodes)]
	n := 0
	for {
		for n < len(nodes) && nodes[n].state.Load() == want && nodes[n].hash.Load() == hashes[n] {
			n++
		}
		if n == len(nodes) || nodes[n].set() != uint32(want) || nodes[n].hash.Load() != hashes[n] {
			return n
		}
		nodes[n].touch(uint32(want >> 32)) // its stamp is older: that was all
		n++
	}
}

// read looks at the node at a place, if it is the block with this hash.
func (x *Index) read(place uint32, hash uint64) look {
	n := x.nodes.at(place)
	if n == nil {
		return look{}
	}
	for {
		generation := x.generation.Load()
		number := n.set()
		if number == 0 || n.hash.Load() != hash {
			return look{}
		}
		s := x.sets.at(number)
		if x.generation.Load() == generation {
			return look{n, s, place, number, generation}
		}
	}
}

// find looks the head of a run up in the table.
func (x *Index) find(hash uint64) look {
	slots := *x.table.shard(hash).slots.Load()
	tag := tag(hash)
	for i := first(tag<<32, len(slots)); ; i = next(i, len(slots)) {
		entry := slots[i].Load()
		if entry == 0 {
			return look{}
		}
		if entry>>32 == tag && entry != gone {
			if at := x.read(uint32(entry), hash); at.set != nil {
				return at
			}
		}
	}
}

// placeOf looks a block up, behind its parent or in the table, for a writer: it
// returns its place, or 0. after is the parent's place, or 0 for a prompt's first
// block. x.mu is held.
func (x *Index) placeOf(hash uint64, after uint32) uint32 {
	if after != 0 && x.holds(after+1, hash) {
		return after + 1
	}
	return x.headOf(hash)
}

// headOf returns the place of a block that is the head of a run, or 0. x.mu is held.
func (x *Index) headOf(hash uint64) uint32 {
	slots := *x.table.shard(hash).slots.Load()
	tag := tag(hash)
	for i := first(tag<<32, len(slots)); ; i = next(i, len(slots)) {
		entry := slots[i].Load()
		if entry == 0 {
			return 0
		}
		if entry>>32 == tag && entry != gone && x.holds(uint32(entry), hash) {
			return uint32(entry)
		}
	}
}

// holds reports whether the node at place is the block with this hash.
func (x *Index) holds(place uint32, hash uint64) bool {
	n := x.nodes.at(place)
	return n != nil && n.hash.Load() == hash && n.live()
}

// Endpoint opens a slot's side of the index. A slot has one writer at a time:
// the one that was open is closed first, and its blocks go.
func (x *Index) Endpoint(slot epp.Slot) *Writer {
	w := &Writer{index: x, slot: slot}
	for {
		x.mu.Lock()
		former := x.writers[slot]
		if former == nil {
			x.writers[slot] = w
			x.mu.Unlock()
			return w
		}
		x.mu.Unlock()
		former.Close()
	}
}

// Counts are totals of what happened to KV events, since the writer was opened
// or, of an index, since it was made.
type Counts struct {
	Stored          uint64 // copies that were new
	Removed         uint64 // copies that an event removed, or a clear
	Duplicates      uint64 // copies announced again
	UnknownRemovals uint64 // removals of what was not known
	Parked          uint64 // blocks that had to wait for a parent
	ParkedDropped   uint64 // of those, dropped by MaxParkedBlocks
	Evicted         uint64 // copies dropped by MaxBytes, MaxEndpointShare or MaxCopies
	Refused         uint64 // blocks not stored, by the same
	Lapsed          uint64 // copies whose Options.TTL was over
	Malformed       uint64 // events that could not be right, and were left out
}

func (c *Counts) add(d Counts) {
	c.Stored += d.Stored
	c.Removed += d.Removed
	c.Duplicates += d.Duplicates
	c.UnknownRemovals += d.UnknownRemovals
	c.Parked += d.Parked
	c.ParkedDropped += d.ParkedDropped
	c.Evicted += d.Evicted
	c.Refused += d.Refused
	c.Lapsed += d.Lapsed
	c.Malformed += d.Malformed
}

// Stats are an index's figures at one moment.
type Stats struct {
	Nodes  int // blocks that some endpoint holds
	Copies int // (endpoint, tier, group, engine hash) that hold them
	Parked int // blocks that wait for a parent
	Sets   int // different sets of endpoints
	Bytes  int // memory in use, by our own count; see Index.Bytes
	Counts
}

// Stats returns the figures of all endpoints together.
func (x *Index) Stats() Stats {
	x.mu.Lock()
	defer x.mu.Unlock()
	s := Stats{Nodes: x.nodes.live, Copies: x.copies, Sets: x.sets.live, Bytes: x.bytes, Counts: x.counts}
	for _, w := range x.writers {
		s.Parked += len(w.parked.blocks)
		s.add(w.counts)
	}
	return s
}

// unlock ends a writer's turn.
func (x *Index) unlock() {
	x.shown.nodes.Store(int64(x.nodes.live))
	x.shown.copies.Store(int64(x.copies))
	x.shown.bytes.Store(int64(x.bytes))
	x.mu.Unlock()
}

// Nodes returns how many different blocks the endpoints hold. Like Copies and Bytes
// it waits for nobody: it is of the last event, or of a step of a long one.
func (x *Index) Nodes() int { return int(x.shown.nodes.Load()) }

// Copies returns how many copies of blocks the endpoints have.
func (x *Index) Copies() int { return int(x.shown.copies.Load()) }

// Bytes returns the memory of the index by its own count: the capacity of its
// tables, and an estimate for Go's maps. It stays within Options.MaxBytes, but
// for what a removal may need (a new set, a table made anew).
func (x *Index) Bytes() int { return int(x.shown.bytes.Load()) }
