// Package epp holds the nouns of an endpoint picker for LLM inference: what a
// [Request] asks, what an [Endpoint] is and last said of itself ([Load],
// [Signals]), how much of a prompt it holds ([Match]), how it was rated
// ([Score]), and what kind of failure an [Error] is.
//
// Every other package speaks these words; this one imports the standard
// library alone and does nothing but keep invariants.
//
// # Two ways through the house
//
// A request's way in is openai, tokenize, block, kvindex, route and fleet, in
// that order, driven by picker. An endpoint's state comes the other way, from
// scrape and kvevents through fleet and kvindex. The two meet under one lock:
// a pick and its booking are one step, so that no two requests are decided on
// the same state.
//
// # Unknown is not zero
//
// A value that was never reported, or reported as NaN, infinite or negative,
// is unknown: [Gauge.Known] is false, or a Signals field says so. No unknown
// value becomes a number on the way to a score without the record telling.
package epp
