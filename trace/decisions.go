package trace

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"epp.internal/epp"
	"epp.internal/epp/decision"
)

// unknownAnswer is the length of an answer that nobody has told, in tokens, where
// no answer's length is known: then it is the mean of those that are. A guess, near
// the mean of Mooncake's and Azure's conversations.
const unknownAnswer = 256

// ReadDecisions reads our own decision log, as log.decisions writes it: of each
// request the first decision, refused ones too. Prompts share what their hashes
// say, in steps of [decision.PromptStepTokens]; what is behind the last step is the
// prompt's own. An answer is as long as the engine said; see unknownAnswer. A
// request whose prompt nobody has counted is left out.
func ReadDecisions(name string, r io.Reader) (*Trace, error) {
	b := decisionsReader{open: map[attempt]int{}}
	lines := decision.NewLogReader(name, r)
	for {
		l, err := lines.Next()
		if errors.Is(err, io.EOF) {
			t, err := finish(name, b.requests)
			if err == nil {
				t.Cut = lines.Cut()
			}
			return t, err
		}
		if err == nil {
			err = b.take(l)
		}
		if err != nil {
			return nil, err
		}
	}
}

// decisionsReader gathers a log's requests.
type decisionsReader struct {
	requests []logged
	// open finds the requests that were decided and not seen to end.
	open map[attempt]int
}

// attempt names a request's attempt.
type attempt struct {
	id     string
	number int
}

// logged is a request, and what its end adds.
type logged struct {
	at     time.Time
	r      Request
	tokens int // of the prompt; 0: not known
	answer int // −1: not known
}

func (b *decisionsReader) take(l *decision.Logged) error {
	switch {
	case l.End != nil:
		key := attempt{l.End.RequestID, l.End.Attempt}
		i, ok := b.open[key]
		if !ok {
			return nil // its decision is in an earlier file
		}
		delete(b.open, key)
		q := &b.requests[i]
		q.answer = max(-1, min(l.End.CompletionTokens, MaxTokens))
		if n := l.End.PromptTokens; q.tokens == 0 && n > 0 && n <= MaxTokens {
			q.tokens = n
			q.r.Prompt = []Segment{{turnKind | uint64(i), n}}
		}
	case l.Record != nil && l.Record.Attempt > 1: // the same request once more
		if i, ok := b.open[attempt{l.Record.RequestID, l.Record.Attempt - 1}]; ok {
			b.open[attempt{l.Record.RequestID, l.Record.Attempt}] = i
		}
	case l.Record != nil:
		if len(b.requests) == MaxRequests {
			return fmt.Errorf("a trace ends after %d requests", MaxRequests)
		}
		rec, i := l.Record, len(b.requests)
		q := logged{at: rec.At, answer: -1, r: Request{Adapter: rec.Adapter, Session: uint64(i)}}
		if n := rec.PromptTokens; rec.TokenSource != epp.ApproximateTokens && n > 0 && n <= MaxTokens {
			q.tokens = n
			q.prompt(l, uint64(i))
		}
		b.requests = append(b.requests, q)
		b.open[attempt{rec.RequestID, rec.Attempt}] = i
	}
	return nil
}

// prompt makes the segments, of the i-th request.
func (q *logged) prompt(l *decision.Logged, i uint64) {
	left := q.tokens
	for _, hash := range l.Prompt {
		if l.PromptStep < 1 || left < l.PromptStep {
			break
		}
		q.r.Prompt = append(q.r.Prompt, Segment{sharedKind | hash&(answerKind-1), l.PromptStep})
		left -= l.PromptStep
	}
	if n := len(q.r.Prompt); n > 0 {
		q.r.Session = q.r.Prompt[min(1, n-1)].ID
	}
	if left > 0 {
		q.r.Prompt = append(q.r.Prompt, Segment{turnKind | i, left})
	}
}

// finish makes the trace of a log's requests: in the order of time, since lines come
// as requests end, and without those whose prompt has no known length.
func finish(name string, requests []logged) (*Trace, error) {
	known, sum := 0, 0
	for i := range requests {
		if n := requests[i].answer; n >= 0 {
			known, sum = known+1, sum+n
		}
	}
	answer := unknownAnswer
	if known > 0 {
		answer = sum / known
	}
	requests = slices.DeleteFunc(requests, func(q logged) bool { return q.tokens == 0 })
	if len(requests) == 0 {
		return nil, fmt.Errorf("%s: no request in it whose prompt has a known length", name)
	}
	slices.SortStableFunc(requests, func(a, b logged) int { return a.at.Compare(b.at) })
	t := &Trace{Name: name, Requests: make([]Request, len(requests))}
	for i := range requests {
		q := &requests[i]
		if q.answer < 0 {
			q.answer = answer
		}
		q.r.At = q.at.Sub(requests[0].at)
		if q.r.At > MaxDuration {
			return nil, fmt.Errorf("%s: request of %v is more than %v after the first one", name, q.at.Format(time.RFC3339), MaxDuration)
		}
		q.r.Answer = Segment{answerKind | uint64(i), q.answer}
		t.Requests[i] = q.r
	}
	return t, nil
}
