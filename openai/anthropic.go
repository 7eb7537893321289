package openai

import (
	"fmt"
	"strings"
)

// messages converts a body in the form of Anthropic.
//
// Source: vLLM, AnthropicServingMessages.to_chat_completion_request.
func (w *chatWriter) messages(root Value, mergeSystem bool) error {
	messages := root.Get("messages")
	system, err := anthropicSystem(root.Get("system"))
	if err != nil {
		return err
	}
	if mergeSystem {
		for _, m := range messages.Items() {
			if m.Get("role").String() == "system" {
				text, err := inlineSystem(m.Get("content"))
				if err != nil {
					return err
				}
				system += text
			}
		}
	}
	if system != "" {
		w.add(chatMessage{role: "system", content: string(quote(system))})
	}
	for i, m := range messages.Items() {
		if m.Get("role").String() == "system" && mergeSystem {
			continue
		}
		if err := w.anthropicMessage(m); err != nil {
			return fmt.Errorf("messages[%d]: %w", i, err)
		}
	}
	w.copy(root, "chat_template_kwargs")
	effort := root.Get("output_config").Get("effort")
	switch {
	case root.Get("thinking").Get("type").String() == "disabled":
		w.field("reasoning_effort", `"none"`)
	case effort.Kind() > Null:
		w.field("reasoning_effort", effort.Raw())
	}
	return w.anthropicTools(root.Get("tools"))
}

// billingHeader begins a text of Claude Code that differs in every request: the
// engine drops it.
const billingHeader = "x-anthropic-billing-header"

// anthropicSystem returns the text of the top-level system field.
func anthropicSystem(v Value) (string, error) {
	if v.Kind() == String {
		return v.String(), nil // kept whole here, as the engine does
	}
	return inlineSystem(v)
}

// inlineSystem returns the text of a system message's content, empty for none.
func inlineSystem(v Value) (string, error) {
	switch v.Kind() {
	case Missing, Null:
		return "", nil
	case String:
		if text := v.String(); !strings.HasPrefix(text, billingHeader) {
			return text, nil
		}
		return "", nil
	case List:
	default:
		return "", fmt.Errorf("the system text is %s", v.Kind())
	}
	var out strings.Builder
	for _, block := range v.Items() {
		switch block.Get("type").String() {
		case "text":
			if text := block.Get("text").String(); !strings.HasPrefix(text, billingHeader) {
				out.WriteString(text)
			}
		default:
			return "", fmt.Errorf("a system block is of type %.40s", block.Get("type").Raw())
		}
	}
	return out.String(), nil
}

// anthropicMessage converts one message. The results of tools that it holds
// become messages of their own, before it.
func (w *chatWriter) anthropicMessage(m Value) error {
	role, content := m.Get("role").String(), m.Get("content")
	switch {
	case role == "system":
		text, err := inlineSystem(content)
		if err == nil && text != "" {
			w.add(chatMessage{role: "system", content: string(quote(text))})
		}
		return err
	case content.Kind() == String:
		w.add(chatMessage{role: role, content: content.Raw()})
		return nil
	case content.Kind() != List:
		return fmt.Errorf("content is %s", content.Kind())
	}
	out := chatMessage{role: role}
	var parts, reasoning []string
	onlyText := ""
	for _, block := range content.Items() {
		switch kind := block.Get("type").String(); kind {
		case "text":
			if text := block.Get("text"); text.String() != "" {
				parts = append(parts, `{"type":"text","text":`+text.Raw()+`}`)
				onlyText = text.Raw()
			}
		case "image":
			parts = append(parts, imagePart(block.Get("source")))
			onlyText = ""
		case "thinking":
			if text := block.Get("thinking"); text.Kind() == String {
				reasoning = append(reasoning, text.String())
			}
		case "redacted_thinking", "tool_reference":
		case "tool_use":
			arguments := "{}"
			if input := block.Get("input"); input.Kind() == Object {
				arguments = input.Raw()
			}
			out.calls = append(out.calls, toolCall(block.Get("id"), block.Get("name"), arguments))
		case "tool_result":
			if role != "user" {
				return fmt.Errorf("a tool's result is in a message of role %.40q", role)
			}
			if err := w.toolResult(block); err != nil {
				return err
			}
		default:
			return fmt.Errorf("a block is of type %.40q", kind)
		}
	}
	if len(reasoning) > 0 {
		out.reasoning = string(quote(strings.Join(reasoning, "")))
	}
	switch {
	case len(parts) == 1 && onlyText != "":
		out.content = onlyText
	case len(parts) > 0:
		out.content = "[" + strings.Join(parts, ",") + "]"
	case role == "user": // nothing is left of it
		return nil
	}
	w.add(out)
	return nil
}

// imagePart returns an image's source as a part of a chat's content.
func imagePart(source Value) string {
	url := source.Get("url").String()
	if source.Get("type").String() != "url" {
		media := "image/jpeg"
		if v := source.Get("media_type"); v.Kind() == String {
			media = v.String()
		}
		url = "data:" + media + ";base64," + source.Get("data").String()
	}
	return `{"type":"image_url","image_url":{"url":` + string(quote(url)) + `}}`
}

// toolResult writes the message of a tool's result, and one more for the images
// in it.
func (w *chatWriter) toolResult(block Value) error {
	text, images := "", []string(nil)
	switch content := block.Get("content"); content.Kind() {
	case Missing, Null:
	case String:
		text = content.String()
	case List:
		var lines []string
		for _, item := range content.Items() {
			switch kind := item.Get("type").String(); kind {
			case "text":
				lines = append(lines, item.Get("text").String())
			case "image":
				images = append(images, imagePart(item.Get("source")))
			default:
				return fmt.Errorf("a tool's result holds a block of type %.40q", kind)
			}
		}
		text = strings.Join(lines, "\n")
	default:
		return fmt.Errorf("a tool's result is %s", content.Kind())
	}
	w.add(chatMessage{role: "tool", content: string(quote(text)), callID: string(quote(block.Get("tool_use_id").String()))})
	if len(images) > 0 {
		w.add(chatMessage{role: "user", content: "[" + strings.Join(images, ",") + "]"})
	}
	return nil
}

// anthropicTools converts the tools. A schema without a type is an object's.
func (w *chatWriter) anthropicTools(tools Value) error {
	if tools.Kind() <= Null {
		return nil
	}
	var list []string
	for i, t := range tools.Items() {
		schema := t.Get("input_schema")
		if schema.Kind() != Object || t.Get("name").Kind() != String {
			return fmt.Errorf("tools[%d] has no name or no input_schema", i)
		}
		parameters := schema.Raw()
		if schema.Get("type").Kind() == Missing {
			body := strings.TrimSpace(parameters[1 : len(parameters)-1])
			if body != "" {
				body += ","
			}
			parameters = "{" + body + `"type":"object"}`
		}
		list = append(list, function(t.Get("name").String(), "description", t.Get("description").Raw(),
			"parameters", parameters, "strict", t.Get("strict").Raw(), "defer_loading", t.Get("defer_loading").Raw()))
	}
	w.field("tools", "["+strings.Join(list, ",")+"]")
	return nil
}
