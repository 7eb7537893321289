// Package openai reads bodies of the OpenAI-shaped API: of a request what
// routing needs, of an answer whether its first token came and what it used.
// It is the first step of a request's way in.
//
// A request's body is read once, by a scanner of our own, into a tree of spans;
// it is never encoded again. What reaches the engine is what the client sent,
// byte for byte, but for the value of "model" where that has to change:
//
//	b, err := openai.Read("/v1/chat/completions", body)
//	if err != nil {
//		return openai.ErrorBody(epp.AsError(err), requestID)
//	}
//	forward(b.WithModel("llama-3-8b-sql"))
//
// # Forms
//
// Completions, embeddings and reranks have prompts ([Body.Prompts]); Anthropic's
// messages and OpenAI's responses are read as the chat that an engine makes of them
// before it renders the prompt ([Body.AsChat]). Pictures and sound are known by what
// refers to them ([Body.Media]).
//
// # What counts as JSON
//
// The scanner takes what Python's json.loads takes, since vLLM reads bodies
// with it, and refuses what it refuses: NaN, Infinity and -Infinity are numbers;
// of a key that is there twice the last value wins, in the place of the first;
// control characters in a string, a comma at the end and invalid UTF-8 are
// errors; a byte order mark of UTF-8 is passed over. A lone surrogate in a
// string ("\ud800") is refused too: json.loads takes it, but the next steps in
// vLLM (pydantic, the tokenizer) don't. Bodies in UTF-16 or UTF-32, which
// json.loads takes, are refused.
//
// # Bounds
//
// Nesting is bounded by [MaxDepth], the number of values by [MaxValues]; a list
// of numbers counts as one value. An answer's reader holds at most
// [MaxEventBytes], whatever is fed to it.
package openai
