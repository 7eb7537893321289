// Package kube discovers a pool on Kubernetes: its endpoints, its models and its
// settings, from the objects of one InferencePool. It is an edge, at the beginning
// of an endpoint's way in: what it finds becomes the picker's endpoints, rules and
// policy.
//
// # Two halves
//
// [Resolve] is pure: the objects of one namespace in, what the pool should be out.
// All rules of precedence are there, and none anywhere else; the files in testdata
// tell them by example. [Run] watches the objects, resolves them anew whenever one
// has changed, hands the result to its caller, and writes back what an operator must
// know.
//
//	kube.Run(ctx, kube.Options{Client: restConfig, Pool: pool, Base: cfg, Log: log,
//		Apply: func(w *kube.Wanted) error { … }})
//
// # What is read
//
// Pods, the InferencePool (inference.networking.k8s.io/v1, and the older
// inference.networking.x-k8s.io/v1alpha2), InferenceModel, InferenceObjective and
// InferenceModelRewrite (of the older group and of llm-d.ai), and our own
// EndpointPickerPolicy. Kinds that the API server does not have are not watched, and
// are looked for again now and then.
//
// # What is written
//
// Conditions of EndpointPickerPolicies and InferenceModels, and Events on the pool,
// by the one replica that holds the lease. A pool's own status is its gateway's and
// is never written. Every replica routes, with or without the lease.
//
// # What holds
//
// The API server is needed for news, not for routing: while it is away the last
// known pool stays. A malformed object disturbs nothing but itself. Equal objects
// give equal results, so that replicas agree without a word.
package kube
