package kvindex

import (
	"fmt"
	"math"
	"testing"
	"time"

	"pgregory.net/rapid"

	"epp.internal/epp"
	"epp.internal/epp/block"
)

// TestDiscounts tells what a match of eight blocks is worth less as blocks move
// between an endpoint's tiers: offloaded ones while they are on both, once they are
// in the host's memory alone, on a disk, and back.
func TestDiscounts(t *testing.T) {
	x := New(Options{Key: 7})
	w, other := x.Endpoint(0), x.Endpoint(1)
	now := time.Unix(1000, 0)
	all := epp.BlockEvent{Kind: epp.BlockStored, Tier: "GPU", BlockTokens: 2}
	for i := range 8 {
		all.Hashes = append(all.Hashes, uint64(100+i))
		all.Tokens = append(all.Tokens, uint32(i), uint32(i))
	}
	chain := block.AppendChain(nil, x.options.Key.Root(block.Root{BlockTokens: 2}), all.Tokens, 2)
	part := func(kind epp.BlockEventKind, tier string, from, to int) epp.BlockEvent {
		e := epp.BlockEvent{Kind: kind, Tier: tier, Hashes: all.Hashes[from:to]}
		if kind == epp.BlockStored {
			e.BlockTokens, e.Tokens = 2, all.Tokens[2*from:2*to]
			if from > 0 {
				e.HasParent, e.Parent = true, all.Hashes[from-1]
			}
		}
		return e
	}
	want := func(what string, less float64) {
		t.Helper()
		matched, lacks := make([]uint32, 2), make([]float32, 2)
		x.Match(chain, matched)
		x.Discounts(chain, matched, lacks)
		if matched[0] != 8 || math.Abs(float64(lacks[0])-less) > 1e-6 || lacks[1] != 0 {
			t.Errorf("%s: %d blocks, less %v; want 8, less %v, and nothing of the other: %v", what, matched[0], lacks[0], less, lacks[1])
		}
		checkConsistent(t, x)
	}
	other.Apply(now, []epp.BlockEvent{all})
	w.Apply(now, []epp.BlockEvent{all})
	want("on the GPU", 0)
	cpu := all
	cpu.Tier = "CPU"
	// Engines name a parent within the tier, so what is offloaded is announced from the root.
	w.Apply(now, []epp.BlockEvent{cpu})
	want("on both", 0)
	w.Apply(now, []epp.BlockEvent{part(epp.BlockRemoved, "GPU", 5, 8)})
	want("three in the host's memory alone", 3*0.2)
	disk := all
	disk.Tier = "STORAGE"
	w.Apply(now, []epp.BlockEvent{disk, part(epp.BlockRemoved, "CPU", 7, 8)})
	want("the last on the disk alone", 2*0.2+0.5)
	w.Apply(now, []epp.BlockEvent{part(epp.BlockStored, "GPU", 5, 8)})
	want("back", 0)
	w.Clear(now)
	if x.slow.Load() != 0 || x.Stats().Copies != 8 {
		t.Errorf("%d slow after a clear, %+v", x.slow.Load(), x.Stats())
	}
	// Nobody holds a block: seven of the eight come as a run behind the first.
	other.Clear(now)
	w.Apply(now, []epp.BlockEvent{part(epp.BlockStored, "CPU", 0, 1), part(epp.BlockStored, "CPU", 1, 8)})
	want("new, and in the host's memory alone", 8*0.2)
	checkConsistent(t, x)
}

// TestDiscountsAgainstTwin: after any events in any tiers the discount is what a
// count by endpoint, block and tier says.
func TestDiscountsAgainstTwin(t *testing.T) {
	tiers := []string{"GPU", "CPU", "CPU_PINNED", "DISK", ""}
	rapid.Check(t, func(t *rapid.T) {
		const blocks = 6
		x := New(Options{Key: 3, Tiers: Tiers{CPU: 0.75, Disk: 0.25}})
		ws := []*Writer{x.Endpoint(0), x.Endpoint(1)}
		type copyOf struct {
			slot, block int
			tier        string
		}
		twin := map[copyOf]int{}
		all := epp.BlockEvent{Kind: epp.BlockStored, BlockTokens: 1}
		for i := range blocks {
			all.Hashes, all.Tokens = append(all.Hashes, uint64(50+i)), append(all.Tokens, uint32(i))
		}
		chain := block.AppendChain(nil, x.options.Key.Root(block.Root{BlockTokens: 1}), all.Tokens, 1)
		now := time.Unix(1000, 0)
		for range rapid.IntRange(0, 40).Draw(t, "events") {
			slot, tier := rapid.IntRange(0, 1).Draw(t, "slot"), rapid.SampledFrom(tiers).Draw(t, "tier")
			b := rapid.IntRange(0, blocks-1).Draw(t, "block")
			e := all
			e.Tier = tier
			switch rapid.IntRange(0, 9).Draw(t, "what") {
			case 0:
				ws[slot].Clear(now)
				for c := range twin {
					if c.slot == slot {
						delete(twin, c)
					}
				}
				continue
			case 1, 2, 3, 4:
				e.Kind, e.Hashes, e.Tokens, e.BlockTokens = epp.BlockRemoved, all.Hashes[b:b+1], nil, 0
				twin[copyOf{slot, b, tier}] = max(0, twin[copyOf{slot, b, tier}]-1)
			default:
				from := rapid.IntRange(0, b).Draw(t, "from")
				if from > 0 && twin[copyOf{slot, from - 1, tier}] > 0 { // a run behind what is there
					e.HasParent, e.Parent = true, all.Hashes[from-1]
				} else {
					from = 0
				}
				e.Hashes, e.Tokens = all.Hashes[from:b+1], all.Tokens[from:b+1]
				for i := from; i <= b; i++ {
					twin[copyOf{slot, i, tier}]++ // removed as often as it was stored
				}
			}
			ws[slot].Apply(now, []epp.BlockEvent{e})
		}
		matched, got, want := make([]uint32, 2), make([]float32, 2), make([]float32, 2)
		x.Match(chain, matched)
		x.Discounts(chain, matched, got)
		for slot := range ws {
			for b := range int(matched[slot]) {
				has := func(tier string) bool { return twin[copyOf{slot, b, tier}] > 0 }
				switch {
				case has("GPU") || has(""):
				case has("CPU") || has("CPU_PINNED"):
					want[slot] += 0.25
				default:
					want[slot] += 0.75
				}
			}
		}
		if fmt.Sprint(got) != fmt.Sprint(want) {
			t.Fatalf("matched %v, less %v, want %v", matched, got, want)
		}
		checkConsistent(t, x)
	})
}

// BenchmarkDiscounts looks a match of 512 blocks of eight endpoints up: "none" holds
// anything beside its GPU, or "half" of them have all of it in the host's memory.
func BenchmarkDiscounts(b *testing.B) {
	for _, c := range []struct {
		name string
		slow int
	}{{"none", 0}, {"half", 4}} {
		b.Run(c.name, func(b *testing.B) {
			x := New(Options{Key: testKey})
			e := chainEvent(special, 512)
			for slot := range epp.Slot(8) {
				if int(slot) < c.slow {
					e.Tier = "CPU"
				} else {
					e.Tier = "GPU"
				}
				x.Endpoint(slot).Apply(time.Unix(0, 0), []epp.BlockEvent{e})
			}
			chain, matched, lacks := chainOf(e), make([]uint32, 8), make([]float32, 8)
			x.Match(chain, matched)
			b.ReportAllocs()
			for b.Loop() {
				clear(lacks)
				x.Discounts(chain, matched, lacks)
			}
		})
	}
}
