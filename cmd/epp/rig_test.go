package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"epp.internal/epp/config"
	"epp.internal/epp/decision"
	"epp.internal/epp/engine"
	"epp.internal/epp/epptest"
	"epp.internal/epp/epptest/demotok"
	"epp.internal/epp/fleet"
	"epp.internal/epp/picker"
	"epp.internal/epp/tokenize"
)

// TestMain runs the tests, or is the command itself where a test has started it
// as one.
func TestMain(m *testing.M) {
	if os.Getenv(asCommand) != "" {
		main()
		return
	}
	// The publisher that TestCaseB2 sends from is zmq4's, which can miss its own
	// Close; nothing that ships uses it.
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction("github.com/go-zeromq/zmq4.(*pubMWriter).run"))
}

// patience bounds what a test waits for. Nothing is measured by it.
const patience = 60 * time.Second

// rig is a whole picker in front of fake engines, over real sockets.
type rig struct {
	t       *testing.T
	ctx     context.Context
	engines []*epptest.Engine
	sys     *system
	url     string // the proxy's
	page    string // the metrics page's
	at      addresses
	log     *logLines
	tok     *tokenize.Tokenizer
	client  *http.Client
	waiter

	mu      sync.Mutex // guards the following fields
	decided []*decision.Record
}

// logLines keeps what is logged.
type logLines struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *logLines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

// find returns the lines with the given message of the given request.
func (l *logLines) find(msg, requestID string) (lines []map[string]any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, line := range strings.Split(l.b.String(), "\n") {
		var m map[string]any
		if json.Unmarshal([]byte(line), &m) == nil && m["msg"] == msg && (requestID == "" || m["requestID"] == requestID) {
			lines = append(lines, m)
		}
	}
	return lines
}

func (l *logLines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// options are what a test changes of a rig.
type options struct {
	engines int
	engine  func(i int, c *epptest.EngineConfig)
	config  func(c *config.Config, engines []*epptest.Engine)
	// unsettled does not wait until all endpoints are known.
	unsettled bool
	// blind is a picker without a tokenizer.
	blind bool
	level slog.Level
}

// newRig starts engines a hundred times faster than profile article-8b, and the
// picker in front of them.
func newRig(t *testing.T, o options) *rig {
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	model, settings := demotok.Files()
	tok, err := tokenize.New(model, settings)
	if err != nil {
		t.Fatal(err)
	}
	r := &rig{t: t, ctx: ctx, log: &logLines{}, tok: tok, waiter: newWaiter()}
	cfg := config.Default()
	for i := range o.engines {
		profile, _ := engine.ProfileNamed("article-8b")
		c := epptest.EngineConfig{
			Name: string(rune('A' + i)), Model: "tiny", Engine: engine.Config{Profile: profile}, TimeScale: 0.01,
			Tokenizer: tok, AnswerTokens: answerTokens(tok),
		}
		if o.engine != nil {
			o.engine(i, &c)
		}
		e, err := epptest.StartEngine(c)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = e.Close() })
		r.engines = append(r.engines, e)
		cfg.Pool.Endpoints = append(cfg.Pool.Endpoints, config.Endpoint{Name: c.Name, Address: e.Address()})
	}
	cfg.Listen = config.Listen{Proxy: "127.0.0.1:0", Metrics: "127.0.0.1:0"}
	cfg.Timeouts.Drain.Duration = time.Millisecond
	if o.config != nil {
		o.config(cfg, r.engines)
	}
	r.start(cfg, o)
	return r
}

func (r *rig) start(cfg *config.Config, o options) {
	t := r.t
	log := slog.New(slog.NewJSONHandler(r.log, &slog.HandlerOptions{Level: o.level, ReplaceAttr: nameTrace}))
	var err error
	var tok picker.Tokenizer = r.tok
	if o.blind {
		tok = nil
	}
	r.sys, err = build(cfg, tok, log, watch{decided: r.onDecision, changed: r.changed})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	ready, done := make(chan addresses, 1), make(chan error, 1)
	go func() { done <- r.sys.run(ctx, func(at addresses) { ready <- at }) }()
	r.client = &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 100}}
	t.Cleanup(func() {
		r.client.CloseIdleConnections()
		stop()
		if err := <-done; err != nil {
			t.Errorf("run: %v", err)
		}
	})
	r.at = <-ready
	r.url, r.page = "http://"+r.at.proxy, "http://"+r.at.metrics
	if !o.unsettled {
		r.until("the fleet is known", r.sys.settled)
	}
}

func answerTokens(tok *tokenize.Tokenizer) (ids []uint32) {
	for _, w := range demotok.Words() {
		ids = append(ids, tok.CompletionTokens(" "+w)...)
	}
	return ids
}

func (r *rig) onDecision(rec *decision.Record) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.decided = append(r.decided, rec.Clone())
}

// picks counts the decisions so far by the endpoint they chose.
func (r *rig) picks() map[string]int {
	r.mu.Lock()
	defer r.mu.Unlock()
	n := map[string]int{}
	for _, rec := range r.decided {
		if rec.Chosen >= 0 {
			n[rec.Candidates[rec.Chosen].Name]++
		}
	}
	return n
}

func (r *rig) decisions() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.decided)
}

// forget drops the decisions seen so far.
func (r *rig) forget() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.decided = nil
}

// until waits for what.
func (r *rig) until(what string, ok func() bool) {
	r.t.Helper()
	if err := r.await(r.ctx, ok); err != nil {
		r.t.Fatalf("waiting until %s: %v\n%s", what, err, r.log)
	}
}

// state is what the fleet knows of the named endpoint.
func (r *rig) state(name string) fleet.State {
	for _, s := range r.sys.fleet.Snapshot() {
		if s.Endpoint.Name == name {
			return s
		}
	}
	r.t.Fatalf("no endpoint %q", name)
	return fleet.State{}
}

func (r *rig) engine(name string) *epptest.Engine {
	for _, e := range r.engines {
		if e.Name() == name {
			return e
		}
	}
	r.t.Fatalf("no engine %q", name)
	return nil
}

// caughtUp waits until the index holds for each endpoint as many blocks as its
// engine does: all events have come.
func (r *rig) caughtUp() {
	r.t.Helper()
	r.until("the index has caught up", func() bool {
		for _, e := range r.engines {
			if r.state(e.Name()).Blocks != e.Blocks() {
				return false
			}
		}
		return true
	})
}

// atRest waits until every booking has ended, and verifies that no bound ended one.
func (r *rig) atRest() {
	r.t.Helper()
	r.until("the ledger is 0", func() bool { l := r.sys.fleet.Ledger(); return l.Requests == 0 && l.Tokens == 0 })
	if l := r.sys.fleet.Ledger(); l.Bound != 0 {
		r.t.Errorf("%d bookings were ended by their bound", l.Bound)
	}
}

// reply is an answer of the proxy.
type reply struct {
	status   int
	header   http.Header
	body     []byte
	servedBy string
	id       string
	err      error
}

// text is the content of a chat's answer.
func (p *reply) text() string {
	var b struct {
		Choices []struct{ Message struct{ Content string } }
	}
	_ = json.Unmarshal(p.body, &b)
	if len(b.Choices) == 0 {
		return ""
	}
	return b.Choices[0].Message.Content
}

// usage is the engine's own count.
func (p *reply) usage() (prompt, cached int) {
	var b struct {
		Usage struct {
			PromptTokens        int `json:"prompt_tokens"`
			PromptTokensDetails struct {
				CachedTokens int `json:"cached_tokens"`
			} `json:"prompt_tokens_details"`
		}
	}
	_ = json.Unmarshal(p.body, &b)
	return b.Usage.PromptTokens, b.Usage.PromptTokensDetails.CachedTokens
}

// post sends a body to a path of the proxy.
func (r *rig) post(path string, body any, headers ...string) *reply {
	return r.postTo(r.url+path, body, headers...)
}

// postTo sends a body, bytes or what becomes JSON, and reads the whole answer.
func (r *rig) postTo(url string, body any, headers ...string) *reply {
	data, ok := body.([]byte)
	if !ok {
		var err error
		if data, err = json.Marshal(body); err != nil {
			r.t.Error(err)
		}
	}
	req, err := http.NewRequestWithContext(r.ctx, http.MethodPost, url, bytes.NewReader(data))
	if err != nil {
		return &reply{err: err}
	}
	req.Header.Set("Content-Type", "application/json")
	for i := 0; i+1 < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	resp, err := r.client.Do(req)
	if err != nil {
		return &reply{err: err}
	}
	defer resp.Body.Close()
	p := &reply{status: resp.StatusCode, header: resp.Header, servedBy: resp.Header.Get("x-served-by"), id: resp.Header.Get("x-epp-request-id")}
	p.body, p.err = io.ReadAll(resp.Body)
	return p
}

// chat asks for an answer to what was said.
func (r *rig) chat(said []message, maxTokens int, more ...string) *reply {
	body := map[string]any{"model": "tiny", "messages": said, "max_tokens": maxTokens, "ignore_eos": true}
	for i := 0; i+1 < len(more); i += 2 {
		body[more[i]] = json.RawMessage(more[i+1]) // keeps the order of its keys
	}
	return r.post("/v1/chat/completions", body)
}

// must is a chat that has to succeed.
func (r *rig) must(said []message, maxTokens int, more ...string) *reply {
	r.t.Helper()
	p := r.chat(said, maxTokens, more...)
	if p.err != nil || p.status != http.StatusOK {
		r.t.Fatalf("chat: %d %s %v\n%s", p.status, p.body, p.err, r.log)
	}
	return p
}

// record is what was decided for an answer.
func (r *rig) record(p *reply) *decision.Record {
	r.t.Helper()
	rec := r.sys.ring.Find(p.id)
	if rec == nil {
		r.t.Fatalf("no record of request %q", p.id)
	}
	return rec
}

// matchRatio is the match ratio of the chosen endpoint.
func (r *rig) matchRatio(p *reply) float64 {
	rec := r.record(p)
	return rec.MatchRatio(rec.Chosen)
}

// words are n tokens of text, the same for the same seed.
func words(seed uint64, n int) string {
	rng := rand.New(rand.NewPCG(seed, 7))
	list := demotok.Words()
	var b strings.Builder
	for range n {
		b.WriteString(" " + list[rng.IntN(len(list))])
	}
	return b.String()
}

func user(text string) message { return message{"user", text} }

// metric is the sum of a family's samples on the metrics page whose line holds
// all of the given texts.
func (r *rig) metric(name string, texts ...string) float64 {
	r.t.Helper()
	page := r.metricsPage()
	if !strings.Contains(page, "# TYPE "+name+" ") && len(texts) == 0 {
		r.t.Errorf("no metric %s on the page", name)
	}
	sum := 0.0
lines:
	for _, line := range strings.Split(page, "\n") {
		if !strings.HasPrefix(line, name+"{") && !strings.HasPrefix(line, name+" ") {
			continue
		}
		for _, text := range texts {
			if !strings.Contains(line, text) {
				continue lines
			}
		}
		var v float64
		if _, err := fmt.Sscan(line[strings.LastIndex(line, " ")+1:], &v); err != nil {
			r.t.Fatal(err)
		}
		sum += v
	}
	return sum
}

func (r *rig) metricsPage() string {
	r.t.Helper()
	resp, err := r.client.Get(r.page + "/metrics")
	if err != nil {
		r.t.Fatal(err)
	}
	defer resp.Body.Close()
	page, err := io.ReadAll(resp.Body)
	if err != nil {
		r.t.Fatal(err)
	}
	return string(page)
}

// even fails unless each of the named endpoints has between half and 1.6 times
// its share.
func even(t *testing.T, counts map[string]int, names ...string) {
	t.Helper()
	total := 0
	for _, n := range counts {
		total += n
	}
	share := float64(total) / float64(len(names))
	for _, name := range names {
		if n := float64(counts[name]); n < share/2 || n > share*1.6 {
			t.Errorf("uneven: %v", counts)
			return
		}
	}
}
