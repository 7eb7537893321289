//go:build kube

package kube

import (
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"
)

// TestCaseL2Ports: the pool's port changes while serving, and exactly the listed
// endpoints exist. Then it lists eight ports of which one is open: the closed ones lose
// their traffic after a few failures, and the log names them. An annotation of the pod
// leaves them out.
func TestCaseL2Ports(t *testing.T) {
	t.Parallel()
	p := newPool(t, "a", "b")
	k := p.serve("")
	k.ready()
	k.has(patience, "a", "b")
	url := "http://" + k.proxy
	l := traffic(t, url)
	l.more(t, 50)
	ports := freePorts(8)
	for _, name := range []string{"a", "b"} {
		p.engine(name+"-new", ipOf(p, name), ports[0], nil)
	}
	p.change(p.object(ports[0]))
	within(t, second, "the port is the new one", func() error { return servesAt(k, ports[0], "a", "b") })
	l.more(t, 50)
	l.unharmed(t)

	p.change(p.object(ports...))
	var all, open []string
	for _, pod := range []string{"a", "b"} {
		open = append(open, pod+":"+ports[0])
		for _, port := range ports {
			all = append(all, pod+":"+port)
		}
	}
	slices.Sort(all)
	k.has(second, all...)
	within(t, patience, "the closed ports have no health", func() error {
		for name, health := range k.series("epp_pod_health_score") {
			if up := slices.Contains(open, name); up != (health >= 0.3) {
				return fmt.Errorf("%s has health %v", name, health)
			}
		}
		return nil
	})
	for seed := range 100 {
		if a := ask(t.Context(), url, "tiny", words(seed, 30), ""); a.status != http.StatusOK {
			t.Errorf("with closed ports left out: %d %s %v", a.status, a.body, a.err)
		}
	}
	within(t, 10*time.Second, "the log names the closed ports", func() error {
		for _, pod := range []string{"a", "b"} {
			for _, port := range ports[1:] {
				if at := ipOf(p, pod) + ":" + port; len(k.said(`"level":"WARN"`, "scrape fails", fmt.Sprintf("%q", at))) == 0 {
					return errors.New(at + " is not named")
				}
			}
		}
		return nil
	})
	for _, pod := range []string{"a", "b"} {
		if out, err := kubectl(t, "", "annotate", "pod", pod, "-n", p.ns, "llm-d.ai/active-ports="+ports[0]); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
	slices.Sort(open)
	k.has(second, open...)
}

// TestCaseL6Selector: a selector that selects nothing is told, in the log and by an Event
// on the pool, within 10 s and in words; one that cannot be is refused by the API
// server. When pods match, the pool is right within a second, and the log says that it is
// over.
func TestCaseL6Selector(t *testing.T) {
	t.Parallel()
	p := newPool(t)
	began := time.Now()
	k := p.serve("")
	t.Logf("an empty pool is ready after %v", k.ready().Round(time.Millisecond))
	a := ask(t.Context(), "http://"+k.proxy, "tiny", "x", "")
	if a.status != http.StatusServiceUnavailable {
		t.Errorf("a request to an empty pool: %d %s", a.status, a.body)
	}
	events := func(want string) {
		t.Helper()
		within(t, 10*time.Second, "an Event says "+want, func() error {
			out, err := kubectl(t, "", "get", "events", "-n", p.ns, "-o", `jsonpath={range .items[*]}{.involvedObject.kind}/{.involvedObject.name} {.type} {.reason} {.message}{"\n"}{end}`)
			if err != nil || !strings.Contains(out, want) {
				return fmt.Errorf("%w: %s", cmpErr(err), out)
			}
			return nil
		})
	}
	events("InferencePool/pool Warning NoEndpoints 0 endpoints matched selector app=vllm: no pod of the namespace has these labels")
	t.Logf("told after %v", time.Since(began).Round(time.Millisecond))
	if len(k.said(`"level":"WARN"`, "0 endpoints matched selector app=vllm")) != 1 {
		t.Error("the log does not say so, once")
	}
	for selector, want := range map[string]string{
		"{}":                               "should have at least 1 properties",
		"{matchLabels: {}}":                "should have at least 1 properties",
		"{matchLabels: {app: 'in (x,y)'}}": "should match",
		"{matchLabels: {app: 'b c=d'}}":    "should match",
	} {
		text := strings.Replace(strings.Replace(p.object(p.port), "{matchLabels: {app: vllm}}", selector, 1), "name: pool", "name: refused", 1)
		if err := p.try(text); err == nil || !strings.Contains(err.Error(), want) && !strings.Contains(err.Error(), "Required value") {
			t.Errorf("selector %s: the API server says %v, want %q", selector, err, want)
		}
	}
	// What the API server takes and no label can be: the picker says it.
	p.change(strings.Replace(p.object(p.port), "app: vllm", `"app=vllm tier": gpu`, 1))
	events("InferencePool/pool Warning InvalidSelector 0 endpoints: spec.selector.matchLabels: app=vllm tier=gpu")
	p.change(p.object(p.port))
	p.start("a")
	k.has(second, "a")
	within(t, 10*time.Second, "the log says that it is over", func() error {
		if len(k.said("no longer: 0 endpoints")) == 0 {
			return errors.New("it does not")
		}
		return nil
	})
}

// TestOperatorSeesWhatIsWrong: kubectl get endpointpickerpolicy and kubectl describe
// inferencepool tell what is wrong, without a log.
func TestOperatorSeesWhatIsWrong(t *testing.T) {
	t.Parallel()
	p := newPool(t, "a")
	policy := func(name, spec string) {
		p.create("{apiVersion: epp.internal/v1alpha1, kind: EndpointPickerPolicy, metadata: {name: " + name + "}, spec: {targetRef: " + spec + "}}")
	}
	policy("early", "{name: pool}, maxQueue: 9")
	if got := conditionOf(t, p, "endpointpickerpolicy/early", "Programmed"); got != "Unknown Pending no picker of this pool has answered yet" {
		t.Errorf("before there is a picker: %q", got)
	}
	k := p.serve("")
	k.ready()
	becomesCondition(t, p, "endpointpickerpolicy/early", "Programmed", "True Programmed")
	policy("second", "{name: pool}, model: tiny")
	policy("typo", "{name: pol}")
	policy("blind", "{name: pool}, loadSource: gpu")
	policy("misspelt", "{name: pool}, weights: {cahce: 1}")
	p.create("{apiVersion: inference.networking.x-k8s.io/v1alpha2, kind: InferenceModelRewrite, metadata: {name: empty}, spec: {poolRef: {name: pool}, rules: [{targets: [{modelRewrite: ''}]}]}}")
	for name, want := range map[string]string{
		"second":   `False Conflicted the older EndpointPickerPolicy "early" is in force for this pool`,
		"typo":     `False PoolNotFound spec.targetRef.name: there is no InferencePool "pol" in this namespace; there are pool`,
		"blind":    `False Invalid spec.loadSource: "gpu" has no source of GPU readings for pods`,
		"misspelt": `False Invalid spec.weights.cahce: unknown scorer; the nearest is "cache"`,
	} {
		becomesCondition(t, p, "endpointpickerpolicy/"+name, "Programmed", want)
	}
	table, err := kubectl(t, "", "get", "endpointpickerpolicy", "-n", p.ns)
	if err != nil {
		t.Fatalf("%v: %s", err, table)
	}
	t.Logf("kubectl get endpointpickerpolicy\n%s", table)
	for _, want := range []string{"NAME", "POOL", "MODEL", "ACCEPTED", "PROGRAMMED", "REASON", "AGE", "MESSAGE", "PoolNotFound", "Conflicted", "the nearest is \"cache\"", "requests are routed by this policy"} {
		if !strings.Contains(table, want) {
			t.Errorf("the table does not say %q", want)
		}
	}

	p.label("a", "other")
	var told string
	within(t, 15*time.Second, "describe tells all of it", func() error {
		if told, err = kubectl(t, "", "describe", "inferencepool", "pool", "-n", p.ns); err != nil {
			return fmt.Errorf("%w: %s", err, told)
		}
		for _, want := range []string{
			"Warning  NoEndpoints", "0 endpoints matched selector app=vllm", "Warning  InvalidPolicy", `EndpointPickerPolicy "second" is not in force`,
			"Warning  InvalidRewrite", `InferenceModelRewrite "empty"`, "epp ",
		} {
			if !strings.Contains(told, want) {
				return fmt.Errorf("it does not say %q:\n%s", want, told)
			}
		}
		return nil
	})
	_, list, _ := strings.Cut(told, "Events:")
	t.Logf("kubectl describe inferencepool\nEvents:%s", list)
	if status := conditionOf(t, p, "inferencepool/pool", "Accepted"); status != "" {
		t.Errorf("the picker has written the pool's own status: %s", status)
	}
	// The same again is no further Event, and none is said twice: what is written next
	// comes after them.
	p.label("a", "third")
	p.create("{apiVersion: epp.internal/v1alpha1, kind: EndpointPickerPolicy, metadata: {name: third}, spec: {targetRef: {name: pool}}}")
	becomesCondition(t, p, "endpointpickerpolicy/third", "ResolvedRefs", "True")
	counts, err := kubectl(t, "", "get", "events", "-n", p.ns, "-o", `jsonpath={range .items[?(@.source.component=="epp")]}{.count} {.reason} {.message}{"\n"}{end}`)
	if err != nil || counts == "" {
		t.Fatalf("%v: %s", err, counts)
	}
	for line := range strings.Lines(counts) {
		if !strings.HasPrefix(line, "1 ") || strings.Count(counts, line) != 1 {
			t.Errorf("said more than once: %s", line)
		}
	}
}
