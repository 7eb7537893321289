package engine

import (
	"math"
	"testing"
	"time"
)

// BenchmarkFleet is a simulator's load: 12,000 requests of 12,035 prompt and 343
// answer tokens on average, the means of the Mooncake conversation trace, on 8
// engines, with the trace's blocks of 512 tokens and vLLM's of 16.
func BenchmarkFleet(b *testing.B) {
	for _, c := range []struct {
		name        string
		blockTokens int
	}{{"block512", 512}, {"block16", 16}} {
		b.Run(c.name, func(b *testing.B) {
			p, _ := ProfileNamed("a100-8b")
			text := prompt(0, 1<<20)
			for b.Loop() {
				var c0 Counters
				for i := range 8 {
					c0.add(runOne(b, Config{Profile: p, BlockTokens: c.blockTokens}, text, uint64(i), 1500))
				}
				b.ReportMetric(float64(c0.AnswerTokens), "tokens/op")
				b.ReportMetric(float64(c0.Steps), "steps/op")
				b.ReportMetric(float64(c0.CachedTokens)/float64(c0.PromptTokens), "hit")
			}
		})
	}
}

func (c *Counters) add(d Counters) {
	c.AnswerTokens += d.AnswerTokens
	c.Steps += d.Steps
	c.CachedTokens += d.CachedTokens
	c.PromptTokens += d.PromptTokens
}

// runOne runs n requests that arrive at even intervals on one engine.
func runOne(b *testing.B, cfg Config, text []uint32, seed uint64, n int) Counters {
	e := mustNew(b, cfg)
	start := time.Unix(0, 0)
	state := seed
	uniform := func() float64 { // an LCG of Knuth's MMIX
		state = state*6364136223846793005 + 1442695040888963407
		return float64(state>>11) / (1 << 53)
	}
	exponential := func(mean float64) int { return 1 + int(-mean*math.Log(1-uniform())) }
	for i := range n {
		arrival := start.Add(time.Duration(i) * 2350 * time.Millisecond)
		for at, ok := e.Next(); ok && !at.After(arrival); at, ok = e.Next() {
			e.Advance(at)
		}
		length := min(exponential(12035), 126_195)
		first := int(uniform()*4) * 200_000 // four prompts that others continue
		r := &Request{Tokens: text[first : first+length], Answer: text[:min(exponential(343), 2000)]}
		if err := e.Add(arrival, r); err != nil {
			b.Fatal(err)
		}
	}
	for at, ok := e.Next(); ok; at, ok = e.Next() {
		e.Advance(at)
	}
	return e.Counters()
}
