package bpe

import (
	"math"
	"os"
	"strings"
	"testing"
	"time"

	"epp.internal/epp/internal/testtok"
)

// benchTokens is the length of the benchmarks' prompts.
const benchTokens = 4096

// benchTexts returns prompts of benchTokens tokens by name, in one or more
// parts. The unicode text is short: it comes three times.
func benchTexts(b *testing.B, t *Tokenizer) map[string][]string {
	b.Helper()
	read := func(name string) string {
		data, err := os.ReadFile("testdata/bench/" + name + ".txt")
		if err != nil {
			b.Fatal(err)
		}
		return string(data)
	}
	cut := func(text string, tokens int) string {
		ids := t.Append(nil, text)
		if len(ids) < tokens {
			b.Fatalf("%d tokens are too few", len(ids))
		}
		return t.Decode(ids[:tokens])
	}
	docs, code, unicode := read("docs"), read("code"), cut(read("unicode"), benchTokens/3)
	var chat strings.Builder
	questions, answers := strings.SplitAfter(docs, "\n\n"), strings.SplitAfter(code, "\n}\n")
	for i := range min(len(questions), 3*len(answers)) {
		chat.WriteString("<|im_start|>user\n" + questions[i] + "<|im_end|>\n<|im_start|>assistant\n" + answers[i/3] + "<|im_end|>\n")
	}
	return map[string][]string{
		"docs":    {cut(docs, benchTokens)},
		"code":    {cut(code, benchTokens)},
		"unicode": {unicode, unicode, unicode},
		"chat":    {cut(chat.String(), benchTokens)},
	}
}

// BenchmarkAppend tokenizes 4,096 tokens with Qwen3: with the word cache as a
// run before left it (warm), empty before each part (new), or empty and the
// CPU's caches flushed too (flushed). best-µs/op is the fastest run of all: on a
// shared machine the mean says more of the neighbours.
func BenchmarkAppend(b *testing.B) {
	t := Qwen3(b)
	texts := benchTexts(b, t)
	for _, name := range []string{"docs", "code", "unicode", "chat"} {
		b.Run(name+"/warm", func(b *testing.B) { benchAppend(b, t, texts[name], func(int) {}) })
		b.Run(name+"/new", func(b *testing.B) { benchAppend(b, t, texts[name], func(int) { t.cache.clear() }) })
		flush := make([]byte, 64<<20)
		b.Run(name+"/flushed", func(b *testing.B) {
			benchAppend(b, t, texts[name], func(part int) {
				t.cache.clear()
				if part > 0 {
					return
				}
				for i := range flush {
					flush[i]++
				}
			})
		})
	}
}

// benchAppend times Append on all parts, each after prepare, which does not
// count.
func benchAppend(b *testing.B, t *Tokenizer, parts []string, prepare func(part int)) {
	b.ReportAllocs()
	dst := make([]uint32, 0, 2*benchTokens)
	best := time.Duration(math.MaxInt64)
	var sum time.Duration
	for b.Loop() {
		var run time.Duration
		for i, part := range parts {
			prepare(i)
			start := time.Now()
			dst = t.Append(dst[:0], part)
			run += time.Since(start)
		}
		best = min(best, run)
		sum += run
	}
	b.ReportMetric(float64(sum.Nanoseconds())/float64(b.N), "ns/op")
	b.ReportMetric(float64(best.Nanoseconds())/1000, "best-µs/op")
}

func (c *wordCache) clear() {
	for i := range c {
		c[i].Store(nil)
	}
}

// BenchmarkLoad reads Qwen3's file.
func BenchmarkLoad(b *testing.B) {
	data, _ := testtok.Qwen3(b)
	b.ReportAllocs()
	for range b.N {
		if _, err := Load(data); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkMerge compares the two ways to merge one word: by scanning and by the
// heap, at the lengths around which they cross (shortSymbols).
func BenchmarkMerge(b *testing.B) {
	t := Qwen3(b)
	word := "internationalizationandmultilingualcharacteristics"
	var dst []uint32
	for _, n := range []int{8, 24, 48} {
		b.Run("scan", func(b *testing.B) {
			for range b.N {
				dst = t.appendMerged(dst[:0], word[:n], &patience{})
			}
		})
		b.Run("heap", func(b *testing.B) {
			for range b.N {
				dst = t.appendMergedLong(dst[:0], word[:n], &patience{})
			}
		})
	}
}
