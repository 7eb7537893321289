package fleet_test

import (
	"testing"
	"time"

	"epp.internal/epp"
	"epp.internal/epp/audit"
	"epp.internal/epp/fleet"
)

// TestVerify: ten answers that report nothing of what the endpoint claims, and a
// decision sees that its claims are doubted; after a restart it is trusted.
// Answers of a booking that moved, or has ended, say nothing.
func TestVerify(t *testing.T) {
	at := time.Unix(1000, 0)
	table := fleet.New(fleet.Options{})
	a := table.Join(epp.Endpoint{Name: "a", Address: "10.0.0.1:8000"})
	b := table.Join(epp.Endpoint{Name: "b", Address: "10.0.0.2:8000"})
	a.Incomplete(at, false)
	lie := audit.Outcome{Predicted: 160, OurTokens: 170, EngineTokens: 170}
	pick := func() fleet.Booking {
		t.Helper()
		bk, ok := table.Pick(fleet.Query{}, at, func(epp.View) (int, int) { return 0, 0 })
		if !ok {
			t.Fatal("nothing was booked")
		}
		return bk
	}
	seen := func() (doubt uint8) {
		table.Pick(fleet.Query{}, at, func(v epp.View) (int, int) { doubt = v.Signals[0].Doubt; return -1, 0 })
		return doubt
	}
	for range 10 {
		bk := pick()
		if _, ok := bk.Verify(at, b.Endpoint(), lie); ok {
			t.Error("another endpoint's answer counts")
		}
		v, ok := bk.Verify(at, a.Endpoint(), lie)
		if !ok || v.Cause != audit.Unconfirmed {
			t.Errorf("%+v %v", v, ok)
		}
		bk.End()
		if _, ok := bk.Verify(at, a.Endpoint(), lie); ok {
			t.Error("a booking that has ended counts")
		}
	}
	if d := seen(); d != 100 {
		t.Errorf("doubt %v", d)
	}
	at = at.Add(time.Minute)
	if d := seen(); d != 50 {
		t.Errorf("doubt %v a minute later", d)
	}
	at = at.Add(time.Hour)
	if d := seen(); d != 0 {
		t.Errorf("doubt %v an hour later", d)
	}
	at = at.Add(-time.Hour)
	bk := pick()
	bk.Verify(at, a.Endpoint(), lie)
	bk.End()
	a.Reset(at)
	a.Restarted()
	if d := seen(); d != 100 || table.Snapshot()[0].Truth.Alarm() != audit.Unconfirmed {
		t.Errorf("doubt %v of a liar that begins anew", d)
	}
	bk = pick()
	bk.Served(at, "10.0.0.2:8000")
	if _, ok := bk.Verify(at, a.Endpoint(), lie); ok {
		t.Error("an answer counts against the endpoint that did not serve it")
	}
	bk.End()
}

// TestVerifyUnheard: what is expected of an endpoint that does not tell of its cache
// is a guess, and a wrong one is no broken word.
func TestVerifyUnheard(t *testing.T) {
	at := time.Unix(1000, 0)
	table := fleet.New(fleet.Options{})
	a := table.Join(epp.Endpoint{Name: "a", Address: "10.0.0.1:8000"})
	for _, want := range []audit.Cause{audit.NoEvents, audit.Unconfirmed} {
		bk, ok := table.Pick(fleet.Query{}, at, func(epp.View) (int, int) { return 0, 0 })
		if !ok {
			t.Fatal("nothing was booked")
		}
		if v, ok := bk.Verify(at, a.Endpoint(), audit.Outcome{Predicted: 160, OurTokens: 170, EngineTokens: 170}); !ok || v.Cause != want {
			t.Errorf("%v, want %v", v.Cause, want)
		}
		bk.End()
		a.Incomplete(at, false) // now all is known of its cache
	}
}
