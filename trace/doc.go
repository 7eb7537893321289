// Package trace holds request traces: when each request came, what its prompt
// shares with others, and how long its answer was. It reads the public forms
// ([ReadMooncake], [ReadAzure]), our own decision log ([ReadDecisions]) and logs of
// requests ([ReadVLLMLog], [ReadOpenAILog]), and makes workloads of its own ([Generate]).
//
// It is core: it opens no file and draws no chance but from a seed, so the same
// bytes and the same seed give the same trace.
//
// # Prompts without texts
//
// Public traces hold no text. A prompt is a list of segments; each has a name and
// a length, and two prompts share their tokens as far as their segments are the
// same. [Segment.AppendTokens] makes token IDs of a segment from its name alone:
// the same name always gives the same tokens, so the tokens of equal prefixes are
// equal, and everything behind a tokenizer can run on them unchanged.
//
//	t, err := trace.ReadMooncake("conversation", file)
//	for i := range t.Requests {
//		tokens = t.Requests[i].AppendPrompt(tokens[:0])
//	}
//
// # Invariants
//
// Requests are in the order of their arrival, At of the first one is 0 or more,
// and every prompt has a token at least. Everything read is bounded: a line by
// [MaxLineBytes], a trace by [MaxRequests], a prompt by [MaxTokens].
package trace
