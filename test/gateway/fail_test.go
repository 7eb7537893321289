//go:build gateway

package gateway

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
)

// TestFailureMode: without a picker a pool that fails closed answers no request,
// and no endpoint gets one; the same pool, set to fail open, is served by any of
// its endpoints; and with the picker back it is obeyed again.
func TestFailureMode(t *testing.T) {
	s := newScene(t)
	p := s.start(&pool{name: "vllm", engines: 2})
	s.route("all", front, to("vllm"))
	s.served(front, p)

	p.scale(0)
	before := p.requests()
	s.becomes("fail-closed without a picker", func(a answer) bool {
		return a.status == http.StatusInternalServerError || a.status == http.StatusServiceUnavailable
	})
	for range 5 {
		if a := s.send(s.ctx, s.url(front)+chatPath, chat("hello", 1)); a.status < 500 {
			t.Errorf("fail-closed without a picker: %v", a)
		}
	}
	if n := p.requests() - before; n != 0 {
		t.Errorf("fail-closed without a picker, endpoints got %d requests", n)
	}

	p.failureMode = "FailOpen"
	p.apply("pool.yaml")
	s.becomes("fail-open without a picker", func(a answer) bool { return a.status == http.StatusOK && a.requestID == "" })
	for n := range 10 {
		if a := s.ok(chat(words(n, 50), 1)); a.requestID != "" {
			t.Errorf("a picker that is not there was asked: %v", a)
		}
	}

	p.scale(1)
	s.becomes("the picker is back", func(a answer) bool { return a.status == http.StatusOK && a.requestID != "" })
	a := s.ok(chat("hello again", 1))
	if line := p.picked(a.requestID); line["address"] != a.servedBy {
		t.Errorf("with the picker back: %v\npicked: %v", a, line)
	}
}

// ejecting is what a DestinationRule needs so that the gateway asks a picker that
// cannot be reached no more: after one failure, for thirty seconds. The chart has it.
const ejecting = "{splitExternalLocalOriginErrors: true, consecutiveLocalOriginFailures: 1, consecutive5xxErrors: 0, baseEjectionTime: 30s, maxEjectionPercent: 100}"

// TestPickerCrashes: of two pickers one is killed, and then the other, while
// Kubernetes has not noticed: their addresses are still the service's. A gateway
// loses every request that it gives to a dead picker, fail-open too, since it has
// given their bodies away.
func TestPickerCrashes(t *testing.T) {
	for _, mode := range []string{"FailClose", "FailOpen"} {
		t.Run(mode, func(t *testing.T) {
			s := newScene(t)
			p := s.start(&pool{name: "vllm", engines: 2, replicas: 2, failureMode: mode})
			s.route("all", front, to("vllm"))
			s.served(front, p)
			p.allAsked()
			pickers := p.pickers()
			pickers[0].kill()
			if picked, open, failed := s.outcomes(40); picked < 5 || failed < 5 || open > 0 {
				t.Errorf("with one of 2 pickers dead %d requests were picked, %d went without a pick, %d failed; docs/gateways.md says otherwise", picked, open, failed)
			}
			pickers[1].kill()
			if _, _, failed := s.outcomes(10); failed != 10 {
				t.Errorf("with both pickers dead %d of 10 requests failed; docs/gateways.md says otherwise", failed)
			}
		})
	}
}

// TestCrashedPickerIsEjected: the same with a DestinationRule that says what the
// gateway does with pickers that cannot be reached. Within a second no request is
// given to the dead one; with both dead the pool does as its failure mode says.
func TestCrashedPickerIsEjected(t *testing.T) {
	const row = 40
	for _, mode := range []string{"FailClose", "FailOpen"} {
		t.Run(mode, func(t *testing.T) {
			s := newScene(t)
			p := s.start(&pool{name: "vllm", engines: 2, replicas: 2, failureMode: mode, outliers: ejecting})
			s.route("all", front, to("vllm"))
			s.served(front, p)
			p.allAsked()
			pickers := p.pickers()
			pickers[0].kill()
			s.must(poll(s.ctx, func(context.Context) (bool, error) {
				picked, open, failed := s.outcomes(row)
				return picked == row, fmt.Errorf("with one of 2 pickers dead %d requests were picked, %d went without a pick, %d failed", picked, open, failed)
			}))
			pickers[1].kill()
			s.must(poll(s.ctx, func(context.Context) (bool, error) {
				picked, open, failed := s.outcomes(row)
				ok := mode == "FailOpen" && open == row || mode == "FailClose" && failed == row
				return ok, fmt.Errorf("with both pickers dead %d requests were picked, %d went without a pick, %d failed", picked, open, failed)
			}))
		})
	}
}

// allAsked waits until the gateway asks each of the pool's pickers: it hears of one
// before the other.
func (p *pool) allAsked() {
	p.s.t.Helper()
	p.s.must(poll(p.s.ctx, func(context.Context) (bool, error) {
		p.s.outcomes(1)
		for _, d := range p.pickers() {
			if len(d.all("selected")) == 0 {
				return false, fmt.Errorf("the gateway has not asked %s", d.name)
			}
		}
		return true, nil
	}))
}

// outcomes sends n requests, one after the other, and counts those that a picker
// has decided, those that went without, and those that failed.
func (s *scene) outcomes(n int) (picked, open, failed int) {
	for i := range n {
		switch a := s.send(s.ctx, s.url(front)+chatPath, chat(words(i, 50), 1)); {
		case a.status != http.StatusOK:
			failed++
		case a.requestID != "":
			picked++
		default:
			open++
		}
	}
	return picked, open, failed
}

// becomes waits until a request through the front gateway is answered as wanted.
func (s *scene) becomes(what string, ok func(answer) bool) {
	s.t.Helper()
	s.must(poll(s.ctx, func(ctx context.Context) (bool, error) {
		a := s.send(ctx, s.url(front)+chatPath, chat("hello", 1))
		return ok(a), fmt.Errorf("%s: the gateway answers %v", what, a)
	}))
}

// scale changes the number of the pool's pickers, and returns when so many run.
func (p *pool) scale(replicas int) {
	p.s.t.Helper()
	before := p.pickers()
	p.replicas = replicas
	p.apply("picker.yaml")
	if replicas > 0 {
		p.s.readyPods(p.name+"-epp", replicas, nil)
	}
	p.s.must(poll(p.s.ctx, func(context.Context) (bool, error) {
		n := len(p.pickers())
		return n == replicas, fmt.Errorf("pool %s has %d pickers, want %d", p.name, n, replicas)
	}))
	for _, d := range before {
		if !slices.Contains(p.pickers(), d) {
			<-d.ended // a picker that drains still answers
		}
	}
}

// requests counts those that have reached the pool's engines.
func (p *pool) requests() (n int) {
	for _, a := range p.addresses {
		n += world.engines.at(a).Requests()
	}
	return n
}

// TestTLSNeedsADestinationRule: Istio dials a picker without TLS, so one that
// speaks TLS is not understood, until a DestinationRule says that it does. Until
// then each request fails, fail-open too.
func TestTLSNeedsADestinationRule(t *testing.T) {
	s := newScene(t)
	p := s.start(&pool{name: "vllm", engines: 1})
	s.route("all", front, to("vllm"))
	s.served(front, p)
	for _, mode := range []string{"FailClose", "FailOpen"} {
		p.failureMode = mode
		p.apply("pool.yaml")
		p.failsOpen(mode == "FailOpen")
		_, err := world.run(s.ctx, "", "delete", "destinationrule", "-n", s.namespace, "vllm-epp")
		s.must(err)
		s.becomes(mode+", TLS, and no DestinationRule", func(a answer) bool { return a.status == http.StatusInternalServerError })
		if _, _, failed := s.outcomes(10); failed != 10 {
			t.Errorf("%s: %d of 10 requests failed; docs/istio.md says otherwise", mode, failed)
		}
		p.apply("tls.yaml")
		s.becomes("TLS and its DestinationRule", func(a answer) bool { return a.status == http.StatusOK && a.requestID != "" })
	}
}

// failsOpen waits until Envoy's own configuration has the pool's failure mode.
func (p *pool) failsOpen(want bool) {
	p.s.t.Helper()
	gw, err := gatewayPod(p.s.ctx, front)
	p.s.must(err)
	p.s.must(poll(p.s.ctx, func(ctx context.Context) (bool, error) {
		text, err := get(ctx, fmt.Sprintf("http://%s:%d/config_dump?resource=dynamic_route_configs", gw.Status.PodIP, adminPort))
		if err != nil {
			return false, err
		}
		var dump any
		if err := json.Unmarshal([]byte(text), &dump); err != nil {
			return false, err
		}
		found := false
		walk(dump, func(m map[string]any) {
			service, _ := json.Marshal(m["grpc_service"])
			if strings.Contains(string(service), p.name+"-epp."+p.s.namespace+".svc") {
				open, _ := m["failure_mode_allow"].(bool)
				found = open == want
			}
		})
		return found, fmt.Errorf("Envoy's route does not have the failure mode of pool %s", p.name)
	}))
}

// walk calls f for each object inside v.
func walk(v any, f func(map[string]any)) {
	switch v := v.(type) {
	case map[string]any:
		f(v)
		for _, each := range v {
			walk(each, f)
		}
	case []any:
		for _, each := range v {
			walk(each, f)
		}
	}
}

// TestPlaintextPicker: a picker without TLS needs no DestinationRule.
func TestPlaintextPicker(t *testing.T) {
	s := newScene(t)
	p := s.start(&pool{name: "vllm", engines: 1, plaintext: true})
	s.route("all", front, to("vllm"))
	s.served(front, p)
	a := s.ok(chat("hello", 1))
	if line := p.picked(a.requestID); line["address"] != a.servedBy {
		t.Errorf("%v\npicked: %v", a, line)
	}
}
