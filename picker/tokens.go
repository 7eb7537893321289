package picker

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

	"epp.internal/epp"
	"epp.internal/epp/openai"
	"epp.internal/epp/tokenize/chat"
)

const (
	// maxPrompts bounds the prompts of one request that are matched. A guess: a
	// batch of embeddings has up to 2,048, and its first ones tell enough.
	maxPrompts = 256
	// maxByteTokens bounds the pieces of one prompt that is known by its bytes
	// alone: 1 MiB of it.
	maxByteTokens = 1 << 18
)

// errLeft is why a request has no tokens where nobody waits for it any longer.
var errLeft = errors.New("the client left")

// prompt is one prompt of a request, which is matched on its own.
type prompt struct {
	// end is where its tokens end in the request's tokens; they begin where the
	// one before ends.
	end int
	// media names the first picture in it, which lies from token mediaAt on;
	// empty for a prompt of text alone.
	media   string
	mediaAt int
}

// tokenize fills the request's tokens, or notes why it has none.
func (pk *Pick) tokenize(ctx context.Context, body *openai.Body) {
	s, r := pk.s, &pk.Request
	s.tokens, s.prompts = s.tokens[:0], s.prompts[:0]
	asked, end := pk.question(ctx)
	defer end()
	switch {
	case body.Form == openai.Tokenize || body.Form == openai.Detokenize || body.Form == openai.Other:
		pk.tokenNote = "a " + body.Form.String() + " request is not tokenized"
		return
	case len(body.Prompts) == 1 && body.Prompts[0].Tokens != nil:
		pk.promptTokens = body.Prompts[0].Tokens
		s.prompts = append(s.prompts, prompt{end: len(pk.promptTokens)})
		r.Tokens, r.TokenSource = pk.promptTokens, epp.SentTokens
		return
	case body.Form == openai.Completions || body.Form == openai.Rerank || len(body.Prompts) > 0:
		pk.tokenizePrompts(ctx, body, asked)
	default:
		pk.tokenizeChat(ctx, body, asked)
	}
	if r.TokenSource != epp.NoTokens {
		pk.promptTokens = s.tokens
		r.Tokens = s.tokens
	} else if pk.owner.learned != nil {
		pk.approximate(body)
	}
}

// ask has an engine tokenize the body of a request to path.
type ask func(path string, body []byte) ([]uint32, error)

// question returns what asks an engine for tokens, or nil where no engine can be
// asked. The request's budget begins with the first question, and all share it.
// end frees what it holds.
func (pk *Pick) question(ctx context.Context) (_ ask, end func()) {
	a := pk.owner.asker
	if a == nil {
		return nil, func() {}
	}
	var budget context.Context
	stop := func() {}
	return func(path string, body []byte) ([]uint32, error) {
		if budget == nil {
			budget, stop = context.WithTimeout(ctx, a.budget)
		}
		return a.tokens(budget, pk.Request.Target, path, body)
	}, func() { stop() }
}

// tokenizePrompts tokenizes prompts one by one. What has no tokens is left out of
// the match, on both sides of the ratio.
func (pk *Pick) tokenizePrompts(ctx context.Context, body *openai.Body, ask ask) {
	s, r := pk.s, &pk.Request
	done, why := pk.owner.turns.take(ctx, body.TextBytes(nil), pk.owner.opt.MaxPromptBytes)
	defer done()
	if why != "" {
		pk.tokenNote = why
		return
	}
	var missing int
	var reason string
	for i := range body.Prompts {
		if ctx.Err() != nil {
			missing, reason = missing+len(body.Prompts)-i, errLeft.Error()
			break
		}
		if i == maxPrompts {
			missing, reason = missing+len(body.Prompts)-maxPrompts, fmt.Sprintf("only the first %d are matched", maxPrompts)
			break
		}
		source, why := pk.tokenizePrompt(ctx, body, &body.Prompts[i], ask)
		if source == epp.NoTokens {
			missing, reason = missing+1, why
			continue
		}
		s.prompts = append(s.prompts, prompt{end: len(s.tokens)})
		if r.TokenSource != epp.LocalTokens && r.TokenSource != epp.EngineTokens {
			r.TokenSource = source
		}
	}
	pk.partial = missing > 0 || body.Form == openai.Rerank // which joins its pairs in ways of its own
	switch {
	case len(body.Prompts) == 0:
		pk.tokenNote = "the body has no text to tokenize"
	case missing > 0 && len(body.Prompts) == 1:
		pk.tokenNote = reason
	case missing > 0:
		pk.tokenNote = fmt.Sprintf("%d of %d prompts are not tokenized: %s", missing, len(body.Prompts), reason)
	}
}

// tokenizePrompt appends one prompt's tokens and says where they come from, or
// why there are none.
func (pk *Pick) tokenizePrompt(ctx context.Context, body *openai.Body, p *openai.Prompt, ask ask) (source epp.TokenSource, why string) {
	s, t := pk.s, pk.owner.opt.Tokenizer
	bare, ok := body.Root.Get("add_special_tokens").Truth()
	bare = !bare && body.Root.Get("add_special_tokens").Kind() > openai.Null // given, and false
	switch {
	case p.Tokens != nil:
		s.tokens = append(s.tokens, p.Tokens...)
		return epp.SentTokens, ""
	case p.Opaque:
		return epp.NoTokens, "it is no text"
	case !ok || body.Root.Get("truncate_prompt_tokens").Kind() > openai.Null:
		return epp.NoTokens, "truncate_prompt_tokens or add_special_tokens is set"
	case t != nil && !(bare && pk.owner.putsAround()):
		tokens, err := t.Text(ctx, p.Text, s.tokens)
		if err == nil && p.Pair != "" {
			tokens, err = t.Text(ctx, p.Pair, tokens)
		}
		if err != nil {
			return epp.NoTokens, errLeft.Error()
		}
		s.tokens = tokens
		return epp.LocalTokens, ""
	case ask == nil && t == nil:
		return epp.NoTokens, "no tokenizer is configured"
	case ask == nil || p.Pair != "":
		return epp.NoTokens, "the tokenizer cannot make these"
	}
	tokens, err := ask("/tokenize", openai.TokenizeBody(pk.Request.Target, p.Text, !bare))
	if err != nil {
		return epp.NoTokens, err.Error()
	}
	s.tokens = append(s.tokens, tokens...)
	return epp.EngineTokens, ""
}

// tokenizeChat tokenizes a chat, or what an engine makes a chat of.
func (pk *Pick) tokenizeChat(ctx context.Context, body *openai.Body, ask ask) {
	s, r, t := pk.s, &pk.Request, pk.owner.opt.Tokenizer
	if t == nil && ask == nil {
		pk.tokenNote = "no tokenizer is configured"
		return
	}
	if t == nil && body.InlineSystem() {
		pk.tokenNote = "a system message stands inside of the messages, and no template is known"
		return
	}
	c, err := body.AsChat(body.InlineSystem() && pk.owner.mergesSystem())
	if err != nil {
		pk.tokenNote = "not a chat that can be rendered here: " + err.Error()
		return
	}
	media := c.Media()
	done, why := pk.owner.turns.take(ctx, c.TextBytes(media), pk.owner.opt.MaxPromptBytes)
	defer done()
	if why != "" {
		pk.tokenNote = why
		return
	}
	if len(media) > 0 {
		pk.tokenizeMedia(ctx, c, media)
		return
	}
	reason := "no tokenizer is configured"
	if t != nil {
		tokens, err := t.Chat(ctx, c, s.tokens)
		if err == nil {
			s.tokens, r.TokenSource = tokens, epp.LocalTokens
			s.prompts = append(s.prompts, prompt{end: len(tokens)})
			return
		}
		if ctx.Err() != nil {
			pk.tokenNote = errLeft.Error()
			return
		}
		reason = "chat template: " + err.Error()
		if ask == nil || !errors.Is(err, chat.ErrNotRenderable) {
			pk.tokenNote = reason
			return
		}
	}
	tokens, err := ask(askPath(c), c.Question(r.Target))
	if err != nil {
		pk.tokenNote = reason + "; " + err.Error()
		return
	}
	pk.tokenNote = "asked an engine: " + reason
	s.tokens, r.TokenSource = append(s.tokens, tokens...), epp.EngineTokens
	s.prompts = append(s.prompts, prompt{end: len(s.tokens)})
}

// askPath is where an engine tells a chat's tokens. Its /tokenize does not know
// all fields of a chat; where one of those is set, the newer /render must be asked.
//
// Source: vLLM, TokenizeChatRequest.
func askPath(c *openai.Body) string {
	for _, key := range [...]string{"reasoning_effort", "documents", "truncate_prompt_tokens", "prompt_embeds", "kv_transfer_params"} {
		if c.Root.Get(key).Kind() > openai.Null {
			return "/v1/chat/completions/render"
		}
	}
	return "/tokenize"
}

// tokenizeMedia tokenizes a chat that holds pictures or sound. Nothing is fetched:
// the engine's name for a picture is unknown, and how many tokens it takes. So
// the tokens before the first one are exact, and those behind it have the
// pictures' IDs in their place: they are the same for the same conversation, and
// meet nothing that an engine tells (see chain).
//
// Where the first one stands is where two prompts part that differ in it alone.
func (pk *Pick) tokenizeMedia(ctx context.Context, c *openai.Body, media []openai.Media) {
	s, t := pk.s, pk.owner.opt.Tokenizer
	if t == nil {
		pk.tokenNote = "no tokenizer is configured, and an engine is not asked about media"
		return
	}
	front := pk.owner.joinsParts()
	render := func(mark string, dst []uint32) ([]uint32, error) {
		b, err := openai.Read("/v1/chat/completions", c.WithText(media, front, func(i int) string {
			if i == 0 {
				return mark + media[i].ID
			}
			return media[i].ID
		}))
		if b == nil {
			return nil, err
		}
		return t.Chat(ctx, b, dst)
	}
	tokens, err := render("a", s.tokens)
	var other []uint32
	if err == nil {
		other, err = render("7", nil)
	}
	if ctx.Err() != nil {
		pk.tokenNote = errLeft.Error()
		return
	}
	if err != nil {
		pk.tokenNote = "chat template: " + err.Error()
		return
	}
	at := 0
	for at < len(tokens) && at < len(other) && tokens[at] == other[at] {
		at++
	}
	s.tokens = tokens
	s.prompts = append(s.prompts, prompt{end: len(tokens), media: media[0].ID, mediaAt: at})
	pk.Request.TokenSource, pk.partial = epp.LocalTokens, true
	pk.tokenNote = fmt.Sprintf("%d media by reference: exact up to token %d, from there on known by our own picks alone", len(media), at)
}

// approximate takes a prompt's bytes for its tokens, four at a time, which is
// about what a token of English has. They meet no engine's tokens; they tell
// which of our own earlier prompts began the same.
func (pk *Pick) approximate(body *openai.Body) {
	s := pk.s
	var text []byte
	add := func(parts ...string) {
		for _, p := range parts {
			text = append(text, p[:min(len(p), max(0, 4*maxByteTokens-len(text)))]...)
		}
	}
	end := func() {
		for piece := range slices.Chunk(text, 4) {
			if len(piece) == 4 {
				s.tokens = append(s.tokens, binary.LittleEndian.Uint32(piece))
			}
		}
		s.prompts = append(s.prompts, prompt{end: len(s.tokens)})
		text = text[:0]
	}
	s.tokens, s.prompts = s.tokens[:0], s.prompts[:0]
	for i := range body.Prompts[:min(len(body.Prompts), maxPrompts)] {
		if p := &body.Prompts[i]; !p.Opaque {
			add(p.Text, p.Pair)
			end()
		}
	}
	if len(body.Prompts) == 0 {
		c, err := body.AsChat(true)
		if err != nil {
			return
		}
		add(c.Root.Get("tools").Raw(), c.Root.Get("documents").Raw())
		for _, m := range c.Root.Get("messages").Items() {
			add(m.Raw())
		}
		end()
	}
	pk.promptTokens, pk.byBytes = s.tokens, true
	pk.Request.TokenSource = epp.ApproximateTokens
	pk.tokenNote = "approximate, by the prompt's bytes and our own picks: " + pk.tokenNote
}

// The chats that tell how the model's template, and so its engine, treats what
// the client's form leaves open.
const (
	probeParts  = `{"model":"m","messages":[{"role":"user","content":[{"type":"text","text":"a"},{"type":"text","text":"b"}]}]}`
	probeJoined = `{"model":"m","messages":[{"role":"user","content":"a\nb"}]}`
	probeSystem = `{"model":"m","messages":[{"role":"system","content":"t"},{"role":"user","content":"t"},{"role":"system","content":"t"},{"role":"user","content":"t"}],"add_generation_prompt":false}`
)

// probe renders a chat of our own.
func (p *Picker) probe(text string) ([]uint32, error) {
	b, err := openai.Read("/v1/chat/completions", []byte(text))
	if err != nil {
		return nil, err
	}
	return p.opt.Tokenizer.Chat(context.Background(), b, nil)
}

// tokenizerPutsAround reports whether the tokenizer puts tokens of its own around a
// text.
func (p *Picker) tokenizerPutsAround() bool {
	tokens, err := p.opt.Tokenizer.Text(context.Background(), "", nil)
	return err != nil || len(tokens) > 0
}

// templateJoinsParts reports whether the template takes a content of several parts
// as one text: then the engine puts pictures in front of it.
func (p *Picker) templateJoinsParts() bool {
	parts, err := p.probe(probeParts)
	joined, joinedErr := p.probe(probeJoined)
	return err != nil || joinedErr != nil || slices.Equal(parts, joined)
}

// templateMergesSystem reports whether the template refuses a system message
// behind the first place: then the engine merges them for the form of Anthropic.
//
// Source: vLLM, _detect_merge_inline_system.
func (p *Picker) templateMergesSystem() bool {
	_, err := p.probe(probeSystem)
	return err != nil
}
