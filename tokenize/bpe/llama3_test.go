package bpe_test

import (
	"bytes"
	"encoding/json"
	"slices"
	"testing"

	"epp.internal/epp/epptest/demotok"
)

// likeLlama3 returns the demo's tokenizer.json, changed as like_llama3 of
// testdata/make_vectors.py changes it: digits in threes, no normalizer,
// ignore_merges with three words that no merge leads to, a first token, and an
// added token that is found after normalization.
func likeLlama3(t testing.TB) []byte {
	t.Helper()
	data, _ := demotok.Files()
	data = bytes.Replace(data, []byte(`\\p{N}|`), []byte(`\\p{N}{1,3}|`), 1)
	var file map[string]any
	if err := json.Unmarshal(data, &file); err != nil {
		t.Fatal(err)
	}
	model := file["model"].(map[string]any)
	vocab := model["vocab"].(map[string]any)
	size := len(vocab)
	for i, word := range []string{"ĠViá»ĩt", "Ã©tÃ©", "123"} {
		vocab[word] = size + i
	}
	model["ignore_merges"] = true
	added := file["added_tokens"].([]any)
	for i, token := range added {
		token.(map[string]any)["id"] = size + 3 + i
	}
	file["added_tokens"] = append(added, map[string]any{"id": size + 3 + len(added), "content": "<think>", "normalized": true})
	file["normalizer"] = nil
	file["post_processor"] = map[string]any{"type": "Sequence", "processors": []any{
		file["post_processor"],
		map[string]any{
			"type": "TemplateProcessing",
			"single": []any{
				map[string]any{"SpecialToken": map[string]any{"id": "<|endoftext|>", "type_id": 0}},
				map[string]any{"Sequence": map[string]any{"id": "A", "type_id": 0}},
			},
			"pair":           []any{},
			"special_tokens": map[string]any{"<|endoftext|>": map[string]any{"id": "<|endoftext|>", "ids": []any{size + 3}, "tokens": []any{"<|endoftext|>"}}},
		},
	}}
	data, err := json.Marshal(file)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// Llama 3's settings give the reference's IDs for 400 random texts.
func TestLlama3(t *testing.T) {
	compare(t, load(t, likeLlama3(t)), 400, "testdata/llama3_random.jsonl", *moreLlama3)
}

// A completion's prompt gets the first token that the post-processor names, a
// chat has it from its template.
func TestLlama3FirstToken(t *testing.T) {
	tok := load(t, likeLlama3(t))
	first, _ := tok.AddedToken("<|endoftext|>")
	plain := tok.Append(nil, "the cache")
	if got, want := tok.AppendSpecial(nil, "the cache"), append([]uint32{first}, plain...); !slices.Equal(got, want) {
		t.Errorf("AppendSpecial = %d, want %d", got, want)
	}
}
