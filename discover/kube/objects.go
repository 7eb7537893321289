package kube

import (
	"cmp"
	"encoding/json"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
)

// API groups. Ours stands here, in the schema of deploy/crds and nowhere else.
const (
	group       = "epp.internal"
	poolGroup   = "inference.networking.k8s.io"
	legacyGroup = "inference.networking.x-k8s.io"
	llmdGroup   = "llm-d.ai"
)

const (
	poolKind      = "InferencePool"
	modelKind     = "InferenceModel"
	objectiveKind = "InferenceObjective"
	rewriteKind   = "InferenceModelRewrite"
	policyKind    = "EndpointPickerPolicy"
)

// kinds are those that are read besides pods, with the name that the API has for
// many of them. Where two groups have one kind, the first is the one that wins.
var kinds = []struct {
	gvk    schema.GroupVersionKind
	plural string
}{
	{schema.GroupVersionKind{Group: poolGroup, Version: "v1", Kind: poolKind}, "inferencepools"},
	{schema.GroupVersionKind{Group: legacyGroup, Version: "v1alpha2", Kind: poolKind}, "inferencepools"},
	{schema.GroupVersionKind{Group: group, Version: "v1alpha1", Kind: policyKind}, "endpointpickerpolicies"},
	{schema.GroupVersionKind{Group: legacyGroup, Version: "v1alpha2", Kind: modelKind}, "inferencemodels"},
	{schema.GroupVersionKind{Group: llmdGroup, Version: "v1alpha2", Kind: objectiveKind}, "inferenceobjectives"},
	{schema.GroupVersionKind{Group: legacyGroup, Version: "v1alpha2", Kind: objectiveKind}, "inferenceobjectives"},
	{schema.GroupVersionKind{Group: llmdGroup, Version: "v1alpha2", Kind: rewriteKind}, "inferencemodelrewrites"},
	{schema.GroupVersionKind{Group: legacyGroup, Version: "v1alpha2", Kind: rewriteKind}, "inferencemodelrewrites"},
}

// object is what all objects have.
type object struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`
}

// ref names the object for an answer to it.
func (o *object) ref() Ref {
	return Ref{APIVersion: o.APIVersion, Kind: o.Kind, NamespacedName: types.NamespacedName{Namespace: o.Namespace, Name: o.Name}, UID: o.UID,
		Generation: o.Generation, ResourceVersion: o.ResourceVersion}
}

// before says whether the object was there before another: by its time, then by
// its name. This is the order of every "oldest wins".
func (o *object) before(other *object) int {
	return cmp.Or(o.CreationTimestamp.Compare(other.CreationTimestamp.Time), strings.Compare(o.Name, other.Name))
}

// newer says whether the object's group is the one that wins where two have its kind.
func (o *object) newer() bool { return strings.HasPrefix(o.APIVersion, llmdGroup+"/") }

// Ref names an object.
type Ref struct {
	APIVersion, Kind string
	types.NamespacedName
	UID types.UID
	// Generation is that of the spec that was read, ResourceVersion the whole object's.
	Generation      int64
	ResourceVersion string
}

// Pool is an InferencePool of either group. Source: inferencepool_types.go of
// gateway-api-inference-extension, api/v1 and, for the older, apix/v1alpha2.
type Pool struct {
	object
	Spec poolSpec `json:"spec"`
}

type poolSpec struct {
	// Selector is {matchLabels: {…}} in v1 and the labels themselves in v1alpha2.
	Selector json.RawMessage `json:"selector"`
	// TargetPorts are v1's, TargetPortNumber is v1alpha2's.
	TargetPorts []struct {
		Number int `json:"number"`
	} `json:"targetPorts"`
	TargetPortNumber int `json:"targetPortNumber"`
}

// legacy says whether the pool is of the older group.
func (p *Pool) legacy() bool { return strings.HasPrefix(p.APIVersion, legacyGroup+"/") }

// poolRef says which pool an object belongs to.
type poolRef struct {
	Group string `json:"group"`
	Kind  string `json:"kind"`
	Name  string `json:"name"`
}

// InferenceModel is a name that clients use. Source: inferencemodel_types.go of
// gateway-api-inference-extension v0.5, api/v1alpha2; later versions have none.
type InferenceModel struct {
	object
	Spec struct {
		ModelName    string `json:"modelName"`
		Criticality  string `json:"criticality"`
		TargetModels []struct {
			Name   string `json:"name"`
			Weight *int   `json:"weight"`
		} `json:"targetModels"`
		PoolRef poolRef `json:"poolRef"`
	} `json:"spec"`
}

// InferenceObjective is a priority that requests can name. Source:
// inferenceobjective_types.go of gateway-api-inference-extension v1.5.0.
type InferenceObjective struct {
	object
	Spec struct {
		Priority *int    `json:"priority"`
		PoolRef  poolRef `json:"poolRef"`
	} `json:"spec"`
}

// InferenceModelRewrite is a list of rules for models' names. Source:
// inferencemodelrewrite_types.go of gateway-api-inference-extension v1.5.0.
type InferenceModelRewrite struct {
	object
	Spec struct {
		PoolRef poolRef       `json:"poolRef"`
		Rules   []rewriteRule `json:"rules"`
	} `json:"spec"`
}

// rewriteRule holds where any of Matches does; without one it holds for all names.
type rewriteRule struct {
	Matches []struct {
		Model struct {
			Type  string `json:"type"`
			Value string `json:"value"`
		} `json:"model"`
	} `json:"matches"`
	Targets []struct {
		ModelRewrite string `json:"modelRewrite"`
		Weight       *int   `json:"weight"`
	} `json:"targets"`
}

// EndpointPickerPolicy is our own: the settings of one pool's picker. Every field
// has the name and the rules of the setting of package config, so that a file and an
// object say the same thing in the same way.
type EndpointPickerPolicy struct {
	object
	Spec PolicySpec `json:"spec"`
}

// PolicySpec is what a policy asks for. What it does not set is as the picker's
// file has it.
type PolicySpec struct {
	TargetRef TargetRef `json:"targetRef"`
	// Model is what a request means that names none: defaultModel of the file.
	Model string `json:"model,omitempty"`
	// Accelerator says what the pool runs on. It is for people: shown, and logged when
	// the policy comes into force; no decision reads it.
	Accelerator *Accelerator `json:"accelerator,omitempty"`
	// Preset is a set of weights and a maxQueue by the kind of traffic, see
	// [config.Presets]; weights and maxQueue beside it win.
	Preset              string             `json:"preset,omitempty"`
	Weights             map[string]float64 `json:"weights,omitempty"`
	MaxQueue            *int               `json:"maxQueue,omitempty"`
	OnSaturated         string             `json:"onSaturated,omitempty"`
	LoadSource          string             `json:"loadSource,omitempty"`
	PodReportIntervalMs *int               `json:"podReportIntervalMs,omitempty"`
}

// TargetRef names the pool that a policy is for, in the policy's own namespace.
type TargetRef struct {
	Group string `json:"group,omitempty"`
	Kind  string `json:"kind,omitempty"`
	Name  string `json:"name"`
}

// Accelerator is a kind of GPU and its memory.
type Accelerator struct {
	Type      string  `json:"type,omitempty"`
	MemoryGiB float64 `json:"memoryGiB,omitempty"`
}

// Conditions are the status of a policy, and of an InferenceModel: what became of it.
type Conditions struct {
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}
