package openai

import (
	"bytes"
	"strings"
	"unicode/utf8"
)

// MaxEventBytes bounds what an Answer holds of an event or of a member that it
// reads: what is longer is passed over. The largest chunks of vLLM (log
// probabilities of 20 tokens) have about 10 KB.
const MaxEventBytes = 1 << 20

// Answer reads an answer as it passes by, in chunks cut anywhere: whether its
// first token came, which model it names, what it used. It reads server-sent
// events and single bodies, of OpenAI's chat/completions, completions and
// responses and of Anthropic's messages. It never fails: what it can't read it
// passes over. It changes nothing and keeps no chunk.
//
// An Answer belongs to one goroutine.
type Answer struct {
	stream bool
	model  string
	usage  Usage
	first  bool

	// Of a stream: line is the line that is not complete yet, data the lines of
	// the event that are not JSON by themselves. lost is true while the rest of
	// a line, or of an event, is passed over because it is too long.
	line, data         []byte
	lineLost, dataLost bool
	afterCR            bool

	body  bodyReader
	nodes []node
}

// NewAnswer returns a reader for an answer of that Content-Type: a stream for
// "text/event-stream", else a single body.
func NewAnswer(contentType string) *Answer {
	media, _, _ := strings.Cut(contentType, ";")
	return &Answer{
		stream: strings.EqualFold(strings.TrimSpace(media), "text/event-stream"),
		usage:  Usage{PromptTokens: -1, CompletionTokens: -1, CachedTokens: -1},
	}
}

// FirstToken reports whether a token was seen in a stream: an event that carries
// text, reasoning, a tool call or the reason of the end, since the first event of
// a chat, which gives the role alone, comes without one. In a single body it is
// always false: that comes when the last token was made, and does not tell when
// the first was.
func (a *Answer) FirstToken() bool { return a.first }

// Model returns the model that the answer names, or "".
func (a *Answer) Model() string { return a.model }

// Usage returns the counts told so far, and whether there are any.
func (a *Answer) Usage() (Usage, bool) {
	return a.usage, a.usage.PromptTokens >= 0 || a.usage.CompletionTokens >= 0
}

// Feed reads the next bytes of the answer. Wherever an answer is cut into
// chunks, the outcome is the same.
func (a *Answer) Feed(chunk []byte) {
	if !a.stream {
		a.feedBody(chunk)
		return
	}
	for len(chunk) > 0 {
		if a.afterCR {
			a.afterCR = false
			if chunk[0] == '\n' {
				chunk = chunk[1:]
				continue
			}
		}
		end := bytes.IndexAny(chunk, "\r\n")
		if end < 0 {
			a.hold(chunk)
			return
		}
		a.hold(chunk[:end])
		a.afterCR = chunk[end] == '\r'
		chunk = chunk[end+1:]
		a.endLine()
	}
}

// End tells that the answer has ended: what came of a last line without its end
// is read now. Feed must not be called after it.
func (a *Answer) End() {
	if a.stream {
		a.endLine()
		a.endEvent()
	}
}

// hold keeps a part of the line that is not complete.
func (a *Answer) hold(part []byte) {
	if a.lineLost || len(a.line)+len(part) > MaxEventBytes {
		a.lineLost = true
		a.line = nil
		return
	}
	a.line = append(a.line, part...)
}

// endLine takes up one whole line of the stream. An event is JSON in one "data:"
// line, with all engines known; lines that are not JSON by themselves are joined
// until the event's end, as the standard has it.
//
// Source: WHATWG HTML, 9.2.6 "Interpreting an event stream".
func (a *Answer) endLine() {
	line, lost := a.line, a.lineLost
	a.line, a.lineLost = a.line[:0], false
	switch {
	case lost:
		a.data, a.dataLost = nil, true
		return
	case len(line) == 0:
		a.endEvent()
		return
	}
	data, ok := bytes.CutPrefix(bytes.TrimPrefix(line, []byte("\uFEFF")), []byte("data:"))
	if !ok {
		return
	}
	data = bytes.TrimPrefix(data, []byte(" "))
	if len(a.data) == 0 && !a.dataLost && a.event(data) {
		return
	}
	if a.dataLost || len(a.data)+len(data) >= MaxEventBytes {
		a.data, a.dataLost = nil, true
		return
	}
	a.data = append(append(a.data, data...), '\n')
}

func (a *Answer) endEvent() {
	if len(a.data) > 0 {
		a.event(a.data)
	}
	a.data, a.dataLost = a.data[:0], false
}

// event reads one event's data and reports whether it was done with.
func (a *Answer) event(data []byte) bool {
	if len(data) == 0 || data[0] != '{' && data[0] != '[' {
		return len(data) > 0 && data[0] != ' ' && data[0] != '\t'
	}
	// After the first token only the events with usage are of interest.
	if a.first && a.model != "" && !bytes.Contains(data, []byte(`usage"`)) && data[len(data)-1] == '}' {
		return true
	}
	v, ok := a.parse(data)
	if !ok {
		return false
	}
	inner := v.Get("message") // Anthropic's message_start
	if inner.Kind() != Object {
		inner = v.Get("response") // responses
	}
	for _, part := range [...]Value{v, inner} {
		a.usage.merge(part.Get("usage"))
		if name := part.Get("model").String(); name != "" && a.model == "" {
			a.model = strings.Clone(name)
		}
	}
	a.first = a.first || hasToken(v)
	return true
}

// parse reads one JSON value into the tree that the answer keeps for it: the
// value is good until the next call.
func (a *Answer) parse(text []byte) (Value, bool) {
	if !utf8.Valid(text) {
		text = bytes.ToValidUTF8(text, []byte("\uFFFD"))
	}
	nodes, err := scan(text, a.nodes)
	if err != nil {
		return Value{}, false
	}
	a.nodes = nodes
	return Value{doc: &document{src: string(text), nodes: nodes}}, true
}

// hasToken reports whether a stream's event shows that a token was made.
func hasToken(v Value) bool {
	// Responses and Anthropic's messages: the event's type says it.
	switch kind := v.Get("type").String(); {
	case strings.HasSuffix(kind, ".delta"), kind == "content_block_delta",
		kind == "message_delta", kind == "message_stop", kind == "response.completed", kind == "response.incomplete":
		return true
	}
	if n, ok := count(v.Get("usage").Get("completion_tokens")); ok && n > 0 {
		return true
	}
	for _, choice := range v.Get("choices").Items() {
		if choice.Get("finish_reason").Kind() == String || choice.Get("text").String() != "" || choice.Get("token_ids").Len() > 0 {
			return true
		}
		delta := choice.Get("delta")
		for _, key := range [...]string{"content", "reasoning", "reasoning_content", "refusal", "tool_calls", "function_call"} {
			if part := delta.Get(key); part.String() != "" || part.Len() > 0 {
				return true
			}
		}
	}
	return false
}

func (a *Answer) feedBody(chunk []byte) {
	a.body.feed(chunk, func(key string, text []byte) {
		v, ok := a.parse(text)
		switch {
		case !ok:
		case key == "usage":
			a.usage.merge(v)
		case key == "model" && v.String() != "":
			a.model = strings.Clone(v.String())
		}
	})
}
