package proxy

import (
	"encoding/json"
	"net/http"
	"strconv"
	"time"

	"epp.internal/epp"
	"epp.internal/epp/openai"
)

// retryAfterSeconds is what a 429 asks a client to wait: a guess, long enough
// for a queue of an engine to move.
const retryAfterSeconds = "1"

// refuse answers a request that never reached the picker, which logs its own.
func (x *exchange) refuse(e *epp.Error) {
	x.p.opts.Logger.Info("request refused", "requestID", x.id, "clientRequestID", x.in.Header.Get("X-Request-Id"), "path", x.path, "reason", e.Reason, "error", e.Error())
	x.fail(e)
}

// fail answers with an error.
func (x *exchange) fail(e *epp.Error) {
	x.answer()
	h := x.w.Header()
	if e.Kind == epp.Saturated {
		h.Set("Retry-After", retryAfterSeconds)
	}
	x.json(e.Kind.HTTPStatus(), openai.ErrorBody(e, x.id))
}

// json answers with a body of our own.
func (x *exchange) json(status int, body []byte) {
	h := x.w.Header()
	h.Set("Content-Type", "application/json")
	h.Set("Content-Length", strconv.Itoa(len(body)))
	x.status = status
	x.control.SetWriteDeadline(time.Now().Add(x.p.opts.StallTimeout))
	x.w.WriteHeader(status)
	if x.in.Method != http.MethodHead {
		x.w.Write(body) // an error is the client's, who went away
	}
}

// health says whether new requests should come here.
func (x *exchange) health() {
	if x.p.draining.Load() {
		x.fail(epp.Errorf(epp.Unavailable, "draining", "proxy is shutting down"))
		return
	}
	x.json(http.StatusOK, []byte("{\"status\":\"ok\"}\n"))
}

// model is an entry of the list of models, as vLLM shapes it.
type model struct {
	ID          string `json:"id"`
	Object      string `json:"object"`
	Created     int64  `json:"created"` // Unix seconds; when the proxy started
	OwnedBy     string `json:"owned_by"`
	Root        string `json:"root"`
	Parent      string `json:"parent,omitempty"`
	MaxModelLen int    `json:"max_model_len,omitempty"` // tokens
}

// models lists what the pool serves.
func (x *exchange) models() {
	list := struct {
		Object string  `json:"object"`
		Data   []model `json:"data"`
	}{"list", []model{}}
	for _, m := range x.p.opts.Models() {
		list.Data = append(list.Data, model{m.Name, "model", x.p.started.Unix(), "epp", m.Name, m.Parent, m.MaxTokens})
	}
	body, err := json.Marshal(list)
	if err != nil {
		x.fail(epp.AsError(err))
		return
	}
	x.json(http.StatusOK, append(body, '\n'))
}
