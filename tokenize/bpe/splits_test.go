package bpe

import (
	"bufio"
	"encoding/json"
	"os"
	"slices"
	"testing"
	"unicode"
)

// splits are texts and the lengths of the words into which the reference cuts
// them, by the expressions of Qwen, Llama 3, gpt-oss, Mistral Nemo and DeepSeek.
type splits struct {
	Text  string
	Words [5][]int
}

func readSplits(t *testing.T) (all []splits) {
	t.Helper()
	file, err := os.Open("testdata/splits.jsonl")
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	lines := bufio.NewScanner(file)
	for lines.Scan() {
		var s splits
		if err := json.Unmarshal(lines.Bytes(), &s); err != nil {
			t.Fatal(err)
		}
		all = append(all, s)
	}
	if err := lines.Err(); err != nil || len(all) < 1000 {
		t.Fatalf("%d texts, %v", len(all), err)
	}
	return all
}

// wrong counts the texts that a scanner cuts otherwise than the reference does by
// expression number which.
func wrong(all []splits, which int, scan scanner) (n int) {
	for _, s := range all {
		var words []int
		for text := s.Text; text != ""; text = text[words[len(words)-1]:] {
			words = append(words, scan(tables(), text))
		}
		if !slices.Equal(words, s.Words[which]) {
			n++
		}
	}
	return n
}

const (
	qwenWords = iota
	llama3Words
	gpt4oWords
	nemoWords
	deepSeekWords
)

// Every expression's scanner cuts as the reference does.
func TestSplits(t *testing.T) {
	all := readSplits(t)
	for which, scan := range []scanner{scanQwen, scanLlama3, scanGPT4o, scanNemo, scanDeepSeek} {
		if n := wrong(all, which, scan); n > 0 {
			t.Errorf("expression %d: %d of %d texts are cut otherwise", which, n, len(all))
		}
	}
}

// The texts see each trap: a scanner that falls into one cuts at least so many
// texts otherwise.
func TestSplitTraps(t *testing.T) {
	all := readSplits(t)
	// goesOn wraps a scanner so that a run of white space that something follows
	// is not cut before its last: \s+ without \s+(?!\S) before it.
	goesOn := func(scan scanner) scanner {
		return func(u *unicodeTables, text string) int {
			n := scan(u, text)
			if end, lineEnd, last := spaceRun(u, text); lineEnd == 0 && last > 0 && n == last {
				return end
			}
			return n
		}
	}
	for _, trap := range []struct {
		name  string
		which int
		scan  scanner
		least int
	}{
		{`\s+(?!\S) before \s+: Qwen`, qwenWords, goesOn(scanQwen), 40},
		{`\s+(?!\S) before \s+: gpt-oss`, gpt4oWords, goesOn(scanGPT4o), 40},
		{`\s+(?!\S) before \s+: DeepSeek`, deepSeekWords, goesOn(scanDeepSeek), 40},
		{`\p{N}{1,3} against \p{N}: Llama 3`, llama3Words, scanQwen, 80},
		{`\p{N} against \p{N}{1,3}: Qwen`, qwenWords, scanLlama3, 80},
		{`digits: Mistral Nemo`, nemoWords, func(u *unicodeTables, text string) int { return scanO200K(u, text, 3, false) }, 80},
		{`contractions are a suffix: gpt-oss`, gpt4oWords, func(u *unicodeTables, text string) int { return scanO200K(u, text, 3, false) }, 20},
		{`no contractions: Mistral Nemo`, nemoWords, func(u *unicodeTables, text string) int { return scanO200K(u, text, 1, true) }, 20},
		{`contractions lead: Qwen`, qwenWords, func(u *unicodeTables, text string) int {
			if n := scanQwen(u, text); contraction(text) != n {
				return n
			}
			return 1
		}, 20},
		{`a word of capitals gives back: gpt-oss`, gpt4oWords, func(u *unicodeTables, text string) int {
			n := scanGPT4o(u, text)
			if end, ok := u.cased(text, 0); ok && n == end {
				n = max(n, u.upper(text))
			}
			return n
		}, 5},
		{`a sequence's pieces end a text: DeepSeek`, deepSeekWords, func(u *unicodeTables, text string) int {
			n := scanDeepSeek(u, text)
			if end, lineEnd, last := spaceRun(u, text); lineEnd == 0 && last > 0 && n == end && end < len(text) {
				return last
			}
			return n
		}, 5},
		{`what matches nothing is a word: DeepSeek`, deepSeekWords, func(u *unicodeTables, text string) int {
			if info, n := u.first(text); info&^(joins) == 0 && scanDeepSeek(u, text) > n {
				return n
			}
			return scanDeepSeek(u, text)
		}, 5},
	} {
		if n := wrong(all, trap.which, trap.scan); n < trap.least {
			t.Errorf("%s: %d texts see it, not %d", trap.name, n, trap.least)
		} else {
			t.Logf("%s: %d of %d", trap.name, n, len(all))
		}
	}
}

// Go's categories are older than those of the reference's expressions: with them
// thousands of code points would be no letters.
func TestCategories(t *testing.T) {
	letters, marks := 0, 0
	for r := range rune(unicode.MaxRune + 1) {
		if (tables().info(r).kind() == letter) != unicode.IsLetter(r) {
			letters++
		}
		if (tables().info(r)&mark != 0) != unicode.IsMark(r) {
			marks++
		}
	}
	if letters < 1000 || letters > 20000 || marks > 300 {
		t.Errorf("%d letters and %d marks differ", letters, marks)
	}
}

// With Qwen3, NFC changes the IDs of many texts.
func TestNFCTrap(t *testing.T) {
	tok := *Qwen3(t)
	tok.nfc = false
	file, err := os.Open("testdata/qwen3_random.jsonl")
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	n, all := 0, 0
	for lines := bufio.NewScanner(file); lines.Scan(); all++ {
		var v struct {
			Text string
			IDs  []uint32
		}
		if err := json.Unmarshal(lines.Bytes(), &v); err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(tok.Append(nil, v.Text), v.IDs) {
			n++
		}
	}
	if n < 150 {
		t.Errorf("%d of %d texts see it", n, all)
	}
}

// upper returns the length of the capitals that text begins with.
func (u *unicodeTables) upper(text string) int {
	end := 0
	for end < len(text) {
		info, n := u.first(text[end:])
		if info&capital == 0 {
			break
		}
		end += n
	}
	return end
}
