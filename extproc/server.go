package extproc

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/status"

	"epp.internal/epp/picker"
)

// Options of a [Server]. The zero value of a field means its default; Pick has
// none.
type Options struct {
	// Pick decides where a request runs and books it there. An error is told to
	// the client as epp.AsError says.
	Pick func(context.Context, picker.Incoming) (Carried, error)
	// Gone is told of a request whose client went away while its body came; of the
	// body nothing is said. Nil: nobody is told.
	Gone func(picker.Incoming)
	// Ready reports whether requests can be decided: false until the pool was
	// read once. Nil: always. It is called by many goroutines at once.
	Ready func() bool
	// Logger gets the service's own events: a stream that broke the protocol, a
	// certificate that cannot be read. Nil: they are not logged.
	Logger *slog.Logger
	Hooks  Hooks

	// Insecure turns TLS off. Else the certificate is that of CertFile and
	// KeyFile, read anew within a second of a change, or where they are empty
	// one of our own, made at the start and signed by nobody.
	Insecure          bool
	CertFile, KeyFile string

	// MaxBodyBytes bounds one request's body; above it the answer is 413.
	// Default 16 MiB: a prompt of 1M tokens is about 5 MiB of JSON.
	MaxBodyBytes int
	// MaxBodiesBytes bounds the bodies of all requests in flight together; above
	// it the answer is 429. Default 1 GiB.
	MaxBodiesBytes int
	// MaxStreams bounds the streams of one connection, of which Envoy opens one
	// for each of its threads; what is above waits there. Default 16,384.
	MaxStreams int
	// DrainTime is how long Shutdown goes on accepting streams while the health
	// service already says NOT_SERVING. Default 10 s.
	DrainTime time.Duration
}

// bodyWait is how long a body may follow headers whose gateway announced no
// mode: then it is taken to wait for our answer. A gateway that does not wait
// sends the first bytes at once; a slow client's come later.
const bodyWait = 50 * time.Millisecond

// messageSlackBytes is what a message may hold beside a body: headers, of which
// Envoy takes 60 KiB by default, attributes and metadata.
const messageSlackBytes = 1 << 20

// Keepalive: a gateway that vanished without a word is noticed after
// pingAfter + pingTimeout, and its streams end.
const (
	pingAfter   = 30 * time.Second
	pingTimeout = 10 * time.Second
	pingMin     = 5 * time.Second // a gateway may ping as often
)

// streamWorkers are goroutines that serve stream after stream. A new goroutine's
// stack grows twice on its way through a decision, and is copied each time: about
// a tenth of what one costs. Streams beyond them have goroutines of their own.
const streamWorkers = 128

// handshakeTimeout is how long a new connection may take to say what it is.
const handshakeTimeout = 10 * time.Second

// Hooks are called at the service's events, by many goroutines at once. A nil
// hook is not called.
type Hooks struct {
	// Began is called when a stream begins, Ended when it has ended.
	Began func()
	Ended func(StreamEnd)
}

// StreamEnd is what became of one stream, which is one request.
type StreamEnd struct {
	// Outcome is that of the pick, as picker.Outcome names it. Without a pick it is
	// "refused" where the client got an error of ours, "client_gone" where the stream
	// ended before the body was whole, else "unpicked".
	Outcome string
	// Refused is the error's reason where the client got one of ours, else empty.
	Refused string
	// Err is what the client was refused with, or what broke the stream.
	Err error
	// RequestMode and ResponseMode are the body modes by Envoy's names,
	// "UNANNOUNCED" where none was announced or guessed, "OTHER" for a new one.
	RequestMode, ResponseMode string
	// Status is the answer's, 0 where none was seen.
	Status int
	// Messages counts those that the gateway sent.
	Messages int
	// Elsewhere is true where the gateway says that an endpoint served which is
	// none of those it was told.
	Elsewhere bool
	// Rewritten is true where the body was decoded or its model replaced.
	Rewritten bool
	Elapsed   time.Duration
}

// Server serves ext_proc and its health. Create it with [NewServer].
type Server struct {
	extprocv3.UnimplementedExternalProcessorServer

	opts      Options
	server    func() *grpc.Server // made at its first use, since its workers run from then on
	health    *grpc.Server        // of ServeHealth
	certs     certificates
	bodyBytes atomic.Int64
	draining  atomic.Bool
	drained   chan struct{} // closed with draining
	stopping  chan struct{} // closed when no more streams are taken
	stopOnce  sync.Once
	cut       atomic.Bool // Shutdown ran out of time: what ends now, we end
}

// NewServer returns a server. It listens when Serve is called.
func NewServer(o Options) *Server {
	o.setDefaults()
	s := &Server{opts: o, drained: make(chan struct{}), stopping: make(chan struct{})}
	s.certs = certificates{certFile: o.CertFile, keyFile: o.KeyFile, log: o.Logger}
	creds := insecure.NewCredentials()
	if !o.Insecure {
		creds = credentials.NewTLS(s.certs.config())
	}
	s.server = sync.OnceValue(func() *grpc.Server { return s.newGRPC(creds) })
	s.health = grpc.NewServer(grpc.ConnectionTimeout(handshakeTimeout), grpc.WaitForHandlers(true))
	grpc_health_v1.RegisterHealthServer(s.health, healthService{s: s})
	return s
}

// newGRPC returns the server of the streams.
func (s *Server) newGRPC(creds credentials.TransportCredentials) *grpc.Server {
	server := grpc.NewServer(
		grpc.Creds(creds),
		// Twice the bound, so that a body over it is answered with 413 and not
		// by gRPC, which would make a 500 of it.
		grpc.MaxRecvMsgSize(2*s.opts.MaxBodyBytes+messageSlackBytes),
		grpc.MaxConcurrentStreams(uint32(s.opts.MaxStreams)),
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: pingAfter, Timeout: pingTimeout}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: pingMin, PermitWithoutStream: true}),
		grpc.ConnectionTimeout(handshakeTimeout),
		grpc.WaitForHandlers(true),
		grpc.NumStreamWorkers(streamWorkers),
		grpc.ForceServerCodecV2(newCodec()),
	)
	extprocv3.RegisterExternalProcessorServer(server, s)
	grpc_health_v1.RegisterHealthServer(server, healthService{s: s})
	return server
}

func (o *Options) setDefaults() {
	if o.Ready == nil {
		o.Ready = func() bool { return true }
	}
	if o.Gone == nil {
		o.Gone = func(picker.Incoming) {}
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	number := func(n *int, v int) {
		if *n == 0 {
			*n = v
		}
	}
	number(&o.MaxBodyBytes, 16<<20)
	number(&o.MaxBodiesBytes, 1<<30)
	number(&o.MaxStreams, 16<<10)
	if o.DrainTime == 0 {
		o.DrainTime = 10 * time.Second
	}
}

// Serve accepts connections on l until Shutdown. It returns nil once Shutdown
// was called, and at once an error where the certificate cannot be read.
func (s *Server) Serve(l net.Listener) error {
	if !s.opts.Insecure {
		if err := s.certs.load(); err != nil {
			l.Close()
			return err
		}
	}
	return served(s.server().Serve(l))
}

// ServeHealth serves the health service alone on l, without TLS, as the probes
// of Kubernetes ask for it, until Shutdown.
func (s *Server) ServeHealth(l net.Listener) error { return served(s.health.Serve(l)) }

func served(err error) error {
	if errors.Is(err, grpc.ErrServerStopped) {
		return nil
	}
	return err
}

// Drain asks gateways to go elsewhere: from now on the health service says
// NOT_SERVING for all but liveness. Streams are served as before.
func (s *Server) Drain() {
	if s.draining.CompareAndSwap(false, true) {
		close(s.drained)
	}
}

// Shutdown ends the service without losing a request: it drains, for DrainTime
// takes new streams still, then none, and returns when the last one ended. When
// ctx ends, it cuts off what still runs and returns ctx's error. Every Carried
// was ended when it returns.
func (s *Server) Shutdown(ctx context.Context) error {
	s.Drain()
	drain := time.NewTimer(s.opts.DrainTime)
	defer drain.Stop()
	select {
	case <-drain.C:
	case <-ctx.Done():
	case <-s.stopping: // a second call
	}
	s.stopOnce.Do(func() { close(s.stopping) })
	stopped := make(chan struct{})
	go func() {
		s.server().GracefulStop()
		close(stopped)
	}()
	var err error
	select {
	case <-stopped:
	case <-ctx.Done():
		err = ctx.Err()
		s.cut.Store(true)
		s.server().Stop()
		<-stopped
	}
	s.health.Stop()
	return err
}

// Process serves one stream. grpc calls it.
func (s *Server) Process(stream extprocv3.ExternalProcessor_ProcessServer) error {
	if f := s.opts.Hooks.Began; f != nil {
		f()
	}
	began, held := time.Now(), 0
	m := &machine{
		id:      picker.NewID(),
		gone:    s.opts.Gone,
		maxBody: s.opts.MaxBodyBytes,
		pick:    func(in picker.Incoming) (Carried, error) { return s.opts.Pick(stream.Context(), in) },
		hold: func(n int) bool {
			held += n
			return s.bodyBytes.Add(int64(n)) <= int64(s.opts.MaxBodiesBytes)
		},
		request: unannounced, response: unannounced,
	}
	why, err := s.converse(stream, m)
	s.bodyBytes.Add(int64(-held))
	end := m.over(why)
	if err != nil {
		end.Err = err
		s.opts.Logger.Warn("ext_proc stream broken off", "requestID", m.id, "clientRequestID", m.in.ClientID, "path", m.in.Path,
			"outcome", end.Outcome, "error", err.Error())
	}
	if end.Refused != "" && !m.asked { // else the picker has logged it
		s.opts.Logger.Info("request refused", "requestID", m.id, "clientRequestID", m.in.ClientID, "path", m.in.Path, "reason", end.Refused)
	}
	if f := s.opts.Hooks.Ended; f != nil {
		end.Elapsed = time.Since(began)
		f(end)
	}
	return err
}

// converse feeds the machine until the stream ends and says what ended it. Its
// error is the status to end it with.
func (s *Server) converse(stream extprocv3.ExternalProcessor_ProcessServer, m *machine) (why cause, err error) {
	defer func() {
		// net/http does the same for the proxy: one request's fault costs no other.
		if p := recover(); p != nil {
			s.opts.Logger.Error("ext_proc stream panicked", "requestID", m.id, "panic", p, "stack", string(debug.Stack()))
			why, err = byUs, status.Error(codes.Internal, "internal error")
		}
	}()
	for m.phase != closed {
		in, err := s.receive(stream, m)
		if err != nil {
			return s.causeOf(err), nil
		}
		fault := m.feed(in)
		if err := sendAll(stream, m); err != nil {
			return s.causeOf(err), nil
		}
		if fault != nil {
			return byUs, fault
		}
	}
	return byUs, nil
}

// causeOf says what an error of Recv or Send means.
func (s *Server) causeOf(err error) cause {
	switch {
	case errors.Is(err, io.EOF):
		return byGateway
	case s.cut.Load():
		return byUs
	}
	return canceled
}

func sendAll(stream extprocv3.ExternalProcessor_ProcessServer, m *machine) error {
	for i, r := range m.out {
		if err := stream.Send(r); err != nil {
			return err
		}
		m.out[i] = nil
	}
	return nil
}

type received struct {
	in  *extprocv3.ProcessingRequest
	err error
}

// receive returns the next message. Where the machine awaits one for a time
// only, it ticks it and goes on waiting.
func (s *Server) receive(stream extprocv3.ExternalProcessor_ProcessServer, m *machine) (*extprocv3.ProcessingRequest, error) {
	if !m.awaiting {
		return stream.Recv()
	}
	next := make(chan received, 1)
	go func() {
		in, err := stream.Recv()
		next <- received{in, err}
	}()
	wait := time.NewTimer(bodyWait)
	defer wait.Stop()
	select {
	case r := <-next:
		return r.in, r.err
	case <-wait.C:
	}
	m.tick()
	err := sendAll(stream, m)
	r := <-next // also where Send has failed: both end with the stream
	if err != nil {
		return nil, err
	}
	return r.in, r.err
}
