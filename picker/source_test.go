package picker_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"epp.internal/epp"
	"epp.internal/epp/decision"
	"epp.internal/epp/epptest"
	"epp.internal/epp/openai"
	"epp.internal/epp/picker"
	"epp.internal/epp/tokenize/chat"
)

// blind is a tokenizer that leaves every chat to the engine.
type blind struct{ byteTokenizer }

func (blind) Chat(_ context.Context, _ *openai.Body, dst []uint32) ([]uint32, error) {
	return dst, fmt.Errorf("%w: a kind of its own", chat.ErrNotRenderable)
}

const askedChat = `{"model":"tiny","messages":[{"role":"user","content":"what is the answer to everything?"}]}`

// TestEngineTokens: a real /tokenize gives the tokens that the engine's own blocks
// have, for chats, for what is converted to one, and for texts.
func TestEngineTokens(t *testing.T) {
	e, err := epptest.StartEngine(epptest.EngineConfig{})
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	var asked atomic.Int32
	client := &http.Client{Transport: &http.Transport{}}
	defer client.CloseIdleConnections()
	ask := func(ctx context.Context, _ epp.Endpoint, path string, body []byte) ([]uint32, error) {
		asked.Add(1)
		req, err := http.NewRequestWithContext(ctx, "POST", e.URL()+path, strings.NewReader(string(body)))
		if err != nil {
			return nil, err
		}
		res, err := client.Do(req)
		if err != nil {
			return nil, err
		}
		defer res.Body.Close()
		text, err := io.ReadAll(res.Body)
		var told struct{ Tokens []uint32 }
		if err == nil && res.StatusCode == 200 {
			err = json.Unmarshal(text, &told)
		}
		if res.StatusCode != 200 {
			err = fmt.Errorf("status %s: %s", res.Status, text)
		}
		return told.Tokens, err
	}
	tokens, _ := epptest.ByteTokenizer{}.ChatTokens([]byte(askedChat))
	for name, tok := range map[string]picker.Tokenizer{"no tokenizer": nil, "not renderable": blind{}} {
		p := newPool(t, decision.Defaults(), picker.Options{Tokenizer: tok, AskEngine: ask, AskBudget: time.Minute, Names: picker.Names{Models: map[string]picker.ModelRule{"alias": {Targets: []picker.Target{{Name: "tiny"}}}}}}, "a")
		p.members["a"].Apply(start, stored(tokens, 16))
		asked.Store(0)
		for i, c := range []struct{ path, body string }{
			{"/v1/chat/completions", askedChat},
			{"/v1/chat/completions", askedChat}, // remembered
			{"/v1/chat/completions", strings.TrimSuffix(askedChat, "}") + `,"max_tokens":7,"temperature":0.1,"stream":true,"seed":4,"user":"another"}`},
			{"/v1/chat/completions", strings.Replace(askedChat, "tiny", "alias", 1)},
			{"/v1/messages", `{"model":"tiny","max_tokens":1,"messages":[{"role":"user","content":[{"type":"text","text":"what is the answer to everything?"}]}]}`},
		} {
			pk, err := p.post(c.path, c.body)
			if err != nil {
				t.Fatal(err)
			}
			rec := p.last()
			if rec.TokenSource != epp.EngineTokens || rec.PromptTokens != len(tokens) || rec.MatchRatio(0) != 1 {
				t.Errorf("%s, %d: %v, %d tokens, match %v, %q", name, i, rec.TokenSource, rec.PromptTokens, rec.MatchRatio(0), rec.TokenNote)
			}
			pk.End(picker.Served)
		}
		if n := asked.Load(); n != 1 {
			t.Errorf("%s: the engine was asked %d times, and all five are the same question", name, n)
		}
	}
	p := newPool(t, decision.Defaults(), picker.Options{AskEngine: ask, AskBudget: time.Minute}, "a")
	text := strings.Repeat("text ", 10)
	p.members["a"].Apply(start, stored(byteTokens(text), 16))
	pk, err := p.post("/v1/completions", fmt.Sprintf(`{"model":"tiny","prompt":[%q,%q]}`, text, text))
	if err != nil {
		t.Fatal(err)
	}
	pk.End(picker.Served)
	if rec := p.last(); rec.TokenSource != epp.EngineTokens || rec.MatchRatio(0) != 1 || rec.BlockedTokens != 96 {
		t.Errorf("texts: %v, match %v of %d, %q", rec.TokenSource, rec.MatchRatio(0), rec.BlockedTokens, rec.TokenNote)
	}
}

// TestAskPath: what /tokenize does not know goes to /render.
func TestAskPath(t *testing.T) {
	var paths []string // of the question for one request
	ask := func(_ context.Context, _ epp.Endpoint, path string, _ []byte) ([]uint32, error) {
		paths = append(paths, path)
		return []uint32{1}, nil
	}
	p := newPool(t, decision.Defaults(), picker.Options{AskEngine: ask}, "a")
	tests := []struct{ more, path string }{{"", "/tokenize"}, {`,"tools":[]`, "/tokenize"}}
	for _, key := range []string{"reasoning_effort", "documents", "truncate_prompt_tokens", "prompt_embeds", "kv_transfer_params"} {
		tests = append(tests, struct{ more, path string }{`,"` + key + `":"x"`, "/v1/chat/completions/render"}, struct{ more, path string }{`,"` + key + `":null`, "/tokenize"})
	}
	for _, c := range tests {
		paths = nil
		pk, err := p.post("/v1/chat/completions", strings.TrimSuffix(askedChat, "}")+c.more+"}")
		if err != nil {
			t.Fatal(err)
		}
		pk.End(picker.Served)
		if got := strings.Join(paths, " "); got != c.path {
			t.Errorf("%s: asked %q, want %s", c.more, got, c.path)
		}
	}
}

// numbered is a chat that no other one is the same as.
func numbered(i int) string { return strings.Replace(askedChat, "everything", fmt.Sprint(i), 1) }

// TestSlowEngine: a source that is slow holds each of three requests for its
// budget and is then left alone for 5 s, then asked once, and left alone for 10 s.
// What it says too late is remembered for the next turn.
func TestSlowEngine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var slow atomic.Int64
		slow.Store(int64(100 * time.Millisecond))
		var asked atomic.Int32
		ask := func(context.Context, epp.Endpoint, string, []byte) ([]uint32, error) {
			asked.Add(1)
			time.Sleep(time.Duration(slow.Load())) // whatever ctx says
			return count(1, 32), nil
		}
		p := newPool(t, decision.Defaults(), picker.Options{AskEngine: ask}, "a")
		step := func(i int, wait time.Duration, source epp.TokenSource, note string) {
			t.Helper()
			before := time.Now()
			pk, err := p.post("/v1/chat/completions", numbered(i))
			if err != nil {
				t.Fatal(err)
			}
			pk.End(picker.Served)
			rec := p.last()
			if took := time.Since(before); took != wait || rec.TokenSource != source || !strings.Contains(rec.TokenNote, note) {
				t.Errorf("request %d took %v, tokens from %v, %q; want %v, %v, %q", i, took, rec.TokenSource, rec.TokenNote, wait, source, note)
			}
		}
		const budget = picker.DefaultAskBudget
		step(1, budget, epp.NoTokens, "within the budget")
		time.Sleep(100 * time.Millisecond)
		step(1, 0, epp.EngineTokens, "") // it came too late for the first
		step(2, budget, epp.NoTokens, "within the budget")
		step(3, budget, epp.NoTokens, "within the budget")
		step(4, 0, epp.NoTokens, "left alone")
		p.pass(5*time.Second - 1)
		step(5, 0, epp.NoTokens, "left alone")
		p.pass(1)
		step(6, budget, epp.NoTokens, "within the budget") // the one that is let through
		step(7, 0, epp.NoTokens, "left alone")
		p.pass(10*time.Second - 1)
		step(8, 0, epp.NoTokens, "left alone")
		slow.Store(int64(time.Millisecond))
		p.pass(1)
		step(9, time.Millisecond, epp.EngineTokens, "asked an engine")
		step(10, time.Millisecond, epp.EngineTokens, "asked an engine")
		if n := asked.Load(); n != 6 {
			t.Errorf("asked %d times, want 6", n)
		}
		time.Sleep(time.Second) // the slow ones end
	})
}

// TestBudgetIsShared: all questions of a request have one budget together, however
// many prompts it has and however slow the engine is. What was told within it
// counts, and what was not asked after it is no fault of the engine.
func TestBudgetIsShared(t *testing.T) {
	for _, c := range []struct {
		slow  time.Duration
		asked int // of 100 prompts
		told  int
	}{{time.Second, 1, 0}, {15 * time.Millisecond, 2, 1}, {6 * time.Millisecond, 4, 3}} {
		synctest.Test(t, func(t *testing.T) {
			var asked atomic.Int32
			ask := func(context.Context, epp.Endpoint, string, []byte) ([]uint32, error) {
				asked.Add(1)
				time.Sleep(c.slow)
				return count(1, 32), nil
			}
			p := newPool(t, decision.Defaults(), picker.Options{AskEngine: ask}, "a")
			prompts := `"0"`
			for i := range 99 {
				prompts += fmt.Sprintf(`,"%d"`, i+1)
			}
			before := time.Now()
			pk, err := p.post("/v1/completions", `{"model":"tiny","prompt":[`+prompts+`]}`)
			if err != nil {
				t.Fatal(err)
			}
			pk.End(picker.Served)
			if took := time.Since(before); took != picker.DefaultAskBudget || int(asked.Load()) != c.asked || p.last().PromptTokens != 32*c.told {
				t.Errorf("answers in %v: took %v, %d asked, %d tokens; want %v, %d, %d", c.slow, took, asked.Load(), p.last().PromptTokens, picker.DefaultAskBudget, c.asked, 32*c.told)
			}
			time.Sleep(time.Second) // the slow ones end
		})
	}
}

// TestClientLeavesQuestion: a client that leaves ends the wait for its tokens, and
// is not held against the engine.
func TestClientLeavesQuestion(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ask := func(context.Context, epp.Endpoint, string, []byte) ([]uint32, error) {
			time.Sleep(time.Second)
			return count(1, 32), nil
		}
		p := newPool(t, decision.Defaults(), picker.Options{AskEngine: ask, AskBudget: time.Minute}, "a")
		for i := range 4 { // one more than the failures after which a source is left alone
			ctx, leave := context.WithCancel(t.Context())
			time.AfterFunc(time.Millisecond, leave)
			before := time.Now()
			pk, err := p.Pick(ctx, picker.Incoming{ID: "1", Method: "POST", Path: "/v1/chat/completions", Body: []byte(numbered(i))})
			if err != nil {
				t.Fatal(err)
			}
			pk.End(picker.ClientGone)
			if rec := p.last(); time.Since(before) != time.Millisecond || !strings.Contains(rec.TokenNote, "client left") {
				t.Errorf("%v, %q", time.Since(before), rec.TokenNote)
			}
		}
		time.Sleep(time.Second)
	})
}

// TestEngineHangs: with every question hanging, requests go on at once, and the
// questions under way are bounded.
func TestEngineHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var asking atomic.Int32
		release := make(chan struct{})
		ask := func(context.Context, epp.Endpoint, string, []byte) ([]uint32, error) {
			asking.Add(1)
			<-release
			return nil, errors.New("too late")
		}
		p := newPool(t, decision.Defaults(), picker.Options{AskEngine: ask}, "a")
		before := time.Now()
		for i := range 100 {
			go func() {
				pk, err := p.post("/v1/chat/completions", numbered(i))
				if err != nil {
					t.Error(err)
					return
				}
				pk.End(picker.Served)
			}()
		}
		synctest.Wait()
		if n := asking.Load(); n > 16 {
			t.Errorf("%d questions at once", n)
		}
		time.Sleep(picker.DefaultAskBudget)
		synctest.Wait()
		if len(p.ended) != 100 || time.Since(before) != picker.DefaultAskBudget {
			t.Errorf("%d of 100 went on after %v", len(p.ended), time.Since(before))
		}
		close(release)
		synctest.Wait()
	})
}

// TestEngineRefuses: an engine that refuses a request is in order, and is asked
// for the next one.
func TestEngineRefuses(t *testing.T) {
	asked := 0
	ask := func(context.Context, epp.Endpoint, string, []byte) ([]uint32, error) {
		asked++
		return nil, epp.Errorf(epp.BadRequest, "bad", "context too long")
	}
	p := newPool(t, decision.Defaults(), picker.Options{AskEngine: ask, AskBudget: time.Minute}, "a")
	for i := range 10 {
		pk, err := p.post("/v1/chat/completions", numbered(i))
		if err != nil {
			t.Fatal(err)
		}
		pk.End(picker.Served)
	}
	if rec := p.last(); asked != 10 || !strings.Contains(rec.TokenNote, "context too long") {
		t.Errorf("asked %d times, %q", asked, rec.TokenNote)
	}
}

// TestMissingRender: an engine without /render is left alone with what takes that,
// and goes on telling what its /tokenize knows.
func TestMissingRender(t *testing.T) {
	asked := map[string]int{}
	ask := func(_ context.Context, _ epp.Endpoint, path string, _ []byte) ([]uint32, error) {
		asked[path]++
		if path != "/tokenize" {
			return nil, epp.Errorf(epp.NotFound, "no_tokens", "no such path")
		}
		return count(1, 32), nil
	}
	p := newPool(t, decision.Defaults(), picker.Options{AskEngine: ask, AskBudget: time.Minute}, "a")
	p.members["a"].Models([]epp.Model{{Name: "tiny"}})
	for i := range 10 {
		for _, documents := range []string{`,"documents":[{"text":"a"}]`, ""} {
			pk, err := p.post("/v1/chat/completions", strings.TrimSuffix(numbered(i), "}")+documents+"}")
			if err != nil {
				t.Fatal(err)
			}
			pk.End(picker.ClientGone)
		}
		if rec := p.last(); rec.TokenSource != epp.EngineTokens {
			t.Fatalf("after %d times without /render: %v, %q", i+1, rec.TokenSource, rec.TokenNote)
		}
	}
	if render := asked["/v1/chat/completions/render"]; render != 3 || asked["/tokenize"] != 10 {
		t.Errorf("/render was asked %d times, want 3; /tokenize %d, want 10", render, asked["/tokenize"])
	}
}

// TestQuestionsGoWhereTheModelIs: of three endpoints with models of their own, those
// are asked that list the request's; one whose answers are broken is avoided as long
// as another has the model, and holds up nobody else's questions.
func TestQuestionsGoWhereTheModelIs(t *testing.T) {
	var asked []string
	broken := ""
	ask := func(_ context.Context, at epp.Endpoint, _ string, _ []byte) ([]uint32, error) {
		asked = append(asked, at.Name)
		if strings.Contains(broken, at.Name) {
			return nil, epp.Errorf(epp.NotFound, "no_tokens", "no such path")
		}
		return count(1, 32), nil
	}
	p := newPool(t, decision.Defaults(), picker.Options{AskEngine: ask, AskBudget: time.Minute}, "a", "b", "c")
	p.members["a"].Models([]epp.Model{{Name: "tiny"}})
	p.members["b"].Models([]epp.Model{{Name: "tiny"}})
	p.members["c"].Models([]epp.Model{{Name: "other"}})
	i := 0
	step := func(model string, times int, want string, source epp.TokenSource) {
		t.Helper()
		asked = nil
		for range times {
			i++
			pk, err := p.post("/v1/chat/completions", strings.Replace(numbered(i), "tiny", model, 1))
			if err != nil {
				t.Fatal(err)
			}
			pk.End(picker.ClientGone)
		}
		if got := strings.Join(asked, ""); got != want || p.last().TokenSource != source {
			t.Errorf("%s: asked %q, the last one's tokens from %v, %q; want %q, %v", model, got, p.last().TokenSource, p.last().TokenNote, want, source)
		}
	}
	step("tiny", 4, "baba", epp.EngineTokens)
	step("other", 2, "cc", epp.EngineTokens)
	broken = "a"
	step("tiny", 6, "abbbbb", epp.EngineTokens)
	broken = "ab"
	step("tiny", 6, "babab", epp.NoTokens) // three failures each, the first of a's above
	step("other", 1, "c", epp.EngineTokens)
	p.pass(5 * time.Second)
	broken = "a"
	step("tiny", 3, "abb", epp.EngineTokens)
}

// TestUnknownModelIsNoFault: an engine whose list is not known may not have the
// model. That it says so is no reason to leave it alone.
func TestUnknownModelIsNoFault(t *testing.T) {
	asked := 0
	ask := func(context.Context, epp.Endpoint, string, []byte) ([]uint32, error) {
		asked++
		return nil, epp.Errorf(epp.NotFound, "no_tokens", "no such model")
	}
	p := newPool(t, decision.Defaults(), picker.Options{AskEngine: ask, AskBudget: time.Minute}, "a")
	for i := range 10 {
		pk, err := p.post("/v1/chat/completions", numbered(i))
		if err != nil {
			t.Fatal(err)
		}
		pk.End(picker.ClientGone)
	}
	if asked != 10 {
		t.Errorf("asked %d times, want 10", asked)
	}
}

// TestApproximate: without tokens and events a conversation follows its own first
// turn, once that has shown its first token, by the bytes alone; and for a while.
func TestApproximate(t *testing.T) {
	long := strings.Repeat("a question of some length. ", 40)
	turn := func(n int) string {
		body := `{"model":"m","messages":[`
		for i := range n {
			body += fmt.Sprintf(`{"role":"user","content":"%d %s"},`, i, long)
		}
		return strings.TrimSuffix(body, ",") + `]}`
	}
	for name, opt := range map[string]picker.Options{
		"by bytes":  {Learn: true},
		"by tokens": {Learn: true, Tokenizer: byteTokenizer{}},
	} {
		t.Run(name, func(t *testing.T) {
			p := newPool(t, decision.Defaults(), opt, "a", "b", "c")
			first, err := p.post("/v1/chat/completions", turn(1))
			if err != nil {
				t.Fatal(err)
			}
			home := first.Endpoint
			ratio := func(turns int) float64 {
				pk, err := p.post("/v1/chat/completions", turn(turns))
				if err != nil {
					t.Fatal(err)
				}
				rec := p.last()
				at := 0
				for i := range rec.Candidates {
					if rec.Candidates[i].Name == home.Name {
						at = i
					}
				}
				if r := rec.MatchRatio(at); r > 0 && pk.Endpoint.Name != home.Name {
					t.Errorf("went to %s for %v at %s", pk.Endpoint.Name, r, home.Name)
				}
				pk.End(picker.ClientGone)
				return rec.MatchRatio(at)
			}
			if r := ratio(1); r != 0 {
				t.Errorf("match %v before the first token: the herd would follow a pick that may never run", r)
			}
			first.ResponseHeader(200, "text/event-stream", "")
			first.ResponseBody([]byte("data: {\"choices\":[{\"delta\":{\"content\":\"x\"}}]}\n\n"))
			if r := ratio(1); r != 1 {
				t.Errorf("match %v after the first token", r)
			}
			if r := ratio(2); r < 0.45 || r > 0.5 {
				t.Errorf("match %v in turn 2", r)
			}
			first.End(picker.Served)
			if name == "by bytes" {
				if rec := p.last(); rec.TokenSource != epp.ApproximateTokens || !strings.HasPrefix(rec.TokenNote, "approximate") || rec.PromptTokens < 500 {
					t.Errorf("%v, %q, %d tokens", rec.TokenSource, rec.TokenNote, rec.PromptTokens)
				}
			}
			p.pass(picker.DefaultLearnTTL)
			if r := ratio(1); r != 0 {
				t.Errorf("match %v after the TTL", r)
			}
			if l := p.fleet.Ledger(); l.Requests != 0 || l.Tokens != 0 {
				t.Errorf("ledger %+v", l)
			}
		})
	}
}

// TestApproximateLearnsNoFailure: an answer of 500 teaches nothing, and an endpoint
// that takes over a slot inherits nothing.
func TestApproximateLearnsNoFailure(t *testing.T) {
	p := newPool(t, decision.Defaults(), picker.Options{Learn: true, Tokenizer: byteTokenizer{}}, "a")
	serve := func(status int) float64 {
		pk, err := p.post("/v1/chat/completions", askedChat)
		if err != nil {
			t.Fatal(err)
		}
		r := p.last().MatchRatio(0)
		pk.ResponseHeader(status, "application/json", "")
		pk.ResponseBody([]byte(`{}`))
		pk.End(picker.Served)
		return r
	}
	serve(500)
	if r := serve(200); r != 0 {
		t.Errorf("match %v after a failure", r)
	}
	if r := serve(200); r != 1 {
		t.Errorf("match %v after an answer", r)
	}
	p.members["a"].Leave()
	p.fleet.Join(epp.Endpoint{Name: "a2", Address: "10.0.0.9:8000"})
	if r := serve(200); r != 0 || p.last().Candidates[0].Name != "a2" {
		t.Errorf("match %v at an endpoint that is new", r)
	}
}
