package trace

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"fmt"
	"io"
	"time"
)

// Read reads a trace in whichever form it has, told by its first bytes; a gzip'd
// one is read through.
func Read(name string, r io.Reader) (*Trace, error) {
	b := bufio.NewReader(r)
	if head, _ := b.Peek(2); bytes.Equal(head, []byte{0x1f, 0x8b}) {
		z, err := gzip.NewReader(b)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		b = bufio.NewReader(z) // what was packed twice is in no known form
	}
	head, _ := b.Peek(len(azureColumns)) // what cannot be read fails below
	switch {
	case bytes.HasPrefix(head, []byte("{")):
		return ReadMooncake(name, b)
	case bytes.HasPrefix(head, azureColumns[:9]):
		return ReadAzure(name, b)
	}
	return nil, fmt.Errorf("%s: begins with %.20q: want a Mooncake trace (JSONL with timestamp, input_length, output_length, hash_ids) or an Azure one (CSV with %s)", name, head, azureColumns)
}

// Part returns the requests from the share from of the trace's time to the share
// to of it, both in [0, 1], their times from the part's start.
func (t *Trace) Part(from, to float64) *Trace {
	if len(t.Requests) == 0 {
		return t
	}
	last := t.Requests[len(t.Requests)-1].At
	begin, end := time.Duration(from*float64(last)), time.Duration(to*float64(last))
	p := &Trace{Name: t.Name}
	for _, r := range t.Requests {
		if r.At >= begin && (r.At < end || to >= 1) {
			r.At -= begin
			p.Requests = append(p.Requests, r)
		}
	}
	return p
}
