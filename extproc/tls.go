package extproc

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"fmt"
	"log/slog"
	"math/big"
	"os"
	"sync"
	"time"
)

// selfSignedFor is how long a certificate of our own is good for: longer than a
// process lives.
const selfSignedFor = 10 * 365 * 24 * time.Hour

// certStatInterval is how often, at most, a handshake looks whether the files
// have changed.
const certStatInterval = time.Second

// certificates are what TLS shows of us.
type certificates struct {
	certFile, keyFile string // both empty: self-signed
	log               *slog.Logger

	mu      sync.Mutex // guards the following fields
	current *tls.Certificate
	stamp   string    // of the files that current was read from
	looked  time.Time // when the files were last looked at
}

// ServerTLS returns the server's side of TLS as a [Server] shows it, for others of
// the process: with the certificate of two files, read anew within a second of a
// change, or, where they are empty, one of our own. An error names the file that
// cannot be read.
func ServerTLS(certFile, keyFile string, log *slog.Logger) (*tls.Config, error) {
	c := &certificates{certFile: certFile, keyFile: keyFile, log: log}
	return c.config(), c.load()
}

// config is the server's side of TLS. gRPC adds ALPN h2.
func (c *certificates) config() *tls.Config {
	return &tls.Config{
		MinVersion:     tls.VersionTLS12,
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return c.get(time.Now()) },
	}
}

// load reads or makes the certificate.
func (c *certificates) load() error {
	_, err := c.get(time.Now())
	return err
}

// get returns the certificate of now. One that can be read no longer stays in
// use as it was.
func (c *certificates) get(now time.Time) (*tls.Certificate, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.current != nil && (c.certFile == "" && c.keyFile == "" || now.Sub(c.looked) < certStatInterval) {
		return c.current, nil
	}
	c.looked = now
	cert, stamp, err := c.read(now)
	switch {
	case err == nil && cert != nil:
		c.current, c.stamp = cert, stamp
	case err != nil && c.current == nil:
		return nil, err
	case err != nil:
		c.log.Error("certificate not reloaded, the last one stays", "error", err.Error())
	}
	return c.current, nil
}

// read returns the certificate, or nil where its files have not changed.
func (c *certificates) read(now time.Time) (*tls.Certificate, string, error) {
	if c.certFile == "" && c.keyFile == "" {
		cert, err := selfSigned(now)
		return cert, "", err
	}
	stamp := ""
	for _, name := range []string{c.certFile, c.keyFile} {
		info, err := os.Stat(name)
		if err != nil {
			return nil, "", fmt.Errorf("certificate %q: %w", name, err)
		}
		stamp += fmt.Sprint(info.ModTime().UnixNano(), info.Size(), " ")
	}
	if stamp == c.stamp {
		return nil, stamp, nil
	}
	cert, err := tls.LoadX509KeyPair(c.certFile, c.keyFile)
	if err != nil {
		return nil, "", fmt.Errorf("certificate %q with key %q: %w", c.certFile, c.keyFile, err)
	}
	return &cert, stamp, nil
}

// selfSigned makes a certificate that encrypts and proves nothing: gateways of
// the endpoint-picker protocol don't verify it.
func selfSigned(now time.Time) (*tls.Certificate, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("self-signed certificate: %w", err)
	}
	template := &x509.Certificate{
		SerialNumber:          big.NewInt(now.UnixNano()),
		Subject:               pkix.Name{CommonName: "epp"},
		DNSNames:              []string{"epp", "localhost"},
		NotBefore:             now.Add(-time.Hour), // clocks differ
		NotAfter:              now.Add(selfSignedFor),
		KeyUsage:              x509.KeyUsageDigitalSignature,
		ExtKeyUsage:           []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		return nil, fmt.Errorf("self-signed certificate: %w", err)
	}
	return &tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, nil
}
