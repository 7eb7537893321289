package bpe

import (
	"bytes"
	"cmp"
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
// Cost: 0.5 s of CPU for Qwen3's 150,000 tokens, of which 7 MB are kept
// (BenchmarkLoad); 2 s and 19 MB for Gemma 3's 262,000. tokenizerJSON is not kept.
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
	file, err := readFile(string(tokenizerJSON))
	if err != nil {
		return nil, err
	}
	var version string
	if err := unmarshal([]byte(file["version"]), &version); err != nil || version != "1.0" {
		return nil, fmt.Errorf("version %q is not supported; \"1.0\" is", version)
	}
	t := &Tokenizer{unicode: tables(), cache: new(wordCache), byteIDs: make(map[uint32]bool)}
	for _, part := range []struct {
		name string
		read func(*Tokenizer, json.RawMessage) error
	}{
		{"normalizer", (*Tokenizer).readNormalizer},
		{"pre_tokenizer", (*Tokenizer).readPreTokenizer},
		{"post_processor", (*Tokenizer).readPostProcessor},
		{"decoder", (*Tokenizer).readDecoder},
	} {
		if err := part.read(t, json.RawMessage(file[part.name])); err != nil {
			return nil, fmt.Errorf("%s: %w", part.name, err)
		}
	}
	if err := t.agree(); err != nil {
		return nil, err
	}
	var added []addedToken
	if err := strict([]byte(file["added_tokens"]), &added); err != nil {
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

// readFile returns the members of a tokenizer.json.
func readFile(text string) (map[string]string, error) {
	file := make(map[string]string)
	c := cursor{text}
	err := c.object(func(key string) error {
		if !slices.Contains(fileKeys, key) {
			return fmt.Errorf("unknown field %q", key)
		}
		if _, ok := file[key]; ok {
			return fmt.Errorf("field %q is there twice", key)
		}
		value, err := c.raw()
		if err == nil && key != "model" && !json.Valid([]byte(value)) { // the model is checked as it is read
			err = fmt.Errorf("field %q: invalid JSON", key)
		}
		file[key] = value
		return err
	})
	if err == nil && c.peek() != 0 {
		err = errors.New("something follows the JSON object")
	}
	return file, err
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
	if err != nil {
		return err
	}
	switch kind {
	case "":
		return nil
	case "NFC":
		t.nfc = true
		return strict(data, &struct {
			Type string `json:"type"`
		}{})
	case "Replace":
		t.forms.normalizer = true
		return isReplace(data, " ", metaspace)
	case "Sequence": // of these the order does not matter
		var sequence struct {
			Type        string            `json:"type"`
			Normalizers []json.RawMessage `json:"normalizers"`
		}
		if err := strict(data, &sequence); err != nil {
			return err
		}
		for _, part := range sequence.Normalizers {
			if kind, err := typeOf(part); err != nil || kind == "Sequence" {
				return cmp.Or(err, errors.New("a Sequence in a Sequence is not supported"))
			}
			if err := t.readNormalizer(part); err != nil {
				return err
			}
		}
		return nil
	}
	return fmt.Errorf("type %q is not supported; NFC, Replace, Sequence and null are", kind)
}

// isReplace checks that a Replace step puts content in place of each pattern.
func isReplace(data json.RawMessage, pattern, content string) error {
	var replace struct {
		Type    string   `json:"type"`
		Pattern searched `json:"pattern"`
		Content string   `json:"content"`
	}
	if err := strict(data, &replace); err != nil {
		return err
	}
	if got := replace.Pattern.Regex + replace.Pattern.String; got != pattern || replace.Pattern.Regex != "" || replace.Content != content {
		return fmt.Errorf("replacing %q by %q is not supported; %q by %q is", got, replace.Content, pattern, content)
	}
	return nil
}

// searched is what a step looks for: one of the two.
type searched struct{ Regex, String string }

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
	switch kind, err := typeOf(data); {
	case err != nil:
		return err
	case kind == "Split": // at spaces, of which the normalizer leaves none
		t.forms.preTokenizer = true
		_, err := splitPattern(data, " ", "MergedWithPrevious")
		return err
	case kind != "Sequence":
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
	last := len(kinds) - 1
	if last < 1 || kinds[last] != "ByteLevel" || slices.ContainsFunc(kinds[:last], func(kind string) bool { return kind != "Split" }) {
		return fmt.Errorf("a Sequence of %q is not supported; one of Splits and then a ByteLevel is", kinds)
	}
	patterns := make([]string, last)
	for i, part := range sequence.PreTokenizers[:last] {
		var err error
		if patterns[i], err = splitPattern(part, "", "Isolated"); err != nil {
			return fmt.Errorf("step Split: %w", err)
		}
	}
	found, ok := cuttings[strings.Join(patterns, "\n")]
	if !ok {
		return fmt.Errorf("step Split: pattern %q is not supported", strings.Join(patterns, "\n"))
	}
	t.scan, t.way = found.scan, found.model
	level := byteLevel{AddPrefixSpace: true, UseRegex: true} // as the library takes what is left out
	if err := strict(sequence.PreTokenizers[last], &level); err != nil {
		return fmt.Errorf("ByteLevel: %w", err)
	}
	if level.AddPrefixSpace || level.UseRegex {
		return fmt.Errorf("ByteLevel: add_prefix_space or use_regex that is not false is not supported")
	}
	return nil
}

// splitPattern returns the regular expression of a Split. Where text is not
// empty, it must be that text instead.
func splitPattern(data json.RawMessage, text, behavior string) (string, error) {
	var split struct {
		Type     string   `json:"type"`
		Pattern  searched `json:"pattern"`
		Behavior string   `json:"behavior"`
		Invert   bool     `json:"invert"`
	}
	if err := strict(data, &split); err != nil {
		return "", err
	}
	if split.Behavior != behavior || split.Invert {
		return "", fmt.Errorf("behavior %q with invert %t is not supported; %s with false is", split.Behavior, split.Invert, behavior)
	}
	if split.Pattern.String != text || text != "" && split.Pattern.Regex != "" {
		return "", fmt.Errorf("pattern %q is not supported", split.Pattern.String+split.Pattern.Regex)
	}
	return split.Pattern.Regex, nil
}

func (t *Tokenizer) readDecoder(data json.RawMessage) error {
	kind, err := typeOf(data)
	if err != nil {
		return err
	}
	switch kind {
	case "ByteLevel":
		return strict(data, &byteLevel{})
	case "Sequence":
		t.forms.decoder = true
		return isMetaspaceDecoder(data)
	}
	return fmt.Errorf("type %q is not supported; ByteLevel and a Sequence are", kind)
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
		t.normalized.add(t.normalize(a.Content), a.ID)
	}
	return nil
}
