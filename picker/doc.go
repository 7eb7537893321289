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
package picker
