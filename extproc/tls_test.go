package extproc

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	"epp.internal/epp/epptest"
	"epp.internal/epp/picker"
)

// Without files the certificate is our own; gateways speak h2 to it and don't
// verify it.
func TestSelfSigned(t *testing.T) {
	s := NewServer(Options{
		DrainTime: time.Nanosecond,
		Pick: func(_ context.Context, in picker.Incoming) (Carried, error) {
			return newRide(in, "10.0.0.1:8000"), nil
		},
	})
	l := listen(t)
	served := make(chan error, 1)
	go func() { served <- s.Serve(l) }()
	trusting := &tls.Config{InsecureSkipVerify: true}
	d, err := epptest.NewDriver(l.Addr().String(), grpc.WithTransportCredentials(credentials.NewTLS(trusting)))
	if err != nil {
		t.Fatal(err)
	}
	c, err := d.Exchange(t.Context(), epptest.Exchange{RequestMode: modeBuffered, ResponseMode: modeNone, Headers: post(), Body: []byte(chat)})
	if err != nil || c.Destination != "10.0.0.1:8000" {
		t.Errorf("%+v, %v", c, err)
	}
	d.Close()
	conn, err := tls.Dial("tcp", l.Addr().String(), &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"h2"}})
	if err != nil {
		t.Fatal(err)
	}
	state := conn.ConnectionState()
	if _, ok := state.PeerCertificates[0].PublicKey.(*ecdsa.PublicKey); !ok || state.NegotiatedProtocol != "h2" || state.Version < tls.VersionTLS12 {
		t.Errorf("key %T, protocol %q, version %x", state.PeerCertificates[0].PublicKey, state.NegotiatedProtocol, state.Version)
	}
	conn.Close()
	if err := s.Shutdown(t.Context()); err != nil {
		t.Error(err)
	}
	if err := <-served; err != nil {
		t.Error(err)
	}
}

// writePair writes a certificate and its key.
func writePair(t *testing.T, certFile, keyFile string, serial time.Time) {
	t.Helper()
	c, err := selfSigned(serial)
	if err != nil {
		t.Fatal(err)
	}
	key, err := x509.MarshalECPrivateKey(c.PrivateKey.(*ecdsa.PrivateKey))
	if err != nil {
		t.Fatal(err)
	}
	for name, b := range map[string]*pem.Block{certFile: {Type: "CERTIFICATE", Bytes: c.Certificate[0]}, keyFile: {Type: "EC PRIVATE KEY", Bytes: key}} {
		if err := os.WriteFile(name, pem.EncodeToMemory(b), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chtimes(name, serial, serial); err != nil {
			t.Fatal(err)
		}
	}
}

// Files are read anew within a second of a change; what cannot be read leaves
// the last certificate in use.
func TestReload(t *testing.T) {
	dir := t.TempDir()
	certFile, keyFile := filepath.Join(dir, "tls.crt"), filepath.Join(dir, "tls.key")
	var log bytes.Buffer
	c := &certificates{certFile: certFile, keyFile: keyFile, log: slog.New(slog.NewJSONHandler(&log, nil))}
	if err := c.load(); err == nil || !strings.Contains(err.Error(), "certificate \""+certFile+"\": ") {
		t.Errorf("without files: %v", err)
	}
	serial := func(at time.Duration) int64 {
		t.Helper()
		got, err := c.get(start.Add(at))
		if err != nil {
			t.Fatal(err)
		}
		leaf, err := x509.ParseCertificate(got.Certificate[0])
		if err != nil {
			t.Fatal(err)
		}
		return leaf.SerialNumber.Int64() - start.UnixNano()
	}
	want := func(at, want time.Duration) {
		t.Helper()
		if got := serial(at); got != int64(want) {
			t.Errorf("at %v: the certificate of %v, want %v", at, time.Duration(got), want)
		}
	}
	c.looked = time.Time{}
	writePair(t, certFile, keyFile, start)
	want(0, 0)
	writePair(t, certFile, keyFile, start.Add(time.Minute))
	want(999*time.Millisecond, 0) // looked at less than a second ago
	want(time.Second, time.Minute)
	if err := os.WriteFile(keyFile, []byte("half a key"), 0o600); err != nil {
		t.Fatal(err)
	}
	want(2*time.Second, time.Minute)
	os.Remove(keyFile)
	want(3*time.Second, time.Minute)
	if n := strings.Count(log.String(), "certificate not reloaded"); n != 2 || strings.Contains(log.String(), "half") {
		t.Errorf("logged %s", &log)
	}
	writePair(t, certFile, keyFile, start.Add(time.Hour))
	want(4*time.Second, time.Hour)
}

// A server whose certificate cannot be read does not serve.
func TestServeWithoutCertificate(t *testing.T) {
	s := NewServer(Options{CertFile: "testdata/none.crt", KeyFile: "testdata/none.key"})
	if err := s.Serve(listen(t)); err == nil || !strings.Contains(err.Error(), `certificate "testdata/none.crt": `) {
		t.Errorf("serve: %v", err)
	}
}
