// Package gateway runs the picker behind a real gateway, from end to end: an
// HTTPRoute leads to an InferencePool, Istio's istiod reads both from a real
// kube-apiserver and configures Envoy, and Envoy asks the picker. Nothing of
// Envoy's configuration is ours but the address of istiod.
//
// All of it runs without containers in one network namespace, the cluster, which
// the test's process makes for itself and which the kernel removes with its last
// process. Each address of 10.77.0.0/16 is there a local one, so a pod is what
// listens on its own 10.77.1.x: a process (Envoy, the picker) or a fake engine of
// epptest. A namespace for each pod would add links, and nothing that a request
// could tell. (127.0.0.x would do for pods, but an EndpointSlice refuses it.) Only
// the pods of deploy/chart have a network each, and a root of their own: they listen
// on every address, and run as they are.
//
// What is real: etcd, kube-apiserver, kube-controller-manager (Deployments,
// EndpointSlices), istiod, Envoy, the picker. What stands in: a small kubelet,
// which binds pods, starts what they name and says that they are ready; and
// engines.
//
// The tests are behind the build tag gateway and need root, on Linux. They fail,
// and say why, where the parts cannot be had:
//
//	make test-gateway
package gateway
