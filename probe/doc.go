// Package probe asks an engine for one token and says how that went: whether the
// model answers, not merely the process. It is a way of an endpoint's state in,
// beside scrape and kvevents, and off where nobody has configured it, for it costs
// the engine a request.
//
// A [Prober] runs one loop for each endpoint and tells a [Sink], which is the
// endpoint's row of fleet, or the agent beside the engine: health decides what a
// probe that failed means.
//
// # Invariants
//
//   - One probe of an endpoint is under way at a time, and each has a deadline.
//   - Its prompt is shorter than any block, so it fills no cache.
//   - An engine that refuses the question (4xx) has not answered it: that says
//     nothing of its health, and is logged. One that is full (429) works.
//   - Redirects are not followed, and an answer is read up to a bound.
//   - A change is logged once, not with each probe.
//
// # Example
//
//	p := probe.Prober{Client: client, Interval: 5 * time.Second, Timeout: 2 * time.Second}
//	go p.Run(ctx, probe.Target{Address: "10.0.0.7:8000"}, member)
package probe
