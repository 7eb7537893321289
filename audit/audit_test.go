package audit_test

import (
	"math"
	"testing"
	"time"

	"pgregory.net/rapid"

	"epp.internal/epp/audit"
)

var start = time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)

// TestCauses is one line for each way in which a prediction goes.
func TestCauses(t *testing.T) {
	for _, c := range []struct {
		why  string
		o    audit.Outcome
		want audit.Cause
	}{
		{"equal", audit.Outcome{Predicted: 480, Reported: 480, OurTokens: 500, EngineTokens: 500, BlockTokens: 16, Heard: true}, audit.Agrees},
		{"a block less", audit.Outcome{Predicted: 480, Reported: 464, OurTokens: 500, EngineTokens: 500, BlockTokens: 16, Heard: true}, audit.Agrees},
		{"a block more", audit.Outcome{Predicted: 0, Reported: 16, OurTokens: 500, EngineTokens: 500, BlockTokens: 16, Heard: true}, audit.Agrees},
		{"two blocks less", audit.Outcome{Predicted: 480, Reported: 448, OurTokens: 500, EngineTokens: 500, BlockTokens: 16, Heard: true}, audit.Unconfirmed},
		{"nothing of it", audit.Outcome{Predicted: 480, OurTokens: 500, EngineTokens: 500, BlockTokens: 16, Heard: true}, audit.Unconfirmed},
		{"removed before", audit.Outcome{Predicted: 480, OurTokens: 500, EngineTokens: 500, BlockTokens: 16, Heard: true, Gone: true}, audit.Lag},
		{"stored before, told later", audit.Outcome{Reported: 480, OurTokens: 500, EngineTokens: 500, BlockTokens: 16, Heard: true}, audit.Lag},
		{"a guess", audit.Outcome{Predicted: 480, OurTokens: 500, EngineTokens: 500, BlockTokens: 16}, audit.NoEvents},
		{"not even a guess", audit.Outcome{Reported: 480, OurTokens: 500, EngineTokens: 500, BlockTokens: 16}, audit.NoEvents},
		{"other tokens", audit.Outcome{Predicted: 16, OurTokens: 500, EngineTokens: 502, BlockTokens: 16, Heard: true}, audit.Template},
		{"blocks of 24", audit.Outcome{Predicted: 480, Reported: 24, OurTokens: 500, EngineTokens: 500, BlockTokens: 16, Heard: true}, audit.BlockSize},
		{"all but the last token", audit.Outcome{Predicted: 400, Reported: 499, OurTokens: 500, EngineTokens: 500, BlockTokens: 16, Heard: true}, audit.Lag},
	} {
		if got := c.o.Cause(); got != c.want {
			t.Errorf("%s: %v, want %v", c.why, got, c.want)
		}
	}
}

// TestALiarIsDoubted tells the story of an endpoint that claims what it has not:
// after eight answers nearly all of its match is discounted and its name is in an
// alarm. A minute later half of that is forgotten, and what comes true then
// brings it back.
func TestALiarIsDoubted(t *testing.T) {
	var s audit.State
	lie := audit.Outcome{Predicted: 480, OurTokens: 500, EngineTokens: 500, BlockTokens: 16, Heard: true}
	now := start
	for i := range 8 {
		if s.Doubt(now) != 0 || s.Alarm() != audit.Agrees {
			t.Fatalf("after %d answers: doubt %v, alarm %v", i, s.Doubt(now), s.Alarm())
		}
		now = now.Add(time.Second)
		if _, changed := s.Add(now, lie); changed != (i == 7) {
			t.Errorf("answer %d: alarm changed: %v", i+1, changed)
		}
	}
	if s.Doubt(now) != 100 || s.Alarm() != audit.Unconfirmed || s.Share(audit.Unconfirmed) != 1 {
		t.Errorf("doubt %v, alarm %v", s.Doubt(now), s.Alarm())
	}
	now = now.Add(time.Minute)
	if d := s.Doubt(now); d != 50 {
		t.Errorf("doubt %v a minute later", d)
	}
	truth := lie
	truth.Reported = truth.Predicted
	n := 0
	for s.Doubt(now) > 0 {
		s.Add(now, truth)
		n++
	}
	if n < 20 || n > 60 {
		t.Errorf("trusted again after %d answers", n)
	}
	if s.Alarm() != audit.Agrees && s.Share(s.Alarm()) < 0.1 {
		t.Errorf("alarm %v stays at a share of %v", s.Alarm(), s.Share(s.Alarm()))
	}
	if got := s.Total(); got[audit.Unconfirmed] != 8 || got[audit.Agrees] != uint64(n) {
		t.Errorf("counted %v", got)
	}
}

// Whatever engines report: doubt is at most 100 hundredths, nothing is held against
// an endpoint whose claims came true, and every answer is counted once.
func TestDoubtIsBounded(t *testing.T) {
	tokens := rapid.OneOf(rapid.IntRange(-10, 600), rapid.Just(math.MaxInt), rapid.Just(math.MinInt))
	rapid.Check(t, func(t *rapid.T) {
		var s audit.State
		now, honest := start, true
		n := rapid.IntRange(0, 60).Draw(t, "answers")
		for range n {
			now = now.Add(time.Duration(rapid.Int64Range(-int64(time.Hour), int64(time.Hour)).Draw(t, "pass")))
			o := audit.Outcome{
				Predicted: tokens.Draw(t, "predicted"), Reported: tokens.Draw(t, "reported"), OurTokens: tokens.Draw(t, "ours"),
				EngineTokens: tokens.Draw(t, "theirs"), BlockTokens: tokens.Draw(t, "block"), Heard: rapid.Bool().Draw(t, "heard"), Gone: rapid.Bool().Draw(t, "gone"),
			}
			if rapid.Bool().Draw(t, "true") {
				o.Reported = o.Predicted
			}
			honest = honest && o.Reported >= o.Predicted
			s.Add(now, o)
			if d := s.Doubt(now); d > 100 || honest && d > 0 {
				t.Fatalf("doubt %v, honest: %v", d, honest)
			}
		}
		sum := uint64(0)
		for _, c := range s.Total() {
			sum += c
		}
		if sum != uint64(n) {
			t.Fatalf("%d of %d answers are counted", sum, n)
		}
	})
}

// TestMixedCauses: answers that are wrong for four causes in turn are as wrong as
// those with one: the alarm names the most frequent, and ends when all agree.
func TestMixedCauses(t *testing.T) {
	var s audit.State
	lie := audit.Outcome{Predicted: 480, OurTokens: 500, EngineTokens: 500, BlockTokens: 16, Heard: true}
	agrees, template, guess, late, odd := lie, lie, lie, lie, lie
	agrees.Reported = 480
	template.EngineTokens = 510
	guess.Heard = false
	late.Gone = true
	odd.Reported = 100
	for range 10 { // of six answers four are wrong, at most a sixth for one cause but lag
		for _, o := range []audit.Outcome{agrees, late, template, agrees, odd, guess} {
			s.Add(start, o)
		}
	}
	s.Add(start, late)
	if s.Alarm() != audit.Lag || s.Share(audit.Lag) > 0.3 {
		t.Errorf("alarm %v at a share of %v", s.Alarm(), s.Share(s.Alarm()))
	}
	for range 60 {
		s.Add(start, agrees)
	}
	if s.Alarm() != audit.Agrees {
		t.Errorf("alarm %v after 60 good answers", s.Alarm())
	}
}
