package openai

// Usage is what an answer says of the tokens it took. A count is -1 where it
// was not told, or told as something that no count is.
type Usage struct {
	PromptTokens     int // all of the prompt, cached ones included
	CompletionTokens int
	CachedTokens     int // of PromptTokens, how many the engine had in its cache
}

// merge takes over from v, a "usage" object, each count that is there. An answer
// may tell its counts in parts, and again with higher values: the highest one
// told wins, since none of them ever falls.
//
// Sources: usage of OpenAI's chat/completions (prompt_tokens, completion_tokens,
// prompt_tokens_details.cached_tokens) and responses (input_tokens,
// output_tokens, input_tokens_details.cached_tokens); of Anthropic's messages
// (input_tokens without the cached ones, cache_read_input_tokens,
// cache_creation_input_tokens, output_tokens), which vLLM follows.
func (u *Usage) merge(v Value) {
	if n, ok := count(v.Get("prompt_tokens")); ok {
		u.PromptTokens = max(u.PromptTokens, n)
	}
	if n, ok := count(v.Get("input_tokens")); ok {
		read, told := count(v.Get("cache_read_input_tokens"))
		if told {
			u.CachedTokens = max(u.CachedTokens, read)
		} else {
			read = 0
		}
		if created, ok := count(v.Get("cache_creation_input_tokens")); ok {
			read += created
		}
		u.PromptTokens = max(u.PromptTokens, n+read)
	}
	for _, key := range [...]string{"completion_tokens", "output_tokens"} {
		if n, ok := count(v.Get(key)); ok {
			u.CompletionTokens = max(u.CompletionTokens, n)
		}
	}
	for _, key := range [...]string{"prompt_tokens_details", "input_tokens_details"} {
		if n, ok := count(v.Get(key).Get("cached_tokens")); ok {
			u.CachedTokens = max(u.CachedTokens, n)
		}
	}
}

// maxCount is above any count of tokens that a request can have.
const maxCount = 1 << 40

// count reads a count of tokens, from a number or a string that holds one.
func count(v Value) (int, bool) {
	n, ok := v.Int()
	return n, ok && n >= 0 && n <= maxCount
}
