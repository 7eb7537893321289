package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/spf13/cobra"

	"epp.internal/epp/decision"
	"epp.internal/epp/tune"
)

func tuneCommand() *cobra.Command {
	s := simulation{}
	var settings, patch, report string
	var maxMove float64
	cmd := &cobra.Command{
		Use:   "tune --trace FILE",
		Short: "Look for better weights on a trace, and prove them or keep the current ones",
		Long: `tune looks for weights on the first half of a trace, holds what it found against the
current weights on the next quarter and in other worlds (hardware, rate, lag, faults),
and reads the last quarter once, when all else has said yes. It proposes a change only
where the gain is proved and more than the simulator may be wrong by; otherwise it says
keep, and why. Signals matter more than weights: expect to keep them.

The trace is best one of your own: a file of log.decisions. The flags of the fleet are
those of epp sim.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			current := decision.Defaults()
			if settings != "" {
				var err error
				if current, err = readSettings(settings); err != nil {
					return err
				}
			}
			if maxMove == 0 { // else it would be the default
				return errors.New("--max-move 0: want above 0 and at most 1")
			}
			if patch == "" {
				return errors.New("--patch: is empty: name a file")
			}
			if err := errors.Join(canHold("--patch", patch), canHold("--report", report)); err != nil {
				return err
			}
			t, err := s.world()
			if err != nil {
				return err
			}
			p := progress{to: cmd.ErrOrStderr(), began: time.Now()}
			r, err := tune.Run(cmd.Context(), tune.Config{
				Source: t, Sim: s.cfg, Current: current, MaxMove: maxMove, Progress: p.runs,
			})
			if errors.Is(err, context.Canceled) {
				return errors.New("tune: interrupted: no report")
			}
			if err != nil {
				return err
			}
			return writeTuned(cmd.OutOrStdout(), r, patch, report)
		},
	}
	f := cmd.Flags()
	s.flags(f)
	f.StringVar(&settings, "config", "", "the current settings, a configuration (default the defaults)")
	f.Float64Var(&maxMove, "max-move", tune.DefaultMaxMove, "how far a weight may move at once, above 0 and at most 1")
	f.StringVar(&patch, "patch", "epp-tune.yaml", "where the changed weights go, if there is a change: a part of a configuration")
	f.StringVar(&report, "report", "", "where the report goes (default standard output)")
	return cmd
}

// runs tells how far a search is.
func (p *progress) runs(stage string, n int) {
	now := time.Now()
	if now.Sub(p.began) < progressEvery || now.Sub(p.told) < progressEvery {
		return
	}
	p.told = now
	fmt.Fprintf(p.to, "%s: %d runs, %v\n", stage, n, now.Sub(p.began).Round(time.Second))
}

// writeTuned writes the report, and the patch where there is a change.
func writeTuned(out io.Writer, r *tune.Report, patch, report string) error {
	var text bytes.Buffer
	if err := r.Write(&text); err != nil {
		return err
	}
	var err error
	if report == "" {
		_, err = out.Write(text.Bytes())
	} else {
		err = os.WriteFile(report, text.Bytes(), 0o644)
	}
	if r.Change {
		err = errors.Join(err, os.WriteFile(patch, r.Patch(), 0o644))
	}
	return err
}
