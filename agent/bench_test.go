package agent

import (
	"testing"
	"time"

	"epp.internal/epp"
	"epp.internal/epp/kvindex"
	"epp.internal/epp/report/wire"
)

// blocks stores n blocks of 16 tokens, in prompts of 100 blocks.
func blocks(a *Agent, n int) {
	tokens := make([]uint32, 1600)
	for from := 0; from < n; from += 100 {
		e := epp.BlockEvent{Kind: epp.BlockStored, Tier: "GPU", BlockTokens: 16, Tokens: tokens, Hashes: make([]uint64, 100)}
		tokens[0] = uint32(from)
		for i := range e.Hashes {
			e.Hashes[i] = uint64(from + i + 1)
		}
		a.Apply(time.Time{}, []epp.BlockEvent{e})
	}
}

// BenchmarkSnapshot is all that an agent does for a picker with a new key, without
// the network: 100,000 blocks hashed, put into reports, and stored in an index.
func BenchmarkSnapshot(b *testing.B) {
	const n = 100_000
	a := New(Options{})
	blocks(a, n)
	t := a.Teller(0)
	b.ReportAllocs()
	for b.Loop() {
		index := kvindex.New(kvindex.Options{Key: 1})
		w := index.Endpoint(0)
		t.Open(1)
		for more := true; more; {
			var r *wire.Report
			r, more = t.Next(time.Time{})
			for _, e := range r.Events {
				w.Apply(time.Time{}, []epp.BlockEvent{{
					Kind: epp.BlockStored, Hashes: e.Names, Keys: e.Keys, Parent: e.Parent, HasParent: e.Parent != 0, BlockTokens: int(e.BlockTokens), Tier: e.Tier,
				}})
			}
		}
		if w.Blocks() != n {
			b.Fatalf("%d blocks; want %d", w.Blocks(), n)
		}
	}
	b.ReportMetric(float64(a.mirror.bytes)/n, "mirror-B/block")
}

// BenchmarkApply is one new block in a prompt of 100, told to one picker.
func BenchmarkApply(b *testing.B) {
	a := New(Options{})
	blocks(a, 10_000)
	t := a.Teller(0)
	t.Open(1)
	for _, more := t.Next(time.Time{}); more; _, more = t.Next(time.Time{}) {
	}
	tokens := make([]uint32, 16)
	hash := []uint64{1 << 40}
	events := []epp.BlockEvent{
		{Kind: epp.BlockStored, Tier: "GPU", BlockTokens: 16, Tokens: tokens, Hashes: hash, Parent: 100, HasParent: true},
		{Kind: epp.BlockRemoved, Tier: "GPU", Hashes: hash},
	}
	b.ReportAllocs()
	for b.Loop() {
		a.Apply(time.Time{}, events)
		t.Next(time.Time{})
	}
}
