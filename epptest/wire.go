package epptest

import (
	"fmt"
	"net/http"
)

// The types of this file are vLLM 0.32's answers, field by field and in its
// order. An *unset is a field that vLLM writes as null and the fake
// never fills.

type unset struct{}

type usage struct {
	PromptTokens            int                  `json:"prompt_tokens"`
	TotalTokens             int                  `json:"total_tokens"`
	CompletionTokens        int                  `json:"completion_tokens"`
	PromptTokensDetails     *promptTokensDetails `json:"prompt_tokens_details"`
	CompletionTokensDetails *unset               `json:"completion_tokens_details"`
}

type promptTokensDetails struct {
	CachedTokens       int    `json:"cached_tokens"`
	CreatedCacheTokens *int   `json:"created_cache_tokens"`
	MultimodalTokens   *unset `json:"multimodal_tokens"`
}

// streamUsage is the usage of a stream, where nulls are left out.
type streamUsage struct {
	PromptTokens        int                  `json:"prompt_tokens"`
	TotalTokens         int                  `json:"total_tokens"`
	CompletionTokens    int                  `json:"completion_tokens"`
	PromptTokensDetails *streamTokensDetails `json:"prompt_tokens_details,omitempty"`
}

type streamTokensDetails struct {
	CachedTokens       int  `json:"cached_tokens"`
	CreatedCacheTokens *int `json:"created_cache_tokens,omitempty"`
}

// continuousUsage is the usage within each event of a stream.
type continuousUsage struct {
	PromptTokens            int    `json:"prompt_tokens"`
	TotalTokens             int    `json:"total_tokens"`
	CompletionTokens        int    `json:"completion_tokens"`
	CompletionTokensDetails *unset `json:"completion_tokens_details"`
}

type chatCompletion struct {
	ID                string       `json:"id"`
	Object            string       `json:"object"`
	Created           int64        `json:"created"`
	Model             string       `json:"model"`
	Choices           []chatChoice `json:"choices"`
	ServiceTier       *unset       `json:"service_tier"`
	SystemFingerprint string       `json:"system_fingerprint"`
	Usage             usage        `json:"usage"`
	PromptLogprobs    *unset       `json:"prompt_logprobs"`
	PromptTokenIDs    []uint32     `json:"prompt_token_ids"`
	PromptText        *unset       `json:"prompt_text"`
	KVTransferParams  *unset       `json:"kv_transfer_params"`
	ECTransferParams  *unset       `json:"ec_transfer_params"`
	Metrics           *unset       `json:"metrics"`
}

type chatChoice struct {
	Index         int         `json:"index"`
	Message       chatMessage `json:"message"`
	Logprobs      *unset      `json:"logprobs"`
	FinishReason  string      `json:"finish_reason"`
	StopReason    *unset      `json:"stop_reason"`
	TokenIDs      []uint32    `json:"token_ids"`
	RoutedExperts *unset      `json:"routed_experts"`
}

type chatMessage struct {
	Role         string `json:"role"`
	Content      string `json:"content"`
	Refusal      *unset `json:"refusal"`
	Annotations  *unset `json:"annotations"`
	Audio        *unset `json:"audio"`
	FunctionCall *unset `json:"function_call"`
	Reasoning    *unset `json:"reasoning"`
}

type textCompletion struct {
	ID                string       `json:"id"`
	Object            string       `json:"object"`
	Created           int64        `json:"created"`
	Model             string       `json:"model"`
	Choices           []textChoice `json:"choices"`
	ServiceTier       *unset       `json:"service_tier"`
	SystemFingerprint string       `json:"system_fingerprint"`
	Usage             usage        `json:"usage"`
	KVTransferParams  *unset       `json:"kv_transfer_params"`
	ECTransferParams  *unset       `json:"ec_transfer_params"`
	Metrics           *unset       `json:"metrics"`
}

type textChoice struct {
	Index          int      `json:"index"`
	Text           string   `json:"text"`
	Logprobs       *unset   `json:"logprobs"`
	FinishReason   string   `json:"finish_reason"`
	StopReason     *unset   `json:"stop_reason"`
	TokenIDs       []uint32 `json:"token_ids"`
	PromptLogprobs *unset   `json:"prompt_logprobs"`
	PromptTokenIDs []uint32 `json:"prompt_token_ids"`
	RoutedExperts  *unset   `json:"routed_experts"`
}

// chatChunk is an event of a chat's stream.
type chatChunk struct {
	ID      string `json:"id"`
	Object  string `json:"object"`
	Created int64  `json:"created"`
	Model   string `json:"model"`
	// Choices is one of firstChoice, deltaChoice, lastChoice; empty with Usage.
	Choices           []any  `json:"choices"`
	Usage             any    `json:"usage,omitempty"`
	SystemFingerprint string `json:"system_fingerprint,omitempty"`
	// Prompt is set in the first event of a choice alone.
	*firstFields
}

type firstFields struct {
	PromptTokenIDs *[]uint32 `json:"prompt_token_ids"`
	PromptText     *unset    `json:"prompt_text"`
}

type firstChoice struct {
	Index int `json:"index"`
	Delta struct {
		Role    string `json:"role"`
		Content string `json:"content"`
	} `json:"delta"`
	Logprobs     *unset `json:"logprobs"`
	FinishReason *unset `json:"finish_reason"`
}

type deltaChoice struct {
	Index        int      `json:"index"`
	Delta        delta    `json:"delta"`
	Logprobs     *unset   `json:"logprobs"`
	FinishReason *unset   `json:"finish_reason"`
	TokenIDs     []uint32 `json:"token_ids"`
}

type lastChoice struct {
	Index        int      `json:"index"`
	Delta        delta    `json:"delta"`
	Logprobs     *unset   `json:"logprobs"`
	FinishReason string   `json:"finish_reason"`
	StopReason   *unset   `json:"stop_reason"`
	TokenIDs     []uint32 `json:"token_ids"`
}

type delta struct {
	Content string `json:"content"`
}

// textChunk is an event of a text completion's stream.
type textChunk struct {
	ID      string       `json:"id"`
	Object  string       `json:"object"`
	Created int64        `json:"created"`
	Model   string       `json:"model"`
	Choices []textDelta  `json:"choices"`
	Usage   *streamUsage `json:"usage"`
}

type textDelta struct {
	Index          int      `json:"index"`
	Text           string   `json:"text"`
	Logprobs       *unset   `json:"logprobs"`
	FinishReason   *string  `json:"finish_reason"`
	StopReason     *unset   `json:"stop_reason"`
	PromptTokenIDs []uint32 `json:"prompt_token_ids"`
	TokenIDs       []uint32 `json:"token_ids"`
}

// whole is the answer of a request that is not a stream.
func (j *job) whole() any {
	if j.form != nil {
		return j.form.whole(j)
	}
	ids := func(tokens []uint32) []uint32 {
		if j.req.ReturnTokenIDs {
			return tokens
		}
		return nil
	}
	u := j.usage(allTokens)
	if j.chat {
		r := j.reply[0]
		return chatCompletion{
			ID: j.id, Object: "chat.completion", Created: j.created, Model: j.model,
			Choices: []chatChoice{{
				Message:      chatMessage{Role: "assistant", Content: j.cfg.Tokenizer.Decode(r.request.Answer)},
				FinishReason: r.finishReason,
				TokenIDs:     ids(r.request.Answer),
			}},
			SystemFingerprint: j.fingerprint(), Usage: u, PromptTokenIDs: ids(r.request.Tokens),
		}
	}
	answer := textCompletion{
		ID: j.id, Object: "text_completion", Created: j.created, Model: j.model,
		SystemFingerprint: j.fingerprint(), Usage: u,
	}
	for i, r := range j.reply {
		answer.Choices = append(answer.Choices, textChoice{
			Index: i, Text: j.cfg.Tokenizer.Decode(r.request.Answer), FinishReason: r.finishReason,
			TokenIDs: ids(r.request.Answer), PromptTokenIDs: ids(r.request.Tokens),
		})
	}
	return answer
}

// fingerprint is the system_fingerprint.
func (j *job) fingerprint() string {
	return fmt.Sprintf("vllm-%s-%08x", version, uint32(mix(j.cfg.Engine.Seed)))
}

// stream answers with server-sent events: for each choice a first one with the
// role (chats only), one for each token, the last with the reason of the end;
// then the usage if it was asked for, and [DONE]. The headers are sent at once,
// the first event with the first token.
func (j *job) stream(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "text/event-stream; charset=utf-8")
	w.WriteHeader(http.StatusOK)
	http.NewResponseController(w).Flush()
	for i, reply := range j.reply {
		sent, finished := 0, false
		for !finished {
			produced, done, err := reply.wait(r.Context(), j.process, sent)
			if err != nil {
				panic(http.ErrAbortHandler) // nobody listens, or the process is gone
			}
			if sent == 0 {
				j.begin(w, reply)
			}
			for ; sent < produced; sent++ {
				j.token(w, i, reply, sent)
			}
			finished = done
		}
	}
	if j.form != nil {
		j.events(w, j.form.end(j))
		return
	}
	if j.req.StreamOptions.IncludeUsage {
		j.event(w, j.usageChunk())
	}
	j.write(w, "", []byte("[DONE]"))
}

// begin sends what comes before the first token.
func (j *job) begin(w http.ResponseWriter, reply *reply) {
	switch {
	case j.form != nil:
		j.events(w, j.form.begin(j))
	case j.chat:
		j.event(w, j.firstChunk(reply))
	}
}

// token sends token n of the answer to prompt i.
func (j *job) token(w http.ResponseWriter, i int, reply *reply, n int) {
	if j.form != nil {
		j.events(w, j.form.token(j, n))
		return
	}
	j.event(w, j.tokenChunk(i, reply, n))
}

func (j *job) events(w http.ResponseWriter, events []event) {
	for _, e := range events {
		j.write(w, e.name, encodeJSON(e.data))
	}
}

// event sends one event of a stream.
func (j *job) event(w http.ResponseWriter, v any) { j.write(w, "", encodeJSON(v)) }

// write sends an event; most have no name.
func (j *job) write(w http.ResponseWriter, name string, data []byte) {
	cut, _ := w.(*cutWriter)
	if cut != nil && cut.left == 0 {
		resetConnection(cut.ResponseWriter)
		panic(http.ErrAbortHandler)
	}
	if name != "" {
		fmt.Fprintf(w, "event: %s\n", name)
	}
	w.Write([]byte("data: "))
	w.Write(data)
	w.Write([]byte("\n\n"))
	http.NewResponseController(w).Flush()
	if cut != nil {
		cut.left--
	}
}

func (j *job) chatChunk() chatChunk {
	return chatChunk{ID: j.id, Object: "chat.completion.chunk", Created: j.created, Model: j.model}
}

// firstChunk is the event before a chat's first token.
func (j *job) firstChunk(r *reply) chatChunk {
	var choice firstChoice
	choice.Delta.Role = "assistant"
	chunk := j.chatChunk()
	chunk.Choices = []any{choice}
	chunk.Usage = j.continuous(0)
	chunk.firstFields = &firstFields{}
	if j.req.ReturnTokenIDs {
		chunk.firstFields.PromptTokenIDs = &r.request.Tokens
	}
	return chunk
}

// continuous is the usage after n tokens if the client asked for it with every
// event, else nil.
func (j *job) continuous(n int) any {
	if !j.req.StreamOptions.ContinuousUsage {
		return nil
	}
	u := j.usage(func(*reply) int { return n })
	return continuousUsage{PromptTokens: u.PromptTokens, TotalTokens: u.TotalTokens, CompletionTokens: n}
}

// tokenChunk is the event of token n of the answer to prompt i.
func (j *job) tokenChunk(i int, r *reply, n int) any {
	answer := r.request.Answer
	last := n == len(answer)-1
	text := j.cfg.Tokenizer.Decode(answer[n : n+1])
	var ids []uint32
	if j.req.ReturnTokenIDs {
		ids = answer[n : n+1]
	}
	if !j.chat {
		d := textDelta{Index: i, Text: text, TokenIDs: ids}
		if last {
			d.FinishReason = &r.finishReason
		}
		return j.textChunk([]textDelta{d})
	}
	chunk := j.chatChunk()
	chunk.Usage = j.continuous(n + 1)
	chunk.Choices = []any{deltaChoice{Index: i, Delta: delta{text}, TokenIDs: ids}}
	if last {
		chunk.Choices = []any{lastChoice{Index: i, Delta: delta{text}, FinishReason: r.finishReason, TokenIDs: ids}}
		if !j.req.StreamOptions.IncludeUsage {
			chunk.SystemFingerprint = j.fingerprint()
		}
	}
	return chunk
}

func (j *job) textChunk(choices []textDelta) textChunk {
	return textChunk{ID: j.id, Object: "text_completion", Created: j.created, Model: j.model, Choices: choices}
}

// usageChunk is the event with the usage, which has no choice.
func (j *job) usageChunk() any {
	u := j.usage(allTokens)
	s := streamUsage{PromptTokens: u.PromptTokens, TotalTokens: u.TotalTokens, CompletionTokens: u.CompletionTokens}
	if d := u.PromptTokensDetails; d != nil {
		s.PromptTokensDetails = &streamTokensDetails{CachedTokens: d.CachedTokens, CreatedCacheTokens: d.CreatedCacheTokens}
	}
	if !j.chat {
		chunk := j.textChunk([]textDelta{})
		chunk.Usage = &s
		return chunk
	}
	chunk := j.chatChunk()
	chunk.Choices = []any{}
	chunk.Usage = s
	chunk.SystemFingerprint = j.fingerprint()
	return chunk
}
