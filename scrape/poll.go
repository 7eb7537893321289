package scrape

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"math"
	"net"
	"net/http"
	"sync"
	"time"

	"epp.internal/epp"
)

const (
	// MaxPage bounds a page in bytes: a hundred times vLLM's.
	MaxPage = 8 << 20
	// maxModelList bounds the list of models in bytes, MaxModels in entries: one
	// that serves some thousand adapters.
	maxModelList = 4 << 20
	// MaxModels bounds the models of one endpoint.
	MaxModels = 4096

	// fastest is the interval of a small fleet, slowest the longest of any; budget
	// is the readings a second in all between the two. A page costs an engine 10
	// to 80 ms of its API process.
	fastest = 200 * time.Millisecond
	slowest = time.Second
	budget  = 320

	// Deadline bounds one reading. A reading that took longer would be too old to
	// trust when it arrived.
	Deadline = 2 * time.Second
	// modelsEvery is the interval between two readings of the models' list, and
	// modelsRetry the one after a reading that failed.
	modelsEvery = 5 * time.Second
	modelsRetry = time.Second
)

// Interval returns how often each of n endpoints is read: every 200 ms up to 64
// of them, beyond that as often as 320 readings a second in all allow, and at
// least once a second.
func Interval(n int) time.Duration {
	return min(max(fastest, time.Duration(n)*time.Second/budget), slowest)
}

// A Sink takes the readings of one endpoint. Models may be called while another
// method runs; the others are called one at a time.
type Sink interface {
	// Begin is called before a reading of the metrics begins. What it returns is
	// given to Load: fleet's count of its own requests in flight at that time.
	Begin(now time.Time) (mark int)
	// Load is called with a reading that began at began. It may keep l.
	Load(mark int, began time.Time, l epp.Load)
	// Models is called with each list of models that was read, in the engine's
	// order. It may keep models.
	Models(models []epp.Model)
	// Failed is called in place of Load where the reading failed.
	Failed(now time.Time, err error)
}

// Target says what to read.
type Target struct {
	// Address is host:port of the engine's API.
	Address string
	// Rank is the data-parallel rank, as the label Names.Engine has it, where
	// one page tells of several; empty for all of the page.
	Rank string
	// Kind is what engine it is; nil: found out, page by page, and vLLM where no
	// page tells.
	Kind *Engine
}

// Hooks are told of what happened, for metrics. A nil hook is not called; none
// may block.
type Hooks struct {
	// Reading is called for each reading of the metrics, with how long it took;
	// err is nil where it came to a Load.
	Reading func(took time.Duration, err error)
	// Bad is called for each value of a page that was refused, with its metric.
	Bad func(metric string)
}

// Client returns a client for a Group: connections are kept alive, redirects are
// not followed, no proxy is used, and bodies are not compressed, which would
// cost the engine more than the network. dial makes the connections; nil is TCP.
func Client(dial func(ctx context.Context, network, address string) (net.Conn, error)) *http.Client {
	if dial == nil {
		dial = (&net.Dialer{Timeout: Deadline}).DialContext
	}
	return &http.Client{
		Transport: &http.Transport{
			DialContext:            dial,
			DisableCompression:     true,
			MaxIdleConnsPerHost:    2, // metrics and models
			IdleConnTimeout:        90 * time.Second,
			MaxResponseHeaderBytes: 64 << 10,
		},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

// Group reads all endpoints of a pool. Set its fields, then call Run for each
// endpoint.
type Group struct {
	// Client is what [Client] returns; its owner closes its idle connections.
	Client *http.Client
	Hooks  Hooks
	// Log gets a line for each change of state; nil discards.
	Log *slog.Logger
	// Now is the clock; nil is time.Now.
	Now func() time.Time

	mu      sync.Mutex // guards the following fields
	running int
	started int
	began   time.Time // when the first one entered
}

// Run reads one endpoint until ctx ends, and returns its error. It is called in
// a goroutine of its own for each endpoint; the interval follows the number of
// those that run, and their readings are spread over it.
func (g *Group) Run(ctx context.Context, t Target, sink Sink) error {
	p := &poller{group: g, target: t, sink: sink, now: g.Now, log: g.Log, missing: map[string]bool{}}
	if p.now == nil {
		p.now = time.Now
	}
	if p.log == nil {
		p.log = slog.New(slog.DiscardHandler)
	}
	turn := g.enter()
	defer g.leave()
	var models sync.WaitGroup
	models.Go(func() { p.followModels(ctx) })
	defer models.Wait()
	for rest := 0.0; sleep(ctx, g.wait(turn, rest)); rest = 0.5 {
		p.read(ctx)
	}
	return ctx.Err()
}

// enter counts an endpoint in and returns which one it is.
func (g *Group) enter() (turn int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.started == 0 {
		g.began = time.Now()
	}
	g.running++
	g.started++
	return g.started - 1
}

func (g *Group) leave() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.running--
}

// wait returns how long the endpoint waits for its next reading: until its place
// in the interval comes round, but at least rest intervals, so that an engine
// that takes long to answer is left alone for a while. Multiples of the golden
// ratio spread the places of any number of endpoints evenly.
func (g *Group) wait(turn int, rest float64) time.Duration {
	g.mu.Lock()
	defer g.mu.Unlock()
	every := Interval(g.running)
	_, place := math.Modf(float64(turn) * (math.Sqrt(5) - 1) / 2)
	least := time.Duration(rest * float64(every))
	earliest := time.Since(g.began) + least - time.Duration(place*float64(every))
	return least + (every-earliest%every)%every
}

// sleep waits for d, and returns false where ctx ended first.
func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	}
}

// poller reads one endpoint.
type poller struct {
	group  *Group
	target Target
	sink   Sink
	now    func() time.Time
	log    *slog.Logger

	page    Page
	kind    *Engine         // of the last page
	missing map[string]bool // metrics whose absence was told
	failing bool            // the last reading failed
	faulty  bool            // the last page had a fault
}

// buffers hold pages between readings: few are read at the same time.
var buffers = sync.Pool{New: func() any { return new(bytes.Buffer) }}

// keepBuffer is the largest buffer that is kept.
const keepBuffer = 1 << 20

func putBuffer(buf *bytes.Buffer) {
	if buf.Cap() <= keepBuffer {
		buffers.Put(buf)
	}
}

// read makes one reading.
func (p *poller) read(ctx context.Context) {
	began := p.now()
	mark := p.sink.Begin(began)
	buf := buffers.Get().(*bytes.Buffer)
	defer putBuffer(buf)
	err := get(ctx, p.group.Client, p.target.Address, p.path(), MaxPage, buf)
	if ctx.Err() != nil {
		return
	}
	ended := p.now()
	if h := p.group.Hooks.Reading; h != nil {
		h(ended.Sub(began), err)
	}
	if err != nil {
		p.sink.Failed(ended, err)
	} else {
		p.parse(buf.Bytes())
		p.sink.Load(mark, began, p.page.Load)
	}
	if failing := err != nil; failing != p.failing {
		p.failing = failing
		if failing {
			p.log.Warn("scrape fails", "address", p.target.Address, "error", err)
		} else {
			p.log.Info("scrape works again", "address", p.target.Address)
		}
	}
}

// path is where the endpoint's page is.
func (p *poller) path() string {
	if k := p.target.Kind; k != nil {
		return k.Path
	}
	return VLLM.Path
}

// parse reads a page, and tells of what is wrong with it when that is new.
func (p *poller) parse(page []byte) {
	kind := cmp.Or(p.target.Kind, Detect(page), &VLLM)
	if p.kind != kind {
		p.kind = kind
		if !kind.Run {
			p.log.Warn("scrape: this engine's metrics are known from documentation alone", "address", p.target.Address, "engine", kind.Name)
		}
	}
	err := Parse(page, kind.Names, p.target.Rank, &p.page)
	if h := p.group.Hooks.Bad; h != nil {
		for _, metric := range p.page.Bad {
			h(metric)
		}
	}
	if faulty := err != nil; faulty != p.faulty {
		p.faulty = faulty
		if faulty {
			p.log.Warn("scrape: bad page", "address", p.target.Address, "error", err)
		} else {
			p.log.Info("scrape: page is good again", "address", p.target.Address)
		}
	}
	for _, metric := range p.page.Missing {
		if !p.missing[metric] {
			p.missing[metric] = true
			p.log.Warn("scrape: metric missing, taken as unknown", "address", p.target.Address, "metric", metric)
		}
	}
}

// Fetch reads the metrics page of the engine at address (host:port) once, for
// [Parse]; a [Group] does so again and again.
func Fetch(ctx context.Context, client *http.Client, address string) ([]byte, error) {
	var buf bytes.Buffer
	err := get(ctx, client, address, "/metrics", MaxPage, &buf)
	return buf.Bytes(), err
}

// get reads one path of an engine into buf, at most limit bytes.
func get(ctx context.Context, client *http.Client, address, path string, limit int64, buf *bytes.Buffer) error {
	if err := fetch(ctx, client, "http://"+address+path, limit, buf); err != nil {
		return fmt.Errorf("scrape %s: %s: %w", address, path, err)
	}
	return nil
}

// fetch reads url into buf, at most limit bytes.
func fetch(ctx context.Context, client *http.Client, url string, limit int64, buf *bytes.Buffer) error {
	buf.Reset()
	ctx, cancel := context.WithTimeout(ctx, Deadline)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	resp, err := client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		_, _ = io.CopyN(io.Discard, resp.Body, 4<<10) // so that the connection can be kept
		return fmt.Errorf("status %d", resp.StatusCode)
	}
	n, err := buf.ReadFrom(io.LimitReader(resp.Body, limit+1))
	switch {
	case err != nil:
		return err
	case n > limit:
		return fmt.Errorf("over %d bytes", limit)
	}
	return nil
}

// followModels reads the list of models, at once and then every few seconds.
func (p *poller) followModels(ctx context.Context) {
	failing := false
	for {
		models, err := Models(ctx, p.group.Client, p.target.Address)
		if ctx.Err() != nil {
			return
		}
		wait := modelsEvery
		if err != nil {
			wait = modelsRetry
			if !failing {
				p.log.Warn("models unknown", "address", p.target.Address, "error", err)
			}
		} else {
			p.sink.Models(models)
		}
		failing = err != nil
		if !sleep(ctx, wait) {
			return
		}
	}
}

// Models reads the list of models, /v1/models, of the engine at address
// (host:port) once.
func Models(ctx context.Context, client *http.Client, address string) ([]epp.Model, error) {
	buf := buffers.Get().(*bytes.Buffer)
	defer putBuffer(buf)
	if err := get(ctx, client, address, "/v1/models", maxModelList, buf); err != nil {
		return nil, err
	}
	models, err := parseModels(buf.Bytes())
	if err != nil {
		return nil, fmt.Errorf("scrape %s: /v1/models: %w", address, err)
	}
	return models, nil
}

// parseModels reads the answer of /v1/models: OpenAI's list, to whose entries
// vLLM adds "parent" (of an adapter) and "max_model_len" (of a base model).
func parseModels(body []byte) ([]epp.Model, error) {
	var list struct {
		Data []struct {
			ID        string  `json:"id"`
			Parent    *string `json:"parent"`
			MaxTokens *int64  `json:"max_model_len"`
		} `json:"data"`
	}
	if err := json.Unmarshal(body, &list); err != nil {
		return nil, err
	}
	if len(list.Data) > MaxModels {
		return nil, fmt.Errorf("%d models, at most %d", len(list.Data), MaxModels)
	}
	models := make([]epp.Model, 0, len(list.Data))
	for _, d := range list.Data {
		if d.ID == "" {
			continue
		}
		m := epp.Model{Name: d.ID}
		if d.Parent != nil {
			m.Parent = *d.Parent
		}
		if d.MaxTokens != nil && *d.MaxTokens > 0 && *d.MaxTokens < maxSize {
			m.MaxTokens = int(*d.MaxTokens)
		}
		models = append(models, m)
	}
	return models, nil
}
