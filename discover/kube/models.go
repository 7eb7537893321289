package kube

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"epp.internal/epp/config"
)

// criticalities are the priorities that an InferenceModel's words mean. Only the
// sign counts: a request below 0 may be shed.
var criticalities = map[string]int{"Critical": 1, "Standard": 0, "": 0, "Sheddable": -1}

// models gives each name its rule. A rule of an InferenceModelRewrite wins over an
// InferenceModel, and both over the file.
func (r *resolver) models() {
	rules := map[string]config.Model{}
	taken := r.rewrites(rules)
	byAge := slices.SortedFunc(slices.Values(r.in.Models), func(a, b *InferenceModel) int { return a.before(&b.object) })
	for _, m := range byAge {
		to := m.Spec.PoolRef
		switch {
		case !isPool(to.Group, to.Kind):
		case !r.hasPool(to.Name):
			r.status(m.ref(), condition(Accepted, metav1.ConditionFalse, reasonNoPool, "spec.poolRef.name: "+r.noPool(to.Name)))
		case r.mine(to.Group, to.Kind, to.Name):
			r.model(m, rules, taken)
		}
	}
	if r.crowded > 0 {
		r.note(noteModel, "%d names of the objects are left out: at most %d names are served, with as many targets in all", r.crowded, config.MaxModels)
	}
	if len(rules) == 0 {
		return
	}
	if _, all := rules[config.Unnamed]; all { // names that nobody knows are among those that nobody named
		rules[config.CatchAll] = config.Model{}
	}
	merged := slices.DeleteFunc(slices.Clone(r.w.Config.Models), func(m config.Model) bool { _, replaced := rules[m.Name]; return replaced })
	for _, m := range rules {
		if m.Name != "" {
			merged = append(merged, m)
		}
	}
	slices.SortFunc(merged, func(a, b config.Model) int { return strings.Compare(a.Name, b.Name) })
	before := r.w.Config.Models
	r.w.Config.Models = merged
	if faults := r.w.Config.Validate(r.in.Scorers...); len(faults) > 0 { // each is right by itself: they are too many
		r.w.Config.Models = before
		r.note(noteModel, "the models of the objects are not in force: %s", faults[0])
	}
}

// model adds the rule of one InferenceModel, or says why it has none.
func (r *resolver) model(m *InferenceModel, rules map[string]config.Model, taken map[string]string) {
	rule, faults := r.rule(m)
	name := m.Spec.ModelName
	switch by := taken[name]; {
	case len(faults) > 0:
		r.status(m.ref(), condition(Accepted, metav1.ConditionFalse, reasonInvalid, strings.Join(faults, "; ")))
		r.note(noteModel, "InferenceModel %q has no effect: %s", m.Name, strings.Join(faults, "; "))
	case by != "":
		text := fmt.Sprintf("the name %q is taken by %s; give this model another name, or remove one of the two", name, by)
		r.status(m.ref(), condition(Accepted, metav1.ConditionFalse, reasonNameInUse, text))
		r.note(noteModel, "InferenceModel %q has no effect: %s", m.Name, text)
	case !r.room(rule):
		r.status(m.ref(), condition(Accepted, metav1.ConditionFalse, reasonTooMany, fmt.Sprintf("older models have all of the %d names that are served, or as many targets; remove some", config.MaxModels)))
	default:
		taken[name] = fmt.Sprintf("the older InferenceModel %q", m.Name)
		rules[name] = rule
		r.status(m.ref(), condition(Accepted, metav1.ConditionTrue, Accepted, fmt.Sprintf("requests for %q are routed by this model", name)))
	}
}

// room says whether there is room for one more rule, and counts it.
func (r *resolver) room(rule config.Model) bool {
	fits := len(r.in.Base.Models)+r.ruled < config.MaxModels && targets(r.in.Base.Models)+r.targets+len(rule.Targets) <= config.MaxModels
	if !fits {
		r.crowded++
		return false
	}
	r.ruled++
	r.targets += len(rule.Targets)
	return true
}

// targets is how many targets models have in all.
func targets(models []config.Model) (n int) {
	for _, m := range models {
		n += len(m.Targets)
	}
	return n
}

// rule is an InferenceModel as a file would have it, or its faults.
func (r *resolver) rule(m *InferenceModel) (config.Model, []string) {
	var faults []string
	priority, known := criticalities[m.Spec.Criticality]
	if !known {
		faults = append(faults, fmt.Sprintf("spec.criticality: %q is unknown; want Critical, Standard or Sheddable", m.Spec.Criticality))
	}
	rule := config.Model{Name: m.Spec.ModelName, Priority: priority}
	for _, t := range m.Spec.TargetModels {
		rule.Targets = append(rule.Targets, config.Target{Name: t.Name, Weight: t.Weight})
	}
	rule, more := r.checked(rule, map[string]string{"name": "spec.modelName", "targets": "spec.targetModels", "target": "spec.targetModels"})
	return rule, append(faults, more...)
}

// checked completes a rule and returns its faults under the paths that its object
// has for them: places gives each field of a rule its path there.
func (r *resolver) checked(rule config.Model, places map[string]string) (config.Model, []string) {
	if len(rule.Targets) == 0 && rule.Name != config.CatchAll && rule.Name != config.Unnamed {
		rule.Target = rule.Name
	}
	c := *r.in.Base
	c.Models = []config.Model{rule}
	var faults []string
	for _, f := range c.Validate(r.in.Scorers...) {
		_, field, ok := element(f.Path, "models")
		if !ok {
			continue
		}
		text := strings.ReplaceAll(f.Text, "models[0].targets", places["targets"])
		for name, place := range places {
			if rest, is := strings.CutPrefix(field, name); is && (rest == "" || rest[0] == '.' || rest[0] == '[') {
				field = place + rest
				break
			}
		}
		faults = append(faults, field+": "+text)
	}
	return rule, faults
}

// rewrites adds the rules of the pool's rewrites, the first for each name, and
// returns who has which.
func (r *resolver) rewrites(rules map[string]config.Model) (taken map[string]string) {
	taken = map[string]string{}
	for _, w := range r.rewritesInOrder() {
		for i, rule := range w.Spec.Rules {
			at := fmt.Sprintf("spec.rules[%d]", i)
			for _, name := range r.names(w, at, rule) {
				if taken[name] != "" {
					continue
				}
				m := config.Model{Name: name}
				for _, t := range rule.Targets {
					m.Targets = append(m.Targets, config.Target{Name: t.ModelRewrite, Weight: t.Weight})
				}
				m, faults := r.checked(m, map[string]string{"name": at + ".matches", "targets": at + ".targets", "target": at + ".targets"})
				if len(faults) > 0 {
					text := strings.ReplaceAll(strings.Join(faults, "; "), "].name: ", "].modelRewrite: ")
					r.note(noteRewrite, "InferenceModelRewrite %q: a rule has no effect: %s", w.Name, text)
					continue
				}
				if !r.room(m) {
					continue
				}
				taken[name] = fmt.Sprintf("the InferenceModelRewrite %q", w.Name)
				rules[name] = m
			}
		}
	}
	return taken
}

// names are those that a rule is for: [config.Unnamed] where it has no match.
func (r *resolver) names(w *InferenceModelRewrite, at string, rule rewriteRule) (names []string) {
	if len(rule.Matches) == 0 {
		return []string{config.Unnamed}
	}
	for i, m := range rule.Matches {
		if kind := m.Model.Type; kind != "" && kind != "Exact" {
			r.note(noteRewrite, "InferenceModelRewrite %q: %s.matches[%d].model.type: %q is unknown; want Exact", w.Name, at, i, kind)
			continue
		}
		if v := m.Model.Value; v == config.CatchAll || v == config.Unnamed || v == "" {
			r.note(noteRewrite, "InferenceModelRewrite %q: %s.matches[%d].model.value: %q is no model's name; a rule without matches is for all names", w.Name, at, i, v)
			continue
		}
		names = append(names, m.Model.Value)
	}
	return names
}

// rewritesInOrder are the pool's rewrites in the order in which they win: llm-d.ai's
// before the older group's, then the oldest. Of one name in both groups llm-d.ai's
// counts alone.
func (r *resolver) rewritesInOrder() []*InferenceModelRewrite {
	var list []*InferenceModelRewrite
	for _, w := range r.in.Rewrites {
		to := w.Spec.PoolRef
		twin := !w.newer() && slices.ContainsFunc(r.in.Rewrites, func(o *InferenceModelRewrite) bool { return o.newer() && o.Name == w.Name })
		if r.mine(to.Group, to.Kind, to.Name) && !twin {
			list = append(list, w)
		}
	}
	slices.SortFunc(list, func(a, b *InferenceModelRewrite) int {
		return cmp.Or(newerFirst(&a.object, &b.object), a.before(&b.object))
	})
	return list
}

// newerFirst orders objects by their groups.
func newerFirst(a, b *object) int {
	if a.newer() == b.newer() {
		return 0
	}
	if a.newer() {
		return -1
	}
	return 1
}

// objectives gives each objective of the pool its priority. Those of the objects win
// over the file's.
func (r *resolver) objectives() {
	list := slices.SortedFunc(slices.Values(r.in.Objectives), func(a, b *InferenceObjective) int {
		return cmp.Or(newerFirst(&a.object, &b.object), a.before(&b.object))
	})
	seen := map[string]bool{}
	for _, o := range list {
		to := o.Spec.PoolRef
		if !r.mine(to.Group, to.Kind, to.Name) || seen[o.Name] {
			continue
		}
		seen[o.Name] = true
		priority := 0
		if o.Spec.Priority != nil {
			priority = *o.Spec.Priority
		}
		c := *r.in.Base
		c.Objectives = []config.Objective{{Name: o.Name, Priority: priority}}
		if faults := c.Validate(r.in.Scorers...); len(faults) > 0 {
			_, field, _ := element(faults[0].Path, "objectives")
			r.note(noteObjective, "InferenceObjective %q has no effect: spec.%s: %s", o.Name, field, faults[0].Text)
			continue
		}
		r.w.Config.Objectives = slices.DeleteFunc(r.w.Config.Objectives, func(f config.Objective) bool { return f.Name == o.Name })
		r.w.Config.Objectives = append(r.w.Config.Objectives, c.Objectives[0])
	}
	slices.SortFunc(r.w.Config.Objectives, func(a, b config.Objective) int { return strings.Compare(a.Name, b.Name) })
}
