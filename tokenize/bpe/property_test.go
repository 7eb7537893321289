package bpe

import (
	"cmp"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"epp.internal/epp/epptest/demotok"
	"golang.org/x/text/unicode/norm"
	"pgregory.net/rapid"
)

func loadDemo(t testing.TB) *Tokenizer {
	t.Helper()
	data, _ := demotok.Files()
	tok, err := Load(data)
	if err != nil {
		t.Fatal(err)
	}
	return tok
}

// texts draws texts of pieces that matter: added tokens and what is nearly one,
// marks, jamo, white space, words, any code point.
func texts() *rapid.Generator[string] {
	piece := rapid.OneOf(
		rapid.SampledFrom([]string{"▁", "▁▁", "> </", "</", ">", "\n\n", "<0x41>", "<|im_start|>", "<|im_end|>", "<|endoftext|>", "<|im_", "<", "|>", " ", "\n", "\r\n", "\t", "'s", "'LL"}),
		rapid.SampledFrom(demotok.Words()),
		rapid.String(),
		rapid.StringOf(rapid.RuneFrom([]rune{'a', 'e', 'o', 0x300, 0x301, 0x323, 0x345, 0x93c, 0x928, 0x9c7, 0x9be, 0x1100, 0x1161, 0x11a8, 0xac00, 0x3046, 0x3099, 0x212b, 0x338, '>'})),
	)
	return rapid.Map(rapid.SliceOfN(piece, 0, 12), func(all []string) string { return strings.Join(all, "") })
}

// The IDs of a text decode to its normal form.
func TestDecodeAppend(t *testing.T) {
	for name, tok := range variants(t) {
		t.Run(name, func(t *testing.T) {
			rapid.Check(t, func(t *rapid.T) { checkDecode(t, tok, texts().Draw(t, "text")) })
		})
	}
}

// Cutting at any border and joining the IDs is the same as not cutting; what was
// in dst before stays; and the word cache changes nothing.
func TestBorders(t *testing.T) {
	for name, tok := range variants(t) {
		t.Run(name, func(t *testing.T) {
			rapid.Check(t, func(t *rapid.T) { checkBorders(t, tok, texts().Draw(t, "text")) })
		})
	}
}

func checkDecode(t rapid.TB, tok *Tokenizer, text string) {
	if !utf8.ValidString(text) {
		return
	}
	// Added tokens split the text before it is normalized: U+0338 after one
	// that ends in > does not make it U+226F.
	want, rest := "", text
	for start, end, _, ok := tok.raw.find(rest, 0); ok; start, end, _, ok = tok.raw.find(rest, 0) {
		want += tok.normalize(rest[:start]) + rest[start:end]
		rest = rest[end:]
	}
	want += tok.normalize(rest)
	if tok.metaspace { // the decoder makes spaces of added tokens too
		want = strings.ReplaceAll(want, metaspace, " ")
	}
	if got := tok.Decode(tok.Append(nil, text)); got != want {
		t.Fatalf("%+q decodes to %+q, not %+q", text, got, want)
	}
}

func checkBorders(t rapid.TB, tok *Tokenizer, text string) {
	whole := tok.Append([]uint32{7}, text)
	last := 0
	for end := range tok.Borders(text) {
		if end <= last {
			t.Fatalf("%+q: border %d follows %d", text, end, last)
		}
		last = end
		cut := tok.Append(tok.Append([]uint32{7}, text[:end]), text[end:])
		if !slices.Equal(cut, whole) {
			t.Fatalf("%+q cut at %d: %d, not %d", text, end, cut, whole)
		}
	}
	if got := tok.LastBorder(text); got != last {
		t.Fatalf("%+q: LastBorder is %d, not %d", text, got, last)
	}
}

// Merging by scanning and by the heap give what a merge by the book gives, which
// starts from bytes.
func TestMergeTwin(t *testing.T) {
	checkMerge(t, loadDemo(t))
}

// With Qwen3's merges, of which many lead to characters of other scripts, and many
// go across two of them, starting from characters gives the same.
func TestMergeTwinQwen3(t *testing.T) {
	tok := Qwen3(t)
	if n := len(tok.chars.pages); n < 100 {
		t.Errorf("%d pages of characters", n)
	}
	checkMerge(t, tok)
}

func checkMerge(t *testing.T, tok *Tokenizer) {
	scripts := rapid.SampledFrom([][2]rune{
		{0x20, 0x7e}, {0xa0, 0x24f}, {0x370, 0x52f}, {0x590, 0x6ff}, {0x900, 0xdff}, {0xe00, 0xeff}, {0x1000, 0x109f}, {0x1e00, 0x1fff},
		{0x2000, 0x22ff}, {0x3000, 0x30ff}, {0x4e00, 0x9fff}, {0xac00, 0xd7a3}, {0xff00, 0xffef}, {0x1f300, 0x1f6ff},
	})
	char := rapid.Custom(func(t *rapid.T) rune {
		script := scripts.Draw(t, "script")
		return rapid.Int32Range(script[0], script[1]).Draw(t, "char")
	})
	rapid.Check(t, func(t *rapid.T) {
		word := rapid.OneOf(
			rapid.StringN(1, 60, 120),
			rapid.StringOfN(rapid.RuneFrom([]rune("aeinrst ")), 1, 200, -1),
			rapid.StringOfN(char, 1, 90, -1),
			rapid.Map(rapid.SliceOfN(rapid.SampledFrom(demotok.Words()), 1, 30), func(w []string) string { return strings.Join(w, "") }),
		).Draw(t, "word")
		if !utf8.ValidString(word) {
			return // appendWord gets none
		}
		want := dumbMerge(tok, word)
		if got := tok.appendMerged(nil, word, &patience{}); !slices.Equal(got, want) {
			t.Fatalf("%q: %d, not %d", word, got, want)
		}
		if got := tok.appendMergedLong(nil, word, &patience{}); !slices.Equal(got, want) {
			t.Fatalf("%q by the heap: %d, not %d", word, got, want)
		}
	})
}

// dumbMerge merges one pair after the other in a slice.
func dumbMerge(tok *Tokenizer, word string) []uint32 {
	var ids []uint32
	for i := range len(word) {
		ids = append(ids, tok.bytes[word[i]])
	}
	for {
		at, lowest := -1, uint32(noRank)
		for i := 1; i < len(ids); i++ {
			if rank := tok.pairs.rank(ids[i-1], ids[i]); rank < lowest {
				at, lowest = i, rank
			}
		}
		if at < 0 {
			return ids
		}
		ids[at-1] = tok.pairs.id(lowest)
		ids = slices.Delete(ids, at, at+1)
	}
}

// The pair table finds each pair that was put in, and no other.
func TestPairTable(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		id := rapid.Uint32Range(0, 40)
		pairs := rapid.SliceOfDistinct(rapid.Custom(func(t *rapid.T) [2]uint32 {
			return [2]uint32{id.Draw(t, "left"), id.Draw(t, "right")}
		}), rapid.ID).Draw(t, "pairs")
		table := newPairTable(len(pairs))
		want := make(map[[2]uint32]uint32)
		ids := rapid.SliceOfN(id, len(pairs), len(pairs)).Draw(t, "ids")
		for rank, p := range pairs {
			table.put(p[0], p[1], uint32(rank))
			want[p] = uint32(rank)
		}
		table.setIDs(ids)
		for left := range uint32(41) {
			for right := range uint32(41) {
				rank, ok := want[[2]uint32{left, right}]
				if !ok {
					rank = noRank
				}
				if got := table.rank(left, right); got != rank {
					t.Fatalf("rank of (%d, %d) is %d, not %d", left, right, got, rank)
				}
				if ok && table.id(rank) != ids[rank] {
					t.Fatalf("id of rank %d is %d, not %d", rank, table.id(rank), ids[rank])
				}
			}
		}
	})
}

// Words are cut as the expressions say; the reference agrees with each. Where one
// is empty, the words are those of Qwen.
func TestScan(t *testing.T) {
	for _, c := range []struct{ text, qwen, llama3, gptoss, nemo, deepseek string }{
		{"Hello, world!\n", "Hello|,| world|!\n", "", "", "", ""},
		{"we'll don'T it'\u017fo 'tis 'x", "we|'ll| don|'T| it|'\u017f|o| '|tis| '|x", "", "we'll| don'T| it'\u017f|o| '|tis| '|x", "we|'ll| don|'T| it|'\u017fo| '|tis| '|x", "we|'ll| don|'T| it|'|\u017fo| '|tis| '|x"},
		{"a1234 5", "a|1|2|3|4| |5", "a|123|4| |5", "a|123|4| |5", "", "a|123|4| |5"},
		{"x  y", "x| | y", "", "", "", ""},
		{"x \t\n  \r\n  y", "x| \t\n  \r\n| | y", "", "", "", ""},
		{"end   ", "end|   ", "", "", "", ""},
		{"\ty \t(", "\ty| |\t|(", "", "", "", ""},
		{"a\u00a0b \u3000c", "a|\u00a0b| |\u3000c", "", "", "", ""},
		{"f(x)\r\n\r\n}", "f|(x|)\r\n\r\n|}", "", "", "", ""},
		{"中文。 日本", "中文|。| 日本", "", "", "", "中文|。| |日本"},
		{"中AB HTTPServer", "中AB| HTTPServer", "", "中|AB| HTTPServer", "中|AB| HTTPServer", "中|AB| HTTPServer"},
		{"\u0301AB", "\u0301AB", "", "\u0301|AB", "\u0301|AB", "\u0301AB"},
		{"a  1", "a| | |1", "", "", "", "a|  |1"},
		{"a//\n/b", "a|//\n|/b", "", "a|//\n/|b", "a|//\n/|b", "a|//\n|/b"},
		{"\x00\x01a\x02", "\x00\x01|a|\x02", "", "\x00\x01|a|\x02", "\x00\x01|a|\x02", "\x00|\x01a|\x02"},
	} {
		words := []string{c.qwen, c.llama3, c.gptoss, c.nemo, c.deepseek}
		for i, scan := range []scanner{scanQwen, scanLlama3, scanGPT4o, scanNemo, scanDeepSeek} {
			var got []string
			for text := c.text; text != ""; text = text[len(got[len(got)-1]):] {
				got = append(got, text[:scan(tables(), text)])
			}
			if got, want := strings.Join(got, "|"), cmp.Or(words[i], c.qwen); got != want {
				t.Errorf("expression %d, %+q: %+q, not %+q", i, c.text, got, want)
			}
		}
	}
}

// Added tokens are found as by trying each at each place.
func TestAddedTwin(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		letters := rapid.StringOfN(rapid.RuneFrom([]rune("abé")), 1, 4, -1)
		tokens := rapid.SliceOfDistinct(letters, rapid.ID).Draw(t, "tokens")
		var set addedSet
		for id, token := range tokens {
			set.add(token, uint32(id))
		}
		text := rapid.StringOf(rapid.RuneFrom([]rune("abéè"))).Draw(t, "text")
		from := rapid.IntRange(0, len(text)).Draw(t, "from")
		wantStart, wantID, found := 0, 0, false
		for start := from; start < len(text) && !found; start++ {
			for id, token := range tokens {
				if strings.HasPrefix(text[start:], token) && (!found || len(token) > len(tokens[wantID])) {
					wantStart, wantID, found = start, id, true
				}
			}
		}
		start, end, id, ok := set.find(text, from)
		if ok != found || ok && (start != wantStart || int(id) != wantID || text[start:end] != tokens[id]) {
			t.Fatalf("%q in %q from %d: [%d:%d] %d %t, not %d at %d %t", tokens, text, from, start, end, id, ok, wantID, wantStart, found)
		}
	})
}

// Normalizing agrees with golang.org/x/text where both know the code points and
// no more than 30 marks follow each other, above which x/text inserts U+034F.
func TestNFCTwin(t *testing.T) {
	u := tables()
	known := func(r rune) bool { // in both, with the same properties
		p := norm.NFC.PropertiesString(string(r))
		class := u.info(r).class()
		return (class > 0) == (p.CCC() > 0) && u.nfc(string(r)) == norm.NFC.String(string(r)) &&
			(p.Decomposition() != nil) == (u.apart[r] != "")
	}
	differ := 0
	for r := rune(0); r <= utf8.MaxRune; r++ {
		if utf8.ValidRune(r) && !known(r) {
			differ++
		}
	}
	if differ == 0 || differ > 300 {
		t.Errorf("%d code points differ; the older Unicode version explains some 100 to 300", differ)
	}
	rapid.Check(t, func(t *rapid.T) {
		var b strings.Builder
		run := 0
		for _, r := range texts().Draw(t, "text") {
			if u.info(r)&joins == 0 {
				run = 0
			}
			if run++; known(r) && run < 10 {
				b.WriteRune(r)
			}
		}
		text := b.String()
		if got, want := u.nfc(text), norm.NFC.String(text); got != want {
			t.Fatalf("%+q: %+q, not %+q", text, got, want)
		}
	})
}

// Marks that are younger than the reference's normalizer neither move nor
// compose, and a long run of marks stays one.
func TestNFCReference(t *testing.T) {
	for text, want := range map[string]string{
		"e\u0301":                              "é",
		"\u08d3\u0316":                         "\u08d3\u0316", // class 220 both, in order
		"a\u0301\u1ac0":                        "á\u1ac0",
		"a\u1ac0\u0301":                        "a\u1ac0\u0301", // U+1AC0 counts as a starter
		"\u1100\u1161\u11a8":                   "각",
		"\uac00\u11a8":                         "각",
		"\u212b":                               "Å",
		"\u0958":                               "\u0915\u093c", // composition exclusion
		"e" + strings.Repeat("\u0316", 40):     "e" + strings.Repeat("\u0316", 40),
		"e\u030d\u0301":                        "e\u030d\u0301", // blocked by a mark of the same class
		"e\u0316\u0301":                        "é\u0316",
		"<|im_end|>" + "\u0301":                "<|im_end|>\u0301",
		"\u0344":                               "\u0308\u0301",
		"x\u0308\u0301 y \u1100\u1161 z\u030a": "ẍ\u0301 y 가 z\u030a",
	} {
		if got := tables().nfc(text); got != want {
			t.Errorf("%+q: %+q, not %+q", text, got, want)
		}
	}
}

// What is not UTF-8 becomes one U+FFFD per maximal subpart: the examples of the
// Unicode Standard, tables 3-8 to 3-11, and Python's answers.
func TestValidUTF8(t *testing.T) {
	for text, want := range map[string]string{
		"plain é":                           "plain é",
		"\xc0\xaf\xe0\x80\xbf\xf0\x81\x82A": strings.Repeat("\ufffd", 8) + "A",
		"\xed\xa0\x80\xed\xbf\xbf\xed\xafA": strings.Repeat("\ufffd", 8) + "A",
		"\xf4\x91\x92\x93\xffA\x80\xbfB":    strings.Repeat("\ufffd", 5) + "A\ufffd\ufffdB",
		"\xe1\x80\xe2\xf0\x91\x92\xf1\xbfA": strings.Repeat("\ufffd", 4) + "A",
		"a\xe4\xb8":                         "a\ufffd",
		"\ufffd":                            "\ufffd",
	} {
		if got := validUTF8(text); got != want {
			t.Errorf("%+q: %+q, not %+q", text, got, want)
		}
	}
}

// FuzzAppend checks that no text makes the tokenizer panic, that IDs decode to
// the text, and that borders are exact.
func FuzzAppend(f *testing.F) {
	for _, text := range []string{
		"", "Hello, world", "<|im_start|>user\nHi<|im_end|>\n", "  x\r\n\r\n  y", "we'll 'S don't", "e\u0301\u0316", "\xff<|im_end|>\xe4\xb8",
		strings.Repeat("ab", 100), "12345 ½", "\u1100\u1161\u11a8", "<|im_<|im_end|>", "<|im_end|>\u0338", "a> </b>▁▁\n\n\n\x07", "\x00\x01中a  1",
	} {
		f.Add(text)
	}
	all := variants(f)
	f.Fuzz(func(t *testing.T, text string) {
		for _, tok := range all {
			checkDecode(t, tok, text)
			checkBorders(t, tok, text)
		}
	})
}
