package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"os"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"epp.internal/epp/decision"
	"epp.internal/epp/route"
	"epp.internal/epp/trace"
)

func replayCommand() *cobra.Command {
	r := replay{}
	cmd := &cobra.Command{
		Use:   "replay FILE",
		Short: "Make recorded decisions again, by their own settings or by others",
		Long: `replay reads a file of log.decisions, gzip'd or not, and makes every decision in it again from its raw
inputs. By its own settings each must come out the same to the last bit. By others (a
configuration, or the flags below on top of what was recorded) it says which picks
change and why.

What would have come after another pick is in no log: each decision is made on the
state that the recorded picks have led to, and no answer to a different pick was ever
timed. So replay says how often settings differ, not which are better: epp sim and epp
tune run the traffic again for that, and read the same file as a trace.`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 1 {
				return fmt.Errorf("replay: %d files named: want one of log.decisions", len(args))
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			r.out, r.path = cmd.OutOrStdout(), args[0]
			for name := range r.set {
				if !cmd.Flags().Changed(name) {
					delete(r.set, name)
				}
			}
			return r.run()
		},
	}
	f := cmd.Flags()
	r.set = map[string]func(*decision.Settings) error{
		"weights":     r.setWeights,
		"policy":      func(s *decision.Settings) error { s.Policy = decision.PolicyName(r.policy); return nil },
		"gate":        func(s *decision.Settings) error { s.Gate = r.gate; return nil },
		"max-queue":   func(s *decision.Settings) error { s.MaxQueue = r.maxQueue; return nil },
		"load-source": func(s *decision.Settings) error { s.Load.Source = decision.LoadSource(r.loadSource); return nil },
	}
	f.StringVar(&r.config, "config", "", "the other settings, a configuration")
	f.StringVar(&r.weights, "weights", "", "other weights: cache=0.5,load=0.3,queue=0.1,health=0.05,adapter=0.05; one not named is 0")
	f.StringVar(&r.policy, "policy", "", "another policy: weighted or latency")
	f.DurationVar(&r.gate, "gate", 0, "another gate, 0 for none")
	f.IntVar(&r.maxQueue, "max-queue", 0, "another queue at which an endpoint is full")
	f.StringVar(&r.loadSource, "load-source", "", "another measure of load: requests, tokens, kv or gpu")
	f.IntVar(&r.show, "show", 10, "how many of the changed picks to show")
	f.BoolVar(&r.json, "json", false, "print one JSON object")
	return cmd
}

// replay is one call of the command.
type replay struct {
	out  io.Writer
	path string
	show int
	json bool

	config, weights, policy, loadSource string
	gate                                time.Duration
	maxQueue                            int
	// set has, by flag, what the flag changes.
	set map[string]func(*decision.Settings) error

	other    *decision.Settings                   // of config; nil: none
	policies map[*decision.Settings]*route.Policy // of what was recorded
	others   map[*decision.Settings]*route.Policy // what takes the place of that

	report replayReport
	before map[string]int // picks by endpoint
	after  map[string]int
}

// replayReport is what --json prints.
type replayReport struct {
	Decisions int `json:"decisions"`
	// Early were refused before any endpoint was looked at: there is nothing to
	// make again.
	Early int `json:"early"`
	// Cut are lines that were begun and not ended: they are left out.
	Cut int `json:"cut,omitempty"`
	// Exact came out the same to the last bit by their own settings.
	Exact int `json:"exact"`
	// Compared were made again by other settings, Blind could not be, since nothing
	// of what the other settings decide by was recorded.
	Compared int            `json:"compared"`
	Blind    int            `json:"blind"`
	Changed  int            `json:"changed"`
	Changes  []replayChange `json:"changes,omitempty"`
}

// replayChange is a pick that is another one by other settings.
type replayChange struct {
	At        time.Time `json:"at"`
	RequestID string    `json:"requestID"`
	Attempt   int       `json:"attempt"`
	From      string    `json:"from"` // an endpoint, or why none
	To        string    `json:"to"`
	FromWhy   string    `json:"fromWhy"`
	ToWhy     string    `json:"toWhy"`
}

func (r *replay) run() error {
	if r.show < 0 {
		return fmt.Errorf("--show %d: want 0 or more", r.show)
	}
	if r.config != "" {
		var err error
		if r.other, err = readSettings(r.config); err != nil {
			return err
		}
	}
	f, err := os.Open(r.path)
	if err != nil {
		return err
	}
	defer f.Close()
	log, err := trace.Unpack(f)
	if err != nil {
		return fmt.Errorf("%s: %w", r.path, err)
	}
	r.policies, r.others = map[*decision.Settings]*route.Policy{}, map[*decision.Settings]*route.Policy{}
	r.before, r.after = map[string]int{}, map[string]int{}
	for lines := decision.NewLogReader(r.path, log); ; {
		l, err := lines.Next()
		switch {
		case errors.Is(err, io.EOF) && r.report.Decisions == 0:
			return fmt.Errorf("%s: no decision in it: want a file of log.decisions", r.path)
		case errors.Is(err, io.EOF):
			r.report.Cut = lines.Cut()
			return r.tell()
		case err != nil:
			return err
		case l.Settings != nil:
			if err := r.take(l.Settings); err != nil {
				return err
			}
		case l.Record != nil:
			r.again(l.Record)
		}
	}
}

// take makes the policies of recorded settings, and of those in their place.
func (r *replay) take(s *decision.Settings) error {
	own, err := route.New(s)
	if err != nil {
		return fmt.Errorf("%s: settings: %w", r.path, err)
	}
	r.policies[s] = own
	if r.other == nil && len(r.set) == 0 {
		return nil
	}
	changed := *s
	if r.other != nil {
		changed = *r.other
		changed.StaleAfter = s.StaleAfter // it comes from the pool's size
	}
	for _, name := range slices.Sorted(maps.Keys(r.set)) {
		if err := r.set[name](&changed); err != nil {
			return fmt.Errorf("--%s: %w", name, err)
		}
	}
	if r.others[s], err = route.New(&changed); err != nil {
		return fmt.Errorf("the other settings: %w", err)
	}
	return nil
}

// setWeights reads --weights.
func (r *replay) setWeights(s *decision.Settings) error {
	given := map[string]float64{}
	for _, part := range strings.Split(r.weights, ",") {
		name, text, _ := strings.Cut(part, "=")
		v, err := strconv.ParseFloat(text, 64)
		if err != nil || decision.FactorOf(name) == decision.Factors {
			return fmt.Errorf("%q: want name=number, with one of cache, load, queue, health and adapter", part)
		}
		given[name] = v
	}
	s.Weights = nil
	for _, w := range decision.Defaults().Weights {
		s.Weights = append(s.Weights, decision.Weight{Name: w.Name, Value: given[w.Name]})
	}
	return nil
}

// again makes one decision again.
func (r *replay) again(rec *decision.Record) {
	r.report.Decisions++
	if len(rec.Candidates) == 0 {
		r.report.Early++
		return
	}
	if own := route.Replay(r.policies[rec.Settings], rec); same(rec, own) {
		r.report.Exact++
	}
	policy := r.others[rec.Settings]
	if policy == nil {
		return
	}
	if policy.Settings.Predicts() && len(rec.Predictions) == 0 {
		r.report.Blind++
		return
	}
	// What was recorded has no factors: they are made again for the reasons.
	was, now := route.Replay(r.policies[rec.Settings], rec), route.Replay(policy, rec)
	if policy.Settings.Load.Source != rec.Settings.Load.Source && noLoad(now) {
		r.report.Blind++
		return
	}
	r.report.Compared++
	from, to := picked(was), picked(now)
	r.before[from]++
	r.after[to]++
	if from == to {
		return
	}
	r.report.Changed++
	if len(r.report.Changes) < r.show {
		r.report.Changes = append(r.report.Changes, replayChange{
			At: rec.At, RequestID: rec.RequestID, Attempt: rec.Attempt, From: from, To: to, FromWhy: was.Why(), ToWhy: now.Why(),
		})
	}
}

// noLoad reports whether load is a guess at every candidate.
func noLoad(rec *decision.Record) bool {
	for i := range rec.Candidates {
		if !rec.Candidates[i].Guessed(decision.LoadFactor) {
			return false
		}
	}
	return true
}

// picked names the endpoint, or says why there is none.
func picked(rec *decision.Record) string {
	if rec.Chosen < 0 {
		return "refused (" + rec.Refused + ")"
	}
	return rec.Candidates[rec.Chosen].Name
}

// same reports whether the decision made again has every number that was recorded.
func same(rec, again *decision.Record) bool {
	if rec.Chosen != again.Chosen || rec.RunnerUp != again.RunnerUp || rec.Admitted != again.Admitted ||
		rec.Degraded != again.Degraded || rec.Refused != again.Refused || !slices.Equal(rec.Predictions, again.Predictions) {
		return false
	}
	for i := range rec.Candidates {
		a, b := &rec.Candidates[i], &again.Candidates[i]
		if math.Float64bits(a.Sum) != math.Float64bits(b.Sum) || a.Excluded != b.Excluded {
			return false
		}
	}
	return true
}

// tell prints what was found. That decisions do not come out as recorded is an
// error: another build made them, or the file was changed.
func (r *replay) tell() error {
	n := &r.report
	var fault error
	if wrong := n.Decisions - n.Early - n.Exact; wrong > 0 {
		fault = fmt.Errorf("%s: %d of %d decisions do not come out as recorded by their own settings: want a log of this build (%s)",
			r.path, wrong, n.Decisions-n.Early, version)
	}
	if r.json {
		e := json.NewEncoder(r.out)
		e.SetIndent("", "  ")
		return errors.Join(e.Encode(n), fault)
	}
	fmt.Fprintf(r.out, "%s: %d decisions, %d of them refused before any endpoint was looked at\n", r.path, n.Decisions, n.Early)
	if n.Cut > 0 {
		fmt.Fprintf(r.out, "lines that were cut off while they were written, and are left out: %d\n", n.Cut)
	}
	fmt.Fprintf(r.out, "by their own settings: %d of %d come out the same, to the last bit\n", n.Exact, n.Decisions-n.Early)
	if len(r.others) > 0 {
		r.tellOthers()
	}
	return fault
}

func (r *replay) tellOthers() {
	n := &r.report
	fmt.Fprintf(r.out, "by the other settings: %d of %d picks change (%.1f %%)\n", n.Changed, n.Compared, 100*float64(n.Changed)/float64(max(1, n.Compared)))
	if n.Blind > 0 {
		fmt.Fprintf(r.out, "%d decisions have nothing recorded of what the other settings decide by, and are left out\n", n.Blind)
	}
	w := tabwriter.NewWriter(r.out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "\nendpoint\tpicks before\tafter")
	names := map[string]bool{}
	for _, m := range []map[string]int{r.before, r.after} {
		for name := range m {
			names[name] = true
		}
	}
	for _, name := range slices.Sorted(maps.Keys(names)) {
		fmt.Fprintf(w, "%s\t%d\t%d\n", name, r.before[name], r.after[name])
	}
	_ = w.Flush() // what it writes to is asked at the end
	for _, c := range n.Changes {
		fmt.Fprintf(r.out, "\n%s %s: %s → %s\n  was: %s\n  now: %s\n", c.At.Format("15:04:05.000"), c.RequestID, c.From, c.To, c.FromWhy, c.ToWhy)
	}
	if left := n.Changed - len(n.Changes); left > 0 {
		fmt.Fprintf(r.out, "\nand %d more\n", left)
	}
	fmt.Fprintln(r.out, "\nWhat would have come after another pick was not observed: each decision stands on the\nstate that the recorded picks led to. This is how often they differ, not which is better.")
}
