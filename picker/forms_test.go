package picker_test

import (
	"context"
	"fmt"
	"math"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"epp.internal/epp"
	"epp.internal/epp/decision"
	"epp.internal/epp/epptest"
	"epp.internal/epp/openai"
	"epp.internal/epp/picker"
)

// partsTokenizer is a byteTokenizer whose template goes through the parts of a
// content one by one, and so puts nothing between them.
type partsTokenizer struct{ byteTokenizer }

func (partsTokenizer) Chat(_ context.Context, b *openai.Body, dst []uint32) ([]uint32, error) {
	if len(b.Media()) > 0 {
		return dst, fmt.Errorf("media")
	}
	for _, m := range b.Root.Get("messages").Items() {
		dst = append(dst, 256)
		dst = append(dst, byteTokens(m.Get("role").String()+"\n"+m.Get("content").String())...)
		for _, part := range m.Get("content").Items() {
			dst = append(dst, byteTokens(part.Get("text").String())...)
		}
		dst = append(dst, 257, '\n')
	}
	return append(dst, 256), nil
}

// TestFormsOfAChat: the same conversation in the form of OpenAI's chat, of
// responses and of Anthropic is the same prompt, and so matches the same blocks.
// All of the body goes on as it came.
func TestFormsOfAChat(t *testing.T) {
	system, one, two, three := strings.Repeat("s", 40), strings.Repeat("1", 40), strings.Repeat("2", 40), strings.Repeat("3", 40)
	chat := fmt.Sprintf(`{"model":"m","messages":[{"role":"system","content":%q},{"role":"user","content":%q},{"role":"assistant","content":%q},{"role":"user","content":%q}]}`, system, one, two, three)
	tokens, err := epptest.ByteTokenizer{}.ChatTokens([]byte(chat))
	if err != nil {
		t.Fatal(err)
	}
	p := newPool(t, decision.Defaults(), picker.Options{Tokenizer: byteTokenizer{}}, "a")
	p.members["a"].Apply(start, stored(tokens, 16))
	for path, body := range map[string]string{
		"/v1/chat/completions": chat,
		"/v1/responses": fmt.Sprintf(`{"model":"m","instructions":%q,"temperature":1.0,"input":[{"role":"user","content":%q},
			{"type":"message","role":"assistant","status":"completed","content":[{"type":"output_text","text":%q,"annotations":[]}]},{"role":"user","content":[{"type":"input_text","text":%q}]}]}`, system, one, two, three),
		"/v1/messages": fmt.Sprintf(`{"model":"m","max_tokens":7,"system":[{"type":"text","text":"x-anthropic-billing-header: 7"},{"type":"text","text":%q,"cache_control":{"type":"ephemeral"}}],
			"messages":[{"role":"user","content":%q},{"role":"assistant","content":[{"type":"text","text":%q}]},{"role":"user","content":%q}]}`, system, one, two, three),
	} {
		pk, err := p.post(path, body)
		if err != nil {
			t.Fatalf("%s: %v", path, err)
		}
		rec := p.last()
		if rec.MatchRatio(0) != 1 || rec.PromptTokens != len(tokens) || rec.TokenSource != epp.LocalTokens || string(pk.Body) != body {
			t.Errorf("%s: match %v, %d tokens of %d from %v, %q", path, rec.MatchRatio(0), rec.PromptTokens, len(tokens), rec.TokenSource, rec.TokenNote)
		}
		pk.End(picker.Served)
	}
}

// TestRerank: each document is a prompt of its own, behind the query.
func TestRerank(t *testing.T) {
	p := newPool(t, decision.Defaults(), picker.Options{Tokenizer: byteTokenizer{}}, "a")
	query := strings.Repeat("q", 32)
	p.members["a"].Apply(start, stored(byteTokens(query), 16))
	pk, err := p.post("/v1/rerank", fmt.Sprintf(`{"model":"m","query":%q,"documents":[%q,{"text":%q}]}`, query, strings.Repeat("d", 16), strings.Repeat("e", 80)))
	if err != nil {
		t.Fatal(err)
	}
	pk.End(picker.Served)
	if rec := p.last(); rec.BlockedTokens != 48+112 || rec.MatchRatio(0) != 64./160 {
		t.Errorf("match %v of %d", rec.MatchRatio(0), rec.BlockedTokens)
	}
}

// TestUnreadForms: what takes no room in a cache of blocks is routed by the rest.
func TestUnreadForms(t *testing.T) {
	p := newPool(t, decision.Defaults(), picker.Options{Tokenizer: byteTokenizer{}}, "a")
	for path, body := range map[string]string{"/tokenize": `{"prompt":"x"}`, "/detokenize": `{"model":"m","tokens":[1]}`} {
		pk, err := p.post(path, body)
		if err != nil {
			t.Fatal(err)
		}
		pk.End(picker.Served)
		if rec := p.last(); rec.PromptTokens != 0 || !strings.Contains(rec.TokenNote, "request is not tokenized") || string(pk.Body) != body {
			t.Errorf("%s: %d tokens, %q, sent %s", path, rec.PromptTokens, rec.TokenNote, pk.Body)
		}
	}
}

// TestMedia: the tokens before the first picture match an engine's blocks. From
// there on nothing matches what engines tell, and the same pictures match what our
// own picks have taught. Nothing is fetched: the address leads nowhere.
func TestMedia(t *testing.T) {
	system, text := strings.Repeat("s", 100), strings.Repeat("t", 60)
	body := func(urls ...string) string {
		parts := fmt.Sprintf(`{"type":"text","text":%q}`, text)
		for _, u := range urls {
			parts += fmt.Sprintf(`,{"type":"image_url","image_url":{"url":%q}}`, u)
		}
		return fmt.Sprintf(`{"model":"m","messages":[{"role":"system","content":%q},{"role":"user","content":[%s,{"type":"text","text":%q}]}]}`, system, parts, strings.Repeat("behind", 20))
	}
	head := len("\x00system\n") + len(system) + len("\x00\n\x00user\n") // where the user's content begins
	for _, c := range []struct {
		name string
		tok  interface {
			picker.Tokenizer
		}
		exact int // tokens before the first picture
	}{
		{"a template that joins parts gets pictures in front", byteTokenizer{}, head},
		{"a template that takes parts gets them in their place", partsTokenizer{}, head + len(text)},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := newPool(t, decision.Defaults(), picker.Options{Tokenizer: c.tok, Learn: true}, "a", "b")
			ask := func(b string) (*decision.Record, *picker.Pick) {
				pk, err := p.post("/v1/chat/completions", b)
				if err != nil {
					t.Fatal(err)
				}
				if string(pk.Body) != b {
					t.Errorf("sent %s", pk.Body)
				}
				return p.last(), pk
			}
			rec, pk := ask(body("http://nowhere.invalid/1.png"))
			if want := fmt.Sprintf("1 media by reference: exact up to token %d,", c.exact); !strings.HasPrefix(rec.TokenNote, want) {
				t.Errorf("note %q, want %q…", rec.TokenNote, want)
			}
			tokens := append([]uint32(nil), pk.Request.Tokens...)
			pk.End(picker.ClientGone)
			// An engine that holds the same tokens as text, whole, matches up to the picture.
			p.members["a"].Apply(start, stored(tokens, 16))
			rec, pk = ask(body("http://nowhere.invalid/1.png"))
			if got := int(rec.Candidates[0].Match.Blocks); got != c.exact/16 {
				t.Errorf("%d blocks match an engine's, want %d", got, c.exact/16)
			}
			home := pk.Endpoint.Name
			pk.ResponseHeader(200, "application/json", "")
			pk.ResponseBody([]byte(`{"choices":[]}`))
			pk.End(picker.Served)
			for _, m := range []struct {
				urls []string
				full bool
			}{
				{[]string{"http://nowhere.invalid/1.png"}, true},
				{[]string{"http://nowhere.invalid/2.png"}, false},
				{[]string{"http://nowhere.invalid/2.png", "http://nowhere.invalid/1.png"}, false},
			} {
				rec, pk = ask(body(m.urls...))
				at := 0
				if home == "b" {
					at = 1
				}
				if got := rec.MatchRatio(at); (got == 1) != m.full || !m.full && int(rec.Candidates[0].Match.Blocks) > c.exact/16 {
					t.Errorf("%v: match %v at %s", m.urls, got, home)
				}
				pk.End(picker.ClientGone)
			}
		})
	}
}

// TestPromptsOneByOne: a batch's match is that of its prompts asked one by one,
// matched tokens of all over blocked tokens of all, at every endpoint.
func TestPromptsOneByOne(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := newPool(t, decision.Defaults(), picker.Options{Tokenizer: byteTokenizer{}}, "a", "b")
		texts := rapid.SliceOfN(rapid.StringMatching(`(x{16}|y{16}|z{8}){0,6}`), 1, 5)
		for i, name := range []string{"a", "b"} {
			for k, text := range texts.Draw(t, name) {
				e := stored(byteTokens(text), 16)
				for j := range e[0].Hashes {
					e[0].Hashes[j] = uint64(i)<<40 | uint64(k)<<20 | uint64(j)
				}
				if len(e[0].Hashes) > 0 {
					p.members[name].Apply(start, e)
				}
			}
		}
		batch := texts.Draw(t, "batch")
		blocked, matched := 0, [2]int{}
		for _, text := range batch {
			one, err := p.post("/v1/embeddings", fmt.Sprintf(`{"model":"m","input":%q}`, text))
			if err != nil {
				t.Fatalf("%v", err)
			}
			one.End(picker.ClientGone)
			rec := p.last()
			blocked += rec.BlockedTokens
			for i := range matched {
				matched[i] += rec.Candidates[i].Match.Tokens()
			}
		}
		quoted := make([]string, len(batch))
		for i, text := range batch {
			quoted[i] = fmt.Sprintf("%q", text)
		}
		all, err := p.post("/v1/embeddings", fmt.Sprintf(`{"model":"m","input":[%s]}`, strings.Join(quoted, ",")))
		if err != nil {
			t.Fatalf("%v", err)
		}
		all.End(picker.ClientGone)
		rec := p.last()
		for i := range matched {
			if rec.BlockedTokens != blocked || rec.Candidates[i].Match.Tokens() != matched[i] {
				t.Fatalf("%d of %d, one by one %d of %d", rec.Candidates[i].Match.Tokens(), rec.BlockedTokens, matched[i], blocked)
			}
		}
		if l := p.fleet.Ledger(); l.Requests != 0 || l.Tokens != 0 {
			t.Fatalf("ledger %+v", l)
		}
	})
}

// TestTiersCount: of two endpoints that hold the prompt, the one that holds it on
// its GPU is better than the one that holds it in its host's memory. Both are
// expected to have as many tokens cached.
func TestTiersCount(t *testing.T) {
	p := newPool(t, decision.Defaults(), picker.Options{Tokenizer: byteTokenizer{}}, "a", "b")
	prompt := strings.Repeat("hello ", 16) // 6 blocks
	gpu, cpu := stored(byteTokens(prompt), 16), stored(byteTokens(prompt), 16)
	cpu[0].Tier = "CPU"
	p.members["a"].Apply(start, cpu)
	p.members["b"].Apply(start, gpu)
	in := picker.Incoming{ID: picker.NewID(), Method: "POST", Path: "/v1/completions", Body: fmt.Appendf(nil, `{"model":"m","prompt":%q}`, prompt)}
	if _, err := p.Pick(context.Background(), in); err != nil {
		t.Fatal(err)
	}
	rec := p.decided[0]
	if a, b := rec.Factor(0, decision.CacheScorer), rec.Factor(1, decision.CacheScorer); math.Abs(a-0.8) > 1e-6 || b != 1 || rec.Chosen != 1 {
		t.Errorf("cache factors %v and %v, chosen %d; want 0.8, 1 and the second", a, b, rec.Chosen)
	}
	if a, b := rec.Candidates[0].CachedTokens(96), rec.Candidates[1].CachedTokens(96); a != b || a != 80 {
		t.Errorf("predicted %d and %d cached tokens, want 80", a, b)
	}
}
