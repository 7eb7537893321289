package sim

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"epp.internal/epp"
	"epp.internal/epp/block"
	"epp.internal/epp/engine"
	"epp.internal/epp/fleet"
	"epp.internal/epp/kvindex"
	"epp.internal/epp/picker"
	"epp.internal/epp/trace"
)

// epoch is when every run begins.
var epoch = time.Unix(1_700_000_000, 0).UTC()

// baseModel is the model that every endpoint serves; adapters are listed beside it.
const baseModel = "base"

// world is one run.
type world struct {
	cfg    Config
	agenda agenda
	at     int64 // now, in nanoseconds from the start
	rand   *rand.Rand

	index     *kvindex.Index
	fleet     *fleet.Table
	key       block.Key
	router    router
	endpoints []*endpoint
	// byGeneration finds the endpoint of a member: fleet counts them from 1.
	byGeneration []*endpoint
	adapters     []string
	readsEvents  bool

	outcomes    []Outcome
	nextArrival int
	open        int // requests that have arrived and not ended
	retried     int // those of them that were sent a second time

	// Memory that is used again: of prompts and answers, the oldest first, and of
	// batches.
	retired []retired
	batches []*batch
}

// flight is one request under way.
type flight struct {
	number   int
	req      *trace.Request
	tokens   []uint32
	engine   *engine.Request
	at       *endpoint
	place    int // in at.flights
	attempts int
	retried  bool
	answered bool
	// carried is the router's own.
	pick *picker.Pick
	sent
}

// router decides for a flight and books it: our picker, or another's policy.
type router interface {
	// pick returns the endpoint's generation, or false where there is none.
	pick(f *flight) (generation uint32, ok bool)
	// again is pick after f.at has failed f before its answer began.
	again(f *flight, o picker.Outcome) (generation uint32, ok bool)
	answered(f *flight, status int)
	end(f *flight, o picker.Outcome)
}

// Run carries out one run. The error is a fault of cfg, or ctx's.
func Run(ctx context.Context, cfg Config) (*Result, error) {
	if err := ctx.Err(); err != nil { // a short run does not look again
		return nil, err
	}
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	w, err := newWorld(cfg)
	if err != nil {
		return nil, err
	}
	if err := w.run(ctx); err != nil {
		return nil, err
	}
	return w.result(), nil
}

func newWorld(cfg Config) (*world, error) {
	w := &world{
		cfg:      cfg,
		rand:     rand.New(rand.NewPCG(cfg.Seed, 0x73696d)),
		outcomes: make([]Outcome, len(cfg.Trace.Requests)),
	}
	w.key = block.Key(w.rand.Uint64())
	w.index = kvindex.New(kvindex.Options{Key: w.key, MaxEndpointShare: 1})
	w.fleet = fleet.New(fleet.Options{Index: w.index, BookingBound: 100 * drain})
	seen := map[string]bool{}
	for i := range cfg.Trace.Requests {
		if a := cfg.Trace.Requests[i].Adapter; a != "" && !seen[a] {
			seen[a] = true
			w.adapters = append(w.adapters, a)
		}
	}
	p := PolicyNamed(cfg.Policy)
	if s := cfg.Settings; s != nil {
		p = &Policy{cfg.Policy, "", true, func(w *world) (router, error) { own := *s; return newProduct(w, &own) }}
	}
	w.readsEvents = p.readsEvents
	var err error
	if w.router, err = p.make(w); err != nil {
		return nil, fmt.Errorf("sim: policy %s: %w", p.Name, err)
	}
	for i := range cfg.Endpoints {
		if err := w.addEndpoint(i); err != nil {
			return nil, err
		}
	}
	for i := range cfg.Faults {
		w.agenda.plan(happening{at: int64(cfg.Faults[i].At), what: faultBegin, which: uint64(i)})
	}
	w.planArrival()
	return w, nil
}

// now is the run's clock.
func (w *world) now() time.Time { return epoch.Add(time.Duration(w.at)) }

func (w *world) planArrival() {
	if w.nextArrival < len(w.cfg.Trace.Requests) {
		w.agenda.plan(happening{at: int64(w.cfg.Trace.Requests[w.nextArrival].At), what: arrival})
	}
}

// checkEvery is how many events pass between two looks at ctx and two reports of
// progress.
const checkEvery = 1 << 14

func (w *world) run(ctx context.Context) error {
	requests := w.cfg.Trace.Requests
	last := int64(requests[len(requests)-1].At + drain)
	for n := 1; w.nextArrival < len(requests) || w.open > 0; n++ {
		h := w.agenda.next()
		if h.at > last {
			break
		}
		w.at = h.at
		w.happen(&h)
		if n%checkEvery == 0 {
			if err := ctx.Err(); err != nil {
				return err
			}
			w.cfg.Progress(float64(w.nextArrival) / float64(len(requests)))
		}
	}
	for _, e := range w.endpoints { // what never ended
		for len(e.flights) > 0 {
			w.lose(e.flights[0], picker.TimedOut)
		}
	}
	return nil
}

func (w *world) happen(h *happening) {
	switch h.what {
	case arrival:
		w.arrive()
	case wake:
		w.endpoints[h.who].wake(w, h.which)
	case readingBegin:
		w.endpoints[h.who].beginReading(w, h.which)
	case readingEnd:
		w.endpoints[h.who].endReading(w, h.body.(*reading))
	case delivery:
		w.endpoints[h.who].deliver(w, h.body.(*batch))
	case faultBegin:
		w.beginFault(int(h.which))
	case faultEnd:
		w.endFault(int(h.which))
	}
}

// arrive takes the next request of the trace.
func (w *world) arrive() {
	i := w.nextArrival
	w.nextArrival++
	w.planArrival()
	r := &w.cfg.Trace.Requests[i]
	o := &w.outcomes[i]
	*o = Outcome{At: r.At, PromptTokens: r.PromptTokens(), AnswerTokens: r.Answer.Tokens, Endpoint: -1}
	tokens := r.AppendPrompt(w.memory(o.PromptTokens + r.Answer.Tokens))
	tokens = r.Answer.AppendTokens(tokens)
	f := &flight{number: i, req: r, tokens: tokens[:o.PromptTokens]}
	f.engine = &engine.Request{ID: uint64(i), Tokens: f.tokens, Answer: tokens[o.PromptTokens:], Adapter: r.Adapter, Owner: f}
	w.open++
	generation, ok := w.router.pick(f)
	w.send(f, generation, ok)
}

// send gives f to the endpoint that was picked, and where that takes no connection
// once more, to the next one.
func (w *world) send(f *flight, generation uint32, ok bool) {
	for ok {
		f.at = w.byGeneration[generation-1]
		f.attempts++
		o := f.at.take(w, f)
		if o == picker.Served {
			return
		}
		if !w.retry(f) {
			w.router.end(f, o)
			break
		}
		generation, ok = w.router.again(f, o)
	}
	w.fail(f)
}

// The retry budget, as the proxy has it: one second try of each request, and at most
// a tenth of the requests in flight, but three always. A gateway in front of the
// other routers is taken to do the same.
const (
	retriesMin   = 3
	retriesShare = 10
)

// retry takes a second try of f out of the budget and reports whether there was one.
func (w *world) retry(f *flight) bool {
	if f.retried || w.retried >= max(retriesMin, w.open/retriesShare) {
		return false
	}
	f.retried = true
	w.retried++
	return true
}

// close takes f off the counters.
func (w *world) close(f *flight) {
	w.open--
	if f.retried {
		w.retried--
	}
}

// fail notes that nobody served f.
func (w *world) fail(f *flight) {
	w.close(f)
	o := &w.outcomes[f.number]
	o.Failed, o.Attempts = true, f.attempts
}

// lose breaks f off: it is sent elsewhere where its answer has not begun.
func (w *world) lose(f *flight, o picker.Outcome) {
	f.at.drop(f)
	f.at.engine.Abort(w.now(), f.engine)
	if f.answered || o == picker.TimedOut || !w.retry(f) {
		w.router.end(f, o)
		w.fail(f)
		return
	}
	f.engine = &engine.Request{ID: f.engine.ID, Tokens: f.engine.Tokens, Answer: f.engine.Answer, Adapter: f.engine.Adapter, Owner: f}
	generation, ok := w.router.again(f, o)
	w.send(f, generation, ok)
}

// token passes on what a step brought f.
func (w *world) token(f *flight, finished bool) {
	o := &w.outcomes[f.number]
	now := time.Duration(w.at)
	if !f.answered {
		f.answered = true
		o.TTFT = now - o.At
		f.at.firstTokens += o.TTFT.Seconds()
		w.router.answered(f, 200)
	}
	if !finished {
		return
	}
	w.close(f)
	o.E2E, o.CachedTokens, o.Endpoint, o.Attempts = now-o.At, f.engine.CachedTokens(), f.at.number, f.attempts
	f.at.drop(f)
	w.router.end(f, picker.Served)
	// The engine is done with it, and its events come within the lag. What broke off
	// is left alone: a step under way may still speak of it.
	w.retired = append(w.retired, retired{w.at + int64(w.cfg.EventLag), f.tokens[:0]})
}

// retired is the memory of a prompt and its answer that nothing points to any more
// after a time.
type retired struct {
	after  int64
	tokens []uint32
}

// memory returns an empty slice with room for n tokens.
func (w *world) memory(n int) []uint32 {
	for i := range min(len(w.retired), memoryTries) {
		r := w.retired[i]
		if r.after >= w.at {
			break
		}
		if cap(r.tokens) >= n {
			w.retired = slices.Delete(w.retired, i, i+1)
			return r.tokens
		}
	}
	return make([]uint32, 0, max(n, minMemory))
}

// memoryTries is how many retired slices are looked at for one that is long enough.
const memoryTries = 8

// minMemory is the least room that is made for a request, in tokens: most fit.
const minMemory = 1 << 15

func (w *world) result() *Result {
	r := &Result{Policy: w.cfg.Policy, Seed: w.cfg.Seed, Requests: w.outcomes, Virtual: time.Duration(w.at)}
	for _, e := range w.endpoints {
		r.Endpoints = append(r.Endpoints, EndpointResult{Name: e.name, Busy: e.busy, Dollars: e.busy.Hours() * profileOf(e.cfg).DollarsPerHour, Requests: e.taken, Preemptions: e.preemptions()})
	}
	if p, ok := w.router.(*product); ok {
		r.Decisions = p.picker.Ring()
	}
	return r
}

// models are what every endpoint lists.
func (w *world) models() []epp.Model {
	list := []epp.Model{{Name: baseModel}}
	for _, a := range w.adapters {
		list = append(list, epp.Model{Name: a, Parent: baseModel})
	}
	return list
}
