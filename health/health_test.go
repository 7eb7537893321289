package health_test

import (
	"math"
	"testing"
	"time"

	"pgregory.net/rapid"

	"epp.internal/epp/health"
)

var start = time.Date(2026, 11, 29, 12, 0, 0, 0, time.UTC)

// TestThreeFailuresLeaveOut tells an endpoint's fall and return, second by second.
func TestThreeFailuresLeaveOut(t *testing.T) {
	var s health.State
	at := func(seconds float64) time.Time { return start.Add(time.Duration(seconds * float64(time.Second))) }
	want := func(seconds, score float64) {
		t.Helper()
		if got := s.Score(at(seconds)); math.Abs(got-score) > 1e-9 {
			t.Errorf("at %v s: %v, want %v", seconds, got, score)
		}
	}
	want(0, 1)
	s.Failed(at(0), true)
	want(0, 0.75)
	s.Served(at(0))
	want(0, 0.85)
	s.Failed(at(0), true)
	s.Failed(at(0), true)
	want(0, 0.35)
	s.Failed(at(0), true)
	want(0, 0) // left out
	want(0.999, 0)
	want(1, 1) // a try is due, as if it were sound
	s.Sent()
	want(1, 0) // and no second one beside it
	s.Failed(at(1.1), true)
	want(3, 0) // the pause has doubled
	want(3.1, 1)
	s.Sent()
	s.Undecided() // its client left: nothing was learnt
	want(3.2, 1)
	s.Sent()
	s.Served(at(3.3))
	want(3.3, 0.5)
	want(18.3, 0.75) // what is held against it fades in half a minute
	want(33.3, 1)
	if !s.Sound(at(33.4)) || s.Sound(at(33)) {
		t.Error("sound when all has faded, and not before")
	}
	s.Served(at(40))
	want(40, 1)
}

// TestReachedMakesATryDue: a reading that reaches the endpoint again, after one that
// was refused, cuts the pause short; one that is refused prolongs it.
func TestReachedMakesATryDue(t *testing.T) {
	var s health.State
	for range 3 {
		s.Failed(start, true)
	}
	s.Reached(start.Add(500 * time.Millisecond)) // its page was there all the time
	if got := s.Score(start.Add(500 * time.Millisecond)); got != 0 {
		t.Errorf("a try is due at an endpoint that answers its page and no request: %v", got)
	}
	s.Refused(start.Add(900*time.Millisecond), true)
	if got := s.Score(start.Add(time.Second)); got != 0 {
		t.Errorf("a try is due at an endpoint that refuses: %v", got)
	}
	s.Reached(start.Add(1100 * time.Millisecond))
	if got := s.Score(start.Add(1100 * time.Millisecond)); got != 1 {
		t.Errorf("no try is due at an endpoint that was reached: %v", got)
	}
}

// TestNeverLeftOutAgainstTheCallersWill: the score stays at or above the cutoff.
func TestNeverLeftOutAgainstTheCallersWill(t *testing.T) {
	var s health.State
	for range 20 {
		s.Failed(start, false)
	}
	if got := s.Score(start); s.Out() || math.Abs(got-health.Cutoff) > 1e-9 || got < health.Cutoff {
		t.Errorf("%v", got)
	}
}

// TestAnyOrder: whatever is told in whatever order, the score lies in [0, 1], and
// between the cutoff and 1 for an endpoint that is in.
func TestAnyOrder(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var s health.State
		now := start
		for range rapid.IntRange(0, 60).Draw(t, "steps") {
			now = now.Add(time.Duration(rapid.IntRange(0, 3000).Draw(t, "ms")) * time.Millisecond)
			switch rapid.IntRange(0, 5).Draw(t, "what") {
			case 5:
				s.Refused(now, rapid.Bool().Draw(t, "may leave"))
			case 0:
				s.Failed(now, rapid.Bool().Draw(t, "may leave"))
			case 1:
				s.Served(now)
			case 2:
				s.Undecided()
			case 3:
				s.Reached(now)
			case 4:
				s.Sent()
			}
			if got := s.Score(now); !(got >= 0 && got <= 1) || !s.Out() && got < health.Cutoff {
				t.Fatalf("score %v, out %v", got, s.Out())
			}
		}
		if s.Out() && s.Score(now.Add(time.Hour)) == 0 {
			s.Undecided()
			if s.Score(now.Add(time.Hour)) != 1 {
				t.Fatal("left out for ever")
			}
		}
	})
}
