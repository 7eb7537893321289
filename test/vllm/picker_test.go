//go:build vllm

package vllm

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// patience bounds what a test waits for. Nothing is measured by it.
const patience = 2 * time.Minute

// settlePatience is how long events may be on their way before a count that
// differs is a fault.
const settlePatience = 5 * time.Second

// line is one line of the picker's log.
type line struct {
	Msg, Level                           string
	Time                                 time.Time
	RequestID, Pod                       string
	Proxy, Metrics, Reports              string
	Endpoint                             string
	MatchedBlocks, PromptTokens, Attempt int
	MatchRatio                           float64
	PredictedTokens, CachedTokens        int
	Outcome, Reason, TokenNote           string
}

// process is a command epp that runs, and what it logs.
type process struct {
	t   *testing.T
	ctx context.Context

	cmd  *exec.Cmd
	read chan struct{} // closed when its log has ended
	once sync.Once     // ends it

	mu    sync.Mutex // guards the following fields
	lines []line
	next  chan struct{} // closed with the next line
	raw   strings.Builder
}

// startProcess starts epp with args; it is stopped at the test's end, if not
// before.
func startProcess(t *testing.T, args ...string) *process {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience+startPatience)
	p := &process{t: t, ctx: ctx, cmd: exec.Command(command, args...), read: make(chan struct{}), next: make(chan struct{})}
	stderr, err := p.cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		defer close(p.read)
		p.readLog(stderr)
	}()
	t.Cleanup(func() {
		p.stop()
		cancel()
		if t.Failed() {
			p.mu.Lock()
			defer p.mu.Unlock()
			t.Logf("the log of epp %s:\n%s", args[0], p.raw.String())
		}
	})
	return p
}

// stop ends the process and waits for that.
func (p *process) stop() {
	p.once.Do(func() {
		_ = p.cmd.Process.Signal(syscall.SIGTERM) // it may have ended
		<-p.read
		if err := p.cmd.Wait(); err != nil {
			p.t.Errorf("epp ended with %v", err)
		}
	})
}

// picker is epp serve as a process.
type picker struct {
	*process
	url, metrics string
	reports      string // where it takes reports; empty: nowhere
	client       *http.Client
}

// settings are what a test's picker has besides endpoints.
type settings struct {
	more    string // lines of YAML
	reports string // where agents report, host:port; empty: nowhere
}

// startPicker starts the picker before endpoints, each a line of YAML.
func startPicker(t *testing.T, endpoints ...string) *picker {
	t.Helper()
	return startPickerWith(t, settings{}, endpoints...)
}

// token is what agents show.
const token = "0123456789abcdef"

// startPickerWith starts the picker with settings.
func startPickerWith(t *testing.T, s settings, endpoints ...string) *picker {
	t.Helper()
	dir := t.TempDir()
	text := "pool:\n  endpoints:\n"
	for _, e := range endpoints {
		text += "    - " + e + "\n"
	}
	text += fmt.Sprintf("tokenizer: {path: %q}\n", pool.files.model) +
		fmt.Sprintf("listen: {proxy: \"127.0.0.1:0\", metrics: \"127.0.0.1:0\", extProc: \"\", health: \"\", reports: %q}\n", s.reports) +
		"timeouts: {drain: 100ms, finish: 10s}\n" + s.more
	if s.reports != "" {
		text += fmt.Sprintf("tls: {insecure: true}\nreports: {tokenFile: %q}\n", tokenFile(t))
	}
	file := filepath.Join(dir, "epp.yaml")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	p := &picker{
		process: startProcess(t, "serve", "--config", file, "--log-level", "trace"),
		client:  &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 64}},
	}
	t.Cleanup(p.client.CloseIdleConnections)
	p.until("it serves", func(log []line) bool {
		for _, l := range log {
			if l.Msg == "serving" {
				p.url, p.metrics, p.reports = "http://"+l.Proxy, "http://"+l.Metrics, l.Reports
			}
		}
		return p.url != ""
	})
	return p
}

// settled waits until the picker has a whole index of every endpoint.
func (p *picker) settled(names ...string) *picker {
	p.t.Helper()
	p.untilPage("all endpoints are known", func(page string) bool {
		for _, name := range names {
			if value(page, "epp_incomplete_endpoints", name) != 0 || value(page, "epp_stale_endpoints", name) != 0 {
				return false
			}
		}
		return true
	})
	p.untilModels("tiny", "sql", "chat")
	return p
}

// untilModels waits until the picker lists the models.
func (p *picker) untilModels(names ...string) {
	p.t.Helper()
	p.until("the models are listed", func([]line) bool {
		var list struct{ Data []struct{ ID string } }
		if err := json.Unmarshal(get(p.ctx, p.t, p.client, p.url+"/v1/models"), &list); err != nil {
			return false
		}
		return len(list.Data) >= len(names)
	})
}

// readLog keeps what is logged, but for TRACE's lines about pages, which come
// five times a second and only wake who waits.
func (p *process) readLog(r io.Reader) {
	for lines := bufio.NewReader(r); ; {
		text, err := lines.ReadString('\n')
		if err != nil {
			return
		}
		var l line
		known := json.Unmarshal([]byte(text), &l) == nil
		p.mu.Lock()
		if known && l.Level != "TRACE" {
			p.lines = append(p.lines, l)
		}
		if !known || l.Level != "TRACE" && l.Msg != "scored" && l.Msg != "received" {
			p.raw.WriteString(text)
		}
		close(p.next)
		p.next = make(chan struct{})
		p.mu.Unlock()
	}
}

// until waits until ok likes the log so far. It looks again with each of its
// lines: in a picker's there is one with each page that it reads of an engine, so one
// that waits for what shows elsewhere wakes, too.
func (p *process) until(what string, ok func(log []line) bool) {
	p.t.Helper()
	for {
		p.mu.Lock()
		next, log := p.next, p.lines
		p.mu.Unlock()
		if ok(log) {
			return
		}
		select {
		case <-next:
		case <-p.ctx.Done():
			p.t.Fatalf("waiting until %s: %v", what, p.ctx.Err())
		}
	}
}

// untilPage waits until the picker's metrics page is as wanted.
func (p *picker) untilPage(what string, ok func(page string) bool) {
	p.t.Helper()
	p.until(what, func([]line) bool { return ok(p.page()) })
}

func (p *picker) page() string {
	return string(get(p.ctx, p.t, p.client, p.metrics+"/metrics"))
}

// value is the sum of a family's samples on a page whose labels hold all texts;
// a text that names an endpoint stands alone.
func value(page, name string, texts ...string) (sum float64) {
lines:
	for text := range strings.Lines(page) {
		if !strings.HasPrefix(text, name+"{") && !strings.HasPrefix(text, name+" ") {
			continue
		}
		for _, want := range texts {
			if !strings.Contains(text, `"`+want+`"`) {
				continue lines
			}
		}
		var v float64
		if _, err := fmt.Sscan(text[strings.LastIndexByte(text, ' ')+1:], &v); err == nil {
			sum += v
		}
	}
	return sum
}

// blocks is how many blocks the picker believes an endpoint to hold.
func (p *picker) blocks(name string) int {
	return int(value(p.page(), "epp_endpoint_cached_blocks", name))
}

// find waits for the line with the message of a request.
func (p *process) find(msg, id string) (found line) {
	p.t.Helper()
	p.until(msg+" "+id, func(log []line) bool {
		for _, l := range log {
			if l.Msg == msg && l.RequestID == id {
				found = l // of several attempts the last
			}
		}
		return found.Msg != ""
	})
	return found
}

// atRest waits until the ledger is 0, and fails where a bound of ours had to end
// a booking.
func (p *picker) atRest() {
	p.t.Helper()
	p.untilPage("nothing is in flight", func(page string) bool {
		return value(page, "epp_in_flight_requests") == 0 && value(page, "epp_in_flight_tokens") == 0
	})
	if n := value(p.page(), "epp_booking_bound_total"); n != 0 {
		p.t.Errorf("%v bookings were ended by their bound", n)
	}
}

// get reads a page; what is not there is empty.
func get(ctx context.Context, t *testing.T, c *http.Client, url string) []byte {
	t.Helper()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := c.Do(req)
	if err != nil {
		return nil
	}
	defer resp.Body.Close()
	body, _ := io.ReadAll(resp.Body)
	return body
}

// answer is an answer of the picker or an engine.
type answer struct {
	status int
	id     string // the picker's
	body   []byte
	err    error
	Usage  struct {
		Prompt  int `json:"prompt_tokens"`
		Details *struct {
			Cached int `json:"cached_tokens"`
		} `json:"prompt_tokens_details"`
	}
	Choices []struct{ Message struct{ Content string } }
	Tokens  []uint32
}

// cached is how many tokens of the prompt the engine says it had.
func (a *answer) cached() int {
	if a.Usage.Details == nil {
		return -1
	}
	return a.Usage.Details.Cached
}

func (a *answer) text() string {
	if len(a.Choices) == 0 {
		return ""
	}
	return a.Choices[0].Message.Content
}

// post sends a body, bytes or what becomes JSON.
func post(ctx context.Context, c *http.Client, url string, body any) *answer {
	data, ok := body.([]byte)
	if !ok {
		var err error
		if data, err = json.Marshal(body); err != nil {
			return &answer{err: err}
		}
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(data))
	if err != nil {
		return &answer{err: err}
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := c.Do(req)
	if err != nil {
		return &answer{err: err}
	}
	defer resp.Body.Close()
	a := &answer{status: resp.StatusCode, id: resp.Header.Get("x-epp-request-id")}
	if a.body, a.err = io.ReadAll(resp.Body); a.err == nil && a.status == http.StatusOK && len(a.body) > 0 {
		a.err = json.Unmarshal(a.body, a)
	}
	return a
}

// must sends a body that has to succeed.
func must(t *testing.T, ctx context.Context, c *http.Client, url string, body any) *answer {
	t.Helper()
	a := post(ctx, c, url, body)
	if a.err != nil || a.status != http.StatusOK {
		t.Fatalf("POST %s: %d %s %v", url, a.status, a.body, a.err)
	}
	return a
}

// completion asks for one token after a prompt of token IDs.
func completion(model string, prompt []uint32, more ...any) map[string]any {
	body := map[string]any{"model": model, "prompt": prompt, "max_tokens": 1, "temperature": 0}
	for i := 0; i+1 < len(more); i += 2 {
		body[more[i].(string)] = more[i+1]
	}
	return body
}

// ask has the picker route a body and returns the answer with what the log says
// of it: the decision, and its end.
func (p *picker) ask(body map[string]any) (*answer, line, line) {
	p.t.Helper()
	a := must(p.t, p.ctx, p.client, p.url+"/v1/completions", body)
	return a, p.find("selected", a.id), p.find("ended", a.id)
}

// direct asks an engine past the picker.
func (p *picker) direct(e *server, body map[string]any) *answer {
	p.t.Helper()
	return must(p.t, p.ctx, p.client, "http://"+e.address+"/v1/completions", body)
}

// caughtUp waits until the picker counts as many blocks on each engine as the
// engine's own history does.
func (p *picker) caughtUp(engines ...*server) {
	p.t.Helper()
	for _, e := range engines {
		want := len(held(p.t, e.history(p.t)))
		deadline := time.Now().Add(settlePatience)
		p.untilPage(fmt.Sprintf("%s has %d blocks", e.name, want), func(page string) bool {
			n := int(value(page, "epp_endpoint_cached_blocks", e.name))
			if n != want && time.Now().After(deadline) {
				p.t.Fatalf("the picker counts %d blocks on %s, the engine's events %d", n, e.name, want)
			}
			return n == want
		})
	}
}

// auto is the line of an engine whose event sockets the picker asks for.
func (e *server) auto() string { return fmt.Sprintf("{name: %s, address: %q}", e.name, e.address) }
