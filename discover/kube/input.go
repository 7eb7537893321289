package kube

import (
	"cmp"
	"encoding/json"
	"fmt"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
)

// add puts an object where its kind is. One that is not what its kind says is
// malformed.
func (in *Input) add(u *unstructured.Unstructured) {
	var err error
	switch u.GetKind() {
	case poolKind:
		err = read(u, &in.Pools)
	case policyKind:
		err = read(u, &in.Policies)
	case modelKind:
		err = read(u, &in.Models)
	case objectiveKind:
		err = read(u, &in.Objectives)
	case rewriteKind:
		err = read(u, &in.Rewrites)
	default:
		err = fmt.Errorf("kind %q is none that is read", u.GetKind())
	}
	if err != nil {
		in.Malformed = append(in.Malformed, Malformed{Ref{
			APIVersion: u.GetAPIVersion(), Kind: u.GetKind(), UID: u.GetUID(), Generation: u.GetGeneration(),
			NamespacedName: types.NamespacedName{Namespace: u.GetNamespace(), Name: u.GetName()},
		}, err})
	}
}

// read appends the object to list.
func read[T any](u *unstructured.Unstructured, list *[]*T) error {
	o := new(T)
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, o); err != nil {
		data, _ := u.MarshalJSON() // says which field it is, unlike the converter
		return cmp.Or(json.Unmarshal(data, o), err)
	}
	*list = append(*list, o)
	return nil
}
