package trace

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"time"
)

// The bounds of what is read.
const (
	// MaxLineBytes is the longest line of a trace: 1 M tokens in blocks of 16
	// have 65,536 ids.
	MaxLineBytes = 4 << 20
	// MaxRequests is the most requests of a trace.
	MaxRequests = 4 << 20
	// MaxTokens is the most tokens of a prompt, and of an answer.
	MaxTokens = 4 << 20
)

// Trace is a list of requests.
type Trace struct {
	// Name says where it comes from; generated ones say so.
	Name     string
	Requests []Request
	// Cut is how many lines of a decision log were cut off while they were written,
	// and are left out.
	Cut int
}

// Duration is the last request's arrival.
func (t *Trace) Duration() time.Duration {
	if len(t.Requests) == 0 {
		return 0
	}
	return t.Requests[len(t.Requests)-1].At
}

// Request is one request of a trace.
type Request struct {
	// At is its arrival, from the trace's start.
	At time.Duration
	// Prompt is what is asked; together its segments have a token at least.
	Prompt []Segment
	// Answer is what is answered. A later turn of the same conversation has it in
	// its prompt, where the trace tells so.
	Answer Segment
	// Adapter is the LoRA adapter that is asked for, empty for the base model.
	Adapter string
	// Session tells requests of one conversation from others, as far as the trace
	// tells: what a router that hashes a header would hash.
	Session uint64
}

// Segment is a run of tokens that has a name.
type Segment struct {
	ID     uint64
	Tokens int
}

// PromptTokens is the prompt's length.
func (r *Request) PromptTokens() int {
	n := 0
	for _, s := range r.Prompt {
		n += s.Tokens
	}
	return n
}

// AppendPrompt appends the prompt's token IDs to dst.
func (r *Request) AppendPrompt(dst []uint32) []uint32 {
	for _, s := range r.Prompt {
		dst = s.AppendTokens(dst)
	}
	return dst
}

// vocabulary bounds the token IDs that are made: a model's has about 2^17, and
// 2^24 keeps blocks of different segments apart all the more.
const vocabulary = 1<<24 - 1

// AppendTokens appends the segment's token IDs to dst: the high bits of a walk in
// equal steps from a start that the name gives.
func (s Segment) AppendTokens(dst []uint32) []uint32 {
	x := mix(s.ID)
	for range s.Tokens {
		x += 0x9E3779B97F4A7C15
		dst = append(dst, uint32(x>>40)&vocabulary)
	}
	return dst
}

// mix spreads near names over all numbers: SplitMix64's finisher.
func mix(x uint64) uint64 {
	x += 0x9E3779B97F4A7C15
	x = (x ^ x>>30) * 0xBF58476D1CE4E5B9
	x = (x ^ x>>27) * 0x94D049BB133111EB
	return x ^ x>>31
}

// Names of segments are numbers: the high byte says of what kind, so that no two
// kinds meet.
const (
	sharedKind uint64 = 0 // a prompt's part that the trace names itself
	answerKind uint64 = 1 << 56
	turnKind   uint64 = 2 << 56 // what a user says
)

// Stats are a trace's figures.
type Stats struct {
	Requests                   int
	Duration                   time.Duration
	PromptTokens, AnswerTokens int
	// SharedTokens are the prompt tokens in segments that an earlier request had
	// behind the same segments: what an endless cache would hold.
	SharedTokens int
}

// Stats counts the trace.
func (t *Trace) Stats() Stats {
	st := Stats{Requests: len(t.Requests)}
	seen := map[uint64]bool{}
	for i := range t.Requests {
		r := &t.Requests[i]
		st.Duration = r.At
		st.PromptTokens += r.PromptTokens()
		st.AnswerTokens += r.Answer.Tokens
		path, leading := uint64(0), true
		for _, s := range r.Prompt {
			path = mix(path ^ mix(s.ID) + uint64(s.Tokens))
			if leading = leading && seen[path]; leading {
				st.SharedTokens += s.Tokens
			}
			seen[path] = true
		}
	}
	return st
}

// lines calls f with every line that is not empty, until one is at fault.
func lines(name string, r io.Reader, f func(line int, text []byte) error) error {
	s := bufio.NewScanner(r)
	s.Buffer(make([]byte, 0, 64<<10), MaxLineBytes)
	n := 0
	for s.Scan() {
		n++
		if len(s.Bytes()) == 0 {
			continue
		}
		if err := f(n, s.Bytes()); err != nil {
			if s.Err() != nil && !s.Scan() { // the last line is what could be read of one
				n--
				break
			}
			return fmt.Errorf("%s:%d: %w", name, n, err)
		}
	}
	switch err := s.Err(); {
	case errors.Is(err, bufio.ErrTooLong):
		return fmt.Errorf("%s:%d: line is longer than %d bytes", name, n+1, MaxLineBytes)
	case errors.Is(err, io.ErrUnexpectedEOF):
		return fmt.Errorf("%s: is cut off after line %d: %w", name, n, err)
	case err != nil:
		return fmt.Errorf("%s: %w", name, err)
	}
	return nil
}

// checkLengths refuses lengths that no request has.
func checkLengths(prompt, answer int) error {
	switch {
	case prompt < 1 || prompt > MaxTokens:
		return fmt.Errorf("prompt of %d tokens: want 1–%d", prompt, MaxTokens)
	case answer < 0 || answer > MaxTokens:
		return fmt.Errorf("answer of %d tokens: want 0–%d", answer, MaxTokens)
	}
	return nil
}
