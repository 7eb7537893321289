// Package metrics holds every Prometheus name of the picker, and the page that
// shows them. It is an edge: the other edges know no Prometheus, they take
// structs of funcs, and cmd fills those with the methods of [Metrics].
//
// # What holds
//
// Counters and histograms are fed by what happens; whatever is a state (queues,
// health, sizes) is read from one [Snapshot] when the page is asked for, so the
// series of an endpoint that has left are gone with the next page, and all
// gauges of a page are of one moment.
//
// No label takes a value from outside without a bound. A model's name becomes a
// label only once a request for it was served, and only the first 200 do; the
// others are "other". Names that the configuration knows are always themselves.
//
// Names end in their unit, as Prometheus asks; the names that other documents
// fix (epp_scoring_latency_us and its like) are listed in internal/lint.
//
//	m := metrics.New(metrics.Options{Models: names, Snapshot: snapshot})
//	m.Decision(record)
//	http.Handle("/metrics", m.Handler())
package metrics
