// Package tokenize gives the exact tokens of a request's prompt: step 2 of a
// request's way in. It joins two halves, chat (the request to the prompt's text,
// as vLLM makes it) and bpe (text to token IDs, as the model's tokenizer does), and
// remembers what it has tokenized, so that a growing conversation costs its new
// part.
//
//	t, err := tokenize.New(tokenizerJSON, tokenizerConfigJSON)
//	ids, err := t.Chat(body, nil) // the engine's own token IDs
//
// Invariants: the tokens are the engine's or there are none (an error), for a
// wrong token looks like a cold cache for ever; what the cache returns is what
// tokenizing anew returns; its memory is bounded by [CacheBytes].
package tokenize

import (
	"fmt"
	"time"

	"epp.internal/epp/openai"
	"epp.internal/epp/tokenize/bpe"
	"epp.internal/epp/tokenize/chat"
)

// Tokenizer tokenizes for one model. Its methods may be called by several
// goroutines at once.
type Tokenizer struct {
	bpe    *bpe.Tokenizer
	chat   *chat.Template
	chunks *chunkCache
}

// New reads a model's tokenizer.json and tokenizer_config.json. A feature of
// either that is not known is an error that names it.
func New(tokenizerJSON, tokenizerConfigJSON []byte) (*Tokenizer, error) {
	return NewWith("", tokenizerJSON, tokenizerConfigJSON)
}

// NewWith is New with the text of the model's chat_template.jinja, if it has one.
func NewWith(chatTemplate string, tokenizerJSON, tokenizerConfigJSON []byte) (*Tokenizer, error) {
	b, err := bpe.Load(tokenizerJSON)
	if err != nil {
		return nil, fmt.Errorf("tokenizer: %w", err)
	}
	c, err := chat.LoadWith(chatTemplate, tokenizerConfigJSON)
	if err != nil {
		return nil, fmt.Errorf("tokenizer: %w", err)
	}
	return &Tokenizer{bpe: b, chat: c, chunks: newChunkCache(CacheBytes)}, nil
}

// SetClock gives the clock for chat templates that write today's date; see
// [chat.Template.SetClock].
func (t *Tokenizer) SetClock(now func() time.Time) { t.chat.SetClock(now) }

// Chat appends the tokens of a chat's prompt to dst. It returns dst as it was
// beside an error: one that is [chat.ErrNotRenderable] where only the engine can
// tell the prompt, any other where the engine refuses the request too.
func (t *Tokenizer) Chat(b *openai.Body, dst []uint32) ([]uint32, error) {
	text, err := t.chat.Render(b)
	if err != nil {
		return dst, err
	}
	return t.appendCached(dst, text), nil
}

// Text appends the tokens of a completion's prompt to dst, with those that the
// model's tokenizer puts around a text by itself (add_special_tokens, which is
// true for completions by default).
func (t *Tokenizer) Text(s string, dst []uint32) []uint32 { return t.bpe.AppendSpecial(dst, s) }

// Decode returns the text of token IDs; an unknown ID has none.
func (t *Tokenizer) Decode(ids []uint32) string { return t.bpe.Decode(ids) }

// ChatTokens returns the tokens of a chat completion's body.
func (t *Tokenizer) ChatTokens(body []byte) ([]uint32, error) {
	b, err := openai.Read("/v1/chat/completions", body)
	if b == nil {
		return nil, err
	}
	return t.Chat(b, nil)
}

// CompletionTokens returns the tokens of a completion's prompt.
func (t *Tokenizer) CompletionTokens(text string) []uint32 { return t.Text(text, nil) }

// appendCached appends the tokens of text, chunk by chunk. Cut behind an added
// token the chunks' tokens, joined, are those of the whole: see
// [bpe.Tokenizer.Borders].
func (t *Tokenizer) appendCached(dst []uint32, text string) []uint32 {
	cut := 0
	for end := range t.bpe.Borders(text) {
		if end-cut < minChunkBytes {
			continue
		}
		chunk := text[cut:end]
		cut = end
		ids, hash, ok := t.chunks.get(chunk)
		if ok {
			dst = append(dst, ids...)
			continue
		}
		from := len(dst)
		dst = t.bpe.Append(dst, chunk)
		t.chunks.put(hash, chunk, dst[from:])
	}
	return t.bpe.Append(dst, text[cut:])
}
