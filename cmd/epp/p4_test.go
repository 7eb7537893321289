package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"epp.internal/epp"
	"epp.internal/epp/bench/workload"
	"epp.internal/epp/config"
	"epp.internal/epp/fleet"
	"epp.internal/epp/picker"
)

// p4Chains are more than the index of TestCaseP4LockTakenTwice has room for.
const p4Chains = 200

var caseP4For = flag.Duration("p4", time.Second, "how long TestCaseP4LockTakenTwice goes on")

// stall is the longest that one call of something took.
type stall struct{ longest, calls atomic.Int64 }

// call times f.
func (s *stall) call(f func()) {
	from := time.Now()
	f()
	took := int64(time.Since(from))
	for longest := s.longest.Load(); took > longest && !s.longest.CompareAndSwap(longest, took); {
		longest = s.longest.Load()
	}
	s.calls.Add(1)
}

func (s *stall) String() string {
	return fmt.Sprintf("%d calls, the longest %v", s.calls.Load(), time.Duration(s.longest.Load()))
}

// TestCaseP4LockTakenTwice: requests, each looked up in the index, and readers of the pool at full speed, a
// writer of readings every millisecond, more KV events than the index has room
// for, and scrapes of the metrics page, all at once. Nothing stops: no call takes
// longer than 5 s, a chain of events, which is work and not waiting, four times that;
// the log shows beside them how long a goroutine that takes no lock had to wait for a
// processor meanwhile. What the index has no room for is dropped
// and counted, and its endpoint incomplete. With -p4 30s it goes on for 30 s.
func TestCaseP4LockTakenTwice(t *testing.T) {
	cfg, err := config.Parse("p4.yaml", []byte("limits: {indexBytes: 4MiB}\npool: {endpoints: [10.0.0.1:8000, 10.0.0.2:8000, 10.0.0.3:8000, 10.0.0.4:8000]}\n"))
	if err != nil {
		t.Fatal(err)
	}
	s, err := build(cfg, nil, slog.New(slog.DiscardHandler), watch{})
	if err != nil {
		t.Fatal(err)
	}
	var members []*fleet.Member
	for _, e := range cfg.Pool.Endpoints {
		members = append(members, s.fleet.Join(epp.Endpoint{Name: e.Name, Address: e.Address}))
	}
	var stores [][]epp.BlockEvent
	for n := range p4Chains {
		stores = append(stores, workload.Events(n))
	}
	prompt, err := json.Marshal(workload.Prompt(0)) // its blocks are stored meanwhile
	if err != nil {
		t.Fatal(err)
	}
	body := fmt.Appendf(nil, `{"model":"m","prompt":%s}`, prompt)
	var processor, request, snapshot, reading, event, scrape stall
	var wg sync.WaitGroup
	until := time.Now().Add(*caseP4For)
	atFullSpeed := func(s *stall, f func()) {
		wg.Go(func() {
			for time.Now().Before(until) {
				s.call(f)
			}
		})
	}
	atFullSpeed(&processor, func() {})
	atFullSpeed(&request, func() {
		pk, err := s.picker.Pick(t.Context(), picker.Incoming{ID: "1", Method: "POST", Path: "/v1/completions", Body: body})
		if err != nil {
			t.Error(err)
			return
		}
		pk.End(picker.ClientGone)
	})
	atFullSpeed(&snapshot, func() { s.fleet.Snapshot() })
	atFullSpeed(&scrape, func() {
		w := httptest.NewRecorder()
		s.metrics.Handler().ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/metrics", nil))
		if w.Code != http.StatusOK {
			t.Errorf("metrics: %d", w.Code)
		}
	})
	wg.Go(func() {
		for n := 0; n < p4Chains || time.Now().Before(until); n++ {
			event.call(func() { members[0].Apply(time.Now(), stores[n%p4Chains]) })
		}
	})
	wg.Go(func() {
		tick := time.NewTicker(time.Millisecond)
		defer tick.Stop()
		for now := range tick.C {
			if now.After(until) {
				return
			}
			reading.call(func() {
				m := members[int(now.UnixMilli())%len(members)]
				m.Load(m.Begin(now), now, epp.Load{Running: epp.Known(1), Waiting: epp.Known(0)})
			})
		}
	})
	ended := make(chan struct{})
	go func() { wg.Wait(); close(ended) }()
	select {
	case <-ended:
	case <-time.After(*caseP4For + 30*time.Second):
		t.Fatal("it stands still")
	}
	t.Logf("no lock: %v", &processor)
	for name, op := range map[string]*stall{"request": &request, "snapshot": &snapshot, "reading": &reading, "chain of events": &event, "scrape": &scrape} {
		t.Logf("%s: %v", name, op)
		most := 5 * time.Second
		if op == &event {
			most *= 4
		}
		if op.calls.Load() == 0 || op.longest.Load() > int64(most) {
			t.Errorf("%s: %v: must be called, and take at most %v", name, op, most)
		}
	}
	counts := s.index.Stats()
	if dropped := counts.Evicted + counts.Refused; dropped == 0 || !s.fleet.Snapshot()[0].Signals.Incomplete {
		t.Errorf("%d blocks stored, %d dropped; incomplete %v", counts.Stored, dropped, s.fleet.Snapshot()[0].Signals.Incomplete)
	}
	if l := s.fleet.Ledger(); l.Requests != 0 || l.Tokens != 0 {
		t.Errorf("ledger %+v", l)
	}
}
