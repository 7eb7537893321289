// Package scrape reads what an engine says of itself over HTTP: its /metrics
// page as an [epp.Load], and its /v1/models as a list of [epp.Model].
//
// It is the first half of an endpoint's state's way in: a [Group] runs one loop
// for each endpoint and writes what it reads into a [Sink], which is the
// endpoint's row of fleet. Parsing is pure: [Parse] turns the bytes of a page
// into a [Page], reads no clock and knows no socket.
//
// # Invariants
//
//   - Unknown is not zero: a metric that is absent, malformed, NaN, infinite,
//     negative or absurd leaves its gauge unknown, and is named.
//   - A reading counts from when it began, not from when it arrived: Sink.Begin
//     is called before the request goes out.
//   - An endpoint that is slow, or answers nonsense, costs no other endpoint a
//     reading: each has its own loop, deadline and body limit.
//   - Redirects are not followed and the environment's proxies are not used: an
//     engine is read at its own address or not at all.
//   - A change of state is logged once, not with each reading.
//
// # Example
//
//	client := scrape.Client(nil)
//	defer client.CloseIdleConnections()
//	g := scrape.Group{Client: client, Log: log}
//	go g.Run(ctx, scrape.Target{Address: "10.0.0.7:8000"}, sink)
package scrape
