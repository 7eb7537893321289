package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"

	"epp.internal/epp/epptest/demotok"
)

// plan is what clients do: who asks what, and when at the earliest. A turn
// begins at its time, or when the answer before it has ended, if that is later.
type plan struct {
	length        time.Duration
	conversations []conversation
}

type conversation struct {
	system    string
	questions []string
	at        []time.Duration // of each question, from the start of the run
}

// newPlan draws the conversations. All first turns come at once; the others
// follow evenly, each conversation with an offset of its own.
func newPlan(seed uint64, length time.Duration) *plan {
	rng := rand.New(rand.NewPCG(seed, 0))
	words := demotok.Words()
	text := func(tokens int) string {
		var b strings.Builder
		for range tokens {
			b.WriteString(" " + words[rng.IntN(len(words))])
		}
		return b.String()
	}
	p := &plan{length: length}
	system := text(demoSystemTokens)
	every := length / demoTurns
	for range demoConversations {
		c := conversation{system: system}
		offset := time.Duration(rng.Int64N(int64(every / 4)))
		for turn := range demoTurns {
			c.questions = append(c.questions, text(demoUserTokens))
			at := time.Duration(turn) * every
			if turn > 0 {
				at += offset
			}
			c.at = append(c.at, at)
		}
		p.conversations = append(p.conversations, c)
	}
	return p
}

// turn is one question and what became of it.
type turn struct {
	conversation, number int
	endpoint             string // the x-served-by of the answer
	requestID            string
	ttft                 time.Duration // by the client's clock
	prompt, cached       int           // tokens, as the engine reports them
	err                  error
}

// outcome are all turns of one run.
type outcome struct{ turns []turn }

// run asks every question of base and returns when all have been answered, or
// ctx has ended. saw is told of each turn when it ends.
func (p *plan) run(ctx context.Context, base string, saw func(turn)) *outcome {
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: len(p.conversations)}}
	defer client.CloseIdleConnections()
	var mu sync.Mutex
	var wg sync.WaitGroup
	out := &outcome{}
	start := time.Now()
	for i := range p.conversations {
		wg.Go(func() {
			p.conversations[i].hold(ctx, client, base, start, func(t turn) {
				t.conversation = i
				mu.Lock()
				defer mu.Unlock()
				out.turns = append(out.turns, t)
				if saw != nil {
					saw(t)
				}
			})
		})
	}
	wg.Wait()
	return out
}

// message is a message of a chat.
type message struct {
	Role    string `json:"role"`
	Content string `json:"content"`
}

// hold goes through one conversation, each question with all that was said
// before. A question that fails ends it: there is no answer to go on from.
func (c *conversation) hold(ctx context.Context, client *http.Client, base string, start time.Time, saw func(turn)) {
	said := []message{{"system", c.system}}
	for number, q := range c.questions {
		wait := time.NewTimer(time.Until(start.Add(c.at[number])))
		select {
		case <-ctx.Done():
			wait.Stop()
			return
		case <-wait.C:
		}
		said = append(said, message{"user", q})
		t, answer := ask(ctx, client, base, said)
		if ctx.Err() != nil {
			return
		}
		t.number = number
		saw(t)
		if t.err != nil {
			return
		}
		said = append(said, message{"assistant", answer})
	}
}

// ask sends one chat and reads its stream to the end.
func ask(ctx context.Context, client *http.Client, base string, said []message) (t turn, answer string) {
	body, err := json.Marshal(map[string]any{
		"model": demoModel, "messages": said, "max_tokens": demoAnswerTokens, "ignore_eos": true,
		"stream": true, "stream_options": map[string]bool{"include_usage": true},
	})
	if err != nil {
		return turn{err: err}, ""
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, base+"/v1/chat/completions", bytes.NewReader(body))
	if err != nil {
		return turn{err: err}, ""
	}
	req.Header.Set("Content-Type", "application/json")
	sent := time.Now()
	resp, err := client.Do(req)
	if err != nil {
		return turn{err: err}, ""
	}
	defer resp.Body.Close()
	t.endpoint, t.requestID = resp.Header.Get("x-served-by"), resp.Header.Get("x-epp-request-id")
	if resp.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(io.LimitReader(resp.Body, 1000))
		t.err = fmt.Errorf("%s: %s", resp.Status, text)
		return t, ""
	}
	answer, t.err = t.read(resp.Body, sent)
	return t, answer
}

// read takes the answer's text, the time of its first token and its usage from
// the stream.
func (t *turn) read(stream io.Reader, sent time.Time) (answer string, err error) {
	var text strings.Builder
	lines := bufio.NewScanner(stream)
	done := false
	for lines.Scan() {
		data, ok := strings.CutPrefix(lines.Text(), "data: ")
		if !ok {
			continue
		}
		if data == "[DONE]" {
			done = true
			continue // to the end of the stream, as a client that is not in a hurry
		}
		var chunk struct {
			Choices []struct{ Delta struct{ Content string } }
			Usage   *struct {
				PromptTokens        int `json:"prompt_tokens"`
				PromptTokensDetails struct {
					CachedTokens int `json:"cached_tokens"`
				} `json:"prompt_tokens_details"`
			}
		}
		if err := json.Unmarshal([]byte(data), &chunk); err != nil {
			return "", fmt.Errorf("stream: %w", err)
		}
		if len(chunk.Choices) > 0 && chunk.Choices[0].Delta.Content != "" {
			if t.ttft == 0 {
				t.ttft = time.Since(sent)
			}
			text.WriteString(chunk.Choices[0].Delta.Content)
		}
		if chunk.Usage != nil {
			t.prompt, t.cached = chunk.Usage.PromptTokens, chunk.Usage.PromptTokensDetails.CachedTokens
		}
	}
	if err := lines.Err(); err != nil {
		return "", err
	}
	if !done || t.ttft == 0 {
		return "", fmt.Errorf("stream: ended early")
	}
	return text.String(), nil
}

// failed counts the turns that failed, and those that were never asked for it.
func (o *outcome) failed() int { return demoConversations*demoTurns - len(o.good()) }

func (o *outcome) good() []turn {
	var good []turn
	for _, t := range o.turns {
		if t.err == nil {
			good = append(good, t)
		}
	}
	return good
}

// meanTTFT is in milliseconds of the clients' clocks.
func (o *outcome) meanTTFT() float64 {
	var sum time.Duration
	good := o.good()
	for _, t := range good {
		sum += t.ttft
	}
	return float64(sum.Microseconds()) / 1e3 / float64(max(1, len(good)))
}

// cachedShare is the part of all prompt tokens that the engines did not compute.
func (o *outcome) cachedShare() float64 {
	prompt, cached := 0, 0
	for _, t := range o.good() {
		prompt += t.prompt
		cached += t.cached
	}
	return float64(cached) / float64(max(1, prompt))
}

// fill sets what the result says of the picker's own run.
func (o *outcome) fill(r *demoResult) {
	r.Requests, r.Failed = len(o.turns), o.failed()
	at := map[[2]int]string{}
	shares := map[string]int{}
	for _, t := range o.good() {
		at[[2]int{t.conversation, t.number}] = t.endpoint
		shares[t.endpoint]++
	}
	later, stayed := 0, 0
	for key, endpoint := range at {
		if before, ok := at[[2]int{key[0], key[1] - 1}]; ok {
			later++
			if before == endpoint {
				stayed++
			}
		}
	}
	r.SameEndpointShare = float64(stayed) / float64(max(1, later))
	if len(shares) == demoEngines {
		r.MinEndpointShare = 1
	}
	total := float64(max(1, len(o.good())))
	for _, n := range shares {
		r.MinEndpointShare = min(r.MinEndpointShare, float64(n)/total)
		r.MaxEndpointShare = max(r.MaxEndpointShare, float64(n)/total)
	}
}

// localhost makes a listener's address one that a client can use.
func localhost(address string) string {
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return address
	}
	if ip := net.ParseIP(host); host == "" || ip != nil && ip.IsUnspecified() {
		host = "localhost"
	}
	return net.JoinHostPort(host, port)
}
