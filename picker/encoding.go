package picker

import (
	"bytes"
	"compress/gzip"
	"errors"
	"io"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/klauspost/compress/zstd"

	"epp.internal/epp"
)

const (
	// DefaultMaxDecodedBytes bounds one decoded body: 16 MiB, as the edges bound
	// one that comes plain.
	DefaultMaxDecodedBytes = 16 << 20
	// DefaultMaxDecodedBytesTotal bounds the decoded bodies of all requests in
	// flight. A guess: 64 of the largest.
	DefaultMaxDecodedBytesTotal = 1 << 30

	// firstDecodedBytes is the memory that a decoded body begins with.
	firstDecodedBytes = 32 << 10
	// maxWindowBytes bounds what a zstd frame may ask to be kept of what was
	// decoded: 8 MiB, what RFC 8878 §3.1.1.1.2 asks decoders to support.
	maxWindowBytes = 8 << 20
	// What a decoder takes while it works, beside the body. Measured
	// (TestCaseG3Bomb).
	gzipBytes, zstdBytes = 64 << 10, 12 << 20
)

// encodings are the Content-Encodings that are read, by their names.
var encodings = map[string]struct {
	open  func(io.Reader) (io.Reader, func(), error)
	bytes int
}{
	"gzip": {newGzip, gzipBytes}, "x-gzip": {newGzip, gzipBytes}, "zstd": {newZstd, zstdBytes},
}

var (
	gzips sync.Pool // of *gzip.Reader
	zstds sync.Pool // of *zstd.Decoder
)

func newGzip(r io.Reader) (io.Reader, func(), error) {
	z, ok := gzips.Get().(*gzip.Reader)
	var err error
	if ok {
		err = z.Reset(r)
	} else {
		z, err = gzip.NewReader(r)
	}
	if err != nil {
		return nil, nil, err
	}
	return z, func() { gzips.Put(z) }, nil
}

func newZstd(r io.Reader) (io.Reader, func(), error) {
	z, ok := zstds.Get().(*zstd.Decoder)
	if !ok {
		var err error
		// With a concurrency of 1 it decodes in Read and starts no goroutine.
		if z, err = zstd.NewReader(nil, zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true), zstd.WithDecoderMaxWindow(maxWindowBytes)); err != nil {
			return nil, nil, err
		}
	}
	if err := z.Reset(r); err != nil {
		return nil, nil, err
	}
	return z, func() {
		_ = z.Reset(nil) // lets go of the body
		zstds.Put(z)
	}, nil
}

// decoder decodes bodies within its bounds.
type decoder struct {
	each, total int
	held        atomic.Int64
}

// decode returns the plain body of one that came with that Content-Encoding, and
// the bytes to give back to held once it is done with. A plain one is returned
// as it is.
func (d *decoder) decode(encoding string, body []byte) (plain []byte, held int, err *epp.Error) {
	name := strings.ToLower(strings.TrimSpace(encoding))
	if name == "" || name == "identity" {
		return body, 0, nil
	}
	e, ok := encodings[name]
	if !ok {
		return nil, 0, epp.Errorf(epp.UnsupportedEncoding, "encoding_unsupported", "content-encoding %.40q: gzip, zstd and identity are read", encoding)
	}
	defer d.release(e.bytes)
	if err := d.hold(e.bytes); err != nil {
		return nil, 0, err
	}
	r, done, fault := e.open(bytes.NewReader(body))
	if fault != nil {
		return nil, 0, badEncoding(name, fault)
	}
	defer done()
	if plain, held, err = d.read(name, r); err != nil {
		d.release(held)
		return nil, 0, err
	}
	return plain, held, nil
}

// read reads r to its end. Its memory grows with what was decoded, never past
// the bound: a body that unpacks to gigabytes costs what one at the bound does.
func (d *decoder) read(name string, r io.Reader) (plain []byte, held int, err *epp.Error) {
	for {
		if len(plain) == cap(plain) {
			grown := min(max(2*cap(plain), firstDecodedBytes), d.each+1)
			held += grown - cap(plain)
			if err := d.hold(grown - cap(plain)); err != nil {
				return nil, held, err
			}
			plain = append(make([]byte, 0, grown), plain...)
		}
		n, fault := r.Read(plain[len(plain):cap(plain)])
		plain = plain[:len(plain)+n]
		switch {
		case len(plain) > d.each:
			return nil, held, tooLarge(d.each)
		case fault == io.EOF:
			return plain, held, nil
		case errors.Is(fault, zstd.ErrWindowSizeExceeded), errors.Is(fault, zstd.ErrDecoderSizeExceeded):
			return nil, held, tooLarge(d.each)
		case fault != nil:
			return nil, held, badEncoding(name, fault)
		}
	}
}

// hold takes n more bytes out of the bound on all. What it took is to be released
// beside an error too.
func (d *decoder) hold(n int) *epp.Error {
	if d.held.Add(int64(n)) > int64(d.total) {
		return epp.Errorf(epp.Saturated, "bodies_full", "too many bytes of requests are in flight")
	}
	return nil
}

func (d *decoder) release(held int) { d.held.Add(int64(-held)) }

func tooLarge(limit int) *epp.Error {
	return epp.Errorf(epp.TooLarge, "body_too_large", "body is over the limit of %d bytes when decoded", limit)
}

func badEncoding(name string, err error) *epp.Error {
	e := epp.Errorf(epp.BadRequest, "encoding_invalid", "body is not what its content-encoding %q says, or ends too early", name)
	e.Err = err
	return e
}
