// Command extload measures what a decision of the picker costs beside the floor.
// It starts a fleet of fake engines, the picker in front of it and nullepp,
// opens ext_proc streams to both as Envoy does, and prints a Markdown table: for
// each body mode, body size and number of streams the decisions a second, the
// time to a decision and the server's CPU, ours and the floor's in turns.
//
// Bodies are growing conversations of real text, and their tokens are exact: the
// picker reads the tokenizer given. Before it measures, every conversation's turn
// before the last is asked of an engine, so that the index is full and each
// decision has its prefix to find.
//
//	extload --epp bin/epp --nullepp bin/nullepp --tokenizer DIR --corpus DIR
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"epp.internal/epp/bench/rig"
	"epp.internal/epp/engine"
	"epp.internal/epp/epptest"
	"epp.internal/epp/tokenize"
)

// size is a row of the table: bodies and how many conversations of them.
type size struct {
	name          string
	bytes         int
	conversations int
	streams       []int
}

var sizes = []size{
	{"16 KB", 16_000, 96, []int{1, 16, 64}},
	{"220 KB", 220_000, 16, []int{1, 16}},
}

type options struct {
	epp, nullepp, tokenizer, corpus, log string
	only, figures                        string
	engines, rounds                      int
	length                               time.Duration
}

func main() {
	var o options
	flag.StringVar(&o.epp, "epp", "bin/epp", "the picker's binary")
	flag.StringVar(&o.nullepp, "nullepp", "bin/nullepp", "the floor's binary")
	flag.StringVar(&o.tokenizer, "tokenizer", "", "folder of tokenizer.json and tokenizer_config.json")
	flag.StringVar(&o.corpus, "corpus", "", "folder of Go files that conversations are cut from")
	flag.StringVar(&o.log, "log", os.DevNull, "file for the servers' logs")
	flag.StringVar(&o.figures, "figures", "", "file that the budgets' figures are added to, for bench/table")
	flag.StringVar(&o.only, "only", "", "the one cell to measure, as its label begins: \"16 KB/64/BUFFERED\"; empty: all")
	flag.IntVar(&o.engines, "engines", 8, "fake engines")
	flag.IntVar(&o.rounds, "rounds", 5, "measurements of each cell, of which the median is shown")
	flag.DurationVar(&o.length, "for", 3*time.Second, "length of each measurement")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	err := run(ctx, o, os.Stdout)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "extload:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, o options, out io.Writer) error {
	text, err := rig.ReadCorpus(o.corpus)
	if err != nil {
		return err
	}
	log, err := os.Create(o.log)
	if err != nil {
		return err
	}
	defer log.Close()
	engines, err := startEngines(o)
	defer func() {
		for _, e := range engines {
			_ = e.Close()
		}
	}()
	if err != nil {
		return err
	}
	found, err := rig.CreateFigures(o.figures)
	if err != nil {
		return err
	}
	defer found.Close()
	fmt.Fprintln(out, "| mode | body | streams | decisions/s, epp | floor | ratio | p50 / p99 ms, epp | floor | CPU ms per decision, epp | floor | epp RSS |")
	fmt.Fprintln(out, "|---|---|---|---|---|---|---|---|---|---|---|")
	for _, s := range sizes {
		if !strings.HasPrefix(o.only, s.name[:min(len(s.name), len(o.only))]) {
			continue
		}
		bodies, err := rig.Conversations(text, 1, s.conversations, s.bytes)
		if err != nil {
			return err
		}
		if err := measureSize(ctx, o, out, log, engines, s, bodies, found); err != nil {
			return fmt.Errorf("%s: %w", s.name, err)
		}
	}
	return nil
}

// startEngines starts the fleet. It is fast, has room for every conversation,
// and tokenizes as the picker does.
func startEngines(o options) (engines []*epptest.Engine, err error) {
	tokenizer, err := os.ReadFile(filepath.Join(o.tokenizer, "tokenizer.json"))
	if err != nil {
		return nil, err
	}
	settings, err := os.ReadFile(filepath.Join(o.tokenizer, "tokenizer_config.json"))
	if err != nil {
		return nil, err
	}
	tok, err := tokenize.New(tokenizer, settings)
	if err != nil {
		return nil, err
	}
	for i := range o.engines {
		profile, _ := engine.ProfileNamed("article-8b")
		e, err := epptest.StartEngine(epptest.EngineConfig{
			Name: fmt.Sprintf("engine-%d", i), Model: rig.Model, Tokenizer: tok, AnswerTokens: tok.CompletionTokens(" ok"),
			Engine:         engine.Config{Profile: profile, Blocks: 100_000},
			MaxModelTokens: 200_000, TimeScale: 1e-4,
		})
		if err != nil {
			return engines, err
		}
		engines = append(engines, e)
	}
	return engines, nil
}

// measureSize measures all rows of one body size, with a picker of their own.
func measureSize(ctx context.Context, o options, out, log io.Writer, engines []*epptest.Engine, s size, bodies [][][]byte, found *rig.Figures) error {
	ours, err := startPicker(ctx, o, log, engines)
	if err != nil {
		return err
	}
	defer ours.Stop()
	address, err := rig.FreeAddress()
	if err != nil {
		return err
	}
	floor, err := rig.Start(log, address, o.nullepp, "--listen", address, "--endpoint", engines[0].Address())
	if err != nil {
		return err
	}
	defer floor.Stop()
	if err := fill(ctx, engines, bodies); err != nil {
		return err
	}
	for _, duplex := range []bool{false, true} {
		for _, streams := range s.streams {
			if !strings.HasPrefix(fmt.Sprintf("%s/%d/%s", s.name, streams, modeName(duplex)), o.only) {
				continue
			}
			var a, b []figures
			for range o.rounds { // in turns, so that both see the same machine
				for _, side := range []struct {
					of   *rig.Server
					into *[]figures
				}{{ours, &a}, {floor, &b}} {
					f, err := measure(ctx, side.of, load{bodies: bodies, streams: streams, duplex: duplex, length: o.length})
					if err != nil {
						return err
					}
					*side.into = append(*side.into, f)
				}
			}
			row(out, s.name, streams, duplex, a, b)
			put(found, fmt.Sprintf("%s/%d/%s", s.name, streams, modeName(duplex)), a, b)
		}
	}
	return nil
}

// startPicker runs epp in front of the engines and waits until it follows all of
// their events.
func startPicker(ctx context.Context, o options, log io.Writer, engines []*epptest.Engine) (*rig.Server, error) {
	address, err := rig.FreeAddress()
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "extload-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir) // it has read it by then
	text := fmt.Sprintf("listen: {proxy: \"\", metrics: \"\", health: \"\", extProc: %q}\ntls: {insecure: true}\ntokenizer: {path: %q}\npool:\n  endpoints:\n", address, o.tokenizer)
	for _, e := range engines {
		text += fmt.Sprintf("  - {name: %s, address: %s}\n", e.Name(), e.Address())
	}
	file := filepath.Join(dir, "epp.yaml")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		return nil, err
	}
	s, err := rig.Start(log, address, o.epp, "serve", "--config", file)
	if err != nil {
		return nil, err
	}
	wait, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	for _, e := range engines {
		if err := e.AwaitSubscribers(wait, 1); err != nil {
			s.Stop()
			return nil, fmt.Errorf("epp: %w", err)
		}
	}
	return s, nil
}

func modeName(duplex bool) string {
	if duplex {
		return "FULL_DUPLEX_STREAMED"
	}
	return "BUFFERED + NONE"
}

// rows are the cells that a budget names, and the rows of it that they are.
var rows = map[string][]string{
	"16 KB/64/BUFFERED + NONE":       {"6a-buffered", "6a-buffered-cpu"},
	"16 KB/64/FULL_DUPLEX_STREAMED":  {"6a-duplex", "6a-duplex-cpu"},
	"220 KB/16/BUFFERED + NONE":      {"6b-buffered"},
	"220 KB/16/FULL_DUPLEX_STREAMED": {"6b-duplex"},
	"16 KB/1/BUFFERED + NONE":        {"6c-buffered-p50", "6c-buffered-p99"},
	"16 KB/1/FULL_DUPLEX_STREAMED":   {"6c-duplex-p50", "6c-duplex-p99"},
}

// put leaves a cell's figures for the table, if a budget names it.
func put(found *rig.Figures, cell string, ours, floor []figures) {
	for _, row := range rows[cell] {
		for side, of := range map[string][]figures{"epp": ours, "floor": floor} {
			var values []float64
			for _, f := range of {
				switch {
				case strings.HasSuffix(row, "-cpu"):
					values = append(values, f.cpu)
				case strings.HasSuffix(row, "-p50"):
					values = append(values, f.p50)
				case strings.HasSuffix(row, "-p99"):
					values = append(values, f.p99)
				default:
					values = append(values, f.perSecond)
				}
			}
			found.Put(row, side, values...)
		}
	}
}

// row prints the medians of one cell, with the least and the most decisions.
func row(out io.Writer, name string, streams int, duplex bool, ours, floor []figures) {
	a, b := median(ours), median(floor)
	spread := func(f []figures) string {
		least := slices.MinFunc(f, byRate).perSecond
		most := slices.MaxFunc(f, byRate).perSecond
		return fmt.Sprintf("%.0f (%.0f–%.0f)", median(f).perSecond, least, most)
	}
	fmt.Fprintf(out, "| %s | %s | %d | %s | %s | %.0f %% | %.2f / %.2f | %.2f / %.2f | %.3f | %.3f | %d MiB |\n",
		modeName(duplex), name, streams, spread(ours), spread(floor), 100*a.perSecond/b.perSecond,
		a.p50, a.p99, b.p50, b.p99, a.cpu, b.cpu, a.rss>>20)
}
