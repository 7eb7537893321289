// Command epp picks the endpoint that serves each LLM request with the least
// compute. It has one subcommand per file; system.go is the one wiring function.
//
//	epp demo                    four simulated engines, a proxy, sample conversations
//	epp serve --config epp.yaml the picker as an OpenAI-compatible proxy, and beside Envoy
//	epp serve --pool NS/NAME    the same for an InferencePool on Kubernetes
//	epp agent                   beside an engine: tells pickers what it holds
//	epp envoy-config            an Envoy configuration for the pool
//	epp probe ADDRESS           what of an engine is understood, and what is not
//	epp sim --trace FILE        the picker on a recorded trace, against simulated engines
//	epp replay FILE             recorded decisions again, by their own settings or others
//	epp tune --trace FILE       better weights for a trace, if that can be proved
//	epp version
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"
)

// version is set by the linker: -X main.version=….
var version = "devel"

func main() {
	// net/http writes what it dislikes of a peer's bytes to the standard log. Ours
	// is another, and holds no byte of an answer.
	log.SetOutput(io.Discard)
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := root().ExecuteContext(ctx)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "epp:", err)
		code := 1
		if e := (*exitError)(nil); errors.As(err, &e) {
			code = e.code
		}
		os.Exit(code)
	}
}

func root() *cobra.Command {
	cmd := &cobra.Command{
		Use:           "epp",
		Short:         "Endpoint picker for LLM inference: each request where it runs with the least compute",
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	cmd.PersistentFlags().String("log-level", "", "error, warn, info, debug or trace (default: EPP_LOG_LEVEL, else the configuration's)")
	cmd.AddCommand(demoCommand(), serveCommand(), agentCommand(), envoyConfigCommand(), probeCommand(), simCommand(), replayCommand(), tuneCommand(), versionCommand())
	return cmd
}

func versionCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the version",
		Args:  cobra.NoArgs,
		Run:   func(cmd *cobra.Command, _ []string) { fmt.Fprintln(cmd.OutOrStdout(), version) },
	}
}
