package sim

import (
	"slices"

	"epp.internal/epp/decision"
)

// Policy is one way to route.
type Policy struct {
	Name, Help string
	// readsEvents is true where it hears the engines' KV events.
	readsEvents bool
	make        func(w *world) (router, error)
}

// ours is a policy of the product: settings for the picker.
func ours(name, help string, set func(s *decision.Settings)) Policy {
	return Policy{name, help, true, func(w *world) (router, error) {
		s := decision.Defaults()
		if w.cfg.Engine.MaxRunning > 0 {
			s.Load.MaxRunning = 0
		}
		set(s)
		return newProduct(w, s)
	}}
}

// theirs is a policy of another router, which tracks caches by its own picks or
// not at all.
func theirs(name, help string, policy func(w *world) chooser) Policy {
	return Policy{name, help, false, func(w *world) (router, error) { return newBaseline(w, policy(w), false), nil }}
}

// hearing is theirs for a policy that hears KV events.
func hearing(name, help string, policy func(w *world) chooser) Policy {
	return Policy{name, help, true, func(w *world) (router, error) { return newBaseline(w, policy(w), true), nil }}
}

// Policies are all there are, in the order of reports.
var Policies []Policy

func init() {
	Policies = []Policy{
		ours("weighted", "the default: the weighted sum of cache, load, queue, health and adapter", func(*decision.Settings) {}),
		ours("weighted-tokens", "the same with load.source tokens", func(s *decision.Settings) { s.Load.Source = decision.LoadTokens }),
		theirs("random", "any endpoint", func(w *world) chooser { return &random{w.rand} }),
		theirs("round-robin", "one after the other", func(*world) chooser { return &roundRobin{} }),
		theirs("least-conn", "fewest own requests in flight, ties at random", func(w *world) chooser { return &leastConn{w.rand} }),
	}
}

// PolicyNamed returns the policy of that name, or nil.
func PolicyNamed(name string) *Policy {
	if i := slices.IndexFunc(Policies, func(p Policy) bool { return p.Name == name }); i >= 0 {
		return &Policies[i]
	}
	return nil
}

// PolicyNames returns the names of all policies.
func PolicyNames() []string {
	names := make([]string, len(Policies))
	for i := range Policies {
		names[i] = Policies[i].Name
	}
	return names
}
