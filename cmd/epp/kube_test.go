package main

import (
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"epp.internal/epp/config"
	"epp.internal/epp/discover/kube"
)

// TestServeOnKubernetesRefusals: what cannot lead to a pool is one message, which says
// what would.
func TestServeOnKubernetesRefusals(t *testing.T) {
	t.Setenv("KUBERNETES_SERVICE_HOST", "") // no pod of a cluster
	dir := t.TempDir()
	broken, listed := filepath.Join(dir, "kubeconfig"), filepath.Join(dir, "epp.yaml")
	for file, text := range map[string]string{broken: "clusters: [", listed: "pool: {endpoints: [10.0.0.7:8000]}\n"} {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for args, want := range map[string]string{
		"serve":                                     "--config or --pool is needed",
		"serve --pool llama":                        `kubernetes.pool: "llama" is not NAMESPACE/NAME of an InferencePool`,
		"serve --pool default/Llama":                `kubernetes.pool: "default/Llama" is not NAMESPACE/NAME of an InferencePool`,
		"serve --pool default/llama":                "kubernetes.kubeconfig: is empty, and this is no pod of a cluster",
		"serve --kubeconfig x --config " + listed:   "kubernetes.kubeconfig: \"x\" is not read without kubernetes.pool",
		"serve --pool a/b --config " + listed:       "pool.endpoints: stands beside kubernetes.pool",
		"serve --pool a/b --kubeconfig " + broken:   "kubernetes.kubeconfig: \"" + broken + "\"",
		"serve --pool a/b --kubeconfig /none/there": "kubernetes.kubeconfig: \"/none/there\"",
	} {
		cmd := root()
		cmd.SetArgs(strings.Fields(args))
		cmd.SetOut(io.Discard)
		cmd.SetErr(io.Discard)
		if err := cmd.ExecuteContext(t.Context()); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("epp %s: %v; want %q", args, err, want)
		}
	}
}

// TestPodsBecomeEndpoints: what was discovered joins the fleet under its name, and leaves
// it for another where its pod is another: with its own member, and nothing that was
// learnt of the former.
func TestPodsBecomeEndpoints(t *testing.T) {
	r := newRig(t, options{engines: 2})
	pods := func(uid string) (pods []kube.Endpoint) {
		for _, e := range r.engines {
			pods = append(pods, kube.Endpoint{Endpoint: config.Endpoint{Name: "pod-" + e.Name(), Address: e.Address()}, UID: uid})
		}
		return pods
	}
	slot := func() any { return r.state("pod-A").Endpoint.Slot }
	r.sys.setPods(pods("first"))
	r.until("the pods are known", r.sys.settled)
	r.must([]message{user(words(1, 100))}, 1)
	r.atRest()
	first := slot()
	r.sys.setPods(pods("first"))
	if slot() != first {
		t.Error("the same pod is another endpoint")
	}
	r.sys.setPods(pods("second"))
	if slot() == first {
		t.Error("another pod is the same endpoint")
	}
	r.until("the new pods are known", r.sys.settled)
	r.must([]message{user(words(1, 100))}, 1)
	if n := len(r.log.find("pool changed", "")); n != 3 { // the rig's own, the first and the second
		t.Errorf("the pool changed %d times, want 3", n)
	}
}
