package openai

import (
	"iter"
	"strconv"

	"epp.internal/epp"
)

// Prompt is one prompt of a body: Tokens if the client sent token IDs (then
// never nil), else Text, with Pair, if not empty, as the second of a pair of
// texts. Opaque is true for a prompt that is neither, a picture or an object of
// a kind that is not known: of it there is nothing to tokenize.
type Prompt struct {
	Text, Pair string
	Tokens     []uint32
	Opaque     bool
}

// TextBytes is how many bytes of text are to be tokenized, at most: those of the
// prompts, or of a body without prompts all but its media, which are media.
func (b *Body) TextBytes(media []Media) int {
	n := 0
	for i := range b.Prompts {
		n += len(b.Prompts[i].Text) + len(b.Prompts[i].Pair)
	}
	if len(b.Prompts) > 0 {
		return n
	}
	n = len(b.src)
	for _, m := range media {
		n -= int(m.end - m.start)
	}
	return n
}

// readPrompts reads the prompt of a completion: a string, a list of token IDs, or
// a list of either. A body with prompt_embeds needs none.
func (b *Body) readPrompts() *epp.Error {
	if b.Form != Completions {
		return nil
	}
	v := b.Root.Get("prompt")
	if v.Kind() <= Null {
		if b.Root.Get("prompt_embeds").Kind() > Null {
			return nil
		}
		return fieldError("prompt", "prompt_missing", "the body has no prompt: a string or a list of token IDs is expected")
	}
	var err *epp.Error
	b.Prompts, err = promptList("prompt", v, false)
	return err
}

// readInput reads the input of an embeddings request, and the pairs of a rerank.
// A request for embeddings may have a chat's messages in its place.
func (b *Body) readInput() *epp.Error {
	switch b.Form {
	case Embeddings:
		v := b.Root.Get("input")
		if v.Kind() <= Null {
			if b.Root.Get("messages").Kind() > Null {
				return nil
			}
			return fieldError("input", "input_missing", "the body has no input: a string, a list of token IDs or a list of these is expected")
		}
		if v.Kind() == Object { // some engines take {"content": […]}
			b.Prompts = []Prompt{{Opaque: true}}
			return nil
		}
		var err *epp.Error
		b.Prompts, err = promptList("input", v, true)
		return err
	case Rerank:
		b.Prompts = b.pairs()
	}
	return nil
}

// promptList reads a string, a list of token IDs, or a list of either; with
// parts set also of content parts.
func promptList(param string, v Value, parts bool) ([]Prompt, *epp.Error) {
	switch k := v.Kind(); {
	case k == String:
		return []Prompt{{Text: v.String()}}, nil
	case k != List:
		return nil, fieldError(param, param+"_invalid", "%s is %s: a string, a list of token IDs or a list of these is expected", param, k)
	case v.Len() == 0:
		return nil, fieldError(param, param+"_empty", "%s is an empty list: a string or a list of token IDs is expected", param)
	}
	if first := v.At(0); first.Kind() == Number {
		tokens, err := tokenIDs(param, v)
		return []Prompt{{Tokens: tokens}}, err
	}
	prompts := make([]Prompt, 0, v.Len())
	for i, item := range v.Items() {
		at := param + "[" + strconv.Itoa(i) + "]"
		switch k := item.Kind(); {
		case k == String:
			prompts = append(prompts, Prompt{Text: item.String()})
		case k == List:
			tokens, err := tokenIDs(at, item)
			if err != nil {
				return nil, err
			}
			prompts = append(prompts, Prompt{Tokens: tokens})
		case k == Object && parts:
			text := item.Get("text")
			prompts = append(prompts, Prompt{Text: text.String(), Opaque: text.Kind() != String})
		default:
			return nil, fieldError(at, param+"_invalid", "%s is %s: a string or a list of token IDs is expected", at, k)
		}
	}
	return prompts, nil
}

// maxTokenID is the largest token ID that is read.
const maxTokenID = 1<<31 - 1

// tokenIDs reads a list of token IDs.
func tokenIDs(param string, v Value) ([]uint32, *epp.Error) {
	tokens := make([]uint32, 0, v.Len())
	tokens, rest := v.appendWhole(tokens)
	for i, item := range rest {
		n, ok := item.Int()
		if !ok || item.Kind() != Number || n < 0 || n > maxTokenID {
			return nil, fieldError(param, "prompt_token_invalid", "%s[%d] is %.40q: a token ID, a whole number from 0 on, is expected", param, i, item.Raw())
		}
		if i >= len(tokens) {
			tokens = append(tokens, uint32(n))
		}
	}
	return tokens, nil
}

// appendWhole appends the items of a list of numbers as long as they are plain
// digits of at most maxTokenID. rest yields the list's items unless these were all.
func (v Value) appendWhole(dst []uint32) (_ []uint32, rest iter.Seq2[int, Value]) {
	n := &v.doc.nodes[v.i]
	if !n.numbers {
		return dst, v.Items()
	}
	text := v.doc.src[n.start+1 : n.end] // its last byte is the bracket
	for p := 0; ; {
		c := text[p] - '0'
		if c > 9 {
			switch text[p] {
			case ']':
				return dst, func(func(int, Value) bool) {}
			case ',', ' ', '\n', '\t', '\r':
				p++
				continue
			}
			return dst, v.Items()
		}
		id := uint64(0)
		for ; c <= 9 && id <= maxTokenID; c = text[p] - '0' {
			id = 10*id + uint64(c)
			p++
		}
		if id > maxTokenID || text[p] == '.' || text[p]|0x20 == 'e' {
			return dst, v.Items()
		}
		dst = append(dst, uint32(id))
	}
}

// pairs returns the pairs of texts that an engine scores: one query with each
// document, or each query with the document of the same place. What is no text
// is opaque; a body without pairs is the engine's to refuse.
//
// Source: vLLM, pooling/scoring: RerankRequest (query, documents) and the three
// forms of ScoreRequest (queries and documents, queries and items, data_1 and
// data_2, text_1 and text_2).
func (b *Body) pairs() []Prompt {
	var left, right Value
	for _, names := range [...][2]string{{"query", "documents"}, {"queries", "documents"}, {"queries", "items"}, {"text_1", "text_2"}, {"data_1", "data_2"}} {
		left, right = b.Root.Get(names[0]), b.Root.Get(names[1])
		if left.Kind() > Null && right.Kind() > Null {
			break
		}
	}
	if left.Kind() <= Null || right.Kind() <= Null {
		return nil
	}
	queries, documents := texts(left), texts(right)
	if len(queries) != 1 && len(queries) != len(documents) {
		return nil
	}
	prompts := make([]Prompt, len(documents))
	for i, d := range documents {
		q := queries[min(i, len(queries)-1)]
		prompts[i] = Prompt{Text: q.Text, Pair: d.Text, Opaque: q.Opaque || d.Opaque}
	}
	return prompts
}

// texts returns the texts of a value: a string, an object with a text, or a list
// of these.
func texts(v Value) []Prompt {
	one := func(v Value) Prompt {
		if v.Kind() == Object {
			v = v.Get("text")
		}
		return Prompt{Text: v.String(), Opaque: v.Kind() != String}
	}
	if v.Kind() != List {
		return []Prompt{one(v)}
	}
	out := make([]Prompt, 0, v.Len())
	for _, item := range v.Items() {
		out = append(out, one(item))
	}
	return out
}

// TokenizeBody returns the body that asks an engine's /tokenize for a text's
// tokens, with those that the model puts around a text if special is true.
func TokenizeBody(model, text string, special bool) []byte {
	out := append([]byte(`{"model":`), quote(model)...)
	out = append(append(out, `,"prompt":`...), quote(text)...)
	if !special {
		out = append(out, `,"add_special_tokens":false`...)
	}
	return append(out, '}')
}
