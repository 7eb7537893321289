package epp

import (
	"errors"
	"fmt"
)

// Kind says what sort of failure an error is: it is for programs, the text is
// for people. Each kind maps once to a status of HTTP and, with it, of ext_proc.
type Kind uint8

// The kinds of failure, with the HTTP status of each.
const (
	Internal            Kind = iota // 500: a fault of ours
	BadRequest                      // 400: the body is not what the path asks for
	NotFound                        // 404: unknown model or path
	MethodNotAllowed                // 405: a known path under another method
	TooLarge                        // 413: a body over its bound
	UnsupportedEncoding             // 415: a Content-Encoding we do not read
	Saturated                       // 429: every endpoint is full, or the request was shed
	BadGateway                      // 502: the endpoint broke the exchange
	Unavailable                     // 503: no endpoint, none in the subset, none healthy
	Timeout                         // 504: the endpoint did not answer in time
)

var kinds = [...]struct {
	name   string
	status int
	openai string
}{
	Internal:            {"internal", 500, "server_error"},
	BadRequest:          {"bad_request", 400, "invalid_request_error"},
	NotFound:            {"not_found", 404, "not_found_error"},
	MethodNotAllowed:    {"method_not_allowed", 405, "invalid_request_error"},
	TooLarge:            {"too_large", 413, "invalid_request_error"},
	UnsupportedEncoding: {"unsupported_encoding", 415, "invalid_request_error"},
	Saturated:           {"saturated", 429, "rate_limit_error"},
	BadGateway:          {"bad_gateway", 502, "server_error"},
	Unavailable:         {"unavailable", 503, "server_error"},
	Timeout:             {"timeout", 504, "server_error"},
}

// String returns the kind's name in snake case, as metrics and logs show it.
func (k Kind) String() string {
	if int(k) >= len(kinds) {
		return fmt.Sprintf("kind(%d)", k)
	}
	return kinds[k].name
}

// HTTPStatus returns the status code that a client gets for this kind.
func (k Kind) HTTPStatus() int {
	if int(k) >= len(kinds) {
		return kinds[Internal].status
	}
	return kinds[k].status
}

// OpenAIType returns the "type" of an OpenAI-shaped error body for this kind.
func (k Kind) OpenAIType() string {
	if int(k) >= len(kinds) {
		return kinds[Internal].openai
	}
	return kinds[k].openai
}

// Error is a failure that a client may be told of. Message holds no address,
// path or secret; Err, if any, is for our own log alone.
type Error struct {
	Kind Kind
	// Reason is machine-readable, lower snake case, stable: "body_cut_off",
	// "model_unknown", "all_full". It is the "code" of an OpenAI-shaped body.
	Reason string
	// Message says what is wrong, where, and what would be right.
	Message string
	// Param names the field of the request that is at fault, or is empty.
	Param string
	Err   error
}

// Errorf returns an Error of the given kind and reason.
func Errorf(kind Kind, reason, format string, args ...any) *Error {
	return &Error{Kind: kind, Reason: reason, Message: fmt.Sprintf(format, args...)}
}

// Error returns the message, followed by what Err says.
func (e *Error) Error() string {
	if e.Err != nil {
		return e.Message + ": " + e.Err.Error()
	}
	return e.Message
}

// Unwrap returns Err.
func (e *Error) Unwrap() error { return e.Err }

// AsError returns err as an *Error: itself if it is one or wraps one, else an
// Internal one that keeps err for the log and tells the client nothing of it.
// It returns nil for nil.
func AsError(err error) *Error {
	if err == nil {
		return nil
	}
	var e *Error
	if errors.As(err, &e) {
		return e
	}
	return &Error{Kind: Internal, Reason: "internal", Message: "internal error", Err: err}
}
