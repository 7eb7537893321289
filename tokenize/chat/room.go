package chat

import (
	"unsafe"

	"epp.internal/epp/openai"
)

// maxRoomBytes bounds what is kept of a room for the next rendering.
const maxRoomBytes = 4 << 20

// A room is the memory of one rendering, used again by later ones. What is made of
// it lives as long as the rendering.
type room struct {
	content []byte // the texts of messages, one behind the other
	prompt  []byte
}

// open makes room for the texts of a body of size bytes.
func (r *room) open(size int) {
	if cap(r.content) < size {
		r.content = make([]byte, 0, size)
	}
	r.content = r.content[:0]
}

// close gives back what is too large to keep.
func (r *room) close() {
	if cap(r.content) > maxRoomBytes {
		r.content = nil
	}
	if cap(r.prompt) > maxRoomBytes {
		r.prompt = nil
	}
}

// text is v.String() in the room's memory. A body's strings together are not
// longer than the body; where a string is read twice and there is no room left, it
// gets memory of its own.
func (r *room) text(v openai.Value) string {
	from := len(r.content)
	if !v.Escaped() || cap(r.content)-from < len(v.Raw()) {
		return v.String()
	}
	r.content = v.AppendText(r.content)
	text := r.content[from:]
	return unsafe.String(unsafe.SliceData(text), len(text))
}
