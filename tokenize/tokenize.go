// Package tokenize gives the exact tokens of a request's prompt: step 2 of a
// request's way in. It joins two halves, chat (the request to the prompt's text,
// as vLLM makes it) and bpe (text to token IDs, as the model's tokenizer does), and
// remembers what it has tokenized, so that a growing conversation costs its new
// part.
//
//	t, err := tokenize.New(tokenizerJSON, tokenizerConfigJSON)
//	ids, err := t.Chat(ctx, body, nil) // the engine's own token IDs
//
// Invariants: the tokens are the engine's or there are none (an error), for a
// wrong token looks like a cold cache for ever; what the cache returns is what
// tokenizing anew returns; its memory is bounded by [CacheBytes].
package tokenize

import (
	"context"
	"fmt"
	"time"

	"epp.internal/epp/openai"
	"epp.internal/epp/tokenize/bpe"
	"epp.internal/epp/tokenize/chat"
)

// Files is what decides a model's tokens: the contents of its folder's files,
// and one option of the engine.
type Files struct {
	Tokenizer       []byte // tokenizer.json
	TokenizerConfig []byte // tokenizer_config.json
	ChatTemplate    string // chat_template.jinja, "" if there is none
	// Config is config.json, nil if it is not at hand. Without it a model that has
	// no template, such as gpt-oss, can't be told from others.
	Config []byte
	// Mode is the engine's --tokenizer-mode, "" for "auto". With auto, vLLM takes
	// "mistral" for a folder that holds consolidated*.safetensors and tekken.json.
	Mode string
}

// Tokenizer tokenizes for one model. Its methods may be called by several
// goroutines at once.
type Tokenizer struct {
	bpe    *bpe.Tokenizer
	chat   *chat.Template // nil if no template makes the prompt
	reason string         // why it is nil
	chunks *chunkCache
}

// New is [Load] of the two files that every model has.
func New(tokenizerJSON, tokenizerConfigJSON []byte) (*Tokenizer, error) {
	return Load(Files{Tokenizer: tokenizerJSON, TokenizerConfig: tokenizerConfigJSON})
}

// Load reads a model's files. A feature of one that is not known is an error that
// names it. A model whose chats the engine renders by code of its own is none:
// its texts have tokens, its chats are [chat.ErrNotRenderable].
func Load(f Files) (*Tokenizer, error) {
	t := &Tokenizer{chunks: newChunkCache(CacheBytes)}
	c, err := readConfig(f.Config)
	if err == nil {
		t.bpe, err = bpe.Load(f.Tokenizer)
	}
	if err == nil {
		err = c.sameWay(f.TokenizerConfig, t.bpe.Way())
	}
	if err != nil {
		return nil, fmt.Errorf("tokenizer: %w", err)
	}
	if t.reason = c.noTemplate(f.Mode); t.reason != "" {
		return t, nil
	}
	if t.chat, err = chat.Load(f.ChatTemplate, f.TokenizerConfig); err != nil {
		return nil, fmt.Errorf("tokenizer: %w", err)
	}
	return t, nil
}

// SetClock gives the clock for chat templates that write today's date; see
// [chat.Template.SetClock].
func (t *Tokenizer) SetClock(now func() time.Time) {
	if t.chat != nil {
		t.chat.SetClock(now)
	}
}

// Chat appends the tokens of a chat's prompt to dst. It returns dst as it was
// beside an error: one that is [chat.ErrNotRenderable] where only the engine can
// tell the prompt, that of ctx where it ended before a long text was done, any other
// where the engine refuses the request too.
func (t *Tokenizer) Chat(ctx context.Context, b *openai.Body, dst []uint32) ([]uint32, error) {
	if t.chat == nil {
		return dst, fmt.Errorf("%w: %s", chat.ErrNotRenderable, t.reason)
	}
	stop, done := stopper(ctx), true
	ids := dst
	err := t.chat.RenderTo(b, func(text string) {
		if done {
			ids, done = t.appendCached(ids, text, stop)
		}
	})
	if err == nil && !done {
		err = ctx.Err()
	}
	if err != nil {
		return dst, err
	}
	return ids, nil
}

// Text appends the tokens of a completion's prompt to dst, with those that the
// model's tokenizer puts around a text by itself (add_special_tokens, which is
// true for completions by default). The only error is ctx's, where that ended before
// a long text was done; dst is as it was then.
func (t *Tokenizer) Text(ctx context.Context, s string, dst []uint32) ([]uint32, error) {
	ids, done := t.bpe.AppendSpecialUntil(dst, s, stopper(ctx))
	if !done {
		return dst, ctx.Err()
	}
	return ids, nil
}

// stopper returns what tells whether ctx has ended, nil if it never does.
func stopper(ctx context.Context) func() bool {
	if ctx.Done() == nil {
		return nil
	}
	return func() bool { return ctx.Err() != nil }
}

// Decode returns the text of token IDs; an unknown ID has none.
func (t *Tokenizer) Decode(ids []uint32) string { return t.bpe.Decode(ids) }

// ChatTokens returns the tokens of a chat completion's body.
func (t *Tokenizer) ChatTokens(body []byte) ([]uint32, error) {
	b, err := openai.Read("/v1/chat/completions", body)
	if b == nil {
		return nil, err
	}
	return t.Chat(context.Background(), b, nil)
}

// CompletionTokens returns the tokens of a completion's prompt.
func (t *Tokenizer) CompletionTokens(text string) []uint32 { return t.bpe.AppendSpecial(nil, text) }

// appendCached appends the tokens of text, chunk by chunk. Cut behind an added
// token the chunks' tokens, joined, are those of the whole: see
// [bpe.Tokenizer.Borders]. done is false where stop returned true before the end.
func (t *Tokenizer) appendCached(dst []uint32, text string, stop func() bool) (_ []uint32, done bool) {
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
		if dst, done = t.bpe.AppendUntil(dst, chunk, stop); !done {
			return dst, false
		}
		t.chunks.put(hash, chunk, dst[from:])
	}
	return t.bpe.AppendUntil(dst, text[cut:], stop)
}
