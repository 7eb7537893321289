// Package tune looks for better weights on a trace, and says "keep" where it cannot
// prove that they are. It is an edge beside cmd: it runs whole simulations.
//
// # How it judges
//
// The trace is split by time: weights are looked for on the first half, held
// against the current ones on the next quarter, and the last quarter is read once,
// after everything else has said yes. Each part is warmed by the traffic before it,
// which is in no figure. Two weights always see the same requests, engines and
// chance, so requests are compared in pairs; the interval of the difference comes
// from a bootstrap over blocks of a minute, since requests of one minute are not
// independent.
//
// A change is proposed only if that interval excludes no gain, on both parts; the
// gain is more than what the simulator may be wrong by; the slowest answers and the
// failures get no worse; and no other hardware, rate, lag or fault that was tried
// would make the change the worse bet.
//
// # Invariants
//
// The same configuration gives the same report. A proposal's weights are each at
// least 0, sum up to what they did, and move by no more than [Config.MaxMove]. Part
// of [Config.Source] beyond its third quarter is asked for last, or never.
//
// # Example
//
//	report, err := tune.Run(ctx, tune.Config{Source: trace, Sim: fleet, Current: decision.Defaults()})
//	if err == nil && report.Change {
//		os.WriteFile("patch.yaml", report.Patch(), 0o644)
//	}
package tune
