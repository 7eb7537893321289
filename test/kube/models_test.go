//go:build kube

package kube

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"testing"

	"epp.internal/epp/epptest"
)

// conditionOf reads a condition of an object by kubectl: its status, reason and message.
func conditionOf(t *testing.T, p *pool, object, kind string) string {
	t.Helper()
	out, err := kubectl(t, "", "get", object, "-n", p.ns, "-o",
		fmt.Sprintf(`jsonpath={range .status.conditions[?(@.type==%q)]}{.status} {.reason} {.message}{end}`, kind))
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return out
}

// becomesCondition waits until a condition begins with a text.
func becomesCondition(t *testing.T, p *pool, object, kind, want string) {
	t.Helper()
	within(t, patience, object+" "+kind+" is "+want, func() error {
		if got := conditionOf(t, p, object, kind); !strings.HasPrefix(got, want) {
			return errors.New(got)
		}
		return nil
	})
}

// TestAdapterOfAModel: "customer-support-v3-billing" is served by the adapter
// billing-lora-v3, and prefers the pods that hold it. Of two InferenceModels with one
// name the oldest counts, and the other's status says so.
func TestAdapterOfAModel(t *testing.T) {
	t.Parallel()
	p := newPool(t, "a")
	for _, name := range []string{"b", "c"} {
		ip := p.ip()
		p.engine(name, ip, p.port, func(c *epptest.EngineConfig) { c.Adapters = []string{"billing-lora-v3"} })
		p.pod(name, ip)
	}
	p.create("{apiVersion: inference.networking.x-k8s.io/v1alpha2, kind: InferenceModel, metadata: {name: billing}, spec: {modelName: customer-support-v3-billing, criticality: Critical, targetModels: [{name: billing-lora-v3}], poolRef: {name: pool}}}")
	k := p.serve("")
	k.ready()
	k.has(patience, "a", "b", "c")
	url := "http://" + k.proxy
	within(t, patience, "the name is known", func() error {
		if a := ask(t.Context(), url, "customer-support-v3-billing", "hello", ""); a.status != http.StatusOK {
			return fmt.Errorf("%d %s", a.status, a.body)
		}
		return nil
	})
	served := map[string]int{}
	for seed := range 30 {
		a := ask(t.Context(), url, "customer-support-v3-billing", words(1000+seed, 60), "")
		served[a.served]++
		if a.status != http.StatusOK {
			t.Errorf("%d %s", a.status, a.body)
		}
	}
	if served["a"] > 0 {
		t.Errorf("pods that hold the adapter are b and c; %v served", served)
	}
	for _, name := range []string{"b", "c"} {
		for _, r := range p.engines[name].Received() {
			var body struct{ Model string }
			if json.Unmarshal(r.Body, &body) == nil && body.Model != "billing-lora-v3" && strings.HasPrefix(r.Path, "/v1/completions") {
				t.Errorf("%s was asked for %q", name, body.Model)
			}
		}
	}

	p.create("{apiVersion: inference.networking.x-k8s.io/v1alpha2, kind: InferenceModel, metadata: {name: usurper}, spec: {modelName: customer-support-v3-billing, targetModels: [{name: tiny}], poolRef: {name: pool}}}")
	becomesCondition(t, p, "inferencemodel/usurper", "Accepted", `False ModelNameInUse the name "customer-support-v3-billing" is taken by the older InferenceModel "billing"`)
	becomesCondition(t, p, "inferencemodel/billing", "Accepted", "True Accepted")
	p.remove("{apiVersion: inference.networking.x-k8s.io/v1alpha2, kind: InferenceModel, metadata: {name: billing}}")
	becomesCondition(t, p, "inferencemodel/usurper", "Accepted", "True Accepted")
}

// TestWeightsAreRefused: weights that sum to 1.2 are refused by the API server itself,
// and in a file when the picker starts; so is a policy with a name that is not known.
func TestWeightsAreRefused(t *testing.T) {
	t.Parallel()
	p := newPool(t)
	policy := func(spec string) error {
		return p.try("{apiVersion: epp.internal/v1alpha1, kind: EndpointPickerPolicy, metadata: {generateName: policy-}, spec: {targetRef: {name: pool}, " + spec + "}}")
	}
	for spec, want := range map[string]string{
		"weights: {cache: 0.8, load: 0.4}":             "the weights sum to 1.2",
		"weights: {cache: 0.8}":                        "the weights sum to 0.8; they must sum to 1",
		"weights: {cache: 0.5, load: 0.50000001}":      "must sum to 1",
		"weights: {cache: -1, load: 2}":                "should be greater than or equal to 0",
		"weights: {}":                                  "should have at least 1 properties",
		"maxQueue: 0":                                  "should be greater than or equal to 1",
		"onSaturated: panic":                           `supported values: "degrade", "reject"`,
		"preset: chatty":                               "supported values",
		"targetRef: {kind: Service, name: pool}":       `supported values: "InferencePool"`,
		"podReportIntervalMs: 99":                      "should be greater than or equal to 100",
		"accelerator: {type: h100, memoryGiB: eighty}": "must be of type number",
	} {
		err := policy(spec)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: the API server says %v; want %q", spec, err, want)
		}
	}
	for _, spec := range []string{"weights: {cache: 1}", "weights: {cache: 0.7, load: 0.1, queue: 0.1, health: 0.1}", "weights: {cache: 0.1, load: 0.2, queue: 0.3, health: 0.15, adapter: 0.25}"} {
		if err := policy(spec); err != nil {
			t.Errorf("%s: %v", spec, err)
		}
	}

	binary, err := built()
	if err != nil {
		t.Fatal(err)
	}
	file := t.TempDir() + "/epp.yaml"
	if err := os.WriteFile(file, []byte("weights: {cache: 0.8, load: 0.4}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command(binary, "serve", "--config", file, "--pool", p.ns+"/pool", "--kubeconfig", kubeconfig).CombinedOutput()
	if err == nil || !strings.Contains(string(out), "epp.yaml:1: weights: sum to 1.2; want 1") {
		t.Errorf("in a file: %v\n%s", err, out)
	}
}

// TestCaseF2ModelOfObjects: a request without a model means the policy's model; one with
// a model that is no text, or unknown, is refused in OpenAI's form; with a rule for all
// names it is served.
func TestCaseF2ModelOfObjects(t *testing.T) {
	t.Parallel()
	p := newPool(t, "a")
	k := p.serve("")
	k.ready()
	k.has(patience, "a")
	url := "http://" + k.proxy
	expect := func(when string, want map[string]int) {
		t.Helper()
		for body, status := range want {
			within(t, patience, when+": "+body, func() error {
				a := post(t.Context(), url, []byte(body), "")
				if a.status != status {
					return fmt.Errorf("%d %s %w", a.status, a.body, cmpErr(a.err))
				}
				if a.status != http.StatusOK && !strings.Contains(a.body, `"error":{`) {
					t.Errorf("%s: the error has not OpenAI's form: %s", body, a.body)
				}
				return nil
			})
		}
	}
	none, null, empty := `{"prompt":"x","max_tokens":1}`, `{"model":null,"prompt":"x","max_tokens":1}`, `{"model":"","prompt":"x","max_tokens":1}`
	number, unknown := `{"model":5,"prompt":"x","max_tokens":1}`, `{"model":"nobody","prompt":"x","max_tokens":1}`
	expect("without a rule", map[string]int{none: 400, null: 400, empty: 400, number: 400, unknown: 404})

	policy := "{apiVersion: epp.internal/v1alpha1, kind: EndpointPickerPolicy, metadata: {name: policy}, spec: {targetRef: {name: pool}, model: tiny}}"
	p.create(policy)
	expect("with the policy's model", map[string]int{none: 200, null: 200, empty: 200, number: 400, unknown: 404})
	p.remove(policy)
	expect("without it again", map[string]int{none: 400, number: 400, unknown: 404})

	p.create("{apiVersion: inference.networking.x-k8s.io/v1alpha2, kind: InferenceModelRewrite, metadata: {name: all}, spec: {poolRef: {name: pool}, rules: [{targets: [{modelRewrite: tiny}]}]}}")
	expect("with a rule for all names", map[string]int{none: 200, null: 200, empty: 200, number: 400, unknown: 200})
}

// TestCaseF4WeightsOfTargets: a target of weight 0 gets no request of 1,000, targets
// without weights get equal parts, and what cannot be a choice is refused, by the API
// server or in the model's status.
func TestCaseF4WeightsOfTargets(t *testing.T) {
	t.Parallel()
	p := newPool(t)
	ip := p.ip()
	p.engine("a", ip, p.port, func(c *epptest.EngineConfig) { c.Adapters = []string{"one", "two", "never"} })
	p.pod("a", ip)
	model := func(name, targets string) string {
		return fmt.Sprintf("{apiVersion: inference.networking.x-k8s.io/v1alpha2, kind: InferenceModel, metadata: {name: %s}, spec: {modelName: %s, targetModels: [%s], poolRef: {name: pool}}}", name, name, targets)
	}
	p.create(model("weighted", "{name: one, weight: 75}, {name: two, weight: 25}, {name: never, weight: 0}"))
	p.create(model("equal", "{name: one}, {name: two}"))
	p.create(model("zero", "{name: one, weight: 0}, {name: two, weight: 0}"))
	for targets, want := range map[string]string{
		"{name: one, weight: -1}":             "should be greater than or equal to 0",
		"{name: one, weight: 1}, {name: two}": "give every target a weight, or none",
		"{name: one, weight: 1000001}":        "should be less than or equal to 1000000",
		"{name: ''}":                          "should be at least 1 chars long",
	} {
		if err := p.try(model("refused", targets)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: the API server says %v; want %q", targets, err, want)
		}
	}
	k := p.serve("")
	k.ready()
	k.has(patience, "a")
	becomesCondition(t, p, "inferencemodel/zero", "Accepted", "False Invalid spec.targetModels: have no weight above 0")
	url := "http://" + k.proxy
	within(t, patience, "the models are known", func() error {
		if a := ask(t.Context(), url, "equal", "x", ""); a.status != http.StatusOK {
			return errors.New(a.body)
		}
		return nil
	})
	share := func(name string, n int) map[string]int {
		from, got := len(p.engines["a"].Received()), map[string]int{}
		for i := range n {
			if a := ask(t.Context(), url, name, fmt.Sprint(name, i), ""); a.status != http.StatusOK {
				t.Fatalf("%s: %d %s %v", name, a.status, a.body, a.err)
			}
			from++
		}
		for _, r := range p.engines["a"].Received() {
			var body struct{ Model, Prompt string }
			if json.Unmarshal(r.Body, &body) == nil && strings.HasPrefix(body.Prompt, name) {
				got[body.Model]++
			}
		}
		return got
	}
	if got := share("weighted", 1000); got["never"] > 0 || got["one"] < 600 || got["two"] < 150 {
		t.Errorf("of 75, 25 and 0: %v", got)
	}
	if got := share("equal", 100); got["one"] < 30 || got["two"] < 30 {
		t.Errorf("of equal parts: %v", got)
	}
}

// TestObjectivesAndKindsThatComeLater: kinds that the API server gets while the picker
// runs are found, llm-d.ai's objective wins over the older group's, and a request that
// names it may be shed.
func TestObjectivesAndKindsThatComeLater(t *testing.T) {
	t.Parallel()
	p := newPool(t)
	ip := p.ip()
	p.engine("a", ip, p.port, func(c *epptest.EngineConfig) { c.Engine.MaxRunning = 4 })
	p.pod("a", ip)
	k := p.serve("maxQueue: 1")
	k.ready()
	k.has(patience, "a")
	url := "http://" + k.proxy
	p.create("{apiVersion: inference.networking.x-k8s.io/v1alpha2, kind: InferenceObjective, metadata: {name: batch}, spec: {priority: 7, poolRef: {name: pool}}}")
	for _, kind := range []string{"InferenceObjective", "InferenceModelRewrite"} {
		plural := strings.ToLower(kind) + "s"
		p.create(fmt.Sprintf("{apiVersion: apiextensions.k8s.io/v1, kind: CustomResourceDefinition, metadata: {name: %s.llm-d.ai}, spec: {group: llm-d.ai, scope: Namespaced, names: {kind: %s, plural: %s}, versions: [{name: v1alpha2, served: true, storage: true, schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}}]}}", plural, kind, plural))
	}
	objective := "{apiVersion: llm-d.ai/v1alpha2, kind: InferenceObjective, metadata: {name: batch}, spec: {priority: -5, poolRef: {name: pool}}}"
	within(t, patience, "the kind is served", func() error { return p.try(objective) })
	p.create("{apiVersion: llm-d.ai/v1alpha2, kind: InferenceModelRewrite, metadata: {name: later}, spec: {poolRef: {name: pool}, rules: [{matches: [{model: {value: later}}], targets: [{modelRewrite: tiny}]}]}}")
	took := within(t, patience, "the rewrite is in force", func() error {
		if a := ask(t.Context(), url, "later", "x", ""); a.status != http.StatusOK {
			return errors.New(a.body)
		}
		return nil
	})
	t.Logf("a kind that came later was found after %v", took)

	p.engines["a"].HoldAnswers(true)
	defer p.engines["a"].HoldAnswers(false)
	busy := make(chan answer)
	const many = 16 // four times what the engine runs at once
	for i := range many {
		go func() { busy <- ask(context.Background(), url, "tiny", words(i, 20), "") }()
	}
	within(t, patience, "the endpoint is full", func() error { return atLeast(k, "epp_queue_depth", 2) })
	if a := ask(t.Context(), url, "tiny", "x", "batch"); a.status != http.StatusTooManyRequests || !strings.Contains(a.body, "priority -5") {
		t.Errorf("a request of the objective in a full pool: %d %s %v", a.status, a.body, a.err)
	}
	p.engines["a"].HoldAnswers(false)
	for range many {
		if a := <-busy; a.status != http.StatusOK {
			t.Errorf("a request without an objective: %d %s %v", a.status, a.body, a.err)
		}
	}
	for _, r := range p.engines["a"].Received() {
		if r.Header.Get("x-llm-d-inference-objective") != "" {
			t.Error("the objective's header reached the engine")
		}
	}
}
