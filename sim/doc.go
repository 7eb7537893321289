// Package sim runs a trace against simulated engines and the serving code itself:
// picker, route, kvindex, fleet and block decide as they do in production, engine
// computes as under the fake vLLM, and a seeded clock takes the place of time.
//
// It is an edge, in the place of proxy and extproc: it calls the picker with a
// request's tokens, shows it the answer's bytes and tells it the end. In the
// place of scrape and kvevents it writes each endpoint's readings and KV events
// into its fleet.Member, as late, as lossy and as often as [Config] says.
//
//	t, err := trace.ReadMooncake("conversation", file)
//	r, err := sim.Run(ctx, sim.Config{Trace: t, Policy: "weighted", Endpoints: 8, Seed: 1})
//	fmt.Println(r.Summary().MeanTTFT)
//
// # How time passes
//
// There is one goroutine and one heap of events: arrivals, engine steps, readings,
// deliveries of KV events, faults. The earliest is taken, those of one time in the
// order in which they were planned. The same Config gives the same Result, byte
// for byte, on every machine.
//
// # Policies
//
// [Policies] is the list of all: our own, made by the picker, and those of other
// routers, each in a file with its rule and its constants. They see what they would
// see: their own requests in flight, the readings as old as they are, and the
// cache as their projects track it: by events, or by their own earlier picks.
package sim
