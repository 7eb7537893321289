package main

import (
	"context"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"epp.internal/epp"
	"epp.internal/epp/config"
	"epp.internal/epp/kvevents"
	"epp.internal/epp/probe"
	"epp.internal/epp/scrape"
)

const (
	// askAgain is how long an engine is left alone between two questions for its
	// sources of events.
	askAgain = 2 * time.Second
	// maxRanks bounds the data-parallel ranks behind one address.
	maxRanks = 64
	// silentAfter is how long an endpoint may be without KV events before that is said.
	silentAfter = time.Minute
)

// follower writes what one endpoint of the pool says of itself: its pages, its
// probes and its events. It is one endpoint of the fleet, or as many as the engine
// says that it has data-parallel ranks.
type follower struct {
	s       *system
	e       entry
	log     *slog.Logger
	cancel  context.CancelFunc // ends run
	contact *contact
	left    chan struct{} // closed when it has left the fleet
	sinks   []*sink       // by rank
	from    []*source     // of each
	// lost is told that the engine may have restarted: its sources are asked anew.
	lost chan struct{}
}

// newFollower returns a follower, and lets the endpoint join the fleet. cancel ends
// what run is called with.
func newFollower(s *system, e entry, cancel context.CancelFunc, c *contact) *follower {
	f := &follower{
		s: s, e: e, log: s.log.With("pod", e.Name), cancel: cancel, contact: c,
		left: make(chan struct{}), lost: make(chan struct{}, 1),
	}
	f.join(1)
	return f
}

// join makes the endpoint that many of the fleet.
func (f *follower) join(ranks int) {
	f.s.joined.Add(int64(ranks))
	for r := range ranks {
		e, log := epp.Endpoint{Name: f.e.Name, Address: f.e.Address, UID: f.e.UID, Labels: f.e.Labels}, f.log
		if ranks > 1 {
			e.Rank = strconv.Itoa(r)
			e.Name += "-rank-" + e.Rank
			log = f.s.log.With("pod", e.Name)
		}
		k := &sink{Member: f.s.fleet.Join(e), s: f.s, log: log, contact: f.contact}
		f.sinks = append(f.sinks, k)
		f.from = append(f.from, &source{sink: k, left: make(chan struct{}), ranks: ranks, dcgm: dcgm(f.e.Endpoint) != ""})
	}
	f.s.sources.Store(f.e.Address, f.from[0])
}

// run follows the endpoint until ctx ends. Then it leaves the fleet, at once, and
// what read it ends.
func (f *follower) run(ctx context.Context) {
	var asking sync.WaitGroup
	defer asking.Wait()
	told := make(chan []kvevents.Source)
	asking.Go(func() { f.ask(ctx, told) })
	read := f.start(ctx, f.read)
	hear, heard := func() {}, false
	silence := time.NewTimer(silentAfter)
	defer silence.Stop()
	for {
		select {
		case <-ctx.Done():
			f.leave(f.from)
			f.contact.gone()
			close(f.left)
			hear()
			read()
			return
		case <-silence.C:
			for _, k := range f.sinks {
				k.warnSilent()
			}
		case sources := <-told:
			hear()
			switch n := max(1, len(sources)); {
			case n != len(f.sinks):
				f.log.Info("data-parallel ranks", "address", f.e.Address, "ranks", n)
				read()
				former := f.from
				f.sinks, f.from = nil, nil
				f.join(n)
				f.leave(former)
				f.s.renew()
				silence.Reset(silentAfter)
				read = f.start(ctx, f.read)
			case heard: // another source is another cache
				for _, src := range f.from {
					if !src.events.isAgents() {
						src.sink.Incomplete(time.Now(), true)
					}
				}
			}
			hear, heard = func() {}, len(sources) > 0
			if heard {
				hear = f.start(ctx, func(ctx context.Context, rank int) {
					f.from[rank].events.run(ctx, func(ctx context.Context) {
						f.sinks[rank].Reset(time.Now()) // what another source said, or an agent, is not this one's
						f.hear(ctx, f.sinks[rank], sources[rank])
					})
				})
			}
		}
	}
}

// start runs what for each rank and returns what ends them all.
func (f *follower) start(ctx context.Context, what func(ctx context.Context, rank int)) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	for rank := range f.sinks {
		wg.Go(func() { what(ctx, rank) })
	}
	return func() {
		cancel()
		wg.Wait()
	}
}

// leave takes endpoints out of the fleet.
func (f *follower) leave(from []*source) {
	f.s.joined.Add(-int64(len(from)))
	for _, src := range from {
		f.s.sources.CompareAndDelete(f.e.Address, src)
		close(src.left)
		src.sink.Leave()
	}
}

// read reads a rank's pages, and probes it.
func (f *follower) read(ctx context.Context, rank int) {
	var wg sync.WaitGroup
	defer wg.Wait()
	s, k, e := f.s, f.sinks[rank], f.e.Endpoint
	name := k.Endpoint().Rank
	if s.probers != nil {
		wg.Go(func() {
			f.from[rank].probes.run(ctx, func(ctx context.Context) {
				_ = s.probers.Run(ctx, probe.Target{Address: e.Address, Rank: name, Model: k.baseModel}, k) // ends with ctx
			})
		})
	}
	if url := dcgm(e); url != "" {
		t := scrape.GPUTarget{URL: url, GPUs: e.GPU.GPUs, Pod: e.Name}
		wg.Go(func() { _ = s.readers.RunGPU(ctx, t, k) }) // ends with ctx
	}
	kind, _ := scrape.EngineNamed(e.Engine)
	f.from[rank].page.run(ctx, func(ctx context.Context) {
		_ = s.readers.Run(ctx, scrape.Target{Address: e.Address, Rank: name, Kind: kind}, k) // ends with ctx
	})
}

// dcgm is the page of the endpoint's DCGM exporter; empty where it has none.
func dcgm(e config.Endpoint) string {
	at := string(e.GPU.DCGM)
	if at == "" || strings.Contains(at, "://") {
		return at
	}
	host, _, _ := net.SplitHostPort(e.Address)
	return "http://" + net.JoinHostPort(host, at) + "/metrics"
}

// hear subscribes to a rank's KV events.
func (f *follower) hear(ctx context.Context, k *sink, src kvevents.Source) {
	m := f.s.metrics
	sub := kvevents.Subscriber{
		Address: src.Address, Replay: src.Replay, Topic: src.Topic, Sink: k, Log: k.log,
		Hooks: kvevents.Hooks{
			Event: func(kind epp.BlockEventKind, n int) { m.KVEvents(kind.String(), n) },
			Bad:   func(r kvevents.Reason) { m.KVBad(string(r)) },
			Gap:   func(uint64) { m.KVGap() },
			Restart: func() {
				m.KVRestart()
				k.Restarted()
				f.restarted()
			},
			Lost:    f.restarted,
			Replay:  func(done bool) { m.KVReplay(map[bool]string{true: "done", false: "given_up"}[done]) },
			Dropped: func() { m.KVBad("dropped") },
		},
	}
	_ = sub.Run(ctx) // ends with ctx
}

// restarted tells that the engine may be another one.
func (f *follower) restarted() { tellLost(f.lost) }

// tellLost tells askSources to ask again, unless it has been told already.
func tellLost(lost chan<- struct{}) {
	select {
	case lost <- struct{}{}:
	default:
	}
}

// ask tells where the endpoint's events come from, by rank: as configured, else as
// the engine itself says.
func (f *follower) ask(ctx context.Context, told chan<- []kvevents.Source) {
	if sources, known := f.configured(); known {
		f.tell(ctx, told, sources)
	} else if f.s.cfg.DiscoverEvents() {
		askSources(ctx, f.s.client, f.log, f.e.Address, f.lost, func(sources []kvevents.Source) { f.tell(ctx, told, sources) })
	}
}

// askSources asks the engine at address where its events come from until ctx ends,
// and tells of each answer that differs from the one before: again whenever it may
// have restarted, as lost says. It waits for an engine that is not up.
func askSources(ctx context.Context, client *http.Client, log *slog.Logger, address string, lost <-chan struct{}, tell func([]kvevents.Source)) {
	var sources []kvevents.Source
	said := ""
	for settled := false; ; {
		next, err := kvevents.Sources(ctx, client, address)
		text := ""
		switch {
		case err != nil:
			text = "no KV events: " + err.Error()
		case len(next) == 0:
			text = "no KV events: the engine names no source; its cache is guessed from our own picks"
		case len(next) > maxRanks || !wholeRanks(next):
			text = "no KV events: the engine names ranks that can't be: " + strconv.Itoa(len(next)) + " of them"
			next = nil
		}
		if text != said && ctx.Err() == nil {
			said = text
			if text != "" {
				log.Warn(text, "address", address)
			}
		}
		if err == nil {
			settled = len(next) > 0
			if !slices.Equal(next, sources) {
				sources = next
				tell(sources)
			}
		}
		select { // even a restart after a restart is not asked about at once
		case <-ctx.Done():
			return
		case <-time.After(askAgain):
		}
		if err == nil && settled {
			select {
			case <-ctx.Done():
				return
			case <-lost:
			}
		}
	}
}

// tell passes sources on, unless ctx ends first.
func (f *follower) tell(ctx context.Context, told chan<- []kvevents.Source, sources []kvevents.Source) {
	select {
	case <-ctx.Done():
	case told <- sources:
	}
}

// wholeRanks says whether the sources are those of ranks 0, 1, 2 and so on: then
// all are behind this address.
func wholeRanks(sources []kvevents.Source) bool {
	for i, src := range sources {
		if src.Rank != i && len(sources) > 1 {
			return false
		}
	}
	return true
}

// configured is the source that the configuration names, if it names one.
func (f *follower) configured() (sources []kvevents.Source, known bool) {
	c, e := &f.s.cfg.KVEvents, f.e
	switch {
	case e.Events != "":
		return []kvevents.Source{{Address: e.Events, Replay: e.Replay, Topic: c.Topic}}, true
	case c.Port != 0:
		host, _, _ := net.SplitHostPort(e.Address)
		src := kvevents.Source{Address: net.JoinHostPort(host, strconv.Itoa(c.Port)), Topic: c.Topic}
		if c.ReplayPort != 0 {
			src.Replay = net.JoinHostPort(host, strconv.Itoa(c.ReplayPort))
		}
		return []kvevents.Source{src}, true
	}
	return nil, false
}
