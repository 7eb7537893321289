package report

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"math/big"
	"net"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"epp.internal/epp/report/wire"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// authority signs certificates.
type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

func newAuthority(t *testing.T) *authority {
	t.Helper()
	a := &authority{}
	pair := a.sign(t, &x509.Certificate{IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign})
	a.cert, a.key = pair.Leaf, pair.PrivateKey.(*ecdsa.PrivateKey)
	return a
}

// sign makes a certificate; an authority's first one is its own.
func (a *authority) sign(t *testing.T, c *x509.Certificate) tls.Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	c.SerialNumber, c.Subject, c.NotAfter = big.NewInt(1), pkix.Name{CommonName: "test"}, time.Now().Add(time.Hour)
	parent, signer := a.cert, a.key
	if parent == nil {
		parent, signer = c, key
	}
	der, err := x509.CreateCertificate(rand.Reader, c, parent, &key.PublicKey, signer)
	if err != nil {
		t.Fatal(err)
	}
	leaf, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key, Leaf: leaf}
}

func (a *authority) pool() *x509.CertPool {
	p := x509.NewCertPool()
	p.AddCert(a.cert)
	return p
}

// An agent speaks for the endpoint on its own host, or for the one that its
// certificate names, and for no other.
func TestIdentity(t *testing.T) {
	ours, others := newAuthority(t), newAuthority(t)
	forIP := func(a *authority, ip ...byte) *tls.Certificate {
		c := a.sign(t, &x509.Certificate{IPAddresses: []net.IP{ip}})
		return &c
	}
	const secret = "0123456789abcdef"
	server := ours.sign(t, &x509.Certificate{IPAddresses: []net.IP{{127, 0, 0, 1}}})
	s := NewServer(Options{
		Token: func() string { return secret }, Open: func(Opening) (Feed, error) { return Feed{}, nil },
		TLS: &tls.Config{Certificates: []tls.Certificate{server}, ClientCAs: ours.pool(), ClientAuth: tls.VerifyClientCertIfGiven},
	})
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error)
	go func() { served <- s.Serve(l) }()
	defer func() {
		s.Close()
		if err := <-served; err != nil {
			t.Error(err)
		}
	}()
	for _, c := range []struct {
		what     string
		cert     *tls.Certificate
		token    string
		endpoint string
		want     codes.Code
	}{
		{"the token, on the endpoint's host", nil, secret, "127.0.0.1:8000", codes.OK},
		{"in another form", nil, secret, "[::ffff:127.0.0.1]:8000", codes.OK},
		{"the token, on another host", nil, secret, "127.0.0.2:8000", codes.PermissionDenied},
		{"a name is no endpoint", nil, secret, "localhost:8000", codes.InvalidArgument},
		{"the endpoint's certificate, from another host", forIP(ours, 127, 0, 0, 2), "", "127.0.0.2:8000", codes.OK},
		{"another endpoint's certificate", forIP(ours, 127, 0, 0, 3), "", "127.0.0.2:8000", codes.PermissionDenied},
		{"a certificate of others", forIP(others, 127, 0, 0, 2), "", "127.0.0.2:8000", codes.Unavailable},
		{"nothing", nil, "", "127.0.0.1:8000", codes.Unauthenticated},
		{"half of the token", nil, secret[:8], "127.0.0.1:8000", codes.Unauthenticated},
	} {
		side := &tls.Config{RootCAs: ours.pool()}
		if c.cert != nil {
			// Show it whether or not the picker asks for its authority.
			side.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return c.cert, nil }
		}
		if got := status.Code(hello(t, l.Addr().String(), credentials.NewTLS(side), c.token, c.endpoint)); got != c.want {
			t.Errorf("%s: %v; want %v", c.what, got, c.want)
		}
	}
	if got := status.Code(hello(t, l.Addr().String(), insecure.NewCredentials(), secret, "127.0.0.1:8000")); got != codes.Unavailable {
		t.Errorf("without TLS: %v; want Unavailable", got)
	}
}

// hello opens a stream and returns why it was refused, nil where it was not.
func hello(t *testing.T, address string, creds credentials.TransportCredentials, token, endpoint string) error {
	t.Helper()
	conn, err := grpc.NewClient(address, grpc.WithTransportCredentials(creds))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	if token != "" {
		ctx = metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+token)
	}
	stream, err := wire.NewReportsClient(conn).Tell(ctx)
	if err != nil {
		return err
	}
	_ = stream.Send(&wire.Report{Number: 1, Hello: &wire.Hello{Endpoint: endpoint}}) // Recv says why
	_, err = stream.Recv()
	return err
}

// shared is a secret of both sides.
func shared() string { return "0123456789abcdef" }

// Client and Server under real TLS: a client with the token is let in, one that
// does not trust the picker's certificate never shows its token.
func TestClientTrust(t *testing.T) {
	ours, others := newAuthority(t), newAuthority(t)
	opened := make(chan Opening, 1)
	s := NewServer(Options{
		Token: shared,
		Open: func(o Opening) (Feed, error) {
			opened <- o
			return Feed{}, errors.New("enough")
		},
		TLS: &tls.Config{Certificates: []tls.Certificate{ours.sign(t, &x509.Certificate{IPAddresses: []net.IP{{127, 0, 0, 1}}})}},
	})
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	go s.Serve(l)
	defer s.Close()
	dialed := make(chan struct{}, 100)
	run := func(ctx context.Context, roots *x509.CertPool) {
		c := Client{
			Picker: l.Addr().String(), Token: shared, TLS: func() *tls.Config { return &tls.Config{RootCAs: roots} },
			Hello: &wire.Hello{Endpoint: "127.0.0.1:8000", Blocks: true},
			Options: []grpc.DialOption{grpc.WithContextDialer(func(ctx context.Context, address string) (net.Conn, error) {
				select {
				case dialed <- struct{}{}:
				default:
				}
				return (&net.Dialer{}).DialContext(ctx, "tcp", address)
			})},
		}
		if err := c.Run(ctx); !errors.Is(err, context.Canceled) {
			t.Errorf("Run ended with %v", err)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { run(ctx, others.pool()); close(done) }()
	for range 3 { // it tries again and again
		<-dialed
	}
	cancel()
	<-done
	if len(opened) != 0 {
		t.Error("a picker of others was told")
	}
	ctx, cancel = context.WithCancel(t.Context())
	done = make(chan struct{})
	go func() { run(ctx, ours.pool()); close(done) }()
	if o := <-opened; o != (Opening{Endpoint: "127.0.0.1:8000", Blocks: true}) {
		t.Errorf("%+v", o)
	}
	cancel()
	<-done
}
