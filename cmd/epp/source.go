package main

import (
	"context"
	"crypto/tls"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"time"

	"epp.internal/epp"
	"epp.internal/epp/block"
	"epp.internal/epp/extproc"
	"epp.internal/epp/report"
)

// source is where one endpoint's state comes from: its own agent while that
// reports, else we read its page and its events ourselves.
type source struct {
	sink   *sink
	page   part
	events part
	probes part
	left   chan struct{} // closed when the endpoint leaves
	// ranks is how many endpoints are behind the address; an agent reports for one.
	ranks int
	// dcgm is true where we read the GPUs of a DCGM exporter: it knows XIDs, which
	// no agent does, so what an agent says of GPUs is not heard.
	dcgm bool
}

// part is a part of an endpoint's state, and whose turn it is to tell it. The zero
// part is ours.
type part struct {
	mu     sync.Mutex // guards the following fields
	agent  bool       // it is the agent's
	until  time.Time  // and for so long, where the agent has gone
	cancel context.CancelFunc
	done   chan struct{} // closed when what we began has ended; nil: nothing runs
	wake   chan struct{} // closed when the turn changes; nil: nobody waits
}

// run calls direct whenever the turn is ours, until ctx ends. direct ends with
// its context.
func (t *part) run(ctx context.Context, direct func(ctx context.Context)) {
	for ctx.Err() == nil {
		t.mu.Lock()
		wait := time.Until(t.until)
		if t.agent || wait > 0 {
			wake := make(chan struct{})
			t.wake = wake
			if t.agent {
				wait = time.Hour
			}
			t.mu.Unlock()
			pause(ctx, wake, wait)
			continue
		}
		own, cancel := context.WithCancel(ctx)
		done := make(chan struct{})
		t.cancel, t.done = cancel, done
		t.mu.Unlock()
		direct(own)
		<-own.Done()
		cancel()
		close(done)
	}
}

// pause waits for the end of ctx, or of d, or for wake to be closed.
func pause(ctx context.Context, wake <-chan struct{}, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-wake:
	case <-timer.C:
	}
}

// isAgents says whether the turn is the agent's.
func (t *part) isAgents() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.agent
}

// take makes the turn the agent's, and returns when what we did has ended.
func (t *part) take() {
	t.mu.Lock()
	t.agent = true
	done := t.done
	if t.cancel != nil {
		t.cancel()
	}
	t.mu.Unlock()
	if done != nil {
		<-done
	}
}

// give makes the turn ours again, from a time on: the agent may be back before.
func (t *part) give(from time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.agent, t.until = false, from
	if t.wake != nil {
		close(t.wake)
		t.wake = nil
	}
}

// open lets an agent report for one endpoint of the pool, in our place.
func (s *system) open(o report.Opening) (report.Feed, error) {
	found, ok := s.sources.Load(o.Endpoint)
	if !ok {
		return report.Feed{}, fmt.Errorf("endpoint: %.64q is none of this pool's", o.Endpoint)
	}
	src := found.(*source)
	if src.ranks > 1 {
		return report.Feed{}, fmt.Errorf("endpoint: %.64q has %d data-parallel ranks; an agent reports for an engine of one", o.Endpoint, src.ranks)
	}
	for _, t := range src.parts(o) {
		t.take()
	}
	src.sink.Agent(true)
	feed := report.Feed{
		Readings: src.sink, Models: src.sink.Models, Blocks: src.sink, Health: src.sink, Done: src.left,
		Values: func(values map[string]string) {
			src.sink.log.Debug("agent's values", "values", values)
		},
		Close: func(last time.Time) {
			src.sink.Agent(false)
			if o.Probes {
				src.sink.Unprobed(time.Now())
			}
			silent := last.Add(report.Silent * s.reportInterval())
			if !src.dcgm {
				src.sink.GPUUntil(time.Now(), silent)
			}
			for _, t := range src.parts(o) {
				t.give(silent)
			}
			s.watch.changed()
		},
	}
	if o.Blocks {
		feed.Event = func(kind epp.BlockEventKind, n int) { s.metrics.KVEvents(kind.String(), n) }
		feed.Restarted = func() {
			s.metrics.KVRestart()
			src.sink.Restarted()
		}
	}
	if src.dcgm {
		feed.Health = withoutGPU{feed.Health}
	}
	return feed, nil
}

// withoutGPU passes on all that a report says of health but the GPU.
type withoutGPU struct{ report.Health }

func (withoutGPU) GPU(time.Time, epp.GPU) {}

// parts are those that an agent reports.
func (src *source) parts(o report.Opening) (parts []*part) {
	if o.Readings {
		parts = append(parts, &src.page)
	}
	if o.Blocks {
		parts = append(parts, &src.events)
	}
	if o.Probes {
		parts = append(parts, &src.probes)
	}
	return parts
}

// newReports returns the server that agents report to, nil where none is wanted.
func (s *system) newReports(key block.Key, log *slog.Logger) (*report.Server, error) {
	c := s.cfg
	if c.Listen.Reports == "" {
		return nil, nil
	}
	o := report.Options{
		Open: s.open, Key: key, Interval: s.reportInterval, AnyHost: c.Reports.AnyHost, Logger: log,
		Hooks: report.Hooks{
			Report: func(late bool) {
				if late {
					s.metrics.Report("late")
				} else {
					s.metrics.Report("taken")
				}
			},
			Missed:  s.metrics.ReportsMissed,
			Refused: func() { s.metrics.Report("refused") },
		},
	}
	var err error
	if o.Token, err = newToken("reports.tokenFile", c.Reports.TokenFile, log); err != nil {
		return nil, err
	}
	if c.TLS.Insecure {
		return report.NewServer(o), nil
	}
	if o.TLS, err = extproc.ServerTLS(c.TLS.Cert, c.TLS.Key, log); err != nil {
		return nil, err
	}
	if c.Reports.ClientCA != "" {
		o.TLS.ClientAuth = tls.RequireAndVerifyClientCert
		if o.Token != nil { // then either will do
			o.TLS.ClientAuth = tls.VerifyClientCertIfGiven
		}
		if o.TLS, err = verifying(o.TLS, c.Reports.ClientCA, log); err != nil {
			return nil, err
		}
	}
	return report.NewServer(o), nil
}

// serveReports serves agents on l.
func (s *system) serveReports(l net.Listener) error { return s.reports.Serve(l) }
