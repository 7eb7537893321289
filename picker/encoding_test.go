package picker

import (
	"bytes"
	"compress/gzip"
	"testing"

	"github.com/klauspost/compress/zstd"
	"pgregory.net/rapid"

	"epp.internal/epp"
)

func compress(t fatal, name string, body []byte) []byte {
	var out bytes.Buffer
	if name == "gzip" {
		w := gzip.NewWriter(&out)
		if _, err := w.Write(body); err != nil {
			t.Fatalf("%v", err)
		}
		if err := w.Close(); err != nil {
			t.Fatalf("%v", err)
		}
		return out.Bytes()
	}
	w, err := zstd.NewWriter(nil, zstd.WithEncoderConcurrency(1))
	if err != nil {
		t.Fatalf("%v", err)
	}
	return w.EncodeAll(body, nil)
}

// fatal is what *testing.T and *rapid.T share.
type fatal interface{ Fatalf(string, ...any) }

// Any body comes out as it went in, up to the bound and not one byte beyond; what
// a body holds is given back.
func TestDecode(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		d := decoder{each: 100_000, total: 64 << 20}
		name := rapid.SampledFrom([]string{"gzip", "zstd"}).Draw(t, "encoding")
		size := rapid.SampledFrom([]int{0, 1, 32 << 10, 32<<10 + 1, d.each - 1, d.each, d.each + 1, 3 * d.each}).Draw(t, "size")
		body := bytes.Repeat([]byte{'x', byte(size)}, size/2+1)[:size]
		plain, held, err := d.decode(name, compress(t, name, body))
		switch {
		case size > d.each && (err == nil || err.Kind != epp.TooLarge):
			t.Fatalf("%s of %d bytes: %v", name, size, err)
		case size <= d.each && (err != nil || !bytes.Equal(plain, body)):
			t.Fatalf("%s of %d bytes: %d, %v", name, size, len(plain), err)
		}
		if got := d.held.Load(); got != int64(held) || held < len(plain) {
			t.Fatalf("%d held, %d told, %d decoded", got, held, len(plain))
		}
		d.release(held)
		if d.held.Load() != 0 {
			t.Fatalf("%d held at rest", d.held.Load())
		}
	})
}

// Whatever the bytes are, a body is decoded within the bound or refused by its
// kind, and a decoder that was used before gives the same.
func FuzzDecode(f *testing.F) {
	for _, body := range []string{"", `{"model":"m"}`, string(make([]byte, 200_000))} {
		f.Add(compress(f, "gzip", []byte(body)))
		f.Add(compress(f, "zstd", []byte(body)))
		f.Add([]byte(body))
	}
	f.Add([]byte("\x28\xb5\x2f\xfd\x00\xff\x00\x00\x00")) // a window of 3.75 TiB
	f.Add([]byte("\x50\x2a\x4d\x18\xff\xff\xff\xff"))     // a skippable frame of 4 GiB
	f.Fuzz(func(t *testing.T, body []byte) {
		d := decoder{each: 64 << 10, total: 32 << 20}
		for _, name := range []string{"gzip", "zstd"} {
			plain, held, err := d.decode(name, body)
			if err != nil && err.Kind != epp.BadRequest && err.Kind != epp.TooLarge {
				t.Fatalf("%s: %v", name, err)
			}
			if len(plain) > d.each || d.held.Load() != int64(held) {
				t.Fatalf("%s: %d bytes, held %d of %d", name, len(plain), d.held.Load(), held)
			}
			again, more, _ := d.decode(name, body)
			if !bytes.Equal(again, plain) {
				t.Fatalf("%s: decoded twice, it differs", name)
			}
			d.release(held + more)
		}
	})
}
