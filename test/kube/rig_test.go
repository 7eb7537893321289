//go:build kube

package kube

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health/grpc_health_v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	clientscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"epp.internal/epp/engine"
	"epp.internal/epp/epptest"
	"epp.internal/epp/epptest/demotok"
	"epp.internal/epp/tokenize"
)

// patience bounds what a test waits for. Nothing is measured by it.
const patience = 60 * time.Second

// nets numbers the pools: the pods of each have addresses of their own, 127.N.0.x.
var nets atomic.Int32

// built is the binary epp, made once.
var built = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "epp-kube-bin-")
	if err != nil {
		return "", err
	}
	atEnd(func() { _ = os.RemoveAll(dir) })
	out, err := exec.Command("go", "build", "-tags", "grpcnotrace", "-ldflags", "-s -w", "-o", dir+"/epp", "../../cmd/epp").CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("go build: %w\n%s", err, out)
	}
	return dir + "/epp", nil
})

// envoy is the real Envoy, fetched where it is not in the cache.
var envoy = sync.OnceValues(func() (string, error) {
	out, err := exec.Command("../fetch-envoy.sh").Output()
	return strings.TrimSpace(string(out)), err
})

// pool is a namespace with an InferencePool, whose pods are fake engines.
type pool struct {
	t       *testing.T
	ns      string
	net     int32
	port    string // of every pod
	client  client.Client
	tok     *tokenize.Tokenizer
	dir     string // with the tokenizer's files
	mu      sync.Mutex
	engines map[string]*epptest.Engine // by pod
	next    int
}

// newPool makes the namespace and the pool's object, and a ready pod with an engine for
// each name.
func newPool(t *testing.T, pods ...string) *pool {
	t.Helper()
	if err := schemas(); err != nil {
		t.Fatal(err)
	}
	p := &pool{t: t, net: nets.Add(1) + 100, port: freePorts(1)[0], dir: t.TempDir(), engines: map[string]*epptest.Engine{}}
	p.ns = strings.ToLower(regexp.MustCompile(`[^A-Za-z0-9]+`).ReplaceAllString(t.Name(), "-"))
	cfg, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	cfg.QPS, cfg.Burst = 200, 200
	if p.client, err = client.New(cfg, client.Options{Scheme: clientscheme.Scheme}); err != nil {
		t.Fatal(err)
	}
	model, settings := demotok.Files()
	if p.tok, err = tokenize.New(model, settings); err != nil {
		t.Fatal(err)
	}
	for name, data := range map[string][]byte{"tokenizer.json": model, "tokenizer_config.json": settings} {
		if err := os.WriteFile(filepath.Join(p.dir, name), data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	p.create(fmt.Sprintf("{apiVersion: v1, kind: Namespace, metadata: {name: %s}}", p.ns))
	p.create("{apiVersion: v1, kind: ServiceAccount, metadata: {name: default}}")
	p.create(p.object(p.port))
	for _, name := range pods {
		p.start(name)
	}
	return p
}

// object is the InferencePool with the given ports.
func (p *pool) object(ports ...string) string {
	list := make([]string, len(ports))
	for i, port := range ports {
		list[i] = "{number: " + port + "}"
	}
	return fmt.Sprintf(`{apiVersion: inference.networking.k8s.io/v1, kind: InferencePool, metadata: {name: pool},
 spec: {selector: {matchLabels: {app: vllm}}, targetPorts: [%s], endpointPickerRef: {name: epp, port: {number: 9002}}}}`, strings.Join(list, ", "))
}

// create makes an object of YAML.
func (p *pool) create(text string) {
	p.t.Helper()
	if err := p.try(text); err != nil {
		p.t.Fatalf("%v\n%s", err, text)
	}
}

// try is create, with the API server's refusal.
func (p *pool) try(text string) error {
	return p.client.Create(p.t.Context(), p.read(text))
}

func (p *pool) read(text string) *unstructured.Unstructured {
	p.t.Helper()
	u := &unstructured.Unstructured{}
	if err := yaml.Unmarshal([]byte(text), &u.Object); err != nil {
		p.t.Fatalf("%v\n%s", err, text)
	}
	if u.GetKind() != "Namespace" && u.GetKind() != "CustomResourceDefinition" {
		u.SetNamespace(p.ns)
	}
	return u
}

// change puts an object's spec in place of the one that it has.
func (p *pool) change(text string) {
	p.t.Helper()
	u := p.read(text)
	patch, err := json.Marshal([]map[string]any{{"op": "replace", "path": "/spec", "value": u.Object["spec"]}})
	if err == nil {
		err = p.client.Patch(p.t.Context(), u, client.RawPatch(types.JSONPatchType, patch))
	}
	if err != nil {
		p.t.Fatalf("%v\n%s", err, text)
	}
}

// remove deletes an object.
func (p *pool) remove(text string) {
	p.t.Helper()
	if err := p.client.Delete(p.t.Context(), p.read(text)); err != nil {
		p.t.Fatalf("%v\n%s", err, text)
	}
}

// ip is the next free address of the pool's pods.
func (p *pool) ip() string {
	p.next++
	return fmt.Sprintf("127.%d.0.%d", p.net, p.next)
}

// start makes a ready pod of that name, with an engine at a new address.
func (p *pool) start(name string) *epptest.Engine {
	p.t.Helper()
	ip := p.ip()
	e := p.engine(name, ip, p.port, nil)
	p.pod(name, ip)
	return e
}

// engine starts a fake engine, a hundred times faster than profile article-8b.
func (p *pool) engine(name, ip, port string, change func(*epptest.EngineConfig)) *epptest.Engine {
	p.t.Helper()
	profile, _ := engine.ProfileNamed("article-8b")
	c := epptest.EngineConfig{
		Name: name, Address: ip + ":" + port, EventAddress: ip + ":0", ReplayAddress: ip + ":0", Model: "tiny",
		Engine: engine.Config{Profile: profile}, TimeScale: 0.01, Tokenizer: p.tok,
	}
	for _, w := range demotok.Words() {
		c.AnswerTokens = append(c.AnswerTokens, p.tok.CompletionTokens(" "+w)...)
	}
	if change != nil {
		change(&c)
	}
	e, err := epptest.StartEngine(c)
	if err != nil {
		p.t.Fatal(err)
	}
	p.t.Cleanup(func() { _ = e.Close() })
	p.mu.Lock()
	defer p.mu.Unlock()
	p.engines[name] = e
	return e
}

// pod makes a pod that is running and ready at an address. Its node has no kubelet, so
// that a pod that is deleted stays, on its way out, until it is forced.
func (p *pool) pod(name, ip string) {
	p.t.Helper()
	p.create(fmt.Sprintf("{apiVersion: v1, kind: Pod, metadata: {name: %s, labels: {app: vllm}}, spec: {nodeName: node, containers: [{name: vllm, image: vllm}]}}", name))
	p.become(name, ip, corev1.ConditionTrue)
}

// become sets a pod's status as a kubelet would.
func (p *pool) become(name, ip string, ready corev1.ConditionStatus) {
	p.t.Helper()
	patch := fmt.Sprintf(`{"status":{"phase":"Running","podIP":%q,"podIPs":[{"ip":%q}],"conditions":[{"type":"Ready","status":%q}]}}`, ip, ip, ready)
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: p.ns, Name: name}}
	if err := p.client.Status().Patch(p.t.Context(), pod, client.RawPatch(types.StrategicMergePatchType, []byte(patch))); err != nil {
		p.t.Fatal(err)
	}
}

// label sets the labels that the pool selects by.
func (p *pool) label(name, app string) {
	p.t.Helper()
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: p.ns, Name: name}}
	if err := p.client.Patch(p.t.Context(), pod, client.RawPatch(types.StrategicMergePatchType, fmt.Appendf(nil, `{"metadata":{"labels":{"app":%q}}}`, app))); err != nil {
		p.t.Fatal(err)
	}
}

// delete deletes a pod: at once, or so that it is on its way out.
func (p *pool) delete(name string, seconds int64) {
	p.t.Helper()
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: p.ns, Name: name}}
	if err := p.client.Delete(p.t.Context(), pod, client.GracePeriodSeconds(seconds)); err != nil {
		p.t.Fatal(err)
	}
}

// picker is epp serve as a process of its own.
type picker struct {
	t                               *testing.T
	cmd                             *exec.Cmd
	config                          string // its file
	proxy, metrics, extproc, health string
	ended                           chan struct{}
	err                             error // once ended
	transcript
}

// transcript is what a process has written so far, to be read while it writes on.
type transcript struct {
	mu   sync.Mutex // guards text
	text strings.Builder
}

// Write appends to it.
func (t *transcript) Write(b []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.text.Write(b)
}

func (t *transcript) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.text.String()
}

// said are the lines of the log that have all of the texts.
func (k *picker) said(texts ...string) (lines []string) {
lines:
	for line := range strings.Lines(k.String()) {
		for _, text := range texts {
			if !strings.Contains(line, text) {
				continue lines
			}
		}
		lines = append(lines, line)
	}
	return lines
}

// serve starts a picker of the pool with further settings, and returns when it listens.
func (p *pool) serve(settings string) *picker { return p.serveBy(kubeconfig, settings) }

// serveBy is serve with a kubeconfig of its own.
func (p *pool) serveBy(kubeconfig, settings string) *picker {
	p.t.Helper()
	binary, err := built()
	if err != nil {
		p.t.Fatal(err)
	}
	k := &picker{t: p.t, config: filepath.Join(p.t.TempDir(), "epp.yaml"), ended: make(chan struct{})}
	text := fmt.Sprintf(`
kubernetes: {pool: %s/pool, kubeconfig: %s}
listen: {proxy: "127.0.0.1:0", metrics: "127.0.0.1:0", extProc: "127.0.0.1:0", health: "127.0.0.1:0"}
tokenizer: {path: %s}
timeouts: {drain: 2s, finish: 20s}
%s`, p.ns, kubeconfig, p.dir, settings)
	if err := os.WriteFile(k.config, []byte(text), 0o600); err != nil {
		p.t.Fatal(err)
	}
	k.cmd = exec.Command(binary, "serve", "--config", k.config)
	k.cmd.Stderr = k
	if err := k.cmd.Start(); err != nil {
		p.t.Fatal(err)
	}
	go func() {
		k.err = k.cmd.Wait()
		close(k.ended)
	}()
	p.t.Cleanup(func() {
		_ = k.cmd.Process.Signal(syscall.SIGCONT)
		_ = k.cmd.Process.Kill() // it may have ended
		<-k.ended
		if p.t.Failed() {
			lines := slices.DeleteFunc(k.said(), func(l string) bool { return strings.Contains(l, `"requestID"`) })
			p.t.Logf("the picker's log, but its decisions:\n%s", strings.Join(lines[max(0, len(lines)-40):], ""))
		}
	})
	p.listens(k)
	return k
}

// listens waits until the picker has said where it listens.
func (p *pool) listens(k *picker) {
	p.t.Helper()
	within(p.t, patience, "the picker listens", func() error {
		if lines := k.said(`"msg":"serving"`); len(lines) > 0 {
			var at struct{ Proxy, Metrics, ExtProc, Health string }
			if err := json.Unmarshal([]byte(lines[0]), &at); err != nil {
				return err
			}
			k.proxy, k.metrics, k.extproc, k.health = at.Proxy, at.Metrics, at.ExtProc, at.Health
			return nil
		}
		select {
		case <-k.ended:
			p.t.Fatalf("the picker has ended: %v\n%s", k.err, strings.Join(k.said(), ""))
		default:
		}
		return errors.New("it does not")
	})
}

// within waits until check finds nothing wrong, for d at most, and returns how long it
// took.
func within(t *testing.T, d time.Duration, what string, check func() error) time.Duration {
	t.Helper()
	began := time.Now()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for {
		err := check()
		if err == nil {
			return time.Since(began)
		}
		if time.Since(began) > d || t.Context().Err() != nil {
			t.Fatalf("%s: not within %v: %v", what, d, err)
		}
		<-tick.C
	}
}

var local = &http.Client{Timeout: 30 * time.Second, Transport: &http.Transport{MaxIdleConnsPerHost: 100}}

// series are the values of a metric by pod.
func (k *picker) series(name string) map[string]float64 {
	resp, err := local.Get("http://" + k.metrics + "/metrics")
	if err != nil {
		return nil
	}
	defer resp.Body.Close()
	page, _ := io.ReadAll(resp.Body)
	values := map[string]float64{}
	for line := range strings.Lines(string(page)) {
		rest, ok := strings.CutPrefix(line, name+"{")
		if !ok {
			continue
		}
		_, pod, _ := strings.Cut(rest, `pod="`)
		pod, _, _ = strings.Cut(pod, `"`)
		var v float64
		_, _ = fmt.Sscan(line[strings.LastIndex(line, " ")+1:], &v)
		values[pod] = v
	}
	return values
}

// endpoints are the pods that the picker would send to.
func (k *picker) endpoints() []string {
	var names []string
	for name := range k.series("epp_pod_health_score") {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// has waits until the picker's endpoints are the given ones, and returns how long that
// took.
func (k *picker) has(d time.Duration, names ...string) time.Duration {
	k.t.Helper()
	return within(k.t, d, fmt.Sprintf("the endpoints are %v", names), func() error {
		if got := k.endpoints(); !slices.Equal(got, names) {
			return fmt.Errorf("they are %v", got)
		}
		return nil
	})
}

// status asks the picker's health service.
func (k *picker) status(service string) string {
	conn, err := grpc.NewClient(k.health, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err.Error()
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(k.t.Context(), 5*time.Second)
	defer cancel()
	resp, err := grpc_health_v1.NewHealthClient(conn).Check(ctx, &grpc_health_v1.HealthCheckRequest{Service: service})
	if err != nil {
		return err.Error()
	}
	return resp.Status.String()
}

// ready waits until the picker is.
func (k *picker) ready() time.Duration {
	k.t.Helper()
	return within(k.t, patience, "the picker is ready", func() error {
		if got := k.status("readiness"); got != "SERVING" {
			return errors.New(got)
		}
		return nil
	})
}

// leads says whether the picker has begun to write status and Events.
func (k *picker) leads() error {
	if len(k.said("this replica writes status")) == 0 {
		return errors.New("it does not write")
	}
	return nil
}

// signal sends the picker a signal.
func (k *picker) signal(s syscall.Signal) {
	k.t.Helper()
	if err := k.cmd.Process.Signal(s); err != nil {
		k.t.Fatal(err)
	}
}

// front is a real Envoy in front of pickers, configured by epp envoy-config. It returns
// its URL.
func front(t *testing.T, pickers ...*picker) string {
	t.Helper()
	binary, err := built()
	if err != nil {
		t.Fatal(err)
	}
	envoy, err := envoy()
	if err != nil {
		t.Fatalf("no Envoy; run test/fetch-envoy.sh: %v", err)
	}
	dir, address := t.TempDir(), "127.0.0.1:"+freePorts(1)[0]
	args := []string{"envoy-config", "--config", pickers[0].config, "--listen", address, "--admin", ""}
	for _, k := range pickers {
		args = append(args, "--picker", k.extproc)
	}
	text, err := exec.Command(binary, args...).Output()
	if err != nil {
		t.Fatalf("epp envoy-config: %v", err)
	}
	if err := os.WriteFile(dir+"/envoy.yaml", text, 0o600); err != nil {
		t.Fatal(err)
	}
	var log bytes.Buffer // read after the end alone
	c := exec.Command(envoy, "-c", dir+"/envoy.yaml", "--concurrency", "1", "--disable-hot-restart", "-l", "warning")
	c.Stderr = &log
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = c.Process.Kill()
		_ = c.Wait()
		if t.Failed() {
			t.Logf("Envoy's log:\n%s", log.String())
		}
	})
	url := "http://" + address
	within(t, patience, "Envoy serves", func() error {
		if a := ask(t.Context(), url, "tiny", "ready", ""); a.status != http.StatusOK {
			return fmt.Errorf("%d %s %w", a.status, a.body, cmpErr(a.err))
		}
		return nil
	})
	return url
}

func cmpErr(err error) error {
	if err == nil {
		return errors.New("no error")
	}
	return err
}

// answer is what became of a request.
type answer struct {
	status int
	served string // the pod that answered
	body   string
	err    error
}

// ask sends a completion.
func ask(ctx context.Context, url, model, prompt, objective string) answer {
	body, _ := json.Marshal(map[string]any{"model": model, "prompt": prompt, "max_tokens": 2, "ignore_eos": true})
	return post(ctx, url, body, objective)
}

func post(ctx context.Context, url string, body []byte, objective string) answer {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url+"/v1/completions", bytes.NewReader(body))
	if err != nil {
		return answer{err: err}
	}
	req.Header.Set("content-type", "application/json")
	if objective != "" {
		req.Header.Set("x-llm-d-inference-objective", objective)
	}
	resp, err := local.Do(req)
	if err != nil {
		return answer{err: err}
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	return answer{resp.StatusCode, resp.Header.Get("x-served-by"), string(text), err}
}

// words are a text of some words, the same for the same seed.
func words(seed, n int) string {
	list := demotok.Words()
	var b strings.Builder
	for i := range n {
		b.WriteString(" " + list[(seed*131+i*i+7*i)%len(list)])
	}
	return b.String()
}

// load is traffic: several clients, each of a conversation of its own.
type load struct {
	stop context.CancelFunc
	wg   sync.WaitGroup

	mu     sync.Mutex // guards the following fields
	total  int
	served map[string]int
	failed []string
}

// traffic sends 8 clients' requests to url, each client one every 20 ms at most.
func traffic(t *testing.T, url string) *load {
	ctx, cancel := context.WithCancel(context.Background())
	l := &load{stop: cancel, served: map[string]int{}}
	for i := range 8 {
		l.wg.Go(func() {
			tick := time.NewTicker(20 * time.Millisecond)
			defer tick.Stop()
			for {
				a := ask(context.Background(), url, "tiny", words(i, 120), "")
				l.mu.Lock()
				l.total++
				l.served[a.served]++
				if a.status != http.StatusOK || a.err != nil {
					l.failed = append(l.failed, fmt.Sprintf("%s: %d %.300s %v", time.Now().Format("15:04:05.000"), a.status, a.body, a.err))
				}
				l.mu.Unlock()
				select {
				case <-ctx.Done():
					return
				case <-tick.C:
				}
			}
		})
	}
	t.Cleanup(func() { l.end() })
	return l
}

// more waits until so many further requests have ended.
func (l *load) more(t *testing.T, n int) {
	t.Helper()
	count := func() int {
		l.mu.Lock()
		defer l.mu.Unlock()
		return l.total
	}
	from := count()
	within(t, patience, fmt.Sprintf("%d more requests", n), func() error {
		if got := count() - from; got < n {
			return fmt.Errorf("there were %d", got)
		}
		return nil
	})
}

// end stops the traffic and returns how many requests there were, and those that
// failed.
func (l *load) end() (total int, failed []string) {
	l.stop()
	l.wg.Wait()
	return l.total, l.failed
}

// unharmed ends the traffic and fails the test where a request has.
func (l *load) unharmed(t *testing.T) {
	t.Helper()
	total, failed := l.end()
	t.Logf("%d requests, %d failed, by pod %v", total, len(failed), l.served)
	if len(failed) > 0 {
		t.Errorf("%d of %d requests failed:\n%s", len(failed), total, strings.Join(failed[:min(len(failed), 10)], "\n"))
	}
	if total < 100 {
		t.Errorf("%d requests are no load", total)
	}
}
