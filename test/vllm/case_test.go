//go:build vllm

package vllm

import (
	"fmt"
	"net/http"
	"testing"
	"time"
)

// named is the line of an engine whose sockets are named: an empty replay is
// none.
func (e *server) named(events, replay string) string {
	if replay == "" {
		return fmt.Sprintf("{name: %s, address: %q, events: %q}", e.name, e.address, events)
	}
	return fmt.Sprintf("{name: %s, address: %q, events: %q, replay: %q}", e.name, e.address, events, replay)
}

// TestCaseA3ClearedCache: A and B hold the prompt, A's cache is reset, and A says
// so with its next step. All that follow go to B, whose entries are untouched.
func TestCaseA3ClearedCache(t *testing.T) {
	p := startPicker(t, pool.a.auto(), pool.b.auto()).settled("A", "B")
	prompt := completion("tiny", tokens(30, 700))
	p.direct(pool.a, prompt)
	p.direct(pool.b, prompt)
	p.caughtUp(pool.a, pool.b)
	before := p.blocks("B")
	if a := post(p.ctx, p.client, "http://"+pool.a.address+"/reset_prefix_cache", []byte("{}")); a.status != http.StatusOK {
		t.Fatalf("reset: %d %s %v", a.status, a.body, a.err)
	}
	p.direct(pool.a, completion("tiny", tokens(31, 40))) // the clear is published with the next step
	p.untilPage("A holds what came after the reset alone", func(page string) bool { return value(page, "epp_endpoint_cached_blocks", "A") == 1 })
	for range 50 {
		a, picked, end := p.ask(prompt)
		if picked.Pod != "B" || end.PredictedTokens != a.cached() {
			t.Fatalf("went to %s for %q, %d cached tokens predicted, %d reported", picked.Pod, picked.Reason, end.PredictedTokens, a.cached())
		}
	}
	if n := p.blocks("B"); n != before {
		t.Errorf("B had %d blocks, has %d", before, n)
	}
	p.caughtUp(pool.a, pool.b)
}

// TestCaseA5GapIsReplayed: three messages of the engine are lost on the way to
// the picker. The fourth shows the gap, the engine's own replay socket fills it,
// and each block is counted once.
func TestCaseA5GapIsReplayed(t *testing.T) {
	r := newRelay(t, pool.a)
	p := startPicker(t, pool.a.named(r.address, pool.a.replay)).settled("A")
	p.followed(r, pool.a, 500)
	gaps := value(p.page(), "epp_kv_event_gaps_total")
	r.await(p.ctx, t, 1)
	passed := r.keepBack(3)
	for i := range 4 {
		p.direct(pool.a, completion("tiny", tokens(uint64(50+i), 200)))
	}
	r.await(p.ctx, t, passed+1)
	p.caughtUp(pool.a)
	page := p.page()
	if n := value(page, "epp_kv_event_gaps_total") - gaps; n != 1 {
		t.Errorf("%v gaps were counted", n)
	}
	if value(page, "epp_incomplete_endpoints", "A") != 0 {
		t.Error("A is shown as incomplete")
	}
	for i := range 4 {
		if a, _, end := p.ask(completion("tiny", tokens(uint64(50+i), 200))); end.PredictedTokens != 192 || a.cached() != 192 {
			t.Errorf("prompt %d: %d cached tokens predicted, %d reported", i, end.PredictedTokens, a.cached())
		}
	}
}

// followed sends prompts to an engine until one's events have come through the
// relay: neither of its sockets tells when its subscription stands.
func (p *picker) followed(r *relay, e *server, seed uint64) {
	p.t.Helper()
	r.mu.Lock()
	before := r.passed
	r.mu.Unlock()
	for i := range uint64(100) {
		r.mu.Lock()
		next, passed := r.next, r.passed
		r.mu.Unlock()
		if passed > before {
			break
		}
		p.direct(e, completion("tiny", tokens(seed+i, 40)))
		select {
		case <-next:
		case <-time.After(200 * time.Millisecond):
		}
	}
	p.caughtUp(e)
}

// TestCaseA5ReplayNeverAnswers: the replay socket takes connections and says
// nothing. Live events are used all the same, and A is shown as incomplete.
func TestCaseA5ReplayNeverAnswers(t *testing.T) {
	r := newRelay(t, pool.a)
	p := startPicker(t, pool.a.named(r.address, mute(t)))
	p.untilModels("tiny")
	prompt := completion("tiny", tokens(60, 200))
	before := p.blocks("A")
	for i := range uint64(100) {
		p.direct(pool.a, completion("tiny", tokens(600+i, 40)))
		if p.blocks("A") > before {
			break
		}
	}
	passed := r.keepBack(1)
	p.direct(pool.a, completion("tiny", tokens(61, 200)))
	p.direct(pool.a, prompt)
	r.await(p.ctx, t, passed+1)
	var a *answer
	var end line
	for range 100 { // the event is on its way
		if a, _, end = p.ask(prompt); end.PredictedTokens == 192 {
			break
		}
	}
	if end.PredictedTokens != 192 || a.cached() != 192 {
		t.Errorf("behind the gap: %d cached tokens predicted, %d reported", end.PredictedTokens, a.cached())
	}
	if value(p.page(), "epp_incomplete_endpoints", "A") != 1 {
		t.Error("A is shown as complete")
	}
}

// TestCaseB4AdaptersAndSalts: A holds a prompt of the adapter sql, B the same
// prompt with a salt. Each is found where it is, and the base model's own prompt
// is found nowhere.
func TestCaseB4AdaptersAndSalts(t *testing.T) {
	p := startPicker(t, pool.a.auto(), pool.b.auto()).settled("A", "B")
	prompt := tokens(40, 260)
	plain, salted := completion("sql", prompt), completion("sql", prompt, "cache_salt", "s1")
	p.direct(pool.a, plain)
	p.direct(pool.b, salted)
	p.caughtUp(pool.a, pool.b)
	for _, c := range []struct {
		what string
		body map[string]any
		pod  string
		had  int
	}{
		{"the adapter", plain, "A", 256},
		{"the adapter with the salt", salted, "B", 256},
		{"another salt", completion("sql", prompt, "cache_salt", "s2"), "", 0},
		{"another adapter", completion("chat", prompt), "", 0},
		{"the base model", completion("tiny", prompt), "", 0},
	} {
		a, picked, end := p.ask(c.body)
		if c.pod != "" && picked.Pod != c.pod || end.PredictedTokens != c.had || a.cached() != c.had {
			t.Errorf("%s went to %s, want %s; %d cached tokens predicted, %d reported, want %d", c.what, picked.Pod, c.pod, end.PredictedTokens, a.cached(), c.had)
		}
	}
	p.caughtUp(pool.a, pool.b)
}
