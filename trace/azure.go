package trace

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"strconv"
	"time"
)

// The model of the prefixes that an Azure trace does not tell. A guess, and said
// so wherever the trace is named: figures on it are for arrivals and lengths.
const (
	// azureThinks is the shortest time between a conversation's turns, azureForgets
	// the longest.
	azureThinks  = 10 * time.Second
	azureForgets = 10 * time.Minute
	// azureGrows is how many tokens more than the turn before and its answer a
	// further turn has at most.
	azureGrows = 512
)

// ReadAzure reads Azure's LLM inference traces, three columns with a head:
//
//	TIMESTAMP,ContextTokens,GeneratedTokens
//	2023-11-16 18:15:46.6805900,374,44
//
// They hold lengths only. Which prompts share a prefix is a model: a request goes
// on a conversation that is 10 s to 10 min old, whose last prompt and answer
// together are shorter than its prompt by at most 512 tokens, the longest of
// such; it then begins with all of that. Every other one shares nothing.
func ReadAzure(name string, r io.Reader) (*Trace, error) {
	t := &Trace{Name: name}
	var first time.Time
	var open conversations
	err := lines(name, r, func(line int, text []byte) error {
		if line == 1 {
			return azureHead(text)
		}
		at, prompt, answer, err := azureRow(text)
		if err != nil {
			return err
		}
		if len(t.Requests) == 0 {
			first = at
		}
		since := at.Sub(first)
		if n := len(t.Requests); n > 0 && since < t.Requests[n-1].At {
			return fmt.Errorf("TIMESTAMP %q is before the one of the row above: rows must be in the order of time", text)
		}
		if since > MaxDuration || len(t.Requests) == MaxRequests {
			return fmt.Errorf("a trace ends after %v or %d requests", MaxDuration, MaxRequests)
		}
		t.Requests = append(t.Requests, open.request(uint64(len(t.Requests)), since, prompt, answer))
		return nil
	})
	if err != nil {
		return nil, err
	}
	if len(t.Requests) == 0 {
		return nil, fmt.Errorf("%s: no request in it", name)
	}
	return t, nil
}

var azureColumns = []byte("TIMESTAMP,ContextTokens,GeneratedTokens")

func azureHead(text []byte) error {
	if !bytes.Equal(bytes.TrimSpace(text), azureColumns) {
		return fmt.Errorf("head is %.80q: want %q", text, azureColumns)
	}
	return nil
}

func azureRow(text []byte) (at time.Time, prompt, answer int, err error) {
	columns := bytes.Split(bytes.TrimSpace(text), []byte(","))
	if len(columns) != 3 {
		return at, 0, 0, fmt.Errorf("row has %d columns: want 3", len(columns))
	}
	if at, err = time.Parse("2006-01-02 15:04:05.999999999", string(columns[0])); err != nil {
		return at, 0, 0, fmt.Errorf("TIMESTAMP %.80q is no time: want 2023-11-16 18:15:46.6805900", columns[0])
	}
	var wrong [2]error
	prompt, wrong[0] = strconv.Atoi(string(columns[1]))
	answer, wrong[1] = strconv.Atoi(string(columns[2]))
	if err := errors.Join(wrong[:]...); err != nil {
		return at, 0, 0, fmt.Errorf("lengths %.40q and %.40q: want whole numbers", columns[1], columns[2])
	}
	return at, prompt, answer, checkLengths(prompt, answer)
}

// conversations are those of a lengths-only trace that may go on.
type conversations struct{ open []conversation }

type conversation struct {
	at      time.Duration
	history []Segment // its last prompt and answer
	tokens  int
	session uint64
}

// request makes the i-th request.
func (c *conversations) request(i uint64, at time.Duration, prompt, answer int) Request {
	r := Request{At: at, Answer: Segment{answerKind | i, answer}, Session: i}
	for len(c.open) > 0 && at-c.open[0].at > azureForgets {
		c.open = c.open[1:]
	}
	best := -1
	for k := range c.open {
		o := &c.open[k]
		if at-o.at < azureThinks {
			break
		}
		if o.tokens < prompt && prompt-o.tokens <= azureGrows && (best < 0 || o.tokens > c.open[best].tokens) {
			best = k
		}
	}
	fresh := prompt
	if best >= 0 {
		o := c.open[best]
		r.Prompt = append(r.Prompt, o.history...)
		fresh -= o.tokens
		r.Session = o.session
		c.open = append(c.open[:best], c.open[best+1:]...)
	}
	r.Prompt = append(r.Prompt, Segment{turnKind | i, fresh})
	history := append(append([]Segment(nil), r.Prompt...), r.Answer)
	c.open = append(c.open, conversation{at, history, prompt + answer, r.Session})
	return r
}
