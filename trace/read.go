package trace

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"time"

	"epp.internal/epp/decision"
)

// headBytes is how much of a file is looked at to tell its form: more than a log
// says before its first line with a time.
const headBytes = 64 << 10

// Read reads a trace in whichever form it has, told by its first bytes; a gzip'd
// one is read through.
func Read(name string, r io.Reader) (*Trace, error) {
	b, err := Unpack(r)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	head, err := b.Peek(headBytes)
	if len(head) == 0 && err != nil && !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	switch {
	case decision.BeginsLog(head):
		return ReadDecisions(name, b)
	case bytes.HasPrefix(head, []byte("{")) && isOpenAILog(head):
		return ReadOpenAILog(name, b)
	case bytes.HasPrefix(head, []byte("{")):
		return ReadMooncake(name, b)
	case bytes.HasPrefix(head, azureColumns[:9]):
		return ReadAzure(name, b)
	case vllmStamp.Match(head):
		return ReadVLLMLog(name, b)
	}
	return nil, fmt.Errorf("%s: begins with %.20q: want a Mooncake trace (JSONL with timestamp, input_length, output_length, hash_ids), an Azure one (CSV with %s), a decision log (JSONL that begins with settings), vLLM's log of requests, or OpenAI requests (JSONL with timestamp, request and usage)", name, head, azureColumns)
}

// Unpack reads through gzip, where a reader begins so. What was packed twice is
// unpacked once.
func Unpack(r io.Reader) (*bufio.Reader, error) {
	b := bufio.NewReaderSize(r, headBytes)
	if head, _ := b.Peek(2); !bytes.Equal(head, []byte{0x1f, 0x8b}) { // what cannot be read fails when it is
		return b, nil
	}
	z, err := gzip.NewReader(b)
	if err != nil {
		return nil, err
	}
	return bufio.NewReaderSize(z, headBytes), nil
}

// Part returns the requests from the share from of the trace's time to the share
// to of it, both in [0, 1], their times from the part's start.
func (t *Trace) Part(from, to float64) *Trace {
	if len(t.Requests) == 0 {
		return t
	}
	last := t.Requests[len(t.Requests)-1].At
	begin, end := time.Duration(from*float64(last)), time.Duration(to*float64(last))
	p := &Trace{Name: t.Name, Cut: t.Cut}
	for _, r := range t.Requests {
		if r.At >= begin && (r.At < end || to >= 1) {
			r.At -= begin
			p.Requests = append(p.Requests, r)
		}
	}
	return p
}
