//go:build gateway

package gateway

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"time"
)

// process is a part of the cluster, with its log.
type process struct {
	name  string
	cmd   *exec.Cmd
	ended chan struct{} // closed when it has

	mu      sync.Mutex // guards the following fields
	lines   []string
	changed chan struct{} // closed and replaced with each line
}

// startProcess starts a command whose output is kept as its log.
func startProcess(name, dir string, env []string, command string, args ...string) (*process, error) {
	p := newProcess(name, command, args...)
	p.cmd.Dir, p.cmd.Env = dir, append(os.Environ(), env...)
	return p, p.start()
}

func newProcess(name, command string, args ...string) *process {
	p := &process{name: name, cmd: exec.Command(command, args...), ended: make(chan struct{}), changed: make(chan struct{})}
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // a terminal's ^C is the test's to hear
	return p
}

func (p *process) start() error {
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		return err
	}
	p.cmd.Stderr = p.cmd.Stdout
	if err := p.cmd.Start(); err != nil {
		return fmt.Errorf("start %s: %w", p.name, err)
	}
	go func() {
		defer close(p.ended)
		p.read(out)
		_ = p.cmd.Wait() // how it ended stands in its log
	}()
	return nil
}

// maxLogLine bounds a line that is kept of a log.
const maxLogLine = 1 << 20

// read keeps a log's lines.
func (p *process) read(r io.Reader) {
	s := bufio.NewScanner(r)
	s.Buffer(nil, maxLogLine)
	for s.Scan() {
		p.mu.Lock()
		p.lines = append(p.lines, s.Text())
		close(p.changed)
		p.changed = make(chan struct{})
		p.mu.Unlock()
	}
	_, _ = io.Copy(io.Discard, r) // after a line that is too long
}

// log returns the last lines.
func (p *process) log(last int) string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.name + ":\n  " + strings.Join(p.lines[max(0, len(p.lines)-last):], "\n  ")
}

// all returns the lines of JSON with a message.
func (p *process) all(message string) (list []map[string]any) {
	p.mu.Lock()
	lines := p.lines
	p.mu.Unlock()
	for _, line := range lines {
		var fields map[string]any
		if json.Unmarshal([]byte(line), &fields) == nil && fields["msg"] == message {
			list = append(list, fields)
		}
	}
	return list
}

// awaitLine returns the first line of JSON that ok is true for.
func (p *process) awaitLine(ctx context.Context, ok func(map[string]any) bool) (map[string]any, error) {
	for seen := 0; ; {
		p.mu.Lock()
		lines, changed := p.lines[seen:], p.changed
		p.mu.Unlock()
		for _, line := range lines {
			var fields map[string]any
			if json.Unmarshal([]byte(line), &fields) == nil && ok(fields) {
				return fields, nil
			}
		}
		seen += len(lines)
		select {
		case <-changed:
		case <-p.ended:
			return nil, fmt.Errorf("%s has ended: %s", p.name, p.log(20))
		case <-ctx.Done():
			return nil, fmt.Errorf("%s: no such line: %w", p.name, ctx.Err())
		}
	}
}

// stop ends the process: it is asked to, and after grace it is made to.
func (p *process) stop(grace time.Duration) {
	_ = p.cmd.Process.Signal(syscall.SIGTERM) // it may have ended
	select {
	case <-p.ended:
	case <-time.After(grace):
		_ = p.cmd.Process.Kill()
		<-p.ended
	}
}

// kill ends the process without a word.
func (p *process) kill() {
	_ = p.cmd.Process.Kill()
	<-p.ended
}

// lookEvery is the pause between two looks at what tells nobody that it has
// changed.
const lookEvery = 50 * time.Millisecond

// poll looks until ok is true, or returns the last error when ctx has ended.
func poll(ctx context.Context, look func(context.Context) (ok bool, err error)) error {
	for {
		ok, err := look(ctx)
		if ok {
			return nil
		}
		select {
		case <-ctx.Done():
			if err == nil {
				err = ctx.Err()
			}
			return err
		case <-time.After(lookEvery):
		}
	}
}

// answers looks whether a URL answers with 200.
func answers(client *http.Client, url string) func(context.Context) (bool, error) {
	return func(ctx context.Context) (bool, error) {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
		if err != nil {
			return false, err
		}
		resp, err := client.Do(req)
		if err != nil {
			return false, err
		}
		defer resp.Body.Close()
		if resp.StatusCode != http.StatusOK {
			return false, fmt.Errorf("%s: status %d", url, resp.StatusCode)
		}
		return true, nil
	}
}
