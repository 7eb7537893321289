package kvindex

import (
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"epp.internal/epp"
	"epp.internal/epp/block"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const testKey = block.Key(11)

// special numbers a chain that no loop's counter reaches.
const special uint64 = 1<<32 - 1

// chainEvent stores a chain of n blocks of one token each that no other number
// has, and removeEvent removes it, last block first.
func chainEvent(number uint64, n int) epp.BlockEvent {
	e := epp.BlockEvent{Kind: epp.BlockStored, BlockTokens: 1, Tier: "GPU"}
	for i := range n {
		e.Hashes = append(e.Hashes, number*1000+uint64(i)+1)
		e.Tokens = append(e.Tokens, uint32(number))
	}
	return e
}

func removeEvent(number uint64, n int) epp.BlockEvent {
	e := epp.BlockEvent{Kind: epp.BlockRemoved, Tier: "GPU"}
	for i := range n {
		e.Hashes = append(e.Hashes, number*1000+uint64(n-i))
	}
	return e
}

func chainOf(e epp.BlockEvent) []uint64 {
	return block.AppendChain(nil, testKey.Root(block.Root{BlockTokens: 1}), e.Tokens, 1)
}

// Case P2: removed blocks leave nothing behind, unique prompts cost no more than
// the bound, and a store repeated is one store.
func TestCaseP2MemoryIsBounded(t *testing.T) {
	const (
		stores = 2_000_000 / scale // blocks, in chains of 4
		alive  = 10_000
		chain  = 4
		limit  = 16 << 20 / scale
	)
	t.Run("with matching removes", func(t *testing.T) {
		x := New(Options{Key: testKey, MaxBytes: limit, MaxEndpointShare: 1})
		w := x.Endpoint(0)
		highest := 0
		for n := range uint64(stores / chain) {
			w.Apply(time.Unix(int64(n/1000), 0), []epp.BlockEvent{chainEvent(n, chain)})
			if n >= alive/chain {
				w.Apply(time.Unix(int64(n/1000), 0), []epp.BlockEvent{removeEvent(n-alive/chain, chain)})
			}
			if n == 2*alive/chain {
				highest = x.Bytes()
			}
		}
		checkConsistent(t, x)
		if s := x.Stats(); s.Nodes != alive || s.Copies != alive || s.Evicted != 0 || s.Removed != stores-alive {
			t.Errorf("%+v, want %d blocks living and none evicted", s, alive)
		}
		if got := x.Bytes(); got > highest*3/2 {
			t.Errorf("%d bytes at the end, %d near the beginning, want them flat", got, highest)
		}
		if w.Incomplete() {
			t.Error("incomplete, though nothing was dropped")
		}
	})
	t.Run("without removes", func(t *testing.T) {
		x := New(Options{Key: testKey, MaxBytes: limit, MaxEndpointShare: 1})
		w := x.Endpoint(0)
		nodes := 0 // the sum after each chain of the second half: laps come and go
		for n := range uint64(stores / chain) {
			w.Apply(time.Unix(int64(n/1000), 0), []epp.BlockEvent{chainEvent(n, chain)})
			if n%1000 == 0 && x.Bytes() > limit {
				t.Fatalf("%d bytes after %d chains, want at most %d", x.Bytes(), n, limit)
			}
			if n >= stores/chain/2 {
				nodes += x.Nodes()
			}
		}
		checkConsistent(t, x)
		s := x.Stats()
		if s.Stored+s.Refused != stores || s.Stored-s.Evicted != uint64(s.Copies) || s.Nodes != s.Copies {
			t.Errorf("%+v: the counts do not add up", s)
		}
		if mean := nodes / (stores / chain / 2); mean < limit/100 {
			t.Errorf("%d blocks in %d bytes in the mean, want one per 100 bytes at least", mean, limit)
		}
		if s.Refused > stores/100 {
			t.Errorf("%d blocks refused, want old ones evicted instead", s.Refused)
		}
		if !w.Incomplete() {
			t.Error("complete, though blocks were dropped")
		}
		w.Clear(time.Unix(1e6, 0))
		if w.Incomplete() || x.Nodes() != 0 {
			t.Errorf("after the clear: incomplete %v, %d nodes", w.Incomplete(), x.Nodes())
		}
	})
	t.Run("one store repeated", func(t *testing.T) {
		x := New(Options{Key: testKey, MaxBytes: limit})
		w := x.Endpoint(0)
		e := []epp.BlockEvent{chainEvent(1, chain)}
		w.Apply(time.Unix(0, 0), e)
		once := x.Bytes()
		w.Apply(time.Unix(0, 0), e)
		before := x.Bytes()
		for range 100_000/scale - 1 {
			w.Apply(time.Unix(0, 0), e)
		}
		if s := x.Stats(); s.Bytes != before || s.Nodes != chain || s.Copies != chain || s.Duplicates != 100_000/scale*chain {
			t.Errorf("%+v, want %d bytes and %d blocks as after the second time", s, before, chain)
		}
		for range maxCopies - 1 {
			w.Apply(time.Unix(0, 0), []epp.BlockEvent{{Kind: epp.BlockRemoved, Hashes: e[0].Hashes, Tier: e[0].Tier}})
		}
		if s := x.Stats(); s.Bytes != once || s.Nodes != chain {
			t.Errorf("%+v, want %d bytes and %d blocks as after the first time", s, once, chain)
		}
	})
}

// The count of bytes is honest: within a fifth of what the runtime says is in
// use, for lone blocks, for shared ones in many sets, and for parked ones.
func TestBytesIsHonest(t *testing.T) {
	fills := map[string]func(x *Index){
		"lone": func(x *Index) {
			w := x.Endpoint(0)
			for n := range uint64(50_000 / scale) {
				w.Apply(time.Unix(0, 0), []epp.BlockEvent{chainEvent(n, 8)})
			}
		},
		"many sets": func(x *Index) {
			rng := rand.New(rand.NewPCG(1, 2))
			for slot := range epp.Slot(100) {
				w := x.Endpoint(slot)
				for n := range uint64(20_000 / scale) {
					if rng.IntN(10) == 0 {
						w.Apply(time.Unix(0, 0), []epp.BlockEvent{chainEvent(n, 2)})
					}
				}
			}
		},
		"two tiers": func(x *Index) {
			w := x.Endpoint(0)
			for n := range uint64(50_000 / scale) {
				e := chainEvent(n, 8)
				w.Apply(time.Unix(0, 0), []epp.BlockEvent{e})
				e.Tier = "CPU"
				w.Apply(time.Unix(0, 0), []epp.BlockEvent{e})
			}
		},
		"parked": func(x *Index) {
			for slot := range epp.Slot(10) {
				w := x.Endpoint(slot)
				for n := range uint64(10_000 / scale) {
					e := chainEvent(n, 4)
					e.HasParent, e.Parent = true, 1<<60+n
					w.Apply(time.Unix(0, 0), []epp.BlockEvent{e})
				}
			}
		},
	}
	for name, fill := range fills {
		t.Run(name, func(t *testing.T) {
			before := heap()
			x := New(Options{Key: testKey, MaxParkedBlocks: 50_000})
			fill(x)
			used, counted := heap()-before, x.Bytes()
			if counted < used*4/5 || counted > used*3/2 {
				t.Errorf("counts %d bytes, the heap grew by %d", counted, used)
			}
			checkConsistent(t, x)
			runtime.KeepAlive(x)
		})
	}
}

// What is matched stays; of the others the oldest go.
func TestBoundDropsLeastRecentlyUsed(t *testing.T) {
	x := New(Options{Key: testKey, MaxBytes: 16 << 20 / scale, MaxEndpointShare: 1})
	w, other := x.Endpoint(0), x.Endpoint(1)
	hot := chainEvent(special, 8)
	other.Apply(time.Unix(0, 0), []epp.BlockEvent{hot})
	out := make([]uint32, 2)
	const prompts = 100_000 / scale
	for n := range uint64(prompts) {
		w.Apply(time.Unix(int64(n*scale/100), 0), []epp.BlockEvent{chainEvent(n, 8)})
		x.Match(chainOf(hot), out)
	}
	if out[1] != 8 || other.Incomplete() {
		t.Errorf("the prompt that is asked for all the time: %d blocks left, incomplete %v", out[1], other.Incomplete())
	}
	if x.Match(chainOf(chainEvent(prompts-1, 8)), out); out[0] != 8 {
		t.Errorf("the newest prompt: %d blocks left", out[0])
	}
	if x.Match(chainOf(chainEvent(0, 8)), out); out[0] != 0 {
		t.Errorf("the oldest prompt: %d blocks left", out[0])
	}
	checkConsistent(t, x)
}

// Case Q7: an endpoint that claims a million blocks loses its own old ones, and
// no one else's.
func TestCaseQ7ShareOfOneEndpoint(t *testing.T) {
	const limit = 16 << 20 / scale
	x := New(Options{Key: testKey, MaxBytes: limit, MaxEndpointShare: 0.25})
	honest, liar := x.Endpoint(0), x.Endpoint(1)
	prompt := chainEvent(special, 100)
	honest.Apply(time.Unix(0, 0), []epp.BlockEvent{prompt})
	for n := range uint64(125_000 / scale) {
		liar.Apply(time.Unix(int64(n/1000), 0), []epp.BlockEvent{chainEvent(n, 8)})
	}
	out := make([]uint32, 2)
	if x.Match(chainOf(prompt), out); out[0] != 100 || honest.Incomplete() {
		t.Errorf("the honest endpoint holds %d of 100 blocks, incomplete %v", out[0], honest.Incomplete())
	}
	if most := limit / 4 / copyBytes; liar.Blocks() > most || !liar.Incomplete() {
		t.Errorf("the liar holds %d blocks, want at most %d; incomplete %v", liar.Blocks(), most, liar.Incomplete())
	}
	if got := x.Bytes(); got > limit*3/4 {
		t.Errorf("%d bytes in use, want less than three quarters of the bound", got)
	}
	checkConsistent(t, x)
}

// TestShareIsNeverPassed: runs stop short of an endpoint's part as single blocks do,
// though there is room in its table for more.
func TestShareIsNeverPassed(t *testing.T) {
	x := New(Options{Key: testKey, MaxBytes: MinMaxBytes})
	w := x.Endpoint(0)
	for n := range uint64(600) {
		w.Apply(time.Unix(int64(n), 0), []epp.BlockEvent{chainEvent(n, 16)})
		if got := w.Stats().Copies; got > x.most {
			t.Fatalf("%d copies after %d events, want at most %d", got, n+1, x.most)
		}
	}
	if w.Stats().Evicted == 0 {
		t.Error("nothing was evicted: the test does not reach the share")
	}
	checkConsistent(t, x)
}

// Many endpoints at the bound: nothing grows beyond it, whatever is shared.
func TestBoundWithManyEndpoints(t *testing.T) {
	const limit = MinMaxBytes
	x := New(Options{Key: testKey, MaxBytes: limit})
	rng := rand.New(rand.NewPCG(4, 4))
	writers := make([]*Writer, 70)
	for i := range writers {
		writers[i] = x.Endpoint(epp.Slot(i))
	}
	for i := range 120_000 / scale {
		w := writers[rng.IntN(len(writers))]
		n := uint64(rng.IntN(3_000))
		e := chainEvent(n, 4)
		switch rng.IntN(10) {
		case 0:
			e = removeEvent(n, 4)
		case 1:
			e.HasParent, e.Parent = true, n<<32
		}
		w.Apply(time.Unix(int64(i/100), 0), []epp.BlockEvent{e})
		if got := x.Bytes(); got > limit+limit/50 {
			t.Fatalf("%d bytes after %d events, want at most %d and a fiftieth", got, i, limit)
		}
	}
	if x.Stats().Evicted == 0 {
		t.Error("nothing was evicted: the test does not reach the bound")
	}
	checkConsistent(t, x)
	for _, w := range writers {
		w.Close()
	}
	checkConsistent(t, x)
	if s := x.Stats(); s.Nodes != 0 || s.Copies != 0 || s.Sets != 0 || s.Parked != 0 {
		t.Errorf("%+v after all endpoints are gone", s)
	}
}

// Adapter and base model share no block, however alike the tokens.
func TestAdapterAndBaseShareNothing(t *testing.T) {
	x := New(Options{Key: testKey})
	e := chainEvent(1, 4)
	e.Adapter = "sql"
	x.Endpoint(0).Apply(time.Unix(0, 0), []epp.BlockEvent{e})
	out := make([]uint32, 1)
	if n := x.Match(chainOf(e), out); n != 0 || out[0] != 0 {
		t.Errorf("the base model matches %d blocks of the adapter", out[0])
	}
	root := testKey.Root(block.Root{Adapter: "sql", BlockTokens: 1})
	if x.Match(block.AppendChain(nil, root, e.Tokens, 1), out); out[0] != 4 {
		t.Errorf("the adapter matches %d of its 4 blocks", out[0])
	}
}

// Slots beyond out are not written and do not count as holders.
func TestMatchIgnoresSlotsBeyondOut(t *testing.T) {
	x := New(Options{Key: testKey})
	e := chainEvent(1, 4)
	for slot := epp.Slot(3); slot < 40; slot++ {
		x.Endpoint(slot).Apply(time.Unix(0, 0), []epp.BlockEvent{e})
	}
	out := []uint32{9, 9, 9, 9}
	if n := x.Match(chainOf(e), out); n != 4 || out[0]+out[1]+out[2] != 0 || out[3] != 4 {
		t.Errorf("Match = %d, out = %v", n, out)
	}
	if n := x.Match(chainOf(e), out[:2]); n != 0 {
		t.Errorf("Match = %d where none of the holders is asked for", n)
	}
}

// A writer that was closed, or whose slot was opened anew, does nothing.
func TestClosedWriterDoesNothing(t *testing.T) {
	x := New(Options{Key: testKey})
	former := x.Endpoint(0)
	e := []epp.BlockEvent{chainEvent(1, 4)}
	former.Apply(time.Unix(0, 0), e)
	w := x.Endpoint(0)
	if x.Nodes() != 0 {
		t.Errorf("%d nodes of the former writer", x.Nodes())
	}
	former.Apply(time.Unix(0, 0), e)
	former.Close()
	if x.Nodes() != 0 || former.Blocks() != 0 {
		t.Errorf("the closed writer stored %d blocks", x.Nodes())
	}
	w.Apply(time.Unix(0, 0), e)
	if x.Nodes() != 4 {
		t.Errorf("%d nodes of the new writer, want 4", x.Nodes())
	}
	if s := x.Stats(); s.Stored != 8 {
		t.Errorf("%d blocks stored in all, want 8: a closed writer's counts stay", s.Stored)
	}
}

// Hostile events neither panic nor cost more than the bounds say.
func TestHostileEvents(t *testing.T) {
	x := New(Options{Key: testKey, MaxParkedBlocks: 10})
	w := x.Endpoint(0)
	events := []epp.BlockEvent{
		{},
		{Kind: 99, Hashes: []uint64{1}},
		{Kind: epp.BlockStored},
		{Kind: epp.BlockStored, Hashes: []uint64{1, 2}, Tokens: []uint32{1}, BlockTokens: 1},
		{Kind: epp.BlockStored, Hashes: []uint64{1}, Tokens: []uint32{1}, BlockTokens: -1},
		{Kind: epp.BlockStored, Hashes: []uint64{1, 2}, Tokens: []uint32{1, 2}, BlockTokens: 1 << 62},
		{Kind: epp.BlockStored, Hashes: []uint64{1}, Tokens: []uint32{1}, BlockTokens: 1, Media: []string{"a", "b"}},
	}
	w.Apply(time.Unix(-5, 0), events)
	if s := w.Stats(); s.Malformed != uint64(len(events)) || s.Blocks != 0 {
		t.Errorf("%+v, want all %d events malformed", s, len(events))
	}
	// Blocks that are each other's parent, and their own.
	for range 3 {
		for _, h := range [][2]uint64{{1, 2}, {2, 1}, {3, 3}} {
			w.Apply(time.Unix(0, 0), []epp.BlockEvent{{Kind: epp.BlockStored, HasParent: true, Parent: h[0],
				Hashes: []uint64{h[1]}, Tokens: []uint32{7}, BlockTokens: 1}})
		}
	}
	if s := w.Stats(); s.Parked != 3 || s.Blocks != 0 {
		t.Errorf("%+v, want 3 parked", s)
	}
	w.Apply(time.Unix(0, 0), []epp.BlockEvent{{Kind: epp.BlockStored, Hashes: []uint64{1, 1, 3}, Tokens: []uint32{7, 8, 9}, BlockTokens: 1}})
	checkConsistent(t, x)
	// A block under one engine hash after another.
	for i := range uint64(10_000) {
		w.Apply(time.Unix(0, 0), []epp.BlockEvent{{Kind: epp.BlockStored, Hashes: []uint64{1000 + i}, Tokens: []uint32{5}, BlockTokens: 1}})
	}
	if s := w.Stats(); s.Copies > maxCopies+10 || !s.Incomplete {
		t.Errorf("%+v, want at most %d copies of a block", s, maxCopies)
	}
	// One tier after another.
	for i := range 1000 {
		w.Apply(time.Unix(0, 0), []epp.BlockEvent{{Kind: epp.BlockRemoved, Group: i}})
	}
	if len(w.lanes) > maxLanes {
		t.Errorf("%d lanes, want at most %d", len(w.lanes), maxLanes)
	}
	// A parked block too large for the bound is dropped at once.
	w.Apply(time.Unix(0, 0), []epp.BlockEvent{{Kind: epp.BlockStored, HasParent: true, Parent: 77,
		Hashes: []uint64{78}, Tokens: make([]uint32, 1<<20), BlockTokens: 1 << 20}})
	if x.Stats().Bytes > 2<<20 || !w.Incomplete() {
		t.Errorf("%d bytes after a block of a million tokens, incomplete %v", x.Bytes(), w.Incomplete())
	}
	checkConsistent(t, x)
}

// Readers beside writers: a prompt that no one removes is always found whole on
// its holder; one that comes and goes is found up to some block of it, and its
// neighbour in memory is never taken for it.
func TestReadersBesideWriters(t *testing.T) {
	x := New(Options{Key: testKey})
	const n = 40
	fixed := chainEvent(special, n)
	x.Endpoint(0).Apply(time.Unix(0, 0), []epp.BlockEvent{fixed})
	var stop atomic.Bool
	var writers, readers sync.WaitGroup
	for slot := epp.Slot(1); slot <= 3; slot++ {
		writers.Go(func() {
			w := x.Endpoint(slot)
			rng := rand.New(rand.NewPCG(uint64(slot), 1))
			// Slot s stores chains whose number leaves s-1 when divided by 3, and
			// the fixed one; so a chain's holders are known beforehand.
			for i := 0; !stop.Load(); i++ {
				now := time.Unix(int64(i/100), 0)
				number := uint64(rng.IntN(20))*3 + uint64(slot) - 1
				w.Apply(now, []epp.BlockEvent{chainEvent(number, n), fixed})
				switch rng.IntN(20) {
				case 0:
					w.Clear(now)
				case 1:
					w.Close()
					w = x.Endpoint(slot)
				default:
					number = uint64(rng.IntN(20))*3 + uint64(slot) - 1
					w.Apply(now, []epp.BlockEvent{removeEvent(number, n), removeEvent(special, n)})
				}
			}
		})
	}
	for r := range uint64(3) {
		readers.Go(func() {
			out := make([]uint32, 4)
			rng := rand.New(rand.NewPCG(r, 2))
			for range 20_000 / scale {
				if x.Match(chainOf(fixed), out); out[0] != n {
					t.Errorf("the prompt that stays: %d of %d blocks", out[0], n)
					return
				}
				number := uint64(rng.IntN(60))
				x.Match(chainOf(chainEvent(number, n)), out)
				for slot, blocks := range out {
					if blocks > n || blocks > 0 && uint64(slot) != number%3+1 {
						t.Errorf("chain %d: slot %d is credited with %d blocks", number, slot, blocks)
						return
					}
				}
				x.Stats()
			}
		})
	}
	readers.Wait()
	stop.Store(true)
	writers.Wait()
	checkConsistent(t, x)
}

// TestReaderBesideReuse: two blocks take turns in one node, right behind a block
// that both endpoints hold. Both hold the one, only endpoint 1 the other; endpoint
// 0 is never credited with that one, however a reader and the writer meet. Where
// each endpoint holds a block alone no set is ever given up, and the node alone is
// used again.
func TestReaderBesideReuse(t *testing.T) {
	t.Run("of sets and nodes", func(t *testing.T) { readBesideReuse(t, false) })
	t.Run("of nodes", func(t *testing.T) { readBesideReuse(t, true) })
}

func readBesideReuse(t *testing.T, setsStay bool) {
	x := New(Options{Key: testKey})
	store := func(hash, parent uint64, token uint32) epp.BlockEvent {
		return epp.BlockEvent{Kind: epp.BlockStored, BlockTokens: 1, Tier: "GPU",
			Hashes: []uint64{hash}, Tokens: []uint32{token}, Parent: parent, HasParent: parent != 0}
	}
	gone := func(hash uint64) epp.BlockEvent {
		return epp.BlockEvent{Kind: epp.BlockRemoved, Tier: "GPU", Hashes: []uint64{hash}}
	}
	now := time.Unix(0, 0)
	writers := [2]*Writer{x.Endpoint(0), x.Endpoint(1)}
	if setsStay {
		writers[0].Apply(now, []epp.BlockEvent{store(100, 0, 100)})
		writers[1].Apply(now, []epp.BlockEvent{store(101, 0, 101)})
	}
	for _, w := range writers {
		w.Apply(now, []epp.BlockEvent{store(1, 0, 1)})
	}
	var stop atomic.Bool
	var group sync.WaitGroup
	group.Go(func() {
		both, one := []epp.BlockEvent{store(2, 1, 7)}, []epp.BlockEvent{store(3, 1, 8), gone(3)}
		for !stop.Load() {
			writers[0].Apply(now, both)
			writers[1].Apply(now, both)
			writers[0].Apply(now, []epp.BlockEvent{gone(2)})
			writers[1].Apply(now, []epp.BlockEvent{gone(2)})
			writers[1].Apply(now, one)
		}
	})
	chain := block.AppendChain(nil, testKey.Root(block.Root{BlockTokens: 1}), []uint32{1, 8}, 1)
	out := make([]uint32, 2)
	for range 3_000_000 / scale {
		if x.Match(chain, out); out[0] != 1 || out[1] < 1 {
			t.Errorf("matches %v, want 1 for endpoint 0 and 1 or 2 for endpoint 1", out)
			break
		}
	}
	stop.Store(true)
	group.Wait()
	checkConsistent(t, x)
}

// TestReuseIsAnnounced: the generation is another one before a place is written that was
// given up, also where no set's number is given up with it: by one block and by a run.
func TestReuseIsAnnounced(t *testing.T) {
	for _, n := range []int{1, 8} {
		x := New(Options{Key: testKey})
		w := x.Endpoint(0)
		stays := chainEvent(special, 20)
		// behind stores n blocks behind those that stay, and returns the first one's place.
		behind := func(number uint64) uint32 {
			e := chainEvent(number, n)
			e.HasParent, e.Parent = true, stays.Hashes[19]
			w.Apply(time.Unix(0, 0), []epp.BlockEvent{e})
			_, place := w.lanes[0].find(e.Hashes[0])
			return place
		}
		w.Apply(time.Unix(0, 0), []epp.BlockEvent{stays})
		was := behind(1)
		w.Apply(time.Unix(0, 0), []epp.BlockEvent{removeEvent(1, n)})
		before := x.generation.Load()
		if now := behind(2); now != was {
			t.Fatalf("%d blocks: at place %d, want %d again", n, now, was)
		}
		if x.generation.Load() == before {
			t.Errorf("%d blocks: a place is used again in the same generation", n)
		}
	}
}

// Match allocates nothing, with inline sets and with bitmaps.
func TestMatchAllocatesNothing(t *testing.T) {
	x := New(Options{Key: testKey})
	for slot := range epp.Slot(40) {
		x.Endpoint(slot).Apply(time.Unix(0, 0), []epp.BlockEvent{chainEvent(1, 80-2*int(slot))})
	}
	chain, out := chainOf(chainEvent(1, 80)), make([]uint32, 40)
	if n := testing.AllocsPerRun(100, func() { x.Match(chain, out) }); n != 0 {
		t.Errorf("%v allocations, want 0", n)
	}
	for slot, n := range out {
		if int(n) != 80-2*slot {
			t.Errorf("slot %d: %d blocks, want %d", slot, n, 80-2*slot)
		}
	}
}
