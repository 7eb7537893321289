package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-zeromq/zmq4"
	"github.com/vmihailenco/msgpack/v5"

	"epp.internal/epp"
	"epp.internal/epp/config"
	"epp.internal/epp/decision"
	"epp.internal/epp/engine"
	"epp.internal/epp/epptest"
)

// openStream sends a streamed chat and returns when its headers are there.
func openStream(ctx context.Context, c *http.Client, base string, said []message) (*http.Response, error) {
	body, err := json.Marshal(map[string]any{"model": "tiny", "messages": said, "stream": true, "max_tokens": 20000, "ignore_eos": true})
	if err != nil {
		return nil, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, base+"/v1/chat/completions", bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", "application/json")
	return c.Do(req)
}

// newPace ticks n times a second.
func newPace(n int) *time.Ticker { return time.NewTicker(time.Second / time.Duration(n)) }

// all sends n chats at once and returns their replies.
func (r *rig) all(n int, said func(i int) []message, maxTokens int) []*reply {
	replies := make([]*reply, n)
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() { replies[i] = r.chat(said(i), maxTokens) })
	}
	wg.Wait()
	for i, p := range replies {
		if p.err != nil || p.status != http.StatusOK {
			r.t.Errorf("chat %d: %d %s %v", i, p.status, p.body, p.err)
		}
	}
	return replies
}

func servedBy(replies []*reply) map[string]int {
	n := map[string]int{}
	for _, p := range replies {
		n[p.servedBy]++
	}
	return n
}

// TestCaseA1RestartInPlace: an engine restarts on its address and its events
// begin at 0 again, with nobody to replay them. Its old blocks are gone within a
// second, its match is 0, the prompt spreads, and the restart is counted.
func TestCaseA1RestartInPlace(t *testing.T) {
	r := newRig(t, options{engines: 2, config: func(c *config.Config, engines []*epptest.Engine) {
		c.Cache.Source = config.CacheEvents
		for i, e := range engines { // the sockets are named, without a replay socket
			c.Pool.Endpoints[i].Events = strings.TrimPrefix(e.EventEndpoint(), "tcp://")
		}
	}, unsettled: true})
	for _, e := range r.engines {
		if err := e.AwaitSubscribers(r.ctx, 1); err != nil {
			t.Fatal(err)
		}
	}
	r.until("the models are known", func() bool { return r.state("A").Listed && r.state("B").Listed })
	x := []message{user(words(1, 640))}
	warm := r.must(x, 1).servedBy
	r.caughtUp()
	if p := r.must(x, 1); p.servedBy != warm || r.matchRatio(p) == 0 {
		t.Fatalf("the prompt did not go to %s, where it is cached: %s", warm, r.log)
	}
	r.caughtUp()
	began := time.Now()
	if err := r.engine(warm).Restart(); err != nil {
		t.Fatal(err)
	}
	// The restarted engine says one unrelated block, under sequence number 0.
	if err := r.engine(warm).AwaitSubscribers(r.ctx, 1); err != nil {
		t.Fatal(err)
	}
	direct(t, r, r.engine(warm), "unrelated "+words(9, 20))
	r.until("the old blocks are gone", func() bool { return r.state(warm).Blocks == r.engine(warm).Blocks() })
	if d := time.Since(began); d > time.Second {
		t.Errorf("the old blocks were gone after %v", d)
	}
	if n := r.metric("epp_kv_event_restarts_total"); n != 1 {
		t.Errorf("restart counter %v", n)
	}
	for _, e := range r.engines {
		e.HoldEvents(true) // what is picked now must not warm anybody
	}
	replies := r.all(20, func(int) []message { return x }, 1)
	for _, p := range replies {
		if ratio := r.matchRatio(p); ratio != 0 {
			t.Errorf("match %v on %s", ratio, p.servedBy)
		}
	}
	even(t, servedBy(replies), "A", "B")
}

// direct asks an engine past the picker.
func direct(t *testing.T, r *rig, e *epptest.Engine, text string) {
	t.Helper()
	body := map[string]any{"model": "tiny", "messages": []message{user(text)}, "max_tokens": 1, "ignore_eos": true}
	if p := r.postTo(e.URL()+"/v1/chat/completions", body); p.status != http.StatusOK {
		t.Fatalf("%d %s %v", p.status, p.body, p.err)
	}
}

// TestCaseB2MalformedFrames: an event socket sends frames that are none. The
// picker lives, each kind is counted by its reason, and the one good batch that
// follows is applied.
func TestCaseB2MalformedFrames(t *testing.T) {
	pub := zmq4.NewPub(t.Context())
	defer pub.Close()
	if err := pub.Listen("tcp://127.0.0.1:0"); err != nil {
		t.Fatal(err)
	}
	r := newRig(t, options{engines: 1, unsettled: true, config: func(c *config.Config, _ []*epptest.Engine) {
		c.Pool.Endpoints[0].Events = pub.Addr().String()
	}})
	r.until("the model is known", func() bool { return r.state("A").Listed })
	seq := func(n byte) []byte { return []byte{0, 0, 0, 0, 0, 0, 0, n} }
	good, err := msgpack.Marshal([]any{1.5, []any{map[string]any{
		"type": "BlockStored", "block_hashes": []uint64{1}, "parent_block_hash": nil, "token_ids": make([]int, 16), "block_size": 16,
	}}, 0})
	if err != nil {
		t.Fatal(err)
	}
	send := func(frames ...[]byte) {
		if err := pub.SendMulti(zmq4.NewMsgFrom(frames...)); err != nil {
			t.Error(err)
		}
	}
	// The subscription takes a moment to arrive at the publisher, and what is sent
	// before is lost, so all is said again until the good batch has come.
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for n := byte(0); r.state("A").Blocks == 0; n += 4 {
		send([]byte("alone"))
		send([]byte(""), seq(n))
		send([]byte(""), seq(n), good, []byte("a fourth"))
		send([]byte(""), []byte("abc"), good)
		send([]byte(""), seq(n), nil)
		send([]byte(""), seq(n+1), []byte{0xc1, 0xff, 0x00})
		send([]byte(""), seq(n+2), []byte{7})
		send([]byte(""), seq(n+3), good)
		select {
		case <-tick.C:
		case <-r.ctx.Done():
			t.Fatalf("the good batch was not applied\n%s", r.log)
		}
	}
	if n := r.metric("epp_kv_event_bad_messages_total", "reason="); n < 6 {
		t.Errorf("%v bad messages were counted", n)
	}
	r.must([]message{user("still alive")}, 1)
}

// TestCaseA3ClearedCache: A and B hold the prompt, A clears its cache. All 50
// that follow go to B, whose entries are untouched.
func TestCaseA3ClearedCache(t *testing.T) {
	r := newRig(t, options{engines: 2})
	text := words(1, 640)
	for _, e := range r.engines {
		direct(t, r, e, text)
	}
	r.caughtUp()
	before := r.state("B").Blocks
	if !r.engine("A").ResetPrefixCache() {
		t.Fatal("the cache was not reset")
	}
	direct(t, r, r.engine("A"), "after the reset") // a clear is published with the next step
	r.until("A is empty but for what came after", func() bool { return r.state("A").Blocks <= 2 })
	for range 50 {
		if p := r.must([]message{user(text)}, 1); p.servedBy != "B" {
			t.Fatalf("went to %s: %s", p.servedBy, r.record(p).Why())
		}
	}
	if n := r.state("B").Blocks; n != before {
		t.Errorf("B had %d blocks, has %d", before, n)
	}
}

// TestCaseA5GapIsReplayed: batches that were not sent live are asked for and
// applied exactly once, in order, and the gap is counted.
func TestCaseA5GapIsReplayed(t *testing.T) {
	r := newRig(t, options{engines: 1})
	a := r.engine("A")
	direct(t, r, a, words(1, 64))
	r.caughtUp()
	duplicates := r.sys.index.Stats().Duplicates
	a.DropEvents(3)
	for i := range 4 { // three batches are kept back, the fourth shows the gap
		direct(t, r, a, words(uint64(10+i), 64))
	}
	r.caughtUp()
	if n := r.metric("epp_kv_event_gaps_total"); n != 1 {
		t.Errorf("gap counter %v", n)
	}
	r.until("A is complete", func() bool { return !r.state("A").Signals.Incomplete })
	if n := r.sys.index.Stats().Duplicates - duplicates; n != 0 {
		t.Errorf("%d blocks were stored twice", n)
	}
	if n := r.metric("epp_kv_event_replays_total", `result="done"`); n < 1 {
		t.Errorf("%v replays", n)
	}
}

// TestCaseA5ReplayNeverAnswers: the replay socket takes connections and says
// nothing. Live events go on, the endpoint is shown as incomplete, and the
// questions are few: each waits longer than the one before.
func TestCaseA5ReplayNeverAnswers(t *testing.T) {
	mute, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var asked atomic.Int32
	var held sync.WaitGroup
	defer held.Wait()
	defer mute.Close()
	held.Go(func() {
		for {
			c, err := mute.Accept()
			if err != nil {
				return
			}
			asked.Add(1)
			defer c.Close()
		}
	})
	r := newRig(t, options{engines: 1, unsettled: true, config: func(c *config.Config, engines []*epptest.Engine) {
		c.Pool.Endpoints[0].Events = strings.TrimPrefix(engines[0].EventEndpoint(), "tcp://")
		c.Pool.Endpoints[0].Replay = mute.Addr().String()
	}})
	a := r.engine("A")
	if err := a.AwaitSubscribers(r.ctx, 1); err != nil {
		t.Fatal(err)
	}
	direct(t, r, a, words(1, 64))
	r.caughtUp()
	a.DropEvents(1)
	direct(t, r, a, words(2, 64))
	before := r.state("A").Blocks
	direct(t, r, a, words(3, 64))
	r.until("live events go on", func() bool { return r.state("A").Blocks > before })
	if !r.state("A").Signals.Incomplete || r.metric("epp_incomplete_endpoints", `pod="A"`) != 1 {
		t.Error("A is shown as complete")
	}
	if n := asked.Load(); n > 5 {
		t.Errorf("%d questions", n)
	}
}

// TestCaseC1WholeConversationCounts: 40 conversations share a system text of 500
// tokens. Their first turns come at once while engines hold events, so they
// spread evenly; later turns go where the first went.
func TestCaseC1WholeConversationCounts(t *testing.T) {
	r := newRig(t, options{engines: 4})
	for _, e := range r.engines {
		e.HoldEvents(true)
	}
	system := message{"system", words(1, 500)}
	said := make([][]message, 40)
	for i := range said {
		said[i] = []message{system, user(words(uint64(100+i), 60))}
	}
	first := r.all(40, func(i int) []message { return said[i] }, 30)
	even(t, servedBy(first), "A", "B", "C", "D")
	for _, e := range r.engines {
		e.HoldEvents(false)
	}
	r.caughtUp()
	stayed, last := 0, first
	for turn := 2; turn <= 3; turn++ {
		for i := range said {
			said[i] = append(said[i], message{"assistant", last[i].text()}, user(words(uint64(1000*turn+i), 60)))
		}
		last = r.all(40, func(i int) []message { return said[i] }, 30)
		for i := range said {
			if last[i].servedBy == first[i].servedBy {
				stayed++
			}
		}
		r.caughtUp()
	}
	if stayed < 72 {
		t.Errorf("%d of 80 later turns stayed", stayed)
	}
}

// tools are n functions of a set, about 4 KB in all. The keys stand in an order
// of their own, which has to reach the prompt.
func tools(set string, n int) string {
	var list []string
	for i := range n {
		list = append(list, fmt.Sprintf(`{"type":"function","function":{"name":"%s_%d","description":"%s","parameters":{"type":"object","required":["zeta"],"properties":{"zeta":{"type":"string"},"alpha":{"type":"number"}}}}}`,
			set, i, strings.TrimSpace(words(uint64(i), 40))))
	}
	return "[" + strings.Join(list, ",") + "]"
}

// TestCaseC3ToolsAreInThePrefix: two tool sets, alternating, each stick to the
// endpoint of their first request; the match between them ends where the schemas
// differ; and a turn with a tool call and its result matches its predecessor.
func TestCaseC3ToolsAreInThePrefix(t *testing.T) {
	r := newRig(t, options{engines: 2})
	t1, t2 := tools("first", 12), tools("second", 12)
	if len(t1) < 3500 {
		t.Fatalf("a tool set of %d bytes", len(t1))
	}
	said := []message{user("Which tool helps?")}
	homes := map[string]string{}
	// The first of each at once: answers are held until both are picked, so that
	// the second goes to the endpoint that is idle.
	for _, e := range r.engines {
		e.HoldAnswers(true)
	}
	first := make([]*reply, 2)
	var wg sync.WaitGroup
	for i, set := range []string{t1, t2} {
		wg.Go(func() { first[i] = r.chat(said, 4, "tools", set) })
	}
	r.until("both are picked", func() bool { return r.decisions() == 2 })
	for _, e := range r.engines {
		e.HoldAnswers(false)
	}
	wg.Wait()
	homes[t1], homes[t2] = first[0].servedBy, first[1].servedBy
	if homes[t1] == homes[t2] || homes[t1] == "" {
		t.Fatalf("both went to %q", homes[t1])
	}
	r.caughtUp()
	for i := range 20 {
		for _, set := range []string{t1, t2} {
			p := r.must(said, 4, "tools", set)
			if p.servedBy != homes[set] {
				t.Errorf("round %d: went to %s, its first to %s", i, p.servedBy, homes[set])
			}
			if r.matchRatio(p) < 0.9 {
				t.Errorf("round %d: match %.2f", i, r.matchRatio(p))
			}
		}
	}
	rec := r.record(r.must(said, 4, "tools", t1))
	for i := range rec.Candidates {
		if c := &rec.Candidates[i]; c.Name != homes[t1] && rec.MatchRatio(i) > 0.2 {
			t.Errorf("%s holds the other set and matches %.2f of this one", c.Name, rec.MatchRatio(i))
		}
	}
	before := r.record(r.must(said, 4, "tools", t1)).PromptTokens
	r.caughtUp()
	follow := map[string]any{"model": "tiny", "max_tokens": 4, "tools": json.RawMessage(t1), "messages": []any{
		map[string]any{"role": "user", "content": said[0].Content},
		map[string]any{"role": "assistant", "content": "", "tool_calls": []any{map[string]any{
			"id": "call_1", "type": "function", "function": map[string]any{"name": "first_0", "arguments": `{"zeta":"x"}`}}}},
		map[string]any{"role": "tool", "tool_call_id": "call_1", "content": "sunny"},
	}}
	p := r.post("/v1/chat/completions", follow)
	if p.status != http.StatusOK {
		t.Fatalf("%d %s", p.status, p.body)
	}
	if rec := r.record(p); rec.Candidates[rec.Chosen].Match.Tokens() < before-2*16 {
		t.Errorf("the follow-up matches %d tokens of a predecessor of %d", rec.Candidates[rec.Chosen].Match.Tokens(), before)
	}
}

// TestCaseC5ShortPromptsMatchNothing: 200 different prompts of 3–30 tokens on 4
// idle endpoints spread evenly, and none has a match.
func TestCaseC5ShortPromptsMatchNothing(t *testing.T) {
	r := newRig(t, options{engines: 4})
	var replies []*reply
	for i := range 200 {
		p := r.post("/v1/completions", map[string]any{"model": "tiny", "prompt": words(uint64(i), 3+i%28), "max_tokens": 1})
		if p.status != http.StatusOK {
			t.Fatalf("%d %s %v", p.status, p.body, p.err)
		}
		if ratio := r.matchRatio(p); ratio != 0 {
			t.Errorf("prompt %d: match %v", i, ratio)
		}
		replies = append(replies, p)
	}
	even(t, servedBy(replies), "A", "B", "C", "D")
}

// TestCaseD2TiesSpread: 300 requests on 3 idle endpoints spread evenly, one after
// another with different prompts, at once, and with one prompt that all hold;
// and so they do after a restart of the picker, which has no memory of turns.
func TestCaseD2TiesSpread(t *testing.T) {
	run := func(t *testing.T) {
		r := newRig(t, options{engines: 3})
		var replies []*reply
		for i := range 300 {
			replies = append(replies, r.must([]message{user(fmt.Sprint("prompt ", i))}, 1))
		}
		even(t, servedBy(replies), "A", "B", "C")
		even(t, servedBy(r.all(300, func(i int) []message { return []message{user(fmt.Sprint("at once ", i))} }, 1)), "A", "B", "C")
		same := words(5, 320)
		for _, e := range r.engines {
			direct(t, r, e, same)
		}
		r.caughtUp()
		replies = nil
		for range 300 {
			replies = append(replies, r.must([]message{user(same)}, 1))
		}
		even(t, servedBy(replies), "A", "B", "C")
	}
	t.Run("first", run)
	t.Run("after a restart", run)
}

// TestCaseD2ReplicasDoNotChooseInStep: two pickers in front of the same idle
// endpoints, asked the same questions in the same order, choose differently.
func TestCaseD2ReplicasDoNotChooseInStep(t *testing.T) {
	one := newRig(t, options{engines: 3})
	two := newRig(t, options{config: func(c *config.Config, _ []*epptest.Engine) {
		for _, e := range one.engines {
			c.Pool.Endpoints = append(c.Pool.Endpoints, config.Endpoint{Name: e.Name(), Address: e.Address()})
		}
	}})
	same := 0
	var replies []*reply
	for i := range 150 {
		said := []message{user(fmt.Sprint("question ", i))}
		a, b := one.must(said, 1), two.must(said, 1)
		if a.servedBy == b.servedBy {
			same++
		}
		replies = append(replies, a, b)
	}
	even(t, servedBy(replies), "A", "B", "C")
	if same > 90 { // 50 by chance; the standard deviation is 6
		t.Errorf("%d of 150 went to the same endpoint", same)
	}
}

// TestCaseE1RenamedMetric: the KV usage is read under its old name and its new
// one, and is unknown where an engine has neither, with one warning; nothing is
// said of the LoRA metric that nobody has.
func TestCaseE1RenamedMetric(t *testing.T) {
	names := []string{"vllm:gpu_cache_usage_perc", "vllm:kv_cache_usage_perc", "-"}
	r := newRig(t, options{engines: 3, engine: func(i int, c *epptest.EngineConfig) {
		c.KVUsageMetric, c.Engine.Blocks = names[i], 41
	}})
	for _, e := range r.engines {
		e.HoldAnswers(true)
	}
	// 36 of 40 blocks on A, 8 on B.
	for name, n := range map[string]int{"A": 36, "B": 8, "C": 8} {
		ctx, cancel := context.WithCancel(r.ctx)
		defer cancel()
		go func() {
			if resp, err := openCompletion(ctx, r.engine(name).URL(), n*16-1); err == nil {
				<-ctx.Done()
				_ = resp.Body.Close()
			}
		}()
		if err := r.engine(name).AwaitLoad(r.ctx, func(l engine.Load) bool { return l.Running == 1 }); err != nil {
			t.Fatal(err)
		}
	}
	r.until("the pages show it", func() bool {
		return r.state("A").Signals.KVUsage.Value > 0 && r.state("B").Signals.KVUsage.Value > 0
	})
	want := map[string]float64{"A": 0.9, "B": 0.2}
	for name, v := range want {
		if got := r.state(name).Signals.KVUsage; !got.Known || got.Value < v-0.03 || got.Value > v+0.03 {
			t.Errorf("%s: KV usage %+v, want %v", name, got, v)
		}
	}
	if got := r.state("C").Signals.KVUsage; got.Known {
		t.Errorf("C: KV usage %+v, want unknown", got)
	}
	if n := strings.Count(r.log.String(), "kv_cache_usage_perc"); n != 1 {
		t.Errorf("%d log lines name the missing metric, want 1\n%s", n, r.log)
	}
	if strings.Contains(r.log.String(), "lora") {
		t.Errorf("the log speaks of LoRA:\n%s", r.log)
	}
}

// TestCaseE3AbsurdValues: pages with NaN, infinite, negative and absurd numbers,
// first of the KV usage, then of the queue. They count as unknown and are counted,
// no score is NaN, every endpoint stays usable, and the debug log is valid JSON.
func TestCaseE3AbsurdValues(t *testing.T) {
	for _, metric := range []string{"vllm:kv_cache_usage_perc", "vllm:num_requests_waiting"} {
		t.Run(metric, func(t *testing.T) {
			values := map[string]string{"A": "NaN", "B": "+Inf", "C": "-1", "D": "1e308", "F": "0.3"}
			var fixed []config.Endpoint
			for name, v := range values {
				fixed = append(fixed, config.Endpoint{Name: name, Address: absurdEngine(t, metric, v)})
			}
			r := newRig(t, options{unsettled: true, level: slog.LevelDebug, config: func(c *config.Config, _ []*epptest.Engine) {
				c.Pool.Endpoints, c.Load.Source = fixed, decision.LoadKV
			}})
			r.until("all pages are read", func() bool {
				for name := range values {
					if r.state(name).Signals.ReadAt.IsZero() || !r.state(name).Listed {
						return false
					}
				}
				return true
			})
			for i := range 100 {
				r.must([]message{user(fmt.Sprint(i))}, 1)
			}
			for name, v := range values {
				got := map[string]epp.Gauge{"vllm:kv_cache_usage_perc": r.state(name).Signals.KVUsage, "vllm:num_requests_waiting": r.state(name).Signals.Waiting}[metric]
				if got.Known != (name == "F") {
					t.Errorf("%s: %s was read as %+v", name, v, got)
				}
			}
			if n := r.metric("epp_bad_values_total", metric); n < 4 {
				t.Errorf("%v bad values were counted", n)
			}
			r.mu.Lock()
			defer r.mu.Unlock()
			for _, rec := range r.decided {
				for i := range rec.Candidates {
					if c := &rec.Candidates[i]; !(c.Sum >= 0 && c.Sum <= 1) || c.Excluded != decision.Admitted {
						t.Fatalf("%s: sum %v, excluded %q", c.Name, c.Sum, c.Excluded)
					}
				}
			}
			for line := range strings.Lines(r.log.String()) {
				if !json.Valid([]byte(line)) {
					t.Fatalf("the log holds %s", line)
				}
			}
		})
	}
}

// TestCaseE3AllEqual: five endpoints that report the same: no difference to divide
// by, and an even spread.
func TestCaseE3AllEqual(t *testing.T) {
	var fixed []config.Endpoint
	for _, name := range []string{"A", "B", "C", "D", "F"} {
		fixed = append(fixed, config.Endpoint{Name: name, Address: absurdEngine(t, "vllm:kv_cache_usage_perc", "0.3")})
	}
	r := newRig(t, options{unsettled: true, config: func(c *config.Config, _ []*epptest.Engine) { c.Pool.Endpoints = fixed }})
	for _, e := range fixed {
		r.until("its page is read", func() bool { return r.state(e.Name).Signals.Waiting.Known && r.state(e.Name).Listed })
	}
	for i := range 200 {
		r.must([]message{user(fmt.Sprint(i))}, 1)
	}
	even(t, r.picks(), "A", "B", "C", "D", "F")
}

// absurdEngine is an engine whose page holds one absurd value, and that answers
// every chat. It returns its address.
func absurdEngine(t *testing.T, metric, value string) string {
	page := map[string]string{"vllm:num_requests_running": "0", "vllm:num_requests_waiting": "0", "vllm:kv_cache_usage_perc": "0.1"}
	page[metric] = value
	mux := http.NewServeMux()
	mux.HandleFunc("GET /metrics", func(w http.ResponseWriter, _ *http.Request) {
		for name, v := range page {
			fmt.Fprintf(w, "%s{engine=\"0\",model_name=\"tiny\"} %s\n", name, v)
		}
	})
	mux.HandleFunc("GET /v1/models", func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprint(w, `{"object":"list","data":[{"id":"tiny","object":"model","parent":null,"max_model_len":8192}]}`)
	})
	mux.HandleFunc("POST /v1/chat/completions", func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprint(w, `{"choices":[{"message":{"role":"assistant","content":"yes"}}]}`)
	})
	s := httptest.NewServer(mux)
	t.Cleanup(s.Close)
	return s.Listener.Addr().String()
}

// openCompletion sends a prompt of n token IDs past the picker.
func openCompletion(ctx context.Context, base string, n int) (*http.Response, error) {
	ids := make([]int, n)
	for i := range ids {
		ids[i] = 300 + i%700
	}
	body, err := json.Marshal(map[string]any{"model": "tiny", "prompt": ids, "stream": true, "max_tokens": 1})
	if err != nil {
		return nil, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, base+"/v1/completions", bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	return http.DefaultClient.Do(req)
}

// TestCaseE5StaleIsServed: a pool of one whose page fails is served all the same,
// and a gauge names it. In a pool of three the stale one is less preferred, but
// not starved.
func TestCaseE5StaleIsServed(t *testing.T) {
	for name, fault := range map[string]epptest.Fault{
		"a pool of one, page 500":     {MetricsStatus: 500},
		"a pool of one, page 5s late": {MetricsDelay: 5 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, options{engines: 1})
			r.engine("A").SetFault(fault)
			r.stale("A")
			for i := range 20 {
				r.must([]message{user(fmt.Sprint(i))}, 1)
			}
			if n := r.metric("epp_stale_endpoints", `pod="A"`); n != 1 {
				t.Errorf("gauge of stale endpoints: %v", n)
			}
		})
	}
	t.Run("one of three", func(t *testing.T) {
		r := newRig(t, options{engines: 3})
		r.engine("A").SetFault(epptest.Fault{MetricsStatus: 500})
		r.stale("A")
		var all []*reply
		for round := range 20 {
			all = append(all, r.all(8, func(i int) []message { return []message{user(fmt.Sprint(round, " ", i))} }, 30)...)
		}
		n := servedBy(all)
		if n["A"] == 0 || n["A"] >= n["B"] || n["A"] >= n["C"] {
			t.Errorf("stale A got %d of %v", n["A"], n)
		}
	})
}

// stale waits until the endpoint's reports are overdue.
func (r *rig) stale(name string) {
	r.t.Helper()
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		sig := r.state(name).Signals
		if _, _, stale := r.sys.picker.Policy().Seen(&sig, time.Now()); stale {
			return
		}
		select {
		case <-tick.C:
		case <-r.ctx.Done():
			r.t.Fatalf("%s is not stale", name)
		}
	}
}

// TestCaseJ4DeadEndpoint: an endpoint that refuses, or resets before it answers,
// costs no failed request: the other serves it, the body sent whole again. One
// that resets in the stream ends it with an error, and nothing starts twice.
func TestCaseJ4DeadEndpoint(t *testing.T) {
	for name, break_ := range map[string]func(*epptest.Engine) error{
		"refuses": func(e *epptest.Engine) error { return e.RefuseConnections(true) },
		"resets":  func(e *epptest.Engine) error { e.SetFault(epptest.Fault{ResetBeforeHeaders: true}); return nil },
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, options{engines: 2})
			text := words(1, 320)
			direct(t, r, r.engine("A"), text) // A holds it, so A is tried first
			r.caughtUp()
			if err := break_(r.engine("A")); err != nil {
				t.Fatal(err)
			}
			served := r.engine("B").Requests()
			p := r.must([]message{user(text)}, 5)
			if p.servedBy != "B" || r.engine("B").Requests() != served+1 {
				t.Errorf("served by %s; B had %d requests", p.servedBy, r.engine("B").Requests()-served)
			}
			if rec := r.record(p); rec.Attempt != 2 || rec.Candidates[rec.Chosen].Name != "B" {
				t.Errorf("attempt %d chose %d", rec.Attempt, rec.Chosen)
			}
			if n := r.metric("epp_retries_total"); n != 1 {
				t.Errorf("%v retries", n)
			}
			r.atRest()
		})
	}
	t.Run("is gone under load", func(t *testing.T) {
		r := newRig(t, options{engines: 2})
		r.engine("A").Crash()
		for i := range 20 { // A looks idle, and each of these is retried until it is left out
			r.must([]message{user(fmt.Sprint("after the crash ", i))}, 1)
		}
		r.until("A is left out", func() bool { return r.state("A").Signals.Health < 0.3 })
		r.forget()
		if n := servedBy(r.all(100, func(i int) []message { return []message{user(fmt.Sprint("at once ", i))} }, 5)); n["B"] != 100 {
			t.Errorf("served by %v", n)
		}
		if err := r.engine("A").Restart(); err != nil {
			t.Fatal(err)
		}
		for round := 0; r.picks()["A"] < 20; round++ { // by one try first, then by what B has no room for
			r.all(16, func(i int) []message { return []message{user(fmt.Sprint("it is back ", round, i))} }, 5)
			if round > 200 {
				t.Fatalf("A does not come back: %v", r.picks())
			}
		}
		r.atRest()
	})
	t.Run("resets in the stream", func(t *testing.T) {
		r := newRig(t, options{engines: 2})
		for _, e := range r.engines {
			e.SetFault(epptest.Fault{ResetAfterChunks: 3})
		}
		if p := r.chat([]message{user("hello")}, 50, "stream", "true"); p.err == nil {
			t.Errorf("the stream ended cleanly: %s", p.body)
		}
		if n := r.engines[0].Requests() + r.engines[1].Requests(); n != 1 {
			t.Errorf("%d requests were sent", n)
		}
		r.atRest()
	})
}
