package picker_test

import (
	"bytes"
	"compress/flate"
	"compress/gzip"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"regexp"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/klauspost/compress/zstd"

	"epp.internal/epp"
	"epp.internal/epp/decision"
	"epp.internal/epp/epptest"
	"epp.internal/epp/fleet"
	"epp.internal/epp/kvevents"
	"epp.internal/epp/openai"
	"epp.internal/epp/picker"
)

// byteTokenizer takes each byte as a token and frames messages as ChatML does,
// as epptest's does. It refuses media.
type byteTokenizer struct{}

func (byteTokenizer) Chat(_ context.Context, b *openai.Body, dst []uint32) ([]uint32, error) {
	if len(b.Media()) > 0 {
		return nil, fmt.Errorf("media")
	}
	tokens, err := epptest.ByteTokenizer{}.ChatTokens(b.WithModel("m"))
	return append(dst, tokens...), err
}

func (byteTokenizer) Text(_ context.Context, s string, dst []uint32) ([]uint32, error) {
	return append(dst, byteTokens(s)...), nil
}

// byteTokens are a text's tokens by a byteTokenizer.
func byteTokens(s string) []uint32 { return epptest.ByteTokenizer{}.CompletionTokens(s) }

func (p *pool) post(path, body string, header ...string) (*picker.Pick, error) {
	in := picker.Incoming{ID: picker.NewID(), Method: "POST", Path: path, Body: []byte(body)}
	if len(header) > 0 {
		in.ContentEncoding = header[0]
	}
	return p.Pick(context.Background(), in)
}

// TestCaseG1: prompts of every legal form go on unchanged, token IDs match what
// events stored, and each string of a list is matched on its own.
func TestCaseG1(t *testing.T) {
	hello, world := strings.Repeat("hello ", 16), strings.Repeat("world ", 8) // 96 and 48 tokens: 6 and 3 blocks
	ids := func(s string) string { return list(byteTokens(s)) }
	for _, form := range []struct{ path, key string }{{"/v1/completions", "prompt"}, {"/v1/embeddings", "input"}} {
		p := newPool(t, decision.Defaults(), picker.Options{Tokenizer: byteTokenizer{}}, "a", "b")
		p.members["a"].Apply(start, stored(byteTokens(hello), 16))
		p.members["b"].Apply(start, stored(byteTokens(world), 16))
		for _, c := range []struct {
			value   string
			a, b    float64 // match ratios
			blocked int
			source  epp.TokenSource
		}{
			{fmt.Sprintf("%q", hello), 1, 0, 96, epp.LocalTokens},
			{fmt.Sprintf("[%q,%q]", hello, world), 6. / 9, 3. / 9, 144, epp.LocalTokens},
			{fmt.Sprintf("[%q,%q]", world, hello), 6. / 9, 3. / 9, 144, epp.LocalTokens}, // joined, a would match nothing
			{ids(hello), 1, 0, 96, epp.SentTokens},
			{fmt.Sprintf("[%s,%s]", ids(hello), ids(world)), 6. / 9, 3. / 9, 144, epp.SentTokens},
			{"[[1,2],[3]]", 0, 0, 0, epp.SentTokens},
			{`["a","b"]`, 0, 0, 0, epp.LocalTokens},
		} {
			in := picker.Incoming{ID: "1", Method: "POST", Path: form.path, Body: fmt.Appendf(nil, `{"x": 1.0, "model":"m",%q : %s}`, form.key, c.value)}
			pk, err := p.Pick(context.Background(), in)
			if err != nil {
				t.Fatalf("%s %s: %v", form.path, c.value, err)
			}
			rec := p.last()
			if !bytes.Equal(pk.Body, in.Body) || &pk.Body[0] != &in.Body[0] {
				t.Errorf("%s %s: sent on as %s", form.path, c.value, pk.Body)
			}
			if a, b := rec.MatchRatio(0), rec.MatchRatio(1); a != c.a || b != c.b || rec.BlockedTokens != c.blocked || rec.TokenSource != c.source {
				t.Errorf("%s %.60s…: match %v and %v of %d tokens from %v, want %+v", form.path, c.value, a, b, rec.BlockedTokens, rec.TokenSource, c)
			}
			pk.End(picker.Served)
		}
		if _, err := p.post(form.path, fmt.Sprintf(`{"model":"m",%q:[]}`, form.key)); epp.AsError(err) == nil || epp.AsError(err).Kind != epp.BadRequest {
			t.Errorf("%s []: %v, want 400", form.path, err)
		}
	}
	p := newPool(t, decision.Defaults(), picker.Options{Tokenizer: byteTokenizer{}}, "a")
	p.members["a"].Apply(start, stored(byteTokens(hello), 16))
	body := fmt.Sprintf(`{"model":"m","input":[{"type":"text","text":%q},{"type":"image_url","image_url":{"url":"http://x/y.png"}}]}`, hello)
	pk, err := p.post("/v1/embeddings", body)
	if err != nil {
		t.Fatal(err)
	}
	if rec := p.last(); rec.MatchRatio(0) != 1 || string(pk.Body) != body || !strings.Contains(rec.TokenNote, "1 of 2 prompts") {
		t.Errorf("content parts: match %v, note %q, sent %s", rec.MatchRatio(0), rec.TokenNote, pk.Body)
	}
	pk.End(picker.Served)
}

func zip(t testing.TB, encoding string, body []byte) []byte {
	var out bytes.Buffer
	var w io.WriteCloser
	switch encoding {
	case "gzip":
		w = gzip.NewWriter(&out)
	case "zstd":
		var err error
		if w, err = zstd.NewWriter(&out, zstd.WithEncoderConcurrency(1)); err != nil {
			t.Fatal(err)
		}
	default:
		w, _ = flate.NewWriter(&out, 6)
	}
	if _, err := w.Write(body); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

// TestCaseG3: gzip and zstd are decoded for routing, and the engine gets a body
// that it can read; what cannot be decoded is refused by its kind.
func TestCaseG3(t *testing.T) {
	chat := `{"model":"m","messages":[{"role":"user","content":"` + strings.Repeat("compress me ", 100) + `"}]}`
	tokens, err := epptest.ByteTokenizer{}.ChatTokens([]byte(chat))
	if err != nil {
		t.Fatal(err)
	}
	rules := map[string]picker.ModelRule{"alias": {Targets: []picker.Target{{Name: "m"}}}}
	for _, encoding := range []string{"gzip", "zstd"} {
		for _, c := range []struct {
			name, body, sent, sentAs string
			forward                  bool
		}{
			{"decoded", chat, chat, "", false},
			{"as sent", chat, string(zip(t, encoding, []byte(chat))), encoding, true},
			{"rewritten", strings.Replace(chat, `"m"`, `"alias"`, 1), chat, "", true},
		} {
			p := newPool(t, decision.Defaults(), picker.Options{Tokenizer: byteTokenizer{}, Names: picker.Names{Models: rules}, ForwardEncoded: c.forward}, "a")
			p.members["a"].Apply(start, stored(tokens, 16))
			pk, err := p.post("/v1/chat/completions", string(zip(t, encoding, []byte(c.body))), encoding)
			if err != nil {
				t.Fatalf("%s %s: %v", encoding, c.name, err)
			}
			if _, body := pk.Target(); string(body) != c.sent || pk.Encoding() != c.sentAs {
				t.Errorf("%s %s: sent %.60q with encoding %q", encoding, c.name, body, pk.Encoding())
			}
			if rec := p.last(); rec.MatchRatio(0) != 1 || rec.Model == "" {
				t.Errorf("%s %s: match %v", encoding, c.name, rec.MatchRatio(0))
			}
			pk.End(picker.Served)
		}
	}
	p := newPool(t, decision.Defaults(), picker.Options{}, "a")
	for _, c := range []struct {
		encoding, body string
		status         int
		reason         string
	}{
		{"deflate", string(zip(t, "deflate", []byte(chat))), 415, "encoding_unsupported"},
		{"br", chat, 415, "encoding_unsupported"},
		{"foo", chat, 415, "encoding_unsupported"},
		{"gzip, zstd", chat, 415, "encoding_unsupported"},
		{"gzip", chat, 400, "encoding_invalid"},
		{"zstd", chat, 400, "encoding_invalid"},
		{"gzip", string(zip(t, "gzip", []byte(chat))[:40]), 400, "encoding_invalid"},
		{"zstd", string(zip(t, "zstd", []byte(chat))[:40]), 400, "encoding_invalid"},
		{"zstd", "", 400, "body_empty"},
		{"gzip", string(zip(t, "gzip", nil)), 400, "body_empty"},
	} {
		_, err := p.post("/v1/chat/completions", c.body, c.encoding)
		if e := epp.AsError(err); e == nil || e.Kind.HTTPStatus() != c.status || e.Reason != c.reason {
			t.Errorf("%s: %v, want %d %s", c.encoding, err, c.status, c.reason)
		}
	}
}

// TestCaseG3Bomb: a body of 1 MB or 10 MB that unpacks to 10 GiB is refused when
// it passes the bound, and costs what a body at the bound costs.
func TestCaseG3Bomb(t *testing.T) {
	const bound = 1 << 20
	p := newPool(t, decision.Defaults(), picker.Options{MaxDecodedBytes: bound, MaxDecodedBytesTotal: 16 * bound}, "a")
	member := zip(t, "gzip", make([]byte, 4<<20))
	frame := zip(t, "zstd", make([]byte, 4<<20))
	const window = 12 << 20 // what a zstd decoder takes for a frame of 8 MiB's window
	for encoding, bomb := range map[string][]byte{
		"gzip": bytes.Repeat(member, 2560), // 10 GiB from 10 MB
		"zstd": bytes.Repeat(frame, 2560),
	} {
		if _, err := p.post("/v1/completions", string(bomb), encoding); epp.AsError(err) == nil || epp.AsError(err).Kind != epp.TooLarge {
			t.Fatalf("%s: %v, want 413", encoding, err)
		}
		body := string(bomb)
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		_, _ = p.post("/v1/completions", body, encoding)
		runtime.ReadMemStats(&after)
		if n := after.TotalAlloc - before.TotalAlloc - uint64(len(body)); n > 4*bound+window {
			t.Errorf("%s: %d bytes were allocated beside the body's own %d", encoding, n, len(body))
		}
	}
	// The bound on all bodies together: what is held is given back at the end.
	fits := zip(t, "gzip", []byte(`{"model":"m","prompt":"`+strings.Repeat("x", bound/2)+`"}`))
	var picks []*picker.Pick
	for {
		pk, err := p.post("/v1/completions", string(fits), "gzip")
		if err != nil {
			if e := epp.AsError(err); e.Reason != "bodies_full" || len(picks) == 0 {
				t.Fatalf("after %d: %v", len(picks), err)
			}
			break
		}
		picks = append(picks, pk)
	}
	for _, pk := range picks {
		pk.End(picker.Served)
	}
	pk, err := p.post("/v1/completions", string(fits), "gzip")
	if err != nil {
		t.Fatalf("at rest: %v", err)
	}
	pk.End(picker.Served)
}

// to is the rule of a name that means another.
func to(name string) picker.ModelRule {
	return picker.ModelRule{Targets: []picker.Target{{Name: name}}}
}

// TestCaseF2: a request without a model, or with one that nobody knows.
func TestCaseF2(t *testing.T) {
	none := map[string]string{"none": ``, "null": `"model":null,`, "empty": `"model":"",`}
	for _, c := range []struct {
		name, model, configured string
		rules                   map[string]picker.ModelRule
		status                  int
		reason, sent            string
	}{
		{"none", none["none"], "", nil, 400, "model_missing", ""},
		{"null", none["null"], "", nil, 400, "model_missing", ""},
		{"empty", none["empty"], "", nil, 400, "model_missing", ""},
		{"a number", `"model":5,`, "", nil, 400, "model_not_a_string", ""},
		{"unknown", `"model":"x",`, "", nil, 404, "model_unknown", ""},

		{"none, one configured", none["none"], "m", nil, 0, "", `{"model":"m","prompt":[1]}`},
		{"null, one configured", none["null"], "m", nil, 0, "", `{"model":"m","prompt":[1]}`},
		{"empty, one configured", none["empty"], "m", nil, 0, "", `{"model":"m","prompt":[1]}`},
		{"a number, one configured", `"model":5,`, "m", nil, 400, "model_not_a_string", ""},
		{"unknown, one configured", `"model":"x",`, "m", nil, 404, "model_unknown", ""},
		{"one configured that nobody serves", none["none"], "gone", nil, 404, "model_unknown", ""},

		{"none, catch-all", none["none"], "", map[string]picker.ModelRule{picker.CatchAll: to("m")}, 0, "", `{"model":"m","prompt":[1]}`},
		{"unknown, catch-all", `"model":"x",`, "", map[string]picker.ModelRule{picker.CatchAll: to("m")}, 0, "", `{"model":"m","prompt":[1]}`},
		{"known, catch-all", `"model":"n",`, "", map[string]picker.ModelRule{picker.CatchAll: to("m")}, 0, "", `{"model":"n","prompt":[1]}`},
		{"configured, catch-all", `"model":"y",`, "", map[string]picker.ModelRule{"y": to("n"), picker.CatchAll: to("m")}, 0, "", `{"model":"n","prompt":[1]}`},
		{"none, unnamed", none["none"], "", map[string]picker.ModelRule{picker.Unnamed: to("m")}, 0, "", `{"model":"m","prompt":[1]}`},
		{"unknown, unnamed", `"model":"x",`, "", map[string]picker.ModelRule{picker.Unnamed: to("m")}, 0, "", `{"model":"m","prompt":[1]}`},
		{"known, unnamed", `"model":"n",`, "", map[string]picker.ModelRule{picker.Unnamed: to("m")}, 0, "", `{"model":"m","prompt":[1]}`},
		{"configured, unnamed", `"model":"n",`, "", map[string]picker.ModelRule{"n": {}, picker.Unnamed: to("m")}, 0, "", `{"model":"n","prompt":[1]}`},
		{"none, unnamed, one configured", none["none"], "n", map[string]picker.ModelRule{picker.Unnamed: to("m")}, 0, "", `{"model":"m","prompt":[1]}`},
		{"unnamed to nobody", `"model":"n",`, "", map[string]picker.ModelRule{picker.Unnamed: to("gone")}, 404, "model_unknown", ""},
		{"none, unnamed without a target", none["none"], "", map[string]picker.ModelRule{picker.Unnamed: {Priority: 1}}, 400, "model_missing", ""},
		{"a number, catch-all", `"model":5,`, "", map[string]picker.ModelRule{picker.CatchAll: to("m")}, 400, "model_not_a_string", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := newPool(t, decision.Defaults(), picker.Options{Names: picker.Names{Default: c.configured, Models: c.rules}}, "a")
			p.members["a"].Models([]epp.Model{{Name: "m"}, {Name: "n"}})
			pk, err := p.post("/v1/completions", `{`+c.model+`"prompt":[1]}`)
			if e := epp.AsError(err); e != nil {
				if e.Kind.HTTPStatus() != c.status || e.Reason != c.reason || !strings.Contains(string(openai.ErrorBody(e, "r")), `"error":{"message":`) {
					t.Fatalf("%v, want %d %s", err, c.status, c.reason)
				}
				return
			}
			if c.status != 0 || string(pk.Body) != c.sent {
				t.Errorf("sent %s, want %s or status %d", pk.Body, c.sent, c.status)
			}
			pk.End(picker.Served)
		})
	}
}

// TestCaseF4: targets without weights have equal parts, one of weight 0 is never
// chosen, and no weights crash: where none is above 0 the parts are equal too. What
// was chosen is in the record and in the body, and follows from the record's seed.
func TestCaseF4(t *testing.T) {
	for _, c := range []struct {
		name       string
		weights    []int
		least, top []int // of 1,000 requests
	}{
		{"none", []int{0, 0}, []int{440, 440}, []int{560, 560}},
		{"0 and 100", []int{0, 100}, []int{0, 1000}, []int{0, 1000}},
		{"100, 0 and 0", []int{100, 0, 0}, []int{1000, 0, 0}, []int{1000, 0, 0}},
		{"one and nine", []int{1, 9}, []int{70, 870}, []int{130, 930}},
		{"the greatest", []int{1_000_000, 1_000_000}, []int{440, 440}, []int{560, 560}},
		{"below 0", []int{-5, 1}, []int{0, 1000}, []int{0, 1000}},
		{"all below 0", []int{-5, -1}, []int{440, 440}, []int{560, 560}},
	} {
		t.Run(c.name, func(t *testing.T) {
			rule := picker.ModelRule{}
			served := make([]epp.Model, len(c.weights))
			for i, w := range c.weights {
				served[i].Name = fmt.Sprint("m", i)
				rule.Targets = append(rule.Targets, picker.Target{Name: served[i].Name, Weight: w})
			}
			p := newPool(t, decision.Defaults(), picker.Options{Names: picker.Names{Models: map[string]picker.ModelRule{"chat": rule}}, Log: slog.New(slog.DiscardHandler)}, "a", "b")
			for _, m := range p.members {
				m.Models(served)
			}
			got := make([]int, len(c.weights))
			bySeed := map[uint64]string{}
			for range 1000 {
				pk, err := p.completion("chat", []uint32{1}, "")
				if err != nil {
					t.Fatal(err)
				}
				rec := p.last()
				if rec.Model != "chat" || !strings.Contains(string(pk.Body), fmt.Sprintf(`"model":%q`, rec.Target)) {
					t.Fatalf("asked for chat, sent %s, recorded %s for %s", pk.Body, rec.Target, rec.Model)
				}
				got[int(rec.Target[1]-'0')]++
				bySeed[rec.Seed] = rec.Target
				pk.End(picker.Served)
			}
			for i, n := range got {
				if n < c.least[i] || n > c.top[i] {
					t.Errorf("targets got %v requests, want between %v and %v", got, c.least, c.top)
				}
			}
			for seed := uint64(1); seed <= 20; seed++ { // the seed alone says it
				p.seed = seed - 1
				target := bySeed[seed]
				pk, err := p.completion("chat", []uint32{1}, "")
				if err != nil || pk.Request.Target != target {
					t.Fatalf("seed %d: %s and then %s, %v", seed, target, pk.Request.Target, err)
				}
				pk.End(picker.Served)
			}
		})
	}
}

// TestSetNames: a request sees one whole map of models, before or after, while it is
// replaced over and over; so none of its names is ever unknown.
func TestSetNames(t *testing.T) {
	p := newPool(t, decision.Defaults(), picker.Options{Log: slog.New(slog.DiscardHandler)}, "a")
	p.unwatched = true
	p.members["a"].Models([]epp.Model{{Name: "m1"}, {Name: "m2"}})
	p.SetNames(picker.Names{Models: map[string]picker.ModelRule{"first": to("m1"), "second": to("m1")}})
	done := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		defer close(done)
		for i := range 2000 {
			target := to([]string{"m1", "m2"}[i%2])
			p.SetNames(picker.Names{Models: map[string]picker.ModelRule{"first": target, "second": target}})
		}
	})
	for ended := false; !ended; {
		select {
		case <-done:
			ended = true
		default:
		}
		for _, name := range []string{"first", "second"} {
			pk, err := p.completion(name, []uint32{1}, "")
			if err != nil {
				t.Fatal(err)
			}
			pk.End(picker.Served)
		}
	}
	wg.Wait()
	p.SetNames(picker.Names{})
	if _, err := p.completion("first", []uint32{1}, ""); err == nil || epp.AsError(err).Reason != "model_unknown" {
		t.Errorf("a name that no map has any more: %v", err)
	}
}

// TestPriorityIsShedFirst: with every endpoint full, a request of a model below
// priority 0 is refused with 429, and the others are placed as ever.
func TestPriorityIsShedFirst(t *testing.T) {
	settings := decision.Defaults()
	settings.MaxQueue = 2
	p := newPool(t, settings, picker.Options{Names: picker.Names{Models: map[string]picker.ModelRule{
		"batch": {Targets: []picker.Target{{Name: "m"}}, Priority: -1}, "chat": to("m"),
	}}}, "a", "b")
	for _, m := range p.members {
		m.Models([]epp.Model{{Name: "m"}})
	}
	for _, name := range []string{"batch", "chat"} {
		pk, err := p.completion(name, []uint32{1}, "")
		if err != nil {
			t.Fatalf("%s in an idle pool: %v", name, err)
		}
		pk.End(picker.Served)
	}
	for _, m := range p.members {
		m.Load(m.Begin(start), start, epp.Load{Waiting: epp.Known(5), Running: epp.Known(5)})
	}
	_, err := p.completion("batch", []uint32{1}, "")
	if e := epp.AsError(err); e == nil || e.Kind.HTTPStatus() != http.StatusTooManyRequests || e.Reason != "shed" || p.last().Priority != -1 {
		t.Errorf("batch in a full pool: %v", err)
	}
	pk, err := p.completion("chat", []uint32{1}, "")
	if err != nil || !p.last().Degraded {
		t.Fatalf("chat in a full pool: %v", err)
	}
	pk.End(picker.Served)
}

// TestCaseQ3ObjectiveOnlyLowers: a client's header names an objective that the operator
// has made, or nothing. It makes its own request one that may be shed; it never raises
// what the model's rule says.
func TestCaseQ3ObjectiveOnlyLowers(t *testing.T) {
	names := picker.Names{
		Models:     map[string]picker.ModelRule{"batch": {Targets: []picker.Target{{Name: "m"}}, Priority: -1}, "chat": to("m"), "first": {Targets: []picker.Target{{Name: "m"}}, Priority: 2}},
		Objectives: map[string]int{"premium": 10, "later": -5, "middle": 1},
	}
	p := newPool(t, decision.Defaults(), picker.Options{}, "a")
	p.SetNames(names)
	p.members["a"].Models([]epp.Model{{Name: "m"}})
	for _, c := range []struct {
		model, objective string
		want             int
	}{
		{"chat", "", 0}, {"chat", "premium", 0}, {"chat", "later", -5}, {"chat", "nobody's", 0},
		{"batch", "premium", -1}, {"batch", "later", -5}, {"first", "premium", 2}, {"first", "middle", 1}, {"first", "", 2},
	} {
		pk, err := p.Pick(t.Context(), picker.Incoming{
			ID: picker.NewID(), Method: "POST", Path: "/v1/completions", Objective: c.objective, Body: fmt.Appendf(nil, `{"model":%q,"prompt":[1]}`, c.model),
		})
		if err != nil {
			t.Fatalf("%s, %s: %v", c.model, c.objective, err)
		}
		if got := p.last().Priority; got != c.want {
			t.Errorf("model %s, objective %q: priority %d, want %d", c.model, c.objective, got, c.want)
		}
		pk.End(picker.Served)
	}
}

// awaited is a member whose first blocks are waited for.
type awaited struct {
	*fleet.Member
	came chan struct{}
}

func (a awaited) Apply(now time.Time, events []epp.BlockEvent) {
	a.Member.Apply(now, events)
	a.came <- struct{}{}
}

// TestCaseB4: adapter and salt are in the key on both sides. The engines compute
// the prompt for the adapter sql, B with a salt, and their real events say so.
func TestCaseB4(t *testing.T) {
	p := newPool(t, decision.Defaults(), picker.Options{Tokenizer: byteTokenizer{}}, "a", "b")
	prompt := strings.Repeat("select one of them ", 10) // 190 tokens: 11 blocks
	ctx, stop := context.WithCancel(context.Background())
	var running []chan struct{}
	defer func() {
		stop()
		for _, done := range running {
			<-done
		}
		http.DefaultClient.CloseIdleConnections()
	}()
	for name, salt := range map[string]string{"a": "", "b": `,"cache_salt":"s1"`} {
		e, err := epptest.StartEngine(epptest.EngineConfig{Name: name, Model: "base", Adapters: []string{"sql"}, TimeScale: 0.001})
		if err != nil {
			t.Fatal(err)
		}
		defer e.Close()
		p.members[name].Models([]epp.Model{{Name: "base"}, {Name: "sql", Parent: "base"}})
		sink := awaited{p.members[name], make(chan struct{}, 64)}
		sub := kvevents.Subscriber{Address: strings.TrimPrefix(e.EventEndpoint(), "tcp://"), Replay: strings.TrimPrefix(e.ReplayEndpoint(), "tcp://"), Sink: sink}
		done := make(chan struct{})
		running = append(running, done)
		go func() {
			defer close(done)
			_ = sub.Run(ctx) // ends with ctx
		}()
		if err := e.AwaitSubscribers(t.Context(), 1); err != nil {
			t.Fatal(err)
		}
		res, err := http.Post(e.URL()+"/v1/completions", "application/json", strings.NewReader(fmt.Sprintf(`{"model":"sql","prompt":%q,"max_tokens":1%s}`, prompt, salt)))
		if err != nil {
			t.Fatal(err)
		}
		body, _ := io.ReadAll(res.Body)
		res.Body.Close()
		if res.StatusCode != 200 {
			t.Fatalf("%s: %s", res.Status, body)
		}
		<-sink.came
	}
	for _, c := range []struct {
		model, more string
		a, b        float64
	}{
		{"sql", "", 1, 0},
		{"sql", `,"cache_salt":"s1"`, 0, 1},
		{"base", "", 0, 0},
		{"base", `,"cache_salt":"s1"`, 0, 0},
		{"sql", `,"cache_salt":"s2"`, 0, 0},
	} {
		pk, err := p.post("/v1/completions", fmt.Sprintf(`{"model":%q,"prompt":%q%s}`, c.model, prompt, c.more))
		if err != nil {
			t.Fatal(err)
		}
		rec := p.last()
		if a, b := rec.MatchRatio(0), rec.MatchRatio(1); a != c.a || b != c.b {
			t.Errorf("%s%s: match %v and %v, want %v and %v", c.model, c.more, a, b, c.a, c.b)
		}
		if c.a != c.b && pk.Endpoint.Name != map[bool]string{true: "a", false: "b"}[c.a > c.b] {
			t.Errorf("%s%s went to %s", c.model, c.more, pk.Endpoint.Name)
		}
		pk.End(picker.Served)
	}
}

// TestCaseB6: endpoints with blocks of 16, 64 and 32 tokens, each matched in its
// own; then the first restarts with 128. Nobody is credited with more tokens than
// the prompt has in full blocks.
func TestCaseB6(t *testing.T) {
	p := newPool(t, decision.Defaults(), picker.Options{}, "a", "b", "c")
	store := func(name string, size int, tokens []uint32) {
		p.members[name].Apply(p.clock(), stored(tokens, size))
	}
	matched := func(tokens []uint32) (of [3]int) {
		t.Helper()
		pk, err := p.completion("m", tokens, "")
		if err != nil {
			t.Fatal(err)
		}
		defer pk.End(picker.Served)
		for i := range of {
			of[i] = p.last().Candidates[i].Match.Tokens()
		}
		return of
	}
	prompt := count(1, 256)
	store("a", 16, prompt)
	store("b", 64, prompt)
	store("c", 32, count(9000, 256))
	for _, c := range []struct {
		tokens int
		want   [3]int
	}{
		{256, [3]int{256, 256, 0}},
		{200, [3]int{192, 192, 0}},
		{63, [3]int{48, 0, 0}},
	} {
		if got := matched(prompt[:c.tokens]); got != c.want {
			t.Errorf("of %d tokens %v are matched, want %v", c.tokens, got, c.want)
		}
	}
	p.members["a"].Reset(p.clock())
	if got := matched(prompt); got != [3]int{0, 256, 0} {
		t.Errorf("after the restart %v are matched", got)
	}
	store("a", 128, prompt)
	if got := matched(prompt); got != [3]int{256, 256, 0} {
		t.Errorf("with blocks of 128 %v are matched", got)
	}
	if got := matched(prompt[:200]); got != [3]int{128, 192, 0} {
		t.Errorf("of 200 tokens %v are matched", got)
	}
	for i := range p.last().Candidates {
		if r := p.last().MatchRatio(i); r > 1 {
			t.Errorf("ratio %v", r)
		}
	}
}

// TestCaseI1: 17 and 5 are recorded once, in every form of a stream, wherever its
// frames are cut, with an end marker or without one.
func TestCaseI1(t *testing.T) {
	streams := map[string]string{
		"chat": "data: {\"model\":\"m\",\"choices\":[{\"delta\":{\"content\":\"x\"}}]}\n\ndata: {\"choices\":[],\"usage\":{\"prompt_tokens\":17,\"completion_tokens\":5,\"prompt_tokens_details\":{\"cached_tokens\":16}}}\n\ndata: [DONE]\n\n",
		"messages": "event: message_start\ndata: {\"type\":\"message_start\",\"message\":{\"model\":\"m\",\"usage\":{\"input_tokens\":1,\"cache_read_input_tokens\":16,\"output_tokens\":0}}}\n\n" +
			"event: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"delta\":{\"type\":\"text_delta\",\"text\":\"x\"}}\n\nevent: message_delta\ndata: {\"type\":\"message_delta\",\"usage\":{\"output_tokens\":5}}\n\n",
		"responses": "event: response.output_text.delta\ndata: {\"type\":\"response.output_text.delta\",\"delta\":\"x\"}\n\n" +
			"event: response.completed\ndata: {\"type\":\"response.completed\",\"response\":{\"model\":\"m\",\"usage\":{\"input_tokens\":17,\"output_tokens\":5,\"input_tokens_details\":{\"cached_tokens\":16}}}}\n\n",
	}
	bodies := map[string]string{
		"chat":      `{"model":"m","stream":true,"messages":[{"role":"user","content":"x"}]}`,
		"messages":  `{"model":"m","stream":true,"max_tokens":5,"messages":[{"role":"user","content":"x"}]}`,
		"responses": `{"model":"m","stream":true,"input":"x"}`,
	}
	paths := map[string]string{"chat": "/v1/chat/completions", "messages": "/v1/messages", "responses": "/v1/responses"}
	for form, stream := range streams {
		for _, answer := range []string{stream, strings.TrimSuffix(strings.TrimSuffix(stream, "data: [DONE]\n\n"), "\n\n")} {
			p := newPool(t, decision.Defaults(), picker.Options{Tokenizer: byteTokenizer{}, Log: slog.New(slog.DiscardHandler)}, "a")
			for at := range len(answer) + 1 {
				pk, err := p.post(paths[form], bodies[form])
				if err != nil {
					t.Fatal(err)
				}
				chunks := [][]byte{[]byte(answer[:at]), []byte(answer[at:])}
				pk.ResponseHeader(200, "text/event-stream", "")
				for _, c := range chunks {
					pk.ResponseBody(c)
				}
				if string(bytes.Join(chunks, nil)) != answer {
					t.Fatalf("%s cut at %d: the pick changed what passes", form, at)
				}
				pk.End(picker.Served)
				pk.End(picker.Served)
				if len(p.ended) != at+1 {
					t.Fatalf("%s cut at %d: ended %d times", form, at, len(p.ended)-at)
				}
				for _, end := range []decision.End{p.ended[at].End, p.Ring().Find(pk.Request.ID).End} {
					if end.PromptTokens != 17 || end.CompletionTokens != 5 || end.CachedTokens != 16 {
						t.Fatalf("%s cut at %d: %+v", form, at, end)
					}
				}
			}
		}
	}
}

// TestCaseN2AdaptersUntold: engines serve adapters and have no metric of them. The
// decision, its line and one warning say so by the scorer's name, until the adapter
// was sent there or the page tells of adapters.
func TestCaseN2AdaptersUntold(t *testing.T) {
	p := newPool(t, decision.Defaults(), picker.Options{Tokenizer: byteTokenizer{}})
	models := []epp.Model{{Name: "base"}, {Name: "sql", Parent: "base"}, {Name: "chat", Parent: "base"}, {Name: "new", Parent: "base"}}
	var a *fleet.Member
	joins := func(name string) {
		if a != nil {
			a.Leave()
		}
		a = p.fleet.Join(epp.Endpoint{Name: name, Address: "10.0.0.7:8000"})
		a.Models(models)
	}
	for _, c := range []struct {
		joins           string // in place of the one before
		model           string
		told            bool
		warned, unknown bool
	}{
		{"a", "base", false, false, false},
		{"", "sql", false, true, true},
		{"", "sql", false, false, false}, // it was sent there
		{"", "chat", false, false, true}, // the warning comes once
		{"b", "sql", false, true, true},  // of each endpoint
		{"a", "sql", false, true, true},  // and of one that is back anew
		{"", "new", true, false, false},
	} {
		if c.joins != "" {
			joins(c.joins)
		}
		if c.told {
			a.Load(a.Begin(p.now), p.now, epp.Load{Running: epp.Known(0), Waiting: epp.Known(0), MaxAdapters: 2})
		}
		p.log.Reset()
		pk, err := p.post("/v1/completions", `{"model":"`+c.model+`","prompt":"x"}`)
		if err != nil {
			t.Fatal(err)
		}
		pk.End(picker.Served)
		rec, log := p.last(), p.log.String()
		warned := strings.Contains(log, `"level":"WARN","msg":"no data for a scorer","scorer":"adapter","pod":"`+rec.Candidates[0].Name+`"`)
		unknown := rec.Candidates[0].Guessed(decision.AdapterFactor)
		logged := regexp.MustCompile(`"noData":"[a-z,]*adapter"`).MatchString(log)
		if warned != c.warned || unknown != c.unknown || logged != c.unknown {
			t.Errorf("%s: warned %v, unknown %v, logged %v, want %v, %v, %v: %s", c.model, warned, unknown, logged, c.warned, c.unknown, c.unknown, log)
		}
	}
}

// TestCaseN2: a cache scorer that nothing feeds is named once at the start, and
// each decision says that it had no data.
func TestCaseN2(t *testing.T) {
	p := newPool(t, decision.Defaults(), picker.Options{}, "a")
	if !strings.Contains(p.log.String(), `"level":"WARN","msg":"no data for a scorer","scorer":"cache"`) {
		t.Errorf("log: %s", p.log.String())
	}
	pk, err := p.post("/v1/completions", `{"model":"m","prompt":"x"}`)
	if err != nil {
		t.Fatal(err)
	}
	pk.End(picker.Served)
	if rec := p.last(); rec.TokenNote != "no tokenizer is configured" || !strings.Contains(p.log.String(), `"tokenNote":"no tokenizer is configured"`) {
		t.Errorf("note %q", rec.TokenNote)
	}
	unweighted := decision.Defaults()
	for i, w := range unweighted.Weights {
		if w.Name == decision.CacheScorer {
			unweighted.Weights[i].Value, unweighted.Weights[i+1].Value = 0, unweighted.Weights[i+1].Value+w.Value
		}
	}
	for name, p := range map[string]*pool{
		"a tokenizer": newPool(t, decision.Defaults(), picker.Options{Tokenizer: byteTokenizer{}}, "a"),
		"no weight":   newPool(t, unweighted, picker.Options{}, "a"),
	} {
		if p.log.Len() != 0 {
			t.Errorf("%s: %s", name, p.log.String())
		}
	}
}
