//go:build kube

package kube

import (
	"errors"
	"fmt"
	"strings"
	"testing"
)

// TestOnlyTheLeaderWrites: of two replicas that know the same fault one says it. Both
// would write the same Event, and the second of them would count it once more.
func TestOnlyTheLeaderWrites(t *testing.T) {
	t.Parallel()
	p := newPool(t, "a")
	leader := p.serve("")
	within(t, patience, "the first replica writes", leader.leads)
	follower := p.serve("")
	for _, k := range []*picker{leader, follower} {
		k.ready()
	}
	p.create("{apiVersion: inference.networking.x-k8s.io/v1alpha2, kind: InferenceModel, metadata: {name: zero}, spec: {modelName: zero, targetModels: [{name: one, weight: 0}], poolRef: {name: pool}}}")
	for _, k := range []*picker{leader, follower} {
		within(t, patience, "a replica knows the fault", func() error {
			if len(k.said("WARN", `InferenceModel \"zero\" has no effect`)) == 0 {
				return errors.New("it does not say so")
			}
			return nil
		})
	}
	event := func() string {
		out, err := kubectl(t, "", "get", "events", "-n", p.ns, "-o", "jsonpath={range .items[?(@.reason==\"InvalidModel\")]}{.count} {.reportingComponent} {.reportingInstance}{end}")
		if err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		return out
	}
	within(t, patience, "the Event is there", func() error {
		if event() == "" {
			return errors.New("there is none")
		}
		return nil
	})
	// What either would write next comes after it would have written the Event.
	for i := range 3 {
		name := fmt.Sprintf("later-%d", i)
		p.create(fmt.Sprintf("{apiVersion: epp.internal/v1alpha1, kind: EndpointPickerPolicy, metadata: {name: %s}, spec: {targetRef: {name: pool}}}", name))
		becomesCondition(t, p, "endpointpickerpolicy/"+name, "ResolvedRefs", "True")
	}
	count, by, _ := strings.Cut(event(), " ")
	_, identity, _ := strings.Cut(by, " ")
	if count != "1" || identity == "" || len(leader.said(`"msg":"this replica writes status`, identity)) == 0 {
		t.Errorf("the Event was written %s times, and by %q, which is not the leader alone", count, by)
	}
	if follower.leads() == nil {
		t.Error("the follower says that it writes")
	}
}
