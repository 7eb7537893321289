package bpe_test

import (
	"bufio"
	"bytes"
	"encoding/json"
	"flag"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"

	"epp.internal/epp/epptest/demotok"
	"epp.internal/epp/tokenize/bpe"
)

// More files of make_vectors.py to compare with, beside those in testdata.
var (
	moreQwen3  = flag.String("qwen3", "", "also compare Qwen3 with this `file` of vectors")
	moreLlama3 = flag.String("llama3", "", "also compare the demo's tokenizer in Llama 3's way with this `file` of vectors")
	moreDemo   = flag.String("demo", "", "also compare the demo's tokenizer with this `file` of vectors")
)

// qwen3 is bpe.Qwen3.
func qwen3(t testing.TB) *bpe.Tokenizer { return bpe.Qwen3(t) }

// demo loads the demo's tokenizer.
func demo(t testing.TB) *bpe.Tokenizer {
	t.Helper()
	data, _ := demotok.Files()
	return load(t, data)
}

func load(t testing.TB, data []byte) *bpe.Tokenizer {
	t.Helper()
	tok, err := bpe.Load(data)
	if err != nil {
		t.Fatal(err)
	}
	return tok
}

// vector is a line of a testdata file: a text, or a chat as its template
// rendered it, and the IDs that the reference gives.
type vector struct {
	Name, Text, Rendered string
	IDs                  []uint32
}

func vectors(t testing.TB, file string) []vector {
	t.Helper()
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var all []vector
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var v vector
		if err := json.Unmarshal(lines.Bytes(), &v); err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		v.Text += v.Rendered // one of the two is empty
		all = append(all, v)
	}
	if err := lines.Err(); err != nil {
		t.Fatal(err)
	}
	return all
}

// compare checks that tok gives each vector's IDs, and the text back from them.
func compare(t *testing.T, tok *bpe.Tokenizer, want int, files ...string) {
	t.Helper()
	n := 0
	for _, file := range files {
		if file == "" {
			continue
		}
		for _, v := range vectors(t, file) {
			n++
			if got := tok.Append(nil, v.Text); !slices.Equal(got, v.IDs) {
				t.Errorf("%s: %s %+q:\n got %d\nwant %d", file, v.Name, v.Text, got, v.IDs)
			}
		}
	}
	if n < want {
		t.Errorf("%d vectors were there, not %d", n, want)
	}
	t.Logf("%d vectors", n)
}

// Qwen3 gives the IDs of transformers 5.19 for 31 texts and chats, and those of
// tokenizers 0.23.3 for 1,100 random texts.
func TestQwen3(t *testing.T) {
	compare(t, qwen3(t), 1131, "testdata/qwen3.jsonl", "testdata/qwen3_random.jsonl", *moreQwen3)
}

// A text of n of the demo's words, each after a space, is n tokens.
func TestDemo(t *testing.T) {
	tok := demo(t)
	text := " " + strings.Join(demotok.Words(), " ")
	if got := tok.Append(nil, text); len(got) != len(demotok.Words()) || tok.Decode(got) != text {
		t.Errorf("%d words are %d tokens: %q", len(demotok.Words()), len(got), tok.Decode(got))
	}
	compare(t, tok, 0, *moreDemo)
}

// Decode gives all tokens as text, DecodePlain leaves out the special ones, and
// IDs that nobody has are nothing to both. Bytes that are no character yet
// become U+FFFD, and the character once they are whole.
func TestDecode(t *testing.T) {
	tok := qwen3(t)
	ids := tok.Append(nil, "<|im_start|>user\n<think>naïve 🦙<|im_end|>")
	ids = append(ids, uint32(tok.Vocab()), 1<<32-1)
	if got, want := tok.Decode(ids), "<|im_start|>user\n<think>naïve 🦙<|im_end|>"; got != want {
		t.Errorf("Decode gives %q, not %q", got, want)
	}
	if got, want := tok.DecodePlain(ids), "user\n<think>naïve 🦙"; got != want {
		t.Errorf("DecodePlain gives %q, not %q", got, want)
	}
	glyph := tok.Append(nil, "𓅓")
	if len(glyph) < 2 {
		t.Fatalf("the hieroglyph is one token, %d: no half to decode", glyph)
	}
	if got := tok.Decode(glyph[:1]); got != "\ufffd" {
		t.Errorf("half a hieroglyph is %q", got)
	}
	if got := tok.Decode(glyph); got != "𓅓" {
		t.Errorf("both halves are %q", got)
	}
}

// A token's text and its ID lead to each other.
func TestTokenText(t *testing.T) {
	tok := qwen3(t)
	if got := tok.Vocab(); got != 151669 {
		t.Errorf("Vocab is %d", got)
	}
	id, ok := tok.AddedToken("<|im_end|>")
	if !ok || id != 151645 || tok.TokenText(id) != "<|im_end|>" {
		t.Errorf("<|im_end|> is %d (%t), whose text is %q", id, ok, tok.TokenText(id))
	}
	if id, ok := tok.AddedToken("user"); ok {
		t.Errorf("user is the added token %d", id)
	}
	if got := tok.TokenText(14887); got != " endpoint" {
		t.Errorf("token 14887 is %q", got)
	}
	if got := tok.TokenText(uint32(tok.Vocab())); got != "" {
		t.Errorf("the token after the last is %q", got)
	}
}

// Many goroutines use one tokenizer, and so one word cache, at the same time.
func TestConcurrent(t *testing.T) {
	tok := qwen3(t)
	all := vectors(t, "testdata/qwen3_random.jsonl")
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for _, v := range all {
				if got := tok.Append(nil, v.Text); !slices.Equal(got, v.IDs) {
					t.Errorf("%+q: %d, not %d", v.Text, got, v.IDs)
				}
			}
		})
	}
	wg.Wait()
}

// Gemma's settings give the reference's IDs for 400 random texts.
func TestGemma(t *testing.T) {
	compare(t, load(t, bpe.LikeGemma(t)), 400, "testdata/gemma_random.jsonl")
}

// No text comes to a token with a space in Gemma's way: such a file means something
// else.
func TestGemmaSpace(t *testing.T) {
	data := bytes.Replace(bpe.LikeGemma(t), []byte(`"\u003cunk\u003e":0`), []byte(`"a b":0`), 1)
	if _, err := bpe.Load(data); err == nil || err.Error() != `tokenizer.json: model: vocab: "a b" has a space` {
		t.Errorf("got %v", err)
	}
}

// Bytes that are no UTF-8 decode to one U+FFFD each in Gemma's way, a whole
// character's to it, and ▁ to a space.
func TestDecodeGemma(t *testing.T) {
	tok := load(t, bpe.LikeGemma(t))
	llama := tok.Append(nil, "🦙")
	if len(llama) != 4 {
		t.Fatalf("the llama is %d", llama)
	}
	if got := tok.Decode(llama[:3]); got != "\ufffd\ufffd\ufffd" {
		t.Errorf("three quarters of a llama are %q", got)
	}
	if got := tok.Decode(append([]uint32{1 << 30}, llama...)); got != "🦙" {
		t.Errorf("the whole is %q", got)
	}
	if got := tok.Decode(tok.Append(nil, "a ▁b▁▁c")); got != "a  b  c" {
		t.Errorf("▁ decodes to %q", got)
	}
}
