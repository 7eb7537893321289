package bpe

import (
	"iter"
	"strings"
)

// A Tokenizer turns text into token IDs and back. It does not change after
// [Load], but for a cache of merged words; all methods may be called at the
// same time.
type Tokenizer struct {
	unicode *unicodeTables
	scan    scanner
	way     string
	nfc     bool
	// metaspace is true for Gemma's way, false for the byte-level one.
	metaspace bool
	forms     metaspaceForms

	raw        addedSet // found before normalization
	normalized addedSet // found after it
	added      map[string]uint32
	special    map[uint32]bool // added tokens that DecodePlain leaves out

	// The tokens that merging starts from: those of whole characters as far as
	// chars has them, else those of the bytes. In the metaspace way bytes has the
	// characters' tokens for ASCII.
	bytes   [256]uint32
	byteIDs map[uint32]bool // the metaspace way's tokens of bytes alone
	chars   charTable

	pairs pairTable
	words wordTable
	texts textTable
	cache *wordCache

	prefix, suffix []uint32 // what AppendSpecial puts around a text
}

// Append appends to dst the IDs of text, which may hold added tokens such as
// <|im_start|> anywhere, and returns the longer slice. It adds no tokens that
// text does not have. What is not UTF-8 counts as U+FFFD. The result depends on
// text alone. Cost: about 0.1 µs per token; no allocation if text is normalized
// already, dst has room and no word is new.
func (t *Tokenizer) Append(dst []uint32, text string) []uint32 {
	return t.append(dst, text, &patience{})
}

// AppendUntil is Append that gives up when stop returns true, which it asks now and
// then, in the midst of a long word too. What it returns is no tokens of text then,
// and done is false. A nil stop is not asked.
func (t *Tokenizer) AppendUntil(dst []uint32, text string, stop func() bool) (ids []uint32, done bool) {
	p := patience{stop: stop}
	ids = t.append(dst, text, &p)
	return ids, !p.over
}

// patienceSteps is how many bytes of text, or merges of a long word, lie between two
// questions: two milliseconds or so of a long word, and less of others.
const patienceSteps = 1 << 14

// patience is how long an Append goes on.
type patience struct {
	stop func() bool // nil: to the end
	left int         // steps to the next question
	over bool
}

// spend takes so many steps and reports whether to go on.
func (p *patience) spend(steps int) bool {
	if p.left -= steps; p.left <= 0 && p.stop != nil {
		p.left = patienceSteps
		p.over = p.over || p.stop()
	}
	return !p.over
}

func (t *Tokenizer) append(dst []uint32, text string, p *patience) []uint32 {
	text = validUTF8(text)
	for at := 0; at < len(text) && !p.over; {
		start, end, id, ok := t.raw.find(text, at)
		if !ok {
			return t.appendPiece(dst, text[at:], p)
		}
		dst = append(t.appendPiece(dst, text[at:start], p), id)
		at = end
	}
	return dst
}

// AppendSpecial is Append with the tokens around text that the model's
// post-processor names, such as Llama's <|begin_of_text|>. Engines add them to
// a completion's prompt, not to a rendered chat.
func (t *Tokenizer) AppendSpecial(dst []uint32, text string) []uint32 {
	ids, _ := t.AppendSpecialUntil(dst, text, nil)
	return ids
}

// AppendSpecialUntil is to AppendSpecial what AppendUntil is to Append.
func (t *Tokenizer) AppendSpecialUntil(dst []uint32, text string, stop func() bool) (ids []uint32, done bool) {
	ids, done = t.AppendUntil(append(dst, t.prefix...), text, stop)
	return append(ids, t.suffix...), done
}

// appendPiece appends the IDs of what stands between two raw added tokens.
func (t *Tokenizer) appendPiece(dst []uint32, text string, p *patience) []uint32 {
	text = t.normalize(text)
	for at := 0; at < len(text) && !p.over; {
		start, end, id, ok := t.normalized.find(text, at)
		if !ok {
			return t.appendWords(dst, text[at:], p)
		}
		dst = append(t.appendWords(dst, text[at:start], p), id)
		at = end
	}
	return dst
}

// normalize returns text in the normal form. It is text itself if that is so
// already.
func (t *Tokenizer) normalize(text string) string {
	if t.nfc {
		text = t.unicode.nfc(text)
	}
	if t.metaspace && strings.Contains(text, metaspace) {
		text = strings.ReplaceAll(text, metaspace, " ")
	}
	return text
}

// appendWords appends the IDs of text without added tokens.
func (t *Tokenizer) appendWords(dst []uint32, text string, p *patience) []uint32 {
	for len(text) > 0 {
		n := t.scan(t.unicode, text)
		if !p.spend(n) {
			return dst
		}
		dst = t.appendWord(dst, text[:n], p)
		text = text[n:]
	}
	return dst
}

// appendWord appends the IDs of one word.
func (t *Tokenizer) appendWord(dst []uint32, word string, p *patience) []uint32 {
	if len(word) == 1 {
		return append(dst, t.bytes[word[0]])
	}
	hash := hashWord(word)
	if id, ok := t.words.find(hash, word); ok {
		return append(dst, id)
	}
	dst, ok := t.cache.append(dst, hash, word)
	if ok {
		return dst
	}
	start := len(dst)
	if dst = t.appendMerged(dst, word, p); !p.over {
		t.cache.put(hash, word, dst[start:])
	}
	return dst
}

// Decode returns the text of ids: the bytes of all tokens, added ones included,
// with U+FFFD in place of what is not UTF-8. IDs that the tokenizer does not
// have count as nothing.
func (t *Tokenizer) Decode(ids []uint32) string { return t.decode(ids, nil) }

// DecodePlain is Decode without the tokens that are marked special, as an engine
// writes an answer.
func (t *Tokenizer) DecodePlain(ids []uint32) string { return t.decode(ids, t.special) }

func (t *Tokenizer) decode(ids []uint32, skip map[uint32]bool) string {
	if t.metaspace {
		return t.decodeMetaspace(ids, skip)
	}
	var out strings.Builder
	for _, id := range ids {
		if !skip[id] {
			out.WriteString(t.texts.text(id))
		}
	}
	return validUTF8(out.String())
}

// AddedToken returns the ID of the added token with this text.
func (t *Tokenizer) AddedToken(text string) (id uint32, ok bool) {
	id, ok = t.added[text]
	return id, ok
}

// Way names how texts are cut into words, by the model that it came with (qwen2,
// llama3, gpt4o, mistral_nemo, deepseek_v3, gemma), with "+NFC" where they are
// normalized.
func (t *Tokenizer) Way() string { return t.way }

// Vocab returns the number of IDs: 1 + the largest one.
func (t *Tokenizer) Vocab() int { return len(t.texts.start) - 1 }

// TokenText returns the bytes of a token, which need not be whole UTF-8
// characters; "" if there is no token with this ID.
func (t *Tokenizer) TokenText(id uint32) string { return t.texts.text(id) }

// Borders yields the end offset of each added token in text, ascending. Text
// may be cut there: the IDs of both sides, joined, are the IDs of the whole.
// At no other place is that so; a cut after a line end changes the IDs in up to
// half of the cases. Tokens that are found after normalization alone
// ("normalized": true) are among them only where there is none.
func (t *Tokenizer) Borders(text string) iter.Seq[int] {
	return func(yield func(int) bool) {
		for at := 0; ; {
			start, end, _, ok := t.raw.find(text, at)
			if !ok {
				start = len(text)
			}
			if !t.nfc && !t.metaspace {
				_, inner, _, found := t.normalized.find(text[:start], at)
				for found {
					if !yield(inner) {
						return
					}
					_, inner, _, found = t.normalized.find(text[:start], inner)
				}
			}
			if !ok || !yield(end) {
				return
			}
			at = end
		}
	}
}

// LastBorder returns the last of [Tokenizer.Borders], 0 if there is none.
func (t *Tokenizer) LastBorder(text string) int {
	last := 0
	for end := range t.Borders(text) {
		last = end
	}
	return last
}
