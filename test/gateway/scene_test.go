//go:build gateway

package gateway

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"epp.internal/epp/epptest/demotok"
)

// patience bounds what a test waits for. Nothing is measured by it.
const patience = 60 * time.Second

// front is the gateway that tests share.
const front = "front"

// http1 is the client of the gateways.
var http1 = &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 100}}

// startPicker is the image of a picker's pod: epp, with the ConfigMap that the
// pod's annotation names in the folder $(CONFIG).
func startPicker(ctx context.Context, command string) func(p *pod, ip string) (running, error) {
	return func(p *pod, ip string) (running, error) {
		dir, err := world.kubelet.configMap(ctx, p, p.Metadata.Annotations["config"], ip)
		if err != nil {
			return nil, err
		}
		expand := strings.NewReplacer("$(CONFIG)", dir, "$(KUBECONFIG)", world.kubeconfig)
		var args []string
		for _, a := range p.Spec.Containers[0].Args {
			args = append(args, expand.Replace(a))
		}
		proc, err := startProcess(p.Metadata.Name, dir, nil, command, args...)
		if err != nil {
			return nil, err
		}
		return &daemon{process: proc, namespace: p.Metadata.Namespace, address: ip, look: serving(ip + ":9003")}, nil
	}
}

// manifest returns a file of testdata with its ${names} replaced.
func manifest(file string, values map[string]string) (string, error) {
	text, err := os.ReadFile(filepath.Join("testdata", file))
	if err != nil {
		return "", err
	}
	unknown := ""
	out := os.Expand(string(text), func(name string) string {
		v, ok := values[name]
		if !ok {
			unknown = name
		}
		return v
	})
	if unknown != "" {
		return "", fmt.Errorf("testdata/%s: ${%s}: no such value; there are %q", file, unknown, slices.Sorted(maps.Keys(values)))
	}
	return out, nil
}

// startGateway has istiod make a gateway, and returns when its Envoy serves.
func startGateway(ctx context.Context, name string, port int) error {
	text, err := manifest("gateway.yaml", map[string]string{"gateway": name, "port": strconv.Itoa(port)})
	if err != nil {
		return err
	}
	if err := world.apply(ctx, text); err != nil {
		return err
	}
	p, err := gatewayPod(ctx, name)
	if err != nil {
		return err
	}
	// Envoy is ready before it has a listener: istiod makes one with the first route.
	return world.kubelet.isReady(ctx, p.Metadata.Namespace, p.Metadata.Name)
}

// gatewayPod returns the pod of a gateway when it has an address.
func gatewayPod(ctx context.Context, name string) (*pod, error) {
	return await(ctx, world.cluster, "/api/v1/namespaces/default/pods?labelSelector=gateway.networking.k8s.io/gateway-name="+name, func(p *pod) bool {
		return p.Status.PodIP != "" && p.Metadata.DeletionTimestamp == nil
	})
}

// isReady waits until a pod is ready.
func (k *kubelet) isReady(ctx context.Context, namespace, name string) error {
	_, err := await(ctx, k.cluster, "/api/v1/namespaces/"+namespace+"/pods?fieldSelector=metadata.name="+name, func(o *object) bool {
		return o.Status.condition("Ready").Status == "True"
	})
	return err
}

// scene is a namespace of one test, with what the test puts there.
type scene struct {
	t         *testing.T
	ctx       context.Context
	namespace string
}

// scenes numbers them: a test may run again before its namespace has gone.
var scenes atomic.Int32

// newScene makes a namespace, which goes with the test.
func newScene(t *testing.T) *scene {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*patience)
	s := &scene{t: t, ctx: ctx, namespace: strings.ToLower(strings.NewReplacer("/", "-", "_", "-").Replace(t.Name()))}
	s.namespace = fmt.Sprintf("%.50s-%d", s.namespace, scenes.Add(1))
	s.must(world.do(ctx, http.MethodPost, "/api/v1/namespaces", "application/json",
		map[string]any{"apiVersion": "v1", "kind": "Namespace", "metadata": map[string]any{"name": s.namespace}}, nil))
	t.Cleanup(func() {
		cancel()
		if t.Failed() {
			t.Log(world.kubelet.show(s.namespace))
			t.Log(world.kubelet.show("default"))
		}
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		if err := world.do(ctx, http.MethodDelete, "/api/v1/namespaces/"+s.namespace, "application/json", nil, nil); err != nil {
			t.Error(err)
		}
	})
	return s
}

func (s *scene) must(err error) {
	s.t.Helper()
	if err != nil {
		s.t.Fatal(err)
	}
}

// pool is an InferencePool with its picker and engines.
type pool struct {
	s           *scene
	name        string
	engines     int
	ports       []int    // default 8000
	protocol    string   // default http
	failureMode string   // default FailClose
	image       string   // of the engines; default engine
	replicas    int      // of the picker; default 1
	more        string   // a line of the picker's configuration
	plaintext   bool     // without TLS, and so without a DestinationRule
	outliers    string   // what the gateway does with pickers that fail; default nothing
	headers     []string // of requests that the route leads here

	addresses  []string // of the endpoints
	generation int
}

// start applies the pool, and returns when its engines and its picker are ready.
func (s *scene) start(p *pool) *pool {
	s.t.Helper()
	p.s = s
	if len(p.ports) == 0 {
		p.ports = []int{8000}
	}
	if p.protocol == "" {
		p.protocol = "http"
	}
	if p.failureMode == "" {
		p.failureMode = "FailClose"
	}
	if p.image == "" {
		p.image = "engine"
	}
	if p.replicas == 0 {
		p.replicas = 1
	}
	if p.outliers == "" {
		p.outliers = "{}"
	}
	if p.plaintext {
		p.more = "tls: {insecure: true}"
	}
	files := []string{"engines", "pool.yaml", "picker.yaml"}
	if !p.plaintext {
		files = append(files, "tls.yaml")
	}
	p.apply(files...)
	p.addresses = s.readyPods(p.name, p.engines, p.ports)
	s.readyPods(p.name+"-epp", p.replicas, []int{9002})
	return p
}

// apply applies files of testdata with what the pool is now.
func (p *pool) apply(files ...string) {
	p.s.t.Helper()
	var targets, container []string
	for _, port := range p.ports {
		targets = append(targets, fmt.Sprintf("{number: %d}", port))
		container = append(container, fmt.Sprintf("{containerPort: %d}", port))
	}
	values := map[string]string{
		"namespace": p.s.namespace, "pool": p.name, "ports": "[" + strings.Join(targets, ", ") + "]", "protocol": p.protocol, "failureMode": p.failureMode,
		"tokenizer": world.tokenizer, "more": p.more, "replicas": strconv.Itoa(p.replicas), "generation": strconv.Itoa(p.generation),
		"args": "[serve, --pool, " + p.s.namespace + "/" + p.name + ", --kubeconfig, $(KUBECONFIG), --config, $(CONFIG)/epp.yaml]", "image": p.image, "outliers": p.outliers,
	}
	var all strings.Builder
	for _, f := range files {
		if f != "engines" {
			text, err := manifest(f, values)
			p.s.must(err)
			all.WriteString(text + "\n---\n")
			continue
		}
		for n := range p.engines {
			each := maps.Clone(values)
			each["n"], each["ports"] = strconv.Itoa(n), "["+strings.Join(container, ", ")+"]"
			text, err := manifest("engine.yaml", each)
			p.s.must(err)
			all.WriteString(text)
		}
	}
	p.s.must(world.apply(p.s.ctx, all.String()))
}

// readyPods waits until n pods of an app are ready, and returns their addresses at
// each of the ports, in their order.
func (s *scene) readyPods(app string, n int, ports []int) (addresses []string) {
	s.t.Helper()
	ready := map[string]bool{}
	_, err := await(s.ctx, world.cluster, "/api/v1/namespaces/"+s.namespace+"/pods?labelSelector=app="+app, func(p *readyPod) bool {
		if p.Metadata.DeletionTimestamp == nil && p.Status.condition("Ready").Status == "True" {
			ready[p.Status.PodIP] = true
		}
		return len(ready) == n
	})
	s.must(err)
	for _, ip := range slices.Sorted(maps.Keys(ready)) {
		for _, port := range ports {
			addresses = append(addresses, fmt.Sprintf("%s:%d", ip, port))
		}
	}
	return addresses
}

type readyPod struct {
	Metadata meta `json:"metadata"`
	Status   struct {
		status
		PodIP string `json:"podIP"`
	} `json:"status"`
}

// to is a rule's one backend.
func to(pools ...string) string {
	var refs []string
	for _, p := range pools {
		name, weight, weighted := strings.Cut(p, "=")
		ref := "{group: inference.networking.k8s.io, kind: InferencePool, name: " + name
		if weighted {
			ref += ", weight: " + weight
		}
		refs = append(refs, ref+"}")
	}
	return "backendRefs: [" + strings.Join(refs, ", ") + "]"
}

// route applies a route of the scene's host through a gateway, by rules, and
// returns when the gateway has accepted it.
func (s *scene) route(name, gateway string, rules ...string) {
	s.t.Helper()
	text, err := manifest("route.yaml", map[string]string{
		"namespace": s.namespace, "route": name, "gateway": gateway, "host": s.host(), "rules": "[{" + strings.Join(rules, "}, {") + "}]"})
	s.must(err)
	s.must(world.apply(s.ctx, text))
	_, err = await(s.ctx, world.cluster, s.routePath(name), func(o *object) bool {
		return o.Status.of(gateway, "Accepted").Status == "True"
	})
	s.must(err)
}

func (s *scene) routePath(name string) string {
	return "/apis/gateway.networking.k8s.io/v1/namespaces/" + s.namespace + "/httproutes?fieldSelector=metadata.name=" + name
}

func (s *scene) poolPath(name string) string {
	return "/apis/inference.networking.k8s.io/v1/namespaces/" + s.namespace + "/inferencepools?fieldSelector=metadata.name=" + name
}

// host is the one that the scene's routes are for.
func (s *scene) host() string { return s.namespace + ".test" }

// served waits until the gateway's Envoy has the pools' endpoints, all of them, and
// answers a request to each pool.
func (s *scene) served(gateway string, pools ...*pool) {
	s.t.Helper()
	gw, err := gatewayPod(s.ctx, gateway)
	s.must(err)
	s.must(poll(s.ctx, func(ctx context.Context) (bool, error) {
		text, err := get(ctx, fmt.Sprintf("http://%s:%d/clusters", gw.Status.PodIP, adminPort))
		for _, p := range pools {
			for _, a := range p.addresses {
				if !strings.Contains(text, "::"+a+"::health_flags::healthy") {
					return false, fmt.Errorf("the gateway has no endpoint %s: %w", a, err)
				}
			}
		}
		return err == nil, err
	}))
	for _, p := range pools {
		s.must(poll(s.ctx, func(ctx context.Context) (bool, error) {
			a := s.send(ctx, s.url(gateway)+chatPath, chat("hello", 1), p.headers...)
			return a.status == http.StatusOK, fmt.Errorf("pool %s: the gateway answers %v", p.name, a)
		}))
	}
}

// ports are the listeners' of the gateways.
var ports = map[string]int{front: 80, "side": 81}

// url is that of a gateway's Envoy.
func (s *scene) url(gateway string) string {
	s.t.Helper()
	gw, err := gatewayPod(s.ctx, gateway)
	s.must(err)
	return fmt.Sprintf("http://%s:%d", gw.Status.PodIP, ports[gateway])
}

// get returns a page.
func get(ctx context.Context, url string) (string, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return "", err
	}
	resp, err := plain.Do(req)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	return string(text), err
}

// answer is what a client got.
type answer struct {
	status    int
	servedBy  string // the endpoint's own word
	requestID string
	header    http.Header
	body      []byte
	err       error
}

func (a answer) String() string {
	return fmt.Sprintf("status %d, served by %q, request %s, error %v: %.300s", a.status, a.servedBy, a.requestID, a.err, a.body)
}

// send posts a body as the scene's client.
func (s *scene) send(ctx context.Context, url string, body []byte, headers ...string) (a answer) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(body))
	if err != nil {
		return answer{err: err}
	}
	req.Host = s.host()
	req.Header.Set("Content-Type", "application/json")
	for i := 0; i < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	resp, err := http1.Do(req)
	if err != nil {
		return answer{err: err}
	}
	defer resp.Body.Close()
	a = answer{status: resp.StatusCode, servedBy: resp.Header.Get("x-served-by"), requestID: resp.Header.Get("x-epp-request-id"), header: resp.Header}
	a.body, a.err = io.ReadAll(resp.Body)
	return a
}

// jsonOf reads a body of JSON.
func jsonOf(r io.Reader, into any) error { return json.NewDecoder(r).Decode(into) }

// chatPath is the path of most requests.
const chatPath = "/v1/chat/completions"

// ok sends a request through the front gateway that must be answered.
func (s *scene) ok(body []byte, headers ...string) answer {
	s.t.Helper()
	a := s.send(s.ctx, s.url(front)+chatPath, body, headers...)
	if a.status != http.StatusOK || a.err != nil || a.servedBy == "" {
		s.t.Fatalf("want an endpoint's answer: %v", a)
	}
	return a
}

// chat is the body of a request. fields are further ones, each a name and its JSON.
func chat(prompt string, maxTokens int, fields ...string) []byte {
	m := map[string]any{"model": "tiny", "max_tokens": maxTokens, "messages": []any{map[string]any{"role": "user", "content": prompt}}}
	for i := 0; i < len(fields); i += 2 {
		m[fields[i]] = json.RawMessage(fields[i+1])
	}
	data, _ := json.Marshal(m) // of texts and numbers
	return data
}

// words is a prompt of n tokens that begins like no prompt of another seed.
func words(seed, n int) string {
	list := demotok.Words()
	var b strings.Builder
	for i := range n {
		b.WriteString(" " + list[(seed*7919+i*(seed+3))%len(list)])
	}
	return b.String()
}

// pickers returns a pool's picker processes, in the order of their addresses.
func (p *pool) pickers() (list []*daemon) {
	k := world.kubelet
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, r := range k.started {
		if d, ok := r.(*daemon); ok && d.namespace == p.s.namespace && strings.HasPrefix(d.name, p.name+"-epp-") {
			list = append(list, d)
		}
	}
	return list
}

// picked returns the log line of a request's decision.
func (p *pool) picked(requestID string) map[string]any {
	p.s.t.Helper()
	pickers := p.pickers()
	if len(pickers) != 1 {
		p.s.t.Fatalf("pool %s has %d pickers, want 1", p.name, len(pickers))
	}
	line, err := pickers[0].awaitLine(p.s.ctx, func(f map[string]any) bool { return f["msg"] == "selected" && f["requestID"] == requestID })
	p.s.must(err)
	return line
}
