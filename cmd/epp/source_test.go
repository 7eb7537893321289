package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"epp.internal/epp"
	"epp.internal/epp/config"
	"epp.internal/epp/epptest"
	"epp.internal/epp/picker"
)

// TestEngineMakesTheTokens: without a tokenizer of our own an engine's /tokenize
// makes the tokens, and turn 2 meets the blocks that turn 1 left.
func TestEngineMakesTheTokens(t *testing.T) {
	r := newRig(t, options{engines: 3, blind: true, config: func(c *config.Config, _ []*epptest.Engine) {
		c.Tokenizer.AskBudget.Duration = patience // what is slow here is the test's machine
	}})
	said := []message{user(words(1, 200))}
	first := r.must(said, 50)
	r.caughtUp()
	second := r.must(append(said, message{"assistant", first.text()}, user(words(2, 20))), 1)
	rec := r.record(second)
	prompt, cached := second.usage()
	if rec.TokenSource != epp.EngineTokens || second.servedBy != first.servedBy || rec.PromptTokens != prompt {
		t.Errorf("source %v, %d tokens of %d, served by %q after %q", rec.TokenSource, rec.PromptTokens, prompt, second.servedBy, first.servedBy)
	}
	if got := rec.Candidates[rec.Chosen].CachedTokens(rec.PromptTokens); got != cached || cached < 200 {
		t.Errorf("%d tokens predicted, %d cached", got, cached)
	}
	if n := r.metric("epp_engine_tokens_total", `result="told"`); n != 2 {
		t.Errorf("%v questions were answered", n)
	}
	if n := r.metric("epp_prompts_total", `source="engine"`); n != 2 {
		t.Errorf("%v prompts from an engine", n)
	}
	r.atRest()
}

// TestEnginesAreNotAsked: tokenizer.askEngines false, and no engine sees a question.
func TestEnginesAreNotAsked(t *testing.T) {
	r := newRig(t, options{engines: 1, blind: true, config: func(c *config.Config, _ []*epptest.Engine) {
		c.Tokenizer.AskEngines, c.Cache.Source, c.KVEvents.Discover = false, config.CacheEvents, true
	}})
	p := r.must([]message{user(words(1, 50))}, 1)
	if rec := r.record(p); rec.TokenSource != epp.NoTokens || rec.TokenNote != "no tokenizer is configured" {
		t.Errorf("%v %q", rec.TokenSource, rec.TokenNote)
	}
	if n := r.metric("epp_engine_tokens_total", "result"); n != 0 {
		t.Errorf("%v questions", n)
	}
	if len(r.log.find("no data for a scorer", "")) == 0 {
		t.Errorf("nothing says so:\n%s", r.log)
	}
}

// TestOwnPicksAlone: cache.source own asks no engine for events, says that it
// guesses, and keeps a conversation where it began.
func TestOwnPicksAlone(t *testing.T) {
	r := newRig(t, options{engines: 3, unsettled: true, config: func(c *config.Config, _ []*epptest.Engine) {
		c.Cache.Source = config.CacheOwn
	}})
	r.until("pages and models are read", func() bool {
		for _, st := range r.sys.fleet.Snapshot() {
			if st.Signals.ReadAt.IsZero() || !st.Listed {
				return false
			}
		}
		return true
	})
	said := []message{user(words(1, 200))}
	first := r.must(said, 50)
	if rec := r.record(first); !rec.Score(rec.Chosen, 0).Unknown {
		t.Error("the first turn's cache factor is not marked as unknown")
	}
	second := r.must(append(said, message{"assistant", first.text()}, user(words(2, 20))), 1)
	if ratio := r.matchRatio(second); ratio < 0.5 || second.servedBy != first.servedBy {
		t.Errorf("match %v, served by %q after %q", ratio, second.servedBy, first.servedBy)
	}
	if rec := r.record(second); rec.Score(rec.Chosen, 0).Unknown {
		t.Error("what our own picks taught is marked as unknown")
	}
	if !strings.Contains(r.log.String(), "approximate mode") {
		t.Errorf("nothing says so:\n%s", r.log)
	}
	if n := r.metric("epp_kv_events_total", "kind"); n != 0 {
		t.Errorf("%v KV events were heard", n)
	}
	if n := r.metric("epp_unknown_factors_total", `factor="cache"`); n != 1 {
		t.Errorf("%v picks without data of the cache", n)
	}
	if n := r.metric("epp_own_blocks"); n < 10 {
		t.Errorf("%v blocks learned", n)
	}
	for range 2 { // once for each, whoever asks how often
		for _, f := range r.sys.roster.running {
			f.sinks[0].warnSilent()
		}
	}
	if n := len(r.log.find("no data for a scorer", "")); n != 3 {
		t.Errorf("%d warnings for 3 silent endpoints", n)
	}
	r.atRest()
}

// TestUnknownNames: a request without a model means the default, and a name that
// nobody knows what "*" says. Neither is a model that clients can list.
func TestUnknownNames(t *testing.T) {
	r := newRig(t, options{engines: 1, config: func(c *config.Config, _ []*epptest.Engine) {
		c.DefaultModel = "tiny"
		c.Models = []config.Model{{Name: config.CatchAll, Target: "tiny"}}
	}})
	for _, model := range []any{nil, "gpt-12"} {
		body := map[string]any{"messages": []message{user("hello")}, "max_tokens": 1}
		if model != nil {
			body["model"] = model
		}
		if p := r.post("/v1/chat/completions", body); p.status != http.StatusOK || r.record(p).Target != "tiny" {
			t.Errorf("model %v: %d %s", model, p.status, p.body)
		}
	}
	for _, m := range r.sys.models() {
		if m.Name == config.CatchAll {
			t.Error("* is listed")
		}
	}
}

// TestTargets: a name with several targets is listed as one model, the engines are asked
// for its targets in the parts that their weights say, adapters as such, and "**" takes
// every other name there.
func TestTargets(t *testing.T) {
	nine, one, none := 9, 1, 0
	r := newRig(t, options{engines: 1, engine: func(_ int, c *epptest.EngineConfig) { c.Adapters = []string{"tuned", "unused"} },
		config: func(c *config.Config, _ []*epptest.Engine) {
			c.Models = []config.Model{
				{Name: "chat", Targets: []config.Target{{Name: "tiny", Weight: &nine}, {Name: "tuned", Weight: &one, Adapter: true}, {Name: "unused", Weight: &none}}},
				{Name: "gone", Targets: []config.Target{{Name: "unheard-of"}}},
				{Name: config.Unnamed, Target: "tuned"},
			}
		}})
	listed := ""
	for _, m := range r.sys.models() {
		listed += m.Name + " "
	}
	if !strings.Contains(listed, "chat ") || strings.Contains(listed, "gone ") || strings.Contains(listed, "*") {
		t.Errorf("listed are %s", listed)
	}
	got := map[string]int{}
	for range 200 {
		p := r.must([]message{user("hello")}, 1, "model", `"chat"`)
		rec := r.record(p)
		if (rec.Target == "tuned") != (rec.Adapter == "tuned") || rec.Model != "chat" {
			t.Fatalf("asked for chat: model %s, target %s, adapter %q", rec.Model, rec.Target, rec.Adapter)
		}
		got[rec.Target]++
	}
	sent := map[string]int{}
	for _, q := range r.engines[0].Received() {
		var body struct{ Model string }
		if err := json.Unmarshal(q.Body, &body); err != nil {
			t.Fatal(err)
		}
		sent[body.Model]++
	}
	if got["tuned"] < 5 || got["tuned"] > 45 || got["tiny"]+got["tuned"] != 200 || !maps.Equal(got, sent) {
		t.Errorf("of 200 requests %v were decided and %v sent, want about 180 and 20", got, sent)
	}
	if p := r.must([]message{user("hello")}, 1); r.record(p).Target != "tuned" {
		t.Errorf("a name without a rule went to %s, though ** stands for it", r.record(p).Target)
	}
	r.atRest()
}

// TestTokenizerFiles: files that are no JSON stop the start. Files of a kind that
// is not known exactly are named and left to the engines, or stop the start where
// no engine is asked.
func TestTokenizerFiles(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	load := func(ask bool) (picker.Tokenizer, string, error) {
		cfg := config.Default()
		cfg.Tokenizer.Path, cfg.Tokenizer.AskEngines = dir, ask
		log := &logLines{}
		tok, err := loadTokenizer(cfg, slog.New(slog.NewJSONHandler(log, nil)))
		return tok, log.String(), err
	}
	write("tokenizer.json", `{"version": "1.0", "model": {"type": "Unigram"}}`)
	write("tokenizer_config.json", `{}`)
	if tok, log, err := load(true); tok != nil || err != nil || !strings.Contains(log, "engines are asked") || !strings.Contains(log, "pre_tokenizer") {
		t.Errorf("%v %v %s", tok, err, log)
	}
	if _, _, err := load(false); err == nil || !strings.Contains(err.Error(), "pre_tokenizer") {
		t.Errorf("%v", err)
	}
	write("tokenizer_config.json", `{"chat_template": `)
	if _, _, err := load(true); err == nil || !strings.Contains(err.Error(), "tokenizer_config.json\" is not JSON") {
		t.Errorf("%v", err)
	}
}

// TestCaseO1ModelLabel: 50,000 invented model names through the whole picker, then
// a real one. No family of the page grows with them, and neither does memory.
func TestCaseO1ModelLabel(t *testing.T) {
	r := newRig(t, options{engines: 1, level: slog.LevelWarn})
	before := live()
	body := func(model string) []byte {
		b, _ := json.Marshal(map[string]any{"model": model, "messages": []message{user("hello")}, "max_tokens": 1})
		return b
	}
	for i := range 50_000 {
		_, err := r.sys.picker.Pick(context.Background(), picker.Incoming{
			ID: picker.NewID(), Method: "POST", Path: "/v1/chat/completions", Body: body(fmt.Sprintf("model-%d", i)),
		})
		if epp.AsError(err).Reason != "model_unknown" {
			t.Fatal(err)
		}
		if i%100 == 99 {
			r.forget()
		}
	}
	r.must([]message{user("hello")}, 1)
	if n := r.metric("epp_routing_decisions_total", `model="tiny"`, `outcome="picked"`); n != 1 {
		t.Errorf("the real model has %v picks", n)
	}
	if n := r.metric("epp_routing_decisions_total", `outcome="model_unknown"`); n != 50_000 {
		t.Errorf("%v refusals are counted", n)
	}
	resp, err := r.client.Get(r.page + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	page, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(string(page), "\nepp_routing_decisions_total{"); n > 1000 {
		t.Errorf("%d series of one family", n)
	}
	if grown := live() - before; grown > 50<<20 {
		t.Errorf("%d bytes more are in use", grown)
	}
}

// live is how many bytes of the heap are in use.
func live() int64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// TestSlowTokensHoldNothingUp: engines that take no question in time cost a
// request its budget once, and are then left alone.
func TestSlowTokensHoldNothingUp(t *testing.T) {
	r := newRig(t, options{engines: 1, blind: true, config: func(c *config.Config, _ []*epptest.Engine) {
		c.Tokenizer.AskBudget.Duration = time.Millisecond
		c.Tokenizer.AskEngines = true
	}})
	r.engines[0].SetFault(epptest.Fault{Hang: true})
	said := []message{user(words(1, 50))}
	for range 5 {
		pk, err := r.sys.picker.Pick(r.ctx, picker.Incoming{
			ID: picker.NewID(), Method: "POST", Path: "/v1/chat/completions",
			Body: mustJSON(t, map[string]any{"model": "tiny", "messages": said}),
		})
		if err != nil {
			t.Fatal(err)
		}
		pk.End(picker.ClientGone)
	}
	r.engines[0].SetFault(epptest.Fault{})
	if n := r.metric("epp_prompts_total", `source="approximate"`); n != 5 {
		t.Errorf("%v prompts are known by their bytes", n)
	}
	if late, paused := r.metric("epp_engine_tokens_total", `result="late"`), r.metric("epp_engine_tokens_total", `result="paused"`); late != 3 || paused != 2 {
		t.Errorf("%v late, %v paused", late, paused)
	}
	r.atRest()
}

func mustJSON(t *testing.T, v any) []byte {
	t.Helper()
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return b
}
