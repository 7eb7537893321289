package fleet_test

import (
	"errors"
	"syscall"
	"testing"
	"time"

	"epp.internal/epp"
	"epp.internal/epp/fleet"
)

// TestAsked: a question about a model is for an engine that has it, is up and is
// least busy; equals take turns. Where no list is known, any may have it.
func TestAsked(t *testing.T) {
	at := time.Unix(1000, 0)
	table := fleet.New(fleet.Options{})
	join := func(name string, models ...string) *fleet.Member {
		m := table.Join(epp.Endpoint{Name: name, Address: "10.0.0.1:" + name})
		var list []epp.Model
		for _, name := range models {
			list = append(list, epp.Model{Name: name})
		}
		if list != nil {
			m.Models(list)
		}
		return m
	}
	none := func(epp.Endpoint) bool { return false }
	asked := func(target string, skip func(epp.Endpoint) bool) (names string, listed bool) {
		for range 4 {
			e, has, ok := table.Asked(target, skip)
			if !ok {
				return "", false
			}
			names, listed = names+e.Name, has
		}
		return names, listed
	}
	expect := func(what, target string, skip func(epp.Endpoint) bool, want string, listed bool) {
		t.Helper()
		if got, has := asked(target, skip); got != want && (want == "" || got != want[1:]+want[:1]) || has != listed {
			t.Errorf("%s: asked %q, listed %v; want %q, %v", what, got, has, want, listed)
		}
	}
	expect("an empty pool", "red", none, "", false)
	join("a", "blue")
	expect("a model that no endpoint lists", "red", none, "", false)
	join("b")
	expect("the only endpoint that may have it", "red", none, "bbbb", false)
	c := join("c", "red")
	expect("the only one that lists it", "red", none, "cccc", true)
	join("d", "red", "blue")
	expect("two that list it", "red", none, "cdcd", true)
	expect("one of them is taken out", "red", func(e epp.Endpoint) bool { return e.Name == "c" }, "dddd", true)
	booking, _ := table.Pick(fleet.Query{}, at, func(epp.View) (int, int) { return 3, 1 })
	expect("one of them is busy", "red", none, "cccc", true)
	for range 10 {
		c.Failed(at, syscall.ECONNREFUSED)
	}
	expect("the other one is down", "red", none, "dddd", true)
	booking.End()
	c.Failed(at, errors.New("page not read"))
	if got, _ := asked("", none); len(got) != 4 {
		t.Errorf("without a model: %q", got)
	}
}
