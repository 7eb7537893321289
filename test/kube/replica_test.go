//go:build kube

package kube

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"epp.internal/epp/epptest"
)

// TestCaseM1RollingUpdate: of two pickers behind one Envoy one is told to stop while
// clients ask. It is not ready at once, takes what still comes, ends with exit status 0
// within its drain time and 2 s, and no client sees an error.
func TestCaseM1RollingUpdate(t *testing.T) {
	t.Parallel()
	p := newPool(t, "a", "b", "c")
	old, other := p.serve(""), p.serve("")
	old.ready()
	other.ready()
	l := traffic(t, front(t, old, other))
	l.more(t, 100)

	began := time.Now()
	old.signal(syscall.SIGTERM)
	took := within(t, patience, "the old picker is not ready", func() error {
		if got := old.status("readiness"); got == "SERVING" {
			return errors.New(got)
		}
		return nil
	})
	t.Logf("not ready %v after SIGTERM", took.Round(time.Millisecond))
	<-old.ended
	if left := time.Since(began); old.err != nil || left > 4*time.Second {
		t.Errorf("the old picker ended after %v: %v; its drain time is 2s", left, old.err)
	} else {
		t.Logf("ended after %v", left.Round(time.Millisecond))
	}
	within(t, 15*time.Second, "the other replica writes", other.leads)
	l.more(t, 100)
	l.unharmed(t)
}

// TestCaseM3Replicas: two replicas both route, whichever holds the lease. When the leader
// is killed the other writes within 10 s. A leader that stood still for longer than its
// lease steps down when it goes on, and both still route.
func TestCaseM3Replicas(t *testing.T) {
	t.Parallel()
	p := newPool(t, "a", "b")
	policy := func(name string) string {
		return fmt.Sprintf("{apiVersion: epp.internal/v1alpha1, kind: EndpointPickerPolicy, metadata: {name: %s}, spec: {targetRef: {name: pool}}}", name)
	}
	served := func(k *picker) {
		t.Helper()
		if a := ask(t.Context(), "http://"+k.proxy, "tiny", "hello", ""); a.status != http.StatusOK {
			t.Errorf("%d %s %v", a.status, a.body, a.err)
		}
	}
	first := p.serve("")
	within(t, patience, "the first replica writes", first.leads)
	second := p.serve("")
	for _, k := range []*picker{first, second} {
		k.ready()
		k.has(patience, "a", "b")
		served(k)
	}
	p.create(policy("one"))
	becomesCondition(t, p, "endpointpickerpolicy/one", "Programmed", "True")
	if second.leads() == nil {
		t.Fatal("both replicas write")
	}

	began := time.Now()
	first.signal(syscall.SIGKILL)
	served(second)
	within(t, 10*time.Second, "the second replica writes", second.leads)
	t.Logf("the leader is killed: the other writes after %v", time.Since(began).Round(time.Millisecond))
	p.create(policy("two"))
	becomesCondition(t, p, "endpointpickerpolicy/two", "Accepted", "False Conflicted")

	third := p.serve("")
	third.ready()
	began = time.Now()
	second.signal(syscall.SIGSTOP)
	within(t, 10*time.Second, "the third replica writes", third.leads)
	t.Logf("the leader stands still: the other writes after %v", time.Since(began).Round(time.Millisecond))
	began = time.Now()
	second.signal(syscall.SIGCONT)
	within(t, patience, "the second replica steps down", func() error {
		if len(second.said("lost the lease")) == 0 {
			return errors.New("it has not said so")
		}
		return nil
	})
	t.Logf("it goes on: it steps down after %v", time.Since(began).Round(time.Millisecond))
	served(second)
	served(third)
	p.start("c")
	second.has(second10, "a", "b", "c")
	third.has(second10, "a", "b", "c")
}

// second10 is for a replica that was stopped: its connection has to be found dead.
const second10 = 10 * time.Second

// TestCaseM5NotReadyBeforeTheFirstSync: a picker that cannot reach the API server is
// alive and not ready, and says why. When the server is there it becomes ready with the
// pool known, though pages take a second, and no request after that fails.
func TestCaseM5NotReadyBeforeTheFirstSync(t *testing.T) {
	t.Parallel()
	p := newPool(t)
	for i := range 12 {
		e := p.start(fmt.Sprintf("p%02d", i))
		e.SetFault(epptest.Fault{MetricsDelay: time.Second})
	}
	r := newRelay(t)
	k := p.serveBy(r.kubeconfig(t), "")
	for service, want := range map[string]string{
		"liveness": "SERVING", "readiness": "NOT_SERVING", "": "NOT_SERVING", "envoy.service.ext_proc.v3.ExternalProcessor": "NOT_SERVING", "nonsense": "NotFound",
	} {
		if got := k.status(service); got != want && !strings.Contains(got, want) {
			t.Errorf("health of %q before the first sync: %s, want %s", service, got, want)
		}
	}
	within(t, patience, "the log says that the server is away", func() error {
		if len(k.said("the API server cannot be reached")) != 1 {
			return errors.New("it does not")
		}
		return nil
	})
	if a := ask(t.Context(), "http://"+k.proxy, "tiny", "x", ""); a.status != http.StatusServiceUnavailable {
		t.Errorf("a request before the first sync: %d %s", a.status, a.body)
	}
	r.open(t)
	t.Logf("ready %v after the API server could be reached", k.ready().Round(time.Millisecond))
	if got := k.endpoints(); len(got) != 12 {
		t.Errorf("ready with %d of 12 endpoints", len(got))
	}
	l := traffic(t, "http://"+k.proxy)
	l.more(t, 200)
	l.unharmed(t)
}

// TestCaseL4APIServerAway: for a minute the API server is down, while pods come, go and
// are replaced. Routing goes on without a failed request, and the pool is right within
// one resync after the server's return. Then one pod's address is another's before the
// first has gone: the newer one counts.
func TestCaseL4APIServerAway(t *testing.T) {
	t.Parallel()
	p := newPool(t, "a", "b", "c")
	server := newServer(t)
	k := p.serveBy(server.kubeconfig, "")
	k.ready()
	k.has(patience, "a", "b", "c")
	l := traffic(t, "http://"+k.proxy)
	l.more(t, 100)

	server.kill()
	down := time.Now()
	p.start("d")
	p.delete("a", 0)
	p.label("b", "other")
	within(t, patience, "the log says that the server is away", func() error {
		if len(k.said("the API server cannot be reached")) != 1 {
			return errors.New("it does not")
		}
		return nil
	})
	<-time.After(time.Until(down.Add(60 * time.Second)))
	if got := k.endpoints(); len(got) != 3 {
		t.Errorf("without an API server the endpoints are %v", got)
	}
	if got := k.status("readiness"); got != "SERVING" {
		t.Errorf("without an API server the picker is %s", got)
	}
	server.start(t)
	const oneResync = 30 * time.Second
	t.Logf("the API server was away for %v; right %v after its return", time.Since(down).Round(time.Second), k.has(oneResync, "c", "d").Round(time.Millisecond))
	if n := len(k.said("the API server cannot be reached")); n != 1 {
		t.Errorf("the log says %d times that the server is away", n)
	}

	// add(new) before delete(old), at one address.
	p.create("{apiVersion: v1, kind: Pod, metadata: {name: newer, labels: {app: vllm}}, spec: {nodeName: node, containers: [{name: vllm, image: vllm}]}}")
	<-time.After(time.Until(time.Now().Truncate(time.Second).Add(time.Second))) // times of objects are whole seconds
	p.become("newer", ipOf(p, "c"), corev1.ConditionTrue)
	k.has(second, "d", "newer")
	p.delete("c", 0)
	l.more(t, 50)
	k.has(second, "d", "newer")
	l.unharmed(t)
}

// relay is a way to the API server that can be opened.
type relay struct{ address string }

func newRelay(t *testing.T) *relay {
	t.Helper()
	return &relay{address: "127.0.0.1:" + freePorts(1)[0]}
}

// kubeconfig leads through the relay.
func (r *relay) kubeconfig(t *testing.T) string {
	t.Helper()
	return through(t, r.address)
}

// through is the administrator's kubeconfig with another address.
func through(t *testing.T, address string) string {
	t.Helper()
	data, err := os.ReadFile(kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(data), `server: "https://`)
	former, _, _ := strings.Cut(rest, `"`)
	file := t.TempDir() + "/kubeconfig"
	if err := os.WriteFile(file, []byte(strings.Replace(string(data), former, address, 1)), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// open passes connections on from now on.
func (r *relay) open(t *testing.T) {
	t.Helper()
	l, err := net.Listen("tcp", r.address)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := pass(ctx, l, apiAddress)
	t.Cleanup(func() {
		cancel()
		_ = l.Close()
		<-done
	})
}
