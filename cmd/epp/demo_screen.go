package main

import (
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	"epp.internal/epp/decision"
	"epp.internal/epp/epptest"
)

// screen shows the sample as it runs: on a terminal a table that is drawn anew
// twice a second, elsewhere a line for each turn.
type screen struct {
	w        io.Writer
	terminal bool
	engines  []*epptest.Engine
	waiter

	mu     sync.Mutex // guards the following fields
	live   bool
	rows   map[string]*row
	latest []string
	drawn  int // lines that stand on the terminal
	done   chan struct{}
	ended  chan struct{}
}

// row is what a run has sent to one endpoint.
type row struct {
	requests, prompt, cached int
	match                    float64 // sum of match ratios
}

// latestShown is how many decisions stand under the table.
const latestShown = 4

func newScreen(w io.Writer, engines []*epptest.Engine, terminal bool) *screen {
	return &screen{w: w, engines: engines, terminal: terminal, rows: map[string]*row{}, waiter: newWaiter()}
}

// drawing reports whether a table is on the terminal that nothing may break.
func (s *screen) drawing() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.live && s.terminal
}

func (s *screen) start() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.live, s.done, s.ended = true, make(chan struct{}), make(chan struct{})
	go s.redraw(s.done, s.ended)
}

// redraw draws the table until done.
func (s *screen) redraw(done, ended chan struct{}) {
	defer close(ended)
	tick := time.NewTicker(500 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-done:
			return
		case <-tick.C:
			s.mu.Lock()
			if s.terminal {
				s.draw()
			}
			s.mu.Unlock()
		}
	}
}

// stop draws the table for the last time.
func (s *screen) stop() {
	close(s.done)
	<-s.ended
	s.mu.Lock()
	defer s.mu.Unlock()
	s.draw()
	s.live, s.drawn = false, 0
}

// line prints a line below all that was drawn.
func (s *screen) line(format string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.terminal {
		fmt.Fprintf(s.w, format+"\n", args...)
	}
}

// decided is told of every decision.
func (s *screen) decided(rec *decision.Record) {
	if rec.Chosen < 0 {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.live {
		return
	}
	c := &rec.Candidates[rec.Chosen]
	r := s.row(c.Name)
	r.requests++
	r.match += rec.MatchRatio(rec.Chosen)
	s.latest = append(s.latest, fmt.Sprintf("%s → %s  match %.2f  %s", rec.RequestID[:8], c.Name, rec.MatchRatio(rec.Chosen), rec.Why()))
	if n := len(s.latest); n > latestShown {
		s.latest = s.latest[n-latestShown:]
	}
}

// turn is told of every turn that has ended.
func (s *screen) turn(t turn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	r := s.row(t.endpoint)
	r.prompt += t.prompt
	r.cached += t.cached
	if t.err != nil {
		s.latest = append(s.latest, fmt.Sprintf("conversation %d, turn %d: %v", t.conversation+1, t.number+1, t.err))
	}
}

func (s *screen) row(name string) *row {
	r := s.rows[name]
	if r == nil {
		r = &row{}
		s.rows[name] = r
	}
	return r
}

// draw writes the table over the one before. s.mu is held.
func (s *screen) draw() {
	total := 0
	for _, r := range s.rows {
		total += r.requests
	}
	var b strings.Builder
	if s.drawn > 0 {
		fmt.Fprintf(&b, "\x1b[%dA", s.drawn)
	}
	lines := []string{"endpoint   requests  share  mean match  cached tokens  running  queue  blocks"}
	for _, e := range s.engines {
		r, load := s.row(e.Name()), e.Load()
		lines = append(lines, fmt.Sprintf("%-10s %8d  %4.0f%%  %10.2f  %12.0f%%  %7d  %5d  %6d",
			e.Name(), r.requests, 100*float64(r.requests)/float64(max(1, total)), r.match/float64(max(1, r.requests)),
			100*float64(r.cached)/float64(max(1, r.prompt)), load.Running, load.Waiting, e.Blocks()))
	}
	lines = append(lines, "")
	for i := range latestShown {
		text := ""
		if i < len(s.latest) {
			text = s.latest[i]
		}
		lines = append(lines, text)
	}
	for _, l := range lines {
		if s.terminal {
			b.WriteString("\x1b[K")
		}
		b.WriteString(l + "\n")
	}
	s.drawn = len(lines)
	_, _ = io.WriteString(s.w, b.String())
}
