package chat

import (
	"strings"

	"epp.internal/epp"
	"epp.internal/epp/openai"
	"epp.internal/epp/third_party/jinja"
)

// A message is one message as the template gets it: the role, its content as one
// string or as parts, and what else vLLM keeps.
type message struct {
	role  string
	parts []string // the texts of the content
	// list is true where the content is a list of parts, not one string.
	list bool
	more []jinja.NamedValue
}

// dict returns the message as the template sees it.
func (m *message) dict() jinja.Value {
	v := jinja.NewDict()
	d := v.AsDict()
	d.Set("role", jinja.NewString(m.role))
	d.Set("content", m.content())
	for _, field := range m.more {
		d.Set(field.Name, field.Value)
	}
	return v
}

func (m *message) content() jinja.Value {
	if !m.list {
		return jinja.NewString(strings.Join(m.parts, "\n")) // of one part that is the part
	}
	items := make([]jinja.Value, len(m.parts))
	for i, part := range m.parts {
		items[i] = jinja.NewDict()
		items[i].AsDict().Set("type", jinja.NewString("text"))
		items[i].AsDict().Set("text", jinja.NewString(part))
	}
	return jinja.NewList(items)
}

// tag marks the end of the message's text with resumeTag and returns the text
// without it; of several parts that is the last one.
func (m *message) tag() (string, bool) {
	if !m.list {
		text := strings.Join(m.parts, "\n")
		m.parts = []string{text + resumeTag}
		return text, true
	}
	if len(m.parts) == 0 {
		return "", false
	}
	last := &m.parts[len(m.parts)-1]
	text := *last
	*last += resumeTag
	return text, true
}

// prepare reads one message of the body. parts says whether the template takes
// content in parts.
//
// Source: vLLM, _parse_chat_message_content and _postprocess_messages.
func (r *room) prepare(m openai.Value, parts bool) (message, error) {
	out := message{role: m.Get("role").String(), list: parts}
	var err error
	if out.parts, err = r.texts(m.Get("content"), out.role == "system"); err != nil {
		return out, err
	}
	set := func(name string, v jinja.Value) { out.more = append(out.more, jinja.NamedValue{Name: name, Value: v}) }
	switch out.role {
	case "assistant":
		calls, err := toolCalls(m.Get("tool_calls"))
		if err != nil {
			return out, err
		}
		if calls.Kind() == jinja.KindList {
			set("tool_calls", calls)
		}
		reasoning := m.Get("reasoning")
		if reasoning.Kind() <= openai.Null {
			reasoning = m.Get("reasoning_content")
		}
		switch reasoning.Kind() {
		case openai.Missing, openai.Null:
		case openai.String:
			text := jinja.NewString(r.text(reasoning))
			set("reasoning", text)
			set("reasoning_content", text)
		default:
			return out, notRenderable("reasoning is %s", reasoning.Kind())
		}
	case "tool":
		// A tool's result in parts becomes one string, whatever the template takes.
		out.list = false
		if id := m.Get("tool_call_id"); id.Kind() != openai.Missing {
			set("tool_call_id", toJinja(id))
		}
	}
	for _, name := range [...]string{"name", "task"} {
		if v := m.Get(name); v.Kind() == openai.String {
			set(name, jinja.NewString(v.String()))
		}
	}
	if out.role == "developer" {
		tools, err := toolDicts(m.Get("tools"))
		if err != nil {
			return out, err
		}
		set("tools", tools)
	}
	return out, nil
}

// billingHeader begins a line that Claude Code puts in front of its system
// prompt, different in every request: vLLM drops it.
const billingHeader = "x-anthropic-billing-header"

// texts returns the texts of a message's content.
func (r *room) texts(content openai.Value, system bool) ([]string, error) {
	var out []string
	add := func(text string) {
		if system && strings.HasPrefix(text, billingHeader) {
			if _, text, _ = strings.Cut(text, "\n"); text == "" {
				return
			}
		}
		out = append(out, text)
	}
	switch content.Kind() {
	case openai.Missing, openai.Null:
	case openai.String:
		add(r.text(content))
	case openai.List:
		for _, part := range content.Items() {
			text, err := r.partText(part)
			switch {
			case err != nil:
				return nil, err
			case part.Kind() == openai.String || part.Get("type").String() == "text":
				add(text)
			default:
				out = append(out, text)
			}
		}
	default:
		return nil, notRenderable("content is %s", content.Kind())
	}
	return out, nil
}

// partText returns the text of one part of a content.
func (r *room) partText(part openai.Value) (string, error) {
	if part.Kind() == openai.String {
		return r.text(part), nil
	}
	kind, key := part.Get("type").String(), "text"
	switch kind {
	case "text", "input_text", "output_text":
	case "refusal", "thinking":
		key = kind
	default:
		return "", notRenderable("a part of type %.40q is no text", kind)
	}
	v := part.Get(key)
	if v.Kind() != openai.String {
		return "", notRenderable("a part of type %q has no text", kind)
	}
	return r.text(v), nil
}

// toolCalls returns an assistant's tool calls with their arguments as objects;
// arguments that are none become an empty object, an empty list becomes none.
func toolCalls(calls openai.Value) (jinja.Value, error) {
	switch {
	case calls.Kind() <= openai.Null || calls.Kind() == openai.List && calls.Len() == 0:
		return jinja.None(), nil
	case calls.Kind() != openai.List:
		return jinja.None(), notRenderable("tool_calls is %s", calls.Kind())
	}
	items := make([]jinja.Value, 0, calls.Len())
	for i, call := range calls.Items() {
		f := call.Get("function")
		if kind := call.Get("type"); f.Get("name").Kind() != openai.String || kind.Kind() != openai.Missing && kind.String() != "function" {
			return jinja.None(), notRenderable("tool_calls[%d] is no call of a function", i)
		}
		arguments, err := callArguments(f.Get("arguments"))
		if err != nil {
			return jinja.None(), err
		}
		function := jinja.NewDict()
		function.AsDict().Set("arguments", arguments)
		function.AsDict().Set("name", jinja.NewString(f.Get("name").String()))
		// The order of the keys is that of OpenAI's own type, as pydantic writes it.
		item := jinja.NewDict()
		if id := call.Get("id"); id.Kind() != openai.Missing {
			item.AsDict().Set("id", toJinja(id))
		}
		item.AsDict().Set("function", function)
		item.AsDict().Set("type", jinja.NewString("function"))
		items = append(items, item)
	}
	return jinja.NewList(items), nil
}

func callArguments(v openai.Value) (jinja.Value, error) {
	if v.Kind() == openai.String {
		text := v.String()
		parsed, err := openai.ReadValue(text)
		switch {
		case err == nil && !strings.HasPrefix(text, "\uFEFF"):
			v = parsed
		case isBound(err):
			return jinja.None(), notRenderable("the arguments of a tool call are too large: %v", err)
		default:
			return jinja.NewDict(), nil
		}
	}
	if v.Kind() != openai.Object {
		return jinja.NewDict(), nil
	}
	return toJinja(v), nil
}

// isBound reports whether an error is about a bound of ours, not about JSON.
func isBound(err error) bool {
	if err == nil {
		return false
	}
	e := epp.AsError(err)
	return e.Kind == epp.TooLarge || e.Reason == "nesting_too_deep"
}

// withoutDeveloper makes system messages of a developer's, where there are any,
// and then one of all system messages, in front.
//
// Source: vLLM, _convert_developer_to_system and _consolidate_system_messages.
func withoutDeveloper(messages []message) []message {
	found := false
	for i := range messages {
		if messages[i].role == "developer" {
			found = true
			messages[i].role = "system"
			messages[i].more = messages[i].without("tools")
		}
	}
	if !found {
		return messages
	}
	var contents []string
	rest := make([]message, 1, len(messages)+1)
	merge := false
	for i, m := range messages {
		if m.role != "system" {
			rest = append(rest, m)
			continue
		}
		merge = merge || i > 0
		if text := strings.Join(m.parts, "\n"); text != "" {
			contents = append(contents, text)
		}
	}
	if !merge {
		return messages
	}
	rest[0] = message{role: "system", parts: []string{strings.Join(contents, "\n\n")}}
	return rest
}

func (m *message) without(name string) []jinja.NamedValue {
	var kept []jinja.NamedValue
	for _, field := range m.more {
		if field.Name != name {
			kept = append(kept, field)
		}
	}
	return kept
}
