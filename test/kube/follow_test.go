//go:build kube

package kube

import (
	"net/http"
	"slices"
	"testing"
	"time"
)

// second is how long the picker may take to see what an object says.
const second = time.Second

// TestPoolFollowsItsObjects: a pool, a policy and models become endpoints, rules and
// settings. Requests through a real Envoy land where their prefix is. Then pods are
// added, drained, deleted, relabelled, made unready and replaced under one address, and
// the pool's port changes: each is right within a second, and no request of the traffic
// meanwhile fails.
func TestPoolFollowsItsObjects(t *testing.T) {
	t.Parallel()
	p := newPool(t, "a", "b", "c")
	p.create("{apiVersion: epp.internal/v1alpha1, kind: EndpointPickerPolicy, metadata: {name: policy}, spec: {targetRef: {name: pool}, maxQueue: 50}}")
	p.create("{apiVersion: inference.networking.x-k8s.io/v1alpha2, kind: InferenceModel, metadata: {name: chat}, spec: {modelName: chat, targetModels: [{name: tiny}], poolRef: {name: pool}}}")
	k := p.serve("")
	t.Logf("ready after %v", k.ready())
	k.has(second, "a", "b", "c")
	t.Logf("memory of the picker: %s", k.memory())
	url := front(t, k)

	// By cache: the second turn goes where the first went.
	for seed := 100; seed < 110; seed++ {
		first := ask(t.Context(), url, "chat", words(seed, 200), "")
		if first.status != http.StatusOK {
			t.Fatalf("%d %s %v", first.status, first.body, first.err)
		}
		within(t, patience, "the events have come", func() error {
			return caughtUp(p, k)
		})
		if next := ask(t.Context(), url, "chat", words(seed, 200)+" and more", ""); next.served != first.served {
			t.Errorf("the first turn went to %s, the second to %s", first.served, next.served)
		}
	}

	l := traffic(t, url)
	measured := func(what string, took time.Duration) {
		t.Logf("%-44s right after %v", what, took.Round(time.Millisecond))
	}

	p.start("d")
	measured("a pod is added:", k.has(second, "a", "b", "c", "d"))
	p.delete("a", 300)
	measured("a pod is drained (deletionTimestamp):", k.has(second, "b", "c", "d"))
	p.delete("a", 0)
	p.delete("b", 0)
	measured("a pod is deleted:", k.has(second, "c", "d"))
	p.label("c", "other")
	measured("a pod is relabelled:", k.has(second, "d"))
	p.label("c", "vllm")
	measured("it is the pool's again:", k.has(second, "c", "d"))
	p.become("c", ipOf(p, "c"), "False")
	measured("a pod is no longer ready:", k.has(second, "d"))
	p.become("c", ipOf(p, "c"), "True")
	measured("it is ready again:", k.has(second, "c", "d"))

	// Another pod under the same name and address is another endpoint: nothing is left
	// of the former's blocks.
	ip := ipOf(p, "c")
	within(t, patience, "c holds blocks", func() error { return caughtUp(p, k) })
	before := k.series("epp_endpoint_cached_blocks")["c"]
	p.delete("c", 0)
	measured("a pod gives its address up:", k.has(second, "d"))
	p.engines["c"].Close()
	p.engine("c", ip, p.port, nil)
	p.pod("c", ip)
	measured("another pod has its name and address:", k.has(second, "c", "d"))
	if left := k.series("epp_endpoint_cached_blocks")["c"]; before == 0 || left >= before {
		t.Errorf("c held %v blocks before it was replaced, and holds %v after it", before, left)
	}

	// The pool's port changes while the engines serve both.
	port := freePorts(1)[0]
	for _, name := range []string{"c", "d"} {
		p.engine(name+"-new", ipOf(p, name), port, nil)
	}
	former := p.port
	p.change(p.object(port))
	measured("the pool's port changes:", within(t, second, "the port is the new one", func() error { return servesAt(k, port, "c", "d") }))
	p.change(p.object(former, port))
	measured("the pool has two ports:", k.has(second, sorted("c:"+former, "c:"+port, "d:"+former, "d:"+port)...))
	l.unharmed(t)
}

func sorted(names ...string) []string { slices.Sort(names); return names }

// TestLivePolicyChange: weights, the queue's bound and the preset of a policy change
// under load. No request fails, no block of the index is lost, and a policy that is
// taken away leaves the file in force.
func TestLivePolicyChange(t *testing.T) {
	t.Parallel()
	p := newPool(t, "a", "b")
	k := p.serve("maxQueue: 33")
	k.ready()
	url := "http://" + k.proxy
	l := traffic(t, url)
	within(t, patience, "the index has blocks", func() error { return atLeast(k, "epp_endpoint_cached_blocks", 20) })
	blocks := sum(k.series("epp_endpoint_cached_blocks"))
	queue := func(want float64) {
		t.Helper()
		took := within(t, second, "the policy is in force", func() error { return bare(k, "epp_max_queue", want) })
		t.Logf("maxQueue %v in force after %v", want, took.Round(time.Millisecond))
		l.more(t, 40)
	}
	queue(33)
	policy := func(spec string) string {
		return "{apiVersion: epp.internal/v1alpha1, kind: EndpointPickerPolicy, metadata: {name: policy}, spec: {targetRef: {name: pool}, " + spec + "}}"
	}
	p.create(policy("maxQueue: 7, weights: {cache: 0.5, load: 0.3, queue: 0.2}"))
	queue(7)
	p.change(policy("preset: batch"))
	queue(35)
	p.change(policy("preset: batch, maxQueue: 9, weights: {cache: 0.7, load: 0.1, queue: 0.1, health: 0.05, adapter: 0.05}"))
	queue(9)
	if now := sum(k.series("epp_endpoint_cached_blocks")); now < blocks {
		t.Errorf("the index held %v blocks before the changes, and %v after them", blocks, now)
	}
	p.remove(policy(""))
	queue(33)
	l.unharmed(t)
}
