//go:build vllm

package vllm

import (
	"fmt"
	"net/http"
	"syscall"
	"testing"
	"time"
)

// untilHealth waits until the metrics page gives an endpoint a health in a range, for a
// reason; one that is sound has none.
func (p *picker) untilHealth(name, reason string, least, most float64) {
	p.t.Helper()
	p.untilPage(fmt.Sprintf("%s has a health of %v to %v (%s)", name, least, most, reason), func(page string) bool {
		h := value(page, "epp_pod_health_score", name)
		return h >= least && h <= most && (reason == "" || value(page, "epp_pod_health_info", name, reason) == 1)
	})
}

// goTo sends n small requests and fails where one goes to another endpoint.
func (p *picker) goTo(name string, seed uint64, n int) {
	p.t.Helper()
	for i := range n {
		if _, picked, _ := p.ask(completion("tiny", tokens(seed+uint64(i), 40))); picked.Pod != name {
			p.t.Errorf("a request went to %s for %q, want %s", picked.Pod, picked.Reason, name)
		}
	}
}

// TestSleep: an engine that was put to sleep is left out, and is back when it is
// awake. Sleep takes nothing away on a CPU; that it is told is what counts.
func TestSleep(t *testing.T) {
	p := startPicker(t, pool.a.auto(), pool.b.auto()).settled("A", "B")
	order := func(path string) {
		t.Helper()
		if a := post(p.ctx, p.client, "http://"+pool.a.address+path, []byte{}); a.status != http.StatusOK {
			t.Fatalf("%s: %d %s %v", path, a.status, a.body, a.err)
		}
	}
	order("/sleep?level=1")
	p.untilHealth("A", "asleep", 0, 0)
	p.goTo("B", 700, 8)
	order("/wake_up")
	p.untilHealth("A", "", 1, 1)
	p.caughtUp(pool.a, pool.b)
}

// TestProbeOfAStoppedEngine: probes of both engines end well. Then the processes of
// A are stopped: they hold their sockets and answer nothing. A's probes fail and it
// is left out; when the processes go on, it comes back.
func TestProbeOfAStoppedEngine(t *testing.T) {
	p := startPickerWith(t, settings{more: "probe: {interval: 1s, timeout: 1s}\n"}, pool.a.auto(), pool.b.auto()).settled("A", "B")
	p.untilHealth("A", "", 1, 1)
	p.untilHealth("B", "", 1, 1)
	signal := func(s syscall.Signal) {
		t.Helper()
		if err := syscall.Kill(-pool.a.cmd.Process.Pid, s); err != nil {
			t.Fatal(err)
		}
	}
	signal(syscall.SIGSTOP)
	t.Cleanup(func() { _ = syscall.Kill(-pool.a.cmd.Process.Pid, syscall.SIGCONT) }) // it may go on already
	began := time.Now()
	p.untilHealth("A", "probe_failed", 0, 0)
	t.Logf("A was left out %v after it stood still", time.Since(began))
	p.goTo("B", 720, 8)
	signal(syscall.SIGCONT)
	p.untilPage("A is back", func(page string) bool { return value(page, "epp_pod_health_score", "A") >= 0.5 })
	if n := value(p.page(), "epp_probes_total", "failed"); n < 3 {
		t.Errorf("%v probes have failed", n)
	}
	p.atRest()
}
