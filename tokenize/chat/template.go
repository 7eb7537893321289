package chat

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"
	"unsafe"

	"epp.internal/epp/openai"
	"epp.internal/epp/third_party/jinja"
)

// ErrNotRenderable is what an error of Render is (errors.Is) if the request, not
// the template, is the reason: the engine must be asked for the prompt.
var ErrNotRenderable = errors.New("not renderable here")

func notRenderable(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrNotRenderable, fmt.Sprintf(format, args...))
}

// Template renders chats for one model. It may be used by several goroutines at
// once.
type Template struct {
	byName  map[string]*variant // "default", "tool_use", …
	special map[string]jinja.Value
	now     func() time.Time
	rooms   sync.Pool // of *room
}

// A variant is one of a model's templates and what vLLM derives from its source.
type variant struct {
	source string
	jinja  *jinja.Template
	// parts is true where the template goes through a message's content part by
	// part ("openai" in vLLM), false where it takes one string.
	parts bool
	// developer is true where the template knows that role.
	developer bool
}

// Load reads the templates and special tokens of a tokenizer_config.json.
// chatTemplate is the text of the model's chat_template.jinja, which, if it is not
// empty, comes before the templates there. It renders a probe with each template,
// so that one which can't work is refused here, not at the first request.
func Load(chatTemplate string, tokenizerConfigJSON []byte) (*Template, error) {
	var config map[string]json.RawMessage
	if err := json.Unmarshal(tokenizerConfigJSON, &config); err != nil {
		return nil, fmt.Errorf("tokenizer_config.json: %w", err)
	}
	sources, err := templateSources(chatTemplate, config["chat_template"])
	if err != nil {
		return nil, err
	}
	t := &Template{byName: make(map[string]*variant), special: specialTokens(config)}
	t.rooms.New = func() any { return new(room) }
	for name, source := range sources {
		compiled, err := jinja.Compile(source, "strftime_now")
		if err != nil {
			return nil, fmt.Errorf("chat_template %q: %w", name, err)
		}
		v := &variant{
			source:    source,
			jinja:     compiled,
			parts:     compiled.LoopsOverContent(),
			developer: strings.Contains(source, `"developer"`) || strings.Contains(source, `'developer'`),
		}
		if err := t.probe(v); err != nil {
			return nil, fmt.Errorf("chat_template %q: %w", name, err)
		}
		t.byName[name] = v
	}
	return t, nil
}

// templateSources returns the templates by name. In the config they are a string
// or a list of {"name", "template"}.
func templateSources(chatTemplate string, config json.RawMessage) (map[string]string, error) {
	if chatTemplate != "" {
		return map[string]string{"default": chatTemplate}, nil
	}
	var one string
	if json.Unmarshal(config, &one) == nil && one != "" {
		return map[string]string{"default": one}, nil
	}
	var list []struct{ Name, Template string }
	if err := json.Unmarshal(config, &list); err != nil || len(list) == 0 {
		return nil, fmt.Errorf("tokenizer_config.json: chat_template is missing")
	}
	sources := make(map[string]string, len(list))
	for _, entry := range list {
		sources[entry.Name] = entry.Template
	}
	if _, ok := sources["default"]; !ok {
		return nil, fmt.Errorf("tokenizer_config.json: chat_template has no entry \"default\"")
	}
	return sources, nil
}

// specialTokens returns the variables like bos_token that a template sees.
//
// Source: transformers, PreTrainedTokenizerBase.special_tokens_map.
func specialTokens(config map[string]json.RawMessage) map[string]jinja.Value {
	tokens := make(map[string]jinja.Value)
	for key, raw := range config {
		if !strings.HasSuffix(key, "_token") {
			continue
		}
		var text string
		var added struct{ Content *string }
		switch {
		case string(raw) == "null":
		case json.Unmarshal(raw, &text) == nil:
			tokens[key] = jinja.NewString(text)
		case json.Unmarshal(raw, &added) == nil && added.Content != nil:
			tokens[key] = jinja.NewString(*added.Content)
		}
	}
	return tokens
}

// SetClock gives the clock for templates that write today's date (strftime_now).
// Without one such a chat is not renderable; with one it is exact as long as the
// engine's clock and time zone agree with it. It must be called before the first
// Render.
func (t *Template) SetClock(now func() time.Time) { t.now = now }

// Render returns the prompt's text for a chat request. Its errors are
// ErrNotRenderable, or those of the template: the engine answers such a request
// with 400.
func (t *Template) Render(b *openai.Body) (string, error) {
	var text string
	err := t.RenderTo(b, func(s string) { text = strings.Clone(s) })
	return text, err
}

// RenderTo is Render that shows use the text, in memory that the next rendering
// takes: use must not keep it.
func (t *Template) RenderTo(b *openai.Body, use func(text string)) error {
	r := t.rooms.Get().(*room)
	defer func() {
		r.close()
		t.rooms.Put(r)
	}()
	r.open(len(b.Root.Raw()))
	q, err := t.request(b, t.pick(b.Root.Get("tools").Kind() > openai.Null), r)
	if err != nil {
		return err
	}
	prompt, err := q.append(r.prompt[:0], t)
	if err != nil {
		return err
	}
	r.prompt = prompt
	use(unsafe.String(unsafe.SliceData(prompt), len(prompt)))
	return nil
}

// pick returns the template for a request with or without tools.
//
// Source: transformers, PreTrainedTokenizerBase.get_chat_template.
func (t *Template) pick(tools bool) *variant {
	if v, ok := t.byName["tool_use"]; ok && tools {
		return v
	}
	return t.byName["default"]
}

// probes are chats that between them reach most branches of a template. A
// template may refuse one (raise_exception), or fail as Python would; what counts
// is that it meets nothing that our Jinja lacks.
var probes = []string{
	`{"model":"m","messages":[{"role":"user","content":"a"}]}`,
	`{"model":"m","messages":[{"role":"system","content":"s"},{"role":"user","content":"a"},{"role":"assistant","content":"b","reasoning":"r"},{"role":"user","content":[{"type":"text","text":"c"}]}]}`,
	`{"model":"m","messages":[{"role":"user","content":"a"},{"role":"assistant","content":null,"tool_calls":[{"id":"c12345678","type":"function","function":{"name":"f","arguments":"{\"x\":[1,2.5,null,true]}"}}]},{"role":"tool","tool_call_id":"c12345678","name":"f","content":"1"}],"tools":[{"type":"function","function":{"name":"f","description":"d","parameters":{"type":"object","properties":{"x":{"type":"array","items":{"type":"string"}}},"required":["x"]}}}]}`,
}

// probe renders the probes.
func (t *Template) probe(v *variant) error {
	for _, text := range probes {
		b, err := openai.Read("/v1/chat/completions", []byte(text))
		if err != nil {
			return err
		}
		r, err := t.request(b, v, new(room))
		if err != nil {
			return err
		}
		var missing *jinja.Unsupported
		if _, err := r.append(nil, t); errors.As(err, &missing) {
			return err
		}
	}
	return nil
}
