package picker

import (
	"cmp"
	"math/bits"
	"strings"

	"epp.internal/epp"
	"epp.internal/epp/openai"
)

// ModelRule says what a name means that clients use. The zero rule leaves the name
// as it is.
type ModelRule struct {
	// Targets are what the requests are divided among; empty: the name itself.
	Targets []Target
	// Priority is the requests': below 0 they are refused with 429 where every healthy
	// endpoint is full.
	Priority int
}

// Target is a name that endpoints know.
type Target struct {
	// Name, empty: the one that was asked for.
	Name string
	// Weight is its part of the sum of its rule's weights, 0–1,000,000. Where that sum
	// is 0 all have equal parts.
	Weight int
	// Adapter is true for a LoRA adapter.
	Adapter bool
}

// Names of rules that hold for many names.
const (
	// CatchAll is the name of the rule for all names that are not known otherwise.
	CatchAll = "*"
	// Unnamed is the name of the rule for all names that have none of their own, known
	// or not; beside it CatchAll is never asked.
	Unnamed = "**"
)

// Names are what names mean in requests. They must not change any more once a picker
// has them.
type Names struct {
	// Models are the names that the configuration gives a meaning. They win over
	// what endpoints list. The rule of CatchAll holds for every name that neither
	// knows, and for requests that name none; the rule of Unnamed for every name that is
	// not here.
	Models map[string]ModelRule
	// Default is the name that a request means which names no model. Empty:
	// such a request is refused, unless there is a rule of CatchAll or Unnamed.
	Default string
	// Objectives are priorities by the names that requests may give in ObjectiveHeader.
	// One lowers the priority that the model's rule gives, and never raises it.
	Objectives map[string]int
}

// SetNames has later requests resolved by names, in place of Options.Names. Each request
// sees one of them, whole.
func (p *Picker) SetNames(names Names) { p.names.Store(&names) }

// choose returns the rule's target of a decision: each in proportion to its weight
// over the seeds, one of weight 0 never, and for one seed always the same.
func (r *ModelRule) choose(seed uint64) Target {
	switch len(r.Targets) {
	case 0:
		return Target{}
	case 1:
		return r.Targets[0]
	}
	sum := uint64(0)
	for i := range r.Targets {
		sum += uint64(max(0, r.Targets[i].Weight))
	}
	equal := sum == 0
	if equal {
		sum = uint64(len(r.Targets))
	}
	at, _ := bits.Mul64(mixed(seed), sum) // 0 ≤ at < sum
	for i := range r.Targets {
		part := uint64(1)
		if !equal {
			part = uint64(max(0, r.Targets[i].Weight))
		}
		if at < part {
			return r.Targets[i]
		}
		at -= part
	}
	return Target{} // not reached: at is below the sum of the parts
}

// mixed is SplitMix64's step from a seed: the seed's other use, ties, is told apart
// from it, and near seeds fall apart.
func mixed(seed uint64) uint64 {
	z := seed + 0x9e3779b97f4a7c15
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return z ^ z>>31
}

// resolve finds what the asked model's name means: the configuration wins over
// what endpoints list, a name that both don't know is an error, and as long as
// not every endpoint has shown its list a name may be a base model's all the
// same. missing is the error of a body that names no model, or nil. Which target
// of several it is, the decision's seed says. objective is the one that the request
// names.
func (pk *Pick) resolve(body *openai.Body, objective string, missing error) error {
	p, r := pk.owner, &pk.Request
	names := p.names.Load()
	models := names.Models
	name := cmp.Or(body.Model, names.Default)
	rule, configured := models[name]
	if !configured {
		rule, configured = models[Unnamed]
	}
	catchAll, catches := models[CatchAll]
	if name == "" && !configured {
		rule, configured = catchAll, catches
	}
	chosen := rule.choose(pk.seed)
	target := cmp.Or(chosen.Name, name)
	if target == "" {
		if missing != nil && needsModel(body.Form) {
			return missing
		}
		return nil
	}
	m, found, complete := p.opt.Fleet.Model(target)
	if catches && !configured && !found && complete {
		rule, chosen = catchAll, catchAll.choose(pk.seed)
		target = cmp.Or(chosen.Name, name)
		m, found, complete = p.opt.Fleet.Model(target)
	}
	name = cmp.Or(name, target)
	if !found && complete || len(name) > maxModel {
		e := epp.Errorf(epp.NotFound, "model_unknown", "model %.80q does not exist: GET /v1/models lists those that do", name)
		e.Param = "model"
		r.Model = strings.Clone(cut(name, maxModel))
		return e
	}
	// The body's own strings hold the whole body in memory, and a record outlives
	// it by far.
	if m.Name == target {
		target = m.Name
	} else {
		target = strings.Clone(target)
	}
	r.Model, r.Target = target, target
	if name != target {
		r.Model = strings.Clone(name)
	}
	if chosen.Adapter || m.Parent != "" {
		r.Adapter = target
	}
	if rule.Priority != 0 {
		r.Priority = rule.Priority
	}
	if priority, known := names.Objectives[objective]; known {
		r.Priority = min(r.Priority, priority)
	}
	return nil
}
