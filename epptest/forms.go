package epptest

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
)

// form is a form of chat that is not OpenAI's chat completions: how it is answered, as
// a whole and as the events of a stream.
type form interface {
	whole(j *job) any
	begin(j *job) []event
	token(j *job, n int) []event
	end(j *job) []event
}

// event is an event of a stream that has a name.
type event struct {
	name string
	data any
}

// textOf returns the text of a content: a string, null, or a list of blocks of text,
// with sep between them. What else there may be is not read by the fake.
func textOf(content json.RawMessage, sep string) (string, error) {
	if content == nil || content[0] != '[' {
		return contentText(content)
	}
	var blocks []struct{ Type, Text string }
	if err := json.Unmarshal(content, &blocks); err != nil {
		return "", err
	}
	var text []string
	for _, b := range blocks {
		switch b.Type {
		case "text", "input_text", "output_text":
			text = append(text, b.Text)
		default:
			return "", fmt.Errorf("a block of type %q: this fake reads text alone", b.Type)
		}
	}
	return strings.Join(text, sep), nil
}

// saidAs is a message of a chat.
type saidAs struct {
	Role    string `json:"role"`
	Content string `json:"content"`
}

// serveForm serves a chat that came in another form, with the messages that it means.
func (j *job) serveForm(w http.ResponseWriter, r *http.Request, said []saidAs) {
	adapter, ok := j.resolve(w, j.req.Model)
	if !ok {
		return
	}
	tokens, err := j.cfg.Tokenizer.ChatTokens(encodeJSON(map[string]any{"messages": said}))
	if err != nil {
		writeError(w, http.StatusBadRequest, "", err.Error())
		return
	}
	j.run(w, r, adapter, [][]uint32{tokens})
}

// text is the answer from token a up to b.
func (j *job) text(a, b int) string {
	return j.cfg.Tokenizer.Decode(j.reply[0].request.Answer[a:b])
}

// serveMessages serves Anthropic's form.
//
// Source: vLLM 0.32, entrypoints/anthropic.
func (p *process) serveMessages(w http.ResponseWriter, r *http.Request, body []byte) {
	j := job{process: p, chat: true, form: messagesForm{}}
	var req struct {
		System   json.RawMessage `json:"system"`
		Messages []struct {
			Role    string          `json:"role"`
			Content json.RawMessage `json:"content"`
		} `json:"messages"`
	}
	if !readJSON(w, body, &j.req) || !readJSON(w, body, &req) {
		return
	}
	if j.req.MaxTokens == nil || len(req.Messages) == 0 {
		writeError(w, http.StatusBadRequest, "messages", "messages and max_tokens: both are required")
		return
	}
	var said []saidAs
	system, err := textOf(req.System, "")
	if system != "" {
		said = append(said, saidAs{"system", system})
	}
	for _, m := range req.Messages {
		text, e := textOf(m.Content, "\n")
		if e != nil {
			err = e
		}
		said = append(said, saidAs{m.Role, text})
	}
	if err != nil {
		writeError(w, http.StatusBadRequest, "messages", err.Error())
		return
	}
	j.serveForm(w, r, said)
}

// messagesForm answers as vLLM's /v1/messages does.
type messagesForm struct{}

type anthropicUsage struct {
	InputTokens  int  `json:"input_tokens"` // without the two below
	OutputTokens int  `json:"output_tokens"`
	Created      *int `json:"cache_creation_input_tokens,omitempty"`
	Read         *int `json:"cache_read_input_tokens,omitempty"`
}

type anthropicBlock struct {
	Type string `json:"type"`
	Text string `json:"text"`
}

type anthropicMessage struct {
	ID         string           `json:"id"`
	Type       string           `json:"type"`
	Role       string           `json:"role"`
	Content    []anthropicBlock `json:"content"`
	Model      string           `json:"model"`
	StopReason *string          `json:"stop_reason,omitempty"`
	Usage      anthropicUsage   `json:"usage"`
}

// anthropicEvent is an event of the stream.
type anthropicEvent struct {
	Type    string            `json:"type"`
	Message *anthropicMessage `json:"message,omitempty"`
	Delta   any               `json:"delta,omitempty"`
	Block   *anthropicBlock   `json:"content_block,omitempty"`
	Index   *int              `json:"index,omitempty"`
	Usage   *anthropicUsage   `json:"usage,omitempty"`
}

func (e anthropicEvent) named() event { return event{e.Type, e} }

func (messagesForm) message(j *job) anthropicMessage {
	return anthropicMessage{ID: j.id, Type: "message", Role: "assistant", Content: []anthropicBlock{}, Model: j.model}
}

// usage tells the cached tokens apart from the others.
func (messagesForm) usage(j *job) anthropicUsage {
	u := j.usage(allTokens)
	a := anthropicUsage{InputTokens: u.PromptTokens, OutputTokens: u.CompletionTokens}
	if d := u.PromptTokensDetails; d != nil {
		a.Read, a.Created = &d.CachedTokens, d.CreatedCacheTokens
		a.InputTokens = max(0, a.InputTokens-*a.Read-*a.Created)
	}
	return a
}

func (messagesForm) stopReason(j *job) *string {
	reason := "end_turn"
	if j.reply[0].finishReason == "length" {
		reason = "max_tokens"
	}
	return &reason
}

func (f messagesForm) whole(j *job) any {
	m := f.message(j)
	m.Content = append(m.Content, anthropicBlock{"text", j.text(0, allTokens(j.reply[0]))})
	m.StopReason, m.Usage = f.stopReason(j), f.usage(j)
	return m
}

// begin tells the whole prompt as input: the engine's first chunk does not say what of
// it was cached.
func (f messagesForm) begin(j *job) []event {
	m := f.message(j)
	m.Usage.InputTokens = len(j.reply[0].request.Tokens)
	return []event{
		anthropicEvent{Type: "message_start", Message: &m}.named(),
		anthropicEvent{Type: "content_block_start", Index: new(int), Block: &anthropicBlock{Type: "text"}}.named(),
	}
}

func (messagesForm) token(j *job, n int) []event {
	return []event{anthropicEvent{Type: "content_block_delta", Index: new(int), Delta: anthropicBlock{"text_delta", j.text(n, n+1)}}.named()}
}

func (f messagesForm) end(j *job) []event {
	u := f.usage(j)
	stop := struct {
		Reason   *string `json:"stop_reason"`
		Sequence *unset  `json:"stop_sequence"`
	}{Reason: f.stopReason(j)}
	return []event{
		anthropicEvent{Type: "content_block_stop", Index: new(int)}.named(),
		anthropicEvent{Type: "message_delta", Delta: stop, Usage: &u}.named(),
		anthropicEvent{Type: "message_stop"}.named(),
	}
}

// serveResponses serves OpenAI's responses. It keeps none: what refers to an earlier
// one is refused.
//
// Source: vLLM 0.32, entrypoints/openai/responses.
func (p *process) serveResponses(w http.ResponseWriter, r *http.Request, body []byte) {
	j := job{process: p, chat: true, form: &responsesForm{}}
	var req struct {
		Instructions string          `json:"instructions"`
		Input        json.RawMessage `json:"input"`
		Previous     string          `json:"previous_response_id"`
		MaxTokens    *int            `json:"max_output_tokens"`
	}
	if !readJSON(w, body, &j.req) || !readJSON(w, body, &req) {
		return
	}
	j.req.MaxTokens, j.req.MaxCompletionTokens = req.MaxTokens, nil
	if req.Previous != "" {
		writeError(w, http.StatusNotFound, "response_id", fmt.Sprintf("Response with id '%s' not found.", req.Previous))
		return
	}
	var said []saidAs
	if req.Instructions != "" {
		said = append(said, saidAs{"system", req.Instructions})
	}
	input, err := inputOf(req.Input)
	if err != nil {
		writeError(w, http.StatusBadRequest, "input", err.Error())
		return
	}
	j.serveForm(w, r, append(said, input...))
}

// inputOf reads the input of a response: a text, or messages.
func inputOf(raw json.RawMessage) ([]saidAs, error) {
	var text string
	if json.Unmarshal(raw, &text) == nil {
		return []saidAs{{"user", text}}, nil
	}
	var items []struct {
		Type, Role string
		Content    json.RawMessage
	}
	if err := json.Unmarshal(raw, &items); err != nil || len(items) == 0 {
		return nil, fmt.Errorf("input: neither text nor a list of messages")
	}
	var said []saidAs
	for i, item := range items {
		if item.Type != "" && item.Type != "message" {
			return nil, fmt.Errorf("input[%d]: an item of type %q: this fake reads messages alone", i, item.Type)
		}
		text, err := textOf(item.Content, "\n")
		if err != nil {
			return nil, fmt.Errorf("input[%d]: %w", i, err)
		}
		said = append(said, saidAs{item.Role, text})
	}
	return said, nil
}

// responsesForm answers as vLLM's /v1/responses does.
type responsesForm struct {
	sequence int // of the next event
}

type responsesUsage struct {
	InputTokens  int `json:"input_tokens"`
	InputDetails struct {
		Cached  int   `json:"cached_tokens"`
		Written int   `json:"cache_write_tokens"`
		Turns   []int `json:"input_tokens_per_turn"`
		Hits    []int `json:"cached_tokens_per_turn"`
	} `json:"input_tokens_details"`
	OutputTokens  int `json:"output_tokens"`
	OutputDetails struct {
		Reasoning int   `json:"reasoning_tokens"`
		Tools     int   `json:"tool_output_tokens"`
		Turns     []int `json:"output_tokens_per_turn"`
		ToolTurns []int `json:"tool_output_tokens_per_turn"`
	} `json:"output_tokens_details"`
	TotalTokens int `json:"total_tokens"`
}

type responsesPart struct {
	Type        string   `json:"type"`
	Text        string   `json:"text"`
	Annotations []*unset `json:"annotations"`
	Logprobs    *unset   `json:"logprobs"`
}

type responsesItem struct {
	ID      string          `json:"id"`
	Content []responsesPart `json:"content"`
	Role    string          `json:"role"`
	Status  string          `json:"status"`
	Type    string          `json:"type"`
	Phase   *unset          `json:"phase"`
}

type responsesAnswer struct {
	ID                string            `json:"id"`
	CreatedAt         int64             `json:"created_at"`
	Incomplete        map[string]string `json:"incomplete_details"`
	Instructions      *unset            `json:"instructions"`
	Metadata          *unset            `json:"metadata"`
	Model             string            `json:"model"`
	Object            string            `json:"object"`
	Output            []responsesItem   `json:"output"`
	ParallelToolCalls bool              `json:"parallel_tool_calls"`
	Temperature       float64           `json:"temperature"`
	ToolChoice        string            `json:"tool_choice"`
	Tools             []*unset          `json:"tools"`
	TopP              float64           `json:"top_p"`
	Background        bool              `json:"background"`
	MaxOutputTokens   int               `json:"max_output_tokens"`
	ServiceTier       string            `json:"service_tier"`
	Status            string            `json:"status"`
	Truncation        string            `json:"truncation"`
	Usage             *responsesUsage   `json:"usage"`
}

func (f *responsesForm) part(text string) responsesPart {
	return responsesPart{Type: "output_text", Text: text, Annotations: []*unset{}}
}

func (f *responsesForm) item(j *job, status string, parts ...responsesPart) responsesItem {
	return responsesItem{ID: "msg_" + j.id, Content: append([]responsesPart{}, parts...), Role: "assistant", Status: status, Type: "message"}
}

func (f *responsesForm) answer(j *job, status string, output ...responsesItem) responsesAnswer {
	return responsesAnswer{
		ID: j.id, CreatedAt: j.created, Model: j.model, Object: "response", Output: append([]responsesItem{}, output...),
		ParallelToolCalls: true, Temperature: 1, TopP: 1, ToolChoice: "auto", Tools: []*unset{}, MaxOutputTokens: allTokens(j.reply[0]),
		ServiceTier: "auto", Status: status, Truncation: "disabled",
	}
}

func (f *responsesForm) whole(j *job) any {
	text := j.text(0, allTokens(j.reply[0]))
	status := "completed"
	if j.reply[0].finishReason == "length" {
		status = "incomplete"
	}
	a := f.answer(j, status, f.item(j, status, f.part(text)))
	if status == "incomplete" {
		a.Incomplete = map[string]string{"reason": "max_output_tokens"}
	}
	r := j.reply[0].request
	u := &responsesUsage{InputTokens: len(r.Tokens), OutputTokens: len(r.Answer), TotalTokens: len(r.Tokens) + len(r.Answer)}
	u.InputDetails.Cached = r.CachedTokens() // told whatever --enable-prompt-tokens-details says
	u.InputDetails.Turns, u.InputDetails.Hits = []int{}, []int{}
	u.OutputDetails.Turns, u.OutputDetails.ToolTurns = []int{}, []int{}
	a.Usage = u
	return a
}

// event is the next event of the stream.
func (f *responsesForm) event(kind string, fields map[string]any) event {
	fields["type"], fields["sequence_number"] = kind, f.sequence
	f.sequence++
	return event{kind, fields}
}

func (f *responsesForm) begin(j *job) []event {
	return []event{
		f.event("response.created", map[string]any{"response": f.answer(j, "in_progress")}),
		f.event("response.in_progress", map[string]any{"response": f.answer(j, "in_progress")}),
		f.event("response.output_item.added", map[string]any{"output_index": 0, "item": f.item(j, "in_progress")}),
		f.event("response.content_part.added", map[string]any{"item_id": "msg_" + j.id, "output_index": 0, "content_index": 0, "part": f.part("")}),
	}
}

func (f *responsesForm) token(j *job, n int) []event {
	return []event{f.event("response.output_text.delta", map[string]any{
		"item_id": "msg_" + j.id, "output_index": 0, "content_index": 0, "delta": j.text(n, n+1), "logprobs": []*unset{},
	})}
}

func (f *responsesForm) end(j *job) []event {
	text := j.text(0, allTokens(j.reply[0]))
	return []event{
		f.event("response.output_text.done", map[string]any{"item_id": "msg_" + j.id, "output_index": 0, "content_index": 0, "text": text, "logprobs": []*unset{}}),
		f.event("response.content_part.done", map[string]any{"item_id": "msg_" + j.id, "output_index": 0, "content_index": 0, "part": f.part(text)}),
		f.event("response.output_item.done", map[string]any{"output_index": 0, "item": f.item(j, "completed", f.part(text))}),
		f.event("response.completed", map[string]any{"response": f.whole(j)}),
	}
}
