package bpe

import (
	"math/rand/v2"
	"runtime"
	"testing"
)

// TestGiantWord: a word without a place to cut, of a hundred thousand bytes, takes
// memory in proportion to its length and no more than what is said of it.
func TestGiantWord(t *testing.T) {
	tok := Qwen3(t)
	random := rand.New(rand.NewPCG(1, 2))
	word := make([]byte, 100_000)
	for i := range word {
		word[i] = byte('a' + random.IntN(26))
	}
	dst := make([]uint32, 0, len(word))
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	ids := tok.Append(dst, string(word))
	runtime.ReadMemStats(&after)
	if took := after.TotalAlloc - before.TotalAlloc; took > 30*uint64(len(word)) {
		t.Errorf("%d bytes took %d of memory", len(word), took)
	}
	if tok.Decode(ids) != string(word) {
		t.Error("the tokens are not the word's")
	}
}
