package probe

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"time"

	"epp.internal/epp"
)

// maxAnswer bounds an answer in bytes: one token and its frame take some hundred.
const maxAnswer = 64 << 10

// A Sink takes how the probes of one endpoint ended.
type Sink interface {
	// Probed is called when a probe has ended: err is nil where the engine
	// answered, slowly is true where that took more than half of the timeout.
	Probed(now time.Time, err error, slowly bool)
}

// Target says what to probe.
type Target struct {
	// Address is host:port of the engine's API.
	Address string
	// Rank is the data-parallel rank behind the address; empty where it has one.
	Rank string
	// Model names the model to ask for; nil, or an empty name, leaves that to the
	// engine.
	Model func() string
}

// Outcome says how a probe ended, for metrics.
type Outcome string

// The outcomes.
const (
	Answered Outcome = "answered"
	Failed   Outcome = "failed"  // refused, broken, 5xx, no token, or too late
	Refused  Outcome = "refused" // the engine does not take the question
)

// Prober probes the endpoints of a pool. Set its fields, then call Run for each
// endpoint.
type Prober struct {
	// Client follows no redirect; its owner closes its idle connections.
	Client *http.Client
	// Interval is the time from one probe's beginning to the next one's; Timeout is
	// the deadline of one.
	Interval, Timeout time.Duration
	// Ended is told of each probe; nil is not called.
	Ended func(o Outcome, took time.Duration)
	// Log gets a line for each change; nil discards.
	Log *slog.Logger
}

// errRefused is an answer that says nothing of health.
var errRefused = errors.New("question refused")

// Run probes one endpoint until ctx ends, and returns its error: at once, and then
// after each interval, a tenth of it more or less, so that the probes of a pool
// don't keep step.
func (p *Prober) Run(ctx context.Context, t Target, sink Sink) error {
	log := p.Log
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	last := Answered
	for {
		began := time.Now()
		err := p.probe(ctx, t)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		took := time.Since(began)
		outcome := Answered
		switch {
		case errors.Is(err, errRefused):
			outcome = Refused
		case err != nil:
			outcome = Failed
		}
		if p.Ended != nil {
			p.Ended(outcome, took)
		}
		if outcome != Refused {
			sink.Probed(time.Now(), err, took > p.Timeout/2)
		}
		if outcome != last {
			last = outcome
			if err != nil {
				log.Warn("probe", "address", t.Address, "outcome", string(outcome), "error", err)
			} else {
				log.Info("probe", "address", t.Address, "outcome", string(outcome))
			}
		}
		wait := time.Duration(float64(p.Interval)*(0.9+0.2*rand.Float64())) - took
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(wait):
		}
	}
}

// question asks for one token.
type question struct {
	Model       string `json:"model,omitempty"`
	Prompt      string `json:"prompt"`
	MaxTokens   int    `json:"max_tokens"`
	Temperature int    `json:"temperature"`
}

// probe asks once.
func (p *Prober) probe(ctx context.Context, t Target) error {
	ctx, cancel := context.WithTimeoutCause(ctx, p.Timeout, fmt.Errorf("no answer within %v", p.Timeout))
	defer cancel()
	q := question{Prompt: "1", MaxTokens: 1}
	if t.Model != nil {
		q.Model = t.Model()
	}
	body, err := json.Marshal(q)
	if err != nil {
		return err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+t.Address+"/v1/completions", bytes.NewReader(body))
	if err != nil {
		return fmt.Errorf("probe %s: %w", t.Address, err)
	}
	req.Header.Set("Content-Type", "application/json")
	if t.Rank != "" {
		req.Header.Set(epp.RankHeader, t.Rank)
	}
	resp, err := p.Client.Do(req)
	if err != nil {
		return fmt.Errorf("probe %s: %w", t.Address, cause(ctx, err))
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer+1))
	if err != nil {
		return fmt.Errorf("probe %s: %w", t.Address, cause(ctx, err))
	}
	if err := judge(resp.StatusCode, answer); err != nil {
		return fmt.Errorf("probe %s: %w", t.Address, err)
	}
	return nil
}

// cause is why ctx ended, if it did, else err.
func cause(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}

// judge says what is wrong with an answer, if anything is.
func judge(status int, answer []byte) error {
	switch {
	case status == http.StatusTooManyRequests:
		return nil // full, so it works
	case status >= 300 && status < 500:
		return fmt.Errorf("status %d: %w", status, errRefused)
	case status != http.StatusOK:
		return fmt.Errorf("status %d", status)
	case len(answer) > maxAnswer:
		return fmt.Errorf("answer over %d bytes", maxAnswer)
	}
	var a struct {
		Choices []json.RawMessage `json:"choices"`
	}
	if err := json.Unmarshal(answer, &a); err != nil {
		return fmt.Errorf("answer: %w", err)
	}
	if len(a.Choices) == 0 {
		return errors.New("answer: no choices")
	}
	return nil
}
