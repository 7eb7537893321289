package openai

import (
	"fmt"
	"strings"
)

// responses converts a body of OpenAI's responses.
//
// Source: vLLM, responses/utils.py: construct_input_messages, construct_tool_dicts.
func (w *chatWriter) responses(root Value) error {
	for _, key := range [...]string{"previous_response_id", "previous_input_messages", "prompt", "conversation"} {
		if root.Get(key).Kind() > Null {
			return fmt.Errorf("%s is set: the engine holds a part of the conversation", key)
		}
	}
	if text := root.Get("instructions"); text.String() != "" {
		w.add(chatMessage{role: "system", content: text.Raw()})
	}
	input := root.Get("input")
	resume := false
	switch input.Kind() {
	case String:
		w.add(chatMessage{role: "user", content: input.Raw()})
	case List:
		for i, item := range input.Items() {
			if err := w.item(item); err != nil {
				return fmt.Errorf("input[%d]: %w", i, err)
			}
			kind, status := item.Get("type"), item.Get("status").String()
			resume = (kind.Kind() == Missing || kind.String() == "message" || kind.String() == "reasoning") &&
				(status == "in_progress" || status == "incomplete")
		}
	default:
		return fmt.Errorf("input is %s", input.Kind())
	}
	if resume {
		w.field("add_generation_prompt", "false")
		w.field("continue_final_message", "true")
	}
	w.copy(root, "chat_template_kwargs")
	if effort := root.Get("reasoning").Get("effort"); effort.Kind() > Null {
		w.field("reasoning_effort", effort.Raw())
	}
	return w.responseTools(root.Get("tools"))
}

// item converts one item of the input. What an assistant thought, said and
// called stands in items of its own and becomes one message.
func (w *chatWriter) item(item Value) error {
	role, kind := item.Get("role").String(), item.Get("type").String()
	switch {
	case kind == "function_call":
		if item.Get("namespace").Kind() > Null {
			return fmt.Errorf("a call in a namespace")
		}
		arguments := item.Get("arguments").Raw()
		if arguments == "" {
			arguments = `""`
		}
		call := toolCall(item.Get("call_id"), item.Get("name"), arguments)
		if last := w.assistant(); last != nil {
			last.calls = append(last.calls, call)
			return nil
		}
		w.add(chatMessage{role: "assistant", calls: []string{call}})
	case kind == "reasoning":
		return w.reasoning(item)
	case kind == "function_call_output":
		w.add(chatMessage{role: "tool", content: item.Get("output").Raw(), callID: item.Get("call_id").Raw()})
	case role == "assistant":
		text := item.Get("content")
		if text.Kind() == List {
			text = text.At(0).Get("text")
		}
		if text.Kind() != String {
			return fmt.Errorf("an assistant's message has no text")
		}
		if last := w.assistant(); last != nil && last.content == "" {
			last.content = text.Raw()
			return nil
		}
		w.add(chatMessage{role: role, content: text.Raw()})
	case role != "":
		w.add(chatMessage{raw: item.Raw()})
	default:
		return fmt.Errorf("an item is of type %.40q", kind)
	}
	return nil
}

// reasoning adds what the model thought to the message that it belongs to.
func (w *chatWriter) reasoning(item Value) error {
	if item.Get("encrypted_content").String() != "" {
		return fmt.Errorf("reasoning is encrypted")
	}
	text := `""`
	for _, key := range [...]string{"content", "summary"} {
		if list := item.Get(key); list.Len() > 0 {
			if text = list.At(0).Get("text").Raw(); text == "" {
				return fmt.Errorf("reasoning has no text")
			}
			break
		}
	}
	if last := w.assistant(); last != nil && last.reasoning == "" {
		last.reasoning = text
		return nil
	}
	w.add(chatMessage{role: "assistant", reasoning: text})
	return nil
}

// assistant returns the last message if it is an assistant's, else nil.
func (w *chatWriter) assistant() *chatMessage {
	if n := len(w.out); n > 0 && w.out[n-1].role == "assistant" {
		return &w.out[n-1]
	}
	return nil
}

// responseTools converts the tools that a template shows: the functions. Tools
// that the engine runs itself are not in the prompt.
func (w *chatWriter) responseTools(tools Value) error {
	var list []string
	for _, t := range tools.Items() {
		switch kind := t.Get("type").String(); kind {
		case "function":
			list = append(list, function(t.Get("name").String(), "description", t.Get("description").Raw(),
				"parameters", t.Get("parameters").Raw(), "strict", t.Get("strict").Raw(), "defer_loading", t.Get("defer_loading").Raw()))
		case "custom", "namespace":
			return fmt.Errorf("a tool is of type %q", kind)
		}
	}
	if tools.Len() > 0 {
		w.field("tools", "["+strings.Join(list, ",")+"]")
	}
	return nil
}
