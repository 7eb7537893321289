package chat

import (
	"bytes"
	"fmt"
	"strings"
	"unicode"

	"epp.internal/epp/openai"
	"epp.internal/epp/third_party/jinja"
)

// A request is a chat as the template gets it.
type request struct {
	variant  *variant
	messages []message
	vars     map[string]jinja.Value // all but messages
	generate bool                   // add_generation_prompt
	resume   bool                   // continue_final_message
}

// request prepares a chat for one of the templates as vLLM does.
func (t *Template) request(b *openai.Body, v *variant, memory *room) (*request, error) {
	if b.Form != openai.Chat {
		return nil, notRenderable("a body of form %v has no messages", b.Form)
	}
	if err := plain(b.Root); err != nil {
		return nil, err
	}
	r := &request{variant: v, vars: make(map[string]jinja.Value, 8+len(t.special))}
	for name, value := range t.special {
		r.vars[name] = value
	}
	for _, name := range [...]string{"tools", "documents"} {
		r.vars[name] = jinja.None()
	}
	tools, err := toolDicts(b.Root.Get("tools"))
	if err != nil {
		return nil, err
	}
	if tools.Kind() == jinja.KindList {
		r.vars["tools"] = tools
	}
	if err := r.options(b.Root); err != nil {
		return nil, err
	}
	messages := b.Root.Get("messages")
	r.messages = make([]message, 0, messages.Len())
	for i, m := range messages.Items() {
		prepared, err := memory.prepare(m, r.variant.parts)
		if err != nil {
			return nil, fmt.Errorf("%w (messages[%d])", err, i)
		}
		r.messages = append(r.messages, prepared)
	}
	if len(r.messages) == 0 {
		return nil, notRenderable("the chat has no messages")
	}
	if !r.variant.developer {
		r.messages = withoutDeveloper(r.messages)
	}
	return r, nil
}

// plain refuses what changes a prompt outside of the template.
func plain(root openai.Value) error {
	for _, key := range [...]string{"chat_template", "truncate_prompt_tokens", "prompt_embeds"} {
		if root.Get(key).Kind() > openai.Null {
			return notRenderable("%s is set", key)
		}
	}
	if special, ok := root.Get("add_special_tokens").Truth(); special || !ok {
		return notRenderable("add_special_tokens is set")
	}
	if root.Get("kv_transfer_params").Get("prompt_token_ids").Kind() > openai.Null {
		return notRenderable("the prompt comes as token IDs from another engine")
	}
	return nil
}

// hostNames are the parameters of the functions that a template's variables pass
// through: a request that names one of them is an error there.
var hostNames = map[string]bool{
	"chat_template": true, "tokenize": true, "conversation": true, "messages": true, "model_config": true, "tokenizer": true,
	"tools": true, "documents": true, "padding": true, "truncation": true, "max_length": true, "return_tensors": true, "return_dict": true,
	"return_assistant_tokens_mask": true, "tokenizer_kwargs": true, "compiled_template": true, "strftime_now": true,
}

// options reads the request's fields that the template sees. Those of
// chat_template_kwargs come first, the request's own ones win over them, and null
// or "auto" count as not given.
//
// Source: vLLM, ChatCompletionRequest.build_chat_params and merge_kwargs.
func (r *request) options(root openai.Value) error {
	kwargs := root.Get("chat_template_kwargs")
	if k := kwargs.Kind(); k > openai.Null && k != openai.Object {
		return notRenderable("chat_template_kwargs is %s", k)
	}
	for key, v := range kwargs.Members() {
		if hostNames[key] {
			return notRenderable("chat_template_kwargs has %q", key)
		}
		if given(v) {
			r.vars[key] = toJinja(v)
		}
	}
	var ok bool
	if r.generate, ok = root.Get("add_generation_prompt").Truth(); !ok {
		return notRenderable("add_generation_prompt is no boolean")
	}
	r.generate = r.generate || root.Get("add_generation_prompt").Kind() == openai.Missing
	if r.resume, ok = root.Get("continue_final_message").Truth(); !ok || r.resume && r.generate {
		return notRenderable("continue_final_message needs add_generation_prompt to be false")
	}
	r.vars["add_generation_prompt"] = jinja.NewBool(r.generate)
	delete(r.vars, "continue_final_message")
	if docs := root.Get("documents"); given(docs) {
		if docs.Kind() != openai.List {
			return notRenderable("documents is %s", docs.Kind())
		}
		r.vars["documents"] = toJinja(docs)
	}
	effort := root.Get("reasoning_effort")
	if !given(effort) {
		return nil
	}
	switch effort.String() {
	case "none", "minimal", "low", "medium", "high", "xhigh", "max":
	default:
		return notRenderable("reasoning_effort is %.40s", effort.Raw())
	}
	r.vars["reasoning_effort"] = jinja.NewString(effort.String())
	if kwargs.Get("enable_thinking").Kind() == openai.Missing {
		r.vars["enable_thinking"] = jinja.NewBool(effort.String() != "none")
	}
	return nil
}

// given reports whether an option has a value: null and "auto" are none.
func given(v openai.Value) bool { return v.Kind() > openai.Null && v.String() != "auto" }

// resumeTag marks where the final message is to be continued.
//
// Source: transformers, render_jinja_template.
const resumeTag = "CONTINUE_FINAL_MESSAGE_TAG "

// append renders the template, appends its text to dst and, if the final message
// is to be continued, cuts what the template put behind it. It returns dst as it
// was beside an error.
func (r *request) append(dst []byte, t *Template) ([]byte, error) {
	last := &r.messages[len(r.messages)-1]
	var final string
	if r.resume {
		var ok bool
		if final, ok = last.tag(); !ok {
			return dst, notRenderable("the final message has no text to continue")
		}
		if !strings.Contains(r.variant.source, "content") {
			return dst, notRenderable("the template does not use \"content\", which is to be continued")
		}
	}
	messages := make([]jinja.Value, len(r.messages))
	for i := range r.messages {
		messages[i] = r.messages[i].dict()
	}
	r.vars["messages"] = jinja.NewList(messages)
	r.vars["strftime_now"] = t.strftimeNow()
	from := len(dst)
	out, err := r.variant.jinja.Append(dst, r.vars)
	if err != nil || !r.resume {
		return out, err
	}
	text := out[from:]
	at := bytes.LastIndex(text, []byte(strings.TrimSpace(resumeTag)))
	if at < 0 || !bytes.Contains(text, []byte(strings.TrimFunc(final, unicode.IsSpace))) {
		return dst, notRenderable("the template changes the final message, which is to be continued")
	}
	if bytes.HasPrefix(text[at:], []byte(resumeTag)) {
		return out[:from+at], nil
	}
	return out[:from+len(bytes.TrimRightFunc(text[:at], unicode.IsSpace))], nil
}

// toJinja converts a value of a body, in its own order of keys, with its own
// numbers.
func toJinja(v openai.Value) jinja.Value {
	switch v.Kind() {
	case openai.Bool:
		return jinja.NewBool(v.Bool())
	case openai.Number:
		return jinja.NewNumber(v.Number())
	case openai.String:
		return jinja.NewString(v.String())
	case openai.List:
		items := make([]jinja.Value, 0, v.Len())
		for _, item := range v.Items() {
			items = append(items, toJinja(item))
		}
		return jinja.NewList(items)
	case openai.Object:
		d := jinja.NewDict()
		for key, member := range v.Members() {
			d.AsDict().Set(key, toJinja(member))
		}
		return d
	}
	return jinja.None()
}

// toolDicts returns the tools as vLLM writes them down again: of each the known
// keys in their own order, description and parameters always there.
//
// Source: vLLM, ChatCompletionToolsParam and FunctionDefinition.
func toolDicts(tools openai.Value) (jinja.Value, error) {
	switch tools.Kind() {
	case openai.Missing, openai.Null:
		return jinja.None(), nil
	case openai.List:
	default:
		return jinja.None(), notRenderable("tools is %s", tools.Kind())
	}
	items := make([]jinja.Value, 0, tools.Len())
	for i, tool := range tools.Items() {
		f := tool.Get("function")
		kind := tool.Get("type")
		description, parameters := f.Get("description"), f.Get("parameters")
		switch {
		case f.Get("name").Kind() != openai.String, kind.Kind() != openai.Missing && kind.String() != "function",
			description.Kind() > openai.Null && description.Kind() != openai.String,
			parameters.Kind() > openai.Null && parameters.Kind() != openai.Object:
			return jinja.None(), notRenderable("tools[%d] is no function", i)
		}
		function := jinja.NewDict()
		function.AsDict().Set("name", toJinja(f.Get("name")))
		function.AsDict().Set("description", toJinja(description))
		function.AsDict().Set("parameters", toJinja(parameters))
		dict := jinja.NewDict()
		dict.AsDict().Set("type", jinja.NewString("function"))
		dict.AsDict().Set("function", function)
		if err := toolFlag(function, "strict", f.Get("strict")); err != nil {
			return jinja.None(), err
		}
		deferred := f.Get("defer_loading")
		if deferred.Kind() <= openai.Null {
			deferred = tool.Get("defer_loading")
		}
		if err := toolFlag(function, "defer_loading", deferred); err != nil {
			return jinja.None(), err
		}
		if err := toolFlag(dict, "defer_loading", tool.Get("defer_loading")); err != nil {
			return jinja.None(), err
		}
		items = append(items, dict)
	}
	return jinja.NewList(items), nil
}

// toolFlag sets a boolean of a tool where the client gave one.
func toolFlag(d jinja.Value, key string, v openai.Value) error {
	if v.Kind() <= openai.Null {
		return nil
	}
	flag, ok := v.Truth()
	if !ok {
		return notRenderable("a tool's %s is no boolean", key)
	}
	d.AsDict().Set(key, jinja.NewBool(flag))
	return nil
}
