package epptest

import (
	"context"
	"net"
	"net/http"
	"sync"
	"time"

	"epp.internal/epp/engine"
)

// process is one life of an engine, from start to crash: the sockets, the model,
// and the goroutine that moves the model along with the clock.
type process struct {
	owner    *Engine
	cfg      EngineConfig
	listener net.Listener // the owner's life guards it
	refusing bool         // so it does this: the listener is closed
	server   *http.Server
	events   *publisher // nil without events
	started  time.Time
	done     chan struct{}  // closed by kill
	wakeup   chan struct{}  // room for one: the model has changed
	serving  sync.WaitGroup // the driver, the server and the handlers

	mu         sync.Mutex // guards the following fields
	model      *engine.Engine
	replies    map[*engine.Request]*reply
	changed    chan struct{} // closed and replaced when the model's load may have changed
	adapters   []loadedAdapter
	adapterIDs int // ever loaded; vLLM numbers adapters from 1
	stats      statistics
	sleepLevel int
	lastID     uint64
	conns      map[net.Conn]struct{}
	ended      bool // no handler may begin
}

// loadedAdapter is a LoRA adapter that requests can name.
type loadedAdapter struct {
	name, path string
	id         int
}

// startProcess opens the sockets and starts to serve.
func startProcess(owner *Engine, cfg EngineConfig) (*process, error) {
	p := &process{
		owner:   owner,
		cfg:     cfg,
		started: time.Now(),
		done:    make(chan struct{}),
		wakeup:  make(chan struct{}, 1),
		replies: make(map[*engine.Request]*reply),
		changed: make(chan struct{}),
		conns:   make(map[net.Conn]struct{}),
		stats:   statistics{finished: make(map[string]uint64)},
	}
	var err error
	if p.model, err = engine.New(p.cfg.Engine); err != nil {
		return nil, err
	}
	if p.listener, err = listen(p.cfg.Address); err != nil {
		return nil, err
	}
	if !p.cfg.NoEvents {
		if p.events, err = startPublisher(&p.cfg); err != nil {
			p.listener.Close()
			return nil, err
		}
	}
	for _, name := range p.cfg.Adapters {
		p.addAdapter(name, "/adapters/"+name)
	}
	p.server = &http.Server{Handler: p.handler(), ConnState: p.trackConn}
	p.serving.Add(2)
	go func() {
		defer p.serving.Done()
		p.drive()
	}()
	go p.serve(p.listener)
	return p, nil
}

func (p *process) serve(l net.Listener) {
	defer p.serving.Done()
	_ = p.server.Serve(l) // returns when the listener is closed
}

// trackConn keeps the set of open connections, so that a crash can reset them.
func (p *process) trackConn(c net.Conn, s http.ConnState) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch s {
	case http.StateNew:
		p.conns[c] = struct{}{}
	case http.StateClosed, http.StateHijacked:
		delete(p.conns, c)
	}
}

// enter notes that a handler begins, and returns false if none may any more.
func (p *process) enter() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.ended {
		p.serving.Add(1)
	}
	return !p.ended
}

// kill ends the process at once and waits for its goroutines.
func (p *process) kill() {
	close(p.done)
	p.listener.Close()
	p.mu.Lock()
	p.ended = true
	for c := range p.conns {
		if tcp, ok := c.(*net.TCPConn); ok {
			tcp.SetLinger(0)
		}
	}
	p.mu.Unlock()
	p.server.Close()
	if p.events != nil {
		p.events.close()
	}
	p.serving.Wait()
}

// refuse closes the HTTP port, or opens it again. The owner's life is held.
func (p *process) refuse(on bool) error {
	if on == p.refusing {
		return nil
	}
	p.server.SetKeepAlivesEnabled(!on) // closes idle connections when off
	if on {
		p.refusing = true
		return p.listener.Close()
	}
	l, err := listen(p.owner.Address())
	if err != nil {
		return err
	}
	p.listener, p.refusing = l, false
	p.serving.Add(1)
	go p.serve(l)
	return nil
}

// now is the model's time. It runs from the process's start, faster or slower
// than the clock by TimeScale.
func (p *process) now() time.Time {
	return p.started.Add(time.Duration(float64(time.Since(p.started)) / p.cfg.TimeScale))
}

// change brings the model up to the present and then lets f change it.
func (p *process) change(f func(now time.Time)) {
	p.mu.Lock()
	now := p.now()
	p.catchUp(now)
	f(now)
	p.noteChange()
	p.mu.Unlock()
	select {
	case p.wakeup <- struct{}{}:
	default:
	}
}

// noteChange wakes those who wait for a certain load. p.mu is held.
func (p *process) noteChange() {
	close(p.changed)
	p.changed = make(chan struct{})
}

// load is what the model says of its queue at present.
func (p *process) load() engine.Load {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.model.Load()
}

// drive moves the model along until the process ends. It sleeps until something
// is due or the model was changed.
func (p *process) drive() {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		p.mu.Lock()
		now := p.now()
		p.catchUp(now)
		at, due := p.model.Next()
		p.mu.Unlock()
		var fire <-chan time.Time
		if due {
			timer.Reset(max(0, p.cfg.scaled(at.Sub(now))))
			fire = timer.C
		}
		select {
		case <-fire:
		case <-p.wakeup:
		case <-p.done:
			return
		}
	}
}

// catchUp does all that is due by now, each at its own time. p.mu is held.
func (p *process) catchUp(now time.Time) {
	advanced := false
	for at, ok := p.model.Next(); ok && !at.After(now); at, ok = p.model.Next() {
		step := p.model.Advance(at)
		p.stats.seeAdapters(p.model, time.Now())
		if step.Ended {
			p.deliver(step)
		}
		advanced = true
	}
	if advanced {
		p.noteChange()
	}
}

// deliver passes on what a step brought: its events, then its tokens. p.mu is
// held.
func (p *process) deliver(step engine.Step) {
	if p.events != nil && len(step.Events) > 0 {
		p.events.publish(time.Now(), step.Events, p.adapterID)
	}
	for _, o := range step.Outputs {
		if o.Index <= 0 {
			p.stats.firstToken.observe(step.At.Sub(o.Request.Arrived()).Seconds())
		}
		r := p.replies[o.Request]
		r.push(o)
		if o.Finished {
			delete(p.replies, o.Request)
			p.stats.finished[r.finishReason]++
		}
	}
}

// adapterID returns vLLM's number of a loaded adapter, 0 if there is none. p.mu
// is held.
func (p *process) adapterID(name string) int {
	for _, a := range p.adapters {
		if a.name == name {
			return a.id
		}
	}
	return 0
}

// addAdapter loads an adapter. p.mu is held, or not needed yet.
func (p *process) addAdapter(name, path string) {
	p.adapterIDs++
	p.adapters = append(p.adapters, loadedAdapter{name: name, path: path, id: p.adapterIDs})
}

// sleep puts the model to sleep.
func (p *process) sleep(level int) {
	p.change(func(time.Time) {
		p.model.Sleep()
		p.sleepLevel = level
	})
}

// submit gives the model a request. The reply must be waited for, or aborted.
func (p *process) submit(req *engine.Request, finishReason string) (*reply, error) {
	r := &reply{request: req, finishReason: finishReason, ready: make(chan struct{}, 1)}
	var err error
	p.change(func(now time.Time) {
		p.lastID++
		req.ID = p.lastID
		if err = p.model.Add(now, req); err == nil {
			p.replies[req] = r
		}
	})
	return r, err
}

// abort ends a request whose client has gone; one that has ended is left alone.
func (p *process) abort(r *reply) {
	p.change(func(now time.Time) {
		if p.model.Abort(now, r.request) {
			delete(p.replies, r.request)
			p.stats.finished["abort"]++
		}
	})
}

// reply is the answer to one request, as far as the model has come.
type reply struct {
	request      *engine.Request
	finishReason string
	ready        chan struct{} // room for one: something was pushed

	mu       sync.Mutex // guards the following fields
	produced int
	finished bool
}

// push adds what a step brought. It never blocks.
func (r *reply) push(o engine.Output) {
	r.mu.Lock()
	if o.Index >= 0 {
		r.produced = o.Index + 1
	}
	r.finished = o.Finished
	r.mu.Unlock()
	select {
	case r.ready <- struct{}{}:
	default:
	}
}

// wait returns how many tokens of the answer there are and whether that is all,
// once there are more than seen or the answer has ended. It returns an error when
// ctx ends first or the process does.
func (r *reply) wait(ctx context.Context, p *process, seen int) (produced int, finished bool, err error) {
	for {
		r.mu.Lock()
		produced, finished = r.produced, r.finished
		r.mu.Unlock()
		if produced > seen || finished {
			return produced, finished, nil
		}
		select {
		case <-r.ready:
		case <-ctx.Done():
			return 0, false, ctx.Err()
		case <-p.done:
			return 0, false, net.ErrClosed
		}
	}
}
