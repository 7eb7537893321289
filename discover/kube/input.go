package kube

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
)

// add puts an object where its kind is. One that is not what its kind says is
// malformed; its status is read as far as it can be.
func (in *Input) add(u *unstructured.Unstructured) {
	var err error
	spec := maps.Clone(u.Object)
	delete(spec, "status")
	switch u.GetKind() {
	case poolKind:
		err = read(spec, &in.Pools)
	case policyKind:
		err = read(spec, &in.Policies)
	case modelKind:
		err = read(spec, &in.Models)
	case objectiveKind:
		err = read(spec, &in.Objectives)
	case rewriteKind:
		err = read(spec, &in.Rewrites)
	default:
		err = fmt.Errorf("kind %q is none that is read", u.GetKind())
	}
	if err != nil {
		in.Malformed = append(in.Malformed, Malformed{Ref{
			APIVersion: u.GetAPIVersion(), Kind: u.GetKind(), UID: u.GetUID(), Generation: u.GetGeneration(), ResourceVersion: u.GetResourceVersion(),
			NamespacedName: types.NamespacedName{Namespace: u.GetNamespace(), Name: u.GetName()},
		}, err})
	}
	var status Conditions
	if m, ok := u.Object["status"].(map[string]any); ok && runtime.DefaultUnstructuredConverter.FromUnstructured(m, &status) == nil {
		if in.Conditions == nil {
			in.Conditions = map[types.UID][]metav1.Condition{}
		}
		in.Conditions[u.GetUID()] = status.Conditions
	}
}

// read appends the object to list.
func read[T any](object map[string]any, list *[]*T) error {
	o := new(T)
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(object, o); err != nil {
		data, _ := json.Marshal(object) // says which field it is, unlike the converter
		return cmp.Or(plain(json.Unmarshal(data, o)), err)
	}
	*list = append(*list, o)
	return nil
}

// plain says in words which field is of another type than it should be.
func plain(err error) error {
	wrong := (*json.UnmarshalTypeError)(nil)
	if !errors.As(err, &wrong) {
		return err
	}
	want := map[reflect.Kind]string{reflect.String: "text", reflect.Int: "a whole number", reflect.Float64: "a number", reflect.Slice: "a list"}[wrong.Type.Kind()]
	return fmt.Errorf("%s: %s is not %s", strings.TrimLeft(wrong.Field, "."), wrong.Value, cmp.Or(want, "an object"))
}
