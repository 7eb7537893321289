package bpe

import "unicode/utf8"

// scanDeepSeek is three expressions, each applied to the pieces that the one
// before left, so that a piece's end is the end of text for it:
//
//	\p{N}{1,3}
//	[一-龥぀-ゟ゠-ヿ]+
//	[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+
//	  |[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+
//	  | ?[\p{P}\p{S}]+[\r\n]*
//	  |\s*[\r\n]+
//	  |\s+(?!\S)
//	  |\s+
//
// Numbers match nothing in the second and third, so they stay as they are. What
// matches no alternative of the third (control characters, code points that are
// not assigned) is a word up to where the next match begins.
func scanDeepSeek(u *unicodeTables, text string) int {
	if info, _ := u.first(text); info.kind() == number {
		return u.numbers(text, 3)
	}
	p := deepSeekPiece{u: u, text: text, kana: isKana(text)}
	if end := p.match(0); end > 0 {
		return end
	}
	_, end := p.at(0)
	for {
		_, n := p.at(end)
		if n == 0 || p.match(end) > end {
			return end
		}
		end += n
	}
}

// deepSeekPiece is what the first two expressions cut off, and what follows it
// in text.
type deepSeekPiece struct {
	u    *unicodeTables
	text string
	kana bool // whether it is a match of the second expression
}

// at returns the info and the length of the code point at an offset, length 0 at
// the piece's end.
func (p *deepSeekPiece) at(i int) (runeInfo, int) {
	if i == len(p.text) {
		return 0, 0
	}
	info, n := p.u.first(p.text[i:])
	if info.kind() == number || isKana(p.text[i:]) != p.kana {
		return 0, 0
	}
	return info, n
}

// match returns the end of the third expression's match that begins at offset i,
// which is not the piece's end; i if there is none.
func (p *deepSeekPiece) match(i int) int {
	info, n := p.at(i)
	next, m := p.at(i + n)
	c := p.text[i]
	switch {
	case info&symbolic != 0 && c < utf8.RuneSelf && m == 1 && isLatin(p.text[i+n]):
		for i += n; i < len(p.text) && isLatin(p.text[i]); i++ {
		}
		return i
	case info.spells():
		return p.run(i, runeInfo.spells)
	case info&symbolic == 0 && c != '\r' && c != '\n' && m > 0 && next.spells():
		return p.run(i+n, runeInfo.spells)
	case info&symbolic != 0 || c == ' ' && m > 0 && next&symbolic != 0:
		end := p.run(i+n, func(info runeInfo) bool { return info&symbolic != 0 })
		for end < len(p.text) && (p.text[end] == '\r' || p.text[end] == '\n') {
			end++
		}
		return end
	case info.kind() == space:
		end, lineEnd, last := spaceRun(p.u, p.text[i:])
		_, more := p.at(i + end)
		return i + cutSpace(end, lineEnd, last, more == 0)
	}
	return i
}

// run returns the end of the code points of a class from offset i on.
func (p *deepSeekPiece) run(i int, of func(runeInfo) bool) int {
	for {
		info, n := p.at(i)
		if n == 0 || !of(info) {
			return i
		}
		i += n
	}
}

// spells reports whether a code point is one of [\p{L}\p{M}].
func (i runeInfo) spells() bool { return i.kind() == letter || i&mark != 0 }

func isLatin(c byte) bool { return c|0x20 >= 'a' && c|0x20 <= 'z' }

// isKana reports whether text begins with one of [一-龥぀-ゟ゠-ヿ].
func isKana(text string) bool {
	if text[0] < 0xE3 || text[0] > 0xE9 { // as all of them do in UTF-8
		return false
	}
	r, _ := utf8.DecodeRuneInString(text)
	return r >= 0x4E00 && r <= 0x9FA5 || r >= 0x3040 && r <= 0x30FF
}
