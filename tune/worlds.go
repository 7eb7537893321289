package tune

import (
	"fmt"
	"slices"
	"time"

	"epp.internal/epp/engine"
	"epp.internal/epp/sim"
	"epp.internal/epp/trace"
)

// Condition is the two weights in another world than the configured one.
type Condition struct {
	Name           string
	Current, Other float64 // the objective, in seconds
}

// share is the difference as a share of Current: above 0 the change is worse there.
func (c *Condition) share() float64 {
	if c.Current == 0 {
		return 0
	}
	return (c.Other - c.Current) / c.Current
}

// world is a change of the fleet and of its traffic.
type world struct {
	name string
	// fleet changes the fleet, of a part of the given length; traffic scales its rate.
	fleet   func(c *sim.Config, long time.Duration)
	traffic float64
}

// worlds are what the winner must stand. Source: FRONTIER §6.
func worlds() []world {
	prefill := func(factor float64) func(*sim.Config, time.Duration) {
		return func(c *sim.Config, _ time.Duration) {
			c.Engine.Profile = slower(c.Engine.Profile, factor)
			c.Engines = slices.Clone(c.Engines)
			for i := range c.Engines {
				c.Engines[i].Profile = slower(c.Engines[i].Profile, factor)
			}
		}
	}
	readings := func(every time.Duration) func(*sim.Config, time.Duration) {
		return func(c *sim.Config, _ time.Duration) { c.ReportEvery, c.ReadingTakes = every, 0 }
	}
	endpoints := func(factor float64) func(*sim.Config, time.Duration) {
		return func(c *sim.Config, _ time.Duration) {
			c.Endpoints = max(1, int(float64(c.Endpoints)*factor+0.5))
			c.Engines = c.Engines[:min(len(c.Engines), c.Endpoints)]
		}
	}
	fault := func(f sim.Fault) func(*sim.Config, time.Duration) {
		return func(c *sim.Config, long time.Duration) {
			if f.Kind == sim.Restart {
				f.At = long / 2
			}
			c.Faults = append(slices.Clone(c.Faults), f)
		}
	}
	return []world{
		{"prompts computed twice as fast", prefill(0.5), 1},
		{"prompts computed half as fast", prefill(2), 1},
		{"a fifth less traffic", nil, 0.8},
		{"a fifth more traffic", nil, 1.2},
		{"readings every 100 ms", readings(100 * time.Millisecond), 1},
		{"readings every second", readings(time.Second), 1},
		{"readings every 5 s", readings(5 * time.Second), 1},
		{"a quarter fewer endpoints", endpoints(0.75), 1},
		{"a quarter more endpoints", endpoints(1.25), 1},
		{"one endpoint at half speed", fault(sim.Fault{Kind: sim.Slow, For: 24 * time.Hour, Factor: 2}), 1},
		{"one endpoint restarts", fault(sim.Fault{Kind: sim.Restart, For: 30 * time.Second}), 1},
	}
}

// slower takes the factor's time for prompts.
func slower(p engine.Profile, factor float64) engine.Profile {
	if p == (engine.Profile{}) {
		p = engine.Profiles[0]
	}
	p.A *= factor
	p.B *= factor
	return p
}

// paced brings the part's traffic at the factor's rate.
func (p part) paced(factor float64) part {
	out := part{&trace.Trace{Name: p.trace.Name, Requests: slices.Clone(p.trace.Requests)}, time.Duration(float64(p.from) / factor)}
	for i := range out.trace.Requests {
		r := &out.trace.Requests[i]
		r.At = time.Duration(float64(r.At) / factor)
	}
	return out
}

// otherWorlds runs both weights in each of them on the part.
func (t *tuning) otherWorlds(p part) error {
	for _, w := range worlds() {
		fleet, there := t.Sim, p
		if w.traffic != 1 {
			there = p.paced(w.traffic)
		}
		if w.fleet != nil {
			w.fleet(&fleet, p.trace.Duration())
		}
		c, err := t.compare("sensitivity", fleet, there, t.report.Proposed)
		if err != nil {
			return fmt.Errorf("%s: %w", w.name, err)
		}
		t.report.Conditions = append(t.report.Conditions, Condition{w.name, c.Current, c.Other})
	}
	return nil
}

// regret says where the change may be regretted more than keeping: its greatest
// loss is more than its greatest gain. Empty: nowhere.
func regret(conditions []Condition) string {
	worst := slices.MaxFunc(conditions, func(a, b Condition) int {
		if a.share() < b.share() {
			return -1
		}
		return 1
	})
	gain := 0.0
	for i := range conditions {
		gain = max(gain, -conditions[i].share())
	}
	if loss := worst.share(); loss > gain {
		return fmt.Sprintf("with %s the change loses %.1f %%, more than it gains anywhere (%.1f %%)", worst.Name, 100*loss, 100*gain)
	}
	return ""
}
