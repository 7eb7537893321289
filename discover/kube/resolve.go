package kube

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"

	"epp.internal/epp/config"
)

// Input is what a pool is made of: the objects of its namespace, in any order.
// [Resolve] changes none of them.
type Input struct {
	// Pool names the pool that is served.
	Pool types.NamespacedName
	// Base is what the picker's file says. It has no fault and no endpoint.
	Base *config.Config
	// Scorers are the names of those there are besides the built-in ones.
	Scorers []string

	// NoPools is true where the API server has no InferencePool of any group.
	NoPools bool

	Pools      []*Pool
	Pods       []*corev1.Pod
	Models     []*InferenceModel
	Objectives []*InferenceObjective
	Rewrites   []*InferenceModelRewrite
	Policies   []*EndpointPickerPolicy
	// Malformed are objects that could not be read.
	Malformed []Malformed
	// Conditions are what the objects say of themselves, by UID.
	Conditions map[types.UID][]metav1.Condition
}

// Malformed is an object that is not what its kind says.
type Malformed struct {
	Ref
	Err error
}

// Wanted is what a pool should be, and what is to be said of it.
type Wanted struct {
	// Endpoints, by name.
	Endpoints []Endpoint
	// Config is the base with the settings of the policy, and the models and
	// objectives of the objects beside its own.
	Config *config.Config
	// Pool is the object that was found; nil where there is none.
	Pool *Ref
	// Policy is the one that is in force; nil where there is none.
	Policy *EndpointPickerPolicy
	// Statuses are the conditions that objects should have, by kind and name.
	Statuses []Status
	// Notes are what an operator must know, in the order of their text: of one reason the
	// first [maxAlike], and how many more there are.
	Notes []Note
}

// Endpoint is one port of one pod.
type Endpoint struct {
	config.Endpoint
	// UID is the pod's: a new pod of the same name or address is another endpoint.
	UID string
	// Labels are the pod's.
	Labels map[string]string
}

// Status is what an object's conditions should be, beside those that it has. Their
// times are for who writes them.
type Status struct {
	Ref
	Current, Conditions []metav1.Condition
}

// Note is one thing that is wrong with the pool or what belongs to it: a warning in
// the log, and an Event on the pool.
type Note struct {
	Reason string // a word such as NoEndpoints
	Text   string
}

// Conditions and their reasons.
const (
	Accepted     = "Accepted"
	ResolvedRefs = "ResolvedRefs"
	Programmed   = "Programmed"

	reasonInvalid    = "Invalid"
	reasonConflicted = "Conflicted"
	reasonNameInUse  = "ModelNameInUse"
	reasonTooMany    = "TooManyModels"
	reasonNoPool     = "PoolNotFound"
	reasonFailed     = "NotApplied"
)

// Reasons of notes.
const (
	noteNoPool      = "PoolNotFound"
	noteNoEndpoints = "NoEndpoints"
	noteSelector    = "InvalidSelector"
	notePod         = "InvalidPod"
	noteTooMany     = "TooManyEndpoints"
	noteRewrite     = "InvalidRewrite"
	noteObjective   = "InvalidObjective"
	notePolicy      = "InvalidPolicy"
	noteModel       = "InvalidModel"
	noteMalformed   = "MalformedObject"
)

// Resolve says what the pool should be. It is a pure function of in.
func Resolve(in Input) *Wanted {
	r := resolver{in: in, w: &Wanted{Config: clone(in.Base)}}
	pool := r.pool()
	if pool != nil {
		r.endpoints(pool)
	}
	r.policies()
	r.models()
	r.objectives()
	r.malformed()
	slices.SortFunc(r.w.Notes, func(a, b Note) int { return cmp.Or(cmp.Compare(a.Reason, b.Reason), cmp.Compare(a.Text, b.Text)) })
	r.w.Notes = few(r.w.Notes)
	slices.SortFunc(r.w.Statuses, func(a, b Status) int { return cmp.Or(cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Name, b.Name)) })
	return r.w
}

// few bounds sorted notes: a hundred of one reason hide none of another.
func few(notes []Note) []Note {
	var kept []Note
	for rest := notes; len(rest) > 0; {
		n := 1
		for n < len(rest) && rest[n].Reason == rest[0].Reason {
			n++
		}
		kept = append(kept, rest[:min(n, maxAlike)]...)
		if n > maxAlike {
			kept = append(kept, Note{rest[0].Reason, fmt.Sprintf("and %d more of this reason", n-maxAlike)})
		}
		rest = rest[n:]
	}
	return kept
}

// clone copies c as deep as anything here changes it.
func clone(c *config.Config) *config.Config {
	next := *c
	next.Models = slices.Clone(c.Models)
	next.Objectives = slices.Clone(c.Objectives)
	return &next
}

// resolver gathers what an input wants.
type resolver struct {
	in Input
	w  *Wanted

	ruled, targets int // names and targets of the rules that objects have
	crowded        int // rules that are left out, since there are too many
}

func (r *resolver) note(reason, format string, args ...any) {
	r.w.Notes = append(r.w.Notes, Note{Reason: reason, Text: fmt.Sprintf(format, args...)})
}

// malformed answers objects that could not be read. Whose pool they are of is not
// known, so every picker of the namespace gives the same answer.
func (r *resolver) malformed() {
	for _, m := range r.in.Malformed {
		r.note(noteMalformed, "%s %q is not read: %v", m.Kind, m.Name, m.Err)
		text := "the object is not read: " + m.Err.Error()
		switch m.Kind {
		case policyKind:
			r.status(m.Ref, condition(Accepted, metav1.ConditionFalse, reasonInvalid, text),
				condition(Programmed, metav1.ConditionFalse, reasonInvalid, text))
		case modelKind:
			r.status(m.Ref, condition(Accepted, metav1.ConditionFalse, reasonInvalid, text))
		}
	}
}

// pool finds the pool that is served: of two groups, the newer one's. It returns nil
// where there is none.
func (r *resolver) pool() *Pool {
	var found *Pool
	for _, p := range r.in.Pools {
		if p.Name == r.in.Pool.Name && (found == nil || found.legacy()) {
			found = p
		}
	}
	if found == nil && r.in.NoPools {
		r.note(noteNoPool, "there is no InferencePool %q: the API server has no such kind; install the CRDs of the Gateway API Inference Extension", r.in.Pool.Name)
		return nil
	}
	if found == nil {
		text := ""
		if names := r.poolNames(); len(names) > 0 {
			text = "; there are " + strings.Join(names, ", ")
		}
		r.note(noteNoPool, "there is no InferencePool %q in namespace %q%s", r.in.Pool.Name, r.in.Pool.Namespace, text)
		return nil
	}
	ref := found.ref()
	r.w.Pool = &ref
	return found
}

// poolNames are the pools of the namespace, the first few of them.
func (r *resolver) poolNames() []string {
	const few = 5
	var names []string
	for _, p := range r.in.Pools {
		names = append(names, p.Name)
	}
	slices.Sort(names)
	names = slices.Compact(names)
	if len(names) > few {
		names = append(names[:few], "…")
	}
	return names
}

// hasPool says whether a pool of that name is in the namespace.
func (r *resolver) hasPool(name string) bool {
	return slices.ContainsFunc(r.in.Pools, func(p *Pool) bool { return p.Name == name })
}

// mine says whether a reference is to the pool that is served.
func (r *resolver) mine(group, kind, name string) bool {
	return name == r.in.Pool.Name && isPool(group, kind)
}

// isPool says whether a group and kind are those of a pool, in either group or by
// their defaults.
func isPool(group, kind string) bool {
	return (group == "" || group == poolGroup || group == legacyGroup) && (kind == "" || kind == poolKind)
}

// noPool says of a reference that it leads nowhere.
func (r *resolver) noPool(name string) string {
	text := fmt.Sprintf("there is no InferencePool %q in this namespace", name)
	if names := r.poolNames(); len(names) > 0 {
		text += "; there are " + strings.Join(names, ", ")
	}
	return text
}

// selector reads the pool's selector. What selects nothing or cannot be read is an
// error that says so: a pool without a selector is never every pod.
func (p *Pool) selector() (labels.Selector, error) {
	set := map[string]string{}
	raw, field := p.Spec.Selector, "spec.selector"
	if !p.legacy() {
		field = "spec.selector.matchLabels"
		var v1 struct {
			MatchLabels json.RawMessage `json:"matchLabels"`
		}
		if len(raw) > 0 {
			if err := json.Unmarshal(raw, &v1); err != nil {
				return nil, fmt.Errorf("spec.selector: %s is not {matchLabels: {…}}", raw)
			}
		}
		raw = v1.MatchLabels
	}
	if len(raw) > 0 {
		if err := json.Unmarshal(raw, &set); err != nil {
			return nil, fmt.Errorf("%s: %s is no map of labels to values", field, raw)
		}
	}
	if len(set) == 0 {
		return nil, fmt.Errorf("%s is empty, which selects no pod; name the labels that the pool's pods have", field)
	}
	s, err := labels.ValidatedSelectorFromSet(set)
	if err != nil {
		return nil, fmt.Errorf("%s: %s: %w", field, labels.FormatLabels(set), err)
	}
	return s, nil
}

// ports are the pool's, in its order: a port's place is its data-parallel rank.
func (p *Pool) ports() []int {
	if p.legacy() {
		return []int{p.Spec.TargetPortNumber}
	}
	var ports []int
	for _, t := range p.Spec.TargetPorts {
		ports = append(ports, t.Number)
	}
	return ports
}
