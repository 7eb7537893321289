package proxy

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"time"

	"epp.internal/epp"
	"epp.internal/epp/picker"
)

// Carried is a pick on its way. *picker.Pick is one.
type Carried interface {
	// Target is where to send the request, and its body.
	Target() (epp.Endpoint, []byte)
	// Encoding is the Content-Encoding of that body, empty for none.
	Encoding() string
	// Next gives up the target because of failed, and reports whether there is
	// another one.
	Next(failed picker.Outcome) bool
	// ResponseHeader and ResponseBody show the answer as it passes.
	ResponseHeader(status int, contentType, contentEncoding string)
	ResponseBody(chunk []byte)
	// End is called once.
	End(picker.Outcome)
}

// By returns pk's Pick as [Options] take it.
func By(pk *picker.Picker) func(context.Context, picker.Incoming) (Carried, error) {
	return func(ctx context.Context, in picker.Incoming) (Carried, error) {
		p, err := pk.Pick(ctx, in)
		if err != nil {
			return nil, err // not p: a nil pick is no nil Carried
		}
		return p, nil
	}
}

// Options of a [Proxy]. The zero value of a field means its default; Pick has
// none.
type Options struct {
	// Pick decides where a request runs and books it there. An error is told to
	// the client as epp.AsError says.
	Pick func(context.Context, picker.Incoming) (Carried, error)
	// Gone is told of a request whose client went away while its body came; of the
	// body nothing is said. Nil: nobody is told.
	Gone func(picker.Incoming)
	// Models are what GET /v1/models lists. Nil: none.
	Models func() []epp.Model
	// Logger gets the proxy's own events: a retry, a refusal, an answer cut off.
	// Nil: they are not logged.
	Logger *slog.Logger
	Hooks  Hooks

	// MaxBodyBytes bounds one request's body; above it the answer is 413.
	// Default 16 MiB: a prompt of 1M tokens is about 5 MiB of JSON.
	MaxBodyBytes int
	// MaxBodiesBytes bounds the bodies of all requests in flight together; above
	// it the answer is 429. Default 1 GiB.
	MaxBodiesBytes int
	// MaxHeaderBytes bounds a request's header block; above it the answer is
	// 431. Default 64 KiB.
	MaxHeaderBytes int

	// HeaderTimeout is how long a client may take to send its headers, and
	// BodyTimeout its body. Defaults 10 s and 60 s.
	HeaderTimeout, BodyTimeout time.Duration
	// StallTimeout is how long a client may take to accept one write of its
	// answer; then it counts as gone. Default 1 min.
	StallTimeout time.Duration
	// IdleTimeout is how long a client's connection may stay unused. Default 2 min.
	IdleTimeout time.Duration
	// DialTimeout is how long an endpoint may take to accept a connection; then
	// it counts as refused. Default 2 s.
	DialTimeout time.Duration
	// EngineTimeout is how long an endpoint may stay silent, before its answer
	// and within it; then the answer is 504, or is cut off. Default 10 min: an
	// answer that is not streamed comes as a whole when its last token is there.
	EngineTimeout time.Duration
	// EngineIdleTimeout is how long a connection to an endpoint is kept unused.
	// Default 4 s, under the 5 s after which vLLM's server closes it
	// (VLLM_HTTP_TIMEOUT_KEEP_ALIVE), so that it is not closed as it is used.
	EngineIdleTimeout time.Duration
	// DrainTime is how long Shutdown goes on accepting requests while /health
	// already says 503. Default 10 s.
	DrainTime time.Duration
}

// Hooks are called at the proxy's events, by many goroutines at once. A nil
// hook is not called.
type Hooks struct {
	// Answered is called once for each request when it ended. path is of the
	// proxy's own list, or "other"; status is what the client got, 499 for a
	// client that went away before it got one, or before it had sent its body.
	Answered func(path string, status int, elapsed time.Duration)
	// Retried is called when a request is sent a second time.
	Retried func(failed picker.Outcome)
	// RetryDenied is called where the budget alone prevents that.
	RetryDenied func(failed picker.Outcome)
	// CutOff is called when an answer broke off after its header was passed on.
	CutOff func(picker.Outcome)
}

// StatusClientGone is what [Hooks] are told of a client that went away. It never goes
// over the wire. Source: nginx.
const StatusClientGone = 499

// route is a path of the API and how it is answered.
type route struct {
	path   string
	allow  string // the methods, as the Allow header lists them
	answer func(*exchange)
}

// routes are the only paths that the proxy knows: vLLM's, and the proxy's own.
// A path with one slash behind it is the same path.
var routes = func() map[string]route {
	m := map[string]route{}
	for _, path := range []string{
		"/v1/chat/completions", "/v1/chat/completions/render",
		"/v1/completions", "/v1/completions/render",
		"/v1/embeddings", "/v1/responses", "/v1/messages",
		"/v1/rerank", "/v2/rerank", "/rerank",
		"/tokenize", "/detokenize",
	} {
		m[path] = route{path, "POST", (*exchange).infer}
	}
	m["/v1/models"] = route{"/v1/models", "GET, HEAD", (*exchange).models}
	m["/health"] = route{"/health", "GET, HEAD", (*exchange).health}
	return m
}()

// Proxy serves the API and passes requests on. Create it with [New].
type Proxy struct {
	opts      Options
	server    *http.Server
	transport *http.Transport
	flights   flights
	bodyBytes atomic.Int64
	draining  atomic.Bool
	cut       atomic.Bool // Shutdown ran out of time: what ends now, we end
	started   time.Time
}

// New returns a proxy. It listens when Serve is called.
func New(o Options) *Proxy {
	o.setDefaults()
	p := &Proxy{opts: o, started: time.Now()}
	p.flights.init()
	p.transport = newTransport(o)
	var protocols http.Protocols
	protocols.SetHTTP1(true)
	protocols.SetUnencryptedHTTP2(true)
	p.server = &http.Server{
		Handler:           p,
		Protocols:         &protocols,
		MaxHeaderBytes:    o.MaxHeaderBytes,
		ReadHeaderTimeout: o.HeaderTimeout,
		IdleTimeout:       o.IdleTimeout,
		ErrorLog:          slog.NewLogLogger(o.Logger.Handler(), slog.LevelWarn),
	}
	return p
}

func (o *Options) setDefaults() {
	if o.Models == nil {
		o.Models = func() []epp.Model { return nil }
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
	number(&o.MaxHeaderBytes, 64<<10)
	duration := func(d *time.Duration, v time.Duration) {
		if *d == 0 {
			*d = v
		}
	}
	duration(&o.HeaderTimeout, 10*time.Second)
	duration(&o.BodyTimeout, time.Minute)
	duration(&o.StallTimeout, time.Minute)
	duration(&o.IdleTimeout, 2*time.Minute)
	duration(&o.DialTimeout, 2*time.Second)
	duration(&o.EngineTimeout, 10*time.Minute)
	duration(&o.EngineIdleTimeout, 4*time.Second)
	duration(&o.DrainTime, 10*time.Second)
}

// newTransport returns the side that talks to the endpoints. It follows no
// redirect, asks for no compression of its own and uses no proxy.
func newTransport(o Options) *http.Transport {
	dialer := &net.Dialer{
		Timeout: o.DialTimeout,
		// A host that vanished is noticed in 25 s, not after EngineTimeout.
		KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: 10 * time.Second, Interval: 5 * time.Second, Count: 3},
	}
	return &http.Transport{
		DialContext:            dialer.DialContext,
		DisableCompression:     true,
		MaxIdleConnsPerHost:    1024, // for each endpoint; EngineIdleTimeout clears them
		IdleConnTimeout:        o.EngineIdleTimeout,
		MaxResponseHeaderBytes: 256 << 10,
		WriteBufferSize:        32 << 10, // header and a 16 KB chat in one write
	}
}

// Serve accepts connections on l until Shutdown, speaking HTTP/1.1 and HTTP/2
// without TLS. It returns nil once Shutdown was called.
func (p *Proxy) Serve(l net.Listener) error {
	if err := p.server.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// InFlight is how many requests the proxy has not ended yet.
func (p *Proxy) InFlight() int { return p.flights.count() }

// Drain asks clients to go elsewhere: from now on /health says 503, and a
// connection is closed after its next answer. Requests are served as before.
func (p *Proxy) Drain() { p.draining.Store(true) }

// Shutdown ends the proxy without losing a request: it drains, for DrainTime
// takes new requests still, then no more connections, and returns when the last
// request ended. When ctx ends, it cuts off what still runs and returns ctx's
// error. Every Carried was ended when it returns.
func (p *Proxy) Shutdown(ctx context.Context) error {
	p.Drain()
	drain := time.NewTimer(p.opts.DrainTime)
	defer drain.Stop()
	select {
	case <-drain.C:
	case <-ctx.Done():
	}
	err := p.server.Shutdown(ctx)
	if err != nil {
		p.cut.Store(true)
		p.server.Close()
	}
	p.flights.wait()
	p.transport.CloseIdleConnections()
	return err
}

// ServeHTTP answers one request. Serve calls it; another server may too.
func (p *Proxy) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	p.flights.begin()
	defer p.flights.end()
	x := &exchange{p: p, w: w, control: http.NewResponseController(w), in: r, id: picker.NewID(), path: "other", received: time.Now()}
	defer x.end()
	x.sign()
	path := r.URL.Path
	if len(path) > 1 {
		path = strings.TrimSuffix(path, "/")
	}
	at, ok := routes[path]
	switch {
	case !ok:
		x.refuse(epp.Errorf(epp.NotFound, "path_unknown", "path %.80q is not served here", r.URL.Path))
		return
	case !allows(at.allow, r.Method):
		x.path = at.path
		w.Header().Set("Allow", at.allow)
		x.refuse(epp.Errorf(epp.MethodNotAllowed, "method_not_allowed", "method is not allowed here: use %s", at.allow))
		return
	}
	x.path = at.path
	at.answer(x)
}

func allows(allow, method string) bool {
	for m := range strings.SplitSeq(allow, ", ") {
		if m == method {
			return true
		}
	}
	return false
}
