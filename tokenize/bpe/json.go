package bpe

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
)

// A cursor walks through JSON from left to right. It is here beside
// encoding/json for the two big lists of a tokenizer.json, on which that takes
// seconds. It checks what it steps on; the parts that [cursor.raw] cuts out are
// whole in brackets and strings, and need encoding/json to be checked.
type cursor struct {
	rest string // what was not read yet
}

// maxJSONDepth bounds how deep a part may be nested.
const maxJSONDepth = 64

var (
	errEndOfJSON = errors.New("unexpected end of JSON input")
	errTooDeep   = fmt.Errorf("the JSON is nested deeper than %d", maxJSONDepth)
)

// peek returns the next byte that is no white space, 0 at the end.
func (c *cursor) peek() byte {
	for i := range len(c.rest) {
		switch c.rest[i] {
		case ' ', '\n', '\t', '\r':
		default:
			c.rest = c.rest[i:]
			return c.rest[0]
		}
	}
	c.rest = ""
	return 0
}

// expect steps over one byte after white space.
func (c *cursor) expect(want byte) error {
	switch got := c.peek(); got {
	case want:
		c.rest = c.rest[1:]
		return nil
	case 0:
		return errEndOfJSON
	default:
		return fmt.Errorf("invalid JSON: %q where %q belongs", got, want)
	}
}

// list calls item at each item of a list or an object between open and close.
func (c *cursor) list(open, close byte, item func() error) error {
	if err := c.expect(open); err != nil {
		return err
	}
	if c.peek() == close {
		c.rest = c.rest[1:]
		return nil
	}
	for {
		if err := item(); err != nil {
			return err
		}
		if c.peek() != ',' {
			return c.expect(close)
		}
		c.rest = c.rest[1:]
	}
}

// object calls member with each key of an object, at the key's value.
func (c *cursor) object(member func(key string) error) error {
	return c.list('{', '}', func() error {
		key, err := c.string()
		if err != nil {
			return err
		}
		if err := c.expect(':'); err != nil {
			return err
		}
		return member(key)
	})
}

// string reads a string.
func (c *cursor) string() (string, error) {
	if err := c.expect('"'); err != nil {
		return "", err
	}
	n, plain, err := stringEnd(c.rest)
	if err != nil {
		return "", err
	}
	text := c.rest[:n]
	if !plain {
		if err := json.Unmarshal([]byte(`"`+text+`"`), &text); err != nil {
			return "", err
		}
	}
	c.rest = c.rest[n+1:]
	return text, nil
}

// stringEnd returns the offset of the quote that ends a string; plain means that
// there is no backslash before it.
func stringEnd(text string) (n int, plain bool, err error) {
	end := strings.IndexByte(text, '"')
	if end < 0 {
		return 0, false, errEndOfJSON
	}
	if strings.IndexByte(text[:end], '\\') < 0 {
		return end, true, nil
	}
	for i := 0; i < len(text); i++ {
		switch text[i] {
		case '\\':
			i++
		case '"':
			return i, false, nil
		}
	}
	return 0, false, errEndOfJSON
}

// number reads a whole number from 0 to limit.
func (c *cursor) number(limit uint32) (uint32, error) {
	if d := c.peek(); d < '0' || d > '9' {
		return 0, fmt.Errorf("a number from 0 to %d is missing", limit)
	}
	n, i := uint64(0), 0
	for ; i < len(c.rest) && c.rest[i] >= '0' && c.rest[i] <= '9'; i++ {
		if n = 10*n + uint64(c.rest[i]-'0'); n > uint64(limit) {
			return 0, fmt.Errorf("a number is above %d", limit)
		}
	}
	if i < len(c.rest) && strings.IndexByte(".eE", c.rest[i]) >= 0 {
		return 0, errors.New("a number is not whole")
	}
	c.rest = c.rest[i:]
	return uint32(n), nil
}

// raw cuts out the next value.
func (c *cursor) raw() (string, error) {
	if c.peek() == 0 {
		return "", errEndOfJSON
	}
	depth := 0
	for i := 0; i < len(c.rest); i++ {
		switch c.rest[i] {
		case '"':
			n, _, err := stringEnd(c.rest[i+1:])
			if err != nil {
				return "", err
			}
			i += n + 1
		case '{', '[':
			if depth++; depth > maxJSONDepth {
				return "", errTooDeep
			}
			continue
		case '}', ']':
			if depth--; depth < 0 { // of what encloses the value
				return c.cut(i), nil
			}
		case ',':
			if depth == 0 {
				return c.cut(i), nil
			}
			continue
		default:
			continue
		}
		if depth == 0 {
			return c.cut(i + 1), nil
		}
	}
	if depth > 0 {
		return "", errEndOfJSON
	}
	return c.cut(len(c.rest)), nil
}

func (c *cursor) cut(n int) string {
	text := c.rest[:n]
	c.rest = c.rest[n:]
	return text
}
