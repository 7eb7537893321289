package kvindex_test

import (
	"fmt"
	"time"

	"epp.internal/epp"
	"epp.internal/epp/block"
	"epp.internal/epp/kvindex"
)

// An engine stores three blocks of four tokens and evicts the last; a prompt
// that begins with all twelve tokens finds two of them.
func Example() {
	const key = block.Key(1)
	index := kvindex.New(kvindex.Options{Key: key})
	writer := index.Endpoint(0)
	tokens := []uint32{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13}
	writer.Apply(time.Now(), []epp.BlockEvent{
		{Kind: epp.BlockStored, Hashes: []uint64{101, 102, 103}, Tokens: tokens[:12], BlockTokens: 4, Tier: "GPU"},
		{Kind: epp.BlockRemoved, Hashes: []uint64{103}, Tier: "GPU"},
	})

	root := key.Root(block.Root{BlockTokens: 4})
	chain := block.AppendChain(nil, root, tokens, 4)
	out := make([]uint32, 1)
	index.Match(chain, out)
	fmt.Println(len(chain), "full blocks, endpoint 0 holds", out[0])
	// Output: 3 full blocks, endpoint 0 holds 2
}
