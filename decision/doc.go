// Package decision holds the record of a decision: every number that led to a
// pick, written once, while it is made, and read by all that log, count,
// explain, replay or draw it. Nothing recomputes a score elsewhere.
//
// A [Record] carries the raw signals of every endpoint, the settings and the
// seed, so the decision can be made again from the record alone
// (route.Replay). A [Ring] keeps the latest records within a bound of bytes.
//
// Step 6 of a request's way: route fills the record under fleet's lock, picker
// logs it and puts it into the ring.
package decision
