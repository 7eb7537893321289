package openai

import (
	"encoding/json"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
	"unsafe"

	"epp.internal/epp"
)

// Form is what a path takes as its body.
type Form uint8

// The forms of a body.
const (
	Other       Form = iota // any other path: only the model and stream are read
	Chat                    // /v1/chat/completions, and …/render
	Completions             // /v1/completions, and …/render
	Embeddings              // /v1/embeddings
	Responses               // /v1/responses
	Messages                // /v1/messages, the form of Anthropic
	Rerank                  // /v1/rerank, /rerank, /v2/rerank, /score
	Tokenize                // /tokenize
	Detokenize              // /detokenize
)

// String returns the form's name as metrics and logs show it.
func (f Form) String() string {
	if int(f) >= len(formNames) {
		return "other"
	}
	return formNames[f]
}

var formNames = [...]string{"other", "chat", "completions", "embeddings", "responses", "messages", "rerank", "tokenize", "detokenize"}

// FormOf returns the form of the bodies that a path takes. A query, a slash at
// the end and a "/render" at the end make no difference.
func FormOf(path string) Form {
	path, _, _ = strings.Cut(path, "?")
	path = strings.TrimSuffix(strings.TrimRight(path, "/"), "/render")
	path = strings.TrimPrefix(strings.TrimPrefix(path, "/v1"), "/v2")
	switch path {
	case "/chat/completions":
		return Chat
	case "/completions":
		return Completions
	case "/embeddings":
		return Embeddings
	case "/responses":
		return Responses
	case "/messages":
		return Messages
	case "/rerank", "/score":
		return Rerank
	case "/tokenize":
		return Tokenize
	case "/detokenize":
		return Detokenize
	}
	return Other
}

// Body is a request's body as routing sees it.
type Body struct {
	Form Form
	// Model is the name that the client asked for; it is empty where the body
	// names none, and then Read says so with an error.
	Model string
	// Stream is true where the client asked for server-sent events, IncludeUsage
	// where it asked for usage in them (stream_options.include_usage).
	Stream, IncludeUsage bool
	// Salt is cache_salt; prompts of different salts share no block. Empty: none.
	Salt string
	// MaxTokens is max_completion_tokens, else max_tokens; 0 where neither is
	// there or of use.
	MaxTokens int
	// Prompts are the prompts of a body of form Completions, Embeddings or Rerank,
	// in order: each is computed, and cached, on its own.
	Prompts []Prompt
	// Root is the whole body, an object.
	Root Value

	src []byte
}

// Read reads the body of a request to path, once. It keeps body, and all strings
// that come of it share its memory: it must not change afterwards. An error is an *epp.Error of kind BadRequest or TooLarge
// whose Reason is one of: body_empty, body_not_an_object, json_cut_off,
// json_invalid, nesting_too_deep, too_many_values, model_missing,
// model_not_a_string, stream_not_a_boolean, salt_not_a_string, salt_empty,
// messages_missing, messages_not_a_list, message_not_an_object, role_missing,
// role_not_a_string, prompt_missing, prompt_empty, prompt_invalid,
// prompt_token_invalid, input_missing, input_empty, input_invalid.
//
// A body that only lacks its model (model_missing: no "model", null or "") is
// returned beside the error, for a caller that has a model to put in its place
// by WithModel. With any other error the body is nil.
func Read(path string, body []byte) (*Body, error) { return new(Reader).Read(path, body) }

// Read is [Read] by the reader.
func (r *Reader) Read(path string, body []byte) (*Body, error) {
	if uint64(len(body)) > 1<<32-1 {
		return nil, epp.Errorf(epp.TooLarge, "body_too_large", "the body is larger than 4 GiB")
	}
	doc, fault := r.readDocument(body, make([]node, 0, 64+len(body)/512))
	if fault != nil {
		return nil, fault
	}
	if doc == nil {
		at := invalidUTF8(body)
		return nil, epp.Errorf(epp.BadRequest, "json_invalid", "the body is not UTF-8: byte %d is %#02x", at, body[at])
	}
	b := &Body{Form: FormOf(path), Root: Value{doc: doc}, src: body}
	if k := b.Root.Kind(); k != Object {
		return nil, epp.Errorf(epp.BadRequest, "body_not_an_object", "the body is %s: a JSON object is expected", k)
	}
	missing, fault := b.readModel()
	for _, read := range []func(*Body) *epp.Error{(*Body).readFields, (*Body).readMessages, (*Body).readPrompts, (*Body).readInput} {
		if fault == nil {
			fault = read(b)
		}
	}
	if fault != nil {
		return nil, fault
	}
	if missing != nil {
		return b, missing
	}
	return b, nil
}

// ReadValue reads one JSON value by itself, such as the arguments of a tool call,
// which come as a string. Its errors are those of Read about JSON.
func ReadValue(text string) (Value, error) {
	doc, fault := new(Reader).readDocument(unsafe.Slice(unsafe.StringData(text), len(text)), make([]node, 0, 16))
	if fault != nil {
		return Value{}, fault
	}
	if doc == nil {
		return Value{}, epp.Errorf(epp.BadRequest, "json_invalid", "the text is not UTF-8")
	}
	return Value{doc: doc}, nil
}

// invalidUTF8 returns where the first byte stands that is not UTF-8.
func invalidUTF8(body []byte) int {
	at := 0
	for at < len(body) {
		r, size := utf8.DecodeRune(body[at:])
		if r == utf8.RuneError && size <= 1 {
			break
		}
		at += size
	}
	return at
}

// fieldError returns a BadRequest error about one field.
func fieldError(param, reason, format string, args ...any) *epp.Error {
	e := epp.Errorf(epp.BadRequest, reason, format, args...)
	e.Param = param
	return e
}

// readModel reads the model's name. Its first error is that of a body without
// one, its second any other.
func (b *Body) readModel() (missing, fault *epp.Error) {
	v := b.Root.Get("model")
	switch v.Kind() {
	case String:
		b.Model = v.String()
	case Missing, Null:
	default:
		return nil, fieldError("model", "model_not_a_string", "model is %s: the name of a model, a string, is expected", v.Kind())
	}
	if b.Model == "" {
		missing = fieldError("model", "model_missing", "the body names no model: set \"model\" to one of those that GET /v1/models lists")
	}
	return missing, nil
}

func (b *Body) readFields() *epp.Error {
	var ok bool
	stream := b.Root.Get("stream")
	if b.Stream, ok = stream.Truth(); !ok {
		return fieldError("stream", "stream_not_a_boolean", "stream is %s: true or false is expected", stream.Kind())
	}
	b.IncludeUsage, _ = b.Root.Get("stream_options").Get("include_usage").Truth()
	salt := b.Root.Get("cache_salt")
	switch salt.Kind() {
	case String:
		if b.Salt = salt.String(); b.Salt == "" {
			return fieldError("cache_salt", "salt_empty", "cache_salt is an empty string: leave it out or give it a value")
		}
	case Missing, Null:
	default:
		return fieldError("cache_salt", "salt_not_a_string", "cache_salt is %s: a string is expected", salt.Kind())
	}
	for _, key := range [...]string{"max_tokens", "max_completion_tokens"} {
		if n, ok := b.Root.Get(key).Int(); ok && n > 0 {
			b.MaxTokens = n
		}
	}
	return nil
}

// readMessages checks the messages of a chat: a list of objects that have a role.
func (b *Body) readMessages() *epp.Error {
	if b.Form != Chat && b.Form != Messages {
		return nil
	}
	messages := b.Root.Get("messages")
	switch k := messages.Kind(); k {
	case List:
	case Missing:
		return fieldError("messages", "messages_missing", "the body has no messages: a list of objects with \"role\" and \"content\" is expected")
	default:
		return fieldError("messages", "messages_not_a_list", "messages is %s: a list of objects with \"role\" and \"content\" is expected", k)
	}
	for i, m := range messages.Items() {
		if fault := checkMessage(i, m); fault != nil {
			return fault
		}
	}
	return nil
}

func checkMessage(i int, m Value) *epp.Error {
	role := m.Get("role").Kind()
	if role == String {
		return nil
	}
	param := "messages[" + strconv.Itoa(i) + "]"
	switch {
	case m.Kind() != Object:
		return fieldError(param, "message_not_an_object", "%s is %s: an object with \"role\" and \"content\" is expected", param, m.Kind())
	case role == Missing:
		return fieldError(param+".role", "role_missing", "%s has no role: \"system\", \"user\", \"assistant\" or \"tool\" is expected", param)
	}
	return fieldError(param+".role", "role_not_a_string", "%s.role is %s: \"system\", \"user\", \"assistant\" or \"tool\" is expected", param, role)
}

// WithModel returns the body with another model's name: the value of the
// top-level "model" is replaced, or the member put in front of the others where
// there is none, and all else stays byte for byte. It returns the body itself,
// not a copy, where the name is the same.
func (b *Body) WithModel(name string) []byte {
	if name == b.Model && name != "" {
		return b.src
	}
	quoted := quote(name)
	v := b.Root.Get("model")
	from, to := 0, 0
	if v.Kind() == Missing {
		from = int(b.Root.doc.nodes[0].start) + 1
		to = from
		quoted = append([]byte(`"model":`), quoted...)
		if b.Root.Len() > 0 {
			quoted = append(quoted, ',')
		}
	} else {
		n := &v.doc.nodes[v.i]
		from, to = int(n.start), int(n.end)
	}
	out := make([]byte, 0, len(b.src)+len(quoted))
	out = append(out, b.src[:from]...)
	out = append(out, quoted...)
	return append(out, b.src[to:]...)
}

// answerFields are the members of a chat's body that say how it is answered, and
// nothing of its prompt. Members that are not among them may decide tokens.
//
// Source: vLLM, ChatCompletionRequest; OpenAI's API.
var answerFields = [...]string{
	"allowed_token_ids", "bad_words", "best_of", "cache_salt", "frequency_penalty", "ignore_eos", "include_stop_str_in_output",
	"length_penalty", "logit_bias", "logprobs", "max_completion_tokens", "max_tokens", "metadata", "min_p", "min_tokens", "n",
	"parallel_tool_calls", "presence_penalty", "priority", "prompt_cache_key", "prompt_logprobs", "repetition_penalty",
	"request_id", "return_token_ids", "safety_identifier", "seed", "service_tier", "skip_special_tokens",
	"spaces_between_special_tokens", "stop", "stop_token_ids", "store", "stream", "stream_options", "temperature", "top_k",
	"top_logprobs", "top_p", "use_beam_search", "user",
}

// Question returns the body of a chat for an engine that is asked for its tokens:
// another model's name, and of the other members those that may decide tokens, in
// their order. Requests that differ in the answer they want ask the same.
func (b *Body) Question(model string) []byte {
	out := append(make([]byte, 0, len(b.src)), `{"model":`...)
	out = append(out, quote(model)...)
	for key, v := range b.Root.Members() {
		if key == "model" || slices.Contains(answerFields[:], key) {
			continue
		}
		out = append(out, ',')
		out = append(out, quote(key)...)
		out = append(out, ':')
		out = append(out, v.Raw()...)
	}
	return append(out, '}')
}

// quote returns s as a JSON string.
func quote(s string) []byte {
	quoted, _ := json.Marshal(s) // a string always has a JSON form
	return quoted
}
