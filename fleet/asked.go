package fleet

import (
	"epp.internal/epp"
	"epp.internal/epp/health"
)

// Asked returns the endpoint that a question about a model is for: of those that
// are healthy and that skip does not take out, one that lists the target, or, where
// none does, one whose list is not known; the one with the least of our requests in
// flight, and those with as few in turns. An empty target is any engine's. listed is
// true where the endpoint is known to have the model, ok false where there is none to
// ask. skip is called under the table's lock, and must not call the table.
func (t *Table) Asked(target string, skip func(epp.Endpoint) bool) (e epp.Endpoint, listed, ok bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	best := -1
	for i := range t.members {
		i = (t.asked + 1 + i) % len(t.members)
		s := &t.signals[i]
		lists := target == "" || t.serving[target].Has(t.endpoints[i].Slot)
		switch {
		case s.Health < health.Cutoff || skip(t.endpoints[i]):
		case !lists && (listed || !t.unlisted.Has(t.endpoints[i].Slot)):
		case best < 0 || lists && !listed || s.InFlight < t.signals[best].InFlight:
			best, listed = i, lists
		}
	}
	if best < 0 {
		return epp.Endpoint{}, false, false
	}
	t.asked = best
	return t.endpoints[best], listed, true
}
