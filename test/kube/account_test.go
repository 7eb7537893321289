//go:build kube

package kube

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// may are the things that an account may do in a namespace beside what every account
// may, each "verb resource.group".
func may(t *testing.T, account, namespace string) []string {
	t.Helper()
	all := rulesOf(t, account, namespace)
	for does := range rulesOf(t, "system:serviceaccount:"+namespace+":nobody", namespace) {
		delete(all, does)
	}
	return slices.Sorted(maps.Keys(all))
}

// rulesOf asks the API server for everything that an account may do.
func rulesOf(t *testing.T, account, namespace string) map[string]bool {
	t.Helper()
	args := []string{"create", "--validate=false", "-f", "-", "-o", "json", "--as", account, "--as-group", "system:serviceaccounts", "--as-group", "system:authenticated"}
	out, err := kubectl(t, fmt.Sprintf("{apiVersion: authorization.k8s.io/v1, kind: SelfSubjectRulesReview, spec: {namespace: %s}}", namespace), args...)
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	var review struct {
		Status struct {
			ResourceRules []struct{ Verbs, APIGroups, Resources, ResourceNames []string }
		}
	}
	if err := json.Unmarshal([]byte(out), &review); err != nil {
		t.Fatal(err)
	}
	all := map[string]bool{}
	for _, r := range review.Status.ResourceRules {
		for _, group := range r.APIGroups {
			for _, resource := range r.Resources {
				for _, verb := range r.Verbs {
					does := strings.TrimSuffix(verb+" "+resource+"."+group, ".")
					if len(r.ResourceNames) > 0 {
						does += " " + strings.Join(r.ResourceNames, ",")
					}
					all[does] = true
				}
			}
		}
	}
	return all
}

// needed are the verbs on each resource in the pool's namespace.
var needed = map[string][]string{
	"pods": {"list", "watch"},
	"inferencepools.inference.networking.k8s.io":           {"list", "watch"},
	"inferencepools.inference.networking.x-k8s.io":         {"list", "watch"},
	"inferencemodels.inference.networking.x-k8s.io":        {"list", "watch"},
	"inferenceobjectives.inference.networking.x-k8s.io":    {"list", "watch"},
	"inferencemodelrewrites.inference.networking.x-k8s.io": {"list", "watch"},
	"inferenceobjectives.llm-d.ai":                         {"list", "watch"},
	"inferencemodelrewrites.llm-d.ai":                      {"list", "watch"},
	"endpointpickerpolicies.epp.internal":                  {"list", "watch"},
	"endpointpickerpolicies/status.epp.internal":           {"patch"},
	"inferencemodels/status.inference.networking.x-k8s.io": {"patch"},
	"events":                     {"get", "create", "patch"},
	"leases.coordination.k8s.io": {"create"},
}

// The chart's account may do what the picker does, and nothing else: in the pool's
// namespace it reads, reports and holds its one lease; elsewhere, its own namespace and
// the whole cluster included, it may do nothing. No secrets, no pods but to read them.
func TestAccountIsLeast(t *testing.T) {
	own := prepared(t)
	pool, other := own+"-pool", own+"-other"
	for _, n := range []string{pool, other} {
		apply(t, fmt.Sprintf("{apiVersion: v1, kind: Namespace, metadata: {name: %s}}", n))
	}
	values := filepath.Join(t.TempDir(), "values.yaml")
	if err := os.WriteFile(values, fmt.Appendf(nil, "pool: {name: demo, namespace: %s}\n", pool), 0o644); err != nil {
		t.Fatal(err)
	}
	text := rendered(t, own, values)
	for _, doc := range strings.Split(text, "\n---\n") {
		for _, o := range things(t, doc) {
			switch o.Kind {
			case "ServiceAccount", "Role", "RoleBinding":
				args := []string{}
				if o.Metadata.Namespace == "" {
					args = append(args, "--namespace", own)
				}
				apply(t, doc, args...)
			}
		}
	}
	var inPool []string
	for resource, verbs := range needed {
		for _, verb := range verbs {
			inPool = append(inPool, verb+" "+resource)
		}
	}
	inPool = append(inPool, "get leases.coordination.k8s.io epp-demo", "update leases.coordination.k8s.io epp-demo")
	slices.Sort(inPool)
	account := "system:serviceaccount:" + own + ":epp"
	for namespace, want := range map[string][]string{
		pool:  inPool,
		own:   nil,
		other: nil,
	} {
		if diff := cmp.Diff(want, may(t, account, namespace)); diff != "" {
			t.Errorf("what %s may in %s: -want +got:\n%s", account, namespace, diff)
		}
	}
	// The authorizer's own word, of what would be worst.
	for _, q := range []string{
		"get secrets -n " + own, "get secrets -n " + pool, "create pods -n " + pool, "delete pods -n " + pool, "get pods --subresource=log -n " + pool, "create pods --subresource=exec -n " + pool,
		"list pods --all-namespaces", "update inferencepools.inference.networking.k8s.io -n " + pool, "update inferencepools.inference.networking.k8s.io --subresource=status -n " + pool,
		"update endpointpickerpolicies.epp.internal -n " + pool, "delete leases.coordination.k8s.io/epp-demo -n " + pool, "update leases.coordination.k8s.io/other -n " + pool,
		"create serviceaccounts --subresource=token -n " + own, "escalate roles.rbac.authorization.k8s.io -n " + own, "list namespaces", "list nodes",
	} {
		out, err := kubectl(t, "", append([]string{"auth", "can-i", "--as", account}, strings.Fields(q)...)...)
		if err == nil || !strings.HasSuffix(strings.TrimSpace(out), "no") {
			t.Errorf("can-i %s: %v, %q; want no", q, err, out)
		}
	}
}
