package picker

import (
	"context"
	"fmt"
	"runtime"
	"time"
)

// The bounds of tokenizing. The longest text costs the most where it is one word:
// 1.3 µs and 30 bytes of memory a byte (4 MiB of random letters took 5 s).
const (
	// DefaultMaxPromptBytes is a million tokens of English.
	DefaultMaxPromptBytes = 4 << 20

	// longBytes is the length from which texts are tokenized in turns, by half of the
	// cores. A guess: a text of that length takes some milliseconds.
	longBytes = 256 << 10
	// maxTurnWait is how long a long text waits for its turn. A guess: without its
	// tokens it is computed anew, which takes longer.
	maxTurnWait = 2 * time.Second
)

// turns has the long texts tokenized a few at a time.
type turns chan struct{}

func newTurns() turns { return make(turns, max(1, runtime.GOMAXPROCS(0)/2)) }

// take waits for the turn of so many bytes of text. done gives the turn back; why
// says why there is none.
func (t turns) take(ctx context.Context, bytes, most int) (done func(), why string) {
	done = func() {}
	switch {
	case bytes > most:
		return done, fmt.Sprintf("%d bytes of text are over the bound of %d (limits.promptBytes)", bytes, most)
	case bytes < longBytes:
		return done, ""
	}
	late := time.NewTimer(maxTurnWait)
	defer late.Stop()
	select {
	case t <- struct{}{}:
		return func() { <-t }, ""
	case <-ctx.Done():
		return done, errLeft.Error()
	case <-late.C:
		return done, fmt.Sprintf("other long prompts took longer than %v", maxTurnWait)
	}
}
