package proxy

import (
	"errors"
	"io"
	"net/http"
	"os"
	"syscall"
	"time"

	"epp.internal/epp"
)

// firstReadBytes is the memory that a body gets before anything of it was seen:
// a client that announces much and sends nothing holds no more.
const firstReadBytes = 32 << 10

// readBody reads the client's whole body. Its bytes count against
// MaxBodiesBytes until the exchange ends. After an error the connection is not
// used again, and what is left of the body is not read.
func (x *exchange) readBody() ([]byte, *epp.Error) {
	if x.in.Body == http.NoBody {
		return nil, nil
	}
	x.control.SetReadDeadline(time.Now().Add(x.p.opts.BodyTimeout))
	body, e := x.readAll()
	if e != nil {
		x.w.Header().Set("Connection", "close")
		return nil, e
	}
	x.control.SetReadDeadline(time.Time{}) // else it would end the watch for the client's leaving
	return body, nil
}

func (x *exchange) readAll() ([]byte, *epp.Error) {
	limit := x.p.opts.MaxBodyBytes
	tooLarge := epp.Errorf(epp.TooLarge, "body_too_large", "body is over the limit of %d bytes", limit)
	if x.in.ContentLength > int64(limit) {
		return nil, tooLarge
	}
	// One byte more than is announced, so that the end is seen without growing.
	full := limit + 1
	if n := x.in.ContentLength; n >= 0 {
		full = int(n) + 1
	}
	var body []byte
	for {
		if len(body) == cap(body) {
			grown := min(max(2*cap(body), firstReadBytes), full)
			if !x.hold(grown - cap(body)) {
				return nil, epp.Errorf(epp.Saturated, "bodies_full", "too many bytes of requests are in flight")
			}
			body = append(make([]byte, 0, grown), body...)
		}
		n, err := x.in.Body.Read(body[len(body):cap(body)])
		body = body[:len(body)+n]
		switch {
		case len(body) > limit:
			return nil, tooLarge
		case err == io.EOF:
			return body, nil
		case err != nil:
			return nil, x.bodyError(err)
		}
	}
}

// hold takes n more bytes out of the bound on all bodies.
func (x *exchange) hold(n int) bool {
	if x.p.bodyBytes.Add(int64(n)) > int64(x.p.opts.MaxBodiesBytes) {
		x.p.bodyBytes.Add(int64(-n))
		return false
	}
	x.held += n
	return true
}

// bodyCutOff is the reason of a body whose client went away: it closed its connection,
// or its half of it, or reset its stream. Whether it still reads cannot be known, so
// it is answered all the same (RFC 9112, section 8).
const bodyCutOff = "body_cut_off"

// bodyError says why a body could not be read to its end.
func (x *exchange) bodyError(err error) *epp.Error {
	e := epp.Errorf(epp.BadRequest, "body_malformed", "body is malformed: its chunks or its length are wrong")
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded):
		e = epp.Errorf(epp.BadRequest, "body_too_slow", "body did not arrive within %v", x.p.opts.BodyTimeout)
	case errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, syscall.ECONNRESET), x.in.Context().Err() != nil && !x.p.cut.Load():
		e = epp.Errorf(epp.BadRequest, bodyCutOff, "body ends before its announced length")
	}
	e.Err = err
	return e
}
