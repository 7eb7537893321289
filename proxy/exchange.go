package proxy

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/textproto"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"epp.internal/epp"
	"epp.internal/epp/picker"
)

// exchange is one request and its answer.
type exchange struct {
	p        *Proxy
	w        http.ResponseWriter
	control  *http.ResponseController
	in       *http.Request
	id       string
	path     string // of routes, or "other"
	received time.Time
	status   int // what the client got; 0 before
	held     int // bytes out of MaxBodiesBytes
	retried  bool

	ctx    context.Context // ends with the client, the engine's silence or the exchange
	cancel context.CancelCauseFunc
	// silence cancels ctx with errSilent; it runs only while we wait for the
	// endpoint.
	silence *time.Timer

	// firstByte is set when the first byte of an endpoint's answer came, by a
	// goroutine of net/http.
	firstByte atomic.Bool
	mu        sync.Mutex // guards w while informational answers may come
	answering bool       // no informational answer may be passed on any more
}

var (
	errSilent    = errors.New("endpoint was silent for too long")
	errNotHTTP   = errors.New("endpoint answered with a status that cannot be passed on")
	errNoBooking = errors.New("pick returned neither an endpoint nor an error")
)

// clientError wraps what went wrong on the client's side of an answer.
type clientError struct{ error }

// sign writes the headers that are the proxy's own into the answer.
func (x *exchange) sign() {
	h := x.w.Header()
	h[idHeader] = []string{x.id}
	if x.p.draining.Load() {
		h["Connection"] = []string{"close"}
	}
}

// end counts the exchange and gives back what it held.
func (x *exchange) end() {
	if x.retried {
		x.p.flights.retryEnd()
	}
	x.p.bodyBytes.Add(int64(-x.held))
	if x.status == 0 {
		x.status = StatusClientGone
	}
	if f := x.p.opts.Hooks.Answered; f != nil {
		f(x.path, x.status, time.Since(x.received))
	}
}

// infer answers the paths that an endpoint serves.
func (x *exchange) infer() {
	body, e := x.readBody()
	if e != nil && e.Reason == bodyCutOff {
		x.p.opts.Gone(x.incoming(nil))
		x.fail(e)
		x.status = StatusClientGone
		return
	}
	if e != nil {
		x.refuse(e)
		return
	}
	if len(body) == 0 {
		x.refuse(epp.Errorf(epp.BadRequest, "body_empty", "body is empty: this path takes a JSON object"))
		return
	}
	c, err := x.p.opts.Pick(x.in.Context(), x.incoming(body))
	if err == nil && c == nil {
		err = errNoBooking
	}
	if err != nil {
		if x.in.Context().Err() != nil {
			panic(http.ErrAbortHandler) // nobody is there to be told
		}
		x.fail(epp.AsError(err))
		return
	}
	x.carry(c)
}

// incoming is what the picker is told of the request.
func (x *exchange) incoming(body []byte) picker.Incoming {
	return picker.Incoming{
		ID:              x.id,
		ClientID:        x.in.Header.Get("X-Request-Id"),
		Method:          x.in.Method,
		Path:            x.path,
		ContentEncoding: strings.Join(x.in.Header["Content-Encoding"], ", "),
		Objective:       x.in.Header.Get(picker.ObjectiveHeader),
		Body:            body,
	}
}

// carry sends the request, passes the answer on and ends the pick. It panics
// with http.ErrAbortHandler where the client must see its connection break.
func (x *exchange) carry(c Carried) {
	outcome := picker.Undelivered
	defer func() { c.End(outcome) }()
	x.ctx, x.cancel = context.WithCancelCause(x.in.Context())
	defer x.cancel(nil)
	x.silence = time.AfterFunc(x.p.opts.EngineTimeout, func() { x.cancel(errSilent) })
	defer x.silence.Stop()
	defer x.answer() // an informational answer must not come after this

	res, address, err := x.send(c)
	if err == nil {
		err = x.pass(c, res, address)
		res.Body.Close()
	}
	if err == nil {
		outcome = picker.Served
		return
	}
	outcome = x.outcome(err)
	target, _ := c.Target()
	level := slog.LevelWarn
	if outcome == picker.ClientGone {
		level = slog.LevelInfo // clients may leave
	}
	x.log(level, "request not served", target, outcome, err)
	if x.status != 0 {
		if f := x.p.opts.Hooks.CutOff; f != nil {
			f(outcome)
		}
		panic(http.ErrAbortHandler)
	}
	switch outcome {
	case picker.Refused:
		x.fail(epp.Errorf(epp.Unavailable, "endpoint_refused", "endpoint refused the connection"))
	case picker.TimedOut:
		x.fail(epp.Errorf(epp.Timeout, "endpoint_silent", "endpoint did not answer within %v", x.p.opts.EngineTimeout))
	case picker.Reset:
		x.fail(epp.Errorf(epp.BadGateway, "endpoint_reset", "endpoint broke the exchange before its answer"))
	default:
		panic(http.ErrAbortHandler)
	}
}

// send sends the request to the pick's endpoint and returns the header of its
// answer. Where the connection was refused, or broke before a byte of the
// answer came, it sends the whole request once more, to the next endpoint. A
// kept connection that turns out to be dead is no exception: what the endpoint
// did with the request is as unknown as with a fresh one.
func (x *exchange) send(c Carried) (*http.Response, string, error) {
	for {
		target, body := c.Target()
		res, err := x.try(target, body, c.Encoding())
		if err == nil {
			return res, target.Address, nil
		}
		failed := x.outcome(err)
		mayRetry := failed == picker.Refused || failed == picker.Reset && !x.firstByte.Load()
		if x.retried || !mayRetry {
			return nil, "", err
		}
		if !x.p.flights.retry() {
			if f := x.p.opts.Hooks.RetryDenied; f != nil {
				f(failed)
			}
			return nil, "", err
		}
		x.retried = true
		if !c.Next(failed) {
			return nil, "", err
		}
		x.log(slog.LevelInfo, "request retried", target, failed, err)
		if f := x.p.opts.Hooks.Retried; f != nil {
			f(failed)
		}
	}
}

// try sends the request once and waits for the header of the final answer.
func (x *exchange) try(target epp.Endpoint, body []byte, encoding string) (*http.Response, error) {
	in := x.in.URL
	out := (&http.Request{
		Method: x.in.Method,
		URL:    &url.URL{Scheme: "http", Host: target.Address, Path: in.Path, RawQuery: in.RawQuery, ForceQuery: in.ForceQuery},
		Host:   target.Address,
		Header: requestHeader(x.in.Header, x.in.RemoteAddr, x.id),
		// Without GetBody net/http cannot send a body twice behind our back,
		// whatever Idempotency-Key says.
		Body:          io.NopCloser(bytes.NewReader(body)),
		ContentLength: int64(len(body)),
	}).WithContext(httptrace.WithClientTrace(x.ctx, &httptrace.ClientTrace{
		GotFirstResponseByte: func() { x.firstByte.Store(true) },
		Got1xxResponse:       x.inform,
	}))
	delete(out.Header, "Content-Encoding") // the client's own: the body may have been decoded
	if target.Rank != "" {
		out.Header.Set(epp.RankHeader, target.Rank)
	}
	if encoding != "" {
		out.Header["Content-Encoding"] = []string{encoding}
	}
	x.silence.Reset(x.p.opts.EngineTimeout)
	res, err := x.p.transport.RoundTrip(out)
	x.silence.Stop()
	if err == nil && (res.StatusCode < 200 || res.StatusCode > 999) {
		res.Body.Close()
		return nil, errNotHTTP
	}
	return res, err
}

// inform passes an informational answer on. The client's own 100 was sent when
// its body was read.
func (x *exchange) inform(code int, header textproto.MIMEHeader) error {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.answering || code == http.StatusContinue || !x.in.ProtoAtLeast(1, 1) {
		return nil
	}
	h := x.w.Header()
	copyHeader(h, http.Header(header), "")
	x.w.WriteHeader(code)
	clear(h)
	x.sign()
	return nil
}

// answer ends the time of informational answers: from here on w is ours.
func (x *exchange) answer() {
	x.mu.Lock()
	x.answering = true
	x.mu.Unlock()
}

// pass passes an answer on as it comes. Its error is a clientError where the
// client is at fault, else the endpoint's.
func (x *exchange) pass(c Carried, res *http.Response, address string) error {
	x.answer()
	c.ResponseHeader(res.StatusCode, res.Header.Get("Content-Type"), res.Header.Get("Content-Encoding"))
	h := x.w.Header()
	copyHeader(h, res.Header, address)
	if _, ok := h["Content-Type"]; !ok {
		h["Content-Type"] = nil // else net/http guesses one
	}
	for name := range res.Trailer {
		h.Add("Trailer", name)
	}
	announced := len(res.Trailer)
	x.status = res.StatusCode
	x.w.WriteHeader(res.StatusCode)
	if res.ContentLength < 0 {
		// A stream's header comes long before its first token; a body of known
		// length comes with its header and goes out in one write with it.
		if err := x.write(nil); err != nil {
			return err
		}
	}
	if err := x.copyBody(c, res.Body); err != nil {
		return err
	}
	if len(res.Trailer) == announced {
		copyHeader(h, res.Trailer, "")
		return nil
	}
	for name, values := range res.Trailer { // some were not announced
		if !hopHeaders[name] {
			h[http.TrailerPrefix+name] = values
		}
	}
	return nil
}

// readBytes is the most that is passed on at once.
const readBytes = 32 << 10

var buffers = sync.Pool{New: func() any { return new([readBytes]byte) }}

// copyBody writes and flushes what each read returns before the next one.
func (x *exchange) copyBody(c Carried, body io.Reader) error {
	buffer := buffers.Get().(*[readBytes]byte)
	defer buffers.Put(buffer)
	for {
		x.silence.Reset(x.p.opts.EngineTimeout)
		n, err := body.Read(buffer[:])
		x.silence.Stop()
		if n > 0 {
			c.ResponseBody(buffer[:n])
			if err := x.write(buffer[:n]); err != nil {
				return err
			}
		}
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// write writes b to the client and flushes it, within StallTimeout.
func (x *exchange) write(b []byte) error {
	x.control.SetWriteDeadline(time.Now().Add(x.p.opts.StallTimeout))
	if len(b) > 0 {
		if _, err := x.w.Write(b); err != nil {
			return clientError{err}
		}
	}
	if err := x.control.Flush(); err != nil {
		return clientError{err}
	}
	if x.in.ProtoMajor == 2 {
		x.control.SetWriteDeadline(time.Time{}) // there it ends the stream, written to or not
	}
	return nil
}

// outcome says what err, met while the request was carried, means for its pick.
func (x *exchange) outcome(err error) picker.Outcome {
	var client clientError
	var op *net.OpError
	cause := context.Cause(x.ctx)
	switch {
	case errors.Is(cause, errSilent):
		return picker.TimedOut
	case x.p.cut.Load() && cause != nil:
		return picker.Undelivered
	case cause != nil, errors.As(err, &client):
		return picker.ClientGone
	case errors.As(err, &op) && op.Op == "dial":
		return picker.Refused
	}
	return picker.Reset
}

func (x *exchange) log(level slog.Level, message string, at epp.Endpoint, o picker.Outcome, err error) {
	x.p.opts.Logger.Log(x.in.Context(), level, message, "requestID", x.id, "clientRequestID", x.in.Header.Get("X-Request-Id"),
		"path", x.path, "pod", at.Name, "address", at.Address, "outcome", o.String(), "error", err.Error())
}
