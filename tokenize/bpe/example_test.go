package bpe_test

import (
	"fmt"

	"epp.internal/epp/epptest/demotok"
	"epp.internal/epp/tokenize/bpe"
)

func Example() {
	tokenizerJSON, _ := demotok.Files()
	t, err := bpe.Load(tokenizerJSON)
	if err != nil {
		panic(err)
	}
	text := "<|im_start|>user\nthe cache<|im_end|>\n"
	ids := t.Append(nil, text)
	for _, id := range ids {
		fmt.Printf("%q\n", t.TokenText(id))
	}

	// Text may be cut after an added token: the parts' IDs are the whole's.
	cut := t.LastBorder(text)
	fmt.Printf("%q\n", text[cut:])
	fmt.Println(len(t.Append(t.Append(nil, text[:cut]), text[cut:])) == len(ids))
	// Output:
	// "<|im_start|>"
	// "user"
	// "\n"
	// "the"
	// " cache"
	// "<|im_end|>"
	// "\n"
	// "\n"
	// true
}
