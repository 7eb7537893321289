package picker_test

import (
	"fmt"
	"strings"
	"testing"

	"epp.internal/epp"
	"epp.internal/epp/audit"
	"epp.internal/epp/decision"
	"epp.internal/epp/picker"
)

// TestAuditedPrompts: an endpoint's count of the prompt is compared with ours only
// where ours is of the whole prompt. A picture's tokens are the engine's alone, and
// so are those of prompts that are left out of the match.
func TestAuditedPrompts(t *testing.T) {
	prompts := func(n int) string {
		return `{"model":"m","prompt":[` + strings.TrimSuffix(strings.Repeat(`"a",`, n), ",") + `]}`
	}
	for _, c := range []struct {
		path, body string
		audited    bool
	}{
		{"/v1/chat/completions", `{"model":"m","messages":[{"role":"user","content":"a"}]}`, true},
		{"/v1/completions", prompts(2), true},
		{"/v1/completions", prompts(256), true},
		{"/v1/completions", prompts(257), false},
		{"/v1/completions", `{"model":"m","prompt":[1,2,3]}`, true},
		{"/v1/embeddings", `{"model":"m","input":["a",{"image":"x"}]}`, false},
		{"/v1/rerank", `{"model":"m","query":"a","documents":["b"]}`, false},
		{"/v1/chat/completions", `{"model":"m","messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"http://nowhere.invalid/1.png"}}]}]}`, false},
	} {
		p := newPool(t, decision.Defaults(), picker.Options{Tokenizer: byteTokenizer{}, Learn: true}, "a")
		pk, err := p.post(c.path, c.body)
		if err != nil {
			t.Fatal(err)
		}
		if len(pk.Request.Tokens) == 0 {
			t.Errorf("%.60s has no tokens: %q", c.body, p.last().TokenNote)
		}
		pk.ResponseHeader(200, "application/json", "")
		pk.ResponseBody(fmt.Appendf(nil, `{"choices":[],"usage":{"prompt_tokens":%d,"prompt_tokens_details":{"cached_tokens":0}}}`, len(pk.Request.Tokens)+1))
		pk.End(picker.Served)
		want := uint64(0)
		if c.audited {
			want = 1
		}
		total := p.fleet.Snapshot()[0].Truth.Total()
		if n := total[audit.Template]; n != want {
			t.Errorf("%.60s: %d answers are held against the template, want %d", c.body, n, want)
		}
	}
}

// TestRepeatedStores: blocks that an engine tells of twice and takes back once count
// as held. Its answers tell otherwise, the endpoint is doubted, and its claims draw
// no request any longer.
func TestRepeatedStores(t *testing.T) {
	p := newPool(t, decision.Defaults(), picker.Options{Tokenizer: byteTokenizer{}}, "a", "b")
	text := strings.Repeat("said before ", 40)
	body := fmt.Sprintf(`{"model":"m","prompt":%q}`, text)
	blocks := stored(byteTokens(text), 16)
	p.members["a"].Apply(start, blocks)
	p.members["a"].Apply(start, blocks)
	p.members["a"].Apply(start, []epp.BlockEvent{{Kind: epp.BlockRemoved, Hashes: blocks[0].Hashes, Tier: "GPU", At: start}})
	p.members["b"].Incomplete(start, false)
	if n := p.Removed(p.members["a"].Endpoint(), start); n != 0 {
		t.Errorf("%d decisions count as stale", n)
	}
	for i := 0; ; i++ {
		pk, err := p.post("/v1/completions", body)
		if err != nil {
			t.Fatal(err)
		}
		rec := p.last()
		if rec.MatchRatio(0) != 1 {
			t.Fatalf("request %d: a's claim is %v: the case is not there", i, rec.MatchRatio(0))
		}
		pk.ResponseHeader(200, "application/json", "")
		pk.ResponseBody(fmt.Appendf(nil, `{"choices":[],"usage":{"prompt_tokens":%d,"prompt_tokens_details":{"cached_tokens":0}}}`, len(pk.Request.Tokens)))
		pk.End(picker.Served)
		if pk.Endpoint.Name == "b" {
			if state := p.fleet.Snapshot()[0]; i < 8 || state.Signals.Doubt == 0 || state.Truth.Alarm() != audit.Unconfirmed {
				t.Errorf("request %d went to b: doubt %d, alarm %v", i, state.Signals.Doubt, state.Truth.Alarm())
			}
			break
		}
		if i > 20 {
			t.Fatal("a is believed for ever")
		}
	}
}

// TestServedOutsideThePool: a gateway that splits a route over two pools asks one
// pool's picker and may take the other pool. What comes of that is of no endpoint
// of ours: its errors cost no health, its cache confirms and refutes nothing, its
// prompt teaches nothing, and nothing is in flight.
func TestServedOutsideThePool(t *testing.T) {
	text := strings.Repeat("said before ", 40)
	body := fmt.Sprintf(`{"model":"m","prompt":%q}`, text)
	for _, heard := range []bool{false, true} {
		p := newPool(t, decision.Defaults(), picker.Options{Tokenizer: byteTokenizer{}, Learn: true}, "a")
		if heard {
			p.members["a"].Apply(start, stored(byteTokens(text), 16))
			p.members["a"].Incomplete(start, false)
		}
		for _, status := range []int{200, 500, 500, 500, 500} {
			pk, err := p.post("/v1/completions", body)
			if err != nil {
				t.Fatal(err)
			}
			pk.Served("10.9.9.9:8000")
			if n := p.fleet.Ledger().Requests; n != 0 {
				t.Errorf("%d requests in flight", n)
			}
			pk.ResponseHeader(status, "application/json", "")
			pk.ResponseBody(fmt.Appendf(nil, `{"choices":[],"usage":{"prompt_tokens":%d,"prompt_tokens_details":{"cached_tokens":0}}}`, len(pk.Request.Tokens)))
			pk.End(picker.Served)
		}
		state := p.fleet.Snapshot()[0]
		if total := state.Truth.Total(); state.Signals.Health != 1 || state.Signals.Doubt != 0 || total != [len(total)]uint64{} {
			t.Errorf("health %v, doubt %d, verdicts %v: all of them of another pool's endpoint", state.Signals.Health, state.Signals.Doubt, total)
		}
		if n := p.OwnBlocks(); n != 0 {
			t.Errorf("%d blocks were learned of an endpoint that did not compute them", n)
		}
	}
}
