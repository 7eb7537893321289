package report

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"epp.internal/epp/block"
	"epp.internal/epp/report/wire"
)

const (
	// DefaultInterval is the longest pause between two reports.
	DefaultInterval = 2 * time.Second
	// Silent is how many intervals a stream may be silent before it is over.
	Silent = 3
	// minInterval and maxInterval bound what a picker may ask for.
	minInterval = 100 * time.Millisecond
	maxInterval = time.Minute

	// openTimeout bounds the way from a connection to its first order.
	openTimeout = 10 * time.Second
	// After a stream that ended the next one waits redialMin, and twice as long
	// after each that failed, up to redialMax: a picker that restarts is told all
	// within a second of its return.
	redialMin = 50 * time.Millisecond
	redialMax = time.Second
	// A client whose place another stream took, which the status Aborted says, waits
	// yieldMin, and twice as long each time that it happens again, up to yieldMax: two
	// agents for one endpoint would take it from each other for ever, each time with
	// a snapshot. Guesses: an agent that is replaced for good ends within yieldMin.
	yieldMin = 30 * time.Second
	yieldMax = 16 * time.Minute
)

// A Source is what a Client tells. A Client calls it from one goroutine.
type Source interface {
	// Open is called when a picker has said under which key it hashes, and each
	// time it wants to know all anew.
	Open(key block.Key)
	// Next returns what is to be told now, without a number; more is true where
	// there is more than fits into one report. It may be empty.
	Next(now time.Time) (r *wire.Report, more bool)
	// Changed gives a value when something is to be told.
	Changed() <-chan struct{}
}

// Client tells one picker what a Source knows, for ever. Set its fields, then call
// Run once.
type Client struct {
	// Picker is its host:port.
	Picker string
	// Hello says for which endpoint, and what of it.
	Hello *wire.Hello
	// Token proves that we may, and is called for each stream; nil where a certificate
	// does.
	Token func() string
	// TLS is the client's side of it, and is called for each handshake: authorities are
	// renewed while we run; nil: none, for a picker on the same host.
	TLS    func() *tls.Config
	Source Source

	// Log gets a line for each change of state; nil discards.
	Log *slog.Logger
	// Now is the clock; nil is time.Now.
	Now func() time.Time
	// Options are added to those of the connection.
	Options []grpc.DialOption
}

// Run tells the picker until ctx ends, and returns its error. Streams that end are
// opened anew for ever.
func (c *Client) Run(ctx context.Context) error {
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	if c.Now == nil {
		c.Now = time.Now
	}
	creds := insecure.NewCredentials()
	if c.TLS != nil {
		creds = freshTLS{credentials.NewTLS(c.TLS()), c.TLS}
	}
	conn, err := grpc.NewClient(c.Picker, append([]grpc.DialOption{
		grpc.WithTransportCredentials(creds),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(64 << 10)),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: 10 * time.Second, Timeout: 10 * time.Second}),
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: backoff.Config{BaseDelay: redialMin, Multiplier: 2, MaxDelay: redialMax}, MinConnectTimeout: openTimeout}),
	}, c.Options...)...)
	if err != nil {
		return fmt.Errorf("picker %q: %w", c.Picker, err)
	}
	defer conn.Close()
	client := wire.NewReportsClient(conn)
	told := ""
	yield := yieldMin
	for wait := redialMin; ctx.Err() == nil; {
		stood, err := c.stream(ctx, client)
		if ctx.Err() != nil {
			break
		}
		if text := err.Error(); stood || text != told {
			c.Log.Warn("agent: no picker", "picker", c.Picker, "error", text)
			told = text
		}
		if stood {
			wait = redialMin
		}
		pause := wait
		switch {
		case status.Code(err) == codes.Aborted:
			pause, yield = yield, min(2*yield, yieldMax)
			c.Log.Warn("agent: another one speaks for the endpoint", "picker", c.Picker, "endpoint", c.Hello.Endpoint, "wait", pause.String())
		case stood:
			yield = yieldMin
		}
		select {
		case <-ctx.Done():
		case <-time.After(pause):
		}
		wait = min(2*wait, redialMax)
	}
	return ctx.Err()
}

// freshTLS is TLS whose settings are those of now at each handshake.
type freshTLS struct {
	credentials.TransportCredentials
	now func() *tls.Config
}

// ClientHandshake makes a handshake. gRPC calls it for each connection.
func (f freshTLS) ClientHandshake(ctx context.Context, authority string, conn net.Conn) (net.Conn, credentials.AuthInfo, error) {
	return credentials.NewTLS(f.now()).ClientHandshake(ctx, authority, conn)
}

// Clone returns a copy.
func (f freshTLS) Clone() credentials.TransportCredentials {
	return freshTLS{f.TransportCredentials.Clone(), f.now}
}

// stream opens a stream and tells until it ends. stood is true where the picker
// took it.
func (c *Client) stream(ctx context.Context, client wire.ReportsClient) (stood bool, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if c.Token != nil {
		ctx = metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+c.Token())
	}
	opening := time.AfterFunc(openTimeout, cancel)
	defer opening.Stop()
	s, err := client.Tell(ctx)
	if err != nil {
		return false, err
	}
	if err := s.Send(&wire.Report{Number: 1, Hello: c.Hello}); err != nil {
		_, err = s.Recv() // says why
		return false, err
	}
	first, err := s.Recv()
	if err != nil {
		return false, err
	}
	opening.Stop()
	c.Log.Info("agent: told", "picker", c.Picker, "endpoint", c.Hello.Endpoint)
	return true, c.tell(ctx, s, first)
}

// clientStream is the part of a gRPC stream that a client uses.
type clientStream interface {
	Send(r *wire.Report) error
	Recv() (*wire.Order, error)
}

// tell sends until the stream ends and returns why. The caller cancels ctx, and so
// ends the goroutine that receives.
func (c *Client) tell(ctx context.Context, s clientStream, first *wire.Order) error {
	orders := make(chan *wire.Order)
	ended := make(chan error, 1)
	go func() {
		for {
			o, err := s.Recv()
			if err != nil {
				ended <- err
				return
			}
			select {
			case orders <- o:
			case <-ctx.Done():
				return
			}
		}
	}()
	key := block.Key(first.Key)
	c.Source.Open(key)
	every := pause(first)
	pulse := time.NewTimer(every)
	defer pulse.Stop()
	number := uint64(1)
	for more := true; ; {
		for more {
			var r *wire.Report
			r, more = c.Source.Next(c.Now())
			number++
			r.Number = number
			if err := s.Send(r); err != nil {
				select {
				case err = <-ended: // says why
				case <-ctx.Done():
				}
				return errors.Join(err, ctx.Err())
			}
			pulse.Reset(every)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case err := <-ended:
			return err
		case o := <-orders:
			if o.Snapshot {
				c.Source.Open(key)
			}
			more = o.Snapshot || pause(o) < every // what is due by the shorter pause
			every = pause(o)
			pulse.Reset(every)
		case <-c.Source.Changed():
			more = true
		case <-pulse.C:
			more = true
		}
	}
}

// pause is the longest one between two reports that a picker's order asks for, within
// our bounds.
func pause(o *wire.Order) time.Duration {
	return min(max(time.Duration(o.IntervalMs)*time.Millisecond, minInterval), maxInterval)
}
