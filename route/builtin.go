package route

import (
	"strings"
	"time"

	"epp.internal/epp"
	"epp.internal/epp/decision"
)

// Input is what a scorer sees. It is valid only during the call.
type Input struct {
	Request *epp.Request
	// Match is indexed by slot: View.Endpoints[i].Slot leads into it. A slot
	// beyond its end holds nothing.
	Match []epp.Match
	// BlockedTokens is the number of prompt tokens in full blocks of the pool's
	// smallest block size: the denominator of the match ratio.
	BlockedTokens int
	View          epp.View
	Settings      *decision.Settings
	// Predict has predictions made and recorded where the settings do not ask for
	// them: so that a record can be decided again by settings that do.
	Predict bool
	Now     time.Time
}

// MatchOf is how much of the prompt endpoint i holds.
func (in *Input) MatchOf(i int) epp.Match {
	if s := int(in.View.Endpoints[i].Slot); s < len(in.Match) {
		return in.Match[s]
	}
	return epp.Match{}
}

// A Scorer rates every endpoint of the pool. It writes out[i].Value in [0, 1],
// higher is better, for in.View.Endpoints[i]; len(out) == len(in.View.Endpoints),
// and out is zero before. It must not keep in or out, must not block, and must
// give the same out for the same in.
type Scorer interface {
	Score(in *Input, out []epp.Score)
}

// Builtin is one line of the table of scorers.
type Builtin struct {
	Name   string
	Help   string
	Scorer Scorer
}

// Builtins are the scorers of the house: the only list there is. A policy rates an
// endpoint by all of them at once, from one look at its signals, and gives what
// their columns give (TestPickIsItsColumns).
var Builtins = []Builtin{
	{decision.CacheScorer, "share of the prompt's full blocks that the endpoint holds", Cache{}},
	{decision.LoadScorer, "1 − load; load by load.source", Load{}},
	{decision.QueueScorer, "1 − waiting requests ÷ maxQueue", Queue{}},
	{decision.HealthScorer, "the endpoint's health; under 0.3 it gets nothing", Health{}},
	{decision.AdapterScorer, "1 where the asked LoRA adapter is resident, or none is asked", Adapter{}},
}

// names are the scorers' names, for a fault.
func names() string {
	all := make([]string, len(Builtins))
	for i, b := range Builtins {
		all[i] = b.Name
	}
	return strings.Join(all, ", ")
}

// Cache rates the share of the prompt that the endpoint need not compute:
// matched tokens ÷ tokens in full blocks of the pool's smallest block size. With
// one size in the pool that is matched blocks ÷ full blocks. 0 for a prompt
// under one block. An endpoint whose claims did not come true lately has that part
// taken off (Signals.Doubt). Where nothing was ever heard of the endpoint's cache, and our
// own picks know of nothing there, it is 0 and unknown.
type Cache struct{}

// Score implements [Scorer].
func (Cache) Score(in *Input, out []epp.Score) {
	for i := range out {
		m, s := in.MatchOf(i), &in.View.Signals[i]
		out[i] = epp.Score{Value: blockedTokens(in.BlockedTokens).share(m, s.Doubt), Unknown: cacheUnknown(s, m)}
	}
}

// Load prefers endpoints with room: 1 − min(1, load), where load is by default
// requests: max(own in flight, running + waiting + Δ) ÷ maxRunning, or ÷ 32
// where that is not set. Where nothing was ever reported, our own requests in
// flight are the load.
type Load struct{}

// Score implements [Scorer].
func (Load) Score(in *Input, out []epp.Score) {
	m := measureOf(in.Settings)
	for i := range out {
		load, unknown := m.load(&in.View.Signals[i])
		out[i] = epp.Score{Value: 1 - unit(load), Unknown: unknown}
	}
}

// Queue prefers endpoints with few waiting requests: 1 for an empty queue, 0
// from maxQueue on, linear between. Where nothing was ever reported, the picks
// in our own ledger are the queue.
//
// Source: vllm:num_requests_waiting, and the picks since that report that found
// no free slot.
type Queue struct{}

// Score implements [Scorer].
func (Queue) Score(in *Input, out []epp.Score) {
	for i := range out {
		depth, unknown := queueDepth(&in.View.Signals[i])
		out[i] = epp.Score{Value: 1 - unit(depth/float64(in.Settings.MaxQueue)), Unknown: unknown}
	}
}

// Health is the endpoint's health, less 0.1 for every 5 s that its reports are
// overdue, down to the cutoff and no further for that alone.
type Health struct{}

// Score implements [Scorer].
func (Health) Score(in *Input, out []epp.Score) {
	for i := range out {
		out[i].Value = unit(healthOf(&in.View.Signals[i], in.Now, in.Settings.StaleAfter))
	}
}

// Adapter is 1 where the asked LoRA adapter is resident, or none is asked; else 0,
// which is unknown where the endpoint never told of adapters.
//
// Source: vllm:lora_requests_info, and our own picks.
type Adapter struct{}

// Score implements [Scorer].
func (Adapter) Score(in *Input, out []epp.Score) {
	for i := range out {
		resident := in.Request.Adapter == "" || in.View.Resident.Has(in.View.Endpoints[i].Slot)
		out[i] = epp.Score{Value: residence(resident), Unknown: adapterUnknown(&in.View.Signals[i], resident)}
	}
}

// Interface guards.
var (
	_ Scorer = Cache{}
	_ Scorer = Load{}
	_ Scorer = Queue{}
	_ Scorer = Health{}
	_ Scorer = Adapter{}
)
