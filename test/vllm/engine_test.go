//go:build vllm

package vllm

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// startPatience bounds the start of engines: two at once take 70 to 110 s on two
// cores that are busy.
const startPatience = 10 * time.Minute

// shape is what differs between the engines.
type shape struct {
	blockTokens int
	blocks      int // in all, the null block included
	maxTokens   int // of a prompt and its answer
}

// server is a real vLLM server, an engine, on fixed ports of its own.
type server struct {
	name                 string
	address, pub, replay string // host:port
	shape                shape

	cmd   *exec.Cmd
	stdin io.Closer
	log   *bytes.Buffer // guarded by mu
	mu    sync.Mutex
	up    chan struct{} // closed when it serves
	ended chan struct{} // closed when the process has
}

// files are what an engine is started from.
type files struct {
	bin      string // the folder of the command vllm
	model    string // the model's folder
	adapters map[string]string
}

// install has what the engines need put into the cache, and makes the model's
// folder in dir.
func install(dir string) (*files, error) {
	bin, err := script("install.sh")
	if err != nil {
		return nil, err
	}
	tokenizer, err := script("../fetch-tokenizers.sh", "qwen3")
	if err != nil {
		return nil, err
	}
	f := &files{bin: bin, model: filepath.Join(dir, "tiny-qwen3"), adapters: map[string]string{}}
	if err := os.CopyFS(f.model, os.DirFS("testdata/tiny-qwen3")); err != nil {
		return nil, err
	}
	for _, name := range []string{"tokenizer.json", "tokenizer_config.json"} {
		if err := os.Symlink(filepath.Join(tokenizer, name), filepath.Join(f.model, name)); err != nil {
			return nil, err
		}
	}
	for _, name := range []string{"sql", "chat"} {
		if f.adapters[name], err = filepath.Abs("testdata/lora-" + name); err != nil {
			return nil, err
		}
	}
	return f, nil
}

// script runs a script that prints one line.
func script(name string, args ...string) (string, error) {
	var stderr bytes.Buffer
	cmd := exec.Command("./"+name, args...)
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("%s: %w: %s", name, err, stderr.String())
	}
	return strings.TrimSpace(string(out)), nil
}

// freeAddress is a port of 127.0.0.1 that nobody has at the moment, below those
// that systems give to connections: an engine takes it a minute later.
func freeAddress() (string, error) {
	for range 100 {
		port := fmt.Sprint(15000 + rand.IntN(15000))
		l, err := net.Listen("tcp", ":"+port)
		if err != nil {
			continue
		}
		return "127.0.0.1:" + port, l.Close()
	}
	return "", errors.New("100 ports between 15000 and 30000 are taken")
}

// newEngine gives an engine its ports.
func newEngine(name string) (*server, error) {
	e := &server{name: name}
	for _, a := range []*string{&e.address, &e.pub, &e.replay} {
		var err error
		if *a, err = freeAddress(); err != nil {
			return nil, err
		}
	}
	return e, nil
}

// start starts the process; awaitUp waits until it serves.
func (e *server) start(f *files, s shape) error {
	_, port, _ := net.SplitHostPort(e.address)
	_, pub, _ := net.SplitHostPort(e.pub)
	_, replay, _ := net.SplitHostPort(e.replay)
	args := []string{
		filepath.Join(f.bin, "vllm"), "serve", f.model, "--served-model-name", "tiny", "--host", "127.0.0.1", "--port", port,
		"--load-format", "dummy", "--dtype", "bfloat16", "--enforce-eager", "--max-num-seqs", "8", "--distributed-executor-backend", "uni",
		"--max-model-len", fmt.Sprint(s.maxTokens), "--block-size", fmt.Sprint(s.blockTokens), "--num-gpu-blocks-override", fmt.Sprint(s.blocks),
		"--enable-prefix-caching", "--enable-prompt-tokens-details",
		"--enable-lora", "--max-loras", "2", "--max-lora-rank", "8", "--lora-modules", "sql=" + f.adapters["sql"], "chat=" + f.adapters["chat"],
		"--kv-events-config", fmt.Sprintf(
			`{"enable_kv_cache_events":true,"publisher":"zmq","endpoint":"tcp://*:%s","replay_endpoint":"tcp://*:%s","topic":"kv@%s@tiny"}`, pub, replay, e.address),
	}
	e.shape, e.log, e.up, e.ended = s, &bytes.Buffer{}, make(chan struct{}), make(chan struct{})
	e.cmd = exec.Command("./run.sh", args...)
	e.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	// The model runs in the engine's own process: a third would take as long to
	// start as the other two. On a CPU vLLM asks for both settings.
	e.cmd.Env = append(os.Environ(), "VLLM_ENABLE_V1_MULTIPROCESSING=0",
		"VLLM_TARGET_DEVICE=cpu", "VLLM_CPU_KVCACHE_SPACE=1", "VLLM_CPU_OMP_THREADS_BIND=nobind", "OMP_NUM_THREADS=1",
		"HF_HUB_OFFLINE=1", "TRANSFORMERS_OFFLINE=1", "VLLM_NO_USAGE_STATS=1", "DO_NOT_TRACK=1",
		"VLLM_SERVER_DEV_MODE=1", "VLLM_LOGGING_LEVEL=INFO", "TORCHINDUCTOR_COMPILE_THREADS=1", "PYTHONUNBUFFERED=1")
	stdin, err := e.cmd.StdinPipe()
	if err != nil {
		return err
	}
	e.stdin = stdin
	out, err := e.cmd.StdoutPipe()
	if err != nil {
		return err
	}
	e.cmd.Stderr = e.cmd.Stdout
	if err := e.cmd.Start(); err != nil {
		return err
	}
	go e.read(e.cmd, out, e.up, e.ended)
	return nil
}

// read reads what the engine logs to its end, and sees it come up.
func (e *server) read(cmd *exec.Cmd, out io.Reader, up, ended chan struct{}) {
	lines := bufio.NewScanner(out)
	lines.Buffer(nil, 1<<20)
	serving := false
	for lines.Scan() {
		e.mu.Lock()
		fmt.Fprintln(e.log, lines.Text())
		e.mu.Unlock()
		if !serving && strings.Contains(lines.Text(), "Application startup complete") {
			serving = true
			close(up)
		}
	}
	_, _ = io.Copy(io.Discard, out) // behind a line that is too long
	_ = cmd.Wait()                  // it was killed
	close(ended)
}

// awaitUp returns when the engine serves. It says that it has started a moment
// before it listens, and that it listens nowhere.
func (e *server) awaitUp(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, startPatience)
	defer cancel()
	for {
		select {
		case <-e.up:
		case <-e.ended:
			return fmt.Errorf("engine %s has ended:\n%s", e.name, e.tail())
		case <-ctx.Done():
			return fmt.Errorf("engine %s: %w:\n%s", e.name, ctx.Err(), e.tail())
		}
		if c, err := net.Dial("tcp", e.address); err == nil {
			return c.Close()
		}
		select {
		case <-time.After(10 * time.Millisecond):
		case <-ctx.Done():
		}
	}
}

// tail is the end of the engine's log.
func (e *server) tail() string {
	e.mu.Lock()
	defer e.mu.Unlock()
	text := e.log.String()
	return text[max(0, len(text)-6000):]
}

// kill ends the engine and all its processes as kill -9 does, and waits for that.
func (e *server) kill() {
	if e.cmd == nil || e.cmd.Process == nil {
		return
	}
	_ = syscall.Kill(-e.cmd.Process.Pid, syscall.SIGKILL) // it may have ended
	<-e.ended
	_ = e.stdin.Close()
}

// enginePool is the two engines that all tests share.
type enginePool struct {
	files *files
	a, b  *server
}

// pool is the engines; TestMain starts it.
var pool enginePool

// The shapes that the engines are started with: two sizes of blocks in one pool.
var (
	shapeA = shape{blockTokens: 32, blocks: 2048, maxTokens: 4096}
	shapeB = shape{blockTokens: 64, blocks: 1024, maxTokens: 4096}
	// What A is restarted with: larger blocks, and few.
	fewBlocks = shape{blockTokens: 128, blocks: 24, maxTokens: 2048}
)

// start starts both engines and waits for them.
func (f *enginePool) start(ctx context.Context, dir string) (err error) {
	if f.files, err = install(dir); err != nil {
		return err
	}
	if f.a, err = newEngine("A"); err != nil {
		return err
	}
	if f.b, err = newEngine("B"); err != nil {
		return err
	}
	if err := errors.Join(f.a.start(f.files, shapeA), f.b.start(f.files, shapeB)); err != nil {
		return err
	}
	return errors.Join(f.a.awaitUp(ctx), f.b.awaitUp(ctx))
}

func (f *enginePool) stop() {
	for _, e := range []*server{f.a, f.b} {
		if e != nil {
			e.kill()
		}
	}
}

// restart starts an engine that was killed on its old ports, and waits for it.
func (f *enginePool) restart(t *testing.T, e *server, s shape) {
	t.Helper()
	if err := e.start(f.files, s); err != nil {
		t.Fatal(err)
	}
	if err := e.awaitUp(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// shaped restarts an engine that has another shape than a test needs.
func (f *enginePool) shaped(t *testing.T, e *server, s shape) {
	t.Helper()
	if e.shape != s {
		e.kill()
		f.restart(t, e, s)
	}
}
