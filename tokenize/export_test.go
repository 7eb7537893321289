package tokenize

import (
	"iter"

	"epp.internal/epp/openai"
)

// Fresh returns a tokenizer like t with an empty cache.
func Fresh(t *Tokenizer) *Tokenizer { return FreshWith(t, CacheBytes) }

// FreshWith is Fresh with a cache of so many bytes.
func FreshWith(t *Tokenizer, bytes int) *Tokenizer {
	return &Tokenizer{bpe: t.bpe, chat: t.chat, chunks: newChunkCache(bytes)}
}

// Whole returns the tokens of a chat without any use of the cache.
func Whole(t *Tokenizer, b *openai.Body) []uint32 {
	text, err := t.chat.Render(b)
	if err != nil {
		panic(err)
	}
	return t.bpe.Append(nil, text)
}

// Rendered returns a chat's prompt, and its tokens without any use of the cache.
func Rendered(t *Tokenizer, b *openai.Body) (text string, ids []uint32, err error) {
	if text, err = t.chat.Render(b); err != nil {
		return "", nil, err
	}
	return text, t.bpe.Append(nil, text), nil
}

// Borders returns where the cache may cut a text.
func Borders(t *Tokenizer, text string) iter.Seq[int] { return t.bpe.Borders(text) }

// Joined returns the tokens of two texts, one after the other.
func Joined(t *Tokenizer, a, b string) []uint32 { return t.bpe.Append(t.bpe.Append(nil, a), b) }

// Cached appends the tokens of a text, as far as it can from the cache.
func Cached(t *Tokenizer, dst []uint32, text string) []uint32 {
	ids, _ := t.appendCached(dst, text, nil)
	return ids
}

// Chunks returns the number of texts in the cache.
func Chunks(t *Tokenizer) int {
	n, _ := t.chunks.chunks.Usage()
	return n
}

// Held returns what the cache holds in bytes.
func Held(t *Tokenizer) int {
	_, bytes := t.chunks.chunks.Usage()
	return bytes
}
