package config

import (
	"maps"
	"slices"

	"epp.internal/epp/decision"
)

// Preset is a set of settings for a kind of traffic.
type Preset struct {
	Weights  map[string]float64
	MaxQueue int
}

// presets are starting points, to be measured on one's own traffic (epp tune). The
// default weights are the article's for general traffic; the others move what their
// traffic lives by.
var presets = map[string]Preset{
	"general": {weigh(0.60, 0.20, 0.10, 0.05), 20},
	// Long conversations: a lost prefix costs more than a queue.
	"chat": {weigh(0.70, 0.10, 0.10, 0.05), 20},
	// Short requests that have to be quick: queues are met early, and are short.
	"api": {weigh(0.40, 0.20, 0.30, 0.05), 10},
	// Nobody waits for an answer: long queues keep engines full.
	"batch": {weigh(0.60, 0.20, 0.10, 0.05), 35},
	// Ten adapters and more: loading one costs more than a part of a prefix.
	"multi-lora": {weigh(0.45, 0.20, 0.10, 0.20), 20},
}

// weigh is a preset's weights; health is a tie-break in all of them.
func weigh(cache, load, queue, adapter float64) map[string]float64 {
	return map[string]float64{
		decision.CacheScorer: cache, decision.LoadScorer: load, decision.QueueScorer: queue,
		decision.HealthScorer: 0.05, decision.AdapterScorer: adapter,
	}
}

// Presets are the names of all presets, in the order of the alphabet.
func Presets() []string { return slices.Sorted(maps.Keys(presets)) }

// Use sets what the preset of that name has. It returns false, and sets nothing,
// where there is none.
func (c *Config) Use(preset string) bool {
	p, ok := presets[preset]
	if ok {
		c.Weights, c.MaxQueue = maps.Clone(p.Weights), p.MaxQueue
	}
	return ok
}
