package sim

import (
	"slices"
	"time"

	"epp.internal/epp/decision"
	"epp.internal/epp/engine"
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
		ours("gate", "the default behind a latency gate of 300 ms", func(s *decision.Settings) { s.Gate = 300 * time.Millisecond }),
		ours("gate-1s", "the default behind a latency gate of 1 s", func(s *decision.Settings) { s.Gate = time.Second }),
		ours("spread-cold", "the default with spread.cold", func(s *decision.Settings) { s.Spread.Cold = true }),
		ours("spread-hot", "the default with spread.hot", func(s *decision.Settings) { s.Spread.Hot = true }),
		ours("latency", "the lowest predicted time, its own and what it costs others", func(s *decision.Settings) { s.Policy = decision.Latency }),
		theirs("random", "any endpoint", func(w *world) chooser { return &random{w.rand} }),
		theirs("round-robin", "one after the other", func(*world) chooser { return &roundRobin{} }),
		theirs("weighted-round-robin", "one after the other, as often as its hardware is fast", func(w *world) chooser {
			return &weightedRoundRobin{w.speed, map[int]float64{}}
		}),
		theirs("least-conn", "fewest own requests in flight, ties at random", func(w *world) chooser { return &leastConn{w.rand} }),
		theirs("p2c", "the better of two drawn endpoints", func(w *world) chooser { return &p2c{w.rand} }),
		theirs("header-hash", "a hash of the conversation's header", func(*world) chooser { return &hashed{} }),
		theirs("url-hash", "a hash of the URL, which all requests share", func(*world) chooser { return &hashed{url: true} }),
		theirs("chwbl", "consistent hashing with bounded loads, by the first 1,024 tokens", func(*world) chooser { return &chwbl{keyBlocks: 64} }),
		theirs("chwbl-100", "the same by the first 100 characters, as KubeAI has it", func(*world) chooser { return &chwbl{keyBlocks: 2} }),
		theirs("prefix-hash", "smg's prefix_hash, by the first 256 tokens", func(*world) chooser { return &chwbl{keyBlocks: 16, leastOnOverload: true} }),
		theirs("sglang", "cache-aware, smg's defaults: 0.5, 32, 1.1", func(*world) chooser {
			return newSGLang(0.5, 32, 1.1, false, 160_000)
		}),
		theirs("sglang-0.3", "cache-aware, sglang-router 0.3.2: 0.3, 64, 1.5", func(*world) chooser {
			return newSGLang(0.3, 64, 1.5, true, 1<<26/4/64)
		}),
		theirs("vllm-router", "cache-aware, vllm-router 0.1.17: 0.3, 64, 1.5", func(*world) chooser {
			return newSGLang(0.3, 64, 1.5, true, 1<<25/4/64)
		}),
		hearing("dynamo", "Dynamo's cost: prefill and active blocks", func(w *world) chooser { return &dynamo{w.rand, map[int]map[uint64]int{}} }),
		theirs("llm-d", "llm-d-router's built-in profile: prefix 3, queue 2, KV 2", func(w *world) chooser {
			return &llmd{rand: w.rand, prefix: 3, queue: 2, kv: 2, own: seen{unit: llmdUnit, most: llmdMaxUnits}}
		}),
		hearing("llm-d-precise", "llm-d-router with KV events: prefix 2, queue 1, KV 1", func(w *world) chooser {
			return &llmd{rand: w.rand, prefix: 2, queue: 1, kv: 1, precise: true}
		}),
		theirs("aibrix", "AIBrix's prefix-cache", func(w *world) chooser {
			return &aibrix{w.rand, seen{unit: 1, most: aibrixBlocks / w.cfg.Endpoints, ttl: aibrixTTL}}
		}),
		theirs("aibrix-preble", "AIBrix's prefix-cache-preble", func(w *world) chooser { return w.preble(true) }),
		theirs("production-stack", "vLLM production-stack's prefixaware", func(w *world) chooser { return &productionStack{w.rand, seen{unit: 2}} }),
		theirs("ray", "Ray Serve's prefix-cache affinity", func(w *world) chooser { return &ray{w.rand, seen{unit: 4}} }),
		theirs("preble", "Preble's E2", func(w *world) chooser { return w.preble(false) }),
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

// speed is how fast a slot's hardware computes prompts, as a multiple of the first
// one's: whole numbers for equal ones, so that nothing drifts.
func (w *world) speed(slot int) float64 {
	cfg := w.cfg.Engine
	if slot < len(w.cfg.Engines) {
		cfg = w.cfg.Engines[slot]
	}
	return profileOf(w.cfg.Engine).A / profileOf(cfg).A
}

// profileOf is the profile of an engine, the default's where none is set.
func profileOf(cfg engine.Config) engine.Profile {
	if cfg.Profile == (engine.Profile{}) {
		return engine.Profiles[0]
	}
	return cfg.Profile
}

// preble is the policy for the run's hardware.
func (w *world) preble(guard bool) *preble {
	p := profileOf(w.cfg.Engine)
	return &preble{
		rand: w.rand, guard: guard, holds: p.KVTokens,
		prefill: func(tokens int) float64 { n := float64(tokens); return (p.A*n + p.B*n*n/2) / 1000 },
		decode:  prebleDecoded * (p.T0 + p.TW) / 1000,
		tree:    seen{unit: 4, most: p.KVTokens / blockTokens / 4},
		window:  window{prebleWindow, map[int]*windowSlot{}},
	}
}
