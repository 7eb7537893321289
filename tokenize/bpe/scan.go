package bpe

import "unicode/utf8"

// A scanner cuts text into the words that are merged on their own, as a
// pre-tokenizer's regular expression does. It returns the length of the first
// word, above 0. text is valid UTF-8 and not empty; its end counts as the end of
// text for the expression's look-ahead.
//
// Go's regexp has no look-ahead and is an order of magnitude slower, so each
// expression has a scanner written for it, found by the expression's own text.
type scanner func(u *unicodeTables, text string) int

// cutting is a scanner and the model that came with its expression.
type cutting struct {
	model string
	scan  scanner
}

// cuttings holds every expression that is known, or of several that follow each
// other all, with line ends between: Load refuses others.
var cuttings = map[string]cutting{
	// Qwen 2, 2.5 and 3.
	`(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`: {"qwen2", scanQwen},
	// Llama 3 to 3.3.
	`(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`: {"llama3", scanLlama3},
	// GPT-4o and gpt-oss.
	`[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|` +
		`[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|` +
		`\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+`: {"gpt4o", scanGPT4o},
	// Mistral Nemo.
	`[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|` +
		`[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|` +
		`\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+`: {"mistral_nemo", scanNemo},
	// DeepSeek V3 and R1: three expressions, each on the pieces of the one before.
	"\\p{N}{1,3}\n[一-龥぀-ゟ゠-ヿ]+\n" +
		"[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\r\n]*|\\s*[\r\n]+|\\s+(?!\\S)|\\s+": {"deepseek_v3", scanDeepSeek},
}

func scanQwen(u *unicodeTables, text string) int   { return scanCL100K(u, text, 1) }
func scanLlama3(u *unicodeTables, text string) int { return scanCL100K(u, text, 3) }
func scanGPT4o(u *unicodeTables, text string) int  { return scanO200K(u, text, 3, true) }
func scanNemo(u *unicodeTables, text string) int   { return scanO200K(u, text, 1, false) }

// scanCL100K is the expression that came with OpenAI's cl100k_base and of which
// Qwen's and Llama 3's differ in the number of digits alone. Its alternatives,
// the first that matches wins:
//
//	(?i:'s|'t|'re|'ve|'m|'ll|'d)
//	[^\r\n\p{L}\p{N}]?\p{L}+
//	\p{N}{1,digits}
//	 ?[^\s\p{L}\p{N}]+[\r\n]*
//	\s*[\r\n]+
//	\s+(?!\S)
//	\s+
func scanCL100K(u *unicodeTables, text string, digits int) int {
	info, n := u.first(text)
	switch info.kind() {
	case letter:
		return n + u.run(text[n:], letter)
	case number:
		return u.numbers(text, digits)
	}
	c := text[0]
	if c == '\'' {
		if m := contraction(text); m > 0 {
			return m
		}
	}
	if n < len(text) && c != '\r' && c != '\n' {
		next, size := u.first(text[n:])
		if next.kind() == letter {
			n += size
			return n + u.run(text[n:], letter)
		}
		if c == ' ' && next.kind() == other {
			info, n = next, n+size
		}
	}
	if info.kind() == other {
		n += u.run(text[n:], other)
		for n < len(text) && (text[n] == '\r' || text[n] == '\n') {
			n++
		}
		return n
	}
	return scanSpace(u, text)
}

// scanSpace is \s*[\r\n]+|\s+(?!\S)|\s+ on text that begins with white space:
// all of it up to the last line end, if there is one; else all that the text
// ends with; else all but the last, which belongs to what follows; else the one.
func scanSpace(u *unicodeTables, text string) int {
	end, lineEnd, last := spaceRun(u, text)
	return cutSpace(end, lineEnd, last, end == len(text))
}

// spaceRun returns the end of the white space that text begins with, the end of
// the last line end in it (0 if there is none) and the start of its last code
// point.
func spaceRun(u *unicodeTables, text string) (end, lineEnd, last int) {
	for end < len(text) {
		info, n := u.first(text[end:])
		if info.kind() != space {
			break
		}
		last = end
		end += n
		if c := text[last]; c == '\r' || c == '\n' {
			lineEnd = end
		}
	}
	return end, lineEnd, last
}

// cutSpace returns where scanSpace cuts a run of white space; atEnd tells
// whether the text ends with it.
func cutSpace(end, lineEnd, last int, atEnd bool) int {
	switch {
	case lineEnd > 0:
		return lineEnd
	case atEnd || last == 0:
		return end
	}
	return last
}

// numbers returns the length of \p{N}{1,most} at the start of text, which begins
// with one.
func (u *unicodeTables) numbers(text string, most int) int {
	end := 0
	for i := 0; i < most && end < len(text); i++ {
		info, n := u.first(text[end:])
		if info.kind() != number {
			break
		}
		end += n
	}
	return end
}

// run returns the length of the code points of one kind that text begins with.
func (u *unicodeTables) run(text string, kind runeInfo) int {
	ascii := &u.pages[u.page[0]]
	for i := 0; i < len(text); {
		if c := text[i]; c < utf8.RuneSelf {
			if ascii[c].kind() != kind {
				return i
			}
			i++
			continue
		}
		r, n := utf8.DecodeRuneInString(text[i:])
		if u.info(r).kind() != kind {
			return i
		}
		i += n
	}
	return len(text)
}

// contraction returns the length of (?i:'s|'t|'re|'ve|'m|'ll|'d) at the start
// of text, which begins with ', or 0. The long s (U+017F) is an s when case
// does not count.
func contraction(text string) int {
	const longS = "'\u017f"
	if len(text) >= len(longS) && text[:len(longS)] == longS {
		return len(longS)
	}
	if len(text) < 2 {
		return 0
	}
	switch text[1] | 0x20 {
	case 's', 't', 'm', 'd':
		return 2
	}
	if len(text) < 3 {
		return 0
	}
	switch [2]byte{text[1] | 0x20, text[2] | 0x20} {
	case [2]byte{'r', 'e'}, [2]byte{'v', 'e'}, [2]byte{'l', 'l'}:
		return 3
	}
	return 0
}
