package bpe

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"unicode/utf8"

	"epp.internal/epp/epptest/demotok"
	"epp.internal/epp/internal/testtok"
)

// LikeGemma and LikeDeepSeek are likeGemma and likeDeepSeek for the tests outside of the package.
var LikeGemma, LikeDeepSeek = likeGemma, likeDeepSeek

// likeGemma returns the demo's tokenizer.json, changed as like_gemma of
// testdata/make_vectors.py changes it: characters instead of bytes, ▁ instead of
// a space, byte fallback, a token with ▁ inside, added tokens that are white
// space.
func likeGemma(t testing.TB) []byte {
	t.Helper()
	data, _ := demotok.Files()
	var file map[string]any
	if err := json.Unmarshal(data, &file); err != nil {
		t.Fatal(err)
	}
	spell := func(token string) (string, bool) {
		text, _ := fromAlphabet(token)
		return strings.ReplaceAll(text, " ", metaspace), utf8.ValidString(text)
	}
	model := file["model"].(map[string]any)
	vocab := map[string]int{"<unk>": 0}
	need := func(text string) int {
		if _, ok := vocab[text]; !ok {
			vocab[text] = len(vocab)
		}
		return vocab[text]
	}
	for b := range 256 {
		need(fmt.Sprintf("<0x%02X>", b))
	}
	old := make([]string, len(model["vocab"].(map[string]any)))
	for token, id := range model["vocab"].(map[string]any) {
		old[int(id.(float64))] = token
	}
	for _, token := range old {
		if text, ok := spell(token); ok {
			need(text)
		}
	}
	var merges []merge
	for _, pair := range model["merges"].([]any) {
		left, right, _ := strings.Cut(pair.(string), " ")
		l, okLeft := spell(left)
		r, okRight := spell(right)
		if okLeft && okRight {
			merges = append(merges, merge{l, r})
		}
	}
	for _, m := range []merge{{"<", "/"}, {"▁", "</"}, {">", "▁</"}, {"é", "é"}} {
		for _, text := range []string{m[0], m[1], m[0] + m[1]} {
			need(text)
		}
		if !slices.Contains(merges, m) {
			merges = append(merges, m)
		}
	}
	file["model"] = map[string]any{
		"type": "BPE", "unk_token": "<unk>", "fuse_unk": true, "byte_fallback": true, "vocab": vocab, "merges": merges,
	}
	added := file["added_tokens"].([]any)
	for _, content := range []string{"\n\n", "▁▁", "\t"} {
		added = append(added, map[string]any{"content": content})
	}
	for _, token := range added {
		token.(map[string]any)["id"] = need(token.(map[string]any)["content"].(string))
	}
	file["added_tokens"] = added
	file["normalizer"] = map[string]any{"type": "Replace", "pattern": map[string]any{"String": " "}, "content": "▁"}
	file["pre_tokenizer"] = map[string]any{"type": "Split", "pattern": map[string]any{"String": " "}, "behavior": "MergedWithPrevious", "invert": false}
	file["decoder"] = map[string]any{"type": "Sequence", "decoders": []any{
		map[string]any{"type": "Replace", "pattern": map[string]any{"String": "▁"}, "content": " "},
		map[string]any{"type": "ByteFallback"},
		map[string]any{"type": "Fuse"},
	}}
	file["post_processor"] = nil
	data, err := json.Marshal(file)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// likeDeepSeek returns the demo's tokenizer.json with DeepSeek's expressions and
// an added token that is found after normalization, of which there is none.
func likeDeepSeek(t testing.TB) []byte {
	t.Helper()
	data, _ := demotok.Files()
	var file map[string]any
	if err := json.Unmarshal(data, &file); err != nil {
		t.Fatal(err)
	}
	var steps []any
	for pattern := range cuttings {
		if patterns := strings.SplitN(pattern, "\n", 3); len(patterns) == 3 { // DeepSeek's alone are three
			for _, step := range patterns {
				steps = append(steps, map[string]any{"type": "Split", "pattern": map[string]any{"Regex": step}, "behavior": "Isolated", "invert": false})
			}
		}
	}
	steps = append(steps, map[string]any{"type": "ByteLevel", "add_prefix_space": false, "use_regex": false})
	file["pre_tokenizer"] = map[string]any{"type": "Sequence", "pretokenizers": steps}
	file["normalizer"] = map[string]any{"type": "Sequence", "normalizers": []any{}}
	file["added_tokens"].([]any)[1].(map[string]any)["normalized"] = true
	data, err := json.Marshal(file)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// Qwen3 returns the tokenizer of Qwen3, which takes most of a second to load,
// once.
func Qwen3(t testing.TB) *Tokenizer {
	t.Helper()
	qwen3Once.Do(func() {
		data, _ := testtok.Qwen3(t)
		qwen3, qwen3Err = Load(data)
	})
	if qwen3Err != nil {
		t.Fatal(qwen3Err)
	}
	return qwen3
}

var (
	qwen3Once sync.Once
	qwen3     *Tokenizer
	qwen3Err  error
)

// variants are small tokenizers of each kind.
func variants(t testing.TB) map[string]*Tokenizer {
	t.Helper()
	demo, _ := demotok.Files()
	all := make(map[string]*Tokenizer)
	for name, data := range map[string][]byte{"demo": demo, "gemma": likeGemma(t), "deepseek": likeDeepSeek(t)} {
		tok, err := Load(data)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		all[name] = tok
	}
	return all
}
