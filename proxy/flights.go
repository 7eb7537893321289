package proxy

import "sync"

// The retry budget of requirement S18: at most a tenth of the requests in
// flight may be second tries, but three always may.
const (
	retriesMin   = 3
	retriesShare = 10 // one in ten
)

// flights counts the requests in flight and those of them that are second
// tries. It keeps a pool that fails as a whole from getting twice its load.
type flights struct {
	mu      sync.Mutex // guards the following fields
	idle    *sync.Cond // inFlight became 0
	flying  int
	retries int // 0 <= retries <= flying
}

func (f *flights) init() { f.idle = sync.NewCond(&f.mu) }

func (f *flights) begin() {
	f.mu.Lock()
	f.flying++
	f.mu.Unlock()
}

func (f *flights) end() {
	f.mu.Lock()
	if f.flying--; f.flying == 0 {
		f.idle.Broadcast()
	}
	f.mu.Unlock()
}

func (f *flights) count() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.flying
}

// retry takes a second try out of the budget and reports whether there was one.
// retryEnd gives it back when the try has ended.
func (f *flights) retry() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.retries >= max(retriesMin, f.flying/retriesShare) {
		return false
	}
	f.retries++
	return true
}

func (f *flights) retryEnd() {
	f.mu.Lock()
	f.retries--
	f.mu.Unlock()
}

// wait returns when no request is in flight.
func (f *flights) wait() {
	f.mu.Lock()
	for f.flying > 0 {
		f.idle.Wait()
	}
	f.mu.Unlock()
}
