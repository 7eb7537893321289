package picker_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"go.uber.org/goleak"
	"pgregory.net/rapid"

	"epp.internal/epp"
	"epp.internal/epp/block"
	"epp.internal/epp/decision"
	"epp.internal/epp/fleet"
	"epp.internal/epp/kvindex"
	"epp.internal/epp/openai"
	"epp.internal/epp/picker"
	"epp.internal/epp/route"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var start = time.Date(2026, 11, 29, 12, 0, 0, 0, time.UTC)

// pool is a picker in front of endpoints that the test plays itself. Its clock
// stands still unless the test moves it.
type pool struct {
	*picker.Picker
	fleet   *fleet.Table
	members map[string]*fleet.Member
	log     bytes.Buffer

	mu      sync.Mutex // guards the following fields
	now     time.Time
	seed    uint64
	decided []*decision.Record
	ended   []picker.Ending

	unwatched bool // decisions and ends are not kept
}

// fatal is what *testing.T and *rapid.T share.
type fatal interface{ Fatalf(string, ...any) }

func newPool(t fatal, settings *decision.Settings, opt picker.Options, names ...string) *pool {
	p := &pool{now: start, members: map[string]*fleet.Member{}}
	policy, err := route.New(settings)
	if err != nil {
		t.Fatalf("%v", err)
	}
	const key = block.Key(7)
	index := kvindex.New(kvindex.Options{Key: key})
	p.fleet = fleet.New(fleet.Options{Index: index, MaxRunning: settings.Load.MaxRunning})
	for _, n := range names {
		p.members[n] = p.fleet.Join(epp.Endpoint{Name: n, Address: "10.0.0.7:" + fmt.Sprint(8000+len(p.members))})
	}
	opt.Fleet, opt.Index, opt.Key, opt.Policy = p.fleet, index, key, policy
	opt.Now, opt.Seed = p.clock, p.draw
	if opt.Log == nil {
		opt.Log = slog.New(slog.NewJSONHandler(&p.log, &slog.HandlerOptions{Level: picker.LevelTrace}))
	}
	opt.Hooks = picker.Hooks{Decided: p.sawDecision, Ended: p.sawEnd}
	p.Picker = picker.New(opt)
	return p
}

func (p *pool) clock() time.Time {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.now
}

func (p *pool) pass(d time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.now = p.now.Add(d)
}

func (p *pool) draw() uint64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.seed++
	return p.seed
}

func (p *pool) sawDecision(rec *decision.Record, _ []uint64) {
	if p.unwatched {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.decided = append(p.decided, rec.Clone())
}

func (p *pool) sawEnd(e *picker.Ending) {
	if p.unwatched {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.ended = append(p.ended, *e)
}

func (p *pool) last() *decision.Record {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.decided[len(p.decided)-1]
}

// completion asks with token IDs, which need no tokenizer.
func (p *pool) completion(model string, tokens []uint32, more string) (*picker.Pick, error) {
	body := fmt.Sprintf(`{"model":%q,"prompt":%s%s}`, model, list(tokens), more)
	return p.Pick(context.Background(), picker.Incoming{ID: picker.NewID(), Method: "POST", Path: "/v1/completions", Body: []byte(body)})
}

func list(tokens []uint32) string {
	b, _ := json.Marshal(tokens)
	return string(b)
}

func count(from, n uint32) []uint32 {
	out := make([]uint32, n)
	for i := range out {
		out[i] = from + uint32(i)
	}
	return out
}

// stored is the event of an engine that has just computed tokens.
func stored(tokens []uint32, size int) []epp.BlockEvent {
	e := epp.BlockEvent{Kind: epp.BlockStored, Tokens: tokens[:len(tokens)/size*size], BlockTokens: size, Tier: "GPU"}
	for i := range len(tokens) / size {
		e.Hashes = append(e.Hashes, uint64(tokens[0])<<32+uint64(i))
	}
	return []epp.BlockEvent{e}
}

// TestTurnTwoFollowsTurnOne is the product in one test: what an endpoint says it
// holds draws the next turn there, the record says why, and the booking is
// released in its two parts as the answer passes.
func TestTurnTwoFollowsTurnOne(t *testing.T) {
	p := newPool(t, decision.Defaults(), picker.Options{}, "a", "b", "c")
	one := count(1000, 320)
	first, err := p.completion("m", one, `,"stream":true`)
	if err != nil {
		t.Fatal(err)
	}
	home := first.Endpoint.Name
	p.members[home].Apply(start, stored(one, 16))
	two, err := p.completion("m", append(one, count(5000, 80)...), "")
	if err != nil {
		t.Fatal(err)
	}
	rec := p.last()
	if two.Endpoint.Name != home || rec.MatchRatio(rec.Chosen) != 0.8 || !strings.Contains(rec.Why(), "cache 0.80") {
		t.Errorf("turn 2 at %s, turn 1 at %s: match %v, %s", two.Endpoint.Name, home, rec.MatchRatio(rec.Chosen), rec.Why())
	}
	if l := p.fleet.Ledger(); l.Requests != 2 || l.Tokens != 320+80 {
		t.Errorf("ledger %+v: turn 2 has 80 uncached tokens", l)
	}
	p.pass(120 * time.Millisecond)
	first.ResponseHeader(200, "text/event-stream", "")
	first.ResponseBody([]byte("data: {\"choices\":[{\"text\":\" yes\"}]}\n\n"))
	if l := p.fleet.Ledger(); l.Requests != 2 || l.Tokens != 80 {
		t.Errorf("ledger %+v after the first token", l)
	}
	first.ResponseBody([]byte("data: {\"choices\":[],\"usage\":{\"prompt_tokens\":320,\"completion_tokens\":1,\"prompt_tokens_details\":{\"cached_tokens\":0}}}\n\ndata: [DONE]\n\n"))
	first.End(picker.Served)
	first.End(picker.Reset) // the first counts
	two.End(picker.ClientGone)
	if l := p.fleet.Ledger(); l != (fleet.Ledger{}) {
		t.Errorf("ledger %+v at rest", l)
	}
	got := p.Ring().Find(first.Request.ID).End
	want := decision.End{At: start.Add(120 * time.Millisecond), Outcome: "served", Status: 200, TTFT: 120 * time.Millisecond, PromptTokens: 320, CompletionTokens: 1}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if len(p.ended) != 2 || p.ended[1].Outcome != "client_gone" || p.ended[1].PredictedTokens != 320 {
		t.Errorf("ended %+v", p.ended)
	}
}

// TestWholeAnswerTeachesNoFirstToken: an answer that is not streamed comes when its
// last token was made, 10 s after the first. Its tokens are released by the rate at
// which the endpoint computes prompts (8,000 a second where it has shown none), and
// the pool's times stay those of the streamed answers, which take 100 ms.
func TestWholeAnswerTeachesNoFirstToken(t *testing.T) {
	p := newPool(t, decision.Defaults(), picker.Options{}, "a")
	pace := func() (pace epp.Pace) {
		p.fleet.Pick(fleet.Query{}, p.clock(), func(v epp.View) (int, int) { pace = v.Pace; return -1, 0 })
		return pace
	}
	for i := range uint32(100) {
		pk, err := p.completion("m", count(1+i*1000, 100+i), `,"stream":true`)
		if err != nil {
			t.Fatal(err)
		}
		p.pass(100 * time.Millisecond)
		pk.ResponseHeader(200, "text/event-stream", "")
		pk.ResponseBody([]byte("data: {\"choices\":[{\"text\":\" yes\"}]}\n\n"))
		pk.End(picker.Served)
	}
	streamed := pace()
	if streamed.FirstToken < 0.09 || streamed.FirstToken > 0.11 {
		t.Fatalf("pace %+v of streamed answers", streamed)
	}
	for range 100 {
		pk, err := p.completion("m", count(1, 1600), "")
		if err != nil {
			t.Fatal(err)
		}
		if l := p.fleet.Ledger(); l.Tokens != 1600 {
			t.Fatalf("ledger %+v", l)
		}
		p.pass(300 * time.Millisecond)
		pace() // what is due falls due with a pick
		if l := p.fleet.Ledger(); l.Requests != 1 || l.Tokens != 0 {
			t.Fatalf("ledger %+v after 300 ms: 1,600 tokens take 200", l)
		}
		p.pass(10 * time.Second)
		pk.ResponseHeader(200, "application/json", "")
		pk.ResponseBody([]byte(`{"choices":[{"text":" yes"}],"usage":{"prompt_tokens":1600,"completion_tokens":400}}`))
		pk.End(picker.Served)
		if e := p.Ring().Find(pk.Request.ID).End; e.TTFT != 0 || e.CompletionTokens != 400 {
			t.Fatalf("the record has %+v", e)
		}
	}
	if got := pace(); got != streamed {
		t.Errorf("pace %+v after answers that were not streamed, %+v before", got, streamed)
	}
}

// TestSaltAndAdapterShareNothing: the same tokens under a salt or an adapter are
// another prompt.
func TestSaltAndAdapterShareNothing(t *testing.T) {
	p := newPool(t, decision.Defaults(), picker.Options{Names: picker.Names{Models: map[string]picker.ModelRule{"billing": {Targets: []picker.Target{{Name: "billing-lora-v3", Adapter: true}}}}}}, "a")
	p.members["a"].Models([]epp.Model{{Name: "m"}, {Name: "billing-lora-v3", Parent: "m"}})
	tokens := count(1, 64)
	events := stored(tokens, 16)
	p.members["a"].Apply(start, events)
	events[0].Adapter, events[0].Hashes = "billing-lora-v3", []uint64{91, 92, 93, 94}
	p.members["a"].Apply(start, events[:1])
	for _, c := range []struct {
		model, more string
		match       float64
		adapter     string
		resident    bool
	}{
		{"m", "", 1, "", false},
		{"m", `,"cache_salt":"s"`, 0, "", false},
		{"billing", "", 1, "billing-lora-v3", false},
		{"billing-lora-v3", "", 1, "billing-lora-v3", true}, // the pick before has loaded it
	} {
		pk, err := p.completion(c.model, tokens, c.more)
		if err != nil {
			t.Fatal(err)
		}
		rec := p.last()
		if rec.MatchRatio(0) != c.match || rec.Adapter != c.adapter || rec.Candidates[0].Resident != c.resident {
			t.Errorf("%s%s: match %v, adapter %q, resident %v", c.model, c.more, rec.MatchRatio(0), rec.Adapter, rec.Candidates[0].Resident)
		}
		pk.End(picker.Served)
	}
}

// TestOnlyTheModelsNameIsReplaced: byte for byte the rest is what came.
func TestOnlyTheModelsNameIsReplaced(t *testing.T) {
	p := newPool(t, decision.Defaults(), picker.Options{Names: picker.Names{Models: map[string]picker.ModelRule{"support": {Targets: []picker.Target{{Name: "billing-lora-v3", Adapter: true}}}}}}, "a")
	body := `{ "seed":1.0e3,"model" : "support", "prompt":[1,2,3],"x":{"model":"support"}}`
	pk, err := p.Pick(context.Background(), picker.Incoming{ID: "1", Method: "POST", Path: "/v1/completions", Body: []byte(body)})
	if err != nil {
		t.Fatal(err)
	}
	want := `{ "seed":1.0e3,"model" : "billing-lora-v3", "prompt":[1,2,3],"x":{"model":"support"}}`
	if string(pk.Body) != want || pk.Request.Adapter != "billing-lora-v3" {
		t.Errorf("%s\n%+v", pk.Body, pk.Request)
	}
	pk.End(picker.Served)
}

// TestBlockSizesOfOnePool is case B6 at the picker: two block sizes in a pool, one
// chain per size, matched tokens are what counts.
func TestBlockSizesOfOnePool(t *testing.T) {
	p := newPool(t, decision.Defaults(), picker.Options{}, "a", "b", "c")
	tokens := count(1, 256)
	p.members["a"].Apply(start, stored(tokens, 16))
	p.members["b"].Apply(start, stored(tokens, 64))
	p.members["c"].Load(0, start, epp.Load{BlockTokens: 32})
	pk, err := p.completion("m", tokens[:200], "")
	if err != nil {
		t.Fatal(err)
	}
	pk.End(picker.Served)
	rec := p.last()
	want := map[string]int{"a": 192, "b": 192, "c": 0} // 12 blocks of 16, 3 of 64: never more than 200
	for i := range rec.Candidates {
		c := &rec.Candidates[i]
		if c.Match.Tokens() != want[c.Name] {
			t.Errorf("%s matches %d tokens, want %d", c.Name, c.Match.Tokens(), want[c.Name])
		}
	}
	if rec.BlockTokens != 16 || rec.BlockedTokens != 192 || rec.MatchRatio(0) != 1 {
		t.Errorf("%d of blocks of %d", rec.BlockedTokens, rec.BlockTokens)
	}
}

// TestTraceLog: at TRACE the walk is there block by block as far as anybody holds
// the prompt, and each factor's part of each sum. Every line is valid JSON.
func TestTraceLog(t *testing.T) {
	p := newPool(t, decision.Defaults(), picker.Options{}, "a", "b")
	tokens := count(1, 64)
	p.members["a"].Apply(start, stored(tokens, 16))
	p.members["b"].Apply(start, stored(tokens[:32], 16))
	pk, err := p.completion("m", append(tokens, count(900, 40)...), "")
	if err != nil {
		t.Fatal(err)
	}
	pk.End(picker.Served)
	var walk []string
	terms := map[string]any{}
	for line := range strings.Lines(p.log.String()) {
		var m struct {
			Msg, Pod  string
			Endpoints []string
			Terms     map[string]float64
		}
		if err := json.Unmarshal([]byte(line), &m); err != nil {
			t.Fatalf("%s: %v", line, err)
		}
		switch m.Msg {
		case "walk":
			walk = append(walk, strings.Join(m.Endpoints, "+"))
		case "weighed":
			terms[m.Pod] = m.Terms["cache"]
		}
	}
	if diff := cmp.Diff([]string{"a+b", "a+b", "a", "a", ""}, walk); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff(map[string]any{"a": 0.6 * 4 / 6, "b": 0.6 * 2 / 6}, terms, cmpopts.EquateApprox(0, 1e-12)); diff != "" {
		t.Error(diff)
	}
}

// TestNextDecidesAnew: a retry goes to another endpoint with the booking, has a
// record of its own, and ends when nobody is left.
func TestNextDecidesAnew(t *testing.T) {
	p := newPool(t, decision.Defaults(), picker.Options{}, "a", "b")
	pk, err := p.completion("m", count(1, 40), "")
	if err != nil {
		t.Fatal(err)
	}
	first := pk.Endpoint.Name
	if !pk.Next(picker.Refused) || pk.Endpoint.Name == first {
		t.Fatalf("after %s: %s", first, pk.Endpoint.Name)
	}
	if rec := p.last(); rec.Attempt != 2 || rec.Candidates[1-rec.Chosen].Excluded != decision.Tried {
		t.Errorf("%+v", rec)
	}
	if l := p.fleet.Ledger(); l.Requests != 1 {
		t.Errorf("ledger %+v", l)
	}
	if pk.Next(picker.Reset) {
		t.Errorf("a third endpoint: %s", pk.Endpoint.Name)
	}
	pk.End(picker.Reset)
	if l := p.fleet.Ledger(); l != (fleet.Ledger{}) {
		t.Errorf("ledger %+v", l)
	}
	if got := []string{p.ended[0].Outcome, p.ended[1].Outcome}; got[0] != "refused" || got[1] != "reset" {
		t.Errorf("ends %v", got)
	}
}

// TestRefusals: each refusal has a kind, a reason, a record and a log line.
func TestRefusals(t *testing.T) {
	saturated := decision.Defaults()
	saturated.OnSaturated = decision.Reject
	for _, c := range []struct {
		name   string
		do     func(p *pool) error
		status int
		reason string
	}{
		{"unknown model", func(p *pool) error { _, err := p.completion("x", count(1, 9), ""); return err }, 404, "model_unknown"},
		{"bad body", func(p *pool) error { _, err := p.completion("m", nil, ",,"); return err }, 400, "json_invalid"},
		{"encoding", func(p *pool) error {
			_, err := p.Pick(context.Background(), picker.Incoming{ID: "1", Method: "POST", Path: "/v1/completions", ContentEncoding: "br", Body: []byte("{}")})
			return err
		}, 415, "encoding_unsupported"},
		{"all full", func(p *pool) error {
			for _, m := range p.members {
				m.Load(0, start, epp.Load{Waiting: epp.Known(20), Running: epp.Known(4)})
			}
			_, err := p.completion("m", count(1, 9), "")
			return err
		}, 429, "all_full"},
		{"asleep", func(p *pool) error {
			for _, m := range p.members {
				m.Load(0, start, epp.Load{Asleep: true})
			}
			_, err := p.completion("m", count(1, 9), "")
			return err
		}, 503, "none_healthy"},
		{"nobody there", func(p *pool) error {
			for _, m := range p.members {
				m.Leave()
			}
			_, err := p.completion("m", count(1, 9), "")
			return err
		}, 503, "pool_empty"},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := newPool(t, saturated, picker.Options{}, "a", "b")
			p.members["a"].Models([]epp.Model{{Name: "m"}})
			p.members["b"].Models([]epp.Model{{Name: "m"}})
			e := epp.AsError(c.do(p))
			if e == nil || e.Kind.HTTPStatus() != c.status || e.Reason != c.reason {
				t.Fatalf("%v", e)
			}
			if rec := p.last(); rec.Refused != c.reason || rec.Chosen >= 0 {
				t.Errorf("record: %q, chosen %d", rec.Refused, rec.Chosen)
			}
			if !strings.Contains(p.log.String(), `"reason":"`+c.reason+`"`) {
				t.Errorf("log: %s", p.log.String())
			}
			if l := p.fleet.Ledger(); l != (fleet.Ledger{}) {
				t.Errorf("ledger %+v", l)
			}
		})
	}
}

// TestUnknownNamesAreBounded: an invented name is refused only when every list is
// known, and a huge one leaves little of itself in the record and the log.
func TestUnknownNamesAreBounded(t *testing.T) {
	p := newPool(t, decision.Defaults(), picker.Options{}, "a", "b")
	p.members["a"].Models([]epp.Model{{Name: "m"}})
	pk, err := p.completion("perhaps-at-b", count(1, 9), "")
	if err != nil || pk.Endpoint.Name != "b" {
		t.Fatalf("%v: b's list is not known, so the model may be there", err)
	}
	pk.End(picker.ClientGone)
	before := p.log.Len()
	body := fmt.Sprintf(`{"model":%q,"prompt":[1]}`, strings.Repeat("x", 1<<20))
	_, err = p.Pick(context.Background(), picker.Incoming{ID: "1", ClientID: strings.Repeat("y", 1<<16), Method: "POST", Path: "/v1/completions", Body: []byte(body)})
	if e := epp.AsError(err); e == nil || e.Reason != "model_unknown" || len(e.Message) > 300 {
		t.Fatalf("%v", err)
	}
	if rec := p.last(); len(rec.Model) > 300 || len(rec.ClientID) > 200 || p.log.Len()-before > 2000 {
		t.Errorf("model %d bytes, client's id %d, log %d", len(rec.Model), len(rec.ClientID), p.log.Len()-before)
	}
}

// TestSaturationIsSaid: a decision without the cutoff warns, by S5.
func TestSaturationIsSaid(t *testing.T) {
	p := newPool(t, decision.Defaults(), picker.Options{}, "a", "b")
	for _, m := range p.members {
		m.Load(0, start, epp.Load{Waiting: epp.Known(20), Running: epp.Known(4)})
	}
	pk, err := p.completion("m", count(1, 9), "")
	if err != nil {
		t.Fatal(err)
	}
	pk.End(picker.Served)
	if rec := p.last(); rec.Admitted != 0 || !rec.Degraded || !strings.Contains(p.log.String(), `"level":"WARN","msg":"saturated"`) {
		t.Errorf("admitted %d, degraded %v\n%s", rec.Admitted, rec.Degraded, p.log.String())
	}
}

// refusing is a tokenizer whose template cannot render.
type refusing struct{}

func (refusing) Chat(context.Context, *openai.Body, []uint32) ([]uint32, error) {
	return nil, errors.New("image parts")
}
func (refusing) Text(context.Context, string, []uint32) ([]uint32, error) { return nil, nil }

// TestUntokenizedIsRoutedByTheRest: a prompt that cannot be made into tokens is
// no error of the client's. It goes by load, and the record says why.
func TestUntokenizedIsRoutedByTheRest(t *testing.T) {
	for _, c := range []struct {
		path, body, note string
		tok              picker.Tokenizer
	}{
		{"/v1/chat/completions", `{"model":"m","messages":[{"role":"user","content":"hi"}]}`, "image parts", refusing{}},
		{"/v1/chat/completions", `{"model":"m","messages":[{"role":"user","content":"hi"}]}`, "no tokenizer", nil},
		{"/v1/completions", `{"model":"m","prompt":["a","b"]}`, "2 of 2 prompts are not tokenized: no tokenizer", nil},
		{"/v1/embeddings", `{"model":"m","input":[{"type":"image_url","image_url":{"url":"http://x/y.png"}}]}`, "no text", refusing{}},
		{"/tokenize", `{"prompt":"hi"}`, "tokenize", refusing{}},
	} {
		p := newPool(t, decision.Defaults(), picker.Options{Tokenizer: c.tok}, "a")
		pk, err := p.Pick(context.Background(), picker.Incoming{ID: "1", Method: "POST", Path: c.path, Body: []byte(c.body)})
		if err != nil {
			t.Errorf("%s: %v", c.path, err)
			continue
		}
		rec := p.last()
		if rec.TokenSource != epp.NoTokens || !strings.Contains(rec.TokenNote, c.note) || rec.MatchRatio(0) != 0 {
			t.Errorf("%s: %v, %q", c.path, rec.TokenSource, rec.TokenNote)
		}
		pk.End(picker.Served)
	}
}

// TestExample5WheneverAPageIsRead is the article's burst with every order of
// events: 16 held requests fill the slots of 4 engines, then 50 arrive for one
// prefix. Requests reach their engine late and in any order, pages are begun,
// made and read at any moment between picks. It is always 20/10/10/10.
func TestExample5WheneverAPageIsRead(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := decision.Defaults()
		s.Load.MaxRunning = 4
		names := []string{"hot", "b", "c", "d"}
		p := newPool(t, s, picker.Options{Log: slog.New(slog.DiscardHandler)}, names...)
		prefix := count(1, 160)
		p.members["hot"].Apply(start, stored(prefix, 16))
		engines := map[string]*burstEngine{}
		for _, n := range names {
			engines[n] = &burstEngine{m: p.members[n]}
		}
		ask := func(tokens []uint32) string {
			pk, err := p.completion("m", tokens, "")
			if err != nil {
				t.Fatalf("%v", err)
			}
			e := engines[pk.Endpoint.Name]
			e.coming = append(e.coming, pk)
			return pk.Endpoint.Name
		}
		for i := range uint32(16) {
			ask(count(10_000+100*i, 20))
		}
		for _, e := range engines {
			for len(e.coming) > 0 {
				e.arrive(0, true)
			}
			e.read(0)
			e.read(1)
			e.read(2)
		}
		got := map[string]int{}
		for i := range uint32(50) {
			for range rapid.IntRange(0, 4).Draw(t, "events") {
				e := engines[rapid.SampledFrom(names).Draw(t, "engine")]
				if len(e.coming) > 0 && rapid.Bool().Draw(t, "arrives") {
					e.arrive(rapid.IntRange(0, len(e.coming)-1).Draw(t, "which"), rapid.Bool().Draw(t, "answer begins"))
				} else {
					e.read(rapid.IntRange(0, 2).Draw(t, "step of reading"))
				}
			}
			got[ask(append(prefix, count(100_000+100*i, 16)...))]++
		}
		if diff := cmp.Diff(map[string]int{"hot": 20, "b": 10, "c": 10, "d": 10}, got); diff != "" {
			t.Fatalf("%s", diff)
		}
	})
}

// burstEngine is an engine of 4 slots that answers nobody: requests come to it,
// and its page is read in three steps that may lie apart.
type burstEngine struct {
	m       *fleet.Member
	coming  []*picker.Pick // picked, not there yet
	there   int
	reading bool
	mark    int
	page    *epp.Load
}

// arrive lets a request reach the engine; its headers may be sent at once, as
// vLLM sends a stream's.
func (e *burstEngine) arrive(i int, headers bool) {
	pk := e.coming[i]
	e.coming = append(e.coming[:i:i], e.coming[i+1:]...)
	e.there++
	if headers {
		pk.ResponseHeader(200, "text/event-stream", "")
	}
}

// read does a step of reading the page, if it is its turn: begin, make, hand over.
func (e *burstEngine) read(step int) {
	switch {
	case step == 0 && !e.reading:
		e.reading, e.mark = true, e.m.Begin(start)
	case step == 1 && e.reading && e.page == nil:
		e.page = &epp.Load{Running: epp.Known(float64(min(4, e.there))), Waiting: epp.Known(float64(max(0, e.there-4)))}
	case step == 2 && e.page != nil:
		e.m.Load(e.mark, start, *e.page)
		e.reading, e.page = false, nil
	}
}
