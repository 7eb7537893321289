package tokenize

import "epp.internal/epp/openai"

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

// Held returns what the cache holds in bytes, counted anew.
func Held(t *Tokenizer) int {
	n := 0
	for i := range t.chunks.shards {
		for _, c := range t.chunks.shards[i].byKey {
			n += c.bytes()
		}
	}
	return n
}
