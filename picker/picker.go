package picker

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"

	"epp.internal/epp"
	"epp.internal/epp/block"
	"epp.internal/epp/decision"
	"epp.internal/epp/fleet"
	"epp.internal/epp/kvindex"
	"epp.internal/epp/openai"
	"epp.internal/epp/route"
)

// Tokenizer turns a prompt into exactly the tokens that the engine will see.
// Its methods append to dst and may be called by any number of goroutines.
type Tokenizer interface {
	Chat(b *openai.Body, dst []uint32) ([]uint32, error)
	Text(s string, dst []uint32) []uint32
}

// ModelRule says what a name means that clients use.
type ModelRule struct {
	// Target is the name that endpoints know; empty: the same.
	Target string
	// Adapter is true where Target is a LoRA adapter.
	Adapter bool
}

// Hooks are told what happens. A nil func is not called. They must not block,
// and must not keep what they are given.
type Hooks struct {
	// Decided is called after each decision, with what it was, refusals too.
	Decided func(rec *decision.Record)
	// Ended is called when a request that was picked has ended.
	Ended func(rec *Ending)
}

// Ending is what became of a request.
type Ending struct {
	// Model is the name that the endpoint knows it by.
	Model    string
	Endpoint epp.Endpoint
	// OurTokens is our own count of the prompt's tokens, 0 where it had none;
	// PredictedTokens is how many of them the endpoint was predicted to have cached.
	OurTokens, PredictedTokens int
	decision.End
}

// Options of a Picker. Fleet, Index and Policy have no default.
type Options struct {
	Fleet  *fleet.Table
	Index  *kvindex.Index
	Policy *route.Policy
	// Key roots the block hashes; it is the one that Index was made with.
	Key block.Key
	// Tokenizer makes prompts into tokens. Nil: prompts are not tokenized, and
	// no prompt matches unless the client sends token IDs.
	Tokenizer Tokenizer
	// Models are the names that the configuration gives a meaning. They win over
	// what endpoints list.
	Models map[string]ModelRule
	// Fallbacks is how many further endpoints a Pick names.
	Fallbacks int
	// Ring keeps the records. Nil: one of the default size.
	Ring *decision.Ring
	// Log gets the three log points of every request. Nil: none.
	Log   *slog.Logger
	Hooks Hooks
	// Now is the clock, Seed draws a seed for each decision. Nil: the real ones.
	Now  func() time.Time
	Seed func() uint64
}

// Picker decides for every request of one pool. Its methods may be called by
// any number of goroutines.
type Picker struct {
	opt     Options
	policy  atomic.Pointer[route.Policy]
	scratch sync.Pool // of *scratch
}

// New returns a picker.
func New(opt Options) *Picker {
	if opt.Ring == nil {
		opt.Ring = decision.NewRing(0)
	}
	if opt.Log == nil {
		opt.Log = slog.New(slog.DiscardHandler)
	}
	if opt.Now == nil {
		opt.Now = time.Now
	}
	if opt.Seed == nil {
		opt.Seed = rand.Uint64
	}
	p := &Picker{opt: opt}
	p.policy.Store(opt.Policy)
	p.scratch.New = func() any { return new(scratch) }
	return p
}

// SetPolicy makes later decisions by policy; those under way end by the old one.
func (p *Picker) SetPolicy(policy *route.Policy) { p.policy.Store(policy) }

// Ring returns where the records are.
func (p *Picker) Ring() *decision.Ring { return p.opt.Ring }

// NewID returns a new requestID, a random UUID (version 4).
func NewID() string { return uuid.NewString() }

// scratch is the memory of one request's pipeline, used again by later ones.
type scratch struct {
	tokens []uint32
	sizes  []int
	chains [][]uint64 // one per block size, as sizes
	counts []uint32   // by slot
	match  []epp.Match
}

// Pick reads the request, decides where it runs and books it there. The error,
// if any, is an *epp.Error; nothing is booked then. The context bounds what may
// wait; nothing does so far.
func (p *Picker) Pick(ctx context.Context, in Incoming) (*Pick, error) {
	pk := &Pick{owner: p, s: p.scratch.Get().(*scratch), Body: in.Body, sight: in.Sight}
	pk.Request = epp.Request{
		ID: in.ID, ClientID: in.ClientID, Path: in.Path, Subset: in.Subset, Received: p.opt.Now(),
	}
	err := pk.prepare(&in)
	if err == nil {
		err = pk.decide(ctx)
	} else {
		pk.refuse(err)
	}
	if err != nil {
		pk.free()
		return nil, err
	}
	return pk, nil
}

// prepare reads the body, resolves the model, and makes the prompt into block
// hashes: all that a decision needs of the request itself.
func (pk *Pick) prepare(in *Incoming) error {
	p, start := pk.owner, pk.owner.opt.Now()
	if e := in.ContentEncoding; e != "" && !strings.EqualFold(e, "identity") {
		return epp.Errorf(epp.UnsupportedEncoding, "encoding_unsupported", "content-encoding %.40q: send the body uncompressed", e)
	}
	if len(in.Body) == 0 && in.Method == "GET" {
		return nil
	}
	body, err := openai.Read(in.Path, in.Body)
	if err != nil && !(body != nil && !needsModel(body.Form)) {
		return err
	}
	pk.Request.Stream, pk.Request.Salt = body.Stream, body.Salt
	if err := pk.resolve(body); err != nil {
		return err
	}
	read := p.opt.Now()
	pk.tokenize(body)
	tokenized := p.opt.Now()
	pk.chain()
	pk.timings = decision.Timings{Read: read.Sub(start), Tokenize: tokenized.Sub(read), Match: p.opt.Now().Sub(tokenized)}
	if log := p.opt.Log; log.Enabled(context.Background(), slog.LevelDebug) {
		pk.logReceived(log)
	}
	return nil
}

// needsModel reports whether a body of this form must name its model: an engine
// tokenizes with its only model where none is named.
func needsModel(f openai.Form) bool {
	return f != openai.Tokenize && f != openai.Detokenize && f != openai.Other
}

// resolve finds what the asked model's name means: the configuration wins over
// what endpoints list, a name that both don't know is an error, and where no
// endpoint has shown a list yet every name is taken as a base model's.
func (pk *Pick) resolve(body *openai.Body) error {
	p, r := pk.owner, &pk.Request
	r.Model, r.Target = body.Model, body.Model
	if r.Model == "" {
		return nil
	}
	if rule, ok := p.opt.Models[r.Model]; ok {
		if rule.Target != "" && rule.Target != r.Model {
			r.Target = rule.Target
			pk.Body = body.WithModel(r.Target)
		}
		if rule.Adapter {
			r.Adapter = r.Target
		}
	}
	m, found, listed := p.opt.Fleet.Model(r.Target)
	switch {
	case found && m.Parent != "":
		r.Adapter = r.Target
	case !found && listed:
		e := epp.Errorf(epp.NotFound, "model_unknown", "model %.80q does not exist: GET /v1/models lists those that do", r.Model)
		e.Param = "model"
		return e
	}
	return nil
}

// tokenize fills the request's tokens, or notes why it has none.
func (pk *Pick) tokenize(body *openai.Body) {
	r, t := &pk.Request, pk.owner.opt.Tokenizer
	note := func(text string) { pk.tokenNote = text }
	switch {
	case body.Form == openai.Completions && len(body.Prompts) == 1 && body.Prompts[0].Tokens != nil:
		r.Tokens, r.TokenSource = body.Prompts[0].Tokens, epp.SentTokens
	case body.Form != openai.Chat && body.Form != openai.Completions:
		note("a " + body.Form.String() + " request is not tokenized")
	case t == nil:
		note("no tokenizer is configured")
	case body.Form == openai.Completions && len(body.Prompts) != 1:
		note("several prompts in one request are not tokenized")
	case body.Form == openai.Completions:
		pk.s.tokens = t.Text(body.Prompts[0].Text, pk.s.tokens[:0])
		r.Tokens, r.TokenSource = pk.s.tokens, epp.LocalTokens
	default:
		tokens, err := t.Chat(body, pk.s.tokens[:0])
		if err != nil {
			note("chat template: " + err.Error())
			return
		}
		pk.s.tokens = tokens
		r.Tokens, r.TokenSource = tokens, epp.LocalTokens
	}
}

// chain hashes the prompt's full blocks, once for each block size of the pool.
func (pk *Pick) chain() {
	s, r := pk.s, &pk.Request
	s.sizes = pk.owner.opt.Fleet.BlockSizes(s.sizes[:0])
	for len(s.chains) < len(s.sizes) {
		s.chains = append(s.chains, nil)
	}
	s.chains = s.chains[:len(s.sizes)]
	for i, size := range s.sizes {
		root := pk.owner.opt.Key.Root(block.Root{Adapter: r.Adapter, Salt: r.Salt, BlockTokens: size})
		s.chains[i] = block.AppendChain(s.chains[i][:0], root, r.Tokens, size)
	}
}

// matchAll fills s.match by slot with the longest match of each endpoint.
func (pk *Pick) matchAll() {
	s, p := pk.s, pk.owner
	n := p.opt.Fleet.Slots()
	s.match = append(s.match[:0], make([]epp.Match, n)...)
	if cap(s.counts) < n {
		s.counts = make([]uint32, n)
	}
	s.counts = s.counts[:n]
	for i, size := range s.sizes {
		if len(s.chains[i]) == 0 {
			continue
		}
		p.opt.Index.Match(s.chains[i], s.counts)
		for slot, blocks := range s.counts {
			if int(blocks)*size > s.match[slot].Tokens() {
				s.match[slot] = epp.Match{Blocks: blocks, BlockTokens: uint32(size)}
			}
		}
	}
}

// decide matches, picks and books, and records it.
func (pk *Pick) decide(ctx context.Context) error {
	p, r, s := pk.owner, &pk.Request, pk.s
	policy := p.policy.Load()
	began := p.opt.Now()
	pk.matchAll()
	rec := p.opt.Ring.New()
	pk.describe(rec)
	now, seed := p.opt.Now(), p.opt.Seed()
	rec.Timings.Match += now.Sub(began)
	in := route.Input{Request: r, Match: s.match, BlockedTokens: rec.BlockedTokens, Now: now}
	var err error
	booking, ok := p.opt.Fleet.Pick(fleet.Query{Target: r.Target, Adapter: r.Adapter}, now, func(v epp.View) (int, int) {
		in.View = v
		var i int
		if i, err = policy.Pick(&in, seed, pk.tried, rec); err != nil {
			return -1, 0
		}
		pk.Endpoint = v.Endpoints[i]
		pk.Fallbacks = pk.Fallbacks[:0]
		for _, k := range route.Ranked(rec, p.opt.Fallbacks) {
			pk.Fallbacks = append(pk.Fallbacks, v.Endpoints[k])
		}
		pk.predicted = rec.Candidates[i].CachedTokens(len(r.Tokens))
		return i, len(r.Tokens) - pk.predicted
	})
	rec.Timings.Score = p.opt.Now().Sub(now)
	pk.finishRecord(ctx, rec)
	if !ok {
		if err == nil {
			err = errors.New("route chose nothing")
		}
		return err
	}
	pk.booking = booking
	if pk.sight != SeesAll {
		booking.ReleaseTokensByRate(now)
	}
	return nil
}

// describe fills the request's part of a record.
func (pk *Pick) describe(rec *decision.Record) {
	r := &pk.Request
	rec.RequestID, rec.ClientID, rec.Path = r.ID, r.ClientID, r.Path
	rec.Model, rec.Target, rec.Adapter = r.Model, r.Target, r.Adapter
	rec.PromptTokens, rec.TokenSource, rec.TokenNote = len(r.Tokens), r.TokenSource, pk.tokenNote
	rec.Timings, rec.Attempt, rec.Sight = pk.timings, pk.attempt+1, pk.sight.String()
	if len(pk.s.sizes) > 0 {
		rec.BlockTokens = pk.s.sizes[0]
		rec.BlockedTokens = len(pk.s.chains[0]) * pk.s.sizes[0]
	}
}

// finishRecord logs the record, shows it to the hooks and puts it into the ring.
func (pk *Pick) finishRecord(ctx context.Context, rec *decision.Record) {
	logDecision(ctx, pk.owner.opt.Log, rec)
	pk.logTrace(ctx, pk.owner.opt.Log, rec)
	if f := pk.owner.opt.Hooks.Decided; f != nil {
		f(rec)
	}
	pk.seq = pk.owner.opt.Ring.Put(rec)
}

// refuse records a request that was refused before any decision.
func (pk *Pick) refuse(err error) {
	rec := pk.owner.opt.Ring.New()
	pk.s.sizes, pk.s.chains = pk.s.sizes[:0], pk.s.chains[:0]
	pk.describe(rec)
	rec.At, rec.Settings = pk.Request.Received, pk.owner.policy.Load().Settings
	rec.Refused = epp.AsError(err).Reason
	pk.finishRecord(context.Background(), rec)
}
