// Package route decides: request, match, view, settings, now and seed go in, a
// pick comes out, together with every number that led to it. It is pure. The
// same input gives the same record, bit for bit, on every machine.
//
// Step 5 of a request's way: picker calls [Policy.Pick] under fleet's lock.
//
// A decision has three parts, in this order.
//
//   - Scorers rate every endpoint of the pool in [0, 1]: cache, load, queue,
//     health and adapter ([Builtins] is the only list).
//   - Filters leave endpoints out: tried before, outside the subset, another
//     model, sick (health below [HealthCutoff]), full (queue at maxQueue).
//   - The choice is the highest weighted sum. Sums that are equal on a grid of
//     1e-9 are told apart by lower load, then shorter queue, then the smallest
//     hash of (seed, name): no order of a list, and no lock.
//
// Where every healthy endpoint is full, [decision.Degrade] decides without the
// cutoff, so that the best match wins, but not on an endpoint whose queue is
// longer than the shortest by maxQueue or more.
//
// Every factor and every sum lies in [0, 1] for any input. A value that was
// never reported is replaced as [Queue] and [Load] say, and marked unknown.
package route
