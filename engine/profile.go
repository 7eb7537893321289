package engine

import (
	"math"
	"time"
)

// Profile says how long a step of an engine takes and how much it can hold. A
// step that computes N tokens, of them chunks of q_i prompt tokens behind c_i
// tokens of context, and one token for each answer j of ctx_j tokens, takes
//
//	T0 + max(TW, A*N) + B*Σ q_i*(c_i + q_i/2) + K*Σ ctx_j + S*s
//
// milliseconds. TW is the time to read the weights once, A the arithmetic of a
// token, B that of attention (4 * layers * hidden / FLOPS; the sum is twice the
// n² coefficient of a cold prompt), K the time to read a token's keys and values
// (bytes per token / memory bandwidth), S that to choose one token out of the
// vocabulary, for each of the s requests that get one: a GPU does it in no time that
// counts, a CPU does not.
type Profile struct {
	Name string

	T0, TW, A, B, K, S float64 // milliseconds

	// KVTokens is how many tokens the KV cache holds.
	KVTokens int
	// DollarsPerHour is the list price of the hardware, on demand: 3.67 for an A100
	// (Azure NC24ads A100 v4), 6.98 for an H100 (NC40ads H100 v5). Prices differ by
	// provider more than engines do.
	DollarsPerHour float64
	// Basis says where the figures come from.
	Basis string
}

// Profiles are the known profiles; the first is the default. The two of the
// article are about three times slower than kernels measured by Vidur: never mix
// the families in one comparison.
//
// KV bytes per token: 131,072 for the 8B models, 327,680 for the 70B ones.
var Profiles = [...]Profile{
	{
		Name: "article-8b", T0: 35, TW: 10, A: 0.198074, B: 6.4e-6, K: 8.2e-5, KVTokens: 412_000, DollarsPerHour: 3.67,
		Basis: "1×A100; 4,096 cold tokens take 900 ms and a full hit 45 ms, as the article gives them",
	},
	{
		Name: "article-70b", T0: 10, TW: 35, A: 1.926603, B: 3.56e-5, K: 2.05e-4, KVTokens: 104_000, DollarsPerHour: 3.67,
		Basis: "1×A100 with 4-bit weights; 4,096 cold tokens take 8,200 ms and a full hit 45 ms, as the article gives them",
	},
	{
		Name: "a100-8b", T0: 5, TW: 9.7, A: 0.0661, B: 2.8e-6, K: 8.2e-5, KVTokens: 412_000, DollarsPerHour: 3.67,
		Basis: "Vidur's A100 Llama-3-8B GEMM times, fitted by 8.1 + 0.0661 n ms; B from FLOPs at 60 %",
	},
	{
		Name: "h100-8b", T0: 4, TW: 5.6, A: 0.0202, B: 1.1e-6, K: 4.7e-5, KVTokens: 412_000, DollarsPerHour: 6.98,
		Basis: "Vidur's H100 7B GEMM times, fitted by 2.9 + 0.0202 n ms",
	},
	{
		Name: "a100-70b-tp4", T0: 10, TW: 24.9, A: 0.158, B: 3.5e-6, K: 5.1e-5, KVTokens: 437_000, DollarsPerHour: 14.68,
		Basis: "Vidur's A100 70B times at tensor parallelism 4, fitted by 15.4 + 0.158 n ms",
	},
	{
		Name: "a100-70b-tp8", T0: 10, TW: 14.3, A: 0.086, B: 1.75e-6, K: 2.6e-5, KVTokens: 1_300_000, DollarsPerHour: 29.36,
		Basis: "Vidur's A100 70B times at tensor parallelism 8, fitted by 5.6 + 0.086 n ms",
	},
}

// ProfileNamed returns the profile of that name, and whether there is one.
func ProfileNamed(name string) (Profile, bool) {
	for _, p := range Profiles {
		if p.Name == name {
			return p, true
		}
	}
	return Profile{}, false
}

// work is what a step computes, in the terms of Profile's formula.
type work struct {
	tokens    int     // N
	attention float64 // Σ q_i*(c_i + q_i/2)
	context   int     // Σ ctx_j
	samples   int     // s
}

// prefill adds a chunk of q prompt tokens behind c tokens of context.
func (w *work) prefill(q, c int) {
	w.tokens += q
	w.attention += float64(q) * (float64(c) + float64(q)/2)
}

// decode adds one token of an answer, ctx tokens into its request.
func (w *work) decode(ctx int) {
	w.tokens++
	w.context += ctx
}

// stepTime is how long a step with that work takes.
func (p *Profile) stepTime(w work) time.Duration {
	ms := p.T0 + max(p.TW, p.A*float64(w.tokens)) + p.B*w.attention + p.K*float64(w.context) + p.S*float64(w.samples)
	return time.Duration(math.Round(ms * float64(time.Millisecond)))
}
