//go:build gateway

package gateway

import (
	"context"
	"fmt"
	"os/exec"
	"path/filepath"
	"testing"
)

// TestChart: what deploy/chart makes, its pool, account, roles, service and
// DestinationRule, and its pods as they are, work behind the gateway: conversations
// stay where their prefix is cached, an upgrade of the configuration costs no
// request, and the policy's status says that all is well.
func TestChart(t *testing.T) {
	s := newScene(t)
	p := &pool{s: s, name: "vllm", engines: 3, ports: []int{8000}, image: "engine", replicas: 2}
	p.apply("engines")
	p.addresses = s.readyPods("vllm", 3, p.ports)
	s.must(world.apply(s.ctx, s.charted("maxQueue=20"), "--namespace", s.namespace))
	s.readyPods("epp", 2, nil)
	s.route("all", front, to("vllm"))
	s.served(front, p)

	prompt := words(5, 320)
	first := s.ok(chat(prompt, 1))
	for _, d := range p.pickers() {
		s.must(poll(s.ctx, func(ctx context.Context) (bool, error) {
			known, err := metricAt(ctx, d.address, "epp_endpoint_cached_blocks", first.servedBy)
			return err == nil && known >= 20, fmt.Errorf("%s knows of %v blocks of %s: %w", d.name, known, first.servedBy, err)
		}))
	}
	for n := range 10 {
		if a := s.ok(chat(prompt+words(10+n, 30), 1)); a.servedBy != first.servedBy {
			t.Errorf("a conversation that began at %s: %v", first.servedBy, a)
		}
	}

	l := s.startLoad(4)
	l.more(50)
	before := p.pickers()
	s.must(world.apply(s.ctx, s.charted("maxQueue=30"), "--namespace", s.namespace))
	_, err := world.run(s.ctx, "", "rollout", "status", "-n", s.namespace, "deployment/vllm-epp", "--timeout", patience.String())
	s.must(err)
	for _, d := range before {
		<-d.ended
	}
	l.more(50)
	l.stop()
	p.servedAsPicked()
	t.Logf("%d requests, none failed", l.sent)

	_, err = await(s.ctx, world.cluster, "/apis/epp.internal/v1alpha1/namespaces/"+s.namespace+"/endpointpickerpolicies", func(o *object) bool {
		return o.Status.condition("Accepted").Status == "True" && o.Status.condition("ResolvedRefs").Status == "True" && o.Status.condition("Programmed").Status == "True"
	})
	s.must(err)
}

// charted is the chart of the scene's pool, with one setting of the picker.
func (s *scene) charted(config string) string {
	s.t.Helper()
	set := []string{"template", "vllm-epp", "../../deploy/chart", "--namespace", s.namespace}
	for _, v := range []string{
		"image.repository=epp", "image.tag=test", "pool.name=vllm", "pool.create=true", "pool.matchLabels.app=vllm", "policy.create=true", "policy.spec.maxQueue=25",
		"istio.destinationRule.enabled=true", "podLabels.app=epp", "drainSeconds=5", "tokenizer.volume.hostPath.path=" + world.tokenizer,
		"config.log.level=debug", "config." + config,
	} {
		set = append(set, "--set", v)
	}
	out, err := exec.CommandContext(s.ctx, filepath.Join(world.chart, "bin", "helm"), set...).Output()
	s.must(err)
	return string(out)
}
