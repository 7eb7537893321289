package bpe

import (
	"slices"
	"strings"
	"sync"
	"unicode/utf8"
)

// runeInfo is what the tokenizer needs to know of a code point: bits 0–1 are
// its kind, bits 2–6 the properties below, bits 8–15 are its combining class by
// number (0 for a starter; only the order of the numbers means anything).
type runeInfo uint16

// The kinds of code points that pre-tokenizer patterns tell apart.
const (
	other  runeInfo = iota // [^\s\p{L}\p{N}]
	letter                 // \p{L}
	number                 // \p{N}
	space                  // \s
)

const (
	kindMask   runeInfo = 3
	joins      runeInfo = 1 << 2 // NFC may change it, or what stands before it
	capital    runeInfo = 1 << 3 // [\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]
	small      runeInfo = 1 << 4 // [\p{Ll}\p{Lm}\p{Lo}\p{M}]
	mark       runeInfo = 1 << 5 // \p{M}
	symbolic   runeInfo = 1 << 6 // [\p{P}\p{S}]
	classShift          = 8
)

func (i runeInfo) kind() runeInfo { return i & kindMask }
func (i runeInfo) class() uint8   { return uint8(i >> classShift) }

// unicodeTables holds tables.go unfolded for look-up. It never changes.
type unicodeTables struct {
	// page[r>>8] is the number of r's page of 256 code points.
	page  [(utf8.MaxRune + 1) >> 8]uint16
	pages [][256]runeInfo
	apart map[rune]string  // full canonical decomposition
	pairs map[[2]rune]rune // composition
}

// tables returns the unfolded tables, made by the first caller (about 1 ms,
// 0.3 MB).
var tables = sync.OnceValue(func() *unicodeTables {
	u := &unicodeTables{
		pages: make([][256]runeInfo, 1), // page 0 is the one without members
		apart: make(map[rune]string, len(decompositions)),
		pairs: make(map[[2]rune]rune, len(compositions)/3),
	}
	for kind, ranges := range map[runeInfo][][2]rune{letter: letters, number: numbers, space: spaces} {
		u.mark(ranges, kind)
	}
	u.mark(symbols, symbolic)
	u.mark(combining, mark|capital|small)
	// A letter with a case is one of both; one without is both.
	u.mark(letters, capital|small)
	u.unmark(capitals, small)
	u.unmark(smalls, capital)
	for i, ranges := range marks {
		u.mark(ranges, joins|runeInfo(i+1)<<classShift)
	}
	u.mark([][2]rune{{hangulV, hangulV + hangulVs - 1}, {hangulT + 1, hangulT + hangulTs - 1}}, joins)
	for i := 0; i < len(compositions); i += 3 {
		first, second, whole := compositions[i], compositions[i+1], compositions[i+2]
		u.pairs[[2]rune{first, second}] = whole
		u.mark([][2]rune{{second, second}}, joins)
	}
	for _, d := range decompositions {
		u.apart[d.r] = d.text
	}
	for _, d := range decompositions {
		// A code point that NFC replaces joins, and so does one that begins
		// with a joining one.
		first, _ := utf8.DecodeRuneInString(d.text)
		if u.info(first)&joins != 0 || string(u.compose([]rune(d.text))) != string(d.r) {
			u.mark([][2]rune{{d.r, d.r}}, joins)
		}
	}
	return u
})

// decomposition is a row of tables.go.
type decomposition struct {
	r    rune
	text string
}

// mark adds bits to the info of all code points in ranges.
func (u *unicodeTables) mark(ranges [][2]rune, bits runeInfo) {
	for _, lohi := range ranges {
		for r := lohi[0]; r <= lohi[1]; r++ {
			p := &u.page[r>>8]
			if *p == 0 {
				*p = uint16(len(u.pages))
				u.pages = append(u.pages, [256]runeInfo{})
			}
			u.pages[*p][r&0xff] |= bits
		}
	}
}

// unmark takes bits from the info of all code points in ranges, which have a page.
func (u *unicodeTables) unmark(ranges [][2]rune, bits runeInfo) {
	for _, lohi := range ranges {
		for r := lohi[0]; r <= lohi[1]; r++ {
			u.pages[u.page[r>>8]][r&0xff] &^= bits
		}
	}
}

func (u *unicodeTables) info(r rune) runeInfo { return u.pages[u.page[r>>8]][r&0xff] }

// first returns the info and the length in bytes of text's first code point.
// text is valid UTF-8 and not empty.
func (u *unicodeTables) first(text string) (runeInfo, int) {
	if c := text[0]; c < utf8.RuneSelf {
		return u.pages[u.page[0]][c], 1
	}
	r, n := utf8.DecodeRuneInString(text)
	return u.info(r), n
}

// Hangul syllables compose by arithmetic: Unicode Standard, section 3.12.
const (
	hangulS, hangulL, hangulV, hangulT = 0xAC00, 0x1100, 0x1161, 0x11A7
	hangulLs, hangulVs, hangulTs       = 19, 21, 28
	hangulSs                           = hangulLs * hangulVs * hangulTs
)

// nfc returns text in Unicode normalization form C, of the Unicode version that
// the reference's normalizer has: younger code points stay as they are. text is
// valid UTF-8. It is returned itself, without a copy, where nothing joins.
//
// golang.org/x/text/unicode/norm is not used because its Unicode version is
// another one, and changes with the Go version; and because it inserts U+034F
// into runs of more than 30 marks, which the reference does not.
func (u *unicodeTables) nfc(text string) string {
	start := u.joining(text, 0)
	if start < 0 {
		return text
	}
	// Normalize each stretch that begins at a code point which does not join
	// and goes on with those that do; copy what lies between.
	var out strings.Builder
	out.Grow(len(text))
	var buf []rune
	done := 0
	for ; start >= 0; start = u.joining(text, done) {
		if start > done {
			_, n := utf8.DecodeLastRuneInString(text[:start])
			start -= n
		}
		out.WriteString(text[done:start])
		buf, done = u.stretch(buf[:0], text, start)
		for _, r := range u.compose(buf) {
			out.WriteRune(r)
		}
	}
	out.WriteString(text[done:])
	return out.String()
}

// joining returns the offset of the first code point at or after from that
// joins, or -1.
func (u *unicodeTables) joining(text string, from int) int {
	for i := from; i < len(text); {
		if text[i] < utf8.RuneSelf { // no ASCII code point joins
			i++
			continue
		}
		r, n := utf8.DecodeRuneInString(text[i:])
		if u.info(r)&joins != 0 {
			return i
		}
		i += n
	}
	return -1
}

// stretch appends to buf the decomposition of text[start:end], where end is the
// offset of the first code point after start that does not join.
func (u *unicodeTables) stretch(buf []rune, text string, start int) (_ []rune, end int) {
	for i, r := range text[start:] {
		if i > 0 && u.info(r)&joins == 0 {
			return buf, start + i
		}
		switch s := r - hangulS; {
		case s >= 0 && s < hangulSs:
			buf = append(buf, hangulL+s/(hangulVs*hangulTs), hangulV+s/hangulTs%hangulVs)
			if t := s % hangulTs; t != 0 {
				buf = append(buf, hangulT+t)
			}
		default:
			if apart, ok := u.apart[r]; ok {
				buf = append(buf, []rune(apart)...)
			} else {
				buf = append(buf, r)
			}
		}
	}
	return buf, len(text)
}

// compose puts decomposed code points into canonical order and composes them, in
// place: Unicode Standard, section 3.11, D109 and D117.
func (u *unicodeTables) compose(runes []rune) []rune {
	for i := 0; i < len(runes); i++ {
		if u.info(runes[i]).class() == 0 {
			continue
		}
		end := i + 1
		for end < len(runes) && u.info(runes[end]).class() != 0 {
			end++
		}
		slices.SortStableFunc(runes[i:end], func(a, b rune) int {
			return int(u.info(a).class()) - int(u.info(b).class())
		})
		i = end
	}
	out := runes[:0]
	starter, last := -1, uint8(0) // last is the class of the code point before
	for _, r := range runes {
		class := u.info(r).class()
		if starter >= 0 && (last == 0 || last < class) {
			if whole, ok := u.pair(out[starter], r); ok {
				out[starter] = whole
				continue
			}
		}
		if class == 0 {
			starter = len(out)
		}
		last = class
		out = append(out, r)
	}
	return out
}

// pair returns what a and b compose to.
func (u *unicodeTables) pair(a, b rune) (rune, bool) {
	if l, v := a-hangulL, b-hangulV; l >= 0 && l < hangulLs && v >= 0 && v < hangulVs {
		return hangulS + (l*hangulVs+v)*hangulTs, true
	}
	if s, t := a-hangulS, b-hangulT; s >= 0 && s < hangulSs && s%hangulTs == 0 && t > 0 && t < hangulTs {
		return a + t, true
	}
	whole, ok := u.pairs[[2]rune{a, b}]
	return whole, ok
}

// validUTF8 returns text with U+FFFD in place of what is not UTF-8: one for
// each maximal subpart of a sequence, as the Unicode Standard recommends
// (section 3.9) and Rust and Python do. Valid text is returned itself.
func validUTF8(text string) string {
	if utf8.ValidString(text) {
		return text
	}
	var out strings.Builder
	for len(text) > 0 {
		r, n := utf8.DecodeRuneInString(text)
		if r == utf8.RuneError && n == 1 {
			n = subpart(text)
		}
		out.WriteRune(r)
		text = text[n:]
	}
	return out.String()
}

// subpart returns the length of the maximal subpart at the start of text, which
// begins with an ill-formed sequence: the longest prefix of some well-formed
// one, at least 1.
func subpart(text string) int {
	lo, hi, need := byte(0x80), byte(0xBF), 0
	switch c := text[0]; {
	case c >= 0xC2 && c <= 0xDF:
		need = 1
	case c >= 0xE0 && c <= 0xEF:
		need = 2
	case c >= 0xF0 && c <= 0xF4:
		need = 3
	}
	switch text[0] { // Unicode Standard, table 3-7
	case 0xE0:
		lo = 0xA0
	case 0xED:
		hi = 0x9F
	case 0xF0:
		lo = 0x90
	case 0xF4:
		hi = 0x8F
	}
	n := 1
	for n <= need && n < len(text) && text[n] >= lo && text[n] <= hi {
		n++
		lo, hi = 0x80, 0xBF
	}
	return n
}
