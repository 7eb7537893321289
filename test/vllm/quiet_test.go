//go:build vllm && loaded

package vllm

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

// processorTime is how long the machine's processors have worked so far: in all,
// and for the engines and the tests.
type processorTime struct{ all, ours time.Duration }

// tick is the unit of /proc/stat and of /proc/PID/stat, USER_HZ of proc(5).
const tick = 10 * time.Millisecond

// readProcessorTime reads /proc. What has ended since its parent is no part of ours.
func readProcessorTime(t *testing.T) (sum processorTime) {
	t.Helper()
	page, err := os.ReadFile("/proc/stat")
	if err != nil {
		t.Fatal(err)
	}
	// cpu user nice system idle iowait irq softirq steal …
	var user, nice, system, idle, iowait, irq, softirq, steal time.Duration
	if _, err := fmt.Sscanf(string(page), "cpu %d %d %d %d %d %d %d %d", &user, &nice, &system, &idle, &iowait, &irq, &softirq, &steal); err != nil {
		t.Fatalf("/proc/stat: %v", err)
	}
	sum.all = tick * (user + nice + system + irq + softirq + steal)
	groups := []int{syscall.Getpgrp(), pool.a.group(), pool.b.group()}
	names, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		page, err := os.ReadFile(name)
		if err != nil {
			continue // it has ended
		}
		// pid (comm) state ppid pgrp session tty tpgid flags minflt cminflt majflt cmajflt utime stime …
		var skip string
		var group int
		var user, system time.Duration
		rest := string(page[strings.LastIndexByte(string(page), ')')+1:])
		if _, err := fmt.Sscan(rest, &skip, &skip, &group, &skip, &skip, &skip, &skip, &skip, &skip, &skip, &skip, &user, &system); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if slices.Contains(groups, group) {
			sum.ours += tick * (user + system)
		}
	}
	return sum
}

// othersSince is how many processors have worked for others since then, on average.
func (p processorTime) othersSince(then processorTime, passed time.Duration) float64 {
	return float64(p.all-then.all-(p.ours-then.ours)) / float64(passed)
}

// awaitQuiet waits for a second in which others have the work of no more than
// quietProcessors, and reports whether there was one until then.
func awaitQuiet(t *testing.T, until time.Time) bool {
	t.Helper()
	for time.Now().Before(until) {
		began, before := time.Now(), readProcessorTime(t)
		select {
		case <-time.After(time.Second):
		case <-t.Context().Done():
			return false
		}
		if readProcessorTime(t).othersSince(before, time.Since(began)) <= quietProcessors {
			return true
		}
	}
	return false
}

// group is the process group of the engine.
func (e *server) group() int { return e.cmd.Process.Pid }
