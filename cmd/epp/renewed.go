package main

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"sync"
)

// renewed is what a file holds that is replaced while we run: a secret, or the
// certificates of authorities. It is read at each use, which are streams and
// handshakes. What can be read no longer stays in use as it was.
type renewed[T any] struct {
	read func() (T, error)
	log  *slog.Logger

	mu   sync.Mutex // guards the following field
	last T
}

// newRenewed reads a file for the first time.
func newRenewed[T any](read func() (T, error), log *slog.Logger) (*renewed[T], error) {
	first, err := read()
	return &renewed[T]{read: read, log: log, last: first}, err
}

// get returns what the file holds now.
func (r *renewed[T]) get() T {
	r.mu.Lock()
	defer r.mu.Unlock()
	now, err := r.read()
	if err != nil {
		r.log.Error("file not reloaded, what it held stays", "error", err.Error())
		return r.last
	}
	r.last = now
	return now
}

// newToken returns the secret of a file, as it is at each call; no file, nil.
func newToken(setting, file string, log *slog.Logger) (func() string, error) {
	if file == "" {
		return nil, nil
	}
	r, err := newRenewed(func() (string, error) { return readToken(setting, file) }, log)
	if err != nil {
		return nil, err
	}
	return r.get, nil
}

// verifying returns the server's side of TLS that verifies clients by the authorities
// of a file, as it is at each handshake. No session is resumed: it would outlive its
// authority.
func verifying(c *tls.Config, file string, log *slog.Logger) (*tls.Config, error) {
	authorities, err := newRenewed(func() (*x509.CertPool, error) { return readCA("reports.clientCA", file) }, log)
	if err != nil {
		return nil, err
	}
	c.SessionTicketsDisabled = true
	out := c.Clone()
	out.GetConfigForClient = func(*tls.ClientHelloInfo) (*tls.Config, error) {
		now := c.Clone()
		now.ClientCAs, now.NextProtos = authorities.get(), []string{"h2"}
		return now, nil
	}
	return out, nil
}

// minToken is the shortest secret that is one.
const minToken = 16

// readToken reads a secret from a file, without blanks around it.
func readToken(setting, file string) (string, error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return "", fmt.Errorf("%s: %w", setting, err)
	}
	token := strings.TrimSpace(string(data))
	if len(token) < minToken || strings.ContainsFunc(token, func(r rune) bool { return r <= ' ' || r > '~' }) {
		return "", fmt.Errorf("%s: %q holds no token; want at least %d printable characters without a blank", setting, file, minToken)
	}
	return token, nil
}

// readCA reads the certificates of authorities.
func readCA(setting, file string) (*x509.CertPool, error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", setting, err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(data) {
		return nil, fmt.Errorf("%s: %w", setting, errors.New(file+" holds no certificate in PEM form"))
	}
	return pool, nil
}
