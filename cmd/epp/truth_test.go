package main

import (
	"context"
	"log/slog"
	"testing"

	"epp.internal/epp/audit"
	"epp.internal/epp/config"
	"epp.internal/epp/engine"
	"epp.internal/epp/epptest"
)

// TestStaleRoutingIsCounted (S15): an engine evicts a prompt's blocks, and the news
// of it comes after the decision that counted on them. Then that decision is
// counted, once; one that was made before the eviction is not.
func TestStaleRoutingIsCounted(t *testing.T) {
	staleRouting(t, newRig(t, options{engines: 1, engine: fewBlocks}), func() {})
}

// TestStaleRoutingBehindAnAgent: the same, where the endpoint's agent hears its
// events and tells how long ago the blocks went. What it tells is counted as what we
// hear ourselves, the engine's restarts too.
func TestStaleRoutingBehindAnAgent(t *testing.T) {
	take := reportsTo(t)
	r := newRig(t, options{engines: 1, engine: fewBlocks, config: func(c *config.Config, _ []*epptest.Engine) { take(c) }})
	f := &agentFlags{
		engine: "http://" + r.engine("A").Address(), pickers: []string{r.at.reports}, plaintext: true,
		tokenFile: r.sys.cfg.Reports.TokenFile, noGPU: true,
	}
	b, err := newBeside(f, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(r.ctx)
	ended := make(chan error)
	go func() { ended <- b.run(ctx) }()
	r.until("the agent reports", func() bool { return r.state("A").Signals.Agent && !r.state("A").Signals.Incomplete })
	before := r.metric("epp_kv_events_total", "BlockRemoved")
	staleRouting(t, r, func() { // longer than a report is on its way, by which an age is too little
		taken := r.metric("epp_agent_reports_total")
		r.until("some reports have come", func() bool { return r.metric("epp_agent_reports_total") >= taken+3 })
	})
	if n := r.metric("epp_kv_events_total", "BlockRemoved"); n <= before {
		t.Errorf("%v removals counted, %v before", n, before)
	}
	restarts := r.metric("epp_kv_event_restarts_total")
	if err := r.engine("A").Restart(); err != nil {
		t.Fatal(err)
	}
	direct(t, r, r.engine("A"), words(30, 100)) // the first batch of the new sequence
	r.until("the restart is told", func() bool { return r.metric("epp_kv_event_restarts_total") > restarts })
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// fewBlocks gives an engine room for 64 blocks.
func fewBlocks(_ int, c *epptest.EngineConfig) {
	c.Engine = engine.Config{Profile: c.Engine.Profile, Blocks: 64}
}

// staleRouting is the story of both; pass lets time pass between the eviction and the
// decision.
func staleRouting(t *testing.T, r *rig, pass func()) {
	a := r.engine("A")
	x := []message{user(words(1, 400))}
	r.must(x, 1)
	r.caughtUp()
	if p := r.must(x, 1); r.matchRatio(p) != 1 {
		t.Fatalf("match %v of a warm prompt", r.matchRatio(p))
	}
	r.caughtUp()
	a.HoldEvents(true)
	for i := range 3 { // evicts the prompt
		direct(t, r, a, words(uint64(10+i), 600))
	}
	pass()
	p := r.must(x, 1)
	if _, cached := p.usage(); cached != 0 || r.matchRatio(p) != 1 {
		t.Fatalf("%d tokens are cached, match %v", cached, r.matchRatio(p))
	}
	if n := r.metric("epp_stale_cache_routing_total"); n != 0 {
		t.Errorf("%v decisions counted before the news came", n)
	}
	a.HoldEvents(false)
	r.caughtUp()
	if n := r.metric("epp_stale_cache_routing_total"); n != 1 {
		t.Errorf("%v decisions counted", n)
	}
	for i := range 3 { // evicts it again, which no decision counted on
		direct(t, r, a, words(uint64(20+i), 600))
	}
	r.caughtUp()
	if n := r.metric("epp_stale_cache_routing_total"); n != 1 {
		t.Errorf("%v decisions counted in the end", n)
	}
}

// TestCaseQ7UnconfirmedClaims (the last of case Q7, and L5): an endpoint's events
// claim a prompt that it has not. It is named in an alarm with the cause, its match
// is discounted, and the prompt goes elsewhere.
func TestCaseQ7UnconfirmedClaims(t *testing.T) {
	r := newRig(t, options{engines: 2, config: func(c *config.Config, _ []*epptest.Engine) { c.Fallbacks = 1 }})
	x := []message{user(words(1, 640))}
	liar := r.must(x, 1).servedBy
	r.caughtUp()
	e := r.engine(liar)
	e.HoldEvents(true) // what it really has is told to nobody from here on
	turns := 0
	for ; turns < 30; turns++ {
		if p := r.postTo(e.URL()+"/reset_prefix_cache", []byte("{}")); p.status != 200 {
			t.Fatalf("%d %s", p.status, p.body)
		}
		p := r.must(x, 1)
		if p.servedBy != liar {
			break
		}
	}
	if turns < 7 || turns == 30 {
		t.Errorf("the prompt left %s after %d answers", liar, turns)
	}
	st := r.state(liar)
	if st.Signals.Doubt < 90 || st.Truth.Alarm() != audit.Unconfirmed {
		t.Errorf("doubt %v, alarm %v", st.Signals.Doubt, st.Truth.Alarm())
	}
	lines := r.log.find("cache claims do not come true", "")
	if len(lines) != 1 || lines[0]["pod"] != liar || lines[0]["cause"] != "unconfirmed" {
		t.Errorf("logged %v", lines)
	}
	if n := r.metric("epp_mispredicted_endpoints", `cause="unconfirmed"`, `pod="`+liar+`"`); n != 1 {
		t.Errorf("alarm metric %v", n)
	}
	if n := r.metric("epp_audited_requests_total", `result="unconfirmed"`); n < 7 {
		t.Errorf("%v answers counted", n)
	}
	r.atRest()
}
