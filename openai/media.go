package openai

import (
	"crypto/sha256"
	"encoding/hex"
	"slices"
)

// Media is one picture, sound or film in a chat, as it is referred to. Nothing
// of it is fetched or decoded.
type Media struct {
	// ID names what is referred to: the same URL, data or uuid has the same ID,
	// 32 hex digits.
	ID string
	// Message is the index of its message.
	Message int

	start, end uint32 // of the part
	first      uint32 // where the message's content begins, behind its bracket
}

// mediaKeys are the members by which a content part refers to media, in the order
// in which an engine looks for them.
//
// Source: vLLM, MM_PARSER_MAP and _parse_chat_message_content_mm_part.
var mediaKeys = [...]string{"image_url", "image_pil", "image_embeds", "audio_embeds", "video_embeds", "audio_url", "input_audio", "video_url"}

// Media returns the media of a body of form Chat, in order.
func (b *Body) Media() []Media {
	if b.Form != Chat {
		return nil
	}
	var found []Media
	for i, m := range b.Root.Get("messages").Items() {
		content := m.Get("content")
		if content.Kind() != List {
			continue
		}
		for _, part := range content.Items() {
			if id, ok := mediaID(part); ok {
				n := &part.doc.nodes[part.i]
				found = append(found, Media{ID: id, Message: i, start: n.start, end: n.end, first: content.doc.nodes[content.i].start + 1})
			}
		}
	}
	return found
}

// mediaID returns the ID of a content part, and whether it refers to media. With a
// uuid, the client's own name for it, the data may be null: the engine has it.
func mediaID(part Value) (string, bool) {
	id := part.Get("uuid")
	for _, key := range mediaKeys {
		v := part.Get(key)
		if v.Kind() == Missing || v.Kind() == Null && id.Kind() != String {
			continue
		}
		if id.Kind() == String {
			v = id
		} else if url := v.Get("url"); url.Kind() == String {
			v = url
		}
		text := v.String()
		if text == "" {
			text = v.Raw()
		}
		sum := sha256.Sum256([]byte(key + "\x00" + text))
		return hex.EncodeToString(sum[:16]), true
	}
	return "", false
}

// WithText returns the body with texts in the place of media: text(i) for
// media[i], which are all of [Body.Media]. With front set the texts of a message
// come before all else in it.
func (b *Body) WithText(media []Media, front bool, text func(i int) string) []byte {
	part := func(s string) []byte { return slices.Concat([]byte(`{"type":"text","text":`), quote(s), []byte("}")) }
	out := make([]byte, 0, min(len(b.src), 64<<10)+len(media)*80)
	at := uint32(0)
	for i, m := range media {
		if front && (i == 0 || media[i-1].Message != m.Message) {
			out = append(out, b.src[at:m.first]...)
			at = m.first
			for k := i; k < len(media) && media[k].Message == m.Message; k++ {
				out = append(append(out, part(text(k))...), ',')
			}
		}
		out = append(out, b.src[at:m.start]...)
		at = m.end
		if front {
			out = append(out, part("")...)
		} else {
			out = append(out, part(text(i))...)
		}
	}
	return append(out, b.src[at:]...)
}
