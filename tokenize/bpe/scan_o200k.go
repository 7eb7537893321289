package bpe

// scanO200K is the expression that came with OpenAI's o200k_base, which keeps
// words apart that begin with a capital. Mistral Nemo's differs in the number of
// digits and has no contractions. Its alternatives, with C for a capital and S
// for a small letter, of which letters without case and marks are both:
//
//	[^\r\n\p{L}\p{N}]?C*S+(?i:'s|'t|'re|'ve|'m|'ll|'d)?
//	[^\r\n\p{L}\p{N}]?C+S*(?i:'s|'t|'re|'ve|'m|'ll|'d)?
//	\p{N}{1,digits}
//	 ?[^\s\p{L}\p{N}]+[\r\n/]*
//	\s*[\r\n]+
//	\s+(?!\S)
//	\s+
func scanO200K(u *unicodeTables, text string, digits int, contractions bool) int {
	info, n := u.first(text)
	if info.kind() == number {
		return u.numbers(text, digits)
	}
	c := text[0]
	end, ok := 0, false
	if info.kind() != letter && c != '\r' && c != '\n' && n < len(text) {
		end, ok = u.cased(text, n)
	}
	if !ok && info&(capital|small) != 0 {
		end, _ = u.cased(text, 0) // a letter, or a mark that is no prefix
	}
	if end > 0 {
		if contractions && end < len(text) && text[end] == '\'' {
			end += contraction(text[end:])
		}
		return end
	}
	if c == ' ' && n < len(text) {
		if next, size := u.first(text[n:]); next.kind() == other {
			info, n = next, n+size
		}
	}
	if info.kind() == other {
		n += u.run(text[n:], other)
		for n < len(text) && (text[n] == '\r' || text[n] == '\n' || text[n] == '/') {
			n++
		}
		return n
	}
	return scanSpace(u, text)
}

// cased returns the end of C*S+ in text from an offset and true; if there is none,
// that of C+S*, or 0, and false.
//
// C* takes all it can get. If no S follows, it gives back until one does: the
// last of its run that is an S as well, and the match ends after that one, since
// the next is none. "中AB" is "中" and then "AB".
func (u *unicodeTables) cased(text string, from int) (end int, ok bool) {
	both := 0 // the end of the last that is C and S
	end = from
	for end < len(text) {
		info, n := u.first(text[end:])
		if info&capital == 0 {
			if info&small == 0 {
				break
			}
			return u.smalls(text, end+n), true
		}
		end += n
		if info&small != 0 {
			both = end
		}
	}
	switch {
	case both > 0:
		return both, true
	case end > from:
		return end, false
	}
	return 0, false
}

// smalls returns the end of S* in text from an offset.
func (u *unicodeTables) smalls(text string, from int) int {
	for from < len(text) {
		info, n := u.first(text[from:])
		if info&small == 0 {
			break
		}
		from += n
	}
	return from
}
