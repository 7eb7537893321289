package bpe

import (
	"encoding/json"
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
func (t *Tokenizer) readModel(data json.RawMessage, added []addedToken) (map[string]uint32, error) {
	// The two big members are taken out before the rest is looked at, since
	// each look at them costs 0.1 s.
	var members map[string]json.RawMessage
	if err := unmarshal(data, &members); err != nil {
		return nil, err
	}
	vocabJSON, mergesJSON := members["vocab"], members["merges"]
	delete(members, "vocab")
	delete(members, "merges")
	settings, err := json.Marshal(members)
	if err != nil {
		return nil, err
	}
	if kind, err := typeOf(settings); err != nil {
		return nil, err
	} else if kind != "BPE" {
		return nil, fmt.Errorf("type %q is not supported; BPE is", kind)
	}
	var m model
	if err := strict(settings, &m); err != nil {
		return nil, err
	}
	if err := m.check(); err != nil {
		return nil, err
	}
	var vocab map[string]uint32
	if err := unmarshal(vocabJSON, &vocab); err != nil {
		return nil, fmt.Errorf("vocab: %w", err)
	}
	if t.texts, err = newTextTable(vocab, added); err != nil {
		return nil, err
	}
	for b, r := range byteAlphabet {
		id, ok := vocab[string(r)]
		if !ok {
			return nil, fmt.Errorf("vocab has no token for the byte 0x%02X (%q)", b, r)
		}
		t.bytes[b] = id
	}
	if err := t.readMerges(mergesJSON, vocab); err != nil {
		return nil, err
	}
	t.proveWords(vocab, m.IgnoreMerges)
	return vocab, nil
}

// check refuses settings that the tokenizer does not follow.
func (m *model) check() error {
	switch {
	case m.Dropout != nil && *m.Dropout != 0:
		return fmt.Errorf("dropout %v is not supported", *m.Dropout)
	case m.SubwordPrefix != nil && *m.SubwordPrefix != "":
		return fmt.Errorf("continuing_subword_prefix %q is not supported", *m.SubwordPrefix)
	case m.WordSuffix != nil && *m.WordSuffix != "":
		return fmt.Errorf("end_of_word_suffix %q is not supported", *m.WordSuffix)
	case m.ByteFallback:
		return fmt.Errorf("byte_fallback is not supported")
	}
	return nil
}

// readMerges reads the list of merges, the first of which has rank 0.
func (t *Tokenizer) readMerges(data json.RawMessage, vocab map[string]uint32) error {
	merges, err := splitMerges(string(data))
	if err != nil {
		return fmt.Errorf("merges: %w", err)
	}
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

// splitMerges returns the pairs in a list of ["a", "b"], or as older files have
// it of "a b". data is valid JSON, or nothing. It is read by hand because
// encoding/json takes 0.4 s for 150,000 of them.
func splitMerges(data string) (merges [][2]string, err error) {
	depth, pair := 0, make([]string, 0, 2)
	for i := 0; i < len(data); i++ {
		switch c := data[i]; {
		case c == '[' && depth < 2:
			depth++
			continue
		case c == ']':
			if depth--; depth == 0 {
				continue
			}
		case c == '"' && depth > 0:
			end := i + 1
			for data[end] != '"' {
				if data[end] == '\\' {
					end++
				}
				end++
			}
			text := data[i+1 : end]
			if strings.Contains(text, `\`) {
				if err := json.Unmarshal([]byte(data[i:end+1]), &text); err != nil {
					return nil, err
				}
			}
			i = end
			if depth == 2 {
				pair = append(pair, text)
				continue
			}
			pair = strings.Split(text, " ")
		case c == ',' || c == ' ' || c == '\n' || c == '\t' || c == '\r':
			continue
		default:
			return nil, fmt.Errorf("number %d is neither two strings nor one", len(merges))
		}
		if len(pair) != 2 {
			return nil, fmt.Errorf("number %d is %q, not two tokens", len(merges), pair)
		}
		merges = append(merges, [2]string(pair))
		pair = pair[:0]
	}
	return merges, nil
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
		if _, whole := fromAlphabet(text); !whole {
			continue // no text comes to this spelling
		}
		if ids = t.appendMerged(ids[:0], word); ignoreMerges || len(ids) == 1 && ids[0] == id {
			t.words.put(id)
		}
	}
}

// newTextTable lays out the bytes of all tokens by ID.
func newTextTable(vocab map[string]uint32, added []addedToken) (textTable, error) {
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
		texts[id], _ = fromAlphabet(text)
	}
	for text, id := range vocab {
		if old := byID[id]; texts[id] != "" && old != text {
			return textTable{}, fmt.Errorf("vocab: two tokens have the id %d", id)
		}
		texts[id], _ = fromAlphabet(text)
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
