package fleet

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"epp.internal/epp"
	"epp.internal/epp/audit"
	"epp.internal/epp/kvindex"
)

// Options are what a table needs from outside. The zero value is usable.
type Options struct {
	// Index is where members' blocks go.
	Index *kvindex.Index
	// MaxRunning is how many requests an endpoint runs at once where the
	// operator has said so; 0: learnt.
	MaxRunning int
	// Probed says that endpoints are probed: until the first one of an endpoint has
	// ended, its health is that of an unproven one.
	Probed bool
	// BookingBound is the age at which a booking whose end was not seen is
	// ended all the same, and counted. 0 means DefaultBookingBound.
	BookingBound time.Duration
}

// DefaultBookingBound is longer than any answer: what is older was lost.
const DefaultBookingBound = time.Hour

// Table is a pool's endpoints. Its methods may be called by any number of
// goroutines.
type Table struct {
	opt Options

	mu sync.Mutex // guards the following fields and those of members

	// The view: one entry each for every member, in the order they joined. An
	// element of endpoints never changes: records point to it.
	members   []*Member
	endpoints []epp.Endpoint
	signals   []epp.Signals
	work      []epp.Work
	// ailing are the members against which something is held: their health and
	// doubt change with time.
	ailing []*Member

	// holders[slot] is the slot's last member; nil where it is free.
	holders    []*Member
	generation uint32

	// unlisted holds the slots whose list of models is not known, serving those
	// that list a model, resident those on which an adapter is loaded.
	unlisted epp.Slots
	serving  map[string]epp.Slots
	resident map[string]epp.Slots
	serves   epp.Slots // scratch: what the view of the running Pick shows
	asked    int       // place of the one that Asked chose last

	ledger ledger

	// What our own requests have taken: see pace.go.
	firstTokens, answers line
	pace                 epp.Pace
	// faded is when the slowness in work was brought up to date; fresh endpoints,
	// whose slowness adds up to freshSum, had shown theirs of late.
	faded    time.Time
	fresh    int
	freshSum float64

	// The following fields are written under mu and read without it, by each request:
	// it waits for the table only to be booked and to end.

	silent atomic.Int64          // members that have not told of their caches
	slots  atomic.Int64          // len(holders)
	sizes  atomic.Pointer[[]int] // the pool's block sizes; what it points to never changes
	models sync.Map              // of epp.Model, by name: those of serving
	// listed is true where there are members, and the models of all are known.
	listed atomic.Bool
}

// New returns an empty table.
func New(opt Options) *Table {
	if opt.BookingBound <= 0 {
		opt.BookingBound = DefaultBookingBound
	}
	if opt.Index == nil {
		opt.Index = kvindex.New(kvindex.Options{})
	}
	t := &Table{opt: opt, serving: map[string]epp.Slots{}, resident: map[string]epp.Slots{}}
	t.sizes.Store(&[]int{DefaultBlockTokens})
	return t
}

// Join adds an endpoint and returns its member. Slot and Generation of e are
// set here. The endpoint counts as healthy, idle and cold until it says
// otherwise, and its view of the cache as incomplete until blocks were heard.
func (t *Table) Join(e epp.Endpoint) *Member {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.generation++
	e.Slot, e.Generation = t.freeSlot(), t.generation
	m := &Member{t: t, endpoint: e, pos: len(t.members), lost: true}
	m.blocks = t.opt.Index.Endpoint(e.Slot)
	t.holders[e.Slot] = m
	t.unlisted = t.unlisted.Add(e.Slot)
	t.noteListed()
	t.members = append(t.members, m)
	t.endpoints = append(t.endpoints, e)
	t.work = append(t.work, epp.Work{})
	t.signals = append(t.signals, epp.Signals{Health: 1, MaxRunning: t.opt.MaxRunning, Incomplete: true})
	t.silent.Add(1)
	if t.opt.Probed {
		m.await()
	}
	return m
}

// freeSlot finds the lowest slot that nobody holds. t.mu is held.
func (t *Table) freeSlot() epp.Slot {
	for s, m := range t.holders {
		if m == nil {
			return epp.Slot(s)
		}
	}
	t.holders = append(t.holders, nil)
	t.slots.Store(int64(len(t.holders)))
	return epp.Slot(len(t.holders) - 1)
}

// leave takes m out of the view; its slot stays until its last booking ends.
// t.mu is held.
func (t *Table) leave(m *Member) {
	m.last, m.lastWork = t.signals[m.pos], t.work[m.pos]
	if !m.last.Heard {
		t.silent.Add(-1)
	}
	t.members = slices.Delete(t.members, m.pos, m.pos+1)
	t.endpoints = slices.Concat(t.endpoints[:m.pos], t.endpoints[m.pos+1:])
	t.signals = slices.Delete(t.signals, m.pos, m.pos+1)
	t.work = slices.Delete(t.work, m.pos, m.pos+1)
	for i := m.pos; i < len(t.members); i++ {
		t.members[i].pos = i
	}
	m.pos = -1
	t.ailing = slices.DeleteFunc(t.ailing, func(o *Member) bool { return o == m })
	for _, d := range m.handed { // no reading will come to end them
		if !d.b.ended() {
			t.ledger.end(d.b.e)
		}
	}
	m.handed = nil
	m.setModels(nil)
	m.forgetAdapters()
	t.unlisted.Remove(m.endpoint.Slot)
	t.noteListed()
	t.measure()
	t.release(m)
}

// release frees m's slot if nothing holds it any longer. t.mu is held.
func (t *Table) release(m *Member) {
	if m.pos < 0 && m.last.InFlight == 0 && t.holders[m.endpoint.Slot] == m {
		t.holders[m.endpoint.Slot] = nil
	}
}

// Query is what a view depends on besides the moment.
type Query struct {
	// Target is the model's name as the endpoints list it; empty asks for none.
	Target string
	// Adapter is Target where that is a LoRA adapter, else empty.
	Adapter string
	// PromptTokens is the prompt's length, for what the picked endpoint has to
	// compute; where it is 0 nothing is taken to be cached.
	PromptTokens int
}

// Choose decides on the view and returns the index of the pick, or −1, and the
// prompt tokens that the endpoint has to compute. It runs under the table's
// lock: it must not call the table, block, or keep the view.
type Choose func(v epp.View) (index, uncachedTokens int)

// Pick lets choose decide and books what it picked, in one critical section. It
// returns false, and books nothing, where choose returned −1.
func (t *Table) Pick(q Query, now time.Time, choose Choose) (Booking, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.ledger.releaseDue(now)
	if len(t.ailing) > 0 {
		t.recover(now)
	}
	t.fade(now)
	i, tokens := choose(t.view(q))
	if i < 0 {
		return Booking{}, false
	}
	m := t.members[i]
	m.outcomes.Sent()
	if q.PromptTokens > 0 && tokens >= q.PromptTokens {
		m.signals().ColdAt = epp.InstantOf(now)
	}
	if q.Adapter != "" {
		m.touchAdapter(q.Adapter)
	}
	return t.ledger.add(m, tokens, epp.WorkOf(tokens, max(tokens, q.PromptTokens)), now), true
}

// recover brings the health and the doubt of ailing members up to date. t.mu is held.
func (t *Table) recover(now time.Time) {
	for _, m := range t.ailing {
		m.rateHealth(now)
		m.signals().Doubt = m.truth.Doubt(now)
	}
	t.ailing = slices.DeleteFunc(t.ailing, func(m *Member) bool {
		return m.outcomes.Sound(now) && m.facts.Sound(now) && m.signals().Doubt == 0
	})
}

// view shows the table to choose. t.mu is held.
func (t *Table) view(q Query) epp.View {
	v := epp.View{Endpoints: t.endpoints, Signals: t.signals, Work: t.work, Pace: t.pace}
	if q.Adapter != "" {
		v.Resident = t.resident[q.Adapter]
	}
	if q.Target != "" {
		t.serves = append(t.serves[:0], t.unlisted...)
		for i, word := range t.serving[q.Target] {
			if i == len(t.serves) {
				t.serves = append(t.serves, 0)
			}
			t.serves[i] |= word
		}
		v.Serves = t.serves
	}
	return v
}

func anySlot(ss epp.Slots) bool {
	return slices.ContainsFunc(ss, func(w uint64) bool { return w != 0 })
}

// noteListed finds anew whether all models are known. t.mu is held.
func (t *Table) noteListed() { t.listed.Store(len(t.members) > 0 && !anySlot(t.unlisted)) }

// Model looks a name up in the endpoints' own lists. complete is false where the
// list of some endpoint is not known: then a name that is not found may be its.
// It waits for nothing.
func (t *Table) Model(name string) (m epp.Model, found, complete bool) {
	complete = t.listed.Load() // first: what is listed by then is found
	if v, ok := t.models.Load(name); ok {
		return v.(epp.Model), true, complete
	}
	return epp.Model{}, false, complete
}

// Models returns every model that some endpoint lists, sorted by name.
func (t *Table) Models() []epp.Model {
	out := []epp.Model{}
	for _, m := range t.models.Range {
		out = append(out, m.(epp.Model))
	}
	slices.SortFunc(out, func(a, b epp.Model) int {
		if a.Name < b.Name {
			return -1
		}
		return 1
	})
	return out
}

// DefaultBlockTokens is the block size where no endpoint has told its own.
// Source: vLLM's default.
const DefaultBlockTokens = 16

// BlockSizes appends the pool's block sizes to dst, smallest first, in tokens.
// There is at least one. It waits for nothing.
func (t *Table) BlockSizes(dst []int) []int { return append(dst, *t.sizes.Load()...) }

// measure finds the pool's block sizes anew. t.mu is held.
func (t *Table) measure() {
	var sizes []int
	for i := range t.signals {
		if b := t.signals[i].BlockTokens; b > 0 && !slices.Contains(sizes, b) {
			sizes = append(sizes, b)
		}
	}
	if len(sizes) == 0 {
		sizes = append(sizes, DefaultBlockTokens)
	}
	slices.Sort(sizes)
	if !slices.Equal(sizes, *t.sizes.Load()) {
		t.sizes.Store(&sizes)
	}
}

// Silent is how many endpoints have not told of their caches yet; it waits for
// nothing.
func (t *Table) Silent() int { return int(t.silent.Load()) }

// Slots is one more than the highest slot in use: the length of a match slice. It
// waits for nothing.
func (t *Table) Slots() int { return int(t.slots.Load()) }

// State is one endpoint as the table has it, for metrics, pages and tests.
type State struct {
	Endpoint epp.Endpoint
	Signals  epp.Signals
	Blocks   int
	Adapters []string
	Listed   bool // its list of models is known
	Truth    audit.State
}

// Snapshot returns the state of every endpoint, in the order they joined.
func (t *Table) Snapshot() []State {
	// Memory is got before the table is held: whoever needs some may have to help the
	// collector first, and every pick would wait for that.
	var members []*Member
	var out []State
	for {
		n := t.Slots()
		members, out = make([]*Member, 0, n), make([]State, 0, n)
		t.mu.Lock()
		if len(t.members) <= n {
			break
		}
		t.mu.Unlock()
	}
	for i, m := range t.members {
		members = append(members, m)
		out = append(out, State{
			Endpoint: m.endpoint,
			Signals:  t.signals[i],
			Adapters: slices.Clone(m.adapters),
			Listed:   !t.unlisted.Has(m.endpoint.Slot),
			Truth:    m.truth,
		})
	}
	t.mu.Unlock()
	for i, m := range members { // the index may be busy, and a pick must not wait for it
		out[i].Blocks = m.blocks.Blocks()
	}
	return out
}
