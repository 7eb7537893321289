package main

import (
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"epp.internal/epp/config"
	"epp.internal/epp/decision"
	"epp.internal/epp/engine"
	"epp.internal/epp/epptest"
	"epp.internal/epp/scrape"
)

// TestSettingsAreObeyed holds the wiring: each setting here has another value
// than its default, and is seen to be obeyed through the proxy.
func TestSettingsAreObeyed(t *testing.T) {
	r := newRig(t, options{
		engines: 1,
		engine:  func(_ int, c *epptest.EngineConfig) { c.Engine.MaxRunning, c.Adapters = 1, []string{"billing-lora-v3"} },
		config: func(c *config.Config, engines []*epptest.Engine) {
			c.OnSaturated, c.MaxQueue, c.Load.MaxRunning = decision.Reject, 2, 1
			c.Models = []config.Model{{Name: "support", Target: "billing-lora-v3", Adapter: true}}
			c.Limits.BodyBytes, c.Limits.PromptBytes, c.Limits.HeaderBytes = 2<<10, 1<<10, 8<<10
			c.Timeouts.Answer.Duration = 2 * time.Second
			c.Pool.Endpoints[0].Events = strings.TrimPrefix(engines[0].EventEndpoint(), "tcp://")
			c.Pool.Endpoints[0].Replay = strings.TrimPrefix(engines[0].ReplayEndpoint(), "tcp://")
		},
	})
	said := []message{user("hello")}
	t.Run("models", func(t *testing.T) {
		p := r.post("/v1/chat/completions", map[string]any{"model": "support", "max_tokens": 1, "messages": said})
		if p.status != http.StatusOK || r.record(p).Adapter != "billing-lora-v3" {
			t.Errorf("%d %s", p.status, p.body)
		}
		resp, err := r.client.Get(r.url + "/v1/models")
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		var list strings.Builder
		if _, err := io.Copy(&list, resp.Body); err != nil || !strings.Contains(list.String(), `"support"`) || !strings.Contains(list.String(), `"tiny"`) {
			t.Errorf("%v %s", err, list.String())
		}
	})
	t.Run("limits.bodyBytes", func(t *testing.T) {
		if p := r.chat([]message{user(strings.Repeat("a", 3<<10))}, 1); p.status != http.StatusRequestEntityTooLarge {
			t.Errorf("%d %s", p.status, p.body)
		}
	})
	t.Run("limits.promptBytes", func(t *testing.T) {
		p := r.chat([]message{user(strings.Repeat("a", 1<<10))}, 1)
		if rec := r.record(p); p.status != http.StatusOK || !strings.Contains(rec.TokenNote, "over the bound of 1024 (limits.promptBytes)") {
			t.Errorf("%d, %v, %q", p.status, rec.TokenSource, rec.TokenNote)
		}
	})
	t.Run("limits.headerBytes", func(t *testing.T) {
		p := r.post("/v1/chat/completions", []byte("{}"), "x-long", strings.Repeat("a", 16<<10))
		if p.status != http.StatusRequestHeaderFieldsTooLarge {
			t.Errorf("%d %s", p.status, p.body)
		}
	})
	t.Run("timeouts.answer", func(t *testing.T) {
		r.engines[0].SetFault(epptest.Fault{Hang: true})
		defer r.engines[0].SetFault(epptest.Fault{})
		if p := r.chat(said, 1); p.status != http.StatusGatewayTimeout {
			t.Errorf("%d %s", p.status, p.body)
		}
	})
	t.Run("onSaturated, maxQueue and load.maxRunning", func(t *testing.T) {
		r.engines[0].HoldAnswers(true)
		defer r.engines[0].HoldAnswers(false)
		done := make(chan *reply, 3)
		for range 3 { // one runs, two wait
			go func() { done <- r.chat(said, 1) }()
		}
		r.until("three are picked", func() bool { return r.sys.fleet.Ledger().Requests == 3 })
		p := r.chat(said, 1)
		if p.status != http.StatusTooManyRequests || p.header.Get("Retry-After") == "" || !strings.Contains(string(p.body), `"all_full"`) {
			t.Errorf("%d %v %s", p.status, p.header, p.body)
		}
		if err := r.engines[0].AwaitLoad(r.ctx, func(l engine.Load) bool { return l.Waiting == 2 }); err != nil {
			t.Error(err)
		}
		r.engines[0].HoldAnswers(false)
		for range 3 {
			if p := <-done; p.status != http.StatusOK {
				t.Errorf("%d %s", p.status, p.body)
			}
		}
	})
	r.atRest()
}

// TestEnginesAreConfigurable: a configuration can name each engine that has a
// table, and no other.
func TestEnginesAreConfigurable(t *testing.T) {
	for _, e := range scrape.Engines {
		c := config.Default()
		c.Pool.Endpoints = []config.Endpoint{{Address: "10.0.0.7:8000", Engine: e.Name}}
		if faults := c.Validate(); len(faults) > 0 {
			t.Errorf("%v", faults)
		}
	}
	c := config.Default()
	c.Pool.Endpoints = []config.Endpoint{{Address: "10.0.0.7:8000"}}
	c.Pool.Engine = "none"
	want := "want auto"
	for _, e := range scrape.Engines {
		want += ", " + e.Name
	}
	if faults := c.Validate(); len(faults) != 1 || !strings.HasSuffix(faults[0].Text, want) {
		t.Errorf("%v, want %q", faults, want)
	}
}
