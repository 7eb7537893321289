package fleet

import (
	"errors"
	"slices"
	"syscall"
	"time"

	"epp.internal/epp"
	"epp.internal/epp/audit"
	"epp.internal/epp/health"
	"epp.internal/epp/kvindex"
)

// Member is one endpoint's place in the table, and what those that learn about
// it write to: scrape through Begin, Load, Models and Failed; kvevents through
// Apply, Reset, Restarted and Incomplete. After Leave they do nothing.
type Member struct {
	t        *Table
	endpoint epp.Endpoint
	blocks   *kvindex.Writer

	// The following fields are guarded by t.mu.

	pos      int         // place in the view; −1 after Leave
	last     epp.Signals // the counters after Leave
	lastWork epp.Work    // and the work

	// outcomes is the health by how requests and readings ended, facts by all
	// else; Signals.Health is what a decision sees of both. gpuAt is when the GPU was
	// read last.
	outcomes health.State
	facts    health.Facts
	// reached is true once a page, a probe or an answer has come from the endpoint;
	// absent, where none has and a connection was refused.
	reached, absent bool

	gpuAt time.Time
	// truth is how the endpoint's claims on its cache compare with its answers.
	truth audit.State
	// lost is what Incomplete said.
	lost bool

	// unanswered counts the bookings whose answer has not begun: these may be on
	// their way still. unansweredAtBegin and peak belong to the reading that is
	// under way: unanswered when it began, and the most in flight since.
	unanswered, unansweredAtBegin, peak int

	// handed are bookings that the next reading ends.
	handed []due
	// totals are the last reading's counters, rate what they have shown: uncached
	// prompt tokens a second until the first token; 0: nothing yet.
	totals epp.Load
	rate   float64
	// slow is how slow it is beside the pool; work has it as of Table.faded.
	slow slowness

	// untold are the scorers that Untold was called for, one of each.
	untold []string

	models []epp.Model
	// adapters are those taken to be resident, the latest used last. It holds
	// at most maxAdapters.
	adapters    []string
	maxAdapters int
}

// rememberedAdapters bounds the memory of an endpoint's adapters where the
// engine does not say how many it can hold.
const rememberedAdapters = 16

// Endpoint returns what the member is.
func (m *Member) Endpoint() epp.Endpoint { return m.endpoint }

// Heard reports whether the endpoint has told of its cache.
func (m *Member) Heard() bool {
	m.t.mu.Lock()
	defer m.t.mu.Unlock()
	return m.signals().Heard
}

// Untold notes that the named scorer has no data of the endpoint, and reports whether
// that is news: once for each scorer while the endpoint is in the pool.
func (m *Member) Untold(scorer string) bool {
	m.t.mu.Lock()
	defer m.t.mu.Unlock()
	return m.noteUntold(scorer)
}

// noteUntold is Untold; t.mu is held. There are as many scorers as are compiled in.
func (m *Member) noteUntold(scorer string) bool {
	if m.pos < 0 || slices.Contains(m.untold, scorer) {
		return false
	}
	m.untold = append(m.untold, scorer)
	return true
}

// signals are the member's, in the view or after it. t.mu is held.
func (m *Member) signals() *epp.Signals {
	if m.pos < 0 {
		return &m.last
	}
	return &m.t.signals[m.pos]
}

// Leave takes the endpoint out of the pool: it gets no further request, and its
// blocks leave the index. Requests in flight go on and end in its own ledger.
// Leaving twice is once.
func (m *Member) Leave() {
	m.blocks.Close() // before the slot is free for another
	m.t.mu.Lock()
	defer m.t.mu.Unlock()
	if m.pos >= 0 {
		m.t.leave(m)
	}
}

// Begin is called when a reading begins and returns a mark for Load: our own
// requests in flight at that moment. One reading is under way at a time.
func (m *Member) Begin(now time.Time) (mark int) {
	m.t.mu.Lock()
	defer m.t.mu.Unlock()
	m.t.ledger.releaseDue(now)
	m.unansweredAtBegin, m.peak = m.unanswered, m.signals().InFlight
	return m.peak
}

// counted is how many of our own requests a reading counted that saw so many
// requests at the engine, and began with mark of ours in flight. The engine may
// not have had those whose answer had not begun, and may have had those that
// came while its page was made. Where all that it saw can be ours it is taken
// to be ours; where there are others' requests too, our own at the beginning
// are the best that is known. t.mu is held.
func (m *Member) counted(mark int, l *epp.Load) int {
	if !l.Running.Known || !l.Waiting.Known {
		return mark
	}
	seen := l.Running.Value + l.Waiting.Value
	if seen > float64(m.peak) {
		return mark
	}
	return max(int(seen), mark-m.unansweredAtBegin)
}

// Load writes a reading that began at began, with the mark of its Begin.
func (m *Member) Load(mark int, began time.Time, l epp.Load) {
	m.t.mu.Lock()
	defer m.t.mu.Unlock()
	handed := m.endHanded(began) // from now on the engine's count alone has these
	mark, m.peak = mark-handed, m.peak-handed
	if m.pos < 0 {
		return
	}
	m.learnRate(&l)
	s := m.signals()
	s.Waiting, s.Running, s.KVUsage = l.Waiting, l.Running, l.KVUsage
	s.ReadAt, s.InFlightAtRead = epp.InstantOf(began), m.counted(mark, &l)
	m.setBlockTokens(s, l.BlockTokens)
	m.learnSlots(s)
	m.outcomes.Reached(began)
	m.noteReached()
	m.facts.Read(began, &l, m.mayLeave())
	m.watch(began)
	if l.MaxAdapters > 0 {
		m.maxAdapters, s.Adapters = l.MaxAdapters, true
	}
	for _, a := range l.Adapters {
		m.touchAdapter(a)
	}
}

// endHanded ends the bookings that were handed over before the reading began and
// returns how many these were. t.mu is held.
func (m *Member) endHanded(began time.Time) (n int) {
	kept := m.handed[:0]
	for _, d := range m.handed {
		switch {
		case d.b.ended(): // otherwise
		case d.at.Before(began):
			m.t.ledger.end(d.b.e)
			n++
		default:
			kept = append(kept, d)
		}
	}
	clear(m.handed[len(kept):])
	m.handed = kept
	return n
}

// assumedPrefillRate is what an endpoint computes until it has shown its own, in
// uncached tokens a second. A guess: between an 8B model on one A100 as the
// article has it (5,000) and on one H100 (50,000).
const assumedPrefillRate = 8000

// prefillRate is how many uncached prompt tokens a second the endpoint gets
// through, from the request's arrival to its first token, waiting included.
// t.mu is held.
func (m *Member) prefillRate() float64 {
	if m.rate > 0 {
		return m.rate
	}
	return assumedPrefillRate
}

// learnRate compares the counters with the last reading's: uncached tokens over
// the sum of times to first token. A new value counts for three tenths. Counters
// that have fallen belong to a restarted engine and start anew. t.mu is held.
func (m *Member) learnRate(l *epp.Load) {
	tokens := (l.PromptTokens.Value - l.CachedTokens.Value) - (m.totals.PromptTokens.Value - m.totals.CachedTokens.Value)
	seconds := l.FirstTokenSeconds.Value - m.totals.FirstTokenSeconds.Value
	known := l.PromptTokens.Known && l.CachedTokens.Known && l.FirstTokenSeconds.Known && m.totals.FirstTokenSeconds.Known
	if l.FirstTokenSeconds.Known && seconds < 0 {
		m.forgetSlowness()
	}
	m.totals = epp.Load{PromptTokens: l.PromptTokens, CachedTokens: l.CachedTokens, FirstTokenSeconds: l.FirstTokenSeconds}
	if !known || tokens <= 0 || seconds <= 0 {
		return
	}
	shown := tokens / seconds
	if m.rate == 0 {
		m.rate = shown
	}
	m.rate += 0.3 * (shown - m.rate)
}

// learnSlots keeps the most that ran while others waited: then every slot was
// taken. Where more is seen to run later, there were more slots. t.mu is held.
func (m *Member) learnSlots(s *epp.Signals) {
	if m.t.opt.MaxRunning > 0 || !s.Running.Known {
		return
	}
	running := int(min(s.Running.Value, 1<<20))
	waited := s.Waiting.Known && s.Waiting.Value > 0
	if running > s.MaxRunning && (waited || s.MaxRunning > 0) {
		s.MaxRunning = running
	}
}

// Models writes the list of names that the endpoint answers to.
func (m *Member) Models(models []epp.Model) {
	m.t.mu.Lock()
	defer m.t.mu.Unlock()
	if m.pos < 0 {
		return
	}
	m.setModels(models)
	m.t.unlisted.Remove(m.endpoint.Slot)
	m.t.noteListed()
}

// Failed tells that a reading could not be had. The last one stays in use; its
// age tells. A refused connection says more: nobody listens there, so no request
// would be served either. Where nobody ever has, it is a listed port that is closed, and
// the bound for endpoints that are left out is not asked.
func (m *Member) Failed(now time.Time, err error) {
	m.t.mu.Lock()
	defer m.t.mu.Unlock()
	if m.pos >= 0 && errors.Is(err, syscall.ECONNREFUSED) {
		m.absent = !m.reached
		m.outcomes.Refused(now, m.absent || m.mayLeave())
		m.watch(now)
	}
}

// noteReached notes that something came from the endpoint: somebody listens there. t.mu
// is held.
func (m *Member) noteReached() { m.reached, m.absent = true, false }

// setModels replaces the list of models. A name of both lists is found at any
// moment. t.mu is held.
func (m *Member) setModels(models []epp.Model) {
	if slices.Equal(models, m.models) {
		return
	}
	t, slot := m.t, m.endpoint.Slot
	stays := make(map[string]bool, len(models))
	for _, mod := range models {
		stays[mod.Name] = true
		t.serving[mod.Name] = t.serving[mod.Name].Add(slot)
		t.models.Store(mod.Name, mod)
	}
	for _, old := range m.models {
		if stays[old.Name] {
			continue
		}
		t.serving[old.Name].Remove(slot)
		if !anySlot(t.serving[old.Name]) {
			delete(t.serving, old.Name)
			t.models.Delete(old.Name)
		}
	}
	m.models = slices.Clone(models)
}

// touchAdapter remembers that the adapter is loaded here, and forgets the one
// used longest ago where the engine has no room for both. t.mu is held.
func (m *Member) touchAdapter(name string) {
	if i := slices.Index(m.adapters, name); i >= 0 {
		m.adapters = append(slices.Delete(m.adapters, i, i+1), name)
		return
	}
	limit := m.maxAdapters
	if limit <= 0 {
		limit = rememberedAdapters
	}
	for len(m.adapters) >= limit {
		m.dropAdapter(m.adapters[0])
		m.adapters = slices.Delete(m.adapters, 0, 1)
	}
	m.adapters = append(m.adapters, name)
	m.t.resident[name] = m.t.resident[name].Add(m.endpoint.Slot)
}

func (m *Member) dropAdapter(name string) {
	t := m.t
	t.resident[name].Remove(m.endpoint.Slot)
	if !anySlot(t.resident[name]) {
		delete(t.resident, name)
	}
}

func (m *Member) forgetAdapters() {
	for _, a := range m.adapters {
		m.dropAdapter(a)
	}
	m.adapters = nil
}

// Agent tells whether the endpoint's own agent reports for it from now on.
func (m *Member) Agent(reports bool) {
	m.t.mu.Lock()
	defer m.t.mu.Unlock()
	m.signals().Agent = reports
}

// Apply writes KV events of this endpoint's engine into the index.
func (m *Member) Apply(now time.Time, events []epp.BlockEvent) {
	m.blocks.Apply(now, events)
	size := 0
	for i := range events {
		if events[i].Kind == epp.BlockStored && events[i].BlockTokens > 0 {
			size = events[i].BlockTokens
		}
	}
	incomplete := m.blocks.Incomplete()
	m.t.mu.Lock()
	defer m.t.mu.Unlock()
	s := m.signals()
	s.Incomplete = m.lost || incomplete
	m.hear(s)
	m.setBlockTokens(s, size) // what is stored is nearer to the truth than what a page says
}

// setBlockTokens notes the endpoint's block size; 0 says nothing. t.mu is held.
func (m *Member) setBlockTokens(s *epp.Signals, size int) {
	if size > 0 && size != s.BlockTokens {
		s.BlockTokens = size
		m.t.measure()
	}
}

// Reset drops all that is known of the engine's cache: it has restarted, or what
// comes from now on tells all anew. What its claims were worth stays held against
// the endpoint, and fades by itself: a liar is not believed for beginning anew.
func (m *Member) Reset(now time.Time) {
	m.blocks.Clear(now)
	m.t.mu.Lock()
	defer m.t.mu.Unlock()
	m.signals().Incomplete = m.lost
}

// Restarted tells that the engine is another process than before: it has loaded
// no adapter yet.
func (m *Member) Restarted() {
	m.t.mu.Lock()
	defer m.t.mu.Unlock()
	m.forgetAdapters()
	m.forgetSlowness()
}

// Incomplete tells whether blocks may be missing from what was heard.
func (m *Member) Incomplete(now time.Time, incomplete bool) {
	dropped := m.blocks.Incomplete()
	m.t.mu.Lock()
	defer m.t.mu.Unlock()
	m.lost = incomplete
	s := m.signals()
	s.Incomplete = m.lost || dropped
	if !incomplete { // all is known, if only that there is nothing
		m.hear(s)
	}
}

// hear notes that the endpoint tells of its cache. t.mu is held.
func (m *Member) hear(s *epp.Signals) {
	if !s.Heard && m.pos >= 0 {
		m.t.silent.Add(-1)
	}
	s.Heard = true
}
