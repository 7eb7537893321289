package kvindex

import (
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"epp.internal/epp"
	"epp.internal/epp/block"
)

// Blocks that come with their hashes match as those do that come with their
// tokens, however they are cut into events, and go as they do.
func TestKeyed(t *testing.T) {
	const size = 4
	key := block.Key(7)
	tokens := make([]uint32, 12*size)
	chain := block.AppendChain(nil, key.Root(block.Root{BlockTokens: size}), tokens, size)
	names := make([]uint64, len(chain)) // the engine's, and the reporter's
	for i := range names {
		names[i] = 1000 + uint64(i)
	}
	// store cuts the chain at random, and gives each part with tokens or with hashes.
	store := func(t *rapid.T, w *Writer, keyed bool) {
		for from := 0; from < len(chain); {
			to := rapid.IntRange(from+1, len(chain)).Draw(t, "to")
			e := epp.BlockEvent{Kind: epp.BlockStored, Hashes: names[from:to], BlockTokens: size}
			if from > 0 {
				e.Parent, e.HasParent = names[from-1], true
			}
			if keyed {
				e.Keys = chain[from:to]
			} else {
				e.Tokens = tokens[from*size : to*size]
			}
			w.Apply(time.Time{}, []epp.BlockEvent{e})
			from = to
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		x := New(Options{Key: key})
		byTokens, byKeys := x.Endpoint(0), x.Endpoint(1)
		if rapid.Bool().Draw(t, "keys first") {
			store(t, byKeys, true)
			store(t, byTokens, false)
		} else {
			store(t, byTokens, false)
			store(t, byKeys, true)
		}
		gone := rapid.IntRange(0, len(chain)-1).Draw(t, "gone")
		removed := []epp.BlockEvent{{Kind: epp.BlockRemoved, Hashes: names[gone : gone+1]}}
		byTokens.Apply(time.Time{}, removed)
		byKeys.Apply(time.Time{}, removed)
		out := make([]uint32, 2)
		x.Match(chain, out)
		if !slices.Equal(out, []uint32{uint32(gone), uint32(gone)}) {
			t.Errorf("blocks held: %d; want %d of both", out, gone)
		}
		if a, b := byTokens.Stats(), byKeys.Stats(); a != b {
			t.Errorf("by tokens %+v, by keys %+v", a, b)
		}
	})
}

// A block whose parent is not held is refused, and the endpoint incomplete.
func TestKeyedOrphan(t *testing.T) {
	w := New(Options{}).Endpoint(0)
	w.Apply(time.Time{}, []epp.BlockEvent{{Kind: epp.BlockStored, Hashes: []uint64{2, 3}, Keys: []uint64{12, 13}, Parent: 1, HasParent: true, BlockTokens: 4}})
	if s := w.Stats(); s.Blocks != 0 || s.Refused != 2 || !s.Incomplete {
		t.Errorf("%+v; want no block, 2 refused, incomplete", s)
	}
}

// An event with hashes that do not fit its blocks is left out.
func TestKeyedMalformed(t *testing.T) {
	w := New(Options{}).Endpoint(0)
	w.Apply(time.Time{}, []epp.BlockEvent{
		{Kind: epp.BlockStored, Hashes: []uint64{1, 2}, Keys: []uint64{1}, BlockTokens: 4},
		{Kind: epp.BlockStored, Hashes: []uint64{1}, Keys: []uint64{}, BlockTokens: 4},
		{Kind: epp.BlockStored, Hashes: []uint64{1}, Keys: []uint64{1}, Tokens: []uint32{1, 2, 3, 4}, BlockTokens: 4},
	})
	if s := w.Stats(); s.Blocks != 0 || s.Malformed != 3 {
		t.Errorf("%+v; want no block, 3 malformed", s)
	}
}

// TestKeyTwice: a reporter's keys need not be a chain. A block that is told twice
// under two names, in one event of new blocks, is one node with two copies.
func TestKeyTwice(t *testing.T) {
	x := New(Options{Key: 7})
	w := x.Endpoint(0)
	event := func(from uint64, keys ...uint64) []epp.BlockEvent {
		e := epp.BlockEvent{Kind: epp.BlockStored, BlockTokens: 16, Keys: keys}
		for i := range keys {
			e.Hashes = append(e.Hashes, from+uint64(i))
		}
		return []epp.BlockEvent{e}
	}
	w.Apply(time.Time{}, event(1, 101, 102, 103, 104, 105, 106, 107, 108, 109, 110, 111, 112, 113))
	w.Apply(time.Time{}, event(20, 201, 201, 202))
	checkConsistent(t, x)
	if s := w.Stats(); s.Blocks != 15 || s.Copies != 16 || s.Refused != 0 {
		t.Errorf("%+v, want 15 blocks with 16 copies", s)
	}
}
