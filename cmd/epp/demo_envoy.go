package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"epp.internal/epp/config"
)

// startEnvoy runs Envoy in place of the proxy, with the picker beside it.
func (d *demo) startEnvoy(ctx context.Context, cfg *config.Config, picker string) (*envoyProcess, error) {
	var text bytes.Buffer
	e := envoyConfig{mode: envoyBuffered, upstream: envoyOriginalDst, listen: d.listen, admin: "127.0.0.1:0", pickers: []string{picker}}
	if err := e.write(&text, cfg); err != nil {
		return nil, err
	}
	return startEnvoy(ctx, d.envoy, text.Bytes(), io.Discard)
}

// front says what clients talk to.
func (d *demo) front() string {
	if d.envoy != "" {
		return "Envoy and one picker"
	}
	return "one picker"
}

// envoyProcess is an Envoy that runs as a child of this process.
type envoyProcess struct {
	address string // of its listener, host:port
	admin   string // host:port
	cmd     *exec.Cmd
	dir     string
	log     *envoyLog
	done    chan struct{} // closed when the process has ended
}

// envoyStart bounds how long Envoy may take from its start until it serves. It
// takes 0.2 s, and longer while a picker that it asks is not yet there.
const envoyStart = 30 * time.Second

// startEnvoy runs the Envoy at path with a configuration, and returns when it
// serves. What Envoy logs goes to log.
func startEnvoy(ctx context.Context, path string, configuration []byte, log io.Writer) (_ *envoyProcess, err error) {
	dir, err := os.MkdirTemp("", "epp-envoy-")
	if err != nil {
		return nil, err
	}
	e := &envoyProcess{dir: dir, log: &envoyLog{w: log, serving: make(chan struct{})}, done: make(chan struct{})}
	file, admin := filepath.Join(dir, "envoy.yaml"), filepath.Join(dir, "admin")
	if err := os.WriteFile(file, configuration, 0o600); err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	e.cmd = exec.Command(path, "-c", file, "--admin-address-path", admin, "--concurrency", "1", "--disable-hot-restart",
		"-l", "warning", "--component-log-level", "config:info")
	e.cmd.Stderr = e.log
	if err := e.cmd.Start(); err != nil {
		return nil, errors.Join(fmt.Errorf("envoy: %w", err), os.RemoveAll(dir))
	}
	go func() {
		_ = e.cmd.Wait() // what it had to say is in its log
		close(e.done)
	}()
	defer func() {
		if err != nil {
			e.stop()
		}
	}()
	ctx, cancel := context.WithTimeout(ctx, envoyStart)
	defer cancel()
	select {
	case <-e.log.serving:
	case <-e.done:
		return nil, fmt.Errorf("envoy: ended at its start: %s", e.log.last())
	case <-ctx.Done():
		return nil, fmt.Errorf("envoy: does not serve: %w: %s", ctx.Err(), e.log.last())
	}
	data, err := os.ReadFile(admin)
	if err != nil {
		return nil, fmt.Errorf("envoy: %w", err)
	}
	e.admin = strings.TrimSpace(string(data))
	e.address, err = e.listener(ctx)
	return e, err
}

// listener asks where Envoy listens.
func (e *envoyProcess) listener(ctx context.Context) (string, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+e.admin+"/listeners?format=json", nil)
	if err != nil {
		return "", err
	}
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := client.Do(req)
	if err != nil {
		return "", fmt.Errorf("envoy: admin: %w", err)
	}
	defer resp.Body.Close()
	var list struct {
		Statuses []struct {
			Address struct {
				Socket struct {
					Address string `json:"address"`
					Port    int    `json:"port_value"`
				} `json:"socket_address"`
			} `json:"local_address"`
		} `json:"listener_statuses"`
	}
	if err := json.NewDecoder(resp.Body).Decode(&list); err != nil {
		return "", fmt.Errorf("envoy: admin: %w", err)
	}
	if len(list.Statuses) != 1 {
		return "", fmt.Errorf("envoy: %d listeners, want 1", len(list.Statuses))
	}
	a := list.Statuses[0].Address.Socket
	return net.JoinHostPort(a.Address, strconv.Itoa(a.Port)), nil
}

// stop ends the process and waits for its end.
func (e *envoyProcess) stop() {
	_ = e.cmd.Process.Signal(syscall.SIGTERM) // it may have ended
	select {
	case <-e.done:
	case <-time.After(10 * time.Second):
		_ = e.cmd.Process.Kill()
		<-e.done
	}
	_ = os.RemoveAll(e.dir)
}

// envoyLog passes Envoy's log on, and sees when it serves.
type envoyLog struct {
	w       io.Writer
	serving chan struct{} // closed when workers start

	mu   sync.Mutex // guards the following fields
	seen bool
	tail []byte // the last of what was logged, at most envoyLogTail
}

const envoyLogTail = 4 << 10

// Write takes what Envoy has logged.
func (l *envoyLog) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.tail = append(l.tail, p...)
	if !l.seen && strings.Contains(string(l.tail), "starting workers") {
		l.seen = true
		close(l.serving)
	}
	if n := len(l.tail); n > envoyLogTail {
		l.tail = append([]byte(nil), l.tail[n-envoyLogTail:]...)
	}
	return l.w.Write(p)
}

// last is the last line that was logged.
func (l *envoyLog) last() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	last := "nothing in its log"
	for lines := bufio.NewScanner(strings.NewReader(string(l.tail))); lines.Scan(); {
		last = lines.Text()
	}
	return last
}
