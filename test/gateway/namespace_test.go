//go:build gateway

package gateway

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"syscall"
)

// inCluster is set in the environment of this test binary where it runs inside
// the namespace.
const inCluster = "EPP_TEST_IN_CLUSTER"

// enterNamespace runs this test binary again, in a network namespace of its own,
// and returns its exit status. The namespace of processes is its own too: however
// the run ends, the kernel ends all that it started.
func enterNamespace() int {
	cmd := exec.Command("/proc/self/exe", os.Args[1:]...)
	cmd.Env = append(os.Environ(), inCluster+"=1")
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: syscall.CLONE_NEWNET | syscall.CLONE_NEWPID,
		Pdeathsig:  syscall.SIGKILL,
	}
	// What a terminal or go test sends is the inner run's to obey.
	asked := make(chan os.Signal, 1)
	signal.Notify(asked, os.Interrupt, syscall.SIGTERM, syscall.SIGQUIT)
	if err := cmd.Start(); err != nil {
		fmt.Fprintf(os.Stderr, "test/gateway: no network namespace: %v: run as root, on Linux\n", err)
		return 1
	}
	go func() {
		for s := range asked {
			_ = cmd.Process.Signal(s) // it may have ended
		}
	}()
	err := cmd.Wait()
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
		return max(exit.ExitCode(), 1)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "test/gateway:", err)
		return 1
	}
	return 0
}

// clusterNet makes each address of the cluster a local one.
func clusterNet() error {
	return ip("link set lo up", "address add "+hostIP+"/32 dev lo", "route add local 10.77.0.0/16 dev lo")
}
