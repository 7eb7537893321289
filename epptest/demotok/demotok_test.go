package demotok_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"epp.internal/epp/epptest/demotok"
	"epp.internal/epp/tokenize/bpe"
)

func load(t testing.TB) *bpe.Tokenizer {
	t.Helper()
	data, _ := demotok.Files()
	tok, err := bpe.Load(data)
	if err != nil {
		t.Fatal(err)
	}
	return tok
}

// Each word after a space is one token, and no two share one.
func TestWords(t *testing.T) {
	tok := load(t)
	words := demotok.Words()
	if len(words) < 400 {
		t.Errorf("there are %d words", len(words))
	}
	seen := make(map[uint32]string)
	for _, word := range words {
		ids := tok.Append(nil, " "+word)
		if len(ids) != 1 {
			t.Errorf("%q is %d tokens", " "+word, len(ids))
			continue
		}
		if other, ok := seen[ids[0]]; ok {
			t.Errorf("%q and %q are one token", word, other)
		}
		seen[ids[0]] = word
	}
}

// An answer of word tokens tokenizes back to itself where the template puts it:
// after "assistant\n", before <|im_end|>.
func TestAnswer(t *testing.T) {
	tok := load(t)
	head := tok.Append(nil, "<|im_start|>assistant\n")
	var answer []uint32
	for _, word := range demotok.Words()[:150] {
		answer = tok.Append(answer, " "+word)
	}
	whole := tok.Append(nil, "<|im_start|>assistant\n"+tok.Decode(answer)+"<|im_end|>\n")
	if len(answer) != 150 || !slices.Equal(whole[len(head):len(head)+150], answer) {
		t.Errorf("the answer's tokens %d became %d", answer, whole)
	}
}

// The files are small, and the template's ChatML tokens are there.
func TestFiles(t *testing.T) {
	tokenizer, config := demotok.Files()
	if size := len(tokenizer) + len(config); size > 300<<10 {
		t.Errorf("the files have %d bytes", size)
	}
	var c struct {
		ChatTemplate string `json:"chat_template"`
		EOSToken     string `json:"eos_token"`
	}
	if err := json.Unmarshal(config, &c); err != nil {
		t.Fatal(err)
	}
	tok := load(t)
	for _, token := range []string{"<|im_start|>", "<|im_end|>", "<|endoftext|>", c.EOSToken} {
		if id, ok := tok.AddedToken(token); !ok || tok.TokenText(id) != token {
			t.Errorf("%q is no added token", token)
		}
	}
	if !strings.Contains(c.ChatTemplate, "<|im_start|>") {
		t.Errorf("the chat template is %q", c.ChatTemplate)
	}
}

func Example() {
	data, _ := demotok.Files()
	tok, err := bpe.Load(data)
	if err != nil {
		panic(err)
	}
	prompt := strings.Repeat(" "+demotok.Words()[0], 200)
	fmt.Println(len(tok.Append(nil, prompt)), "tokens")
	// Output: 200 tokens
}
