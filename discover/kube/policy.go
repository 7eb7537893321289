package kube

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"epp.internal/epp/config"
	"epp.internal/epp/decision"
)

// policies puts the oldest valid policy of the pool in force. Of policies for other
// pools only those are answered whose pool is not there: no other picker would.
func (r *resolver) policies() {
	for _, p := range oldestFirst(r.in.Policies) {
		to := p.Spec.TargetRef
		switch {
		case !isPool(to.Group, to.Kind):
		case !r.hasPool(to.Name):
			text := r.noPool(to.Name)
			r.status(p.ref(), condition(Accepted, metav1.ConditionTrue, Accepted, "the policy is valid as far as can be told without its pool"),
				condition(ResolvedRefs, metav1.ConditionFalse, reasonNoPool, "spec.targetRef.name: "+text),
				condition(Programmed, metav1.ConditionFalse, reasonNoPool, "spec.targetRef.name: "+text))
		case r.mine(to.Group, to.Kind, to.Name):
			r.policy(p)
		}
	}
}

// oldestFirst returns policies in the order in which they win.
func oldestFirst(policies []*EndpointPickerPolicy) []*EndpointPickerPolicy {
	return slices.SortedFunc(slices.Values(policies), func(a, b *EndpointPickerPolicy) int { return a.before(&b.object) })
}

// policy puts one policy of the pool in force, or says why it is not.
func (r *resolver) policy(p *EndpointPickerPolicy) {
	resolved := condition(ResolvedRefs, metav1.ConditionTrue, ResolvedRefs, fmt.Sprintf("the InferencePool %q is there", r.in.Pool.Name))
	refuse := func(reason, text string) {
		r.status(p.ref(), condition(Accepted, metav1.ConditionFalse, reason, text), resolved,
			condition(Programmed, metav1.ConditionFalse, reason, text))
	}
	next, faults := r.with(&p.Spec)
	switch {
	case len(faults) > 0:
		text := strings.Join(faults, "; ")
		refuse(reasonInvalid, text)
		r.note(notePolicy, "EndpointPickerPolicy %q is not in force: %s", p.Name, text)
	case r.w.Policy != nil:
		text := fmt.Sprintf("the older EndpointPickerPolicy %q is in force for this pool; remove one of the two", r.w.Policy.Name)
		refuse(reasonConflicted, text)
		r.note(notePolicy, "EndpointPickerPolicy %q is not in force: %s", p.Name, text)
	default:
		r.w.Policy, r.w.Config = p, next
		r.status(p.ref(), condition(Accepted, metav1.ConditionTrue, Accepted, "the policy is valid"), resolved,
			condition(Programmed, metav1.ConditionTrue, Programmed, "requests are routed by this policy"))
	}
}

// with returns the settings with those of a policy, or the policy's faults.
func (r *resolver) with(s *PolicySpec) (*config.Config, []string) {
	next := clone(r.w.Config)
	var faults []string
	if s.Preset != "" && !next.Use(s.Preset) {
		faults = append(faults, fmt.Sprintf("spec.preset: %q is unknown; there are %s", s.Preset, strings.Join(config.Presets(), ", ")))
	}
	if len(s.Weights) > 0 {
		next.Weights = maps.Clone(s.Weights)
	}
	if s.MaxQueue != nil {
		next.MaxQueue = *s.MaxQueue
	}
	if s.PodReportIntervalMs != nil {
		next.Reports.PodReportIntervalMs = *s.PodReportIntervalMs
	}
	next.OnSaturated = cmp.Or(decision.OnSaturated(s.OnSaturated), next.OnSaturated)
	next.Load.Source = cmp.Or(decision.LoadSource(s.LoadSource), next.Load.Source)
	next.DefaultModel = cmp.Or(s.Model, next.DefaultModel)
	for _, f := range next.Validate(r.in.Scorers...) {
		faults = append(faults, policyPath(f.Path)+": "+f.Text)
	}
	return next, faults
}

// policyPaths are the settings that a policy calls otherwise than a file.
var policyPaths = map[string]string{
	"load.source": "loadSource", "reports.podReportIntervalMs": "podReportIntervalMs", "defaultModel": "model",
}

// policyPath is where a policy has a setting.
func policyPath(path string) string { return "spec." + cmp.Or(policyPaths[path], path) }

// status says what an object's conditions should be.
func (r *resolver) status(ref Ref, conditions ...metav1.Condition) {
	for i := range conditions {
		conditions[i].ObservedGeneration = ref.Generation
	}
	r.w.Statuses = append(r.w.Statuses, Status{Ref: ref, Current: r.in.Conditions[ref.UID], Conditions: conditions})
}

func condition(kind string, status metav1.ConditionStatus, reason, message string) metav1.Condition {
	return metav1.Condition{Type: kind, Status: status, Reason: reason, Message: cut(message)}
}

// maxMessage bounds a condition's message and an Event's, in bytes: Kubernetes takes
// 32,768 and 1,024.
const maxMessage = 1024

// cut shortens a text to what is taken.
func cut(text string) string {
	if len(text) <= maxMessage {
		return text
	}
	return strings.ToValidUTF8(text[:maxMessage-len("…")], "") + "…"
}

// NotApplied says that the settings which were wanted could not be put in force.
func (w *Wanted) NotApplied(err error) {
	text := "the settings are not in force: " + err.Error()
	w.Notes = append(w.Notes, Note{Reason: notePolicy, Text: text})
	if w.Policy == nil {
		return
	}
	for _, s := range w.Statuses {
		if s.UID != w.Policy.UID || s.Name != w.Policy.Name {
			continue
		}
		for i := range s.Conditions {
			if c := &s.Conditions[i]; c.Type == Programmed {
				c.Status, c.Reason, c.Message = metav1.ConditionFalse, reasonFailed, cut(text)
			}
		}
	}
}
