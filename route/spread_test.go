package route_test

import (
	"fmt"
	"testing"
	"time"

	"epp.internal/epp"
	"epp.internal/epp/decision"
	"epp.internal/epp/route"
)

// Four idle endpoints hold nothing of any prompt. With spread.cold each gets one of
// four new prompts whatever the seeds; without, a hash of each seed decides.
func TestColdPromptsTakeTurns(t *testing.T) {
	for _, cold := range []bool{true, false} {
		s := decision.Defaults()
		s.Spread.Cold = cold
		p, err := route.New(s)
		if err != nil {
			t.Fatal(err)
		}
		in := &route.Input{Request: &epp.Request{}, BlockedTokens: 4096, Now: now}
		for i := range 4 {
			in.View.Endpoints = append(in.View.Endpoints, epp.Endpoint{Name: fmt.Sprint(i), Slot: epp.Slot(i)})
			in.View.Signals = append(in.View.Signals, epp.Signals{Health: 1})
		}
		rec, early := &decision.Record{}, 0 // picked again before the others
		for n := range 40 {
			i, err := p.Pick(in, uint64(n), nil, rec)
			if err != nil {
				t.Fatal(err)
			}
			at := now.Add(time.Duration(n) * time.Second)
			if last := in.View.Signals[i].ColdAt; last != 0 && last > epp.InstantOf(at.Add(-4*time.Second)) {
				early++
			}
			in.View.Signals[i].ColdAt = epp.InstantOf(at)
		}
		if (early == 0) != cold {
			t.Errorf("spread.cold %v: %d of 40 picked again before the others", cold, early)
		}
	}
}
