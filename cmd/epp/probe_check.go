package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"epp.internal/epp"
	"epp.internal/epp/config"
	"epp.internal/epp/kvevents"
	"epp.internal/epp/openai"
	"epp.internal/epp/scrape"
)

const (
	// maxProbeAnswer bounds an answer that a probe reads.
	maxProbeAnswer = 4 << 20
	// probePrompts bounds the prompts that are computed until one shows in the
	// events, probeWait how long each may take to show: a subscription takes a
	// moment to arrive, and what is published before is not seen.
	probePrompts = 5
	probeWait    = time.Second
	// A prompt is made of token IDs from probeFirst to probeLast, which every
	// model's vocabulary has, and which are plain pieces of text.
	probeFirst, probeLast = 100, 999
)

// withoutEvents is what routing does without KV events.
const withoutEvents = "its cache is guessed from the picker's own picks (cache.source: auto); with cache.source: events no prompt matches here"

// inspection asks one engine for all that the picker reads of one.
type inspection struct {
	address, events, replay, tokenizer string
	timeout                            time.Duration

	client *http.Client
	report findings
	base   epp.Model // the model that is asked
	load   epp.Load  // as the page said before anything was asked
}

// run asks, and reports every fact in the same order each time.
func (p *inspection) run(ctx context.Context) *findings {
	ctx, cancel := context.WithTimeout(ctx, p.timeout)
	defer cancel()
	p.client = scrape.Client(nil)
	defer p.client.CloseIdleConnections()
	p.report.Address = p.address
	p.checkVersion(ctx)
	p.checkModels(ctx)
	awake := p.checkAwake(ctx)
	p.checkEvents(ctx, awake)
	p.checkMetrics(ctx) // after the prompts: vLLM's page has no adapters before its first request
	p.checkTokens(ctx)
	p.report.Understood = p.report.notOK() == 0
	return &p.report
}

func (p *inspection) ok(name, format string, args ...any) {
	p.report.Facts = append(p.report.Facts, fact{Name: name, State: factOK, Detail: fmt.Sprintf(format, args...)})
}

func (p *inspection) not(state, name, detail, without string) {
	p.report.Facts = append(p.report.Facts, fact{name, state, detail, without})
}

// told adds a fact that is ok or missing.
func (p *inspection) told(ok bool, name, detail, missing, without string) {
	if ok {
		p.ok(name, "%s", detail)
	} else {
		p.not(factMissing, name, missing, without)
	}
}

// call asks one path, and reads the JSON of its answer into out. A nil body is a
// GET.
func (p *inspection) call(ctx context.Context, path string, body []byte, out any) error {
	method := http.MethodGet
	if body != nil {
		method = http.MethodPost
	}
	req, err := http.NewRequestWithContext(ctx, method, "http://"+p.address+path, bytes.NewReader(body))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := p.client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(io.LimitReader(resp.Body, maxProbeAnswer))
	switch {
	case err != nil:
		return err
	case resp.StatusCode != http.StatusOK:
		return fmt.Errorf("%s: status %d", path, resp.StatusCode)
	}
	if err := json.Unmarshal(data, out); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	return nil
}

func (p *inspection) checkVersion(ctx context.Context) {
	var v struct{ Version string }
	if err := p.call(ctx, "/version", nil, &v); err != nil || v.Version == "" {
		p.not(factUnknown, "version", "the engine does not tell it", "nothing changes: forms are told apart by what is in them")
		return
	}
	p.ok("version", "%s", v.Version)
}

func (p *inspection) checkModels(ctx context.Context) {
	const without = "every request goes here, whatever model it names, and its adapters are not told from base models"
	models, err := scrape.Models(ctx, p.client, p.address)
	switch {
	case err != nil:
		p.not(factMissing, "models", err.Error(), without)
		return
	case len(models) == 0:
		p.not(factMissing, "models", "/v1/models lists none", "no request that names a model goes here")
		return
	}
	var names []string
	for _, m := range models {
		if m.Parent != "" {
			names = append(names, m.Name+" (adapter)")
			continue
		}
		names = append(names, m.Name)
		p.base = cmp.Or(p.base, m)
	}
	p.ok("models", "%s", strings.Join(names, ", "))
}

// checkAwake reads the page a first time: for the size of the blocks, and whether
// the engine sleeps, since it would then hold what it is asked for ever.
func (p *inspection) checkAwake(ctx context.Context) (awake bool) {
	page, err := scrape.Fetch(ctx, p.client, p.address)
	if err != nil {
		return true // checkMetrics tells of it
	}
	var out scrape.Page
	_ = scrape.Parse(page, scrape.VLLM.Names, "", &out) // the same
	p.load = out.Load
	if out.Load.Asleep {
		p.not(factMissing, "awake", "the engine was put to sleep", "it gets no request until it wakes")
	}
	return !out.Load.Asleep
}

// checkMetrics tells what the page has.
func (p *inspection) checkMetrics(ctx context.Context) {
	page, err := scrape.Fetch(ctx, p.client, p.address)
	if err != nil {
		p.not(factMissing, "metrics", err.Error(), "load, queue and adapters are what the picker itself has sent, and the engine's health falls to 0.3")
		return
	}
	var out scrape.Page
	if err := scrape.Parse(page, scrape.VLLM.Names, "", &out); err != nil {
		p.not(factMissing, "metrics", err.Error(), "the value is unknown")
	}
	l, names := &out.Load, &scrape.VLLM.Names
	p.told(l.Waiting.Known, "metrics.waiting", fmt.Sprintf("%.0f requests wait", l.Waiting.Value), "no "+names.Waiting[0],
		"the queue is the picker's own requests in flight beyond the slots it knows of")
	p.told(l.Running.Known, "metrics.running", fmt.Sprintf("%.0f requests run", l.Running.Value), "no "+names.Running[0],
		"the load is the picker's own requests in flight")
	p.told(l.KVUsage.Known, "metrics.kvUsage", fmt.Sprintf("%.2f of the KV cache is in use", l.KVUsage.Value), "no "+strings.Join(names.KVUsage, " or "),
		"load.source: kv has nothing to count")
	p.told(l.BlockTokens > 0 && l.Blocks > 0, "metrics.cache", fmt.Sprintf("%d blocks of %d tokens", l.Blocks, l.BlockTokens), "no "+names.Cache,
		"the size of blocks is known from KV events alone")
	p.told(l.PromptTokens.Known && l.CachedTokens.Known && l.FirstTokenSeconds.Known, "metrics.counters", "prompt tokens, cached tokens, times to first token",
		fmt.Sprintf("no %s, %s or %s", names.PromptTokens, names.CachedTokens, names.FirstTokenSeconds),
		"where answers stream past the picker, a prompt's tokens count as in flight until the answer ends")
	p.told(bytes.Contains(page, []byte("\n"+names.Sleep+"{")), "metrics.sleep", "awake or asleep", "no "+names.Sleep,
		"an engine that is put to sleep is not noticed, and requests hang there")
	switch models, _ := scrape.Models(ctx, p.client, p.address); {
	case bytes.Contains(page, []byte("\n"+names.Adapters+"{")):
		p.ok("metrics.adapters", "at most %d at once", l.MaxAdapters)
	case slices.ContainsFunc(models, func(m epp.Model) bool { return m.Parent != "" }):
		p.not(factMissing, "metrics.adapters", "no "+names.Adapters, "an adapter counts as loaded where the picker itself has sent it")
	default:
		p.ok("metrics.adapters", "the engine serves none")
	}
}

// checkEvents subscribes to the events, has prompts computed, and looks for their
// blocks in what comes.
func (p *inspection) checkEvents(ctx context.Context, awake bool) {
	src, err := p.source(ctx)
	var h *hearing
	if err != nil {
		p.not(factMissing, "events", err.Error(), withoutEvents)
	} else {
		p.ok("events", "at %s", src.Address)
		p.told(src.Replay != "", "events.replay", "at "+src.Replay, "no replay socket", "what was cached before the picker started, or while a message was lost, stays unknown")
		h = newHearing()
		var sub sync.WaitGroup
		defer sub.Wait()
		ctx, stop := context.WithCancel(ctx)
		defer stop()
		s := kvevents.Subscriber{Address: src.Address, Replay: src.Replay, Topic: src.Topic, Sink: h, Hooks: h.hooks(), Log: slog.New(slog.DiscardHandler)}
		sub.Go(func() { _ = s.Run(ctx) }) // ends with ctx
	}
	if !awake || p.base.Name == "" {
		why := map[bool]string{true: "no model is known that could be asked", false: "the engine sleeps"}[awake]
		for _, name := range []string{"events.blocks", "usage", "cache"} {
			p.not(factUnknown, name, why, "")
		}
		return
	}
	p.compute(ctx, h)
}

// source is where the events come from, as the picker would know it.
func (p *inspection) source(ctx context.Context) (kvevents.Source, error) {
	if p.events != "" {
		return kvevents.Source{Address: p.events, Replay: p.replay}, nil
	}
	sources, err := kvevents.Sources(ctx, p.client, p.address)
	switch {
	case err != nil:
		return kvevents.Source{}, err
	case len(sources) == 0:
		return kvevents.Source{}, errors.New("the engine names no source of KV events (--kv-events-config; --events names one)")
	case len(sources) > 1:
		return kvevents.Source{}, fmt.Errorf("%d data-parallel ranks behind one address: name each rank's own address and events", len(sources))
	}
	return sources[0], nil
}

// compute has prompts computed until the events show one, and that one once more:
// its usage tells what was cached. h is nil where nothing is heard.
func (p *inspection) compute(ctx context.Context, h *hearing) {
	var prompt []uint32
	var block epp.BlockEvent
	heard := false
	var err error
	for i := 0; i < probePrompts && !heard && err == nil; i++ {
		prompt = p.prompt()
		if _, err = p.complete(ctx, prompt); err != nil || h == nil {
			break
		}
		block, heard = h.await(ctx, prompt)
	}
	var u usage
	if err == nil {
		u, err = p.complete(ctx, prompt)
	}
	if err != nil {
		p.not(factMissing, "completions", err.Error(), "nothing can be computed here")
	}
	if h != nil {
		p.told(heard, "events.blocks", fmt.Sprintf("a prompt's blocks of %d tokens", block.BlockTokens), "no event tells of a prompt that was computed"+h.faults(),
			withoutEvents)
	}
	const noAudit = "what was predicted is not compared with what was cached"
	switch {
	case err != nil:
		p.not(factUnknown, "usage", "no answer", noAudit)
		p.not(factUnknown, "cache", "no answer", "")
	case u.Details == nil:
		p.not(factMissing, "usage", "no prompt_tokens_details (--enable-prompt-tokens-details)", noAudit)
		p.not(factUnknown, "cache", "usage tells no cached tokens", "")
	default:
		p.ok("usage", "prompt_tokens and cached_tokens")
		p.told(u.Details.Cached > 0, "cache", fmt.Sprintf("%d of a repeated prompt's %d tokens were cached", u.Details.Cached, u.Prompt),
			"a repeated prompt was computed anew (--enable-prefix-caching)", "there is no prefix to route by")
	}
}

// prompt is two blocks and a token of random tokens, or what the model takes.
func (p *inspection) prompt() []uint32 {
	n := 2*cmp.Or(p.load.BlockTokens, 128) + 1
	if most := p.base.MaxTokens; most > 0 {
		n = min(n, most-1)
	}
	ids := make([]uint32, n)
	for i := range ids {
		ids[i] = probeFirst + rand.Uint32N(probeLast-probeFirst+1)
	}
	return ids
}

// usage is what an answer says of its prompt.
type usage struct {
	Prompt  int `json:"prompt_tokens"`
	Details *struct {
		Cached int `json:"cached_tokens"`
	} `json:"prompt_tokens_details"`
}

// complete asks for one token after a prompt.
func (p *inspection) complete(ctx context.Context, prompt []uint32) (usage, error) {
	body, err := json.Marshal(map[string]any{"model": p.base.Name, "prompt": prompt, "max_tokens": 1, "temperature": 0})
	if err != nil {
		return usage{}, err
	}
	var out struct{ Usage usage }
	err = p.call(ctx, "/v1/completions", body, &out)
	return out.Usage, err
}

// probeChats are compared where a tokenizer is given: plain, with tools, and of
// several turns.
var probeChats = []string{
	`"messages":[{"role":"user","content":"Hello, world! Grüße 你好 🙂 3.14"}]`,
	`"messages":[{"role":"system","content":"s"},{"role":"user","content":"a"},{"role":"assistant","content":"b"},{"role":"user","content":"c\n\nd"}]`,
	`"messages":[{"role":"user","content":"weather?"}],"tools":[{"type":"function","function":{"name":"weather","description":"tells it","parameters":{"type":"object","properties":{"city":{"type":"string"}}}}}]`,
}

// checkTokens asks for a chat's tokens, and compares them with those of the
// tokenizer that the picker is to use.
func (p *inspection) checkTokens(ctx context.Context) {
	const without = "the picker's tokenizer cannot be compared with the engine's"
	var cfg config.Config
	cfg.Tokenizer.Path = p.tokenizer
	tok, err := loadTokenizer(&cfg, slog.New(slog.DiscardHandler))
	if err != nil {
		cfg.Tokenizer.AskEngines = true
		unread := "engines are asked for each prompt's tokens (tokenizer.askEngines: true); without that only prompts sent as token IDs match a block"
		if _, fatal := loadTokenizer(&cfg, slog.New(slog.DiscardHandler)); fatal != nil {
			unread = "the picker does not start"
		}
		p.not(factMissing, "tokenizer", err.Error(), unread)
		return
	}
	same := 0
	for i, chat := range probeChats {
		body := fmt.Appendf(nil, `{"model":%q,%s}`, p.base.Name, chat)
		var out struct{ Tokens []uint32 }
		err := p.call(ctx, "/tokenize", body, &out)
		if err == nil && len(out.Tokens) == 0 {
			err = errors.New("/tokenize tells none")
		}
		if err != nil {
			p.not(factMissing, "tokens", err.Error(), without)
			return
		}
		if tok == nil {
			continue
		}
		b, err := openai.Read("/v1/chat/completions", body)
		if err == nil {
			var ours []uint32
			if ours, err = tok.Chat(ctx, b, nil); err == nil && !slices.Equal(ours, out.Tokens) {
				err = fmt.Errorf("%d tokens, %d by the engine", len(ours), len(out.Tokens))
			}
		}
		if err != nil {
			p.not(factMissing, "tokenizer", fmt.Sprintf("chat %d: %v", i+1, err), "chats match less than is cached, or nothing")
			return
		}
		same++
	}
	p.ok("tokens", "/tokenize tells a chat's")
	if tok != nil {
		p.ok("tokenizer", "%d chats have the engine's own tokens", same)
	}
}
