package main

import (
	"context"
	"maps"
	"slices"
	"sync"
	"sync/atomic"

	"epp.internal/epp/config"
)

// entry is one endpoint that should be in the pool.
type entry struct {
	config.Endpoint                   // what it leaves open is the pool's
	UID             string            // of its pod; empty for a static endpoint
	Labels          map[string]string // descriptive; nil: none
}

// identity tells endpoints apart: what differs in any of it is another endpoint, which
// starts afresh.
type identity struct{ uid, address, name string }

// roster is the pool's endpoints as they are: each has a follower. It is the one way
// in which endpoints come and go.
type roster struct {
	s    *system
	ctx  context.Context // the followers'
	stop context.CancelFunc
	wg   sync.WaitGroup

	mu      sync.Mutex // held for a whole set; guards the following fields
	running map[identity]*follower
	closed  bool

	ready readiness
}

func newRoster(s *system) *roster {
	r := &roster{s: s, running: map[identity]*follower{}}
	r.ctx, r.stop = context.WithCancel(context.Background())
	return r
}

// setEndpoints makes the entries the pool: what is not among them has left for later
// picks when it returns, while its requests go on and end; what is new has joined. An
// entry that is there already stays as it is, with its blocks, health and bookings,
// whatever its labels; where its sources differ (events, engine, GPU) it is another
// endpoint too. Of two entries with one address the first counts, and of more than
// [config.MaxEndpoints] so many.
//
// It may be called from build on, by any goroutine; once run has ended it does
// nothing. Where the configuration names no endpoint, the first call is the pool's
// first sync, which readiness waits for.
func (s *system) setEndpoints(entries []entry) { s.roster.set(entries) }

// static are the endpoints that the configuration names.
func static(cfg *config.Config) []entry {
	entries := make([]entry, len(cfg.Pool.Endpoints))
	for i, e := range cfg.Pool.Endpoints {
		entries[i].Endpoint = e
	}
	return entries
}

// set is setEndpoints.
func (r *roster) set(entries []entry) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return
	}
	wanted, order, double := r.wanted(entries)
	var left, joined []string
	var leaving []*follower
	for id, f := range r.running {
		if e, stays := wanted[id]; !stays || !sameSources(&e.Endpoint, &f.e.Endpoint) {
			delete(r.running, id)
			leaving, left = append(leaving, f), append(left, id.name)
		}
	}
	for _, id := range order {
		if r.running[id] == nil {
			r.start(id, wanted[id])
			joined = append(joined, id.name)
		}
	}
	for _, f := range leaving { // after others have joined: no request finds nobody
		f.cancel()
	}
	for _, f := range leaving {
		<-f.left
	}
	first := r.ready.settle(len(r.running))
	r.s.renew()
	r.tell(first, joined, left, double)
	r.s.watch.changed()
}

// wanted completes the entries: by their identity, and in their order. double are the
// names of those that have another's address, or no room.
func (r *roster) wanted(entries []entry) (wanted map[identity]entry, order []identity, double []string) {
	wanted = make(map[identity]entry, len(entries))
	addresses := make(map[string]bool, len(entries))
	for _, e := range entries {
		e.Endpoint = r.s.cfg.Pool.Complete(e.Endpoint)
		if addresses[e.Address] || len(order) == config.MaxEndpoints {
			double = append(double, e.Name)
			continue
		}
		addresses[e.Address] = true
		id := identity{e.UID, e.Address, e.Name}
		wanted[id] = e
		order = append(order, id)
	}
	return wanted, order, double
}

// sameSources reports whether two endpoints are heard and read alike.
func sameSources(a, b *config.Endpoint) bool {
	return a.Events == b.Events && a.Replay == b.Replay && a.Engine == b.Engine &&
		a.GPU.DCGM == b.GPU.DCGM && slices.Equal(a.GPU.GPUs, b.GPU.GPUs)
}

// start lets an endpoint join, and follows it.
func (r *roster) start(id identity, e entry) {
	e.Labels = maps.Clone(e.Labels)
	ctx, cancel := context.WithCancel(r.ctx)
	f := newFollower(r.s, e, cancel, r.ready.contact())
	r.running[id] = f
	r.wg.Go(func() {
		defer cancel()
		f.run(ctx)
	})
}

// maxTold bounds the names in one line of the log.
const maxTold = 16

// tell logs what a set has changed.
func (r *roster) tell(first bool, joined, left, double []string) {
	if len(joined)+len(left) == 0 && !first {
		return
	}
	log := r.s.log
	slices.Sort(left)
	log.Info("pool changed", "endpoints", len(r.running), "joined", len(joined), "left", len(left),
		"names", slices.Concat(joined[:min(len(joined), maxTold)], left[:min(len(left), maxTold)]))
	if len(double) > 0 {
		log.Warn("endpoints left out: each has the address of another, or the pool is full", "count", len(double),
			"names", double[:min(len(double), maxTold)], "most", config.MaxEndpoints)
	}
	if len(r.running) == 0 {
		log.Warn("0 endpoints matched: the pool is empty, and requests are answered with 503 until one joins")
	}
}

// size is how many endpoints were asked for; one with several ranks counts once.
func (r *roster) size() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.running)
}

// close ends all followers, and returns when they have ended. No endpoint joins after
// it.
func (r *roster) close() {
	r.mu.Lock()
	r.closed = true
	r.mu.Unlock()
	r.stop()
	r.wg.Wait()
}

// readiness says whether the picker may be asked: when every endpoint of the first set
// was tried, and one of any set was reached, so that a dead endpoint, or one without a
// page, holds nothing up. What has left counts as tried. With no endpoint there is
// nothing to wait for: an empty pool is ready after its first set, and its requests are
// refused with the reason. What is ready stays so, whatever joins later.
type readiness struct {
	is atomic.Bool

	mu      sync.Mutex // guards the following fields
	settled bool       // the first set is whole
	untried int        // of the first set
	reached bool
	empty   bool
}

// contact is the first one with an endpoint, whatever its ranks.
type contact struct {
	r     *readiness
	first bool // it is of the first set
	tried sync.Once
	once  sync.Once // reached
}

// contact returns that of an endpoint that joins.
func (r *readiness) contact() *contact {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.settled {
		r.untried++
	}
	return &contact{r: r, first: !r.settled}
}

// settle is told that a set has ended with so many endpoints, and reports whether it
// was the first.
func (r *readiness) settle(endpoints int) (first bool) {
	r.note(func() {
		first = !r.settled
		r.settled, r.empty = true, endpoints == 0
	})
	return first
}

// asked is told that the endpoint was asked, and whether it took the question.
func (c *contact) asked(reached bool) {
	if reached {
		c.once.Do(func() { c.r.note(func() { c.r.reached = true }) })
	}
	c.gone()
}

// gone is told that the endpoint will not be asked, or was.
func (c *contact) gone() {
	c.tried.Do(func() {
		if c.first {
			c.r.note(func() { c.r.untried-- })
		}
	})
}

// note changes what is known, and concludes from it.
func (r *readiness) note(change func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	change()
	if r.settled && r.untried == 0 && (r.reached || r.empty) {
		r.is.Store(true)
	}
}

// state is for tests and logs: what readiness waits for.
func (r *readiness) state() (untried int, reached bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.untried, r.reached
}
