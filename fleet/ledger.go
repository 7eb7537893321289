package fleet

import (
	"container/heap"
	"slices"
	"time"
)

// ledger holds the bookings that have not ended, oldest first.
type ledger struct {
	oldest, newest *entry
	free           *entry // linked by next
	live           int
	tokens         int       // of all entries, still held
	due            dueTokens // tokens that are released by time
	bound          uint64    // bookings that the bound has ended
}

// entry is one booking. generation tells a handle of an earlier use.
type entry struct {
	m        *Member
	tokens   int // still held; 0 once released
	answered bool
	work     float64 // of the tokens; 0 once released
	// ahead and others are what was there before it: work, and requests.
	ahead  float64
	others int
	// answeredAt is when its first token came; zero: not seen.
	answeredAt time.Time
	generation uint64
	at         time.Time
	prev, next *entry
}

// Booking is a request that was sent to an endpoint and has not ended. Its
// methods may be called in any order, by any goroutine, any number of times:
// each part is released once. The zero Booking is one that has ended.
type Booking struct {
	t          *Table
	e          *entry
	generation uint64
}

// add books a request of so many uncached tokens on m. The table's lock is held.
func (l *ledger) add(m *Member, tokens int, work float64, now time.Time) Booking {
	e := l.free
	if e == nil {
		e = new(entry)
	} else {
		l.free = e.next
	}
	*e = entry{
		m: m, tokens: max(0, tokens), work: work, ahead: m.work().Pending, others: m.signals().InFlight,
		generation: e.generation + 1, at: now, prev: l.newest,
	}
	if l.newest == nil {
		l.oldest = e
	} else {
		l.newest.next = e
	}
	l.newest = e
	l.live++
	e.hold()
	return Booking{t: m.t, e: e, generation: e.generation}
}

// end releases what e still holds and takes it out. The table's lock is held.
func (l *ledger) end(e *entry) {
	e.drop()
	e.m.t.release(e.m)
	if e.prev == nil {
		l.oldest = e.next
	} else {
		e.prev.next = e.next
	}
	if e.next == nil {
		l.newest = e.prev
	} else {
		e.next.prev = e.prev
	}
	l.live--
	e.m, e.prev, e.next = nil, nil, l.free
	e.generation++
	l.free = e
}

// hold adds what e holds to its member's counters, drop takes it off. The
// table's lock is held.
func (e *entry) hold() {
	s := e.m.signals()
	s.InFlight++
	s.InFlightTokens += e.tokens
	e.m.t.ledger.tokens += e.tokens
	e.m.work().Pending += e.work
	if !e.answered {
		e.m.unanswered++
	}
	e.m.peak = max(e.m.peak, s.InFlight)
}

func (e *entry) drop() {
	s := e.m.signals()
	s.InFlight--
	s.InFlightTokens -= e.tokens
	e.m.t.ledger.tokens -= e.tokens
	e.m.settleWork(e.work)
	if !e.answered {
		e.m.unanswered--
	}
}

// releaseTokens takes the tokens off alone. The table's lock is held.
func (e *entry) releaseTokens() {
	e.m.signals().InFlightTokens -= e.tokens
	e.m.t.ledger.tokens -= e.tokens
	e.m.settleWork(e.work)
	e.tokens, e.work = 0, 0
}

// ended reports whether the booking has ended. The table's lock is held.
func (b Booking) ended() bool { return b.e.generation != b.generation }

// with calls f under the table's lock, unless the booking has ended, and reports
// whether it did.
func (b Booking) with(f func(e *entry)) bool {
	if b.t == nil {
		return false
	}
	b.t.mu.Lock()
	defer b.t.mu.Unlock()
	if b.ended() {
		return false
	}
	f(b.e)
	return true
}

// Answered tells that the endpoint's answer has begun: the request has reached
// the engine.
func (b Booking) Answered() {
	b.with(func(e *entry) {
		e.drop()
		e.answered = true
		e.hold()
	})
}

// Untold is [Member.Untold] of the endpoint that has the booking.
func (b Booking) Untold(scorer string) (first bool) {
	b.with(func(e *entry) { first = e.m.noteUntold(scorer) })
	return first
}

// ReleaseTokensByRate releases the booking's tokens when the endpoint will have
// computed them at the rate that it has shown, for an edge that does not see the
// first token.
func (b Booking) ReleaseTokensByRate(now time.Time) {
	b.with(func(e *entry) {
		if e.tokens > 0 {
			takes := time.Duration(float64(e.tokens) / e.m.prefillRate() * float64(time.Second))
			heap.Push(&b.t.ledger.due, due{now.Add(takes), b})
		}
	})
}

// HandOver leaves the booking to the endpoint's readings, for an edge that does
// not see the end: it ends with the first reading that begins after now, which
// counts the request among the engine's own.
func (b Booking) HandOver(now time.Time) {
	b.with(func(e *entry) {
		m := e.m
		if m.pos < 0 { // no reading will come
			b.t.ledger.end(e)
			return
		}
		if len(m.handed) >= 2*maxHandedDead { // none comes for long: what has ended otherwise is dropped
			m.handed = slices.DeleteFunc(m.handed, func(d due) bool { return d.b.ended() })
		}
		m.handed = append(m.handed, due{now, b})
	})
}

// maxHandedDead is about how many handed-over bookings that have ended otherwise
// are kept before they are looked for.
const maxHandedDead = 1024

// due is a booking of which something falls due at a time.
type due struct {
	at time.Time
	b  Booking
}

// dueTokens is a heap, the earliest first.
type dueTokens []due

func (d dueTokens) Len() int           { return len(d) }
func (d dueTokens) Less(i, k int) bool { return d[i].at.Before(d[k].at) }
func (d dueTokens) Swap(i, k int)      { d[i], d[k] = d[k], d[i] }

// Push is heap.Interface's.
func (d *dueTokens) Push(x any) { *d = append(*d, x.(due)) }

// Pop is heap.Interface's.
func (d *dueTokens) Pop() any {
	last := len(*d) - 1
	x := (*d)[last]
	*d = (*d)[:last]
	return x
}

// releaseDue releases the tokens that have fallen due. The table's lock is held.
func (l *ledger) releaseDue(now time.Time) {
	for len(l.due) > 0 && !l.due[0].at.After(now) {
		if b := heap.Pop(&l.due).(due).b; !b.ended() {
			b.e.releaseTokens()
		}
	}
}

// FirstToken releases the booking's tokens: the prompt has been computed. The
// first one that is told teaches how long that takes.
func (b Booking) FirstToken(now time.Time) {
	b.with(func(e *entry) {
		if e.answeredAt.IsZero() {
			e.answeredAt = now
			b.t.learnFirstToken(e, now)
		}
		e.releaseTokens()
	})
}

// Complete tells that the whole answer has come, before End: where its first token
// was seen, that teaches how long an answer takes.
func (b Booking) Complete(now time.Time) {
	b.with(func(e *entry) {
		if !e.answeredAt.IsZero() {
			b.t.learnAnswer(e, now)
		}
	})
}

// Verdict says what the end of a request says of its endpoint.
type Verdict uint8

// The verdicts.
const (
	Undecided Verdict = iota // nothing: the client left, or its own fault was answered
	Good                     // it was answered well
	Bad                      // it was refused, broken off, let time out, or answered with a 5xx
)

// Judge tells what was seen of the request, for its endpoint's health: when its
// answer begins, and before its end where that says something else.
func (b Booking) Judge(now time.Time, v Verdict) {
	b.with(func(e *entry) {
		m := e.m
		if m.pos < 0 {
			return
		}
		switch v {
		case Good:
			m.outcomes.Served(now)
			m.noteReached()
			m.rateHealth(now)
		case Bad:
			m.failed(now)
		default:
			m.outcomes.Undecided()
			m.rateHealth(now)
		}
	})
}

// End releases the booking. It returns false where that had happened before: by
// an earlier End, a reading that it was handed over to, or the bound.
func (b Booking) End() bool {
	return b.with(func(e *entry) { b.t.ledger.end(e) })
}

// Served moves the booking to the endpoint of the given address, where another
// one served the request than was picked: the one that was picked has failed it.
// An unknown address changes nothing, and is the only one for which it returns
// false of a booking that has not ended.
func (b Booking) Served(now time.Time, address string) (known bool) {
	b.with(func(e *entry) {
		from := e.m
		if from.endpoint.Address == address {
			known = true
			return
		}
		i := slices.IndexFunc(b.t.members, func(m *Member) bool { return m.endpoint.Address == address })
		if i < 0 {
			return
		}
		known = true
		if from.pos >= 0 {
			from.failed(now)
		}
		e.drop()
		e.m = b.t.members[i]
		e.hold()
		b.t.release(from)
	})
	return known
}

// Expire ends the bookings that are older than the bound and returns how many
// these were.
func (t *Table) Expire(now time.Time) int {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.ledger.releaseDue(now)
	n := 0
	for e := t.ledger.oldest; e != nil && now.Sub(e.at) > t.opt.BookingBound; e = t.ledger.oldest {
		e.m.outcomes.Undecided()
		t.ledger.end(e)
		n++
	}
	t.ledger.bound += uint64(n)
	return n
}

// Ledger is the sum of all bookings, of members that have left too.
type Ledger struct {
	Requests int    // in flight
	Tokens   int    // uncached tokens whose first token was not seen
	Bound    uint64 // bookings that the bound has ended since the start
}

// Ledger counts the bookings that have not ended. At rest it is 0.
func (t *Table) Ledger() Ledger {
	t.mu.Lock()
	defer t.mu.Unlock()
	return Ledger{Requests: t.ledger.live, Tokens: t.ledger.tokens, Bound: t.ledger.bound}
}
