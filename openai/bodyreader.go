package openai

// A bodyReader finds the members "usage" and "model" of a JSON object as its
// text passes by in chunks, and holds nothing else of it: an answer of 50 MB of
// embeddings costs the bytes of its usage. It does not check that the text is
// JSON.
type bodyReader struct {
	state    bodyState
	depth    int
	inString bool
	escaped  bool
	// atKey is true where a string at depth 1 would be a key.
	atKey bool
	// text holds the key, or the value of a key that is of interest, as far as it
	// came; key is the last key of depth 1, empty where it is none of interest.
	text   []byte
	key    string
	taking bool
}

type bodyState uint8

const (
	bodyBefore bodyState = iota // nothing but white space came
	bodyInside
	bodyAfter // the object is complete
	bodyOther // not an object
)

// maxMemberBytes bounds a member's value; a usage object has about 200 bytes.
const maxMemberBytes = 64 << 10

// feed reads the next bytes and calls member with each member of interest.
func (r *bodyReader) feed(chunk []byte, member func(key string, text []byte)) {
	for _, c := range chunk {
		switch {
		case r.state == bodyInside && r.inString:
			r.stringByte(c)
		case r.state == bodyInside:
			r.byte(c, member)
		case r.state == bodyBefore && c == '{':
			r.state, r.depth, r.atKey = bodyInside, 1, true
		case r.state == bodyBefore && c > ' ' && c != 0xef && c != 0xbb && c != 0xbf:
			r.state = bodyOther
		}
	}
}

func (r *bodyReader) stringByte(c byte) {
	r.take(c)
	switch {
	case r.escaped:
		r.escaped = false
	case c == '\\':
		r.escaped = true
	case c == '"':
		r.inString = false
		if r.depth == 1 && r.atKey {
			r.endKey()
		}
	}
}

func (r *bodyReader) endKey() {
	r.key, r.atKey, r.taking = "", false, false
	switch string(r.text) {
	case `"usage"`:
		r.key = "usage"
	case `"model"`:
		r.key = "model"
	}
	r.text = r.text[:0]
}

// byte reads a byte outside of strings.
func (r *bodyReader) byte(c byte, member func(key string, text []byte)) {
	switch c {
	case '"':
		r.inString = true
		if r.depth == 1 && r.atKey {
			r.text, r.taking = r.text[:0], true
		}
	case '{', '[':
		r.depth++
	case '}', ']':
		r.depth--
		if r.depth == 0 {
			r.endMember(member)
			r.state = bodyAfter
			return
		}
	case ',':
		if r.depth == 1 {
			r.endMember(member)
			r.atKey = true
			return
		}
	case ':':
		if r.depth == 1 {
			r.taking = r.key != ""
			return
		}
	}
	r.take(c)
}

// take keeps c where it belongs to a key or a value of interest.
func (r *bodyReader) take(c byte) {
	if !r.taking {
		return
	}
	if len(r.text) >= maxMemberBytes {
		r.text, r.taking, r.key = r.text[:0], false, ""
		return
	}
	r.text = append(r.text, c)
}

func (r *bodyReader) endMember(member func(key string, text []byte)) {
	if r.taking && r.key != "" {
		member(r.key, r.text)
	}
	r.text, r.key, r.taking = r.text[:0], "", false
}
