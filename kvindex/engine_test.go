package kvindex

import (
	"testing"
	"time"

	"pgregory.net/rapid"

	"epp.internal/epp/block"
	"epp.internal/epp/engine"
)

// Whatever requests an engine of few blocks runs, side by side or one after
// another, with adapters and salts, the index says of every prompt what the engine
// then finds in its cache. The model of package engine keeps a block for each
// request that computed it, as vLLM does, and tells of each one's eviction.
func TestIndexSaysWhatTheEngineHolds(t *testing.T) {
	second := uint64(0)
	rapid.Check(t, func(t *rapid.T) {
		const size = 4
		e, err := engine.New(engine.Config{BlockTokens: size, Blocks: 14, MaxRunning: 4, MaxAdapters: 2})
		if err != nil {
			t.Fatal(err)
		}
		x := New(Options{Key: 5})
		w := x.Endpoint(0)
		now := time.Unix(100, 0)
		var asked []*engine.Request
		reset := false // not told yet: that comes with the next step
		t.Repeat(map[string]func(*rapid.T){
			"ask": func(t *rapid.T) {
				r := &engine.Request{
					Tokens: drawTokens(t, rapid.IntRange(1, 4).Draw(t, "blocks"), size), Answer: make([]uint32, rapid.IntRange(1, 6).Draw(t, "answer")),
					Adapter: rapid.SampledFrom([]string{"", "", "sql"}).Draw(t, "adapter"), Salt: rapid.SampledFrom([]string{"", "", "s"}).Draw(t, "salt"),
				}
				if err := e.Add(now, r); err != nil {
					t.Fatal(err)
				}
				asked = append(asked, r)
			},
			"reset": func(*rapid.T) { reset = e.ResetPrefixCache() || reset },
			"": func(t *rapid.T) {
				if at, due := e.Next(); due && rapid.Bool().Draw(t, "step") {
					if now.Before(at) {
						now = at
					}
					step := e.Advance(now)
					w.Apply(now, step.Events)
					reset = reset && !step.Ended
				}
				if _, due := e.Next(); due || reset {
					return // what a step has changed is told when it has ended
				}
				for _, r := range asked {
					out := make([]uint32, 1)
					root := block.Key(5).Root(block.Root{Adapter: r.Adapter, Salt: r.Salt, BlockTokens: size})
					x.Match(block.AppendChain(nil, root, r.Tokens, size), out)
					if want := e.Holds(r.Tokens, r.Adapter, r.Salt); int(out[0]) != want {
						t.Fatalf("%v of %q and %q matches %d blocks, the engine holds %d", r.Tokens, r.Adapter, r.Salt, out[0], want)
					}
				}
			},
		})
		second += w.Stats().Duplicates
		checkConsistent(t, x)
	})
	if second == 0 {
		t.Error("no block had a second copy")
	}
}
