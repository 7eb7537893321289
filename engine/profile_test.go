package engine

import (
	"math"
	"testing"
	"time"
)

// prompt returns n tokens that begin at first.
func prompt(first, n int) []uint32 {
	out := make([]uint32, n)
	for i := range out {
		out[i] = uint32(first + i)
	}
	return out
}

// firstToken runs one request on an idle engine and returns how long its first
// token took.
func firstToken(t *testing.T, e *Engine, tokens []uint32) time.Duration {
	t.Helper()
	begun := time.Unix(0, 0)
	if err := e.Add(begun, &Request{Tokens: tokens, Answer: []uint32{1}}); err != nil {
		t.Fatal(err)
	}
	for at, ok := e.Next(); ok; at, ok = e.Next() {
		if s := e.Advance(at); len(s.Outputs) > 0 {
			return s.At.Sub(begun)
		}
	}
	t.Fatal("no token")
	return 0
}

// milliseconds tells whether d is want within 0.05.
func milliseconds(d time.Duration, want float64) bool {
	return math.Abs(float64(d)/1e6-want) <= 0.05
}

// The article's table: 4,096 tokens cold, and with their blocks in the cache and
// one token behind them to compute.
func TestArticlesPrefillTimes(t *testing.T) {
	for _, c := range []struct {
		profile   string
		cold, hit float64
	}{
		{"article-8b", 900.0, 45.0},
		{"article-70b", 8200.0, 45.1}, // the 0.1 is attention over the context
	} {
		p, ok := ProfileNamed(c.profile)
		if !ok {
			t.Fatalf("no profile %q", c.profile)
		}
		e := mustNew(t, Config{Profile: p})
		if d := firstToken(t, e, prompt(0, 4096)); !milliseconds(d, c.cold) {
			t.Errorf("%s cold: %v, want %v ms", c.profile, d, c.cold)
		}
		if d := firstToken(t, e, prompt(0, 4097)); !milliseconds(d, c.hit) {
			t.Errorf("%s hit: %v, want %v ms", c.profile, d, c.hit)
		}
	}
}

// A prompt that is in the cache to its last block computes that block again: 16
// tokens behind 4,080.
func TestLastBlockIsComputedAgain(t *testing.T) {
	e := mustNew(t, Config{})
	firstToken(t, e, prompt(0, 4096))
	want := 35 + 10 + 6.4e-6*16*(4080+8)
	if d := firstToken(t, e, prompt(0, 4096)); !milliseconds(d, want) {
		t.Errorf("%v, want %v ms", d, want)
	}
}

// A prompt longer than a step's tokens takes steps: each costs T0 again, and the
// second attends to the first.
func TestTwoChunks(t *testing.T) {
	e := mustNew(t, Config{MaxBatchTokens: 2048})
	first := 35 + 0.198074*2048 + 6.4e-6*2048*(0+1024)
	second := 35 + 0.198074*2048 + 6.4e-6*2048*(2048+1024)
	if d := firstToken(t, e, prompt(0, 4096)); !milliseconds(d, first+second) {
		t.Errorf("%v, want %v ms", d, first+second)
	}
}

// One decode step of a batch, by the formula.
func TestDecodeStep(t *testing.T) {
	e := mustNew(t, Config{})
	now := time.Unix(0, 0)
	for i := range 4 {
		if err := e.Add(now, &Request{Tokens: prompt(1000*i, 100), Answer: prompt(0, 9)}); err != nil {
			t.Fatal(err)
		}
	}
	e.Advance(now)
	begun, _ := e.Next()
	e.Advance(begun)
	end, _ := e.Next()
	want := 35 + 10 + 8.2e-5*4*101 // four tokens are read in the time of one
	if d := end.Sub(begun); !milliseconds(d, want) {
		t.Errorf("%v, want %v ms", d, want)
	}
}

// Every profile makes an engine whose prefill and decode take time.
func TestProfiles(t *testing.T) {
	seen := map[string]bool{}
	for _, p := range Profiles {
		if seen[p.Name] || p.Basis == "" {
			t.Errorf("%q: name twice or no basis", p.Name)
		}
		seen[p.Name] = true
		e := mustNew(t, Config{Profile: p})
		if got := e.Config().Blocks; got != p.KVTokens/16+1 {
			t.Errorf("%s: %d blocks", p.Name, got)
		}
		if p.DollarsPerHour <= 0 {
			t.Errorf("%s: no price", p.Name)
		}
		if d := firstToken(t, e, prompt(0, 64)); d <= 0 || d > time.Second {
			t.Errorf("%s: %v for 64 tokens", p.Name, d)
		}
	}
	if _, ok := ProfileNamed("none"); ok {
		t.Error("a profile of no name")
	}
}

// Published measurements and fits beside the profiles made of them, for prompts of n
// tokens on an idle engine and for decode steps of n answers of 1,024 tokens each. A
// range is how far the model may be from the figure, as a ratio; where it does not
// hold 1, the comment says why.
func TestPublishedTimes(t *testing.T) {
	prefill := func(p *Profile, n float64) float64 { return p.T0 + max(p.TW, p.A*n) + p.B*n*n/2 }
	decode := func(p *Profile, n float64) float64 { return p.T0 + max(p.TW, p.A*n) + p.K*n*1024 }
	for _, c := range []struct {
		name, profile string
		model         func(p *Profile, n float64) float64
		published     func(n float64) float64
		from, to      float64 // n, doubled each time
		low, high     float64
	}{
		// Vidur's are matrix products alone: attention comes on top, a sixth at 8,192.
		{"Vidur, A100, Llama-3-8B", "a100-8b", prefill, func(n float64) float64 { return 8.1 + 0.0661*n }, 512, 8192, 0.90, 1.17},
		{"Vidur, H100, Llama-2-7B", "h100-8b", prefill, func(n float64) float64 { return 2.9 + 0.0202*n }, 512, 8192, 0.98, 1.23},
		{"Vidur, A100 TP4, 70B", "a100-70b-tp4", prefill, func(n float64) float64 { return 15.4 + 0.158*n }, 512, 8192, 0.94, 1.10},
		// Dynamo's mocker charges 16.5 ms for the smallest prompt, we do not.
		{"Dynamo's mocker, H100, 8B", "h100-8b", prefill, func(n float64) float64 { return 4.209989e-7*n*n + 1.518344e-2*n + 16.50142 }, 2048, 8192, 0.95, 1.23},
		// Splitwise measured an older engine: a fifth to a third slower for prompts, up to
		// twice for large batches of answers, whose cost beside reading memory we leave out.
		{"Splitwise, A100 TP4, 70B, prompts", "a100-70b-tp4", prefill, func(n float64) float64 { return 41.5 + 0.157*n + 1.46e-5*n*n }, 512, 4096, 0.70, 0.84},
		{"Splitwise, A100 TP4, 70B, answers", "a100-70b-tp4", decode, func(n float64) float64 { return 42.8 + 0.433*n }, 1, 64, 0.53, 0.85},
		{"Splitwise, A100 TP8, 70B, answers", "a100-70b-tp8", decode, func(n float64) float64 { return 43.5 + 0.413*n }, 1, 64, 0.36, 0.60},
	} {
		p, ok := ProfileNamed(c.profile)
		if !ok {
			t.Fatalf("no profile %q", c.profile)
		}
		for n := c.from; n <= c.to; n *= 2 {
			if ratio := c.model(&p, n) / c.published(n); ratio < c.low || ratio > c.high {
				t.Errorf("%s: n = %.0f: the model takes %.2f times what was published, want %.2f–%.2f", c.name, n, ratio, c.low, c.high)
			}
		}
	}
}
