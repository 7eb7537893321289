package epptest

import (
	"cmp"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"time"
)

// scored is a pair of texts, and how well they fit.
type scored struct {
	document string
	tokens   int
	score    float64 // in [0, 1], drawn from the pair alone
}

// scorePairs computes each pair as a prompt of its own, the second text behind the
// first, and answers itself where that cannot be.
func (p *process) scorePairs(w http.ResponseWriter, r *http.Request, model, salt string, queries, documents []string) ([]scored, bool) {
	adapter, ok := p.resolve(w, model)
	if !ok {
		return nil, false
	}
	if len(documents) == 0 || len(documents) > maxPrompts || len(queries) != 1 && len(queries) != len(documents) {
		writeError(w, http.StatusBadRequest, "documents", fmt.Sprintf("%d queries and %d documents: want one query, or one for each of 1 to %d documents", len(queries), len(documents), maxPrompts))
		return nil, false
	}
	var replies []*reply
	defer func() {
		for _, reply := range replies {
			p.abort(reply)
		}
	}()
	for i, d := range documents {
		tokens := append(p.cfg.Tokenizer.CompletionTokens(queries[min(i, len(queries)-1)]), p.cfg.Tokenizer.CompletionTokens(d)...)
		if p.tooLong(w, len(tokens)) {
			return nil, false
		}
		reply, err := p.submit(newRequest(tokens, nil, adapter, salt), "stop")
		if err != nil {
			writeError(w, http.StatusBadRequest, "", err.Error())
			return nil, false
		}
		replies = append(replies, reply)
	}
	var out []scored
	for i, reply := range replies {
		if err := p.await(r, reply); err != nil {
			panic(http.ErrAbortHandler) // nobody listens, or the process is gone
		}
		out = append(out, scored{documents[i], len(reply.request.Tokens), (1 + embed(reply.request)[0]) / 2})
	}
	return out, true
}

// textList is a text, or a list of texts.
type textList []string

// UnmarshalJSON reads either.
func (l *textList) UnmarshalJSON(raw []byte) error {
	var one string
	if json.Unmarshal(raw, &one) == nil {
		*l = textList{one}
		return nil
	}
	var many []string
	err := json.Unmarshal(raw, &many)
	*l = many
	return err
}

// scoreUsage is the usage of a rerank.
type scoreUsage struct {
	PromptTokens int `json:"prompt_tokens"`
	TotalTokens  int `json:"total_tokens"`
}

// serveRerank rates documents by a query, the best first.
//
// Source: vLLM 0.32, entrypoints/pooling/scoring.
func (p *process) serveRerank(w http.ResponseWriter, r *http.Request, body []byte) {
	var req struct {
		Model     string   `json:"model"`
		Query     string   `json:"query"`
		Documents textList `json:"documents"`
		TopN      int      `json:"top_n"`
		Salt      string   `json:"cache_salt"`
	}
	if !readJSON(w, body, &req) {
		return
	}
	pairs, ok := p.scorePairs(w, r, req.Model, req.Salt, []string{req.Query}, req.Documents)
	if !ok {
		return
	}
	type document struct {
		Text  string `json:"text"`
		Media *unset `json:"multi_modal"`
	}
	type result struct {
		Index    int      `json:"index"`
		Document document `json:"document"`
		Score    float64  `json:"relevance_score"`
	}
	answer := struct {
		ID      string     `json:"id"`
		Model   string     `json:"model"`
		Usage   scoreUsage `json:"usage"`
		Results []result   `json:"results"`
	}{ID: p.answerID(r, "rerank-"), Model: p.modelName(req.Model)}
	for i, s := range pairs {
		answer.Results = append(answer.Results, result{i, document{Text: s.document}, s.score})
		answer.Usage.PromptTokens += s.tokens
	}
	answer.Usage.TotalTokens = answer.Usage.PromptTokens
	slices.SortStableFunc(answer.Results, func(a, b result) int { return cmp.Compare(b.Score, a.Score) })
	if req.TopN > 0 && req.TopN < len(answer.Results) {
		answer.Results = answer.Results[:req.TopN]
	}
	writeJSON(w, answer)
}

// serveScore rates pairs of texts, in their order.
//
// Source: as serveRerank.
func (p *process) serveScore(w http.ResponseWriter, r *http.Request, body []byte) {
	var req struct {
		Model string   `json:"model"`
		Left  textList `json:"text_1"`
		Right textList `json:"text_2"`
		Salt  string   `json:"cache_salt"`
	}
	if !readJSON(w, body, &req) {
		return
	}
	pairs, ok := p.scorePairs(w, r, req.Model, req.Salt, req.Left, req.Right)
	if !ok {
		return
	}
	type datum struct {
		Index  int     `json:"index"`
		Object string  `json:"object"`
		Score  float64 `json:"score"`
	}
	answer := struct {
		ID      string  `json:"id"`
		Object  string  `json:"object"`
		Created int64   `json:"created"`
		Model   string  `json:"model"`
		Data    []datum `json:"data"`
		Usage   usage   `json:"usage"`
	}{ID: p.answerID(r, "score-"), Object: "list", Created: time.Now().Unix(), Model: p.modelName(req.Model)}
	for i, s := range pairs {
		answer.Data = append(answer.Data, datum{i, "score", s.score})
		answer.Usage.PromptTokens += s.tokens
	}
	answer.Usage.TotalTokens = answer.Usage.PromptTokens
	writeJSON(w, answer)
}

// answerID is an answer's id: the client's x-request-id behind a prefix, or one of ours.
func (p *process) answerID(r *http.Request, prefix string) string {
	id := r.Header.Get("X-Request-Id")
	if id == "" {
		p.mu.Lock()
		id = p.newID()
		p.mu.Unlock()
	}
	return prefix + id
}

// modelName is the model that an answer names.
func (p *process) modelName(asked string) string {
	if asked == "" {
		return p.cfg.Model
	}
	return asked
}
