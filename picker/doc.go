// Package picker is the pipeline of one request, owned once: read the body,
// resolve the model, tokenize, match, pick and book under one lock, record,
// and follow the answer to its end. The proxy, the ext_proc service, the demo
// and the simulator call it; none of them has a second copy of a step.
//
// An edge calls [Picker.Pick] with what it knows, sends the request to
// Pick.Endpoint with Pick.Body, shows the answer's bytes to the Pick as they
// pass, and calls [Pick.End] exactly once, whatever happened:
//
//	p, err := pk.Pick(ctx, picker.Incoming{ID: picker.NewID(), Method: "POST", Path: "/v1/chat/completions", Body: body})
//	if err != nil { … answer epp.AsError(err) … }
//	defer p.End(outcome)
//
// The clock, the source of seeds and the logger come in with [Options].
//
// # Where a prompt's tokens come from
//
// The first of these that can: the token IDs that the client sent; the model's
// own tokenizer ([Options.Tokenizer]); an engine's ([Options.AskEngine]), for which
// a request waits 20 ms at most, and which is left alone for a while when it is
// slow or broken; and, where [Options.Learn] is set, the prompt's bytes, which match
// our own earlier picks alone. Which one it was, and why, is in the record, and no
// failure of any of them is the client's.
//
// Each prompt of a list is matched on its own: the ratio is matched tokens of all
// over blocked tokens of all. Pictures and sound are never fetched: what stands
// before the first one matches an engine's blocks, what comes behind it our own
// earlier picks.
//
// # Compressed bodies
//
// A gzip or zstd body is decoded within a bound, and the decoded body is sent,
// since vLLM reads no other; [Options.ForwardEncoded] sends it on as it came.
package picker
