// Package health turns what is seen of an endpoint into a number in [0, 1]: 1 is
// sound, below [Cutoff] it gets no request. It is a state machine without a
// clock: time is an argument.
//
// It belongs to an endpoint's state's way in: fleet keeps one [State] for each
// endpoint and tells it how requests and readings ended.
//
// # Passive outcomes
//
// A request that the endpoint refuses, breaks off, lets time out or answers with
// a 5xx takes a quarter; three in a row, and the endpoint is left out. A reading
// whose connection is refused counts the same, so that a dead engine is left out
// before it has cost a request. A success gives a tenth back, and what was taken
// fades within half a minute of the last failure.
//
// An endpoint that was left out is tried again by one request at a time, as if it
// were sound, or nothing would go there while others are: after a second, and
// after twice as long each time that fails, up to half a minute; a reading that
// reaches it after one that was refused makes the next try due at once. A try that succeeds brings it back
// at the middle.
//
// Outcomes alone never leave out more than the caller allows (half of a pool):
// then the score stays at the cutoff.
//
// # Facts
//
// [Facts] are all else: probes, the GPU, progress, sleep, and how warm the cache
// is. Each fact allows the endpoint a health, in bands: 1 is sound, 0.7 to 0.9 has
// something to watch, 0.3 to 0.6 is degraded, below that it is out. The worst one
// counts, and its name is the reason. The health moves towards it, by 0.1 a second
// down and 0.1 in 5 s up, so that a fact that comes and goes does not make it flap;
// what leaves an endpoint out does so at once, and lets it back after ten seconds
// without it, twenty if it was back before, and so on. testdata/facts tells it in stories.
//
// The health that a decision sees is the lower of the two.
package health

import "time"

// Cutoff is the health under which an endpoint gets no request. Source: the
// article, section 7.
const Cutoff = 0.3

const (
	failure  = 0.25 // what a failed request takes
	success  = 0.1  // what a good one gives
	restored = 0.5  // where an endpoint comes back

	fades      = 30 * time.Second
	firstPause = time.Second
	longest    = 30 * time.Second
)

// State is what is known of one endpoint. The zero State is sound.
type State struct {
	lost   float64   // what was taken, at at
	at     time.Time // the last outcome
	out    bool      // left out, but for tries
	trying bool      // one request is on its way to find out
	unread bool      // readings were refused, and none has reached it since
	due    time.Time // of the next try
	pause  time.Duration
}

// Out reports whether the endpoint is left out for its outcomes.
func (s *State) Out() bool { return s.out }

// Score is the health at now. An endpoint that is left out scores 0, and 1 while
// a try is due.
func (s *State) Score(now time.Time) float64 {
	switch {
	case !s.out:
		return 1 - s.taken(now)
	case !s.trying && !now.Before(s.due):
		return 1
	}
	return 0
}

// taken is what is left at now of what outcomes took.
func (s *State) taken(now time.Time) float64 {
	left := 1 - float64(now.Sub(s.at))/float64(fades)
	return s.lost * min(1, max(0, left))
}

// Sound reports whether nothing is held against the endpoint.
func (s *State) Sound(now time.Time) bool { return !s.out && s.taken(now) == 0 }

// Sent tells that a request goes to the endpoint. Where it is left out, that is
// the try: no other follows until its outcome is known.
func (s *State) Sent() {
	if s.out {
		s.trying = true
	}
}

// Failed tells that a request failed at now. mayLeave
// says whether the endpoint may be left out for it.
func (s *State) Failed(now time.Time, mayLeave bool) {
	if s.out {
		if s.trying {
			s.trying = false
			s.pause = min(2*s.pause, longest)
		}
		s.due = now.Add(s.pause)
		return
	}
	next := s.taken(now) + failure
	s.lost, s.at = min(1-Cutoff, next), now
	if 1-next < Cutoff && mayLeave {
		s.out, s.trying, s.pause = true, false, firstPause
		s.due = now.Add(s.pause)
	}
}

// Refused tells that the connection of a reading was refused at now: a failure
// that the next reading can prove to be over.
func (s *State) Refused(now time.Time, mayLeave bool) {
	s.Failed(now, mayLeave)
	s.unread = true
}

// Served tells that a request was answered well.
func (s *State) Served(now time.Time) {
	if s.out {
		*s = State{lost: 1 - restored, at: now}
		return
	}
	s.lost, s.at = max(0, s.taken(now)-success), now
}

// Undecided tells that a request ended without saying anything of the endpoint:
// its client left, or its own fault was answered.
func (s *State) Undecided() { s.trying = false }

// Reached tells that a reading reached the endpoint: where readings were refused
// before, it is worth a try at once. A page that was there all the time says
// nothing of requests.
func (s *State) Reached(now time.Time) {
	if s.unread && s.out && s.due.After(now) && !s.trying {
		s.due, s.pause = now, firstPause
	}
	s.unread = false
}
