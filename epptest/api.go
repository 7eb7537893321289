package epptest

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"time"

	"epp.internal/epp/engine"
)

// version is what the engine says it is.
const version = "0.32.0"

// handler routes all paths of the engine.
func (p *process) handler() http.Handler {
	mux := http.NewServeMux()
	inference := func(path string, serve func(http.ResponseWriter, *http.Request, []byte)) {
		mux.HandleFunc("POST "+path, func(w http.ResponseWriter, r *http.Request) { p.infer(w, r, serve) })
	}
	inference("/v1/chat/completions", p.serveChat)
	inference("/v1/completions", p.serveCompletion)
	inference("/v1/embeddings", p.serveEmbedding)
	inference("/v1/messages", p.serveMessages)
	inference("/v1/responses", p.serveResponses)
	for _, path := range []string{"/v1/rerank", "/v2/rerank", "/rerank"} {
		inference(path, p.serveRerank)
	}
	for _, path := range []string{"/v1/score", "/score"} {
		inference(path, p.serveScore)
	}
	for _, path := range []string{"/v1/chat/completions/render", "/v1/completions/render"} {
		mux.HandleFunc("POST "+path, func(w http.ResponseWriter, _ *http.Request) {
			writeTypedError(w, http.StatusForbidden, "PermissionDeniedError", "",
				"Scale-out endpoints are disabled. Restart vllm serve with --enable-scale-out to enable them.")
		})
	}
	mux.HandleFunc("POST /tokenize", p.serveTokenize)
	mux.HandleFunc("POST /detokenize", p.serveDetokenize)
	mux.HandleFunc("GET /v1/models", p.serveModels)
	mux.HandleFunc("GET /metrics", p.serveMetrics)
	mux.HandleFunc("GET /health", func(http.ResponseWriter, *http.Request) {})
	mux.HandleFunc("GET /version", func(w http.ResponseWriter, _ *http.Request) {
		writeJSON(w, map[string]string{"version": version})
	})
	mux.HandleFunc("GET /load", func(w http.ResponseWriter, _ *http.Request) {
		load := p.load()
		writeJSON(w, map[string]int{"server_load": load.Running + load.Waiting})
	})
	if p.events != nil && !p.cfg.NoEventSources {
		mux.HandleFunc("GET /kv_event_sources", p.serveEventSources)
	}
	if p.cfg.Engine.MaxAdapters > 0 {
		mux.HandleFunc("POST /v1/load_lora_adapter", p.serveLoadAdapter)
		mux.HandleFunc("POST /v1/unload_lora_adapter", p.serveUnloadAdapter)
	}
	mux.HandleFunc("POST /reset_prefix_cache", func(w http.ResponseWriter, _ *http.Request) {
		var done bool
		p.change(func(time.Time) { done = p.model.ResetPrefixCache() })
		writeJSON(w, map[string]bool{"success": done})
	})
	mux.HandleFunc("POST /sleep", func(_ http.ResponseWriter, r *http.Request) {
		level := 1
		if r.URL.Query().Get("level") == "2" {
			level = 2
		}
		p.sleep(level)
	})
	mux.HandleFunc("POST /wake_up", func(http.ResponseWriter, *http.Request) { p.change(p.model.Wake) })
	mux.HandleFunc("GET /is_sleeping", func(w http.ResponseWriter, _ *http.Request) {
		writeJSON(w, map[string]bool{"is_sleeping": p.load().Asleep})
	})
	return p.wrap(mux)
}

// wrap adds what holds for every path: the engine's name in the reply, and
// FastAPI's form of unknown paths and methods.
func (p *process) wrap(mux *http.ServeMux) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !p.enter() {
			panic(http.ErrAbortHandler)
		}
		defer p.serving.Done()
		w.Header().Set("x-served-by", p.cfg.Name)
		if _, pattern := mux.Handler(r); pattern == "" {
			status := http.StatusNotFound
			for _, method := range []string{http.MethodGet, http.MethodPost} {
				other := r.Clone(r.Context())
				other.Method = method
				if _, pattern := mux.Handler(other); pattern != "" {
					status = http.StatusMethodNotAllowed
				}
			}
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(status)
			fmt.Fprintf(w, `{"detail":%q}`, http.StatusText(status))
			return
		}
		mux.ServeHTTP(w, r)
	})
}

// infer reads the request of an inference path, notes it, and serves it unless a
// fault is set.
func (p *process) infer(w http.ResponseWriter, r *http.Request, serve func(http.ResponseWriter, *http.Request, []byte)) {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBodyBytes))
	if err != nil {
		writeError(w, http.StatusBadRequest, "", "body: "+err.Error())
		return
	}
	fault := p.owner.currentFault()
	p.owner.receive(Received{Path: r.URL.Path, Header: r.Header.Clone(), Body: body})
	if fault.Slow > 0 && !p.pause(r, fault.Slow) {
		return
	}
	switch {
	case fault.ResetBeforeHeaders:
		resetConnection(w)
	case fault.Hang:
		p.hang(r)
	case fault.Status != 0:
		writeError(w, fault.Status, "", http.StatusText(fault.Status))
	default:
		if fault.ResetAfterChunks > 0 {
			w = &cutWriter{ResponseWriter: w, left: fault.ResetAfterChunks}
		}
		serve(w, r, body)
	}
}

// cutWriter resets the connection after so many events of a stream.
type cutWriter struct {
	http.ResponseWriter
	left int
}

// Unwrap is for http.ResponseController.
func (w *cutWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// pause waits for d and reports whether the client and the process are still
// there.
func (p *process) pause(r *http.Request, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-r.Context().Done():
	case <-p.done:
	}
	return false
}

// writeJSON writes v as vLLM does: without spaces, HTML characters as they are,
// no newline at the end.
func writeJSON(w http.ResponseWriter, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.Write(encodeJSON(v))
}

func encodeJSON(v any) []byte {
	var buf bytes.Buffer
	enc := json.NewEncoder(&buf)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		panic(err) // values of our own types: cannot fail
	}
	return bytes.TrimSuffix(buf.Bytes(), []byte("\n"))
}

// apiError is vLLM's form of an error.
type apiError struct {
	Error struct {
		Message string  `json:"message"`
		Type    string  `json:"type"`
		Param   *string `json:"param"`
		Code    int     `json:"code"`
	} `json:"error"`
}

// errorTypes are the "type" of vLLM's errors by status.
var errorTypes = map[int]string{
	http.StatusBadRequest:          "BadRequestError",
	http.StatusNotFound:            "NotFoundError",
	http.StatusTooManyRequests:     "RateLimitError",
	http.StatusInternalServerError: "InternalServerError",
	http.StatusServiceUnavailable:  "ServiceUnavailableError",
}

func writeError(w http.ResponseWriter, status int, param, message string) {
	kind, ok := errorTypes[status]
	if !ok {
		kind = strings.ReplaceAll(http.StatusText(status), " ", "") + "Error"
	}
	writeTypedError(w, status, kind, param, message)
}

func writeTypedError(w http.ResponseWriter, status int, kind, param, message string) {
	var e apiError
	e.Error.Message, e.Error.Type, e.Error.Code = message, kind, status
	if param != "" {
		e.Error.Param = &param
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	w.Write(encodeJSON(e))
}

// readJSON reads a body into v, or answers as FastAPI does and returns false.
func readJSON(w http.ResponseWriter, body []byte, v any) bool {
	err := json.Unmarshal(body, v)
	if err == nil {
		return true
	}
	kind, loc, msg := "json_invalid", "body", "JSON decode error"
	var wrong *json.UnmarshalTypeError
	if errors.As(err, &wrong) {
		kind, loc = "type_error", "body."+wrong.Field
		msg = "Input should be a valid " + wrong.Type.String()
		if strings.HasPrefix(wrong.Type.String(), "[]") {
			kind, msg = "list_type", "Input should be a valid list"
		}
	}
	writeTypedError(w, http.StatusBadRequest, http.StatusText(http.StatusBadRequest), loc,
		fmt.Sprintf("1 validation error:\n  {'type': '%s', 'loc': '%s', 'msg': '%s'}", kind, loc, msg))
	return false
}

// resolve returns the adapter that a model's name stands for, empty for the base
// model, or answers 404 and returns false.
func (p *process) resolve(w http.ResponseWriter, model string) (adapter string, ok bool) {
	if model == p.cfg.Model || model == "" {
		return "", true
	}
	p.mu.Lock()
	known := p.adapterID(model) != 0
	p.mu.Unlock()
	if known {
		return model, true
	}
	writeError(w, http.StatusNotFound, "model",
		fmt.Sprintf("The model `%s` does not exist. Valid aliases: %s.", model, p.cfg.Model))
	return "", false
}

// tooLong answers 400 and returns true if a prompt leaves no room for an answer.
func (p *process) tooLong(w http.ResponseWriter, tokens int) bool {
	limit := p.cfg.MaxModelTokens
	if tokens <= limit {
		return false
	}
	writeError(w, http.StatusBadRequest, "input_tokens", fmt.Sprintf(
		"This model's maximum context length is %d tokens. However, your prompt contains at least %d input tokens, which exceeds this limit even without any output tokens. Please reduce the length of the input prompt. (parameter=input_tokens, value=%d)",
		limit, tokens, tokens))
	return true
}

// hang answers nothing for as long as the client waits.
func (p *process) hang(r *http.Request) {
	select {
	case <-r.Context().Done():
	case <-p.done:
	}
}

func (p *process) serveTokenize(w http.ResponseWriter, r *http.Request) {
	if p.owner.currentFault().Hang {
		p.hang(r)
		return
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBodyBytes))
	if err != nil {
		writeError(w, http.StatusBadRequest, "", "body: "+err.Error())
		return
	}
	var req struct {
		Model    string            `json:"model"`
		Prompt   *string           `json:"prompt"`
		Messages []json.RawMessage `json:"messages"`
		WithText bool              `json:"return_token_strs"`
	}
	if !readJSON(w, body, &req) {
		return
	}
	if _, ok := p.resolve(w, req.Model); !ok {
		return
	}
	var tokens []uint32
	if req.Prompt != nil {
		tokens = p.cfg.Tokenizer.CompletionTokens(*req.Prompt)
	} else if tokens, err = p.cfg.Tokenizer.ChatTokens(body); err != nil {
		writeError(w, http.StatusBadRequest, "", err.Error())
		return
	}
	var answer struct {
		Count    int      `json:"count"`
		Limit    int      `json:"max_model_len"`
		Tokens   []uint32 `json:"tokens"`
		WithText []string `json:"token_strs"`
	}
	answer.Count, answer.Limit, answer.Tokens = len(tokens), p.cfg.MaxModelTokens, tokens
	if req.WithText {
		for i := range tokens {
			answer.WithText = append(answer.WithText, p.cfg.Tokenizer.Decode(tokens[i:i+1]))
		}
	}
	writeJSON(w, answer)
}

func (p *process) serveDetokenize(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBodyBytes))
	if err != nil {
		writeError(w, http.StatusBadRequest, "", "body: "+err.Error())
		return
	}
	var req struct {
		Tokens []uint32 `json:"tokens"`
	}
	if readJSON(w, body, &req) {
		writeJSON(w, map[string]string{"prompt": p.cfg.Tokenizer.Decode(req.Tokens)})
	}
}

// model is an entry of /v1/models.
type model struct {
	ID         string       `json:"id"`
	Object     string       `json:"object"`
	Created    int64        `json:"created"`
	OwnedBy    string       `json:"owned_by"`
	Root       string       `json:"root"`
	Parent     *string      `json:"parent"`
	MaxLen     *int         `json:"max_model_len"`
	Permission []permission `json:"permission"`
}

type permission struct {
	ID                string  `json:"id"`
	Object            string  `json:"object"`
	Created           int64   `json:"created"`
	AllowCreateEngine bool    `json:"allow_create_engine"`
	AllowSampling     bool    `json:"allow_sampling"`
	AllowLogprobs     bool    `json:"allow_logprobs"`
	AllowSearch       bool    `json:"allow_search_indices"`
	AllowView         bool    `json:"allow_view"`
	AllowFineTuning   bool    `json:"allow_fine_tuning"`
	Organization      string  `json:"organization"`
	Group             *string `json:"group"`
	IsBlocking        bool    `json:"is_blocking"`
}

func (p *process) serveModels(w http.ResponseWriter, _ *http.Request) {
	writeJSON(w, struct {
		Object string  `json:"object"`
		Data   []model `json:"data"`
	}{"list", p.models()})
}

// models are the base model and the adapters that are loaded.
func (p *process) models() []model {
	p.mu.Lock()
	defer p.mu.Unlock()
	created := p.started.Unix()
	entry := func(name, root string) model {
		return model{
			ID: name, Object: "model", Created: created, OwnedBy: "vllm", Root: root,
			Permission: []permission{{
				ID: "modelperm-" + p.newID(), Object: "model_permission", Created: created,
				AllowSampling: true, AllowLogprobs: true, AllowView: true, Organization: "*",
			}},
		}
	}
	base := entry(p.cfg.Model, "/models/"+p.cfg.Model)
	base.MaxLen = &p.cfg.MaxModelTokens
	data := []model{base}
	for _, a := range p.adapters {
		m := entry(a.name, a.path)
		m.Parent = &p.cfg.Model
		data = append(data, m)
	}
	return data
}

// serveEventSources says where KV events are published, by data-parallel rank.
func (p *process) serveEventSources(w http.ResponseWriter, _ *http.Request) {
	endpoint := func(l net.Listener) string {
		return fmt.Sprintf("tcp://*:%d", l.Addr().(*net.TCPAddr).Port)
	}
	type source struct {
		Enabled        bool   `json:"enable_kv_cache_events"`
		Publisher      string `json:"publisher"`
		Endpoint       string `json:"endpoint"`
		ReplayEndpoint string `json:"replay_endpoint"`
		BufferSteps    int    `json:"buffer_steps"`
		HWM            int    `json:"hwm"`
		MaxQueueSize   int    `json:"max_queue_size"`
		Topic          string `json:"topic"`
	}
	writeJSON(w, map[string]source{"0": {
		Enabled: true, Publisher: "zmq",
		Endpoint: endpoint(p.events.pub), ReplayEndpoint: endpoint(p.events.replay),
		BufferSteps: p.cfg.BufferSteps, HWM: maxQueuedMessages, MaxQueueSize: maxQueuedMessages,
		Topic: p.cfg.EventTopic,
	}})
}

// adapterRequest is the body of the two LoRA paths.
type adapterRequest struct {
	Name string `json:"lora_name"`
	Path string `json:"lora_path"`
}

// readAdapter reads an adapterRequest, or answers and returns false.
func readAdapter(w http.ResponseWriter, r *http.Request, req *adapterRequest) bool {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBodyBytes))
	if err != nil || !readJSON(w, body, req) {
		return false
	}
	if req.Name == "" {
		writeTypedError(w, http.StatusBadRequest, "InvalidUserInput", "", "'lora_name' must be set.")
		return false
	}
	return true
}

func (p *process) serveLoadAdapter(w http.ResponseWriter, r *http.Request) {
	var req adapterRequest
	if !readAdapter(w, r, &req) {
		return
	}
	if req.Path == "" {
		writeTypedError(w, http.StatusBadRequest, "InvalidUserInput", "", "Both 'lora_name' and 'lora_path' must be provided.")
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.adapterID(req.Name) != 0:
		writeTypedError(w, http.StatusBadRequest, "InvalidUserInput", "",
			fmt.Sprintf("The lora adapter '%s' has already been loaded.", req.Name))
	case len(p.adapters) == maxAdapters:
		writeError(w, http.StatusBadRequest, "", fmt.Sprintf("more than %d adapters", maxAdapters))
	default:
		p.addAdapter(req.Name, req.Path)
		fmt.Fprintf(w, "Success: LoRA adapter '%s' added successfully.", req.Name)
	}
}

func (p *process) serveUnloadAdapter(w http.ResponseWriter, r *http.Request) {
	var req adapterRequest
	if !readAdapter(w, r, &req) {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for i, a := range p.adapters {
		if a.name == req.Name {
			p.adapters = append(p.adapters[:i:i], p.adapters[i+1:]...)
			fmt.Fprintf(w, "Success: LoRA adapter '%s' removed successfully.", req.Name)
			return
		}
	}
	writeError(w, http.StatusNotFound, "", fmt.Sprintf("The lora adapter '%s' cannot be found.", req.Name))
}

// newID returns 16 hexadecimal digits that no other call of this process does.
// p.mu is held.
func (p *process) newID() string {
	p.lastID++
	return fmt.Sprintf("%016x", mix(p.cfg.Engine.Seed+p.lastID))
}

// mix spreads the bits of x: the finalizer of SplitMix64 (Steele, Lea, Flood
// 2014), which is one to one.
func mix(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// answer returns the tokens that the model says to a prompt: n of them, drawn
// from the answer tokens by the prompt alone.
func (p *process) answer(prompt []uint32, n int) []uint32 {
	var state uint64
	for _, t := range prompt {
		state = mix(state ^ uint64(t))
	}
	out := make([]uint32, n)
	for i := range out {
		state = mix(state)
		out[i] = p.cfg.AnswerTokens[state%uint64(len(p.cfg.AnswerTokens))]
	}
	return out
}

// newRequest is a request to the model.
func newRequest(tokens, answer []uint32, adapter, salt string) *engine.Request {
	return &engine.Request{Tokens: tokens, Answer: answer, Adapter: adapter, Salt: salt}
}
