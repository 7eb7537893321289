package kvindex

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"epp.internal/epp"
	"epp.internal/epp/block"
)

// twin is the index in its dumbest form: for each endpoint, for each lane and
// engine hash, the block's path spelt out.
type twin map[epp.Slot]*twinEndpoint

type twinEndpoint struct {
	held   map[twinName]string
	again  map[twinName]int // how many more times than once
	parked map[twinName]twinParked
}

type twinName struct {
	tier  string
	group int
	hash  uint64
}

type twinParked struct {
	parent uint64
	tokens string // path's last step
}

func newTwinEndpoint() *twinEndpoint {
	return &twinEndpoint{held: map[twinName]string{}, again: map[twinName]int{}, parked: map[twinName]twinParked{}}
}

func (e *twinEndpoint) apply(ev epp.BlockEvent) {
	name := func(hash uint64) twinName { return twinName{ev.Tier, ev.Group, hash} }
	switch ev.Kind {
	case epp.AllBlocksCleared:
		*e = *newTwinEndpoint()
	case epp.BlockRemoved:
		for _, h := range ev.Hashes {
			if e.again[name(h)] > 0 {
				e.again[name(h)]--
				continue
			}
			delete(e.held, name(h))
			delete(e.parked, name(h))
		}
	case epp.BlockStored:
		path, known := fmt.Sprint(ev.Adapter, "/", ev.Salt, "/", ev.BlockTokens), true
		if ev.HasParent {
			path, known = e.held[name(ev.Parent)]
		}
		parent := ev.Parent
		for i, h := range ev.Hashes {
			step := fmt.Sprint("|", ev.Tokens[i*ev.BlockTokens:(i+1)*ev.BlockTokens])
			if ev.Media != nil {
				step += ev.Media[i]
			}
			old, was := e.held[name(h)]
			switch {
			case known:
				path += step
				if was && old == path {
					e.again[name(h)] = min(e.again[name(h)]+1, maxCopies-1)
				} else {
					e.again[name(h)] = 0
				}
				e.held[name(h)] = path
				delete(e.parked, name(h))
				e.unpark(name(h))
			case was:
				path, known = old, true
				e.again[name(h)] = min(e.again[name(h)]+1, maxCopies-1)
			default:
				e.parked[name(h)] = twinParked{parent, step}
			}
			parent = h
		}
	}
}

func (e *twinEndpoint) unpark(parent twinName) {
	for name, p := range e.parked {
		if name.tier == parent.tier && name.group == parent.group && p.parent == parent.hash {
			delete(e.parked, name)
			e.held[name] = e.held[parent] + p.tokens
			e.unpark(name)
		}
	}
}

// match is how many of these paths, each one longer by a block, are held from
// the first on.
func (e *twinEndpoint) match(paths []string) (n uint32) {
	for _, p := range paths {
		if !slices.Contains(values(e.held), p) {
			return n
		}
		n++
	}
	return n
}

func values(m map[twinName]string) (out []string) {
	for _, v := range m {
		out = append(out, v)
	}
	return out
}

func (t twin) nodes() int {
	seen := map[string]bool{}
	for _, e := range t {
		for _, p := range e.held {
			seen[p] = true
		}
	}
	return len(seen)
}

// drawTokens draws from few tokens, so that chains fork early and often.
func drawTokens(t *rapid.T, blocks, size int) []uint32 {
	return rapid.SliceOfN(rapid.Uint32Range(0, 1), blocks*size, blocks*size).Draw(t, "tokens")
}

// engineHash is what an engine would call the block at the end of a path. The
// two engines' names differ, and so do the tiers'.
func engineHash(slot epp.Slot, tier string, parent uint64, tokens []uint32, media string) uint64 {
	return block.ExtendMedia(parent*31+uint64(slot)+uint64(len(tier)), media, tokens)%997 + 1
}

// After any sequence of events the index says of any prompt what the twin says,
// and has as many nodes as there are different paths.
func TestIndexIsItsTwin(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const slots = 7 // more than a set holds inline
		x := New(Options{Key: 5})
		want := twin{}
		writers := map[epp.Slot]*Writer{}
		names := map[epp.Slot][]uint64{}
		for s := epp.Slot(0); s < slots; s++ {
			writers[s], want[s] = x.Endpoint(s), newTwinEndpoint()
		}
		type lateEvent struct {
			slot  epp.Slot
			event epp.BlockEvent
		}
		var late []lateEvent
		now := time.Unix(100, 0)
		slot := rapid.Custom(func(t *rapid.T) epp.Slot { return epp.Slot(rapid.IntRange(0, slots-1).Draw(t, "slot")) })
		// Long events are stored as runs, short ones keep the tree branchy.
		blocks := rapid.SampledFrom([]int{1, 2, 3, 4, 1, 2, 3, 4, 20})
		tier := rapid.SampledFrom([]string{"GPU", "CPU"})
		adapter := rapid.SampledFrom([]string{"", "", "sql"})
		apply := func(s epp.Slot, e epp.BlockEvent) {
			writers[s].Apply(now, []epp.BlockEvent{e})
			want[s].apply(e)
		}
		name := func(t *rapid.T, s epp.Slot) uint64 {
			if len(names[s]) == 0 {
				return 12345
			}
			return rapid.SampledFrom(names[s]).Draw(t, "hash")
		}
		t.Repeat(map[string]func(*rapid.T){
			"store": func(t *rapid.T) {
				s, n, size := slot.Draw(t, "slot"), blocks.Draw(t, "blocks"), rapid.IntRange(1, 2).Draw(t, "size")
				e := epp.BlockEvent{Kind: epp.BlockStored, Tier: tier.Draw(t, "tier"), BlockTokens: size, Tokens: drawTokens(t, n, size)}
				if e.HasParent = rapid.IntRange(0, 3).Draw(t, "parent") > 0; e.HasParent {
					e.Parent = name(t, s)
				} else {
					e.Adapter = adapter.Draw(t, "adapter")
				}
				if rapid.IntRange(0, 9).Draw(t, "media") == 0 {
					e.Media = make([]string, n)
					e.Media[0] = "cat"
				}
				parent := e.Parent + uint64(len(e.Adapter))*1000
				for i := range n {
					media := ""
					if e.Media != nil {
						media = e.Media[i]
					}
					parent = engineHash(s, e.Tier, parent, e.Tokens[i*size:(i+1)*size], media)
					e.Hashes = append(e.Hashes, parent)
				}
				names[s] = append(names[s], e.Hashes...)
				if rapid.IntRange(0, 2).Draw(t, "late") > 0 {
					apply(s, e)
				} else { // what builds on it waits
					late = append(late, lateEvent{s, e})
				}
			},
			"deliver": func(t *rapid.T) {
				if len(late) == 0 {
					t.Skip("no event is late")
				}
				i := rapid.IntRange(0, len(late)-1).Draw(t, "event")
				apply(late[i].slot, late[i].event)
				late = slices.Delete(late, i, i+1)
			},
			"remove": func(t *rapid.T) {
				s := slot.Draw(t, "slot")
				e := epp.BlockEvent{Kind: epp.BlockRemoved, Tier: tier.Draw(t, "tier")}
				for range rapid.IntRange(1, 3).Draw(t, "blocks") {
					e.Hashes = append(e.Hashes, name(t, s))
				}
				apply(s, e)
			},
			"evict": func(t *rapid.T) { // what was stored together goes together, the last block first
				s := slot.Draw(t, "slot")
				e := epp.BlockEvent{Kind: epp.BlockRemoved, Tier: tier.Draw(t, "tier")}
				to := rapid.IntRange(0, len(names[s])).Draw(t, "to")
				e.Hashes = slices.Clone(names[s][max(0, to-rapid.IntRange(1, 24).Draw(t, "blocks")):to])
				slices.Reverse(e.Hashes)
				apply(s, e)
			},
			"clear": func(t *rapid.T) {
				apply(slot.Draw(t, "slot"), epp.BlockEvent{Kind: epp.AllBlocksCleared})
			},
			"replace": func(t *rapid.T) {
				s := slot.Draw(t, "slot")
				if rapid.Bool().Draw(t, "close") {
					writers[s].Close()
				}
				writers[s], want[s], names[s] = x.Endpoint(s), newTwinEndpoint(), nil
			},
			"": func(t *rapid.T) { checkTwin(t, x, want, writers) },
		})
	})
}

// checkTwin asks both for each path that the twin knows, and beyond.
func checkTwin(t *rapid.T, x *Index, want twin, writers map[epp.Slot]*Writer) {
	adapter := rapid.SampledFrom([]string{"", "sql"}).Draw(t, "asked adapter")
	size := rapid.IntRange(1, 2).Draw(t, "asked size")
	tokens := drawTokens(t, 6, size)
	chain := block.AppendChain(nil, block.Key(5).Root(block.Root{Adapter: adapter, BlockTokens: size}), tokens, size)
	var paths []string
	path := fmt.Sprint(adapter, "//", size)
	for i := range chain {
		path += fmt.Sprint("|", tokens[i*size:(i+1)*size])
		paths = append(paths, path)
	}
	out := make([]uint32, len(writers))
	longest := x.Match(chain, out)
	var most uint32
	for s, e := range want {
		n := e.match(paths)
		most = max(most, n)
		if out[s] != n {
			t.Fatalf("slot %d matches %d blocks of %v, want %d", s, out[s], tokens, n)
		}
		distinct := map[string]bool{}
		for _, p := range e.held {
			distinct[p] = true
		}
		got := writers[s].Stats()
		if got.Blocks != len(distinct) || got.Copies != len(e.held) || got.Parked != len(e.parked) {
			t.Fatalf("slot %d: %+v, want %d blocks, %d copies, %d parked", s, got, len(distinct), len(e.held), len(e.parked))
		}
	}
	if longest != int(most) {
		t.Fatalf("Match returned %d, want %d", longest, most)
	}
	if got := x.Nodes(); got != want.nodes() {
		t.Fatalf("%d nodes, want %d", got, want.nodes())
	}
	checkConsistent(t, x)
}
