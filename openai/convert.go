package openai

import (
	"fmt"
	"strings"
)

// AsChat returns the chat that an engine makes of a body of another form before
// it renders the prompt: of Messages, of Responses, and of Embeddings with
// messages; a body of form Chat is returned as it is. The chat is for
// tokenizing alone, and is never sent in the client's stead.
//
// mergeSystem says what becomes of a Messages body's system messages behind the
// first place: true where the model's template refuses them, so that the engine
// merges them into the first; see [Body.InlineSystem].
//
// An error says why the engine alone can tell the prompt: a part of the
// conversation is not in the body, or is of a kind whose rendering is not known.
func (b *Body) AsChat(mergeSystem bool) (*Body, error) {
	w := &chatWriter{}
	var err error
	switch b.Form {
	case Chat:
		return b, nil
	case Messages:
		err = w.messages(b.Root, mergeSystem)
	case Responses:
		err = w.responses(b.Root)
	case Embeddings:
		err = w.embeddings(b.Root)
	default:
		err = fmt.Errorf("a body of form %v is no chat", b.Form)
	}
	if err != nil {
		return nil, err
	}
	text := w.text(b)
	chat, fault := Read("/v1/chat/completions", []byte(text))
	if chat == nil {
		return nil, fault
	}
	return chat, nil
}

// InlineSystem reports whether a Messages body has a system message behind its
// first place, so that AsChat depends on the template.
func (b *Body) InlineSystem() bool {
	if b.Form != Messages {
		return false
	}
	for _, m := range b.Root.Get("messages").Items() {
		if m.Get("role").String() == "system" {
			return true
		}
	}
	return false
}

// A chatWriter writes the body of a chat. Texts that are JSON already are kept
// as the client wrote them, numbers and order of keys included.
type chatWriter struct {
	out []chatMessage
	// fields are further members of the body, as JSON, each with its comma.
	fields strings.Builder
}

// A chatMessage is one message; the fields but role are JSON or empty.
type chatMessage struct {
	role, content, reasoning, callID string
	calls                            []string
	raw                              string // the whole message, if not empty
}

func (w *chatWriter) add(m chatMessage) { w.out = append(w.out, m) }

// field adds a member to the body.
func (w *chatWriter) field(key, json string) {
	fmt.Fprintf(&w.fields, `,%q:%s`, key, json)
}

// copy adds a member as the client wrote it, if it is there.
func (w *chatWriter) copy(root Value, keys ...string) {
	for _, key := range keys {
		if v := root.Get(key); v.Kind() > Null {
			w.field(key, v.Raw())
		}
	}
}

// text returns the body.
func (w *chatWriter) text(b *Body) string {
	var s strings.Builder
	s.WriteString(`{"model":`)
	s.Write(quote(b.Model))
	s.WriteString(`,"messages":[`)
	for i, m := range w.out {
		if i > 0 {
			s.WriteByte(',')
		}
		m.write(&s)
	}
	s.WriteByte(']')
	s.WriteString(w.fields.String())
	s.WriteByte('}')
	return s.String()
}

func (m *chatMessage) write(s *strings.Builder) {
	if m.raw != "" {
		s.WriteString(m.raw)
		return
	}
	s.WriteString(`{"role":`)
	s.Write(quote(m.role))
	for _, field := range [...][2]string{{"content", m.content}, {"reasoning", m.reasoning}, {"tool_call_id", m.callID}} {
		if field[1] != "" {
			fmt.Fprintf(s, `,%q:%s`, field[0], field[1])
		}
	}
	if len(m.calls) > 0 {
		s.WriteString(`,"tool_calls":[`)
		s.WriteString(strings.Join(m.calls, ","))
		s.WriteByte(']')
	}
	s.WriteByte('}')
}

// toolCall returns a call of a function; arguments are JSON.
func toolCall(id, name Value, arguments string) string {
	text := `{"type":"function"`
	if id.Kind() > Null {
		text += `,"id":` + id.Raw()
	}
	return text + `,"function":{"name":` + string(quote(name.String())) + `,"arguments":` + arguments + `}}`
}

// function returns a tool, from its name and, as JSON, what else there is of it.
func function(name string, more ...string) string {
	text := `{"type":"function","function":{"name":` + string(quote(name))
	for i := 0; i+1 < len(more); i += 2 {
		if more[i+1] != "" {
			text += `,"` + more[i] + `":` + more[i+1]
		}
	}
	return text + `}}`
}

// embeddings converts a chat that is to be embedded: no answer is begun, unless
// the client asks for it.
//
// Source: vLLM, EmbeddingChatRequest.
func (w *chatWriter) embeddings(root Value) error {
	messages := root.Get("messages")
	if messages.Kind() != List {
		return fmt.Errorf("the body has no messages")
	}
	if root.Get("add_special_tokens").Bool() {
		return fmt.Errorf("add_special_tokens is set")
	}
	for _, m := range messages.Items() {
		w.add(chatMessage{raw: m.Raw()})
	}
	if root.Get("add_generation_prompt").Kind() == Missing {
		w.field("add_generation_prompt", "false")
	}
	w.copy(root, "add_generation_prompt", "continue_final_message", "chat_template", "chat_template_kwargs", "truncate_prompt_tokens")
	return nil
}
