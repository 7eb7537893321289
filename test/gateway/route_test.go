//go:build gateway

package gateway

import (
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"testing"
)

// TestRoutedByCache: a request that an HTTPRoute leads to an InferencePool runs on
// the endpoint that our picker has named, and a conversation stays where its
// prefix is cached.
func TestRoutedByCache(t *testing.T) {
	s := newScene(t)
	p := s.start(&pool{name: "vllm", engines: 3})
	s.route("all", front, to("vllm"))
	s.served(front, p)

	used := map[string]bool{}
	for seed := range 10 {
		prompt := words(seed, 320)
		first := s.ok(chat(prompt, 1))
		used[first.servedBy] = true
		p.knows(first.servedBy)
		for turn := 1; turn <= 2; turn++ {
			prompt += words(100*seed+turn, 40)
			a := s.ok(chat(prompt, 1))
			line := p.picked(a.requestID)
			if a.servedBy != first.servedBy || line["address"] != a.servedBy || line["matchedBlocks"].(float64) < 18 {
				t.Errorf("turn %d of a conversation that began at %s: %v\npicked: %v", turn, first.servedBy, a, line)
			}
		}
	}
	if len(used) < 2 {
		t.Errorf("ten conversations began on %d endpoint of 3", len(used))
	}
	p.servedAsPicked()
}

// knows waits until the picker has heard of what an endpoint holds: until every
// block that the engine has is known.
func (p *pool) knows(address string) {
	p.s.t.Helper()
	p.s.must(poll(p.s.ctx, func(ctx context.Context) (bool, error) {
		known, err := p.metric(ctx, "epp_endpoint_cached_blocks", address)
		held := world.engines.at(address).Blocks()
		return err == nil && int(known) == held, fmt.Errorf("%s holds %d blocks, the picker knows %v: %w", address, held, known, err)
	}))
}

// metric returns the sum of a metric's series, of all pickers of the pool; of
// those alone that hold a text, where one is given.
func (p *pool) metric(ctx context.Context, name, part string) (sum float64, err error) {
	for _, d := range p.pickers() {
		v, err := metricAt(ctx, d.address, name, part)
		if err != nil {
			return 0, err
		}
		sum += v
	}
	return sum, nil
}

// metricAt is the same of the picker at an address.
func metricAt(ctx context.Context, ip, name, part string) (sum float64, err error) {
	page, err := get(ctx, "http://"+ip+":9090/metrics")
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(page) {
		series, value, _ := strings.Cut(strings.TrimSpace(line), " ")
		if metric, _, _ := strings.Cut(series, "{"); metric != name || !strings.Contains(series, part) {
			continue
		}
		v, err := strconv.ParseFloat(value, 64)
		if err != nil {
			return 0, err
		}
		sum += v
	}
	return sum, nil
}

// servedAsPicked checks that the gateway has told the pickers of each answer's
// endpoint, and that it was always the one that was picked.
func (p *pool) servedAsPicked() {
	p.s.t.Helper()
	for _, d := range p.pickers() {
		for _, line := range d.all("ended") {
			if line["outcome"] == "served" && line["servedBy"] != line["address"] {
				p.s.t.Errorf("the gateway tells that another endpoint served: %v", line)
			}
		}
	}
	n, err := p.metric(p.s.ctx, "epp_served_elsewhere_total", "")
	if err != nil || n != 0 {
		p.s.t.Errorf("%v requests were served elsewhere than picked, want 0: %v", n, err)
	}
}

// TestLongPrompt: a prompt of 3 MB reaches the endpoint byte for byte.
func TestLongPrompt(t *testing.T) {
	s := newScene(t)
	p := s.start(&pool{name: "vllm", engines: 2})
	s.route("all", front, to("vllm"))
	s.served(front, p)
	prompt := words(1, 600_000)
	prompt = prompt[:3<<20]
	body := chat(prompt, 1)
	a := s.ok(body)
	received := world.engines.at(a.servedBy).Received()
	if got := received[len(received)-1].Body; !bytes.Equal(got, body) {
		t.Errorf("%d bytes (%x) were sent, %d (%x) have arrived", len(body), sha256.Sum256(body), len(got), sha256.Sum256(got))
	}
	if line := p.picked(a.requestID); line["promptTokens"].(float64) < 500_000 || line["address"] != a.servedBy {
		t.Errorf("the picker did not read the prompt: %v", line)
	}
	p.servedAsPicked()
}

// TestSpoofedDestination: a client that names an endpoint itself is not obeyed.
func TestSpoofedDestination(t *testing.T) {
	s := newScene(t)
	p := s.start(&pool{name: "vllm", engines: 2})
	s.route("all", front, to("vllm"))
	s.served(front, p)
	prompt := words(7, 320)
	first := s.ok(chat(prompt, 1))
	p.knows(first.servedBy)
	other := p.addresses[0]
	if other == first.servedBy {
		other = p.addresses[1]
	}
	a := s.ok(chat(prompt, 1), "x-gateway-destination-endpoint", other)
	if a.servedBy != first.servedBy {
		t.Errorf("the client named %s, its prefix is cached at %s: %v", other, first.servedBy, a)
	}
}

// TestModelsThroughGateway: a request without a body is picked too.
func TestModelsThroughGateway(t *testing.T) {
	s := newScene(t)
	p := s.start(&pool{name: "vllm", engines: 2})
	s.route("all", front, to("vllm"))
	s.served(front, p)
	req, err := http.NewRequestWithContext(s.ctx, http.MethodGet, s.url(front)+"/v1/models", nil)
	s.must(err)
	req.Host = s.host()
	resp, err := http1.Do(req)
	s.must(err)
	defer resp.Body.Close()
	var list struct{ Data []struct{ ID string } }
	if err := jsonOf(resp.Body, &list); err != nil || resp.StatusCode != http.StatusOK || len(list.Data) != 1 || list.Data[0].ID != "tiny" {
		t.Errorf("status %d, models %v: %v", resp.StatusCode, list, err)
	}
	p.servedAsPicked()
}
