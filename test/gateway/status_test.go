//go:build gateway

package gateway

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
)

// The tests of this file restate conformance cases that are about the gateway
// alone: what istiod writes about pools and routes. They hold the base that our
// picker stands on, and would tell of an Istio that has changed.

// says waits until a condition of an object, about a gateway, has a status and a
// reason.
func (s *scene) says(path, gateway, kind, status, reason string) {
	s.t.Helper()
	_, err := await(s.ctx, world.cluster, path, func(o *object) bool {
		c := o.Status.of(gateway, kind)
		return c.Status == status && c.Reason == reason
	})
	s.must(err)
}

// TestPoolIsAccepted is InferencePoolAccepted, and the first half of
// InferencePoolResolvedRefsCondition: a pool that an accepted route leads to is
// accepted, and its picker's service found.
func TestPoolIsAccepted(t *testing.T) {
	s := newScene(t)
	s.start(&pool{name: "vllm", engines: 1})
	s.route("all", front, to("vllm"))
	s.says(s.poolPath("vllm"), front, "Accepted", "True", "Accepted")
	s.says(s.poolPath("vllm"), front, "ResolvedRefs", "True", "ResolvedRefs")
	s.says(s.routePath("all"), front, "ResolvedRefs", "True", "ResolvedRefs")

	// Without a route the gateway is no parent of the pool any more.
	_, err := world.run(s.ctx, "", "delete", "httproute", "-n", s.namespace, "all")
	s.must(err)
	_, err = await(s.ctx, world.cluster, s.poolPath("vllm"), func(o *object) bool {
		return o.Status.of(front, "Accepted") == condition{}
	})
	s.must(err)
}

// TestPickersServiceIsMissing is InferencePoolInvalidEPPService: a pool whose
// picker has no service says so, and its requests fail.
func TestPickersServiceIsMissing(t *testing.T) {
	s := newScene(t)
	p := s.start(&pool{name: "vllm", engines: 1})
	_, err := world.run(s.ctx, "", "delete", "service", "-n", s.namespace, "vllm-epp")
	s.must(err)
	s.route("all", front, to("vllm"))
	s.says(s.poolPath("vllm"), front, "ResolvedRefs", "False", "InvalidExtensionRef")
	s.becomes("a picker without a service", func(a answer) bool { return a.status >= 500 })

	// With the service there is the picker, at once. Istio looks at the service
	// again, for the pool's status, when the pool or a route has changed.
	p.apply("pool.yaml")
	s.served(front, p)
	p.failureMode = "FailOpen"
	p.apply("pool.yaml")
	s.says(s.poolPath("vllm"), front, "ResolvedRefs", "True", "ResolvedRefs")
}

// TestPoolIsMissing is HTTPRouteInvalidInferencePoolRef: a route to a pool that
// does not exist says so, and its requests fail.
func TestPoolIsMissing(t *testing.T) {
	s := newScene(t)
	s.route("all", front, to("nobody"))
	s.says(s.routePath("all"), front, "ResolvedRefs", "False", "BackendNotFound")
	s.becomes("a route to no pool", func(a answer) bool { return a.status == http.StatusInternalServerError })
}

// TestPortOfAPool is InferencePoolHTTPRoutePortValidation: a route may name a port
// beside a pool, the pool's or another one; requests go to the pool's.
func TestPortOfAPool(t *testing.T) {
	s := newScene(t)
	p := s.start(&pool{name: "vllm", engines: 1})
	ports := []string{"", ", port: 8000", ", port: 9999"}
	var rules []string
	for i, port := range ports {
		rules = append(rules, fmt.Sprintf("matches: [{headers: [{name: x-pool, value: with-%d}]}], ", i)+strings.Replace(to("vllm"), "name: vllm", "name: vllm"+port, 1))
	}
	s.route("all", front, rules...)
	for i, port := range ports {
		p.headers = toPool(fmt.Sprint("with-", i))
		s.served(front, p)
		if a := s.ok(chat("hello", 1), p.headers...); a.servedBy != p.addresses[0] {
			t.Errorf("%q: %v", port, a)
		}
	}
}

// TestPoolOfTwoGateways is the second half of InferencePoolResolvedRefsCondition:
// a pool has a status for each gateway that leads to it.
func TestPoolOfTwoGateways(t *testing.T) {
	const side = "side"
	s := newScene(t)
	s.must(startGateway(s.ctx, side, ports[side]))
	p := s.start(&pool{name: "vllm", engines: 1})
	s.route("a", front, to("vllm"))
	s.route("b", side, to("vllm"))
	for _, gateway := range []string{front, side} {
		s.says(s.poolPath("vllm"), gateway, "Accepted", "True", "Accepted")
		s.says(s.poolPath("vllm"), gateway, "ResolvedRefs", "True", "ResolvedRefs")
		s.served(gateway, p)
	}
	_, err := world.run(s.ctx, "", "delete", "httproute", "-n", s.namespace, "b")
	s.must(err)
	_, err = await(s.ctx, world.cluster, s.poolPath("vllm"), func(o *object) bool {
		return o.Status.of(side, "Accepted") == condition{} && o.Status.of(front, "Accepted").Status == "True"
	})
	s.must(err)
	s.ok(chat("hello", 1))
}

// TestPoolWithoutAPicker is InferencePoolMissingEPPRef: the API server itself
// refuses a pool that names no picker, and one that does not say at which port.
func TestPoolWithoutAPicker(t *testing.T) {
	s := newScene(t)
	text, err := manifest("pool.yaml", map[string]string{
		"pool": "vllm", "namespace": s.namespace, "ports": "[{number: 8000}]", "protocol": "http", "failureMode": "FailClose"})
	s.must(err)
	const ref = "\n  endpointPickerRef: {name: vllm-epp, port: {number: 9002}, failureMode: FailClose}"
	for _, c := range []struct{ cut, want string }{
		{ref, "endpointPickerRef: Required value"},
		{", port: {number: 9002}", "port is required when kind is 'Service' or unspecified"},
	} {
		if !strings.Contains(text, c.cut) {
			t.Fatalf("testdata/pool.yaml has no %q", c.cut)
		}
		err := world.apply(s.ctx, strings.Replace(text, c.cut, "", 1))
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("a pool without %q: want %q: %v", c.cut, c.want, err)
		}
	}
	s.must(world.apply(s.ctx, text))
}

// TestRuleWithCORS: a rule with a CORS filter beside a pool loses the pool's picker
// in this Istio, which forgets the one setting for the other. Its requests go to
// any endpoint.
func TestRuleWithCORS(t *testing.T) {
	s := newScene(t)
	p := s.start(&pool{name: "vllm", engines: 2})
	s.route("all", front, `filters: [{type: CORS, cors: {allowOrigins: ["https://a.test"]}}], `+to("vllm"))
	s.served(front, p)
	picked, open, failed := s.outcomes(5)
	if picked > 0 || failed > 0 {
		t.Errorf("%d requests were picked, %d went without a pick, %d failed: has Istio mended it? docs/gateways.md says otherwise", picked, open, failed)
	}
}
