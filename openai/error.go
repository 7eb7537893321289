package openai

import (
	"bytes"
	"encoding/json"

	"epp.internal/epp"
)

// ErrorBody returns the body that tells a client of an error, in OpenAI's shape,
// with the request's ID where there is one:
//
//	{"error":{"message":"…","type":"invalid_request_error","param":"model","code":"model_missing","request_id":"…"}}
//
// "param" is null where no field is at fault, as in OpenAI's own bodies. Only the
// error's message goes out, never what Err holds.
func ErrorBody(e *epp.Error, requestID string) []byte {
	var body struct {
		Error struct {
			Message   string  `json:"message"`
			Type      string  `json:"type"`
			Param     *string `json:"param"`
			Code      string  `json:"code"`
			RequestID string  `json:"request_id,omitempty"`
		} `json:"error"`
	}
	body.Error.Message, body.Error.Type = e.Message, e.Kind.OpenAIType()
	body.Error.Code, body.Error.RequestID = e.Reason, requestID
	if e.Param != "" {
		body.Error.Param = &e.Param
	}
	var out bytes.Buffer
	enc := json.NewEncoder(&out)
	enc.SetEscapeHTML(false)
	_ = enc.Encode(&body) // strings alone: it has a JSON form
	return bytes.TrimRight(out.Bytes(), "\n")
}
