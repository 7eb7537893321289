// Command memory measures what the picker's process holds, as the kernel counts
// it: idle, with a tokenizer, and with blocks in its index. It starts fake engines
// and the real binary in front of them, has every engine compute the same prompts,
// so that each block is held by all, and waits until the picker has heard of them.
//
//	make build
//	go run ./bench/memory --epp bin/epp --tokenizer $(test/fetch-tokenizers.sh qwen3)
package main

import (
	"bufio"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"math"
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

	"epp.internal/epp/bench/rig"
	"epp.internal/epp/engine"
	"epp.internal/epp/epptest"
)

const (
	endpoints   = 4
	blockTokens = 16
	// promptBlocks is a prompt's length: as long as engines take it, so that few do.
	promptBlocks = 8000
	// settle is how long the picker is left alone before it is measured: its
	// garbage collector gives memory back by then.
	settle = 5 * time.Second
	// patience bounds the wait for blocks to be heard of.
	patience = 5 * time.Minute
)

func main() {
	epp := flag.String("epp", "bin/epp", "the picker's binary")
	tokenizer := flag.String("tokenizer", "", "folder of tokenizer.json and tokenizer_config.json; empty: that line is left out")
	blocks := flag.Int("blocks", 1_000_000, "blocks in the index, each held by four endpoints")
	figures := flag.String("figures", "", "file that the budgets' figures are added to, for bench/table")
	flag.Parse()
	if err := run(*epp, *tokenizer, *figures, *blocks); err != nil {
		fmt.Fprintln(os.Stderr, "memory:", err)
		os.Exit(1)
	}
}

func run(epp, tokenizer, figures string, blocks int) error {
	found, err := rig.CreateFigures(figures)
	if err != nil {
		return err
	}
	defer found.Close()
	prompts := (blocks + promptBlocks - 1) / promptBlocks
	var engines []*epptest.Engine
	defer func() {
		for _, e := range engines {
			_ = e.Close()
		}
	}()
	for i := range endpoints {
		profile, _ := engine.ProfileNamed("article-8b")
		e, err := epptest.StartEngine(epptest.EngineConfig{
			Name: fmt.Sprint("engine-", i), Model: "m", TimeScale: 1e-5, MaxModelTokens: (promptBlocks + 1) * blockTokens,
			Engine: engine.Config{Profile: profile, Blocks: (prompts + 2) * promptBlocks},
		})
		if err != nil {
			return err
		}
		engines = append(engines, e)
	}
	fmt.Println("| picker | RSS, MiB | of it not shared with the binary's file, MiB |")
	fmt.Println("|---|---|---|")
	idle, err := start(epp, "", engines, 1)
	if err != nil {
		return err
	}
	defer idle.stop()
	empty, err := idle.row("idle: no tokenizer, 4 endpoints, empty ring")
	if err != nil {
		return err
	}
	found.Put("11-idle", "epp", empty)
	if tokenizer != "" {
		with, err := start(epp, tokenizer, engines, 2)
		if err != nil {
			return err
		}
		rss, err := with.row("idle, with a tokenizer")
		if with.stop(); err != nil {
			return err
		}
		found.Put("11-tokenizer", "epp", rss-empty)
	}
	if err := fill(engines, prompts); err != nil {
		return err
	}
	heard, err := idle.await(prompts * promptBlocks)
	if err != nil {
		return err
	}
	rss, err := idle.row(fmt.Sprintf("%d blocks on 4 endpoints each", heard))
	found.Put("11-blocks", "epp", rss-empty)
	return err
}

// process is a running picker.
type process struct {
	cmd  *exec.Cmd
	page string
}

// start runs the picker and waits until all engines are followed by so many.
func start(epp, tokenizer string, engines []*epptest.Engine, followers int) (*process, error) {
	var free [2]string
	for i := range free {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return nil, err
		}
		free[i] = l.Addr().String()
		if err := l.Close(); err != nil {
			return nil, err
		}
	}
	text := fmt.Sprintf("listen: {proxy: \"\", metrics: %q, health: \"\", extProc: %q}\ntls: {insecure: true}\npool:\n  endpoints:\n", free[0], free[1])
	for _, e := range engines {
		text += fmt.Sprintf("  - {name: %s, address: %s}\n", e.Name(), e.Address())
	}
	if tokenizer != "" {
		text += fmt.Sprintf("tokenizer: {path: %q}\n", tokenizer)
	}
	dir, err := os.MkdirTemp("", "memory-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir) // it has read it by then
	file := filepath.Join(dir, "epp.yaml")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		return nil, err
	}
	p := &process{cmd: exec.Command(epp, "serve", "--config", file), page: "http://" + free[0] + "/metrics"}
	p.cmd.Stderr = os.Stderr
	if err := p.cmd.Start(); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	for _, e := range engines {
		if err := e.AwaitSubscribers(ctx, followers); err != nil {
			p.stop()
			return nil, fmt.Errorf("%s: %w", epp, err)
		}
	}
	return p, nil
}

func (p *process) stop() {
	_ = p.cmd.Process.Signal(syscall.SIGTERM)
	_ = p.cmd.Wait() // it was told to
}

// row prints the process's memory, when it has settled, and returns what of it is
// resident, in MiB.
func (p *process) row(name string) (rss float64, err error) {
	time.Sleep(settle)
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.cmd.Process.Pid))
	if err != nil {
		return 0, err
	}
	rss = kib(status, "VmRSS:") / 1024
	fmt.Printf("| %s | %.1f | %.1f |\n", name, rss, kib(status, "RssAnon:")/1024)
	return rss, nil
}

// kib is a line of proc_pid_status(5), in KiB.
func kib(status []byte, key string) float64 {
	_, rest, _ := strings.Cut(string(status), key)
	n, _ := strconv.ParseFloat(strings.Fields(rest + " 0")[0], 64)
	return n
}

// fill has every engine compute the same prompts, of token IDs.
func fill(engines []*epptest.Engine, prompts int) error {
	errs := make([]error, len(engines))
	var wg sync.WaitGroup
	for i, e := range engines {
		wg.Go(func() {
			for n := 0; n < prompts && errs[i] == nil; n++ {
				errs[i] = ask(e, n)
			}
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

func ask(e *epptest.Engine, n int) error {
	var body strings.Builder
	body.WriteString(`{"model":"m","max_tokens":1,"prompt":[`)
	for i := range promptBlocks * blockTokens {
		if i > 0 {
			body.WriteByte(',')
		}
		body.WriteString(strconv.Itoa((i*31 + n*7 + i/250*n) % 251)) // other blocks in every prompt
	}
	body.WriteString("]}")
	resp, err := http.Post(e.URL()+"/v1/completions", "application/json", strings.NewReader(body.String()))
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if answer, err := io.ReadAll(resp.Body); err != nil || resp.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %s %.200s %w", e.Name(), resp.Status, answer, err)
	}
	return nil
}

// await waits until the picker has heard of so many blocks of every endpoint, and
// returns how many of the one with the fewest.
func (p *process) await(blocks int) (int, error) {
	heard := 0
	for until := time.Now().Add(patience); time.Now().Before(until); time.Sleep(time.Second) {
		resp, err := http.Get(p.page)
		if err != nil {
			return 0, err
		}
		heard = math.MaxInt
		lines := bufio.NewScanner(resp.Body)
		for lines.Scan() {
			if line := lines.Text(); strings.HasPrefix(line, "epp_endpoint_cached_blocks{") {
				n, _ := strconv.ParseFloat(line[strings.LastIndexByte(line, ' ')+1:], 64)
				heard = min(heard, int(n))
			}
		}
		if err := errors.Join(lines.Err(), resp.Body.Close()); err != nil {
			return 0, err
		}
		if heard >= blocks*99/100 {
			return heard, nil
		}
	}
	return heard, fmt.Errorf("the picker has heard of %d blocks of %d", heard, blocks)
}
