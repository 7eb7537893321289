//go:build kube

package kube

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health/grpc_health_v1"

	"epp.internal/epp/epptest"
)

// shipped is the picker as the chart would run it: its arguments, its file and its
// probes are the chart's, its rights are those of the chart's account. Only addresses
// are others, since nothing here is a pod.
type shipped struct {
	t                   *testing.T
	binary              string
	args                []string
	proxy, health       string
	liveness, readiness string // the services that the probes ask for
	transcript
}

// ship installs the chart's account in a namespace and reads how it would run the
// picker of the pool "demo".
func ship(t *testing.T, namespace string) *shipped {
	t.Helper()
	dir := t.TempDir()
	values := filepath.Join(dir, "values.yaml")
	if err := os.WriteFile(values, []byte("pool: {name: demo}\nproxy: {enabled: true}\ndrainSeconds: 1\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	binary, err := built()
	if err != nil {
		t.Fatal(err)
	}
	s := &shipped{t: t, binary: binary}
	ports := freePorts(4)
	s.proxy, s.health = "127.0.0.1:"+ports[0], "127.0.0.1:"+ports[1]
	file, account := filepath.Join(dir, "epp.yaml"), filepath.Join(dir, "account")
	text := rendered(t, namespace, values)
	for doc := range strings.SplitSeq(text, "\n---\n") {
		for _, o := range things(t, doc) {
			switch o.Kind {
			case "ServiceAccount", "Role", "RoleBinding":
				apply(t, doc, "--namespace", namespace)
			case "ConfigMap":
				settings := strings.NewReplacer(":8080", s.proxy, ":9003", s.health, ":9002", "127.0.0.1:"+ports[2], ":9090", "127.0.0.1:"+ports[3]).Replace(o.Data["epp.yaml"])
				if err := os.WriteFile(file, []byte(settings), 0o600); err != nil {
					t.Fatal(err)
				}
			case "Deployment":
				s.read(o, strings.NewReplacer("$(POOL_NAMESPACE)", namespace, "$(POOL)", "demo", "/etc/epp/epp.yaml", file))
			}
		}
	}
	token, err := kubectl(t, "", "create", "token", "epp", "--namespace", namespace)
	if err != nil {
		t.Fatalf("%v: %s", err, token)
	}
	admin, err := os.ReadFile(kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(account, []byte(strings.Replace(string(admin), `token: "admin"`, fmt.Sprintf("token: %q", strings.TrimSpace(token)), 1)), 0o600); err != nil {
		t.Fatal(err)
	}
	s.args = append(s.args, "--kubeconfig="+account)
	return s
}

// read takes arguments and probes from the chart's workload.
func (s *shipped) read(o thing, replace *strings.Replacer) {
	c := o.Spec.Template.Spec["containers"].([]any)[0].(map[string]any)
	for _, a := range c["args"].([]any) {
		s.args = append(s.args, replace.Replace(a.(string)))
	}
	service := func(probe string) string {
		return c[probe].(map[string]any)["grpc"].(map[string]any)["service"].(string)
	}
	s.liveness, s.readiness = service("livenessProbe"), service("readinessProbe")
}

// start starts the picker; stop ends it as a kubelet would, and waits. Where a test
// fails before that it is killed, and what it logged is shown.
func (s *shipped) start() (stop func()) {
	s.t.Helper()
	c := exec.Command(s.binary, s.args...)
	c.Stdout, c.Stderr = s, s
	if err := c.Start(); err != nil {
		s.t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- c.Wait() }()
	stopped := false
	s.t.Cleanup(func() {
		if !stopped {
			_ = c.Process.Kill()
			<-ended
			s.t.Logf("the picker's log:\n%s", s.String())
		}
	})
	return func() {
		stopped = true
		_ = c.Process.Signal(syscall.SIGTERM)
		select {
		case err := <-ended:
			if err != nil {
				s.t.Errorf("the picker's end: %v", err)
			}
		case <-time.After(20 * time.Second):
			_ = c.Process.Kill()
			s.t.Error("the picker has not ended 20 s after SIGTERM")
		}
	}
}

// probed asks for a service's health as the kubelet would.
func (s *shipped) probed(ctx context.Context, service string) error {
	conn, err := grpc.NewClient(s.health, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer conn.Close()
	answer, err := grpc_health_v1.NewHealthClient(conn).Check(ctx, &grpc_health_v1.HealthCheckRequest{Service: service})
	if err == nil && answer.GetStatus() != grpc_health_v1.HealthCheckResponse_SERVING {
		err = fmt.Errorf("%s is %v", service, answer.GetStatus())
	}
	return err
}

// usedItsRights holds what the account may do against what it did, by the API server's
// audit: nothing was refused, and of the rights none was idle but those on kinds that
// this cluster has not, and list, which a reader needs where a watch cannot begin with
// all objects.
func (s *shipped) usedItsRights(namespace string) {
	s.t.Helper()
	account := "system:serviceaccount:" + namespace + ":epp"
	log, err := os.ReadFile(audited)
	if err != nil {
		s.t.Fatal(err)
	}
	used := map[string]bool{}
	for line := range strings.Lines(string(log)) {
		var e struct {
			Verb        string
			User        struct{ Username string }
			ObjectRef   struct{ Resource, Subresource, APIGroup, Name string }
			Annotations map[string]string
		}
		if err := json.Unmarshal([]byte(line), &e); err != nil {
			s.t.Fatalf("%v: %s", err, line)
		}
		if e.User.Username != account {
			continue
		}
		if e.Annotations["authorization.k8s.io/decision"] != "allow" {
			s.t.Errorf("the API server has refused: %s", line)
		}
		resource := e.ObjectRef.Resource
		if e.ObjectRef.Subresource != "" {
			resource += "/" + e.ObjectRef.Subresource
		}
		does := strings.TrimSuffix(e.Verb+" "+resource+"."+e.ObjectRef.APIGroup, ".")
		used[does], used[does+" "+e.ObjectRef.Name] = true, true
	}
	var idle []string
	for _, right := range may(s.t, account, namespace) {
		if !used[right] && !strings.HasPrefix(right, "list ") {
			idle = append(idle, right)
		}
	}
	want := []string{"watch inferencemodelrewrites.llm-d.ai", "watch inferenceobjectives.llm-d.ai", "watch inferencepools.inference.networking.x-k8s.io"}
	if diff := cmp.Diff(want, idle); diff != "" {
		s.t.Errorf("rights that were not used: -want +got:\n%s", diff)
	}
}

// becomes waits until check finds nothing wrong.
func becomes(t *testing.T, what string, check func(context.Context) error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	began := time.Now()
	for {
		err := check(ctx)
		if err == nil {
			t.Logf("%s: after %v", what, time.Since(began).Round(time.Millisecond))
			return
		}
		select {
		case <-ctx.Done():
			t.Fatalf("%s: not within 30 s: %v", what, err)
		case <-tick.C:
		}
	}
}

// says waits until kubectl's answer has a text.
func says(t *testing.T, want string, args ...string) {
	t.Helper()
	becomes(t, strings.Join(args, " ")+" says "+want, func(context.Context) error {
		out, err := kubectl(t, "", args...)
		if err == nil && !strings.Contains(out, want) {
			err = fmt.Errorf("it says %q", out)
		}
		return err
	})
}

// enginePod makes a pod whose address is an engine's: there is no kubelet that would.
func enginePod(t *testing.T, namespace, name, ip string) {
	t.Helper()
	apply(t, fmt.Sprintf("{apiVersion: v1, kind: Pod, metadata: {name: %s, labels: {app: engines}}, spec: {containers: [{name: vllm, image: vllm}]}}", name), "--namespace", namespace)
	status := fmt.Sprintf(`{"status":{"phase":"Running","podIP":%q,"podIPs":[{"ip":%q}],"conditions":[{"type":"Ready","status":"True"}]}}`, ip, ip)
	if out, err := kubectl(t, "", "patch", "pod", name, "--namespace", namespace, "--subresource", "status", "--type", "merge", "--patch", status); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
}

// The real picker, with the chart's arguments and file, does all of its work with the
// rights of the chart's account: it finds the pods, places requests, answers the
// chart's probes, writes conditions and Events, counts an Event that is there, holds
// the lease, and is refused nothing.
func TestRunsUnderItsAccount(t *testing.T) {
	prepared(t)
	namespace := "runs-under-its-account" // engines here are no pods that PodSecurity would admit
	apply(t, fmt.Sprintf("{apiVersion: v1, kind: Namespace, metadata: {name: %s}}", namespace))
	apply(t, "{apiVersion: v1, kind: ServiceAccount, metadata: {name: default}}", "--namespace", namespace)
	port := freePorts(1)[0]
	for i, ip := range []string{"127.0.0.2", "127.0.0.3"} {
		e, err := epptest.StartEngine(epptest.EngineConfig{Name: fmt.Sprintf("engine-%d", i), Address: ip + ":" + port, EventAddress: ip + ":0", ReplayAddress: ip + ":0", Model: "demo", TimeScale: 0.01})
		if err != nil {
			t.Fatal(err)
		}
		defer e.Close()
		enginePod(t, namespace, e.Name(), ip)
	}
	apply(t, fmt.Sprintf(`
{apiVersion: inference.networking.k8s.io/v1, kind: InferencePool, metadata: {name: demo},
 spec: {selector: {matchLabels: {app: engines}}, targetPorts: [{number: %s}], endpointPickerRef: {name: epp, port: {number: 9002}}}}
---
{apiVersion: epp.internal/v1alpha1, kind: EndpointPickerPolicy, metadata: {name: first}, spec: {targetRef: {name: demo}, maxQueue: 7}}
---
{apiVersion: inference.networking.x-k8s.io/v1alpha2, kind: InferenceModel, metadata: {name: support}, spec: {modelName: support, targetModels: [{name: demo}], poolRef: {name: demo}}}`, port), "--namespace", namespace)

	s := ship(t, namespace)
	stop := s.start()
	becomes(t, "liveness", func(ctx context.Context) error { return s.probed(ctx, s.liveness) })
	becomes(t, "readiness", func(ctx context.Context) error { return s.probed(ctx, s.readiness) })
	becomes(t, "a request is served", func(ctx context.Context) error {
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+s.proxy+"/v1/completions", strings.NewReader(`{"model":"support","prompt":"hello","max_tokens":4}`))
		if err != nil {
			return err
		}
		req.Header.Set("content-type", "application/json")
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		body, _ := io.ReadAll(resp.Body)
		if resp.StatusCode != http.StatusOK {
			return fmt.Errorf("%s: %s", resp.Status, body)
		}
		return nil
	})
	in := func(args ...string) []string { return append(args, "--namespace", namespace) }
	condition := func(kind string) string {
		return fmt.Sprintf(`jsonpath={.status.conditions[?(@.type=="%s")].status}`, kind)
	}
	says(t, "True", in("get", "endpointpickerpolicy", "first", "-o", condition("Programmed"))...)
	says(t, "True", in("get", "inferencemodel", "support", "-o", condition("Accepted"))...)
	says(t, "held by a picker", in("get", "lease", "epp-demo", "-o", "go-template={{if .spec.holderIdentity}}held by a picker{{end}}")...)

	// A second policy is refused, in its status and by an Event on the pool.
	apply(t, "{apiVersion: epp.internal/v1alpha1, kind: EndpointPickerPolicy, metadata: {name: second}, spec: {targetRef: {name: demo}}}", "--namespace", namespace)
	says(t, "False", in("get", "endpointpickerpolicy", "second", "-o", condition("Accepted"))...)
	event := in("get", "events", "--field-selector", "involvedObject.kind=InferencePool,involvedObject.name=demo", "-o", `jsonpath={range .items[*]}{.count} {.message}{"\n"}{end}`)
	says(t, `1 EndpointPickerPolicy "second"`, event...)

	// The next one finds that Event, and counts it.
	stop()
	stop = s.start()
	says(t, `2 EndpointPickerPolicy "second"`, event...)
	stop()

	s.usedItsRights(namespace)
	log := s.String()
	for line := range strings.Lines(log) {
		if strings.Contains(line, "forbidden") || strings.Contains(line, `"level":"ERROR"`) || strings.Contains(line, "cannot be written") {
			t.Errorf("the picker's log: %s", line)
		}
	}
	if !strings.Contains(log, `"msg":"pool resolved"`) || !strings.Contains(log, `"endpoints":2`) {
		t.Errorf("the log does not say that the pool has two endpoints:\n%s", log)
	}
}
