//go:build gateway

package gateway

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"epp.internal/epp/epptest/demotok"
)

// startPatience bounds the start of the cluster.
const startPatience = 3 * time.Minute

// world is what all tests share.
var world struct {
	*cluster
	kubelet   *kubelet
	chart     string // the folder of helm
	tokenizer string // the folder of the model's files
	engines   engineSet
}

// TestMain brings up the cluster with istiod and one gateway, and runs the tests.
// There is no test without them: where they don't start all fails.
func TestMain(m *testing.M) {
	if os.Getenv(inCluster) == "" {
		os.Exit(enterNamespace())
	}
	os.Exit(run(m))
}

func run(m *testing.M) int {
	dir, err := os.MkdirTemp("", "epp-gateway-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	var wg sync.WaitGroup
	code := 1
	if err := bringUp(ctx, dir, &wg); err != nil {
		fmt.Fprintln(os.Stderr, "test/gateway:", err)
	} else {
		code = m.Run()
	}
	cancel()
	wg.Wait()
	if world.cluster != nil {
		world.stop()
	}
	world.engines.close()
	http1.CloseIdleConnections()
	if code == 0 {
		if err := goleak.Find(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	return code
}

// bringUp starts all that tests share. What runs in the background is in wg, and
// ends with ctx.
func bringUp(ctx context.Context, dir string, wg *sync.WaitGroup) error {
	began := time.Now()
	p, err := install()
	if err != nil {
		return err
	}
	if err := clusterNet(); err != nil {
		return err
	}
	command := filepath.Join(dir, "epp")
	build := exec.Command("go", "build", "-o", command, "../../cmd/epp")
	build.Env = append(os.Environ(), "CGO_ENABLED=0") // static, as in the image
	if out, err := build.CombinedOutput(); err != nil {
		return fmt.Errorf("go build: %w: %s", err, out)
	}
	if world.tokenizer, err = writeTokenizer(dir); err != nil {
		return err
	}
	installed := time.Now()
	starting, cancel := context.WithTimeout(ctx, startPatience)
	defer cancel()
	if world.cluster, err = startCluster(starting, dir, p); err != nil {
		return err
	}
	api := time.Now()
	if err := startIstiod(starting, world.cluster, p); err != nil {
		return err
	}
	istiod := time.Now()
	world.chart = p.chart
	world.kubelet = &kubelet{cluster: world.cluster, started: map[string]running{}, images: map[string]func(*pod, string) (running, error){
		proxyImage: startEnvoy(world.cluster, p.envoy),
		"epp":      startPicker(ctx, command),
		"epp:test": startImage(ctx, command),
		"engine":   world.engines.start,
		"front":    startFront,
	}}
	wg.Go(func() {
		if err := world.kubelet.run(ctx); err != nil {
			fmt.Fprintln(os.Stderr, "test/gateway:", err) // tests that wait for a pod fail
		}
	})
	if err := startGateway(starting, front, 80); err != nil {
		return err
	}
	fmt.Printf("installed and built after %.0f s; then the API server was ready after %.0f s, istiod after %.0f s more, the gateway after %.0f s more\n",
		installed.Sub(began).Seconds(), api.Sub(installed).Seconds(), istiod.Sub(api).Seconds(), time.Since(istiod).Seconds())
	return nil
}

// writeTokenizer puts the model's two files into a folder.
func writeTokenizer(dir string) (string, error) {
	path := filepath.Join(dir, "model")
	if err := os.Mkdir(path, 0o700); err != nil {
		return "", err
	}
	model, settings := demotok.Files()
	if err := os.WriteFile(filepath.Join(path, "tokenizer.json"), model, 0o600); err != nil {
		return "", err
	}
	return path, os.WriteFile(filepath.Join(path, "tokenizer_config.json"), settings, 0o600)
}
