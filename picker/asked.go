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
	// askFailures in a row, slow answers among them, leave the source alone for
	// askPause, twice as long each further time, up to maxAskPause.
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

// asker has prompts tokenized by an engine. A request waits for it at most its
// budget, whatever the engine does.
type asker struct {
	ask    func(ctx context.Context, path string, body []byte) ([]uint32, error)
	budget time.Duration
	now    func() time.Time
	told   func(AskResult)
	slots  chan struct{}

	mu       sync.Mutex // guards the following fields
	known    map[[sha256.Size]byte]*list.Element
	order    *list.List // of *answered, the latest used in front
	bytes    int
	failed   int // in a row
	pause    time.Duration
	restedAt time.Time // not asked before that
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
		ask: opt.AskEngine, budget: opt.AskBudget, now: opt.Now, told: told, slots: make(chan struct{}, maxAsking),
		known: map[[sha256.Size]byte]*list.Element{}, order: list.New(), pause: askPause,
	}
}

// tokens returns the tokens of a prompt, which must not be changed. It waits
// until budget ends, at the longest, and asks nothing after that.
func (a *asker) tokens(budget context.Context, path string, body []byte) ([]uint32, error) {
	key := sha256.Sum256(append([]byte(path+"\x00"), body...))
	if tokens, ok := a.remembered(key); ok {
		a.told(AskRemembered)
		return tokens, nil
	}
	if budget.Err() != nil {
		return nil, errAskSlow // which an earlier question has told
	}
	if !a.allowed() {
		a.told(AskPaused)
		return nil, errAskAlone
	}
	select {
	case a.slots <- struct{}{}:
	default:
		a.told(AskBusy)
		return nil, errAskBusy
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
		tokens, err := a.ask(ctx, path, body)
		if err == nil {
			a.remember(key, tokens)
		}
		done <- answer{tokens, err}
	}()
	select {
	case got := <-done:
		a.settle(got.err)
		if got.err != nil {
			return nil, fmt.Errorf("engine's tokens: %w", got.err)
		}
		return got.tokens, nil
	case <-budget.Done():
		if !errors.Is(budget.Err(), context.DeadlineExceeded) {
			return nil, errAskLeft
		}
		a.settle(errAskSlow)
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

// allowed reports whether the source may be asked now. After a pause one
// question is let through, and decides.
func (a *asker) allowed() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.failed < askFailures {
		return true
	}
	now := a.now()
	if now.Before(a.restedAt) {
		return false
	}
	a.restedAt = now.Add(a.pause) // the others wait for this one's outcome
	return true
}

// settle counts how a question ended. An engine that refuses the request itself
// is in order.
func (a *asker) settle(err error) {
	var e *epp.Error
	refused := errors.As(err, &e) && (e.Kind == epp.BadRequest || e.Kind == epp.TooLarge)
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
	if err == nil || refused {
		a.failed, a.pause = 0, askPause
		return
	}
	if a.failed++; a.failed >= askFailures {
		a.restedAt = a.now().Add(a.pause)
		a.pause = min(2*a.pause, maxAskPause)
	}
}
