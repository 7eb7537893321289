package picker

import (
	"cmp"
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
// Its methods append to dst and may be called by any number of goroutines. They end
// soon after ctx has, with its error.
type Tokenizer interface {
	Chat(ctx context.Context, b *openai.Body, dst []uint32) ([]uint32, error)
	Text(ctx context.Context, s string, dst []uint32) ([]uint32, error)
}

// Hooks are told what happens. A nil func is not called. They must not block,
// and must not keep what they are given.
type Hooks struct {
	// Decided is called after each decision, with what it was, refusals too. chain
	// has the hashes of the prompt's full blocks, each of rec.BlockTokens tokens and
	// all before, under the picker's key; nil where nothing is known of the prompt, or
	// there are several.
	Decided func(rec *decision.Record, chain []uint64)
	// Ended is called when a request that was picked has ended.
	Ended func(rec *Ending)
	// Asked is called for each question to an engine for tokens, however it ended.
	Asked func(AskResult)
}

// Ending is what became of a request.
type Ending struct {
	RequestID string
	Attempt   int
	// Model is the name that the endpoint knows it by.
	Model    string
	Endpoint epp.Endpoint
	// PredictedTokens is how many of the prompt's tokens the endpoint was predicted
	// to have cached.
	PredictedTokens int
	decision.End
}

// Options of a Picker. Fleet, Index and Policy have no default.
type Options struct {
	Fleet  *fleet.Table
	Index  *kvindex.Index
	Policy *route.Policy
	// Key roots the block hashes; it is the one that Index was made with.
	Key block.Key
	// Tokenizer makes prompts into tokens. Nil: AskEngine is asked, and where
	// that is nil too no prompt matches unless the client sends token IDs.
	Tokenizer Tokenizer
	// MaxPromptBytes bounds the text that is tokenized of a request, default
	// DefaultMaxPromptBytes. A longer one has no tokens.
	MaxPromptBytes int
	// AskEngine has the engine at an endpoint tokenize the body of a request to path, "/tokenize"
	// or "/v1/chat/completions/render", where Tokenizer is nil or says
	// [chat.ErrNotRenderable]. It is called by many goroutines; a request waits
	// for it no longer than AskBudget, default DefaultAskBudget, whatever it does.
	// An *epp.Error of kind BadRequest says that the engine refuses the request, one of
	// kind NotFound that it has no such path or no such model. The endpoint is a healthy
	// one of the target's, and another where the last one failed.
	AskEngine func(ctx context.Context, at epp.Endpoint, path string, body []byte) ([]uint32, error)
	AskBudget time.Duration
	// Learn is the approximate mode, for endpoints that tell nothing of their
	// caches, and for prompts of which no endpoint can tell: a prompt counts as
	// cached where one ran that began the same, from its first token on and for
	// LearnTTL, default DefaultLearnTTL. LearnBlocks bounds what is remembered,
	// default DefaultLearnBlocks. Prompts without tokens are told apart by their
	// bytes. Where an edge sees no token, a whole answer teaches; where it sees
	// headers alone, nothing does.
	Learn       bool
	LearnTTL    time.Duration
	LearnBlocks int
	// Names are what names mean until SetNames.
	Names Names
	// MaxDecodedBytes bounds a compressed body once it is decoded, and
	// MaxDecodedBytesTotal those of all requests in flight. 0:
	// DefaultMaxDecodedBytes and DefaultMaxDecodedBytesTotal.
	MaxDecodedBytes, MaxDecodedBytesTotal int
	// ForwardEncoded sends a compressed body on as it came, if nothing in it
	// changes: for engines that decode bodies. vLLM and SGLang don't, so by
	// default the decoded body is sent.
	ForwardEncoded bool
	// Predict has every record hold what policy latency and the gate predict from,
	// whether the policy uses it or not.
	Predict bool
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
	names   atomic.Pointer[Names]
	scratch sync.Pool // of *scratch
	reader  *openai.Reader
	decoder decoder
	turns   turns
	asker   *asker   // nil: no engine is asked
	learned *learned // nil: nothing is learned from our own picks
	recent  recent

	// joinsParts and mergesSystem are what the template does, putsAround what the
	// tokenizer does, found out once.
	joinsParts, mergesSystem, putsAround func() bool
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
	opt.AskBudget = cmp.Or(opt.AskBudget, DefaultAskBudget)
	opt.MaxPromptBytes = cmp.Or(opt.MaxPromptBytes, DefaultMaxPromptBytes)
	opt.LearnTTL = cmp.Or(opt.LearnTTL, DefaultLearnTTL)
	opt.LearnBlocks = cmp.Or(opt.LearnBlocks, DefaultLearnBlocks)
	p := &Picker{opt: opt, turns: newTurns(), asker: newAsker(&opt), learned: newLearned(&opt), reader: openai.NewReader(openai.ReaderBytes)}
	p.decoder.each = cmp.Or(opt.MaxDecodedBytes, DefaultMaxDecodedBytes)
	p.decoder.total = cmp.Or(opt.MaxDecodedBytesTotal, DefaultMaxDecodedBytesTotal)
	p.joinsParts = sync.OnceValue(p.templateJoinsParts)
	p.mergesSystem = sync.OnceValue(p.templateMergesSystem)
	p.putsAround = sync.OnceValue(p.tokenizerPutsAround)
	p.policy.Store(opt.Policy)
	p.SetNames(opt.Names)
	p.scratch.New = func() any { return new(scratch) }
	p.warnSources()
	return p
}

// SetPolicy makes later decisions by policy; those under way end by the old one.
func (p *Picker) SetPolicy(policy *route.Policy) { p.policy.Store(policy) }

// Policy returns what decisions are made by now.
func (p *Picker) Policy() *route.Policy { return p.policy.Load() }

// Ring returns where the records are.
func (p *Picker) Ring() *decision.Ring { return p.opt.Ring }

// NewID returns a new requestID, a random UUID (version 4).
func NewID() string { return uuid.NewString() }

// scratch is the memory of one request's pipeline, used again by later ones.
type scratch struct {
	tokens  []uint32 // of all prompts, one behind the other
	prompts []prompt
	sizes   []int
	chains  [][]uint64 // one per block size, as sizes: of all prompts, one behind the other
	counts  []uint32   // by slot
	sums    []uint32   // by slot, matched blocks over all prompts
	lacks   []float32  // by slot, what these are worth less, in blocks
	match   []epp.Match
	heard   []epp.Match // match without what was learned from our own picks
}

// Pick reads the request, decides where it runs and books it there. The error,
// if any, is an *epp.Error; nothing is booked then. Only questions to engines for
// tokens may wait, until ctx ends and for Options.AskBudget in all at most, and
// prompts of more than 256 KiB for each other.
func (p *Picker) Pick(ctx context.Context, in Incoming) (*Pick, error) {
	pk := p.begin(&in)
	err := pk.prepare(ctx, &in)
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

// begin returns a pick of which nothing is known but what the edge says.
func (p *Picker) begin(in *Incoming) *Pick {
	pk := &Pick{owner: p, s: p.scratch.Get().(*scratch), Body: in.Body, sight: in.Sight, seed: p.opt.Seed()}
	pk.Request = epp.Request{
		ID: in.ID, ClientID: cut(in.ClientID, maxClientID), Path: in.Path, Subset: in.Subset, Received: p.opt.Now(),
	}
	return pk
}

// Gone records, as refused, a request whose client went away before its edge had the
// whole body: there was nothing to decide.
func (p *Picker) Gone(in Incoming) {
	pk := p.begin(&in)
	pk.refuse(epp.Errorf(epp.BadRequest, ClientGone.String(), "client went away before its body was whole"))
	pk.free()
}

// prepare reads the body, resolves the model, and makes the prompt into block
// hashes: all that a decision needs of the request itself.
func (pk *Pick) prepare(ctx context.Context, in *Incoming) error {
	p, start := pk.owner, pk.owner.opt.Now()
	pk.BodyEncoding = in.ContentEncoding
	if len(in.Body) == 0 && in.Method == "GET" {
		return nil
	}
	plain, held, fault := p.decoder.decode(in.ContentEncoding, in.Body)
	if fault != nil {
		return fault
	}
	pk.decoded = held
	body, err := p.reader.Read(in.Path, plain)
	if body == nil {
		return err
	}
	pk.Request.Stream, pk.Request.Salt = body.Stream, body.Salt
	if err := pk.resolve(body, in.Objective, err); err != nil {
		return err
	}
	pk.encode(in, body, plain)
	read := p.opt.Now()
	pk.tokenize(ctx, body)
	tokenized := p.opt.Now()
	pk.chain()
	pk.timings = decision.Timings{Read: read.Sub(start), Tokenize: tokenized.Sub(read), Match: p.opt.Now().Sub(tokenized)}
	if log := p.opt.Log; log.Enabled(context.Background(), slog.LevelDebug) {
		pk.logReceived(log)
	}
	return nil
}

// encode sets the body to send and its Content-Encoding.
func (pk *Pick) encode(in *Incoming, body *openai.Body, plain []byte) {
	pk.Body = plain
	if pk.Request.Target != "" {
		pk.Body = body.WithModel(pk.Request.Target)
	}
	if len(plain) == 0 || len(in.Body) > 0 && &plain[0] == &in.Body[0] {
		return // it came plain
	}
	if pk.owner.opt.ForwardEncoded && &pk.Body[0] == &plain[0] {
		pk.Body = in.Body
		return
	}
	pk.BodyEncoding = ""
}

// needsModel reports whether a body of this form must name its model: an engine
// tokenizes with its only model where none is named.
func needsModel(f openai.Form) bool {
	return f != openai.Tokenize && f != openai.Detokenize && f != openai.Other
}

// Bounds of what clients name, in bytes: what is longer is in no list of models,
// and cut in records and logs.
const (
	maxModel    = 256
	maxClientID = 128
)

// cut returns at most n bytes of s.
func cut(s string, n int) string {
	if len(s) <= n {
		return s
	}
	return strings.ToValidUTF8(s[:n], "") + "…"
}

// decide matches, picks and books, and records it.
func (pk *Pick) decide(ctx context.Context) error {
	p, r, s := pk.owner, &pk.Request, pk.s
	policy := p.policy.Load()
	began := p.opt.Now()
	pk.matchAll()
	rec := p.opt.Ring.New()
	pk.describe(rec)
	now := p.opt.Now()
	rec.Timings.Match += now.Sub(began)
	in := route.Input{Request: r, Match: s.match, BlockedTokens: rec.BlockedTokens, Predict: p.opt.Predict, Now: now}
	var err error
	booking, ok := p.opt.Fleet.Pick(fleet.Query{Target: r.Target, Adapter: r.Adapter, PromptTokens: len(pk.promptTokens)}, now, func(v epp.View) (int, int) {
		in.View = v
		if pk.guessed {
			pk.trust(v)
		}
		var i int
		if i, err = policy.Pick(&in, pk.seed, pk.tried, rec); err != nil {
			return -1, 0
		}
		pk.Endpoint = v.Endpoints[i]
		pk.unheard = !v.Signals[i].Heard || pk.ownAlone()
		pk.Fallbacks = pk.Fallbacks[:0]
		for _, k := range route.Ranked(rec, p.opt.Fallbacks) {
			pk.Fallbacks = append(pk.Fallbacks, v.Endpoints[k])
		}
		pk.predicted = pk.cachedAt(&rec.Candidates[i])
		return i, len(pk.promptTokens) - pk.predicted*(100-int(v.Signals[i].Doubt))/100
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
	pk.warnAdapters(rec)
	pk.remember(now, &rec.Candidates[rec.Chosen])
	if pk.sight != SeesAll || !r.Stream { // a whole answer does not tell when its first token came
		booking.ReleaseTokensByRate(now)
	}
	return nil
}

// describe fills the request's part of a record.
func (pk *Pick) describe(rec *decision.Record) {
	r := &pk.Request
	rec.RequestID, rec.ClientID, rec.Path = r.ID, r.ClientID, r.Path
	rec.Model, rec.Target, rec.Adapter, rec.Priority = r.Model, r.Target, r.Adapter, r.Priority
	rec.PromptTokens, rec.TokenSource, rec.TokenNote = len(pk.promptTokens), r.TokenSource, pk.tokenNote
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
		f(rec, pk.chainOf())
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
