package picker

import (
	"context"
	"strings"

	"epp.internal/epp"
	"epp.internal/epp/openai"
)

// Tokenized is a request whose prompt's tokens are known already: no body is read
// and nothing is tokenized. A simulator's requests are such.
type Tokenized struct {
	// ID is the requestID.
	ID string
	// Model is the name that the client asks for.
	Model string
	// Tokens is the prompt. The Pick keeps it until End.
	Tokens []uint32
	// Priority below zero marks a request that may be shed.
	Priority int
}

// PickTokenized is [Picker.Pick] from after the tokenizer on. The Pick has no body
// to send, and asks for a stream; all else of it is the same.
func (p *Picker) PickTokenized(ctx context.Context, in Tokenized) (*Pick, error) {
	pk := &Pick{owner: p, s: p.scratch.Get().(*scratch), seed: p.opt.Seed()}
	pk.Request = epp.Request{ID: in.ID, Path: tokenizedPath, Received: p.opt.Now(), Priority: in.Priority, Stream: true}
	pk.s.tokens, pk.s.prompts = pk.s.tokens[:0], pk.s.prompts[:0]
	err := pk.resolve(&openai.Body{Form: openai.Completions, Model: strings.Clone(in.Model)}, "", nil)
	if err != nil {
		pk.refuse(err)
	} else {
		pk.promptTokens = in.Tokens
		pk.s.prompts = append(pk.s.prompts, prompt{end: len(in.Tokens)})
		pk.Request.Tokens, pk.Request.TokenSource = in.Tokens, epp.SentTokens
		pk.chain()
		err = pk.decide(ctx)
	}
	if err != nil {
		pk.free()
		return nil, err
	}
	return pk, nil
}

// tokenizedPath is where a prompt of token IDs would have come to.
const tokenizedPath = "/v1/completions"
