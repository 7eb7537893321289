package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"epp.internal/epp"
	"epp.internal/epp/block"
	"epp.internal/epp/config"
	"epp.internal/epp/decision"
	"epp.internal/epp/discover/kube"
	"epp.internal/epp/extproc"
	"epp.internal/epp/fleet"
	"epp.internal/epp/kvindex"
	"epp.internal/epp/metrics"
	"epp.internal/epp/picker"
	"epp.internal/epp/probe"
	"epp.internal/epp/proxy"
	"epp.internal/epp/report"
	"epp.internal/epp/route"
	"epp.internal/epp/scrape"
)

// system is a whole picker: the core, and the edges around it.
type system struct {
	cfg     *config.Config                // as at the start: what cannot change is read here
	live    atomic.Pointer[config.Config] // with the changes since: what can
	log     *slog.Logger
	watch   watch
	index   *kvindex.Index
	fleet   *fleet.Table
	picker  *picker.Picker
	metrics *metrics.Metrics
	proxy   *proxy.Proxy
	extproc *extproc.Server
	reports *report.Server // nil where none are taken
	readers *scrape.Group
	probers *probe.Prober // nil: nobody has asked for probes
	client  *http.Client
	ring    *decision.Ring
	journal *journal // nil where none is kept, and before run
	sources sync.Map // by address: the *source of each endpoint of the pool
	roster  *roster
	kube    *kube.Options // nil: the pool is the configuration's
	joined  atomic.Int64  // endpoints of the fleet, each rank one

	applying sync.Mutex // held for a whole change of settings
	renewing sync.Mutex // held while the policy changes
}

// watch sees what happens beside the metrics. A nil func is not called.
type watch struct {
	decided func(*decision.Record)
	// changed is called after the state of the fleet or of a request has changed.
	changed func()
}

// build wires a system from its configuration: the only place where rooms meet.
func build(cfg *config.Config, tok picker.Tokenizer, log *slog.Logger, w watch) (*system, error) {
	if w.decided == nil {
		w.decided = func(*decision.Record) {}
	}
	if w.changed == nil {
		w.changed = func() {}
	}
	s := &system{cfg: cfg, log: log, watch: w, client: scrape.Client(nil), ring: decision.NewRing(int(cfg.Limits.RingBytes))}
	if cfg.TLS.Cert != "" {
		if _, err := extproc.ServerTLS(cfg.TLS.Cert, cfg.TLS.Key, log); err != nil {
			return nil, fmt.Errorf("tls.cert, tls.key: %w", err)
		}
	}
	s.live.Store(cfg)
	s.roster = newRoster(s)
	var err error
	if s.kube, err = s.newKubeOptions(); err != nil {
		return nil, err
	}
	policy, err := route.New(cfg.Settings(staleAfter(len(cfg.Pool.Endpoints))))
	if err != nil {
		return nil, err
	}
	key := block.Key(rand.Uint64())
	s.index = kvindex.New(kvindex.Options{Key: key, MaxBytes: int(cfg.Limits.IndexBytes), Tiers: kvindex.Tiers(cfg.Cache.Tiers)})
	s.fleet = fleet.New(fleet.Options{Index: s.index, MaxRunning: cfg.Load.MaxRunning, Probed: cfg.Probe.Interval.Duration > 0})
	s.metrics = metrics.New(metrics.Options{Version: version, Models: cfg.ModelNames(), Snapshot: s.snapshot})
	ask := s.askEngine
	if !cfg.Tokenizer.AskEngines {
		ask = nil
	}
	s.picker = picker.New(picker.Options{
		Fleet: s.fleet, Index: s.index, Policy: policy, Key: key, Tokenizer: tok, AskEngine: ask, AskBudget: cfg.Tokenizer.AskBudget.Duration,
		MaxPromptBytes: int(cfg.Limits.PromptBytes),
		Learn:          cfg.Cache.Source != config.CacheEvents, LearnTTL: cfg.Cache.OwnTTL.Duration, LearnBlocks: cfg.Limits.OwnBlocks,
		Names: names(cfg), Fallbacks: cfg.Fallbacks, Ring: s.ring, Log: log, Predict: cfg.Log.Decisions != "",
		MaxDecodedBytes: int(cfg.Limits.BodyBytes), MaxDecodedBytesTotal: int(cfg.Limits.BodiesBytes), ForwardEncoded: cfg.ForwardEncoded,
		Hooks: picker.Hooks{
			Decided: func(rec *decision.Record, chain []uint64) {
				s.metrics.Decision(rec)
				s.journal.decided(rec, chain)
				w.decided(rec)
				w.changed()
			},
			Ended: func(e *picker.Ending) {
				s.metrics.Ended(e)
				s.journal.ended(e)
				w.changed()
			},
			Asked: s.metrics.Asked,
		},
	})
	if s.reports, err = s.newReports(key, log); err != nil {
		return nil, err
	}
	s.proxy = proxy.New(proxy.Options{
		Pick: proxy.By(s.picker), Gone: s.picker.Gone, Models: s.models, Logger: log,
		MaxBodyBytes: int(cfg.Limits.BodyBytes), MaxBodiesBytes: int(cfg.Limits.BodiesBytes), MaxHeaderBytes: int(cfg.Limits.HeaderBytes),
		EngineTimeout: cfg.Timeouts.Answer.Duration, DrainTime: cfg.Timeouts.Drain.Duration,
		Hooks: proxy.Hooks{
			Answered:    s.metrics.Answered,
			Retried:     func(o picker.Outcome) { s.metrics.Retried(o.String()) },
			RetryDenied: func(o picker.Outcome) { s.metrics.RetryDenied(o.String()) },
			CutOff:      func(o picker.Outcome) { s.metrics.CutOff(o.String()) },
		},
	})
	s.extproc = extproc.NewServer(extproc.Options{
		Pick: extproc.By(s.picker), Gone: s.picker.Gone, Ready: s.roster.ready.is.Load, Logger: log,
		Insecure: cfg.TLS.Insecure, CertFile: cfg.TLS.Cert, KeyFile: cfg.TLS.Key,
		MaxBodyBytes: int(cfg.Limits.BodyBytes), MaxBodiesBytes: int(cfg.Limits.BodiesBytes), DrainTime: cfg.Timeouts.Drain.Duration,
		Hooks: extproc.Hooks{Ended: func(e extproc.StreamEnd) {
			s.metrics.Stream(e.Outcome, e.RequestMode, e.ResponseMode, e.Elsewhere)
		}},
	})
	if cfg.Cache.Source == config.CacheOwn {
		log.Warn("approximate mode: what endpoints have cached is guessed from our own picks", "setting", "cache.source", "ttl", cfg.Cache.OwnTTL.Duration)
	}
	s.newReaders()
	return s, nil
}

// newReaders makes what reads endpoints' pages, and what probes them where that is
// asked for.
func (s *system) newReaders() {
	s.readers = &scrape.Group{
		Client: s.client, Log: s.log,
		Hooks: scrape.Hooks{Reading: s.metrics.Scraped, Bad: s.metrics.BadValue},
	}
	if every := s.cfg.Probe.Interval.Duration; every > 0 {
		s.probers = &probe.Prober{
			Client: s.client, Interval: every, Timeout: s.cfg.Probe.Timeout.Duration, Log: s.log,
			Ended: func(o probe.Outcome, took time.Duration) { s.metrics.Probed(string(o), took) },
		}
	}
}

// staleAfter is the age from which a reading of so many endpoints is too old to
// trust: three intervals, and 2 s at least.
func staleAfter(endpoints int) time.Duration {
	return max(2*time.Second, 3*scrape.Interval(endpoints))
}

// names are what names mean in requests.
func names(cfg *config.Config) picker.Names {
	n := picker.Names{Models: map[string]picker.ModelRule{}, Default: cfg.DefaultModel, Objectives: map[string]int{}}
	for _, o := range cfg.Objectives {
		n.Objectives[o.Name] = o.Priority
	}
	for _, r := range cfg.Models {
		rule := picker.ModelRule{Priority: r.Priority}
		for _, t := range r.Divided() {
			rule.Targets = append(rule.Targets, picker.Target{Name: t.Name, Weight: *t.Weight, Adapter: t.Adapter})
		}
		n.Models[r.Name] = rule
	}
	return n
}

// models are what GET /v1/models lists: the endpoints' own, and the configured
// names that lead to one of them.
func (s *system) models() []epp.Model {
	list := s.fleet.Models()
	for _, r := range s.live.Load().Models {
		if _, taken, _ := s.fleet.Model(r.Name); taken || r.Name == config.CatchAll || r.Name == config.Unnamed {
			continue
		}
		for _, t := range r.Divided() {
			if m, found, _ := s.fleet.Model(cmp.Or(t.Name, r.Name)); found && *t.Weight > 0 {
				m.Name = r.Name
				list = append(list, m)
				break
			}
		}
	}
	return list
}

// askEngine has an endpoint tokenize a prompt.
func (s *system) askEngine(ctx context.Context, at epp.Endpoint, path string, body []byte) ([]uint32, error) {
	return scrape.Tokens(ctx, s.client, at.Address, path, body)
}

// snapshot is what the metrics page shows of the moment.
func (s *system) snapshot() metrics.Snapshot {
	now, policy := time.Now(), s.picker.Policy()
	snap := metrics.Snapshot{
		MaxQueue: policy.Settings.MaxQueue, IndexBlocks: s.index.Nodes(), IndexBytes: s.index.Bytes(),
		OwnBlocks: s.picker.OwnBlocks(), RingBytes: s.ring.Bytes(), BookingsBound: s.fleet.Ledger().Bound,
		DecisionsDropped: s.journal.lost(),
	}
	for _, st := range s.fleet.Snapshot() {
		queue, health, stale := policy.Seen(&st.Signals, now)
		reason := st.Signals.HealthReason.String()
		if health < st.Signals.Health {
			reason = "stale"
		}
		snap.Endpoints = append(snap.Endpoints, metrics.Endpoint{
			Name: st.Endpoint.Name, Address: st.Endpoint.Address, Queue: queue, Health: health, HealthReason: reason, Stale: stale,
			InFlight: st.Signals.InFlight, InFlightTokens: st.Signals.InFlightTokens,
			Blocks: st.Blocks, Incomplete: st.Signals.Incomplete, Doubt: float64(st.Signals.Doubt) / 100, Truth: st.Truth,
		})
	}
	return snap
}

// addresses are where a system listens; an address that it does not is empty.
type addresses struct{ proxy, metrics, extproc, health, reports string }

// run serves until ctx ends, then drains. ready is called once all listen.
func (s *system) run(ctx context.Context, ready func(addresses)) error {
	defer s.roster.close() // where nothing could be listened on; else it has ended before
	var err error
	if s.journal, err = openJournal(s.cfg.Log.Decisions, int64(s.cfg.Log.DecisionsBytes), s.log); err != nil {
		return err
	}
	var ls [5]listener
	at := s.cfg.Listen
	for i, a := range [...]struct{ setting, address string }{
		{"listen.proxy", at.Proxy}, {"listen.metrics", at.Metrics}, {"listen.extProc", at.ExtProc}, {"listen.health", at.Health},
		{"listen.reports", at.Reports},
	} {
		if ls[i], err = listen(a.setting, a.address); err != nil {
			for _, l := range ls[:i] {
				err = errors.Join(err, l.close())
			}
			return errors.Join(err, s.journal.close())
		}
	}
	follow, stop := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	if fixed := static(s.cfg); len(fixed) > 0 { // else they come from elsewhere
		s.setEndpoints(fixed)
	}
	wg.Go(func() { s.followKube(follow) })
	wg.Go(func() { s.expire(follow) })
	wg.Go(func() { s.warm(follow) })
	pages := s.pages()
	failed := make(chan error, len(ls))
	for i, serve := range []func(net.Listener) error{s.proxy.Serve, pages.Serve, s.extproc.Serve, s.extproc.ServeHealth, s.serveReports} {
		ls[i].serve(&wg, serve, failed)
	}
	ready(addresses{ls[0].address(), ls[1].address(), ls[2].address(), ls[3].address(), ls[4].address()})
	select {
	case <-ctx.Done():
	case err = <-failed:
	}
	err = errors.Join(err, s.drain(), pages.Close())
	if s.reports != nil {
		s.reports.Close()
	}
	s.roster.close()
	stop()
	wg.Wait()
	s.client.CloseIdleConnections()
	return errors.Join(err, s.journal.close())
}

// drain lets what is under way end: both ways in say that they are leaving, take
// what still comes for a while, and then wait for the last answer.
func (s *system) drain() error {
	ctx, cancel := context.WithTimeout(context.Background(), s.cfg.Timeouts.Drain.Duration+s.cfg.Timeouts.Finish.Duration)
	defer cancel()
	var wg sync.WaitGroup
	var front, side error
	wg.Go(func() { front = s.proxy.Shutdown(ctx) })
	wg.Go(func() { side = s.extproc.Shutdown(ctx) })
	wg.Wait()
	return errors.Join(front, side)
}

// listener is a listener that may not be wanted: without an address it is nil.
type listener struct{ net.Listener }

// listen opens the address of a setting, named for the error.
func listen(setting, address string) (listener, error) {
	if address == "" {
		return listener{}, nil
	}
	l, err := net.Listen("tcp", address)
	if err != nil {
		return listener{}, fmt.Errorf("%s: %q cannot be listened on: %w: choose another address, or end what has it", setting, address, err)
	}
	return listener{l}, nil
}

func (l listener) address() string {
	if l.Listener == nil {
		return ""
	}
	return l.Addr().String()
}

func (l listener) close() error {
	if l.Listener == nil {
		return nil
	}
	return l.Close()
}

// serve runs a server in a goroutine of wg and tells failed what ends it, unless
// that is its shutdown.
func (l listener) serve(wg *sync.WaitGroup, serve func(net.Listener) error, failed chan<- error) {
	if l.Listener == nil {
		return
	}
	wg.Go(func() {
		if err := serve(l.Listener); err != nil && !errors.Is(err, http.ErrServerClosed) {
			failed <- err
		}
	})
}

// pages serves what operators read.
func (s *system) pages() *http.Server {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", s.metrics.Handler())
	return &http.Server{Handler: mux, ReadHeaderTimeout: 10 * time.Second}
}

// expire ends bookings that have passed their bound; there are none unless a
// fault of ours lost an end, so it is said aloud.
func (s *system) expire(ctx context.Context) {
	tick := time.NewTicker(time.Minute)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-tick.C:
			if n := s.fleet.Expire(now); n > 0 {
				s.log.Error("bookings ended by their bound", "count", n)
			}
		}
	}
}

// warnSilent warns of an endpoint that has not told of its cache for as long as
// silentAfter.
func (k *sink) warnSilent() {
	if !k.Heard() {
		k.s.picker.Untold(decision.CacheScorer, k.Endpoint(), k.Untold)
	}
}

// warmEvery is how often the endpoints' caches are compared.
const warmEvery = 5 * time.Second

// warm compares how warm the endpoints' caches are.
func (s *system) warm(ctx context.Context) {
	tick := time.NewTicker(warmEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-tick.C:
			s.fleet.RateWarmth(now)
		}
	}
}

// sink is a member whose writing can be watched, and read in the log at TRACE.
type sink struct {
	*fleet.Member
	s       *system
	log     *slog.Logger
	contact *contact
	base    atomic.Pointer[string] // the first model that is no adapter; nil: not known
}

// baseModel is the model that a probe asks for; empty where no list was read yet.
func (k *sink) baseModel() string {
	if name := k.base.Load(); name != nil {
		return *name
	}
	return ""
}

// Probed passes on how a probe ended.
func (k *sink) Probed(now time.Time, err error, slowly bool) {
	k.Member.Probed(now, err, slowly)
	k.s.watch.changed()
}

// GPU passes a reading of the accelerators on.
func (k *sink) GPU(now time.Time, g epp.GPU) {
	k.Member.GPU(now, g)
	k.s.watch.changed()
}

// Failed passes on that a reading could not be had.
func (k *sink) Failed(now time.Time, err error) {
	k.Member.Failed(now, err)
	k.contact.asked(!errors.Is(err, syscall.ECONNREFUSED))
	k.s.watch.changed()
}

// Load passes a reading on.
func (k *sink) Load(mark int, began time.Time, l epp.Load) {
	k.Member.Load(mark, began, l)
	k.contact.asked(true)
	k.log.Log(context.Background(), picker.LevelTrace, "read", "pod", k.Endpoint().Name,
		"waiting", l.Waiting.Value, "running", l.Running.Value, "kvUsage", l.KVUsage.Value, "adapters", l.Adapters, "asleep", l.Asleep)
	k.s.watch.changed()
}

// Models passes a list of models on.
func (k *sink) Models(models []epp.Model) {
	k.Member.Models(models)
	if i := slices.IndexFunc(models, func(m epp.Model) bool { return m.Parent == "" }); i >= 0 {
		k.base.Store(&models[i].Name)
	}
	k.s.watch.changed()
}

// Apply passes events on. The log shows their sizes only.
func (k *sink) Apply(now time.Time, events []epp.BlockEvent) {
	k.Member.Apply(now, events)
	k.removed(events)
	if k.log.Enabled(context.Background(), picker.LevelTrace) {
		for i := range events {
			e := &events[i]
			k.log.Log(context.Background(), picker.LevelTrace, "reported", "event", e.Kind.String(),
				"blocks", len(e.Hashes), "blockTokens", e.BlockTokens, "adapter", e.Adapter, "tier", e.Tier)
		}
	}
	k.s.watch.changed()
}

// removed counts the decisions that were made after blocks had gone and before
// the news of it came. All events of a batch have one time.
func (k *sink) removed(events []epp.BlockEvent) {
	for i := range events {
		if at := events[i].At; !at.IsZero() {
			k.s.metrics.Stale(k.s.picker.Removed(k.Endpoint(), at))
			return
		}
	}
}

// Reset passes a restart on.
func (k *sink) Reset(now time.Time) {
	k.Member.Reset(now)
	k.s.watch.changed()
}

// Incomplete passes on whether blocks may be missing.
func (k *sink) Incomplete(now time.Time, incomplete bool) {
	k.Member.Incomplete(now, incomplete)
	k.s.watch.changed()
}

// settled reports whether all is known of every endpoint that a fleet that has
// been up for a second knows: its page, its models and its blocks.
func (s *system) settled() bool {
	states := s.fleet.Snapshot()
	for _, st := range states {
		if st.Signals.ReadAt.IsZero() || st.Signals.Incomplete || !st.Listed {
			return false
		}
	}
	return len(states) >= max(s.roster.size(), 1) // an endpoint of several ranks is several
}
