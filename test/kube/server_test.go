//go:build kube

package kube

import (
	"context"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"
)

// server is an API server of one test's own, on the etcd of all: it may be killed.
type server struct {
	t          *testing.T
	port       string
	kubeconfig string
	cmd        *exec.Cmd
}

// newServer starts it, and returns when it is ready.
func newServer(t *testing.T) *server {
	t.Helper()
	s := &server{t: t, port: freePorts(1)[0]}
	s.kubeconfig = through(t, "127.0.0.1:"+s.port)
	t.Cleanup(func() {
		if s.cmd != nil {
			s.kill()
		}
	})
	s.start(t)
	return s
}

func (s *server) start(t *testing.T) {
	t.Helper()
	logs, err := os.Create(filepath.Join(t.TempDir(), "kube-apiserver.log"))
	if err != nil {
		t.Fatal(err)
	}
	defer logs.Close()
	s.cmd = exec.Command(apiBinary, apiArgs(s.port)...)
	s.cmd.Stdout, s.cmd.Stderr = logs, logs
	if err := s.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if err := ready("https://127.0.0.1:" + s.port); err != nil {
		t.Fatal(err)
	}
}

// kill ends it as a machine's end would.
func (s *server) kill() {
	_ = s.cmd.Process.Kill()
	_ = s.cmd.Wait()
	s.cmd = nil
}

// pass passes each connection of l on to an address, until ctx ends and l is closed.
func pass(ctx context.Context, l net.Listener, to string) (done chan struct{}) {
	done = make(chan struct{})
	go func() {
		defer close(done)
		var wg sync.WaitGroup
		defer wg.Wait()
		for {
			in, err := l.Accept()
			if err != nil {
				return
			}
			out, err := (&net.Dialer{Timeout: 5 * time.Second}).DialContext(ctx, "tcp", to)
			if err != nil {
				_ = in.Close()
				continue
			}
			end := context.AfterFunc(ctx, func() { _ = in.Close(); _ = out.Close() })
			copied := func(a, b net.Conn) {
				_, _ = io.Copy(a, b)
				_ = a.Close()
				_ = b.Close()
			}
			wg.Go(func() { copied(in, out); end() })
			wg.Go(func() { copied(out, in) })
		}
	}()
	return done
}
