package epp

import "time"

// Request is one inference request as routing sees it.
type Request struct {
	// ID is our requestID, a UUID v4; ClientID is the client's or the gateway's
	// own x-request-id, left alone and logged beside it.
	ID, ClientID string
	// Path is the API path without the query, "/v1/chat/completions".
	Path string

	// Model is the name the client asked for; Target is the name that the
	// endpoint knows it by; Adapter is Target where that names a LoRA adapter,
	// else empty.
	Model, Target, Adapter string

	// Tokens are the prompt's token IDs exactly as the engine will see them.
	// They are nil where they could not be had, and TokenSource says why.
	Tokens      []uint32
	TokenSource TokenSource
	// Salt is the request's cache_salt: prompts with different salts share no
	// block. Source: vLLM's field of that name.
	Salt string

	// Priority below zero marks a request that may be shed. The default is 0.
	Priority int
	// Subset, if not nil, names the only addresses the request may go to.
	Subset []string
	// Stream is true where the client asked for server-sent events.
	Stream bool

	Received time.Time
}

// TokenSource says where a request's tokens come from.
type TokenSource uint8

// The sources of a request's tokens.
const (
	NoTokens          TokenSource = iota // none: the path has no prompt, or no source knew it
	LocalTokens                          // our own tokenizer, exact
	EngineTokens                         // an engine's /tokenize, exact
	SentTokens                           // the client sent token IDs
	ApproximateTokens                    // the prompt's bytes stand for tokens, and meet no engine's
)

// String returns the source's name as records and logs show it.
func (s TokenSource) String() string {
	return [...]string{"none", "local", "engine", "client", "approximate", "source(5)", "source(6)", "source(7)"}[s&7]
}

// BlockEventKind says what happened to blocks of an engine's KV cache.
type BlockEventKind uint8

// The engines' KV events, by their own names.
const (
	BlockStored BlockEventKind = iota + 1
	BlockRemoved
	AllBlocksCleared
)

// String returns the event's name on the wire.
func (k BlockEventKind) String() string {
	return [...]string{"", "BlockStored", "BlockRemoved", "AllBlocksCleared"}[k&3]
}

// BlockEvent is one KV event of an engine, in no engine's wire form.
// Source: vllm/distributed/kv_events.py.
type BlockEvent struct {
	Kind BlockEventKind

	// Hashes are the engine's own block hashes, folded to 64 bits. They are
	// opaque: they link a block to its parent and name what to remove, and mean
	// something only together with the endpoint, Tier and Group.
	Hashes []uint64
	// Parent is the engine's hash of the block before the first one of Hashes;
	// HasParent is false where the first one begins a prompt.
	Parent    uint64
	HasParent bool

	// Tokens are the token IDs of all blocks, BlockTokens for each of Hashes.
	Tokens      []uint32
	BlockTokens int
	// Keys stands in for Tokens, Adapter, Salt and Media where who reports the
	// event has hashed the blocks itself: package block's hash of each of Hashes,
	// under the key of the index. It is nil in an engine's own events.
	Keys []uint64

	// Adapter is the LoRA adapter's served name, empty for the base model. Salt
	// is the cache_salt, known only where the event holds a prompt's first block.
	Adapter, Salt string
	// Media holds for each of Hashes what else went into the block's identity
	// (images, audio, embeddings), empty for text; it is nil where all are text.
	Media []string

	// At is when the engine removed or cleared the blocks, on our clock as nearly as
	// can be told; zero: not known.
	At time.Time

	// Tier is where the blocks lie, as the engine names it ("GPU"); Group is the
	// engine's KV cache group.
	Tier  string
	Group int
}
