//go:build vllm

package vllm

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"go.uber.org/goleak"
)

// command is the binary epp that the tests run; TestMain builds it.
var command string

// TestMain builds the picker while both engines start, and runs the tests. There
// is no test without engines: where they don't start all fails.
func TestMain(m *testing.M) {
	os.Exit(run(m))
}

func run(m *testing.M) int {
	dir, err := os.MkdirTemp("", "epp-vllm-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	built := make(chan error, 1)
	go func() {
		command = filepath.Join(dir, "epp")
		out, err := exec.Command("go", "build", "-o", command, "../../cmd/epp").CombinedOutput()
		if err != nil {
			err = fmt.Errorf("go build: %w: %s", err, out)
		}
		built <- err
	}()
	began := time.Now()
	defer pool.stop()
	err = pool.start(context.Background(), dir)
	if built := <-built; err == nil {
		err = built
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "test/vllm:", err)
		return 1
	}
	fmt.Printf("two engines serve after %.0f s\n", time.Since(began).Seconds())
	code := m.Run()
	pool.stop()
	if code == 0 {
		// The publisher of a relay is zmq4's, which can miss its own Close.
		if err := goleak.Find(goleak.IgnoreAnyFunction("github.com/go-zeromq/zmq4.(*pubMWriter).run")); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	return code
}
