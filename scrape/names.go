package scrape

// Names are the metrics that are read of an engine's page. Where several names
// of one metric are given the first one that the page has counts: the newest
// comes first. An empty name is a metric that the engine does not have.
type Names struct {
	Waiting []string // requests that wait; gauge
	Running []string // requests that run; gauge
	KVUsage []string // fraction of the KV cache in use, 0–1; gauge

	// Counters since the engine's start that not every engine has: tokens of all
	// prompts, those of them that were cached, tokens of all answers, and the sum of
	// all times to first token in seconds.
	PromptTokens, CachedTokens, GeneratedTokens, FirstTokenSeconds string

	// Adapters has its facts in labels and the time of the last change as value;
	// of several series the one with the greatest value counts, for an engine
	// never removes one.
	Adapters                                     string
	RunningAdapters, WaitingAdapters, MaxAdapter string // its labels

	// Cache has its facts in labels; the value is always 1. Some engines have the
	// same facts as gauges.
	Cache                         string
	BlockTokens, Blocks           string // its labels
	BlockTokensGauge, BlocksGauge string

	// Sleep is 1 with the label SleepState="awake" while the engine serves.
	Sleep, SleepState, Awake string

	// Engine is the label that tells the data-parallel ranks on one page apart.
	Engine string
	// Copies are the labels that tell ranks apart which all do the same work: of series
	// that differ in nothing else the greatest counts.
	Copies []string
}
