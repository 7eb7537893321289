package picker

import (
	"container/list"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"sync"
	"time"

	"epp.internal/epp"
	"epp.internal/epp/fleet"
)

// The defaults and bounds of asking an engine for tokens.
const (
	// DefaultAskBudget is how long a request waits for an engine's tokens.
	DefaultAskBudget = 20 * time.Millisecond

	// askTimeout is how long an answer is waited for behind the request's back:
	// one that comes too late for it is remembered for the next with this prompt.
	askTimeout = 2 * time.Second
	// maxAsking bounds the questions under way. A guess: an engine tokenizes in
	// its API process, and more would queue there.
	maxAsking = 16
	// maxAskedBytes bounds what is remembered: about 1,000 prompts of 4,096 tokens.
	maxAskedBytes = 16 << 20
	// askedOverhead is what an entry takes beside its tokens.
	askedOverhead = 200
	// askFailures of an endpoint's path in a row, slow answers among them, leave it alone
	// for askPause, twice as long each further time, up to maxAskPause.
	askFailures = 3
	askPause    = 5 * time.Second
	maxAskPause = time.Minute
)

// The reasons for which no engine's tokens were had, beside the engine's own.
var (
	errAskSlow  = errors.New("engine's tokens did not come within the budget")
	errAskLeft  = errors.New("the client left before an engine told the tokens")
	errAskBusy  = errors.New("too many questions to engines are under way")
	errAskAlone = errors.New("engine's tokens failed or were slow before: it is left alone for a while")
	errAskNone  = errors.New("no healthy endpoint lists the model, so none is asked")
)

// AskResult says how a question for an engine's tokens ended.
type AskResult string

// The results of a question.
const (
	AskTold       AskResult = "told"       // the engine told them in time
	AskRemembered AskResult = "remembered" // it had told them before
	AskLate       AskResult = "late"       // not within the budget
	AskBusy       AskResult = "busy"       // not asked: too many questions were under way
	AskPaused     AskResult = "paused"     // not asked: it failed or was slow before
	AskRefused    AskResult = "refused"    // the engine refuses the request itself
	AskFailed     AskResult = "failed"     // no engine, no such path, or a broken answer
)

// asker has prompts tokenized by engines. A request waits for them at most its
// budget, whatever they do.
//
// Lock order: mu, then the fleet's.
type asker struct {
	ask    func(ctx context.Context, at epp.Endpoint, path string, body []byte) ([]uint32, error)
	fleet  *fleet.Table
	budget time.Duration
	now    func() time.Time
	told   func(AskResult)
	slots  chan struct{}

	mu      sync.Mutex // guards the following fields
	known   map[[sha256.Size]byte]*list.Element
	order   *list.List // of *answered, the latest used in front
	bytes   int
	sources map[asked]*source
}

// asked is what questions are put to: an engine may lack /render and have /tokenize.
type asked struct {
	slot epp.Slot
	path string
}

// source is how the questions to one endpoint's path have ended.
type source struct {
	generation uint32
	failed     int // in a row
	pause      time.Duration
	restedAt   time.Time // not asked before that
}

type answered struct {
	key    [sha256.Size]byte
	tokens []uint32
}

func newAsker(opt *Options) *asker {
	if opt.AskEngine == nil {
		return nil
	}
	told := opt.Hooks.Asked
	if told == nil {
		told = func(AskResult) {}
	}
	return &asker{
		ask: opt.AskEngine, fleet: opt.Fleet, budget: opt.AskBudget, now: opt.Now, told: told, slots: make(chan struct{}, maxAsking),
		known: map[[sha256.Size]byte]*list.Element{}, order: list.New(), sources: map[asked]*source{},
	}
}

// tokens returns the tokens of a prompt for a model, which must not be changed. It waits
// until budget ends, at the longest, and asks nothing after that.
func (a *asker) tokens(budget context.Context, target, path string, body []byte) ([]uint32, error) {
	key := sha256.Sum256(append([]byte(path+"\x00"), body...))
	if tokens, ok := a.remembered(key); ok {
		a.told(AskRemembered)
		return tokens, nil
	}
	if budget.Err() != nil {
		return nil, errAskSlow // which an earlier question has told
	}
	select {
	case a.slots <- struct{}{}:
	default:
		a.told(AskBusy)
		return nil, errAskBusy
	}
	at, listed, err := a.choose(target, path)
	if err != nil {
		<-a.slots
		return nil, err
	}
	type answer struct {
		tokens []uint32
		err    error
	}
	done := make(chan answer, 1)
	go func() {
		defer func() { <-a.slots }()
		ctx, cancel := context.WithTimeout(context.Background(), askTimeout)
		defer cancel()
		tokens, err := a.ask(ctx, at, path, body)
		if err == nil {
			a.remember(key, tokens)
		}
		done <- answer{tokens, err}
	}()
	select {
	case got := <-done:
		a.settle(at, path, listed, got.err)
		if got.err != nil {
			return nil, fmt.Errorf("engine's tokens: %w", got.err)
		}
		return got.tokens, nil
	case <-budget.Done():
		if !errors.Is(budget.Err(), context.DeadlineExceeded) {
			return nil, errAskLeft
		}
		a.settle(at, path, listed, errAskSlow)
		return nil, errAskSlow
	}
}

// remembered looks the tokens up that were told before.
func (a *asker) remembered(key [sha256.Size]byte) ([]uint32, bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	e, ok := a.known[key]
	if !ok {
		return nil, false
	}
	a.order.MoveToFront(e)
	return e.Value.(*answered).tokens, true
}

// remember keeps the tokens; what was not used the longest makes room.
func (a *asker) remember(key [sha256.Size]byte, tokens []uint32) {
	size := 4*len(tokens) + askedOverhead
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.known[key] != nil || size > maxAskedBytes {
		return
	}
	for a.bytes+size > maxAskedBytes {
		oldest := a.order.Remove(a.order.Back()).(*answered)
		delete(a.known, oldest.key)
		a.bytes -= 4*len(oldest.tokens) + askedOverhead
	}
	a.bytes += size
	a.known[key] = a.order.PushFront(&answered{key, tokens})
}

// choose returns the endpoint to ask about a model, and whether it lists that: one
// whose path has not failed last, as long as there is one, else any that is not left
// alone. After a pause one question is let through, and decides.
func (a *asker) choose(target, path string) (at epp.Endpoint, listed bool, err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	now, alone := a.now(), false
	at, listed, ok := a.fleet.Asked(target, func(e epp.Endpoint) bool { return a.source(e, path).failed > 0 })
	if !ok {
		at, listed, ok = a.fleet.Asked(target, func(e epp.Endpoint) bool {
			s := a.source(e, path)
			rests := s.failed >= askFailures && now.Before(s.restedAt)
			alone = alone || rests
			return rests
		})
	}
	switch {
	case !ok && alone:
		a.told(AskPaused)
		return at, false, errAskAlone
	case !ok:
		a.told(AskFailed)
		return at, false, errAskNone
	}
	if s := a.source(at, path); s.failed >= askFailures {
		s.restedAt = now.Add(s.pause) // the others wait for this one's outcome
	}
	return at, listed, nil
}

// source returns what is known of an endpoint's path. a.mu is held.
func (a *asker) source(e epp.Endpoint, path string) *source {
	key := asked{e.Slot, path}
	s := a.sources[key]
	if s == nil || s.generation != e.Generation {
		s = &source{generation: e.Generation, pause: askPause}
		a.sources[key] = s
	}
	return s
}

// settle counts how a question to an endpoint ended. An engine that refuses the
// request itself is in order, and one that is not known to have the model may say so.
func (a *asker) settle(at epp.Endpoint, path string, listed bool, err error) {
	var e *epp.Error
	refused := errors.As(err, &e) && (e.Kind == epp.BadRequest || e.Kind == epp.TooLarge || e.Kind == epp.NotFound && !listed)
	switch {
	case err == nil:
		a.told(AskTold)
	case refused:
		a.told(AskRefused)
	case errors.Is(err, errAskSlow):
		a.told(AskLate)
	default:
		a.told(AskFailed)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	s := a.source(at, path)
	if err == nil || refused {
		s.failed, s.pause = 0, askPause
		return
	}
	if s.failed++; s.failed >= askFailures {
		s.restedAt = a.now().Add(s.pause)
		s.pause = min(2*s.pause, maxAskPause)
	}
}
