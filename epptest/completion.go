package epptest

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"time"

	"epp.internal/epp/engine"
)

// defaultAnswerTokens is how long an answer is where the request sets no limit.
// vLLM's own default for completions; chats default to all that the context
// allows there, which is of no use in a test.
const defaultAnswerTokens = 16

// inferenceRequest is what the engine reads of a chat or text completion.
type inferenceRequest struct {
	Model               string            `json:"model"`
	Messages            []json.RawMessage `json:"messages"`
	Prompt              json.RawMessage   `json:"prompt"`
	MaxTokens           *int              `json:"max_tokens"`
	MaxCompletionTokens *int              `json:"max_completion_tokens"`
	IgnoreEOS           bool              `json:"ignore_eos"`
	Stream              bool              `json:"stream"`
	StreamOptions       struct {
		IncludeUsage    bool `json:"include_usage"`
		ContinuousUsage bool `json:"continuous_usage_stats"`
	} `json:"stream_options"`
	Salt           string `json:"cache_salt"`
	ReturnTokenIDs bool   `json:"return_token_ids"`
}

// job is one request on its way: an answer to each of its prompts.
type job struct {
	*process
	req       inferenceRequest
	chat      bool
	form      form // nil: of OpenAI's completions, chat or text
	id, model string
	created   int64
	reply     []*reply
}

func (p *process) serveChat(w http.ResponseWriter, r *http.Request, body []byte) {
	j := job{process: p, chat: true}
	if !readJSON(w, body, &j.req) {
		return
	}
	adapter, ok := p.resolve(w, j.req.Model)
	if !ok {
		return
	}
	if len(j.req.Messages) == 0 {
		writeError(w, http.StatusBadRequest, "messages", "messages: at least one is required")
		return
	}
	tokens, err := p.cfg.Tokenizer.ChatTokens(body)
	if err != nil {
		writeError(w, http.StatusBadRequest, "", err.Error())
		return
	}
	j.run(w, r, adapter, [][]uint32{tokens})
}

func (p *process) serveCompletion(w http.ResponseWriter, r *http.Request, body []byte) {
	j := job{process: p}
	if !readJSON(w, body, &j.req) {
		return
	}
	adapter, ok := p.resolve(w, j.req.Model)
	if !ok {
		return
	}
	prompts, err := p.readPrompts(j.req.Prompt)
	if err != nil {
		writeError(w, http.StatusBadRequest, "prompt", err.Error())
		return
	}
	j.run(w, r, adapter, prompts)
}

// readPrompts reads a prompt in its four forms: a string, token IDs, a list of
// strings, a list of lists of token IDs.
func (p *process) readPrompts(raw json.RawMessage) ([][]uint32, error) {
	var (
		text  string
		ids   []uint32
		texts []string
		lists [][]uint32
	)
	switch {
	case json.Unmarshal(raw, &text) == nil:
		texts = []string{text}
	case json.Unmarshal(raw, &ids) == nil:
		lists = [][]uint32{ids}
	case json.Unmarshal(raw, &texts) == nil:
	case json.Unmarshal(raw, &lists) == nil:
		texts = nil
	default:
		return nil, errors.New("prompt: neither text nor token IDs nor a list of them")
	}
	if lists == nil {
		for _, t := range texts {
			lists = append(lists, p.cfg.Tokenizer.CompletionTokens(t))
		}
	}
	if len(lists) == 0 || len(lists) > maxPrompts {
		return nil, fmt.Errorf("prompt: %d prompts, must be within 1 and %d", len(lists), maxPrompts)
	}
	for i, l := range lists {
		if len(l) == 0 {
			return nil, fmt.Errorf("prompt[%d]: empty", i)
		}
	}
	return lists, nil
}

// run gives the prompts to the model and answers. A client that goes away frees
// what the model holds for it at once.
func (j *job) run(w http.ResponseWriter, r *http.Request, adapter string, prompts [][]uint32) {
	for _, tokens := range prompts {
		if j.tooLong(w, len(tokens)+1) {
			return
		}
	}
	j.created = time.Now().Unix()
	j.model = j.modelName(j.req.Model)
	j.id = j.requestID(r)
	defer func() {
		for _, reply := range j.reply {
			j.abort(reply)
		}
	}()
	for _, tokens := range prompts {
		n, reason := j.answerLength(len(tokens))
		reply, err := j.submit(newRequest(tokens, j.answer(tokens, n), adapter, j.req.Salt), reason)
		if err != nil {
			writeError(w, http.StatusBadRequest, "", err.Error())
			return
		}
		j.reply = append(j.reply, reply)
	}
	if j.req.Stream {
		j.stream(w, r)
		return
	}
	for _, reply := range j.reply {
		if err := j.await(r, reply); err != nil {
			panic(http.ErrAbortHandler) // nobody listens, or the process is gone
		}
	}
	writeJSON(w, j.whole())
}

// await waits for the end of an answer.
func (p *process) await(r *http.Request, reply *reply) error {
	seen, finished := 0, false
	for !finished {
		var err error
		if seen, finished, err = reply.wait(r.Context(), p, seen); err != nil {
			return err
		}
	}
	return nil
}

// requestID is the id of the answer: vLLM takes the client's x-request-id.
func (j *job) requestID(r *http.Request) string {
	if _, ok := j.form.(*responsesForm); ok {
		return j.answerID(r, "resp_")
	}
	if j.chat {
		return j.answerID(r, "chatcmpl-")
	}
	return j.answerID(r, "cmpl-")
}

// answerLength is how many tokens the answer has, and why it ends there.
func (j *job) answerLength(promptTokens int) (n int, reason string) {
	n = defaultAnswerTokens
	switch {
	case j.req.MaxCompletionTokens != nil:
		n = *j.req.MaxCompletionTokens
	case j.req.MaxTokens != nil:
		n = *j.req.MaxTokens
	}
	n = max(1, min(n, j.cfg.MaxModelTokens-promptTokens))
	if stop := j.cfg.AnswerLength; stop > 0 && stop <= n && !j.req.IgnoreEOS {
		return stop, "stop"
	}
	return n, "length"
}

// usage counts tokens over all prompts, with the first produced of each answer.
func (j *job) usage(produced func(*reply) int) usage {
	var u usage
	var cached, created int
	for _, r := range j.reply {
		u.PromptTokens += len(r.request.Tokens)
		u.CompletionTokens += produced(r)
		hit := r.request.CachedTokens()
		cached += hit
		created += len(r.request.Tokens)/j.cfg.Engine.BlockTokens*j.cfg.Engine.BlockTokens - hit
	}
	u.TotalTokens = u.PromptTokens + u.CompletionTokens
	if !j.cfg.NoPromptTokensDetails {
		u.PromptTokensDetails = &promptTokensDetails{CachedTokens: cached}
		if j.chat {
			u.PromptTokensDetails.CreatedCacheTokens = &created
		}
	}
	return u
}

func allTokens(r *reply) int { return len(r.request.Answer) }

// serveEmbedding computes a prompt and answers with a short vector drawn from
// its tokens.
func (p *process) serveEmbedding(w http.ResponseWriter, r *http.Request, body []byte) {
	var req struct {
		Model string          `json:"model"`
		Input json.RawMessage `json:"input"`
		Salt  string          `json:"cache_salt"`
	}
	if !readJSON(w, body, &req) {
		return
	}
	adapter, ok := p.resolve(w, req.Model)
	if !ok {
		return
	}
	inputs, err := p.readPrompts(req.Input)
	if err != nil {
		writeError(w, http.StatusBadRequest, "input", err.Error())
		return
	}
	var replies []*reply
	defer func() {
		for _, reply := range replies {
			p.abort(reply)
		}
	}()
	for _, tokens := range inputs {
		if p.tooLong(w, len(tokens)) {
			return
		}
		reply, err := p.submit(newRequest(tokens, nil, adapter, req.Salt), "stop")
		if err != nil {
			writeError(w, http.StatusBadRequest, "", err.Error())
			return
		}
		replies = append(replies, reply)
	}
	for _, reply := range replies {
		if err := p.await(r, reply); err != nil {
			panic(http.ErrAbortHandler) // nobody listens, or the process is gone
		}
	}
	writeJSON(w, p.embeddings(r, req.Model, replies))
}

// embeddings is the answer to an embedding request.
func (p *process) embeddings(r *http.Request, model string, replies []*reply) any {
	type datum struct {
		Index     int       `json:"index"`
		Object    string    `json:"object"`
		Embedding []float64 `json:"embedding"`
	}
	var data []datum
	var u usage
	for i, reply := range replies {
		data = append(data, datum{Index: i, Object: "embedding", Embedding: embed(reply.request)})
		u.PromptTokens += len(reply.request.Tokens)
	}
	u.TotalTokens = u.PromptTokens
	return struct {
		ID      string  `json:"id"`
		Object  string  `json:"object"`
		Created int64   `json:"created"`
		Model   string  `json:"model"`
		Data    []datum `json:"data"`
		Usage   usage   `json:"usage"`
	}{p.answerID(r, "embd-"), "list", time.Now().Unix(), p.modelName(model), data, u}
}

// embed draws a vector of 8 numbers within -1 and 1 from a prompt.
func embed(r *engine.Request) []float64 {
	var state uint64
	for _, t := range r.Tokens {
		state = mix(state ^ uint64(t))
	}
	out := make([]float64, 8)
	for i := range out {
		state = mix(state)
		out[i] = float64(int64(state)) / (1 << 63)
	}
	return out
}
