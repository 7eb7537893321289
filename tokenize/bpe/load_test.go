package bpe_test

import (
	"encoding/json"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"

	"epp.internal/epp/epptest/demotok"
	"epp.internal/epp/tokenize/bpe"
	"github.com/cockroachdb/datadriven"
)

// TestLoad is testdata/load: "set path=a/b" puts the JSON value below it into
// the demo's tokenizer.json, "remove path=a/b" takes the member away, "file"
// loads what is below instead. With base=gemma it is the demo's file in Gemma's
// way. The answer is what Load says.
func TestLoad(t *testing.T) {
	datadriven.RunTest(t, "testdata/load", func(t *testing.T, d *datadriven.TestData) string {
		data := []byte(d.Input)
		if d.Cmd != "file" {
			var file, value any
			original, _ := demotok.Files()
			if d.HasArg("base") {
				original = bpe.LikeGemma(t)
			}
			if err := json.Unmarshal(original, &file); err != nil {
				t.Fatal(err)
			}
			if d.Cmd == "set" {
				if err := json.Unmarshal(data, &value); err != nil {
					d.Fatalf(t, "%v", err)
				}
			}
			var path string
			d.ScanArgs(t, "path", &path)
			change(file, strings.Split(path, "/"), value, d.Cmd == "remove")
			data, _ = json.Marshal(file)
		}
		if _, err := bpe.Load(data); err != nil {
			return err.Error() + "\n"
		}
		return "ok\n"
	})
}

// change sets or removes the member of a JSON value that path leads to.
func change(in any, path []string, value any, remove bool) {
	var next any
	switch in := in.(type) {
	case map[string]any:
		if len(path) == 1 && remove {
			delete(in, path[0])
		} else if len(path) == 1 {
			in[path[0]] = value
		}
		next = in[path[0]]
	case []any:
		i, _ := strconv.Atoi(path[0])
		if len(path) == 1 {
			in[i] = value
		}
		next = in[i]
	}
	if len(path) > 1 {
		change(next, path[1:], value, remove)
	}
}

// FuzzLoad checks that no file makes Load panic, and that what it accepts can
// be used.
func FuzzLoad(f *testing.F) {
	demo, _ := demotok.Files()
	for _, data := range [][]byte{demo, likeLlama3(f), bpe.LikeGemma(f), bpe.LikeDeepSeek(f)} {
		data = small(f, data)
		if _, err := bpe.Load(data); err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
	for _, file := range []string{
		``, `null`, `[]`, `{`, `{"version":"1.0"}`, `{"version":"1.0","model":{"type":"BPE","vocab":{"a":4294967295}}}`,
		`{"version":"1.0","model":{"type":"BPE","merges":[["a","b"],"a b",["\"","\\"],[[[]]]]}}`,
		`{"version":"1.0","pre_tokenizer":{"type":"Sequence","pretokenizers":[null,3]}}`,
	} {
		f.Add([]byte(file))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		tok, err := bpe.Load(data)
		if err != nil {
			return
		}
		tok.Decode(tok.AppendSpecial(nil, "Hello <|im_end|> wörld 123\n\n"))
		tok.DecodePlain([]uint32{0, uint32(tok.Vocab()), 1 << 31})
	})
}

// small returns a tokenizer.json with the first tokens of one alone, which takes
// 10 KB.
func small(t testing.TB, data []byte) []byte {
	t.Helper()
	var file map[string]any
	if err := json.Unmarshal(data, &file); err != nil {
		t.Fatal(err)
	}
	const kept = 330
	model := file["model"].(map[string]any)
	vocab := model["vocab"].(map[string]any)
	maps.DeleteFunc(vocab, func(_ string, id any) bool { return id.(float64) >= kept })
	model["merges"] = slices.DeleteFunc(model["merges"].([]any), func(m any) bool {
		pair, ok := m.([]any)
		if !ok {
			left, right, _ := strings.Cut(m.(string), " ")
			pair = []any{left, right}
		}
		_, ok = vocab[pair[0].(string)+pair[1].(string)]
		return !ok
	})
	next := len(vocab)
	for _, token := range file["added_tokens"].([]any) {
		token := token.(map[string]any)
		if id, ok := vocab[token["content"].(string)]; ok {
			token["id"] = id
			continue
		}
		token["id"] = next
		next++
	}
	file["post_processor"] = nil
	data, err := json.Marshal(file)
	if err != nil {
		t.Fatal(err)
	}
	return data
}
