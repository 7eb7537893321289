// Package workload holds the prompts and KV events that benchmarks of the index
// share, ours and the peers': chains that never branch, and a branchy tree made
// of a recorded trace of conversations.
//
// Everything is drawn from fixed seeds: two runs get the same.
//
//	for _, e := range workload.Events(7) { … } // stores chain 7
//	requests := workload.Conversation()        // in order of arrival
package workload

import (
	"bytes"
	_ "embed" // the trace
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"

	"epp.internal/epp"
)

// The shape of a chain that does not branch.
const (
	BlockTokens = 16
	ChainBlocks = 256
	EventBlocks = 16
)

// vocabulary is about that of Qwen3, in tokens.
const vocabulary = 150_000

// Prompt returns chain n in tokens: no two chains share a block.
func Prompt(n int) []uint32 {
	rng := rand.New(rand.NewPCG(1, uint64(n)))
	tokens := make([]uint32, ChainBlocks*BlockTokens)
	for i := range tokens {
		tokens[i] = rng.Uint32N(vocabulary)
	}
	return tokens
}

// Events returns the events that store chain n, EventBlocks each. Engine hashes
// are random, as cryptographic ones look.
func Events(n int) []epp.BlockEvent {
	rng := rand.New(rand.NewPCG(2, uint64(n)))
	hashes := make([]uint64, ChainBlocks)
	for i := range hashes {
		hashes[i] = rng.Uint64()
	}
	return store(Prompt(n), hashes, 0)
}

// store returns the events that store the blocks of a prompt from one on.
func store(tokens []uint32, hashes []uint64, from int) []epp.BlockEvent {
	var events []epp.BlockEvent
	for i := from; i < len(hashes); i += EventBlocks {
		end := min(i+EventBlocks, len(hashes))
		e := epp.BlockEvent{
			Kind: epp.BlockStored, Tier: "GPU", BlockTokens: BlockTokens,
			Hashes: hashes[i:end], Tokens: tokens[i*BlockTokens : end*BlockTokens],
		}
		if e.HasParent = i > 0; e.HasParent {
			e.Parent = hashes[i-1]
		}
		events = append(events, e)
	}
	return events
}

// Removals returns the events that remove what events stored, the last block
// first, as engines do.
func Removals(events []epp.BlockEvent) []epp.BlockEvent {
	var out []epp.BlockEvent
	for _, e := range slices.Backward(events) {
		hashes := slices.Clone(e.Hashes)
		slices.Reverse(hashes)
		out = append(out, epp.BlockEvent{Kind: epp.BlockRemoved, Hashes: hashes, Tier: e.Tier})
	}
	return out
}

//go:embed testdata/conversation.jsonl
var trace []byte

// The trace's own block, in ours.
const traceBlocks = 512 / BlockTokens

// Request is one request of the conversation trace.
type Request struct {
	Tokens []uint32
	// Hashes are the engine's for each full block.
	Hashes []uint64
	// Events are what the engine of Endpoint says after it: the blocks that it did
	// not hold before. Nothing is ever removed.
	Endpoint epp.Slot
	Events   []epp.BlockEvent
}

// ConversationEndpoints is how many engines the trace's requests are dealt to.
const ConversationEndpoints = 8

// Conversation returns the trace's requests, dealt to the endpoints in turn, in
// blocks of BlockTokens. The trace knows prefixes in steps of 512 tokens only. So
// that chains fork at any depth, as turns do, a block of the trace shares its
// first 0 to 31 blocks of ours with the first block that followed the same one.
func Conversation() []Request {
	var requests []Request
	eldest := map[int]int{} // child of a trace block that came first
	held := [ConversationEndpoints]map[uint64]bool{}
	for i := range held {
		held[i] = map[uint64]bool{}
	}
	for n, line := range bytes.Split(bytes.TrimSpace(trace), []byte("\n")) {
		var r struct {
			InputLength int   `json:"input_length"`
			HashIDs     []int `json:"hash_ids"`
		}
		if err := json.Unmarshal(line, &r); err != nil {
			panic(fmt.Sprintf("conversation.jsonl:%d: %v", n+1, err)) // it is embedded
		}
		var q Request
		parent := -1
		chain := uint64(0)
		for _, id := range r.HashIDs {
			if _, ok := eldest[parent]; !ok {
				eldest[parent] = id
			}
			q.Tokens = appendTraceBlock(q.Tokens, id, eldest[parent])
			parent = id
		}
		q.Tokens = q.Tokens[:r.InputLength/BlockTokens*BlockTokens]
		for i := 0; i < len(q.Tokens); i += BlockTokens {
			chain = engineHash(chain, q.Tokens[i:i+BlockTokens])
			q.Hashes = append(q.Hashes, chain)
		}
		q.Endpoint = epp.Slot(n % ConversationEndpoints)
		known := held[q.Endpoint]
		from := 0
		for from < len(q.Hashes) && known[q.Hashes[from]] {
			from++
		}
		for _, h := range q.Hashes[from:] {
			known[h] = true
		}
		q.Events = store(q.Tokens, q.Hashes, from)
		requests = append(requests, q)
	}
	return requests
}

// appendTraceBlock appends the tokens of a block of the trace: those of its
// eldest sibling up to a fork, then its own.
func appendTraceBlock(dst []uint32, id, eldest int) []uint32 {
	fork := rand.New(rand.NewPCG(4, uint64(id))).IntN(traceBlocks)
	for i := range traceBlocks {
		from := id
		if i < fork {
			from = eldest
		}
		rng := rand.New(rand.NewPCG(uint64(i)+5, uint64(from)))
		for range BlockTokens {
			dst = append(dst, rng.Uint32N(vocabulary))
		}
	}
	return dst
}

// engineHash is an engine's hash of a block after another: FNV-1a by words, then
// SplitMix64's mixer.
func engineHash(parent uint64, tokens []uint32) uint64 {
	h := parent ^ 14695981039346656037
	for _, t := range tokens {
		h = (h ^ uint64(t)) * 1099511628211
	}
	h = (h ^ h>>30) * 0xbf58476d1ce4e5b9
	h = (h ^ h>>27) * 0x94d049bb133111eb
	return h ^ h>>31
}
