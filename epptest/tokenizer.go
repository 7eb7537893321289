package epptest

import (
	"encoding/json"
	"fmt"
)

// Tokenizer is how an engine reads prompts and writes answers. It must be safe
// for concurrent use.
type Tokenizer interface {
	// ChatTokens returns the prompt of a chat completion's body: its messages
	// under the chat template, ending where the answer begins.
	ChatTokens(body []byte) ([]uint32, error)
	// CompletionTokens returns the tokens of a text.
	CompletionTokens(text string) []uint32
	// Decode returns the text of tokens.
	Decode(tokens []uint32) string
}

// The tokens of ByteTokenizer that are no bytes. They decode to their names in
// ChatML: <|im_start|> and <|im_end|>.
const (
	messageStart uint32 = 256
	messageEnd   uint32 = 257
)

// ByteTokenizer takes each byte as a token and frames chat messages as ChatML
// does. It is the default: it needs no file, and knows neither tools nor parts
// that are not text.
type ByteTokenizer struct{}

// ChatTokens returns the messages of the body, each as
// <|im_start|>role\ncontent<|im_end|>\n, and the head of the answer.
func (b ByteTokenizer) ChatTokens(body []byte) ([]uint32, error) {
	var req struct {
		Messages []struct {
			Role    string          `json:"role"`
			Content json.RawMessage `json:"content"`
		} `json:"messages"`
	}
	if err := json.Unmarshal(body, &req); err != nil {
		return nil, fmt.Errorf("messages: %w", err)
	}
	var out []uint32
	for i, m := range req.Messages {
		text, err := contentText(m.Content)
		if err != nil {
			return nil, fmt.Errorf("messages[%d].content: %w", i, err)
		}
		out = append(out, messageStart)
		out = append(out, b.CompletionTokens(m.Role+"\n"+text)...)
		out = append(out, messageEnd, '\n')
	}
	out = append(out, messageStart)
	return append(out, b.CompletionTokens("assistant\n")...), nil
}

// contentText returns the text of a message's content: a string, null, or a list
// of text parts, which are joined by newlines.
func contentText(content json.RawMessage) (string, error) {
	if len(content) == 0 || string(content) == "null" {
		return "", nil
	}
	var text string
	if json.Unmarshal(content, &text) == nil {
		return text, nil
	}
	var parts []struct {
		Text string `json:"text"`
	}
	if err := json.Unmarshal(content, &parts); err != nil {
		return "", err
	}
	for i, p := range parts {
		if i > 0 {
			text += "\n"
		}
		text += p.Text
	}
	return text, nil
}

// CompletionTokens returns the bytes of text.
func (ByteTokenizer) CompletionTokens(text string) []uint32 {
	out := make([]uint32, len(text))
	for i := range len(text) {
		out[i] = uint32(text[i])
	}
	return out
}

// Decode returns the bytes of tokens. A token that is neither a byte nor a frame
// of a message becomes the replacement character.
func (ByteTokenizer) Decode(tokens []uint32) string {
	var out []byte
	for _, t := range tokens {
		switch {
		case t < 256:
			out = append(out, byte(t))
		case t == messageStart:
			out = append(out, "<|im_start|>"...)
		case t == messageEnd:
			out = append(out, "<|im_end|>"...)
		default:
			out = append(out, "\uFFFD"...)
		}
	}
	return string(out)
}

// letters are the answer tokens of ByteTokenizer.
func letters() []uint32 {
	return ByteTokenizer{}.CompletionTokens("abcdefghijklmnopqrstuvwxyz")
}
