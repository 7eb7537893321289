package epptest

import (
	"encoding/json"
	"fmt"
	"testing"

	"pgregory.net/rapid"
)

// A text's tokens decode to the text, and a chat's to its ChatML.
func TestByteTokenizer(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		text := rapid.String().Draw(t, "text")
		b := ByteTokenizer{}
		if got := b.Decode(b.CompletionTokens(text)); got != text {
			t.Fatalf("%q became %q", text, got)
		}
		quoted, _ := json.Marshal(text)
		body := fmt.Sprintf(`{"messages":[{"role":"system","content":null},{"role":"user","content":[{"type":"text","text":%s},{"type":"text","text":"b"}]},{"role":"assistant","content":%s}]}`, quoted, quoted)
		tokens, err := b.ChatTokens([]byte(body))
		if err != nil {
			t.Fatal(err)
		}
		want := "<|im_start|>system\n<|im_end|>\n<|im_start|>user\n" + text + "\nb<|im_end|>\n<|im_start|>assistant\n" + text + "<|im_end|>\n<|im_start|>assistant\n"
		if got := b.Decode(tokens); got != want {
			t.Fatalf("%q\nwant %q", got, want)
		}
	})
	if got := (ByteTokenizer{}).Decode([]uint32{'a', 9999, 'b'}); got != "a\uFFFDb" {
		t.Errorf("an unknown token decodes to %q", got)
	}
}
