package rig

import (
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// Server is a process that is measured.
type Server struct {
	cmd     *exec.Cmd
	Address string        // where it listens
	done    chan struct{} // closed when it has ended
}

// Start runs a program that listens on address. Its log goes to log.
func Start(log io.Writer, address, path string, args ...string) (*Server, error) {
	s := &Server{cmd: exec.Command(path, args...), Address: address, done: make(chan struct{})}
	s.cmd.Stdout, s.cmd.Stderr = log, log
	if err := s.cmd.Start(); err != nil {
		return nil, err
	}
	go func() {
		_ = s.cmd.Wait() // what it had to say is in its log
		close(s.done)
	}()
	return s, nil
}

// Stop ends it and waits for its end.
func (s *Server) Stop() {
	_ = s.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-s.done:
	case <-time.After(20 * time.Second):
		_ = s.cmd.Process.Kill()
		<-s.done
	}
}

// ticksPerSecond is the unit of /proc/PID/stat on every Linux that Go runs on.
const ticksPerSecond = 100

// CPU is the CPU time that the process has taken, user and system, and its
// resident memory in bytes. Source: proc(5).
func (s *Server) CPU() (time.Duration, int, error) {
	data, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(s.cmd.Process.Pid), "stat"))
	if err != nil {
		return 0, 0, err
	}
	text := string(data)
	f := strings.Fields(text[strings.LastIndexByte(text, ')')+1:]) // f[0] is field 3
	if len(f) < 22 {
		return 0, 0, fmt.Errorf("stat: %q: too few fields", text)
	}
	user, err1 := strconv.Atoi(f[11])
	system, err2 := strconv.Atoi(f[12])
	pages, err3 := strconv.Atoi(f[21])
	if err1 != nil || err2 != nil || err3 != nil {
		return 0, 0, fmt.Errorf("stat: %q: no number", text)
	}
	return time.Duration(user+system) * time.Second / ticksPerSecond, pages * os.Getpagesize(), nil
}

// FreeAddress is an address of this machine that nobody listens on now.
func FreeAddress() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	return l.Addr().String(), l.Close()
}

// Pause returns after d, or when ctx has ended.
func Pause(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}
