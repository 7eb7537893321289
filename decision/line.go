package decision

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	"epp.internal/epp"
)

// A decision log has one JSON object a line, each with one key:
//
//	{"settings": {…}}  what the decisions below were made by, until the next such line
//	{"decision": {…}}  one decision: every raw input, and what was concluded
//	{"end": {…}}       what became of an earlier decision's request
//
// It holds no prompt and no token: lengths, and hashes under a key that is not in
// it. Times are nanoseconds since 1970; an unknown gauge is left out.

// LogBegin is how a decision log begins: no decision is before its settings.
const LogBegin = `{"settings":`

// The bounds of a decision log.
const (
	// MaxLogLineBytes is the longest line: a decision over 4,096 endpoints has about
	// 2 MB.
	MaxLogLineBytes = 8 << 20
	// MaxLogSlot bounds the slots of a log's endpoints, since tables are as long as
	// the highest one.
	MaxLogSlot = 1 << 16
	// PromptStepTokens is how far apart the hashes are that are kept of a prompt,
	// where its blocks are no longer than that. Finer ones tell more of what prompts
	// share, and take more room: 100 of them for a prompt of 12,800 tokens.
	PromptStepTokens = 128
	// hashBits are kept of a hash: as many as every reader of JSON takes exactly.
	hashBits = 53
)

// Logged is one line of a decision log. One of Settings, Record and End is set.
type Logged struct {
	Settings *Settings
	Record   *Record // its Settings are those of the line that says so
	// Prompt has a hash of each leading PromptStep tokens of Record's prompt, all
	// before included: two prompts share as much as they have equal hashes.
	Prompt     []uint64
	PromptStep int
	End        *LoggedEnd
}

// LoggedEnd is what became of an attempt.
type LoggedEnd struct {
	RequestID string
	Attempt   int
	End
}

type line struct {
	Settings *lineSettings `json:"settings,omitempty"`
	Decision *lineDecision `json:"decision,omitempty"`
	End      *lineEnd      `json:"end,omitempty"`
}

type lineSettings struct {
	Version        uint64       `json:"version"`
	Policy         PolicyName   `json:"policy"`
	Weights        []lineWeight `json:"weights"`
	MaxQueue       int          `json:"maxQueue"`
	OnSaturated    OnSaturated  `json:"onSaturated"`
	LoadSource     LoadSource   `json:"loadSource"`
	MaxRunning     int          `json:"maxRunning,omitempty"`
	MaxUtilization float64      `json:"maxUtilization"`
	Gate           int64        `json:"gateNanos,omitempty"`
	StaleAfter     int64        `json:"staleAfterNanos"`
}

type lineWeight struct {
	Name  string  `json:"name"`
	Value float64 `json:"value"`
}

type lineDecision struct {
	RequestID  string `json:"requestID"`
	Attempt    int    `json:"attempt"`
	Path       string `json:"path,omitempty"`
	Model      string `json:"model,omitempty"`
	Target     string `json:"target,omitempty"`
	Adapter    string `json:"adapter,omitempty"`
	Priority   int    `json:"priority,omitempty"`
	HasSubset  bool   `json:"hasSubset,omitempty"`
	At         int64  `json:"atNanos"`
	Seed       uint64 `json:"seed"`
	PromptStep int    `json:"promptStepTokens,omitempty"`
	// Prompt is what Logged says, of each hash the low 53 bits.
	Prompt        []uint64        `json:"prompt,omitempty"`
	PromptTokens  int             `json:"promptTokens"`
	TokenSource   epp.TokenSource `json:"tokenSource"`
	BlockTokens   int             `json:"blockTokens"`
	BlockedTokens int             `json:"blockedTokens"`
	Pace          *epp.Pace       `json:"pace,omitempty"`
	Candidates    []lineCandidate `json:"candidates"`

	Chosen   int    `json:"chosen"`
	RunnerUp int    `json:"runnerUp"`
	Admitted int    `json:"admitted"`
	Degraded bool   `json:"degraded,omitempty"`
	Refused  string `json:"refused,omitempty"`
}

type lineCandidate struct {
	Name       string   `json:"name"`
	Address    string   `json:"address"`
	Rank       string   `json:"rank,omitempty"`
	Slot       epp.Slot `json:"slot"`
	Generation uint32   `json:"generation,omitempty"`

	Waiting        *float64         `json:"waiting,omitempty"`
	Running        *float64         `json:"running,omitempty"`
	KVUsage        *float64         `json:"kvUsage,omitempty"`
	GPU            *float64         `json:"gpu,omitempty"`
	ReadAt         epp.Instant      `json:"readAtNanos,omitempty"`
	InFlight       int              `json:"inFlight,omitempty"`
	InFlightAtRead int              `json:"inFlightAtRead,omitempty"`
	InFlightTokens int              `json:"inFlightTokens,omitempty"`
	MaxRunning     int              `json:"maxRunning,omitempty"`
	BlockTokens    int              `json:"blockTokens,omitempty"`
	Health         float64          `json:"health"`
	HealthReason   epp.HealthReason `json:"healthReason,omitempty"`
	Incomplete     bool             `json:"incomplete,omitempty"`
	Heard          bool             `json:"heard,omitempty"`
	Doubt          uint8            `json:"doubt,omitempty"`
	ColdAt         epp.Instant      `json:"coldAt,omitempty"`
	Agent          bool             `json:"agent,omitempty"`
	Adapters       bool             `json:"adapters,omitempty"`

	Match     *lineMatch `json:"match,omitempty"`
	Serves    bool       `json:"serves,omitempty"`
	Resident  bool       `json:"resident,omitempty"`
	OutSubset bool       `json:"outsideSubset,omitempty"`
	Tried     bool       `json:"tried,omitempty"`

	Expected *lineExpected `json:"expected,omitempty"`
	Excluded Exclusion     `json:"excluded,omitempty"`
	Sum      float64       `json:"sum"`
}

type lineMatch struct {
	Blocks      uint32  `json:"blocks"`
	BlockTokens uint32  `json:"blockTokens"`
	Discount    float32 `json:"discount,omitempty"`
}

// lineExpected is a Prediction: the raw Pending and Slowness, and what followed.
type lineExpected struct {
	Pending    float64 `json:"pendingWork"`
	Slowness   float64 `json:"slowness"`
	FirstToken float64 `json:"firstTokenSeconds"`
	Cost       float64 `json:"costSeconds"`
}

type lineEnd struct {
	RequestID        string `json:"requestID"`
	Attempt          int    `json:"attempt"`
	At               int64  `json:"atNanos"`
	Outcome          string `json:"outcome"`
	Status           int    `json:"status,omitempty"`
	TTFT             int64  `json:"ttftNanos,omitempty"`
	PromptTokens     int    `json:"promptTokens"`
	CompletionTokens int    `json:"completionTokens"`
	CachedTokens     int    `json:"cachedTokens"`
}

// AppendSettingsLine appends the line that says what later decisions were made by.
func AppendSettingsLine(dst []byte, s *Settings) ([]byte, error) {
	l := lineSettings{
		Version: s.Version, Policy: s.Policy, MaxQueue: s.MaxQueue, OnSaturated: s.OnSaturated,
		LoadSource: s.Load.Source, MaxRunning: s.Load.MaxRunning, MaxUtilization: s.Load.MaxUtilization,
		Gate: int64(s.Gate), StaleAfter: int64(s.StaleAfter),
	}
	for _, w := range s.Weights {
		l.Weights = append(l.Weights, lineWeight(w))
	}
	return appendLine(dst, &line{Settings: &l})
}

// AppendDecisionLine appends the record's line. chain is the prompt's block hashes,
// each of BlockTokens tokens and all before, or nil. A number that is none, which
// JSON has no word for, is an error.
func AppendDecisionLine(dst []byte, r *Record, chain []uint64) ([]byte, error) {
	d := lineDecision{
		RequestID: r.RequestID, Attempt: r.Attempt, Path: r.Path, Model: r.Model, Target: r.Target, Adapter: r.Adapter,
		Priority: r.Priority, HasSubset: r.HasSubset, At: r.At.UnixNano(), Seed: r.Seed,
		PromptTokens: r.PromptTokens, TokenSource: r.TokenSource, BlockTokens: r.BlockTokens, BlockedTokens: r.BlockedTokens,
		Candidates: make([]lineCandidate, len(r.Candidates)),
		Chosen:     r.Chosen, RunnerUp: r.RunnerUp, Admitted: r.Admitted, Degraded: r.Degraded, Refused: r.Refused,
	}
	if r.BlockTokens > 0 && len(chain) > 0 {
		every := max(1, PromptStepTokens/r.BlockTokens)
		d.PromptStep = every * r.BlockTokens
		for i := every - 1; i < len(chain); i += every {
			d.Prompt = append(d.Prompt, chain[i]&(1<<hashBits-1))
		}
	}
	if len(r.Predictions) > 0 {
		d.Pace = &r.Pace
	}
	for i := range r.Candidates {
		d.Candidates[i] = lineOf(&r.Candidates[i])
		if i < len(r.Predictions) {
			p := &r.Predictions[i]
			d.Candidates[i].Expected = &lineExpected{p.Work.Pending, p.Work.Slowness, p.FirstToken, p.Cost}
		}
	}
	return appendLine(dst, &line{Decision: &d})
}

func lineOf(c *Candidate) lineCandidate {
	s := &c.Signals
	l := lineCandidate{
		Name: c.Name, Address: c.Address, Rank: c.Rank, Slot: c.Slot, Generation: c.Generation,
		Waiting: gauge(s.Waiting), Running: gauge(s.Running), KVUsage: gauge(s.KVUsage), GPU: gauge(s.GPU),
		ReadAt: s.ReadAt, InFlight: s.InFlight, InFlightAtRead: s.InFlightAtRead, InFlightTokens: s.InFlightTokens,
		MaxRunning: s.MaxRunning, BlockTokens: s.BlockTokens, Health: s.Health, HealthReason: s.HealthReason,
		Incomplete: s.Incomplete, Heard: s.Heard, Doubt: s.Doubt, ColdAt: s.ColdAt, Agent: s.Agent, Adapters: s.Adapters,
		Serves: c.Serves, Resident: c.Resident, OutSubset: !c.InSubset, Tried: c.Tried,
		Excluded: c.Excluded, Sum: c.Sum,
	}
	if c.Match != (epp.Match{}) {
		l.Match = &lineMatch{c.Match.Blocks, c.Match.BlockTokens, c.Match.Discount}
	}
	return l
}

func gauge(g epp.Gauge) *float64 {
	if !g.Known {
		return nil
	}
	return &g.Value
}

// AppendEndLine appends the line of an attempt's end.
func AppendEndLine(dst []byte, e *LoggedEnd) ([]byte, error) {
	return appendLine(dst, &line{End: &lineEnd{
		RequestID: e.RequestID, Attempt: e.Attempt, At: e.At.UnixNano(), Outcome: e.Outcome, Status: e.Status, TTFT: int64(e.TTFT),
		PromptTokens: e.PromptTokens, CompletionTokens: e.CompletionTokens, CachedTokens: e.CachedTokens,
	}})
}

func appendLine(dst []byte, l *line) ([]byte, error) {
	text, err := json.Marshal(l)
	if err != nil {
		return dst, err
	}
	return append(append(dst, text...), '\n'), nil
}

// LogReader reads a decision log.
type LogReader struct {
	name     string
	lines    *bufio.Scanner
	number   int
	cut      int
	settings *Settings
}

// NewLogReader returns a reader of r; name is only what errors call it.
func NewLogReader(name string, r io.Reader) *LogReader {
	s := bufio.NewScanner(r)
	s.Buffer(make([]byte, 0, 64<<10), MaxLogLineBytes)
	return &LogReader{name: name, lines: s}
}

// Cut is how many lines so far were begun and not ended, as a crash or a full disk
// leaves them. They are passed over.
func (r *LogReader) Cut() int { return r.cut }

// Next returns the next line, or io.EOF after the last one. Every other error names
// the line at fault.
func (r *LogReader) Next() (*Logged, error) {
	for r.lines.Scan() {
		r.number++
		if len(r.lines.Bytes()) == 0 {
			continue
		}
		l, err := r.parse(r.lines.Bytes())
		if errors.Is(err, io.ErrUnexpectedEOF) && (r.settings != nil || isLogBegin(r.lines.Bytes())) {
			r.cut++
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("%s:%d: %w", r.name, r.number, err)
		}
		return l, nil
	}
	switch err := r.lines.Err(); {
	case errors.Is(err, bufio.ErrTooLong):
		return nil, fmt.Errorf("%s:%d: line is longer than %d bytes", r.name, r.number+1, MaxLogLineBytes)
	case err != nil:
		return nil, fmt.Errorf("%s: %w", r.name, err)
	}
	return nil, io.EOF
}

// isLogBegin says whether a line is a log's first, however early it is cut.
func isLogBegin(text []byte) bool {
	n := min(len(text), len(LogBegin))
	return string(text[:n]) == LogBegin[:n]
}

// BeginsLog says whether text, of one line at least, is the beginning of a decision
// log. Before its settings there may be lines that were to be these and were cut off.
func BeginsLog(text []byte) bool {
	for !bytes.HasPrefix(text, []byte(LogBegin)) {
		first, rest, whole := bytes.Cut(text, []byte("\n"))
		if !whole || len(first) == 0 || !isLogBegin(first) {
			return false
		}
		text = rest
	}
	return true
}

func (r *LogReader) parse(text []byte) (*Logged, error) {
	var l line
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields() // an input that is not understood is not replayed
	if err := d.Decode(&l); err != nil {
		return nil, fmt.Errorf("no line of a decision log: %w", err)
	}
	switch {
	case l.Settings != nil && l.Decision == nil && l.End == nil:
		s, err := l.Settings.settings()
		if err != nil {
			return nil, fmt.Errorf("settings: %w", err)
		}
		r.settings = s
		return &Logged{Settings: s}, nil
	case l.Decision != nil && l.Settings == nil && l.End == nil:
		if r.settings == nil {
			return nil, errors.New("decision before any settings: want a line with settings first")
		}
		rec, err := l.Decision.record(r.settings)
		if err != nil {
			return nil, fmt.Errorf("decision: %w", err)
		}
		return &Logged{Record: rec, Prompt: l.Decision.Prompt, PromptStep: l.Decision.PromptStep}, nil
	case l.End != nil && l.Settings == nil && l.Decision == nil:
		e := l.End
		return &Logged{End: &LoggedEnd{e.RequestID, e.Attempt, End{
			At: time.Unix(0, e.At).UTC(), Outcome: e.Outcome, Status: e.Status, TTFT: time.Duration(e.TTFT),
			PromptTokens: e.PromptTokens, CompletionTokens: e.CompletionTokens, CachedTokens: e.CachedTokens,
		}}}, nil
	}
	return nil, errors.New("line has not one key: want settings, decision or end")
}

func (l *lineSettings) settings() (*Settings, error) {
	s := &Settings{
		Version: l.Version, Policy: l.Policy, MaxQueue: l.MaxQueue, OnSaturated: l.OnSaturated,
		Load: Load{Source: l.LoadSource, MaxRunning: l.MaxRunning, MaxUtilization: l.MaxUtilization},
		Gate: time.Duration(l.Gate), StaleAfter: time.Duration(l.StaleAfter),
	}
	for _, w := range l.Weights {
		s.Weights = append(s.Weights, Weight(w))
	}
	return s, s.Validate()
}

func (d *lineDecision) record(s *Settings) (*Record, error) {
	n := len(d.Candidates)
	switch {
	case d.Chosen < -1 || d.Chosen >= n || d.RunnerUp < -1 || d.RunnerUp >= n:
		return nil, fmt.Errorf("chosen %d and runnerUp %d: want −1 or one of %d candidates", d.Chosen, d.RunnerUp, n)
	case d.PromptTokens < 0 || d.BlockTokens < 0 || d.BlockedTokens < 0 || d.PromptStep < 0:
		return nil, fmt.Errorf("tokens %d, %d, %d, %d: want none below 0", d.PromptTokens, d.BlockTokens, d.BlockedTokens, d.PromptStep)
	}
	r := &Record{
		RequestID: d.RequestID, Attempt: d.Attempt, Path: d.Path, Model: d.Model, Target: d.Target, Adapter: d.Adapter,
		Priority: d.Priority, HasSubset: d.HasSubset, At: time.Unix(0, d.At).UTC(), Seed: d.Seed, Settings: s,
		PromptTokens: d.PromptTokens, TokenSource: d.TokenSource, BlockTokens: d.BlockTokens, BlockedTokens: d.BlockedTokens,
		Chosen: d.Chosen, RunnerUp: d.RunnerUp, Admitted: d.Admitted, Degraded: d.Degraded, Refused: d.Refused,
	}
	r.Resize(n)
	if d.Pace != nil {
		r.Pace = *d.Pace
		r.RoomPredictions()
	}
	slots := map[epp.Slot]bool{}
	for i := range d.Candidates {
		l := &d.Candidates[i]
		if l.Slot >= MaxLogSlot || slots[l.Slot] {
			return nil, fmt.Errorf("candidate %q: slot %d: want each once, below %d", l.Name, l.Slot, MaxLogSlot)
		}
		slots[l.Slot] = true
		if (l.Expected != nil) != (d.Pace != nil) {
			return nil, fmt.Errorf("candidate %q: expected and pace: want both or neither", l.Name)
		}
		if l.Expected != nil {
			r.Predictions[i] = Prediction{epp.Work{Pending: l.Expected.Pending, Slowness: l.Expected.Slowness}, l.Expected.FirstToken, l.Expected.Cost}
		}
		r.Candidates[i] = l.candidate()
	}
	return r, nil
}

func (l *lineCandidate) candidate() Candidate {
	c := Candidate{
		Endpoint: &epp.Endpoint{Name: l.Name, Address: l.Address, Rank: l.Rank, Slot: l.Slot, Generation: l.Generation},
		Signals: epp.Signals{
			Waiting: known(l.Waiting), Running: known(l.Running), KVUsage: known(l.KVUsage), GPU: known(l.GPU),
			ReadAt: l.ReadAt, InFlight: l.InFlight, InFlightAtRead: l.InFlightAtRead, InFlightTokens: l.InFlightTokens,
			MaxRunning: l.MaxRunning, BlockTokens: l.BlockTokens, Health: l.Health, HealthReason: l.HealthReason,
			Incomplete: l.Incomplete, Heard: l.Heard, Doubt: l.Doubt, ColdAt: l.ColdAt, Agent: l.Agent, Adapters: l.Adapters,
		},
		Serves: l.Serves, Resident: l.Resident, InSubset: !l.OutSubset, Tried: l.Tried,
		Excluded: l.Excluded, Sum: l.Sum,
	}
	if m := l.Match; m != nil {
		c.Match = epp.Match{Blocks: m.Blocks, BlockTokens: m.BlockTokens, Discount: m.Discount}
	}
	return c
}

func known(v *float64) epp.Gauge {
	if v == nil {
		return epp.Gauge{}
	}
	return epp.Gauge{Value: *v, Known: true}
}
