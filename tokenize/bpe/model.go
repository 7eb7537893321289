package bpe

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"
)

// model is the "model" of a tokenizer.json without vocab and merges.
type model struct {
	Type          string   `json:"type"`
	Dropout       *float64 `json:"dropout"`
	UnkToken      *string  `json:"unk_token"` // never used: every byte has a token
	SubwordPrefix *string  `json:"continuing_subword_prefix"`
	WordSuffix    *string  `json:"end_of_word_suffix"`
	FuseUnk       bool     `json:"fuse_unk"` // never used, as UnkToken
	ByteFallback  bool     `json:"byte_fallback"`
	IgnoreMerges  bool     `json:"ignore_merges"`
}

// readModel reads the vocabulary and the merges, and returns the vocabulary.
// The texts of added tokens get their place beside the model's own.
func (t *Tokenizer) readModel(text string, added []addedToken) (map[string]uint32, error) {
	var m model
	vocab, merges, err := m.read(text)
	if err != nil {
		return nil, err
	}
	if err := m.check(t.metaspace); err != nil {
		return nil, err
	}
	if t.texts, err = newTextTable(vocab, added, t.metaspace); err != nil {
		return nil, err
	}
	read := t.readAlphabet
	if t.metaspace {
		read = t.readCharacters
	}
	if err := read(vocab); err != nil {
		return nil, err
	}
	if err := t.readMerges(merges, vocab); err != nil {
		return nil, err
	}
	if !t.metaspace {
		t.proveCharacters(vocab)
	}
	t.proveWords(vocab, m.IgnoreMerges)
	if t.metaspace {
		t.scan = t.metaspaceScanner()
	}
	return vocab, nil
}

// read reads the settings, the vocabulary and the list of merges.
func (m *model) read(text string) (vocab map[string]uint32, merges []merge, err error) {
	settings := make(map[string]json.RawMessage)
	c := cursor{text}
	if c.peek() == 0 || strings.HasPrefix(c.rest, "null") {
		return nil, nil, errors.New("type is missing")
	}
	err = c.object(func(key string) (err error) {
		switch {
		case key == "vocab" && c.peek() == '{':
			vocab, err = c.vocab()
		case key == "merges" && c.peek() == '[':
			merges, err = c.merges()
		default:
			var value string
			value, err = c.raw()
			settings[key] = json.RawMessage(value)
		}
		if err != nil && (key == "vocab" || key == "merges") {
			err = fmt.Errorf("%s: %w", key, err)
		}
		return err
	})
	if err != nil {
		return nil, nil, err
	}
	for key, value := range settings {
		if !json.Valid(value) {
			return nil, nil, fmt.Errorf("%s: invalid JSON", key)
		}
	}
	data, err := json.Marshal(settings)
	if err != nil {
		return nil, nil, err
	}
	if kind, err := typeOf(data); err != nil {
		return nil, nil, err
	} else if kind != "BPE" {
		return nil, nil, fmt.Errorf("type %q is not supported; BPE is", kind)
	}
	for _, key := range []string{"vocab", "merges"} {
		if value, ok := settings[key]; ok && string(value) != "null" {
			return nil, nil, fmt.Errorf("%s: a JSON object or list belongs there", key)
		}
	}
	return vocab, merges, strict(data, &struct {
		*model
		Vocab  any `json:"vocab"` // null, if it is here
		Merges any `json:"merges"`
	}{model: m})
}

// vocab reads the tokens and their IDs.
func (c *cursor) vocab() (map[string]uint32, error) {
	vocab := make(map[string]uint32, len(c.rest)/2/bytesPerMerge)
	err := c.object(func(token string) error {
		id, err := c.number(maxID)
		if err != nil {
			return fmt.Errorf("%q: %w", token, err)
		}
		vocab[token] = id
		return nil
	})
	return vocab, err
}

// readAlphabet finds the tokens of the bytes in the byte-level way.
func (t *Tokenizer) readAlphabet(vocab map[string]uint32) error {
	for b, r := range byteAlphabet {
		id, ok := vocab[string(r)]
		if !ok {
			return fmt.Errorf("vocab has no token for the byte 0x%02X (%q)", b, r)
		}
		t.bytes[b] = id
	}
	return nil
}

// check refuses settings that the tokenizer does not follow.
func (m *model) check(metaspace bool) error {
	switch {
	case m.Dropout != nil && *m.Dropout != 0:
		return fmt.Errorf("dropout %v is not supported", *m.Dropout)
	case m.SubwordPrefix != nil && *m.SubwordPrefix != "":
		return fmt.Errorf("continuing_subword_prefix %q is not supported", *m.SubwordPrefix)
	case m.WordSuffix != nil && *m.WordSuffix != "":
		return fmt.Errorf("end_of_word_suffix %q is not supported", *m.WordSuffix)
	case m.ByteFallback && !metaspace:
		return fmt.Errorf("byte_fallback is not supported without metaspace")
	case metaspace && !m.ByteFallback:
		return fmt.Errorf("metaspace is not supported without byte_fallback")
	case metaspace && m.IgnoreMerges:
		return fmt.Errorf("ignore_merges is not supported with metaspace")
	}
	return nil
}

// readMerges enters the merges, the first of which has rank 0.
func (t *Tokenizer) readMerges(merges []merge, vocab map[string]uint32) error {
	if len(merges) > maxMerges {
		return fmt.Errorf("merges: %d are more than %d", len(merges), maxMerges)
	}
	t.pairs = newPairTable(len(merges))
	ids := make([]uint32, 0, len(merges))
	for rank, m := range merges {
		left, okLeft := vocab[m[0]]
		right, okRight := vocab[m[1]]
		id, ok := vocab[m[0]+m[1]]
		if !okLeft || !okRight || !ok {
			return fmt.Errorf("merges: number %d: vocab lacks %q, %q or the two in one", rank, m[0], m[1])
		}
		t.pairs.put(left, right, uint32(rank))
		ids = append(ids, id)
	}
	t.pairs.setIDs(ids)
	return nil
}

// merge is two tokens that merge.
type merge = [2]string

// bytesPerMerge is about what a merge takes in a file, to guess their number.
const bytesPerMerge = 20

// merges reads the pairs in a list of ["a", "b"], or as older files have it of
// "a b".
func (c *cursor) merges() (merges []merge, err error) {
	merges = make([]merge, 0, len(c.rest)/bytesPerMerge)
	err = c.list('[', ']', func() error {
		pair, n := merge{}, 0
		switch c.peek() {
		case '"':
			text, err := c.string()
			if err != nil {
				return err
			}
			left, right, ok := strings.Cut(text, " ")
			if pair = (merge{left, right}); ok && !strings.Contains(right, " ") {
				n = 2
			}
		case '[':
			err := c.list('[', ']', func() (err error) {
				if n++; n <= len(pair) && c.peek() == '"' {
					pair[n-1], err = c.string()
					return err
				}
				return fmt.Errorf("number %d is not two tokens", len(merges))
			})
			if err != nil {
				return err
			}
		case 0:
			return errEndOfJSON
		default:
			return fmt.Errorf("number %d is neither two strings nor one", len(merges))
		}
		if n != 2 {
			return fmt.Errorf("number %d is not two tokens", len(merges))
		}
		merges = append(merges, pair)
		return nil
	})
	return merges, err
}

// proveWords fills the table of words that are one token: with ignore_merges
// all of the vocabulary, else those that their merges lead to. (Llama 3 has
// 588 others, " Việt" for one.)
func (t *Tokenizer) proveWords(vocab map[string]uint32, ignoreMerges bool) {
	t.words = newWordTable(len(vocab), &t.texts)
	var ids []uint32
	for text, id := range vocab {
		word := t.texts.text(id)
		if len(word) < 2 {
			continue // appendWord needs no table for a byte
		}
		if _, whole := fromAlphabet(text); !whole && !t.metaspace {
			continue // no text comes to this spelling
		}
		if ids = t.appendMerged(ids[:0], word, &patience{}); ignoreMerges || len(ids) == 1 && ids[0] == id {
			t.words.put(id)
		}
	}
}

// newTextTable lays out the bytes of all tokens by ID.
func newTextTable(vocab map[string]uint32, added []addedToken, inMetaspace bool) (textTable, error) {
	textOf := fromMetaspace
	if !inMetaspace {
		textOf = func(text string) string { text, _ = fromAlphabet(text); return text }
	}
	top, size := -1, 0
	byID := make(map[uint32]string, len(added))
	for _, a := range added {
		byID[a.ID] = a.Content
		top = max(top, int(a.ID))
	}
	for _, id := range vocab {
		top = max(top, int(id))
	}
	if top > maxID {
		return textTable{}, fmt.Errorf("id %d is above %d", top, maxID)
	}
	texts := make([]string, top+1)
	for id, text := range byID {
		texts[id] = textOf(text)
	}
	for text, id := range vocab {
		if old := byID[id]; texts[id] != "" && old != text {
			return textTable{}, fmt.Errorf("vocab: two tokens have the id %d", id)
		}
		texts[id] = textOf(text)
	}
	table := textTable{start: make([]uint32, len(texts)+1)}
	for i, text := range texts {
		size += len(text)
		table.start[i+1] = uint32(size)
	}
	table.all = strings.Join(texts, "")
	return table, nil
}

// byteAlphabet holds the character that stands for each byte in a byte-level
// vocabulary: itself if it is printable Latin-1 and no space, else one from
// U+0100 on, in order (GPT-2's bytes_to_unicode).
var byteAlphabet = func() (alphabet [256]rune) {
	next := rune(256)
	for b := range rune(256) {
		if b > ' ' && b < 0x7F || b > 0xA0 && b != 0xAD {
			alphabet[b] = b
			continue
		}
		alphabet[b] = next
		next++
	}
	return alphabet
}()

// alphabetByte is the way back: 1 + the byte, 0 if the character is none of them.
var alphabetByte = func() (bytes [256 + 68]uint16) {
	for b, r := range byteAlphabet {
		bytes[r] = uint16(b) + 1
	}
	return bytes
}()

// fromAlphabet returns the bytes that a token's spelling in the file stands
// for. A spelling with any other character stands for itself (whole is false),
// as in the reference's decoder: "<|im end|>" has a space.
func fromAlphabet(text string) (_ string, whole bool) {
	out := make([]byte, 0, utf8.RuneCountInString(text))
	for _, r := range text {
		if int(r) >= len(alphabetByte) || alphabetByte[r] == 0 {
			return text, false
		}
		out = append(out, byte(alphabetByte[r]-1))
	}
	return string(out), true
}
