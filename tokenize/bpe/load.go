package bpe

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"
)

// The bounds of what Load reads.
const (
	maxFileBytes = 64 << 20 // the largest known file, Gemma 3's, has 33 MB
	maxID        = 1<<21 - 1
)

// Load reads a tokenizer.json. It refuses what it would not do exactly as the
// Hugging Face tokenizers library does: an unknown type or setting of a
// normalizer, pre-tokenizer, model, decoder, post-processor or added token is an
// error with its name. Truncation and padding are not read: engines encode
// without them.
//
// Cost: 0.6–1.2 s, 95 MB allocated and 7 MB kept for Qwen3's 150,000 tokens
// (BenchmarkLoad). tokenizerJSON is not kept.
func Load(tokenizerJSON []byte) (*Tokenizer, error) {
	t, err := load(tokenizerJSON)
	if err != nil {
		return nil, fmt.Errorf("tokenizer.json: %w", err)
	}
	return t, nil
}

func load(tokenizerJSON []byte) (*Tokenizer, error) {
	if len(tokenizerJSON) > maxFileBytes {
		return nil, fmt.Errorf("%d bytes are more than the %d that are read", len(tokenizerJSON), maxFileBytes)
	}
	var file map[string]json.RawMessage
	if err := unmarshal(tokenizerJSON, &file); err != nil {
		return nil, err
	}
	for key := range file {
		if !slices.Contains(fileKeys, key) {
			return nil, fmt.Errorf("unknown field %q", key)
		}
	}
	var version string
	if err := unmarshal(file["version"], &version); err != nil || version != "1.0" {
		return nil, fmt.Errorf("version %q is not supported; \"1.0\" is", version)
	}
	t := &Tokenizer{unicode: tables(), cache: new(wordCache)}
	for _, part := range []struct {
		name string
		read func(*Tokenizer, json.RawMessage) error
	}{
		{"normalizer", (*Tokenizer).readNormalizer},
		{"pre_tokenizer", (*Tokenizer).readPreTokenizer},
		{"post_processor", (*Tokenizer).readPostProcessor},
		{"decoder", (*Tokenizer).readDecoder},
	} {
		if err := part.read(t, file[part.name]); err != nil {
			return nil, fmt.Errorf("%s: %w", part.name, err)
		}
	}
	var added []addedToken
	if err := strict(file["added_tokens"], &added); err != nil {
		return nil, fmt.Errorf("added_tokens: %w", err)
	}
	vocab, err := t.readModel(file["model"], added)
	if err != nil {
		return nil, fmt.Errorf("model: %w", err)
	}
	if err := t.readAddedTokens(added, vocab); err != nil {
		return nil, fmt.Errorf("added_tokens: %w", err)
	}
	for _, id := range slices.Concat(t.prefix, t.suffix) {
		if t.TokenText(id) == "" {
			return nil, fmt.Errorf("post_processor: no token has the id %d", id)
		}
	}
	return t, nil
}

// fileKeys are the members of a tokenizer.json.
var fileKeys = []string{
	"version", "truncation", "padding", "added_tokens", "normalizer",
	"pre_tokenizer", "post_processor", "decoder", "model",
}

// unmarshal is json.Unmarshal; no data at all counts as null.
func unmarshal(data []byte, out any) error {
	if len(data) == 0 {
		return nil
	}
	return readable(json.Unmarshal(data, out))
}

// readable rewords an error of encoding/json, which names our Go types.
func readable(err error) error {
	var wrong *json.UnmarshalTypeError
	switch {
	case err == nil:
		return nil
	case errors.As(err, &wrong) && wrong.Field != "":
		return fmt.Errorf("%s: a JSON %s does not belong there", wrong.Field, wrong.Value)
	case errors.As(err, &wrong):
		return fmt.Errorf("a JSON %s does not belong there", wrong.Value)
	}
	return errors.New(strings.TrimPrefix(err.Error(), "json: "))
}

// strict is unmarshal, but a key that out lacks is an error.
func strict(data []byte, out any) error {
	if len(data) == 0 {
		return nil
	}
	d := json.NewDecoder(bytes.NewReader(data))
	d.DisallowUnknownFields()
	return readable(d.Decode(out))
}

// typeOf returns the "type" of a part of the file, "" for null or no part.
func typeOf(data []byte) (string, error) {
	var part struct {
		Type string `json:"type"`
	}
	if err := unmarshal(data, &part); err != nil {
		return "", err
	}
	if part.Type == "" && len(data) > 0 && string(data) != "null" {
		return "", fmt.Errorf("type is missing")
	}
	return part.Type, nil
}

func (t *Tokenizer) readNormalizer(data json.RawMessage) error {
	kind, err := typeOf(data)
	if err != nil || kind == "" {
		return err
	}
	if kind != "NFC" {
		return fmt.Errorf("type %q is not supported; NFC and null are", kind)
	}
	t.nfc = true
	return strict(data, &struct {
		Type string `json:"type"`
	}{})
}

// byteLevel is a ByteLevel pre-tokenizer, decoder or post-processor. As the
// latter two it does nothing that depends on its settings.
type byteLevel struct {
	Type           string `json:"type"`
	AddPrefixSpace bool   `json:"add_prefix_space"`
	TrimOffsets    bool   `json:"trim_offsets"`
	UseRegex       bool   `json:"use_regex"`
}

func (t *Tokenizer) readPreTokenizer(data json.RawMessage) error {
	var sequence struct {
		Type          string            `json:"type"`
		PreTokenizers []json.RawMessage `json:"pretokenizers"`
	}
	if kind, err := typeOf(data); err != nil {
		return err
	} else if kind != "Sequence" {
		return fmt.Errorf("type %q is not supported; a Sequence of Split and ByteLevel is", kind)
	}
	if err := strict(data, &sequence); err != nil {
		return err
	}
	var kinds []string
	for _, part := range sequence.PreTokenizers {
		kind, err := typeOf(part)
		if err != nil {
			return err
		}
		kinds = append(kinds, kind)
	}
	if !slices.Equal(kinds, []string{"Split", "ByteLevel"}) {
		return fmt.Errorf("a Sequence of %q is not supported; [\"Split\" \"ByteLevel\"] is", kinds)
	}
	if err := t.readSplit(sequence.PreTokenizers[0]); err != nil {
		return fmt.Errorf("step Split: %w", err)
	}
	level := byteLevel{AddPrefixSpace: true, UseRegex: true} // as the library takes what is left out
	if err := strict(sequence.PreTokenizers[1], &level); err != nil {
		return fmt.Errorf("ByteLevel: %w", err)
	}
	if level.AddPrefixSpace || level.UseRegex {
		return fmt.Errorf("ByteLevel: add_prefix_space or use_regex that is not false is not supported")
	}
	return nil
}

func (t *Tokenizer) readSplit(data json.RawMessage) error {
	var split struct {
		Type    string `json:"type"`
		Pattern struct {
			Regex  string
			String string
		} `json:"pattern"`
		Behavior string `json:"behavior"`
		Invert   bool   `json:"invert"`
	}
	if err := strict(data, &split); err != nil {
		return err
	}
	if split.Behavior != "Isolated" || split.Invert {
		return fmt.Errorf("behavior %q with invert %t is not supported; Isolated with false is", split.Behavior, split.Invert)
	}
	t.scan = scanners[split.Pattern.Regex]
	if t.scan == nil || split.Pattern.String != "" {
		return fmt.Errorf("pattern %q is not supported", split.Pattern.String+split.Pattern.Regex)
	}
	return nil
}

func (t *Tokenizer) readDecoder(data json.RawMessage) error {
	kind, err := typeOf(data)
	if err != nil {
		return err
	}
	if kind != "ByteLevel" {
		return fmt.Errorf("type %q is not supported; ByteLevel is", kind)
	}
	return strict(data, &byteLevel{})
}

func (t *Tokenizer) readPostProcessor(data json.RawMessage) error {
	kind, err := typeOf(data)
	if err != nil {
		return err
	}
	switch kind {
	case "":
		return nil
	case "ByteLevel": // adjusts offsets alone
		return strict(data, &byteLevel{})
	case "TemplateProcessing":
		return t.readTemplate(data)
	case "Sequence":
		var sequence struct {
			Type       string            `json:"type"`
			Processors []json.RawMessage `json:"processors"`
		}
		if err := strict(data, &sequence); err != nil {
			return err
		}
		for _, part := range sequence.Processors {
			kind, err := typeOf(part)
			if err != nil {
				return err
			}
			if kind == "Sequence" || kind == "TemplateProcessing" && len(t.prefix)+len(t.suffix) > 0 {
				return fmt.Errorf("a second %s in a Sequence is not supported", kind)
			}
			if err := t.readPostProcessor(part); err != nil {
				return err
			}
		}
		return nil
	}
	return fmt.Errorf("type %q is not supported; ByteLevel, TemplateProcessing and null are", kind)
}

// readTemplate reads which special tokens stand before and after a text.
func (t *Tokenizer) readTemplate(data json.RawMessage) error {
	type element struct {
		ID     string `json:"id"`
		TypeID int    `json:"type_id"`
	}
	var template struct {
		Type   string `json:"type"`
		Single []struct{ SpecialToken, Sequence *element }
		Pair   json.RawMessage `json:"pair"` // two texts are not encoded together here
		Tokens map[string]struct {
			ID     string   `json:"id"`
			IDs    []uint32 `json:"ids"`
			Tokens []string `json:"tokens"`
		} `json:"special_tokens"`
	}
	if err := strict(data, &template); err != nil {
		return fmt.Errorf("TemplateProcessing: %w", err)
	}
	texts := 0
	for _, piece := range template.Single {
		switch {
		case piece.Sequence != nil && piece.SpecialToken == nil && piece.Sequence.ID == "A":
			texts++
		case piece.SpecialToken != nil && piece.Sequence == nil:
			token, ok := template.Tokens[piece.SpecialToken.ID]
			if !ok {
				return fmt.Errorf("TemplateProcessing: special_tokens lacks %q", piece.SpecialToken.ID)
			}
			if texts == 0 {
				t.prefix = append(t.prefix, token.IDs...)
			} else {
				t.suffix = append(t.suffix, token.IDs...)
			}
		default:
			return fmt.Errorf("TemplateProcessing: single holds what is neither a SpecialToken nor Sequence A")
		}
	}
	if texts != 1 {
		return fmt.Errorf("TemplateProcessing: single holds the text %d times, not once", texts)
	}
	return nil
}

// addedToken is one of added_tokens.
type addedToken struct {
	ID         uint32 `json:"id"`
	Content    string `json:"content"`
	SingleWord bool   `json:"single_word"`
	LStrip     bool   `json:"lstrip"`
	RStrip     bool   `json:"rstrip"`
	Normalized bool   `json:"normalized"`
	Special    bool   `json:"special"`
}

func (t *Tokenizer) readAddedTokens(tokens []addedToken, vocab map[string]uint32) error {
	t.added = make(map[string]uint32, len(tokens))
	t.special = make(map[uint32]bool, len(tokens))
	next := uint32(len(vocab)) // as the library numbers tokens that the model lacks
	for _, a := range tokens {
		switch {
		case a.Content == "":
			return fmt.Errorf("id %d has no content", a.ID)
		case strings.ContainsRune(a.Content, utf8.RuneError):
			return fmt.Errorf("%q holds U+FFFD, which stands for what is not UTF-8", a.Content)
		case a.SingleWord:
			return fmt.Errorf("%q: single_word is not supported", a.Content)
		case a.LStrip:
			return fmt.Errorf("%q: lstrip is not supported", a.Content)
		case a.RStrip:
			return fmt.Errorf("%q: rstrip is not supported", a.Content)
		}
		if _, ok := t.added[a.Content]; ok {
			return fmt.Errorf("%q is there twice", a.Content)
		}
		want, ok := vocab[a.Content]
		if !ok {
			want = next
			next++
		}
		if a.ID != want {
			return fmt.Errorf("%q has the id %d where the reference gives it %d", a.Content, a.ID, want)
		}
		t.added[a.Content] = a.ID
		t.special[a.ID] = a.Special
		if !a.Normalized {
			t.raw.add(a.Content, a.ID)
			continue
		}
		content := a.Content
		if t.nfc {
			content = t.unicode.nfc(content)
		}
		t.normalized.add(content, a.ID)
	}
	return nil
}
