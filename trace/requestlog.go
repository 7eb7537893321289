package trace

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strconv"
	"time"
)

// Logs of requests hold texts. None is kept: each prompt becomes hashes of its
// beginnings while its line is read, and its length.
const (
	// logStep is how many tokens, or logStepBytes of text, are between two hashes.
	logStep      = 64
	logStepBytes = 4 * logStep // 4 bytes a token: English in a model's vocabulary, a guess
)

// byTokens makes the prompt of its tokens, of the i-th request.
func (q *logged) byTokens(ids []uint32, i uint64) {
	q.r.Prompt = nil
	hash := uint64(0)
	for k, id := range ids {
		if hash = mix(hash ^ uint64(id)); (k+1)%logStep == 0 {
			q.r.Prompt = append(q.r.Prompt, Segment{sharedKind | hash&(answerKind-1), logStep})
		}
	}
	q.close(len(ids), i)
}

// byText makes the prompt of a text, of the i-th request: as long as tokens says,
// or as the text is where that is 0.
func (q *logged) byText(text []byte, tokens int, i uint64) {
	if tokens == 0 {
		tokens = (len(text) + 3) / 4
	}
	q.r.Prompt = nil
	hash := uint64(1)
	for k, c := range text {
		if hash = mix(hash ^ uint64(c)); (k+1)%logStepBytes == 0 && len(q.r.Prompt)*logStep+logStep <= tokens {
			q.r.Prompt = append(q.r.Prompt, Segment{sharedKind | hash&(answerKind-1), logStep})
		}
	}
	q.close(tokens, i)
}

// close adds what is behind the last hash, and the session: what begins alike for
// twice logStep tokens.
func (q *logged) close(tokens int, i uint64) {
	q.tokens = tokens
	n := len(q.r.Prompt)
	q.r.Session = i
	if n > 0 {
		q.r.Session = q.r.Prompt[min(1, n-1)].ID
	}
	if left := tokens - n*logStep; left > 0 {
		q.r.Prompt = append(q.r.Prompt, Segment{turnKind | i, left})
	}
}

// vllmStamp finds a line of vLLM's log: its time, to the second, and what it says.
//
//	INFO 11-30 02:44:57 [logger.py:39] Received request cmpl-1: prompt: …
var vllmStamp = regexp.MustCompile(`(?:DEBUG|INFO|WARNING|ERROR) (\d\d-\d\d \d\d:\d\d:\d\d) (?:\[[^\]]*\]|\S+\.py:\d+\]) ?(.*)`)

// ReadVLLMLog reads what vLLM logs of requests (--enable-log-requests), each in one
// line, some fields of it only in some releases:
//
//	Received request ID: prompt: '…', params: …, prompt_token_ids: [1, 2], …, lora_request: None.
//	Request ID details: prompt: '…', prompt_token_ids: [1, 2], …       (level DEBUG)
//	Generated response ID…: output: '…', output_token_ids: [3], …      (--enable-log-outputs)
//
// Without token IDs the prompt's text stands for them. --max-log-len cuts both and
// must not be set. Stamps are full seconds: what has one is spread over it.
func ReadVLLMLog(name string, r io.Reader) (*Trace, error) {
	v := vllmLog{of: map[string]int{}, last: time.Date(0, 1, 1, 0, 0, 0, 0, time.UTC)}
	err := lines(name, r, func(_ int, text []byte) error {
		m := vllmStamp.FindSubmatch(text)
		if m == nil {
			return nil // other programs' lines, and what runs over several
		}
		at, err := time.Parse("01-02 15:04:05", string(m[1]))
		if err != nil {
			return fmt.Errorf("time %q: want month-day hours:minutes:seconds", m[1])
		}
		return v.take(at, m[2])
	})
	if err != nil {
		return nil, err
	}
	t, err := finish(name, v.requests)
	if err != nil {
		return nil, err
	}
	spread(t.Requests, time.Second)
	return t, nil
}

// vllmLog gathers a log's requests.
type vllmLog struct {
	requests []logged
	of       map[string]int // by ID
	last     time.Time      // the latest stamp, in years since the first
}

func (v *vllmLog) take(at time.Time, says []byte) error {
	if rest, ok := bytes.CutPrefix(says, []byte("Generated response ")); ok {
		v.answer(rest)
		return nil
	}
	rest, received := bytes.CutPrefix(says, []byte("Received request "))
	if !received {
		if rest, received = bytes.CutPrefix(says, []byte("Request ")); !received || !bytes.Contains(rest[:min(len(rest), 200)], []byte(" details: ")) {
			return nil
		}
	}
	end := bytes.IndexAny(rest, ": ")
	if end < 1 {
		return errors.New("request has no ID: want \"Received request ID: …\"")
	}
	// The stamp has no year: one that is months before the last is the next year's.
	if at = at.AddDate(v.last.Year()-at.Year(), 0, 0); at.Before(v.last.AddDate(0, -6, 0)) {
		at = at.AddDate(1, 0, 0)
	}
	if at.After(v.last) {
		v.last = at
	}
	id := string(rest[:end])
	i, known := v.of[id]
	if !known {
		if i = len(v.requests); i == MaxRequests {
			return fmt.Errorf("a trace ends after %d requests", MaxRequests)
		}
		v.of[id] = i
		v.requests = append(v.requests, logged{at: at, answer: -1})
	}
	q := &v.requests[i]
	if k := bytes.LastIndex(rest, []byte("lora_name='")); k >= 0 && k > bytes.LastIndex(rest, []byte("lora_request: ")) {
		if adapter, _, ok := bytes.Cut(rest[k+len("lora_name='"):], []byte("'")); ok {
			q.r.Adapter = string(adapter)
		}
	}
	ids, known, err := listOf(rest, "prompt_token_ids: [")
	switch {
	case err != nil:
		return err
	case known && len(ids) > 0 && len(ids) <= MaxTokens:
		q.byTokens(ids, uint64(i))
	case q.tokens == 0:
		if _, text, ok := bytes.Cut(rest, []byte("prompt: ")); ok && !bytes.HasPrefix(text, []byte("None")) {
			if k := bytes.LastIndex(text, []byte("params: ")); k > 0 {
				text = text[:k]
			}
			q.byText(text, 0, uint64(i))
		}
	}
	return nil
}

// answer takes the length of an answer, unless it is a piece of one.
func (v *vllmLog) answer(rest []byte) {
	id, _, ok := bytes.Cut(rest, []byte(":"))
	if name, piece, cut := bytes.Cut(id, []byte(" ")); cut {
		if bytes.Contains(piece, []byte("delta")) {
			return
		}
		id = name
	}
	i, known := v.of[string(id)]
	if !ok || !known {
		return
	}
	if ids, told, err := listOf(rest, "output_token_ids: ["); err == nil && told {
		v.requests[i].answer = min(len(ids), MaxTokens)
	}
}

// listOf reads the last list of numbers behind the given words; told is false where
// there is none.
func listOf(text []byte, words string) (ids []uint32, told bool, err error) {
	k := bytes.LastIndex(text, []byte(words))
	if k < 0 {
		return nil, false, nil
	}
	inside, _, whole := bytes.Cut(text[k+len(words):], []byte("]"))
	if !whole {
		return nil, false, fmt.Errorf("%.40s…: list does not end", words)
	}
	for len(inside) > 0 {
		var one []byte
		one, inside, _ = bytes.Cut(inside, []byte(","))
		id, err := strconv.ParseUint(string(bytes.TrimSpace(one)), 10, 32)
		if err != nil {
			return nil, false, fmt.Errorf("%s: %.20q is no token ID", words, one)
		}
		ids = append(ids, uint32(id))
	}
	return ids, true, nil
}

// openAIRow is one line of a log of OpenAI requests.
type openAIRow struct {
	Timestamp json.RawMessage `json:"timestamp"`
	Request   *openAIBody     `json:"request"`
	Body      *openAIBody     `json:"body"` // another word for request
	Usage     *openAIUsage    `json:"usage"`
	Response  struct {
		Usage *openAIUsage `json:"usage"`
	} `json:"response"`
}

type openAIBody struct {
	Messages json.RawMessage `json:"messages"`
	Prompt   json.RawMessage `json:"prompt"`
	Tools    json.RawMessage `json:"tools"`
	Adapter  string          `json:"adapter"`
}

type openAIUsage struct {
	PromptTokens     int `json:"prompt_tokens"`
	CompletionTokens int `json:"completion_tokens"`
}

// isOpenAILog tells such a log from other JSON by its first line's keys. A key in a
// text has escaped quotes.
func isOpenAILog(head []byte) bool {
	line, _, _ := bytes.Cut(head, []byte("\n"))
	return !bytes.Contains(line, []byte(`"hash_ids"`)) &&
		(bytes.Contains(line, []byte(`"request"`)) || bytes.Contains(line, []byte(`"body"`)))
}

// ReadOpenAILog reads requests of the OpenAI API, one JSON object a line:
//
//	{"timestamp": 1700000000.25, "request": {"messages": […]}, "usage": {"prompt_tokens": 90, "completion_tokens": 12}}
//
// The timestamp is in seconds since 1970, or as RFC 3339 has it; "body" is another
// word for request, "response" may hold the usage, "adapter" in a request names a
// LoRA adapter. Prompts share what their tools and messages (or prompt) do as
// written, in steps of 256 bytes for 64 tokens; a list of token IDs as such.
func ReadOpenAILog(name string, r io.Reader) (*Trace, error) {
	var requests []logged
	err := lines(name, r, func(_ int, text []byte) error {
		var row openAIRow
		if err := json.Unmarshal(text, &row); err != nil {
			return fmt.Errorf("no OpenAI request: %w", err)
		}
		if len(requests) == MaxRequests {
			return fmt.Errorf("a trace ends after %d requests", MaxRequests)
		}
		q, err := row.request(uint64(len(requests)))
		requests = append(requests, q)
		return err
	})
	if err != nil {
		return nil, err
	}
	return finish(name, requests)
}

// request is the row as the i-th request.
func (row *openAIRow) request(i uint64) (q logged, err error) {
	body, usage := row.Request, row.Usage
	if body == nil {
		body = row.Body
	}
	if usage == nil {
		usage = row.Response.Usage
	}
	if body == nil {
		return q, errors.New("request is missing: want the body that was sent")
	}
	if q.at, err = openAITime(row.Timestamp); err != nil {
		return q, err
	}
	q.answer, q.r.Adapter = -1, body.Adapter
	tokens := 0
	if usage != nil {
		if err := checkLengths(max(1, usage.PromptTokens), usage.CompletionTokens); err != nil {
			return q, fmt.Errorf("usage: %w", err)
		}
		tokens, q.answer = usage.PromptTokens, usage.CompletionTokens
	}
	var ids []uint32
	if json.Unmarshal(body.Prompt, &ids) == nil && len(ids) > 0 && len(ids) <= MaxTokens {
		q.byTokens(ids, i)
		return q, nil
	}
	text := append(append(append([]byte(nil), body.Tools...), body.Messages...), body.Prompt...)
	q.byText(text, max(0, tokens), i)
	return q, nil
}

// The earliest and the latest second that a log's time may be: 1970 to 2200.
const latestSecond = 7_258_118_400

func openAITime(text json.RawMessage) (time.Time, error) {
	if seconds, err := strconv.ParseFloat(string(text), 64); err == nil && seconds >= 0 && seconds <= latestSecond {
		return time.Unix(0, 0).Add(time.Duration(seconds * float64(time.Second))).UTC(), nil
	}
	var at time.Time
	if json.Unmarshal(text, &at) == nil && len(text) > 4 {
		return at, nil
	}
	return at, fmt.Errorf("timestamp %.40q: want seconds since 1970, or 2026-11-30T02:44:57.5Z", text)
}
