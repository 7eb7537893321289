package main

import (
	"context"
	"fmt"
	"net/http"
	"sync"
	"testing"
	"time"

	"epp.internal/epp"
	"epp.internal/epp/config"
	"epp.internal/epp/engine"
	"epp.internal/epp/epptest"
	"epp.internal/epp/fleet"
)

// TestExample4ConversationStays is the article's Example 4: a conversation with a
// system text of 200 tokens, 200 a question and 150 an answer stays on its first
// endpoint, and its match grows to 80–90 % in turns 3–5. The record of each turn
// has it, and the engine's own count of cached tokens agrees.
func TestExample4ConversationStays(t *testing.T) {
	r := newRig(t, options{engines: 4})
	said := []message{{"system", words(1, 200)}}
	home := ""
	for turn := 1; turn <= 5; turn++ {
		said = append(said, user(words(uint64(100+turn), 200)))
		p := r.must(said, 150)
		if home == "" {
			home = p.servedBy
		}
		rec := r.record(p)
		ratio := rec.MatchRatio(rec.Chosen)
		if p.servedBy != home || rec.Candidates[rec.Chosen].Name != home {
			t.Errorf("turn %d went to %s (%s), the first to %s", turn, p.servedBy, rec.Why(), home)
		}
		if turn >= 3 && (ratio < .80 || ratio > .90) {
			t.Errorf("turn %d: match %.3f, want .80–.90", turn, ratio)
		}
		prompt, cached := p.usage()
		if c := rec.Candidates[rec.Chosen].CachedTokens(rec.PromptTokens); prompt != rec.PromptTokens || cached != c {
			t.Errorf("turn %d: we count %d tokens, %d cached; the engine %d, %d", turn, rec.PromptTokens, c, prompt, cached)
		}
		said = append(said, message{"assistant", p.text()})
		r.caughtUp()
	}
	r.atRest()
}

// TestExample5BurstSpreads is the article's Example 5: 50 requests at once, 4
// endpoints, one of which holds their prefix. Every slot is taken by a held
// request, so each pick is one more in a queue: the hot endpoint takes 20 until
// its queue is full, the other three 10 each. Engines hold answers and events
// until the 50 picks are made, pages are read all the while, and none fails.
func TestExample5BurstSpreads(t *testing.T) { burst(t, newRig(t, burstOptions)) }

var burstOptions = options{
	engines: 4,
	engine:  func(_ int, c *epptest.EngineConfig) { c.Engine.MaxRunning = 4 },
	config:  func(c *config.Config, _ []*epptest.Engine) { c.Load.MaxRunning = 4 },
}

func burst(t *testing.T, r *rig) {
	prefix := words(1, 640)
	hot := r.must([]message{user(prefix)}, 1).servedBy
	r.caughtUp()
	r.atRest()
	for _, e := range r.engines {
		e.HoldAnswers(true)
	}
	var wg sync.WaitGroup
	var mu sync.Mutex
	failed := 0
	send := func(text string) {
		wg.Go(func() {
			if p := r.chat([]message{user(text)}, 2); p.err != nil || p.status != http.StatusOK {
				mu.Lock()
				defer mu.Unlock()
				failed++
				t.Errorf("%d %s %v", p.status, p.body, p.err)
			}
		})
	}
	for i := range 16 {
		send(fmt.Sprintf("held %d", i))
	}
	for _, e := range r.engines {
		if err := e.AwaitLoad(r.ctx, func(l engine.Load) bool { return l.Running == 4 }); err != nil {
			t.Fatalf("%s: %v running: %v, picks %v", e.Name(), e.Load(), err, r.picks())
		}
		e.HoldEvents(true)
	}
	r.forget()
	for i := range 50 {
		send(prefix + words(uint64(100+i), 16))
	}
	r.until("50 picks are made", func() bool { return r.decisions() == 50 })
	picks := r.picks()
	for _, e := range r.engines {
		want := 10
		if e.Name() == hot {
			want = 20
		}
		if picks[e.Name()] != want {
			t.Errorf("%s got %d, want %d; the hot one is %s: %v", e.Name(), picks[e.Name()], want, hot, picks)
		}
	}
	for _, e := range r.engines {
		e.HoldAnswers(false)
		e.HoldEvents(false)
	}
	wg.Wait()
	if failed > 0 {
		t.Errorf("%d failed", failed)
	}
	r.atRest()
}

// TestExample5Counterpart: 300 short requests a second on 2 idle endpoints never
// meet the cutoff, though far more than maxQueue are picked between two pages:
// what has ended since a page no longer counts.
func TestExample5Counterpart(t *testing.T) {
	r := newRig(t, options{engines: 2})
	var wg sync.WaitGroup
	work := make(chan int)
	for range 8 {
		wg.Go(func() {
			for i := range work {
				if p := r.post("/v1/embeddings", map[string]any{"model": "tiny", "input": fmt.Sprint("short ", i)}); p.status != http.StatusOK {
					t.Errorf("%d %s %v", p.status, p.body, p.err)
				}
			}
		})
	}
	pace := newPace(300)
	defer pace.Stop()
	for i := range 600 {
		<-pace.C
		work <- i
	}
	close(work)
	wg.Wait()
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, rec := range r.decided {
		if rec.Degraded || rec.Admitted != 2 {
			t.Fatalf("%d candidates: %+v", rec.Admitted, rec.Candidates)
		}
	}
}

// TestLedgerIsZeroAtRest: after a success, a stream, a 500, a reset, a client that
// leaves before and in the stream, a refusal and a retry, every counter is 0
// without any bound having fired.
func TestLedgerIsZeroAtRest(t *testing.T) {
	r := newRig(t, options{engines: 2})
	said := []message{user("one two three")}
	both := func(f epptest.Fault) {
		for _, e := range r.engines {
			e.SetFault(f)
		}
	}
	t.Run("success", func(t *testing.T) { r.must(said, 5); r.atRest() })
	t.Run("stream", func(t *testing.T) { r.must(said, 5, "stream", "true"); r.atRest() })
	t.Run("500", func(t *testing.T) {
		both(epptest.Fault{Status: 500})
		if p := r.chat(said, 5); p.status != 500 {
			t.Errorf("status %d", p.status)
		}
		r.atRest()
	})
	t.Run("reset in the stream", func(t *testing.T) {
		both(epptest.Fault{ResetAfterChunks: 2})
		if p := r.chat(said, 50, "stream", "true"); p.err == nil {
			t.Errorf("the stream ended cleanly: %s", p.body)
		}
		r.atRest()
	})
	t.Run("reset before the answer, and its retry", func(t *testing.T) {
		both(epptest.Fault{ResetBeforeHeaders: true})
		if p := r.chat(said, 5); p.status != 502 {
			t.Errorf("status %d %s", p.status, p.body)
		}
		r.atRest()
	})
	t.Run("refused by the endpoint, and its retry", func(t *testing.T) {
		both(epptest.Fault{})
		for _, e := range r.engines {
			if err := e.RefuseConnections(true); err != nil {
				t.Fatal(err)
			}
		}
		if p := r.chat(said, 5); p.status != 503 {
			t.Errorf("status %d %s", p.status, p.body)
		}
		r.atRest()
		for _, e := range r.engines {
			if err := e.RefuseConnections(false); err != nil {
				t.Fatal(err)
			}
		}
	})
	t.Run("refusal", func(t *testing.T) {
		if p := r.post("/v1/chat/completions", map[string]any{"model": "unknown", "messages": said}); p.status != 404 {
			t.Errorf("status %d", p.status)
		}
		r.atRest()
	})
	t.Run("client leaves before the answer", func(t *testing.T) {
		both(epptest.Fault{Hang: true})
		r.abort(said, false)
		r.atRest()
	})
	t.Run("client leaves in the stream", func(t *testing.T) {
		both(epptest.Fault{})
		r.abort(said, true)
		r.atRest()
	})
}

// abort sends a stream and leaves: after its first bytes, or when it is in flight.
func (r *rig) abort(said []message, afterBytes bool) {
	ctx, cancel := context.WithCancel(r.ctx)
	defer cancel()
	done := make(chan error, 1)
	got := make(chan struct{})
	go func() {
		resp, err := openStream(ctx, r.client, r.url, said)
		if err == nil {
			_, err = resp.Body.Read(make([]byte, 1))
			close(got)
			<-ctx.Done()
			_ = resp.Body.Close()
		}
		done <- err
	}()
	if afterBytes {
		<-got
	} else {
		r.until("the request is in flight", func() bool { return r.sys.fleet.Ledger().Requests == 1 })
	}
	cancel()
	<-done
}

// TestWholeAnswerTellsNoFirstToken: through the proxy, an answer that is streamed has
// its time to first token in the record; one that is not has none, and teaches the
// pool nothing of it.
func TestWholeAnswerTellsNoFirstToken(t *testing.T) {
	r := newRig(t, options{engines: 1})
	pace := func() (p epp.Pace) {
		r.sys.fleet.Pick(fleet.Query{}, time.Now(), func(v epp.View) (int, int) { p = v.Pace; return -1, 0 })
		return p
	}
	for i := range 20 {
		p := r.must([]message{user(words(uint64(i), 50+10*i))}, 20)
		r.atRest()
		if end := r.record(p).End; end.TTFT != 0 || end.CompletionTokens != 20 {
			t.Fatalf("not streamed: %+v", end)
		}
	}
	if got := pace(); got != (epp.Pace{}) {
		t.Errorf("pace %+v after 20 answers that were not streamed", got)
	}
	for i := range 20 {
		p := r.must([]message{user(words(uint64(100+i), 50+10*i))}, 20, "stream", "true")
		r.atRest()
		if end := r.record(p).End; end.TTFT <= 0 {
			t.Fatalf("streamed: %+v", end)
		}
	}
	if got := pace(); got.FirstToken <= 0 && got.PerWork <= 0 {
		t.Errorf("pace %+v after 20 answers that were streamed", got)
	}
}
