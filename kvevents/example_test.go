package kvevents_test

import (
	"encoding/hex"
	"fmt"

	"epp.internal/epp/kvevents"
)

// A payload of vLLM 0.12: two blocks of four tokens, the first of a prompt.
func ExampleDecode() {
	payload, _ := hex.DecodeString("93cb3ff80000000000009197ab426c6f636b53746f72656492cf84b146b151d55111cfd43b57df56b58fb1c098010203040506070804c0a347505500")
	var b kvevents.Batch
	if err := kvevents.Decode(payload, &b); err != nil {
		fmt.Println(err)
	}
	for _, e := range b.Events {
		fmt.Printf("%s %x: tokens %v, %d a block, on %s\n", e.Kind, e.Hashes, e.Tokens, e.BlockTokens, e.Tier)
	}
	// Output:
	// BlockStored [84b146b151d55111 d43b57df56b58fb1]: tokens [1 2 3 4 5 6 7 8], 4 a block, on GPU
}
