// Package report carries what an agent beside an engine knows to the pickers: a
// second way in for an endpoint's state, in place of scrape and kvevents, and
// with what these cannot see (accelerators, probes).
//
// A [Client] runs in the agent, one for each picker; a [Server] runs in the
// picker. Between them is one gRPC stream for each endpoint, in the form of
// package wire. The picker's first order has its key; the agent hashes under it,
// so that no token leaves its host, and sends all it knows; then what changes,
// at once, and something at least every interval.
//
// # What holds
//
// An agent speaks for one endpoint, which it names when it opens. It may do so
// where it shows a token or a certificate that the picker trusts, and where it
// comes from the endpoint's own address or its certificate has that address.
// Nothing it sends can touch another endpoint. The latest stream of an endpoint
// counts, the one before ends.
//
// Reports are numbered. Where one is missing, what the agent said of blocks
// counts as incomplete until a snapshot has come, which is ordered at once, and
// again each interval. An agent that finds its picker too slow sends a snapshot
// by itself: neither side's queue grows.
//
// A stream that is silent for [Silent] intervals is over, as is one that breaks
// a bound. Its end is told, so that the picker can read the engine itself.
//
//	srv := report.NewServer(report.Options{Token: token, Key: key, Open: open})
//	err := srv.Serve(listener)
package report
