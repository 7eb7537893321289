package bpe

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"
)

// Gemma's way, which comes from SentencePiece: spaces become ▁ and what stands
// between two added tokens is one word, merged from characters; a character that
// the vocabulary lacks is its bytes' tokens, "<0xE2>". A file says so in five
// places, which must agree.
//
// Here it is turned around: ▁ becomes a space, in the vocabulary and, where text
// has one, there. So plain text needs no copy, and tokens have their real text.

// metaspace is U+2581, which stands for a space.
const metaspace = "▁"

// metaspaceForms tells which parts of a file are in the metaspace form.
type metaspaceForms struct{ normalizer, preTokenizer, decoder bool }

// agree refuses a file of which some parts are in the metaspace form and some
// are not.
func (t *Tokenizer) agree() error {
	f := t.forms
	if f.normalizer != f.preTokenizer || f.normalizer != f.decoder {
		return errors.New("normalizer, pre_tokenizer and decoder do not belong together: one replaces spaces, one does not")
	}
	if t.metaspace = f.normalizer; t.metaspace {
		t.way = "gemma"
	}
	if t.nfc {
		t.way += "+NFC"
	}
	return nil
}

// isMetaspaceDecoder checks for the steps that undo the normalizer and put bytes
// together.
func isMetaspaceDecoder(data json.RawMessage) error {
	var sequence struct {
		Type     string            `json:"type"`
		Decoders []json.RawMessage `json:"decoders"`
	}
	if err := strict(data, &sequence); err != nil {
		return err
	}
	var kinds []string
	for _, part := range sequence.Decoders {
		kind, err := typeOf(part)
		if err != nil {
			return err
		}
		kinds = append(kinds, kind)
		if kind == "Replace" {
			if err := isReplace(part, metaspace, " "); err != nil {
				return err
			}
		}
	}
	if !slices.Equal(kinds, []string{"Replace", "ByteFallback", "Fuse"}) {
		return fmt.Errorf("a Sequence of %q is not supported; [\"Replace\" \"ByteFallback\" \"Fuse\"] is", kinds)
	}
	return nil
}

// byteToken returns the byte that a token like <0xE2> stands for.
func byteToken(text string) (byte, bool) {
	if len(text) != len("<0xE2>") || text[:3] != "<0x" || text[5] != '>' {
		return 0, false
	}
	const digits = "0123456789ABCDEF"
	high, low := strings.IndexByte(digits, text[3]), strings.IndexByte(digits, text[4])
	return byte(high<<4 | low), high >= 0 && low >= 0
}

// fromMetaspace returns the text that a token's spelling stands for.
func fromMetaspace(text string) string {
	if b, ok := byteToken(text); ok {
		return string([]byte{b})
	}
	return strings.ReplaceAll(text, metaspace, " ")
}

// readCharacters finds the tokens that merging starts from in the metaspace way.
func (t *Tokenizer) readCharacters(vocab map[string]uint32) error {
	for b := range t.bytes {
		id, ok := vocab[fmt.Sprintf("<0x%02X>", b)]
		if !ok {
			return fmt.Errorf("vocab has no token for the byte 0x%02X", b)
		}
		t.bytes[b] = id
		t.byteIDs[id] = true
	}
	for text, id := range vocab {
		if strings.Contains(text, " ") {
			return fmt.Errorf("vocab: %q has a space", text)
		}
		text = strings.ReplaceAll(text, metaspace, " ")
		switch r, n := utf8.DecodeRuneInString(text); {
		case n != len(text) || n == 0:
		case n == 1:
			t.bytes[text[0]] = id
		default:
			t.chars.put(r, id, 0)
		}
	}
	return nil
}

// maxExceptions bounds the tokens that scanMetaspace looks for at each space.
// Gemma 3 has one, ">▁</".
const maxExceptions = 16

// metaspaceScanner returns a scanner that cuts text before the spaces after
// something else, so that a word is merged on its own. That is exact: a merge
// that goes across the cut would make a token with a space after something else
// inside. The few tokens of that kind are exceptions: where text has one of them
// across the cut, there is no cut. With many of them nothing is cut at all.
func (t *Tokenizer) metaspaceScanner() scanner {
	var exceptions []string
	for id := range uint32(t.Vocab()) {
		if text := t.texts.text(id); innerSpace(text, 1) > 0 {
			exceptions = append(exceptions, text)
		}
	}
	if len(exceptions) > maxExceptions {
		return func(_ *unicodeTables, text string) int { return len(text) }
	}
	slices.Sort(exceptions)
	return func(_ *unicodeTables, text string) int {
		at := innerSpace(text, 1)
		for at > 0 && across(exceptions, text, at) {
			at = innerSpace(text, at+1)
		}
		if at == 0 {
			return len(text)
		}
		return at
	}
}

// innerSpace returns the offset of the first space at or after from that follows
// something else, 0 if there is none.
func innerSpace(text string, from int) int {
	for from < len(text) {
		n := strings.IndexByte(text[from:], ' ')
		if n < 0 {
			return 0
		}
		if from += n; from > 0 && text[from-1] != ' ' {
			return from
		}
		from++
	}
	return 0
}

// across reports whether text has one of the tokens around the space at an
// offset.
func across(tokens []string, text string, at int) bool {
	for _, token := range tokens {
		for k := innerSpace(token, 1); k > 0; k = innerSpace(token, k+1) {
			if at >= k && strings.HasPrefix(text[at-k:], token) {
				return true
			}
		}
	}
	return false
}

// decodeMetaspace returns the text of ids: a run of byte tokens that is no UTF-8
// is one U+FFFD for each of them.
func (t *Tokenizer) decodeMetaspace(ids []uint32, skip map[uint32]bool) string {
	var out strings.Builder
	var run []byte
	flush := func() {
		if utf8.Valid(run) {
			out.Write(run)
		} else {
			out.WriteString(strings.Repeat(string(utf8.RuneError), len(run)))
		}
		run = run[:0]
	}
	for _, id := range ids {
		text := t.texts.text(id)
		switch {
		case skip[id] || text == "":
		case len(text) == 1 && t.byteIDs[id]:
			run = append(run, text[0])
		default:
			flush()
			out.WriteString(text)
		}
	}
	flush()
	return out.String()
}
