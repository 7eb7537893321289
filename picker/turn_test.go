package picker_test

import (
	"context"
	"fmt"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"epp.internal/epp"
	"epp.internal/epp/decision"
	"epp.internal/epp/epptest/demotok"
	"epp.internal/epp/openai"
	"epp.internal/epp/picker"
	"epp.internal/epp/tokenize"
)

// slowTokenizer may take a while for each text, and shows how many run at once.
type slowTokenizer struct {
	during     func() // each text
	now, most  atomic.Int32
	texts      atomic.Int32
	afterFirst func()
}

func (s *slowTokenizer) work() {
	if n := s.now.Add(1); n > s.most.Load() {
		s.most.Store(n)
	}
	if s.during != nil {
		s.during()
	}
	s.now.Add(-1)
	if s.texts.Add(1) == 1 && s.afterFirst != nil {
		s.afterFirst()
	}
}

func (s *slowTokenizer) Text(_ context.Context, _ string, dst []uint32) ([]uint32, error) {
	s.work()
	return append(dst, count(1, 32)...), nil
}

func (s *slowTokenizer) Chat(_ context.Context, _ *openai.Body, dst []uint32) ([]uint32, error) {
	s.work()
	return append(dst, count(1, 32)...), nil
}

func long(form string, bytes int) (path, body string) {
	text := strings.Repeat("a", bytes)
	if form == "chat" {
		return "/v1/chat/completions", fmt.Sprintf(`{"model":"m","messages":[{"role":"user","content":%q}]}`, text)
	}
	return "/v1/completions", fmt.Sprintf(`{"model":"m","prompt":[%q,%q]}`, text[:bytes/2], text[:bytes/2])
}

// TestPromptBytes: a text over the bound is not tokenized, neither here nor by an
// engine; its bytes tell it apart. Pictures are no text.
func TestPromptBytes(t *testing.T) {
	var s slowTokenizer
	ask := func(context.Context, epp.Endpoint, string, []byte) ([]uint32, error) {
		t.Error("an engine is asked")
		return nil, nil
	}
	for _, form := range []string{"chat", "completion"} {
		for name, tok := range map[string]picker.Tokenizer{"local": &s, "asked": nil} {
			p := newPool(t, decision.Defaults(), picker.Options{Tokenizer: tok, AskEngine: ask, MaxPromptBytes: 1000, Learn: true}, "a")
			pk, err := p.post(long(form, 1002))
			if err != nil {
				t.Fatal(err)
			}
			pk.End(picker.ClientGone)
			if rec := p.last(); rec.TokenSource != epp.ApproximateTokens || !strings.Contains(rec.TokenNote, "over the bound of 1000 (limits.promptBytes)") {
				t.Errorf("%s, %s: %v, %q", form, name, rec.TokenSource, rec.TokenNote)
			}
		}
	}
	if n := s.texts.Load(); n != 0 {
		t.Errorf("%d texts were tokenized", n)
	}
	p := newPool(t, decision.Defaults(), picker.Options{Tokenizer: byteTokenizer{}, MaxPromptBytes: 1000}, "a")
	pk, err := p.post("/v1/chat/completions", fmt.Sprintf(`{"model":"m","messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"data:image/png;base64,%s"}},{"type":"text","text":"what is it?"}]}]}`, strings.Repeat("A", 5000)))
	if err != nil {
		t.Fatal(err)
	}
	pk.End(picker.ClientGone)
	if rec := p.last(); rec.TokenSource != epp.LocalTokens {
		t.Errorf("a picture: %v, %q", rec.TokenSource, rec.TokenNote)
	}
}

// TestLongPromptsTakeTurns: half of the cores tokenize long texts at once, whatever
// comes; one that waits too long goes without, and short ones don't wait.
func TestLongPromptsTakeTurns(t *testing.T) {
	for _, form := range []string{"chat", "completion"} {
		synctest.Test(t, func(t *testing.T) {
			s := &slowTokenizer{during: func() { time.Sleep(1500 * time.Millisecond) }}
			p := newPool(t, decision.Defaults(), picker.Options{Tokenizer: s}, "a")
			most := max(1, runtime.GOMAXPROCS(0)/2)
			pick := func(ctx context.Context, bytes int) {
				path, body := long(form, bytes)
				pk, err := p.Pick(ctx, picker.Incoming{ID: "1", Method: "POST", Path: path, Body: []byte(body)})
				if err != nil {
					t.Error(err)
					return
				}
				pk.End(picker.ClientGone)
			}
			began := time.Now()
			for range 4 * most {
				go pick(t.Context(), 300<<10)
			}
			synctest.Wait()
			gone, leave := context.WithCancel(t.Context())
			time.AfterFunc(time.Millisecond, leave)
			pick(gone, 300<<10)
			if rec := p.last(); time.Since(began) != time.Millisecond || !strings.Contains(rec.TokenNote, "the client left") {
				t.Errorf("%s: after %v: %q", form, time.Since(began), rec.TokenNote)
			}
			pick(t.Context(), 2)
			if n := s.most.Load(); int(n) > most+1 {
				t.Errorf("%s: %d at once, %d may be", form, n, most)
			}
			time.Sleep(10 * time.Second)
			synctest.Wait()
			late := 0
			for _, rec := range p.decided {
				if strings.Contains(rec.TokenNote, "other long prompts took longer than 2s") {
					late++
				}
			}
			if late == 0 || late >= 4*most {
				t.Errorf("%s: %d of %d went without", form, late, 4*most)
			}
		})
	}
}

// TestClientLeavesPrompts: when the client has left, no further prompt is tokenized.
func TestClientLeavesPrompts(t *testing.T) {
	ctx, leave := context.WithCancel(t.Context())
	s := &slowTokenizer{afterFirst: leave}
	p := newPool(t, decision.Defaults(), picker.Options{Tokenizer: s}, "a")
	pk, err := p.Pick(ctx, picker.Incoming{ID: "1", Method: "POST", Path: "/v1/completions", Body: []byte(`{"model":"m","prompt":["a","b","c"]}`)})
	if err != nil {
		t.Fatal(err)
	}
	pk.End(picker.ClientGone)
	if rec := p.last(); s.texts.Load() != 1 || !strings.HasPrefix(rec.TokenNote, "2 of 3 prompts are not tokenized: the client left") {
		t.Errorf("%d texts were tokenized, %q", s.texts.Load(), rec.TokenNote)
	}
}

// TestClientLeavesGiantWord: a word of a megabyte, which takes more than a second, is
// not gone on with when the client leaves.
func TestClientLeavesGiantWord(t *testing.T) {
	vocabulary, config := demotok.Files()
	tok, err := tokenize.New(vocabulary, config)
	if err != nil {
		t.Fatal(err)
	}
	for _, form := range []string{"chat", "completion"} {
		ctx, leave := context.WithCancel(t.Context())
		p := newPool(t, decision.Defaults(), picker.Options{Tokenizer: leaving{tok, leave}}, "a")
		path, body := long(form, 2<<20)
		pk, err := p.Pick(ctx, picker.Incoming{ID: "1", Method: "POST", Path: path, Body: []byte(body)})
		if err != nil {
			t.Fatal(err)
		}
		pk.End(picker.ClientGone)
		if rec := p.last(); rec.TokenSource != epp.NoTokens || !strings.Contains(rec.TokenNote, "the client left") {
			t.Errorf("%s: %v, %q", form, rec.TokenSource, rec.TokenNote)
		}
	}
}

// leaving is a tokenizer whose client leaves when it has begun.
type leaving struct {
	*tokenize.Tokenizer
	leave func()
}

func (l leaving) Chat(ctx context.Context, b *openai.Body, dst []uint32) ([]uint32, error) {
	l.leave()
	return l.Tokenizer.Chat(ctx, b, dst)
}

func (l leaving) Text(ctx context.Context, s string, dst []uint32) ([]uint32, error) {
	l.leave()
	return l.Tokenizer.Text(ctx, s, dst)
}
