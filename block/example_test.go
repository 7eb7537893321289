package block_test

import (
	"fmt"

	"epp.internal/epp/block"
)

// Two prompts that differ in their seventh token share the first of their
// blocks of four.
func ExampleAppendChain() {
	root := block.Key(1).Root(block.Root{BlockTokens: 4})
	a := block.AppendChain(nil, root, []uint32{1, 2, 3, 4, 5, 6, 7, 8, 9}, 4)
	b := block.AppendChain(nil, root, []uint32{1, 2, 3, 4, 5, 6, 70, 8, 9}, 4)
	fmt.Println(len(a), a[0] == b[0], a[1] == b[1])
	// Output: 2 true false
}
