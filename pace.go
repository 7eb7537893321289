package epp

// Work is what stands before a further prompt at one endpoint, and how fast the
// endpoint is.
type Work struct {
	// Pending is the work of our own prompts there whose first token was not seen,
	// as [WorkOf] measures it.
	Pending float64
	// Slowness is how many times the pool's time the endpoint takes for the same
	// work; 0: not known, which counts as 1.
	Slowness float64
}

// Pace is what a pool's endpoints take on average, in seconds, learnt from our own
// requests. A field that is 0 was not learnt yet.
type Pace struct {
	FirstToken float64 // to a first token, without any work
	PerWork    float64 // for a unit of work
	Answer     float64 // from the first token to the last, with no other request there
	PerRequest float64 // longer for each other request that was there when it came
}

// AttentionShare is how much a token of context adds to the work of a token behind
// it: 2 · layers · hidden ÷ parameters by arithmetic, which is 3.3e-5 for an 8B model
// with 32 layers of 4,096 and 1.9e-5 for a 70B one with 80 of 8,192, and more where
// attention is the less efficient: the engine profiles of 8B models have 3.2e-5 to
// 5.4e-5.
const AttentionShare = 4e-5

// WorkOf is what a prompt costs of which so many tokens are not cached, in units of
// one token without context: every one of them is computed, and looks at all
// before it.
func WorkOf(uncached, promptTokens int) float64 {
	u, cached := float64(max(0, uncached)), float64(max(0, promptTokens-uncached))
	return u + float64(AttentionShare*u)*(cached+float64(u/2))
}
