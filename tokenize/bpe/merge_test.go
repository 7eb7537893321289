package bpe

import (
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"testing"
)

// giantWord is a word of n small letters, always the same.
func giantWord(n int) string {
	random := rand.New(rand.NewPCG(1, 2))
	word := make([]byte, n)
	for i := range word {
		word[i] = byte('a' + random.IntN(26))
	}
	return string(word)
}

// TestGiantWord: a word without a place to cut, of a hundred thousand bytes, takes
// memory in proportion to its length and no more than what is said of it.
func TestGiantWord(t *testing.T) {
	tok := Qwen3(t)
	word := giantWord(100_000)
	dst := make([]uint32, 0, len(word))
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	ids := tok.Append(dst, word)
	runtime.ReadMemStats(&after)
	if took := after.TotalAlloc - before.TotalAlloc; took > 30*uint64(len(word)) {
		t.Errorf("%d bytes took %d of memory", len(word), took)
	}
	if tok.Decode(ids) != word {
		t.Error("the tokens are not the word's")
	}
}

// A giant word and a long text end when they are told to, wherever that is; a
// tokenizer that was stopped remembers nothing wrong, and one that is not stopped
// returns what Append does.
func TestAppendUntil(t *testing.T) {
	tok := loadDemo(t)
	word := giantWord(200_000)
	for name, text := range map[string]string{
		"word":  word,
		"words": strings.Repeat("prefix caches ", 20_000),
		"both":  "a <|im_start|>" + word + "<|im_end|> b",
	} {
		t.Run(name, func(t *testing.T) {
			want, questions := loadDemo(t).Append(nil, text), 0
			ids, done := tok.AppendUntil(nil, text, func() bool { questions++; return false })
			if !done || !slices.Equal(ids, want) {
				t.Fatalf("%d tokens, done %v, want %d", len(ids), done, len(want))
			}
			if least := len(text) / patienceSteps; questions < least || questions > 4*least {
				t.Errorf("asked %d times in %d bytes", questions, len(text))
			}
			tok := loadDemo(t)
			for n := range questions {
				asked := 0
				if _, done := tok.AppendUntil(nil, text, func() bool { asked++; return asked > n }); done || asked != n+1 {
					t.Fatalf("to stop at question %d: done %v after %d", n+1, done, asked)
				}
			}
			if !slices.Equal(tok.Append(nil, text), want) {
				t.Error("a tokenizer that was stopped has other tokens since")
			}
		})
	}
}
