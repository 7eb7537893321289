package agent

import (
	"context"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"epp.internal/epp"
	"epp.internal/epp/report/wire"
)

// faults are what happens to a stream's messages: each is the chance, of 100.
type faults struct {
	lose, repeat, swap, delay, cut int // of a report
	loseOrder                      int // of an order, but for the first

	mu   sync.Mutex // guards the following fields
	rng  *rand.Rand
	over bool // none happens any more
}

func (f *faults) happens(chance int) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return !f.over && f.rng.IntN(100) < chance
}

// pass lets faults happen, or not.
func (f *faults) pass(over bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.over = over
}

// stream lets its faults happen to one stream.
type stream struct {
	grpc.ClientStream
	faults *faults
	kept   any // a report that goes after the next
	opened bool
	heard  bool
	cut    context.CancelFunc
}

func (f *faults) intercept(ctx context.Context, desc *grpc.StreamDesc, conn *grpc.ClientConn, method string, next grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	ctx, cut := context.WithCancel(ctx)
	s, err := next(ctx, desc, conn, method, opts...)
	if err != nil {
		cut()
		return nil, err
	}
	return &stream{ClientStream: s, faults: f, cut: cut}, nil
}

func (s *stream) SendMsg(m any) error {
	f := s.faults
	if !s.opened { // hello
		s.opened = true
		return s.ClientStream.SendMsg(m)
	}
	if f.happens(f.delay) {
		<-time.After(300 * time.Millisecond)
	}
	switch {
	case f.happens(f.cut):
		s.cut()
		return s.ClientStream.SendMsg(m)
	case f.happens(f.lose):
		return nil
	case s.kept == nil && f.happens(f.swap):
		s.kept = proto.Clone(m.(proto.Message))
		return nil
	}
	if err := s.ClientStream.SendMsg(m); err != nil {
		return err
	}
	if f.happens(f.repeat) {
		if err := s.ClientStream.SendMsg(m); err != nil {
			return err
		}
	}
	if kept := s.kept; kept != nil {
		s.kept = nil
		return s.ClientStream.SendMsg(kept)
	}
	return nil
}

func (s *stream) RecvMsg(m any) error {
	for {
		if err := s.ClientStream.RecvMsg(m); err != nil {
			return err
		}
		if s.heard && s.faults.happens(s.faults.loseOrder) {
			continue
		}
		s.heard = true
		return nil
	}
}

// Whatever the way does to the messages, the picker holds what the engine holds
// two intervals after it does no more.
func TestFaults(t *testing.T) {
	for what, f := range map[string]*faults{
		"lossy":     {lose: 20},
		"repeating": {repeat: 30},
		"reordered": {swap: 30},
		"slow":      {delay: 50},
		"breaking":  {cut: 3},
		"deaf":      {lose: 20, loseOrder: 80},
		"all":       {lose: 10, repeat: 10, swap: 10, delay: 10, cut: 2, loseOrder: 30},
	} {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f.rng = rand.New(rand.NewPCG(7, 7))
				a, e := New(Options{}), newEngine(7)
				a.Incomplete(time.Now(), false)
				p := newPicker(1)
				stop := p.follow(a, 0, f.intercept)
				defer p.close()
				defer stop()
				for i := range 150 {
					mark := a.Begin(time.Now())
					a.Apply(time.Now(), e.step())
					settle(20 * time.Millisecond)
					a.Load(mark, time.Now(), epp.Load{Running: epp.Known(float64(i))})
					settle(time.Millisecond)
				}
				synctest.Wait()
				f.pass(true)
				settle(2 * interval)
				e.agree(t, p)
				s := p.table.Snapshot()[0].Signals
				if s.Incomplete {
					t.Error("the endpoint still counts as incomplete")
				}
				if p.saw().open != 1 {
					t.Errorf("%d feeds are open; want 1", p.saw().open)
				}
				a.Apply(time.Now(), e.step())
				settle(time.Millisecond)
				e.agree(t, p)
			})
		})
	}
}

// A stream that is silent for three intervals is over, and the endpoint counts as
// incomplete from then on.
func TestSilent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := New(Options{})
		a.Incomplete(time.Now(), false)
		p := newPicker(1)
		f := &faults{lose: 100, rng: rand.New(rand.NewPCG(1, 1)), over: true}
		stop := p.follow(a, 0, f.intercept)
		defer p.close()
		defer stop()
		settle(time.Second)
		if p.saw().open != 1 || p.table.Snapshot()[0].Signals.Incomplete {
			t.Fatalf("%d feeds are open, incomplete; want 1 that is not", p.saw().open)
		}
		f.pass(false)
		settle(3*interval - 2*time.Second) // the last report was up to 2 s ago
		if p.saw().open != 1 {
			t.Errorf("after less than three intervals %d feeds are open; want 1", p.saw().open)
		}
		settle(2100 * time.Millisecond)
		if !p.table.Snapshot()[0].Signals.Incomplete || p.saw().opened < 2 {
			t.Errorf("after three silent intervals %d streams were opened, incomplete %v; want another, true", p.saw().opened, p.table.Snapshot()[0].Signals.Incomplete)
		}
	})
}

// An interval that changes reaches the agent of an open stream with its next report,
// shorter or longer, and the stream stays.
func TestIntervalChanges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := New(Options{})
		a.Incomplete(time.Now(), false)
		p := newPicker(1)
		stop := p.follow(a, 0, nil)
		defer p.close()
		defer stop()
		settle(time.Second)
		for _, every := range []time.Duration{interval, 500 * time.Millisecond, 10 * time.Second} {
			former := time.Duration(p.every.Swap(int64(every)))
			settle(2 * former) // a report under the former interval, which is answered
			before := p.saw().reports
			settle(10 * every)
			if n := p.saw().reports - before; n < 9 || n > 11 {
				t.Errorf("every %v: %d reports in 10 intervals", every, n)
			}
		}
		if was := p.saw(); was.opened != 1 || was.missed != 0 || was.refused != 0 {
			t.Errorf("%d streams were opened, %d reports missed, %d refused; want 1, 0, 0", was.opened, was.missed, was.refused)
		}
	})
}

// raw opens a stream by hand.
func raw(t *testing.T, p *picker, bearer string) (wire.Reports_TellClient, func()) {
	t.Helper()
	conn, err := grpc.NewClient("passthrough:///picker", grpc.WithContextDialer(p.dial), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	if bearer != "" {
		ctx = metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+bearer)
	}
	s, err := wire.NewReportsClient(conn).Tell(ctx)
	if err != nil {
		t.Fatal(err)
	}
	return s, func() {
		cancel()
		conn.Close()
	}
}

// Streams that may not report, or break a bound, are thrown out with the reason,
// and a good one beside them is not touched.
func TestHostile(t *testing.T) {
	hello := &wire.Report{Number: 1, Hello: &wire.Hello{Endpoint: endpoint, Readings: true, Blocks: true}}
	long := string(make([]byte, 2000))
	for _, c := range []struct {
		what, token string
		send        []*wire.Report
		want        codes.Code
	}{
		{"no token", "", []*wire.Report{hello}, codes.Unauthenticated},
		{"another token", "a shared secres", []*wire.Report{hello}, codes.Unauthenticated},
		{"no hello", token(), []*wire.Report{{Number: 1}}, codes.InvalidArgument},
		{"another number", token(), []*wire.Report{{Number: 7, Hello: hello.Hello}}, codes.InvalidArgument},
		{"another pool's endpoint", token(), []*wire.Report{{Number: 1, Hello: &wire.Hello{Endpoint: "10.0.0.8:8000"}}}, codes.NotFound},
		{"says nothing", token(), nil, codes.DeadlineExceeded},
		{"a huge block", token(), []*wire.Report{hello, {Number: 2, Events: []*wire.BlockEvent{{BlockTokens: 1 << 30}}}}, codes.InvalidArgument},
		{"a long tier", token(), []*wire.Report{hello, {Number: 2, Events: []*wire.BlockEvent{{Tier: long}}}}, codes.InvalidArgument},
		{"many blocks", token(), []*wire.Report{hello, {Number: 2, Events: []*wire.BlockEvent{{Names: make([]uint64, 1<<17)}}}}, codes.InvalidArgument},
		{"a long name", token(), []*wire.Report{hello, {Number: 2, Models: &wire.Models{Models: []*wire.Model{{Name: long}}}}}, codes.InvalidArgument},
		{"a large report", token(), []*wire.Report{hello, {Number: 2, Events: []*wire.BlockEvent{{Keys: make([]uint64, 1<<18)}}}}, codes.ResourceExhausted},
	} {
		t.Run(c.what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := newPicker(1)
				defer p.close()
				s, done := raw(t, p, c.token)
				defer done()
				for _, r := range c.send {
					_ = s.Send(r) // Recv says why
				}
				var err error
				for err == nil {
					_, err = s.Recv()
				}
				if got := status.Code(err); got != c.want {
					t.Errorf("%v: %v; want %v", got, err, c.want)
				}
				synctest.Wait()
				if p.saw().open != 0 || p.index.Nodes() != 0 {
					t.Errorf("%d feeds are open, %d blocks held; want 0", p.saw().open, p.index.Nodes())
				}
			})
		})
	}
}

// An agent whose reports never fit together is ordered no more than one snapshot
// an interval after the first, and has no memory of ours.
func TestGapsForEver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPicker(1)
		defer p.close()
		s, done := raw(t, p, token())
		defer done()
		for i := range uint64(20_000) {
			r := &wire.Report{Number: 1 + 2*i, Events: []*wire.BlockEvent{{Kind: wire.BlockEvent_STORED, Names: []uint64{i + 1}, Keys: []uint64{i}, BlockTokens: 4}}}
			if i == 0 {
				r.Hello = &wire.Hello{Endpoint: endpoint, Blocks: true}
			}
			if err := s.Send(r); err != nil {
				t.Fatal(err)
			}
		}
		settle(time.Millisecond)
		if n := p.index.Nodes(); n != 0 || p.saw().missed != 19_999 {
			t.Errorf("%d blocks held, %d reports missed; want 0, 19999", n, p.saw().missed)
		}
		if !p.table.Snapshot()[0].Signals.Incomplete {
			t.Error("the endpoint does not count as incomplete")
		}
	})
}

// The latest stream of an endpoint speaks for it; the one before ends.
func TestReplaced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPicker(1)
		defer p.close()
		hello := &wire.Report{Number: 1, Hello: &wire.Hello{Endpoint: endpoint, Blocks: true}}
		one, doneOne := raw(t, p, token())
		defer doneOne()
		_ = one.Send(hello)
		if _, err := one.Recv(); err != nil {
			t.Fatal(err)
		}
		two, doneTwo := raw(t, p, token())
		defer doneTwo()
		_ = two.Send(hello)
		if _, err := two.Recv(); err != nil {
			t.Fatal(err)
		}
		if _, err := one.Recv(); status.Code(err) != codes.Aborted {
			t.Errorf("the first stream: %v; want Aborted", err)
		}
		if p.saw().open != 1 {
			t.Errorf("%d feeds are open; want 1", p.saw().open)
		}
	})
}
