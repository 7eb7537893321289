package agent

import (
	"testing"
	"time"

	"pgregory.net/rapid"

	"epp.internal/epp"
	"epp.internal/epp/report/wire"
)

// plain is the mirror as simple as can be: each held block's parent, 0 for none,
// and its first token.
type plain map[uint64][2]uint64

func (p plain) reached(hash uint64) bool {
	for range len(p) + 1 {
		b, held := p[hash]
		if !held {
			return false
		}
		if b[0] == 0 {
			return true
		}
		hash = b[0]
	}
	return false // a circle
}

// Few names, given again and again to other blocks with other parents, circles
// included: pickers are told of what can be reached, each block once, and when all
// is gone nothing is left.
func TestMirror(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a, twin := New(Options{}), plain{}
		teller := a.Teller(0)
		teller.Open(1)
		teller.Next(time.Time{})
		told := map[uint64]bool{}
		apply := func(e epp.BlockEvent) {
			a.Apply(time.Time{}, []epp.BlockEvent{e})
			r, _ := teller.Next(time.Time{})
			for _, e := range r.Events {
				for _, id := range e.Names {
					if told[id] == (e.Kind == wire.BlockEvent_STORED) {
						t.Fatalf("%v of block %d, which the picker knew: %v", e.Kind, id, told[id])
					}
					told[id] = e.Kind == wire.BlockEvent_STORED
					if !told[id] {
						delete(told, id)
					}
				}
				if e.Parent != 0 && e.Kind == wire.BlockEvent_STORED && !told[e.Parent] {
					t.Fatalf("block %v is told before its parent %d", e.Names, e.Parent)
				}
			}
			want := 0
			for hash := range twin {
				if twin.reached(hash) {
					want++
				}
			}
			if len(told) != want || a.Blocks() != len(twin) {
				t.Fatalf("%d blocks are told, %d held; want %d, %d", len(told), a.Blocks(), want, len(twin))
			}
		}
		hash := rapid.Uint64Range(1, 6)
		for range rapid.IntRange(1, 40).Draw(t, "events") {
			h := hash.Draw(t, "hash")
			if rapid.IntRange(0, 2).Draw(t, "kind") == 0 {
				delete(twin, h)
				apply(epp.BlockEvent{Kind: epp.BlockRemoved, Hashes: []uint64{h}})
				continue
			}
			parent := rapid.Uint64Range(0, 6).Draw(t, "parent")
			if parent == h {
				continue
			}
			token := rapid.Uint64Range(1, 2).Draw(t, "token")
			twin[h] = [2]uint64{parent, token}
			apply(epp.BlockEvent{
				Kind: epp.BlockStored, Hashes: []uint64{h}, Tokens: []uint32{uint32(token)}, BlockTokens: 1, Parent: parent, HasParent: parent != 0,
			})
		}
		for h := range twin {
			delete(twin, h)
			apply(epp.BlockEvent{Kind: epp.BlockRemoved, Hashes: []uint64{h}})
		}
		if len(a.mirror.nodes) != 0 || a.mirror.bytes != 0 {
			t.Fatalf("%d nodes and %d bytes are left of nothing", len(a.mirror.nodes), a.mirror.bytes)
		}
	})
}
