package report

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"runtime/debug"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"epp.internal/epp/block"
	"epp.internal/epp/report/wire"
)

const (
	// connectTimeout bounds a handshake, helloTimeout the wait for the first report.
	connectTimeout = 10 * time.Second
	helloTimeout   = 10 * time.Second
	// maxStreams bounds the streams of one connection: an agent needs one, and
	// another while the one before ends.
	maxStreams = 4
	// maxHeaderBytes bounds a stream's headers: a token is in them.
	maxHeaderBytes = 16 << 10
	// An agent that vanished without a word is noticed by its silence; pings only
	// keep the connection's other end from waiting for ever.
	pingAfter = 30 * time.Second
	pingMin   = 5 * time.Second // an agent may ping as often
)

// Options of a Server. Open has no default.
type Options struct {
	// Open says where the reports for an endpoint go, or why it is not to be had.
	// The server has no two feeds of one endpoint open at a time.
	Open func(h Opening) (Feed, error)
	// Key is what blocks are hashed under.
	Key block.Key
	// Interval is the longest pause between two reports, and may change: an open
	// stream's agent is told after its next report. Nil: DefaultInterval.
	Interval func() time.Duration

	// TLS is the server's side of it; nil: none.
	TLS *tls.Config
	// Token proves that an agent may report, and is called for each stream that shows
	// none better; nil: only a certificate does, which TLS verified. One of the two
	// must be there.
	Token func() string
	// AnyHost lets an agent speak for an endpoint from another address than the
	// endpoint's own.
	AnyHost bool

	Hooks Hooks
	// Logger gets a line for each stream's beginning and end; nil discards.
	Logger *slog.Logger
	// Now is the clock; nil is time.Now.
	Now func() time.Time
}

// Opening is what a stream says of itself when it begins.
type Opening struct {
	Endpoint                 string // ip:port
	Readings, Blocks, Probes bool   // what it will report
}

// Hooks are told of what happened, for metrics. A nil hook is not called; none may
// block.
type Hooks struct {
	// Report is called for each report; late is true for one that was not taken.
	Report func(late bool)
	// Missed is called with how many reports were missing, Refused for each stream
	// that was not let in or broke a bound.
	Missed  func(reports uint64)
	Refused func()
}

// Server takes the agents' reports. Create it with NewServer.
type Server struct {
	wire.UnimplementedReportsServer

	opt    Options
	server *grpc.Server

	mu      sync.Mutex // guards the following field
	streams map[string]*session
}

// session is the stream that speaks for an endpoint.
type session struct {
	replaced chan struct{} // closed when another stream wants its place
	once     sync.Once
	ended    chan struct{} // closed when its feed is
}

// NewServer returns a server. It listens when Serve is called.
func NewServer(o Options) *Server {
	if o.Interval == nil {
		o.Interval = func() time.Duration { return DefaultInterval }
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	s := &Server{opt: o, streams: map[string]*session{}}
	creds := insecure.NewCredentials()
	if o.TLS != nil {
		creds = credentials.NewTLS(o.TLS)
	}
	s.server = grpc.NewServer(
		grpc.Creds(creds),
		grpc.MaxRecvMsgSize(maxReportBytes),
		grpc.MaxConcurrentStreams(maxStreams),
		grpc.MaxHeaderListSize(maxHeaderBytes),
		grpc.ConnectionTimeout(connectTimeout),
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: pingAfter, Timeout: connectTimeout}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: pingMin, PermitWithoutStream: true}),
		grpc.WaitForHandlers(true),
	)
	wire.RegisterReportsServer(s.server, s)
	return s
}

// Serve accepts connections on l until Close.
func (s *Server) Serve(l net.Listener) error {
	if err := s.server.Serve(l); !errors.Is(err, grpc.ErrServerStopped) {
		return err
	}
	return nil
}

// Close ends all streams, and returns when their feeds are closed.
func (s *Server) Close() { s.server.Stop() }

// Tell serves one stream. grpc calls it.
func (s *Server) Tell(stream wire.Reports_TellServer) (err error) {
	defer func() {
		// One stream's fault costs no other.
		if p := recover(); p != nil {
			s.opt.Logger.Error("report stream panicked", "panic", p, "stack", string(debug.Stack()))
			err = status.Error(codes.Internal, "internal error")
		}
	}()
	from, cert := origin(stream.Context())
	if err := s.authorized(stream.Context(), cert); err != nil {
		return s.refuse(from, "", err)
	}
	return s.serve(stream, from, cert)
}

// origin is where a stream comes from, and its certificate, nil for none.
func origin(ctx context.Context) (from netip.Addr, cert *x509.Certificate) {
	p, ok := peer.FromContext(ctx)
	if !ok {
		return netip.Addr{}, nil
	}
	if tcp, ok := p.Addr.(*net.TCPAddr); ok {
		from = tcp.AddrPort().Addr().Unmap()
	}
	if info, ok := p.AuthInfo.(credentials.TLSInfo); ok && len(info.State.VerifiedChains) > 0 {
		cert = info.State.VerifiedChains[0][0]
	}
	return from, cert
}

// authorized says whether a stream may report at all: it has a certificate that
// was verified, or the token. The comparison takes as long for any token.
func (s *Server) authorized(ctx context.Context, cert *x509.Certificate) error {
	if cert != nil {
		return nil
	}
	shown := metadata.ValueFromIncomingContext(ctx, "authorization")
	if s.opt.Token == nil || len(shown) != 1 {
		return status.Error(codes.Unauthenticated, "no certificate and no token; want one of them")
	}
	token, _ := strings.CutPrefix(shown[0], "Bearer ")
	sum, want := sha256.Sum256([]byte(token)), sha256.Sum256([]byte(s.opt.Token()))
	if subtle.ConstantTimeCompare(sum[:], want[:]) != 1 {
		return status.Error(codes.Unauthenticated, "the token is not this picker's")
	}
	return nil
}

// maySpeak says whether what comes from an address, with a certificate or nil,
// may speak for an endpoint: it is on the endpoint's host, or its certificate is.
func (s *Server) maySpeak(from netip.Addr, cert *x509.Certificate, endpoint string) error {
	at, err := netip.ParseAddrPort(endpoint)
	if err != nil {
		return status.Errorf(codes.InvalidArgument, "endpoint: %.64q is not ip:port", endpoint)
	}
	host := at.Addr().Unmap()
	if s.opt.AnyHost || from == host || cert != nil && cert.VerifyHostname(host.String()) == nil {
		return nil
	}
	return status.Errorf(codes.PermissionDenied, "endpoint %s: an agent at %s may not speak for it; run it on the endpoint's host, or give it a certificate for %s", endpoint, from, host)
}

// refuse tells that a stream is not let in, or is thrown out.
func (s *Server) refuse(from netip.Addr, endpoint string, err error) error {
	s.opt.Logger.Warn("report stream refused", "from", from.String(), "endpoint", endpoint, "error", err.Error())
	if f := s.opt.Hooks.Refused; f != nil {
		f()
	}
	return err
}

// serverStream is the part of a gRPC stream that a server uses.
type serverStream interface {
	Context() context.Context
	Send(o *wire.Order) error
	Recv() (*wire.Report, error)
}

// serve takes a stream's reports until it ends.
func (s *Server) serve(stream serverStream, from netip.Addr, cert *x509.Certificate) error {
	reports, broken := receive(stream)
	opening := time.NewTimer(helloTimeout)
	defer opening.Stop()
	var first *wire.Report
	select {
	case <-stream.Context().Done():
		return stream.Context().Err()
	case <-opening.C:
		return s.refuse(from, "", status.Error(codes.DeadlineExceeded, "no report came; the first is due at once"))
	case err := <-broken:
		return ended(err)
	case first = <-reports:
	}
	hello := first.Hello
	if hello == nil || first.Number != 1 {
		return s.refuse(from, "", status.Error(codes.InvalidArgument, "the first report says hello, and has number 1"))
	}
	if err := s.maySpeak(from, cert, hello.Endpoint); err != nil {
		return s.refuse(from, hello.Endpoint, err)
	}
	me, err := s.enter(stream.Context(), hello.Endpoint)
	if err != nil {
		return err
	}
	defer s.leave(hello.Endpoint, me)
	feed, err := s.opt.Open(Opening{Endpoint: hello.Endpoint, Readings: hello.Readings, Blocks: hello.Blocks, Probes: hello.Probes})
	if err != nil {
		return s.refuse(from, hello.Endpoint, status.Error(codes.NotFound, err.Error()))
	}
	log := s.opt.Logger.With("endpoint", hello.Endpoint, "from", from.String())
	log.Info("agent reports", "readings", hello.Readings, "blocks", hello.Blocks, "probes", hello.Probes)
	last, why := s.take(stream, &feed, hello, me, reports, broken)
	if feed.Close != nil {
		feed.Close(last)
	}
	log.Warn("agent reports no more", "error", why.Error())
	return why
}

// enter makes a stream the one that speaks for an endpoint, when the one before
// has ended.
func (s *Server) enter(ctx context.Context, endpoint string) (*session, error) {
	me := &session{replaced: make(chan struct{}), ended: make(chan struct{})}
	for {
		s.mu.Lock()
		former := s.streams[endpoint]
		if former == nil {
			s.streams[endpoint] = me
			s.mu.Unlock()
			return me, nil
		}
		s.mu.Unlock()
		former.once.Do(func() { close(former.replaced) })
		select {
		case <-former.ended:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

func (s *Server) leave(endpoint string, me *session) {
	s.mu.Lock()
	delete(s.streams, endpoint)
	s.mu.Unlock()
	close(me.ended)
}

// receive reads a stream in a goroutine that ends with its context.
func receive(stream serverStream) (<-chan *wire.Report, <-chan error) {
	reports, broken := make(chan *wire.Report), make(chan error, 1)
	go func() {
		for {
			r, err := stream.Recv()
			if err != nil {
				broken <- err
				return
			}
			select {
			case reports <- r:
			case <-stream.Context().Done():
				return
			}
		}
	}()
	return reports, broken
}

// take gives an open stream's reports to its feed until it ends, and returns when
// it last said anything and why it ended.
func (s *Server) take(stream serverStream, feed *Feed, hello *wire.Hello, me *session, reports <-chan *wire.Report, broken <-chan error) (last time.Time, why error) {
	t := &intake{feed: *feed, interval: s.opt.Interval(), probes: hello.Probes}
	if !hello.Readings {
		t.feed.Readings, t.feed.Models = nil, nil
	}
	if !hello.Blocks {
		t.feed.Blocks = nil
	}
	last = s.opt.Now()
	t.open(last)
	defer func() {
		if t.feed.Blocks != nil && !t.incomplete { // what comes now is not heard
			t.feed.Blocks.Incomplete(s.opt.Now(), true)
		}
	}()
	orders := sender(stream)
	orders <- s.order(t, false)
	silence := time.NewTimer(Silent * t.interval)
	defer silence.Stop()
	for {
		select {
		case <-stream.Context().Done():
			return last, stream.Context().Err()
		case <-feed.Done:
			return last, status.Error(codes.NotFound, "the endpoint has left the pool")
		case <-me.replaced:
			return last, status.Error(codes.Aborted, "another stream speaks for the endpoint now")
		case <-silence.C:
			return last, status.Errorf(codes.DeadlineExceeded, "silent for %v", Silent*t.interval)
		case err := <-broken:
			return last, ended(err)
		case r := <-reports:
			last = s.opt.Now()
			if err := s.one(t, last, r, orders); err != nil {
				return last, err
			}
			silence.Reset(Silent * t.interval)
		}
	}
}

// sender sends orders in a goroutine that ends with the stream's context: one that
// does not read keeps nobody waiting. What finds no room is not sent.
func sender(stream serverStream) chan<- *wire.Order {
	orders := make(chan *wire.Order, 1)
	go func() {
		for {
			select {
			case <-stream.Context().Done():
				return
			case o := <-orders:
				if stream.Send(o) != nil {
					return // Recv says why
				}
			}
		}
	}()
	return orders
}

// order is what the agent of an open stream is told.
func (s *Server) order(t *intake, snapshot bool) *wire.Order {
	return &wire.Order{Key: uint64(s.opt.Key), IntervalMs: uint32(t.interval.Milliseconds()), Snapshot: snapshot}
}

// one takes one report, and orders a snapshot where that is due, or another interval.
func (s *Server) one(t *intake, now time.Time, r *wire.Report, orders chan<- *wire.Order) error {
	snapshot, late, missed, err := t.take(now, r)
	if err != nil {
		if f := s.opt.Hooks.Refused; f != nil {
			f()
		}
		return status.Error(codes.InvalidArgument, err.Error())
	}
	if f := s.opt.Hooks.Report; f != nil {
		f(late)
	}
	if f := s.opt.Hooks.Missed; f != nil && missed > 0 {
		f(missed)
	}
	former := t.interval
	t.interval = s.opt.Interval()
	if snapshot || t.interval != former {
		select {
		case orders <- s.order(t, snapshot):
		default: // another is on its way
			t.interval = former
		}
	}
	return nil
}

// ended is a stream's error as it is told: an agent may end its stream, but that
// must have a text here.
func ended(err error) error {
	if errors.Is(err, io.EOF) {
		return status.Error(codes.Canceled, "the agent ended the stream")
	}
	return err
}
