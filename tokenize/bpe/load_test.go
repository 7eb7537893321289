package bpe_test

import (
	"encoding/json"
	"strconv"
	"strings"
	"testing"

	"epp.internal/epp/epptest/demotok"
	"epp.internal/epp/tokenize/bpe"
	"github.com/cockroachdb/datadriven"
)

// TestLoad is testdata/load: "set path=a/b" puts the JSON value below it into
// the demo's tokenizer.json, "remove path=a/b" takes the member away, "file"
// loads what is below instead. The answer is what Load says.
func TestLoad(t *testing.T) {
	datadriven.RunTest(t, "testdata/load", func(t *testing.T, d *datadriven.TestData) string {
		data := []byte(d.Input)
		if d.Cmd != "file" {
			var file, value any
			original, _ := demotok.Files()
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
	f.Add(demo)
	f.Add(likeLlama3(f))
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
