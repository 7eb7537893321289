package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"time"

	"github.com/spf13/cobra"
)

// exitError ends the command with a code of its own.
type exitError struct {
	code int
	err  error
}

func (e *exitError) Error() string { return e.err.Error() }
func (e *exitError) Unwrap() error { return e.err }

// The codes that probe ends with, beside 0.
const (
	exitMissing = 1
	exitUse     = 2
)

func wrongUse(err error) error {
	if err == nil {
		return nil
	}
	return &exitError{exitUse, err}
}

func probeCommand() *cobra.Command {
	var p inspection
	var asJSON bool
	timeout := 30 * time.Second
	cmd := &cobra.Command{
		Use:   "probe ADDRESS",
		Short: "Check what of an engine is understood, and what routing does without the rest",
		Long: `probe asks the engine at ADDRESS (ip:port of its API) for all that the picker reads of
one: its models, its metrics, its KV events and their replay, its tokens and its usage.
To see its events it has the engine compute a few prompts of random tokens, of two
blocks and one token each. It prints one line for each fact:

  ok       understood
  missing  the engine does not have it, or it is not understood; the line says what
           routing does without it
  unknown  it could not be told, since something else is missing

Exit status: 0 where all is ok, 1 where something is missing or unknown, 2 for wrong use.`,
		Args: func(cmd *cobra.Command, args []string) error { return wrongUse(cobra.ExactArgs(1)(cmd, args)) },
		RunE: func(cmd *cobra.Command, args []string) error {
			p.address, p.timeout = args[0], timeout
			if err := p.checkUse(); err != nil {
				return wrongUse(err)
			}
			r := p.run(cmd.Context())
			if err := r.write(cmd.OutOrStdout(), asJSON); err != nil {
				return err
			}
			if n := r.notOK(); n > 0 {
				return &exitError{exitMissing, fmt.Errorf("probe %s: %d of %d facts are not understood", p.address, n, len(r.Facts))}
			}
			return nil
		},
	}
	cmd.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return wrongUse(err) })
	cmd.Flags().BoolVar(&asJSON, "json", false, "print one JSON object")
	cmd.Flags().StringVar(&p.events, "events", "", "ip:port of the KV-event socket (default: as /kv_event_sources says)")
	cmd.Flags().StringVar(&p.replay, "replay", "", "ip:port of the replay socket, beside --events")
	cmd.Flags().StringVar(&p.tokenizer, "tokenizer", "", "folder of the tokenizer that the picker is given: its tokens are compared with the engine's")
	cmd.Flags().DurationVar(&timeout, "timeout", timeout, "how long all of it may take, 1s to 10m")
	return cmd
}

// checkUse finds what is wrong with the command line.
func (p *inspection) checkUse() error {
	for _, a := range [...]struct{ name, address string }{{"ADDRESS", p.address}, {"--events", p.events}, {"--replay", p.replay}} {
		if a.address == "" && a.name != "ADDRESS" {
			continue
		}
		host, port, err := net.SplitHostPort(a.address)
		if n, portErr := strconv.ParseUint(port, 10, 16); err != nil || host == "" || portErr != nil || n == 0 {
			return fmt.Errorf("%s: %q is not ip:port, like 10.0.0.7:8000", a.name, a.address)
		}
	}
	if p.replay != "" && p.events == "" {
		return errors.New("--replay: needs --events, the socket that it repeats")
	}
	if p.timeout < time.Second || p.timeout > 10*time.Minute {
		return fmt.Errorf("--timeout: %v is not between 1s and 10m", p.timeout)
	}
	return nil
}

// The states of a fact.
const (
	factOK      = "ok"
	factMissing = "missing"
	factUnknown = "unknown"
)

// fact is one thing that the picker reads of an engine.
type fact struct {
	Name  string `json:"name"`
	State string `json:"state"`
	// Detail is what was found.
	Detail string `json:"detail"`
	// Without says what routing does without it; empty where it is ok.
	Without string `json:"without,omitempty"`
}

// findings are all that a probe found.
type findings struct {
	Address    string `json:"address"`
	Understood bool   `json:"understood"` // all facts are ok
	Facts      []fact `json:"facts"`
}

// notOK counts the facts that are missing or unknown.
func (r *findings) notOK() (n int) {
	for i := range r.Facts {
		if r.Facts[i].State != factOK {
			n++
		}
	}
	return n
}

func (r *findings) write(w io.Writer, asJSON bool) error {
	if asJSON {
		out := json.NewEncoder(w)
		out.SetIndent("", "  ")
		return out.Encode(r)
	}
	for i := range r.Facts {
		f := &r.Facts[i]
		text := f.Detail
		if f.Without != "" {
			text += "; without it " + f.Without
		}
		if _, err := fmt.Fprintf(w, "%-8s %-18s %s\n", f.State, f.Name, text); err != nil {
			return err
		}
	}
	return nil
}
