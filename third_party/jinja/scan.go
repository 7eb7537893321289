package jinja

import (
	"fmt"
	"strings"
)

// segKind identifies the type of a scanned template segment.
type segKind int

const (
	segText segKind = iota // Raw text between tags.
	segExpr                // {{ ... }}
	segStmt                // {% ... %}
)

// segment represents a single scanned piece of a template.
type segment struct {
	kind segKind
	text string // Content between delimiters (tags) or raw text.
	line int    // 1-based line number where the segment starts.
}

// scanner splits a template as Jinja2's lexer does with trim_blocks and
// lstrip_blocks on: white space is dropped while the text is cut, so that it
// concerns nothing but the text next to a tag.
//
// Source: jinja2/lexer.py, Lexer.tokeniter.
type scanner struct {
	src  string
	pos  int
	segs []segment
	// lineStarting is true where the tag before pos took a newline with it, and
	// at the template's start.
	lineStarting bool
}

// scan splits source into a flat slice of segments: text, expressions and
// statements. Comments leave nothing.
func scan(source string) ([]segment, error) {
	source = strings.NewReplacer("\r\n", "\n", "\r", "\n").Replace(source)
	source = strings.TrimSuffix(source, "\n")
	s := &scanner{src: source, lineStarting: true}
	for s.pos < len(s.src) {
		open := s.nextTag()
		if open < 0 {
			s.addText(s.src[s.pos:], s.pos)
			break
		}
		if err := s.tag(open); err != nil {
			return nil, err
		}
	}
	return s.segs, nil
}

// nextTag returns where the next tag opens, or -1.
func (s *scanner) nextTag() int {
	for i := s.pos; i+1 < len(s.src); i++ {
		if s.src[i] == '{' && (s.src[i+1] == '{' || s.src[i+1] == '%' || s.src[i+1] == '#') {
			return i
		}
	}
	return -1
}

func (s *scanner) line(pos int) int { return 1 + strings.Count(s.src[:pos], "\n") }

func (s *scanner) addText(text string, pos int) {
	if text != "" {
		s.segs = append(s.segs, segment{kind: segText, text: text, line: s.line(pos)})
	}
}

// stripped returns text as the tag that follows it leaves it: sign is '-', '+' or
// another byte; block is true for statements and comments.
func (s *scanner) stripped(text string, sign byte, block bool) string {
	switch {
	case sign == '-':
		return strings.TrimRightFunc(text, pythonWhitespace)
	case sign == '+' || !block:
		return text
	}
	start := strings.LastIndexByte(text, '\n') + 1
	if (start > 0 || s.lineStarting) && strings.TrimFunc(text[start:], pythonWhitespace) == "" {
		return text[:start]
	}
	return text
}

// after moves pos past what a tag's end takes with it: all white space after
// "-%}", one newline after "%}" and "#}".
func (s *scanner) after(sign byte, block bool) {
	start := s.pos
	switch {
	case sign == '-':
		rest := s.src[s.pos:]
		s.pos += len(rest) - len(strings.TrimLeftFunc(rest, pythonWhitespace))
	case sign != '+' && block && strings.HasPrefix(s.src[s.pos:], "\n"):
		s.pos++
	}
	s.lineStarting = s.pos > start && s.src[s.pos-1] == '\n'
}

// tag reads the text up to a tag and the tag, which opens at open.
func (s *scanner) tag(open int) error {
	kind, content := s.src[open+1], open+2
	sign := byte(0)
	if content < len(s.src) && (s.src[content] == '-' || s.src[content] == '+') {
		sign = s.src[content]
		content++
	}
	s.addText(s.stripped(s.src[s.pos:open], sign, kind != '{'), s.pos)
	if kind == '#' {
		end := strings.Index(s.src[content:], "#}")
		if end < 0 {
			return fmt.Errorf("line %d: unclosed comment", s.line(open))
		}
		end += content
		s.pos = end + 2
		s.after(signBefore(s.src, content, end), true)
		return nil
	}
	end, err := s.tagEnd(content, kind)
	if err != nil {
		return fmt.Errorf("line %d: %w", s.line(open), err)
	}
	endSign := signBefore(s.src, content, end)
	text := s.src[content:end]
	if endSign != 0 {
		text = text[:len(text)-1]
	}
	s.pos = end + 2
	if kind == '%' && strings.TrimSpace(text) == "raw" {
		return s.raw(endSign, open)
	}
	seg := segment{kind: segStmt, text: text, line: s.line(open)}
	if kind == '{' {
		seg.kind = segExpr
	}
	s.segs = append(s.segs, seg)
	s.after(endSign, kind == '%')
	return nil
}

// signBefore returns the '-' or '+' that stands at a tag's end, or 0.
func signBefore(src string, from, end int) byte {
	if end > from && (src[end-1] == '-' || src[end-1] == '+') {
		return src[end-1]
	}
	return 0
}

// tagEnd returns where a tag's closing delimiter stands: outside of strings and
// of brackets.
func (s *scanner) tagEnd(from int, kind byte) (int, error) {
	closer := "}}"
	if kind == '%' {
		closer = "%}"
	}
	depth := 0
	for i := from; i < len(s.src); i++ {
		switch c := s.src[i]; c {
		case '\'', '"':
			for i++; i < len(s.src) && s.src[i] != c; i++ {
				if s.src[i] == '\\' {
					i++
				}
			}
		case '(', '[', '{':
			depth++
		default:
			if depth == 0 && strings.HasPrefix(s.src[i:], closer) {
				return i, nil
			}
			if c == ')' || c == ']' || c == '}' {
				depth--
			}
		}
	}
	return 0, fmt.Errorf("unclosed tag: %q is missing", closer)
}

// raw reads the text of a raw block, whose opening tag has been read.
func (s *scanner) raw(sign byte, open int) error {
	if sign == '-' {
		s.after('-', false)
	}
	s.lineStarting = false
	for i := s.pos; i < len(s.src); i++ {
		if !strings.HasPrefix(s.src[i:], "{%") {
			continue
		}
		end := strings.Index(s.src[i:], "%}")
		if end < 0 {
			break
		}
		inside := s.src[i+2 : i+end]
		startSign, endSign := byte(0), signBefore(inside, 0, len(inside))
		if inside != "" && (inside[0] == '-' || inside[0] == '+') {
			startSign = inside[0]
		}
		if strings.TrimSpace(strings.Trim(inside, "+-")) != "endraw" {
			continue
		}
		s.addText(s.stripped(s.src[s.pos:i], startSign, true), s.pos)
		s.pos = i + end + 2
		s.after(endSign, true)
		return nil
	}
	return fmt.Errorf("line %d: unclosed raw block", s.line(open))
}
