// Command table measures the core beside its peers, twins and floors, in one run,
// puts what other programs have found of rows 6 to 9 and 11 beside it, and prints the
// table of the budgets as Markdown. bench/all.sh runs those programs first.
//
//	go run ./bench/table                       # ours, the naive twins, the floors
//	go run ./bench/table -dynamo BINARY        # and the built bench/peers/dynamo
//	go run ./bench/table -figures FILE -benchmarks FILE -results bench/RESULTS.md
//
// Absolute times move with the machine and with what else runs on it; ratios
// within one run do not move much. A figure is that of many short passes which a
// tenth of them do not exceed: the others are what a busy machine does to them.
package main

import (
	"bufio"
	"bytes"
	"cmp"
	"encoding/binary"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"text/tabwriter"
	"time"
)

// figure is one line of the table.
type figure struct {
	row, work, unit string
	ours            float64
	spread          string // of ours, where rounds were measured
	// twin is the same by the naive twin, floor what cannot be beaten in Go or is
	// the library's; 0: none.
	twin, floor float64
	// peer names a figure of the peer's output, up to the slash.
	peer string
	// budget is what ours is held against: at most that, or at least where atLeast
	// is set. A machine that is slower is slower for all: ours may be as many times
	// the peer's of the same run as share says, or the floor's where the row has no
	// peer. 0: no such share, or no such budget.
	budget, share float64
	atLeast       bool
}

// within reports whether ours is within v.
func (f *figure) within(v float64) bool {
	if f.atLeast {
		return f.ours >= v
	}
	return v > 0 && f.ours <= v
}

// verdict says what ours is held against, and whether it is met. theirs are the
// peer's figures, of which the best counts.
func (f *figure) verdict(theirs []float64) (budget, met string) {
	sign, of, best := "≤", "floor", f.floor
	if f.atLeast {
		sign = "≥"
	}
	if f.peer != "" {
		of, best = "peer", 0
	}
	if len(theirs) > 0 {
		best = slices.Min(theirs)
		if f.atLeast {
			best = slices.Max(theirs)
		}
	}
	var asked []string
	if f.budget > 0 {
		asked = append(asked, fmt.Sprint(sign, " ", f.budget))
	}
	if f.share > 0 {
		asked = append(asked, fmt.Sprintf("%s %.2f × %s", sign, f.share, of))
	}
	met = "no"
	switch {
	case f.budget == 0 && f.share == 0:
		return "–", "–"
	case f.budget > 0 && f.within(f.budget):
		met = "yes"
	case f.share > 0 && best > 0 && f.within(f.share*best):
		met = "yes, by ratio"
	case f.share > 0 && best == 0:
		met = "unknown without the " + of
	}
	return strings.Join(asked, " or "), met
}

func main() {
	dynamo := flag.String("dynamo", "", "path of the built bench/peers/dynamo; empty: no peer")
	rows := flag.String("rows", "1,2,3,4,5", "which rows to measure")
	figures := flag.String("figures", "", "file of what extload, proxyload and memory have found")
	benchmarks := flag.String("benchmarks", "", "output of go test -bench for rows 7 and 9")
	results := flag.String("results", "", "file that keeps the table, between its two marks; empty: it is printed alone")
	flag.Parse()
	found, err := readFound(*figures, *benchmarks)
	if err == nil {
		err = run(*dynamo, *rows, *results, found)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "table:", err)
		os.Exit(1)
	}
}

func run(dynamo, rows, results string, found map[string]map[string][]float64) error {
	var figures []figure
	if strings.Contains(rows, "1") {
		figures = hashing()
	}
	if strings.Contains(rows, "5") {
		figures = append(figures, picking()...)
	}
	if strings.ContainsAny(rows, "234") {
		figures = append(figures, conversation()...)
		figures = append(figures, index()...)
	}
	peer := map[string]theirs{}
	if dynamo != "" {
		var err error
		if peer, err = peerFigures(dynamo); err != nil {
			return err
		}
	}
	others, peers := outerFigures(found)
	for work, p := range peers {
		peer[work] = p
	}
	load, _ := os.ReadFile("/proc/loadavg")
	var out bytes.Buffer
	fmt.Fprintf(&out, "%s, %s, %d CPUs, %s; load at the end %.14s\n\n", time.Now().UTC().Format(time.DateOnly), cpu(), runtime.NumCPU(), runtime.Version(), load)
	write(&out, append(figures, others...), peer)
	fmt.Print(out.String())
	if results == "" {
		return nil
	}
	return keep(results, out.String())
}

// The table in a file of results stands between these.
const begin, end = "<!-- make bench -->\n", "<!-- end of make bench -->\n"

// keep puts the table into a file, in place of the last one.
func keep(path, table string) error {
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	before, rest, ok := strings.Cut(string(text), begin)
	_, after, closed := strings.Cut(rest, end)
	if !ok || !closed {
		return fmt.Errorf("%s: no place for the table: want the lines %q and %q", path, begin, end)
	}
	return os.WriteFile(path, []byte(before+begin+"\n"+table+"\n"+end+after), 0o644) //nolint:gosec // a file of this repository
}

// write writes the table as Markdown.
func write(out io.Writer, figures []figure, peer map[string]theirs) {
	tw := tabwriter.NewWriter(out, 0, 0, 1, ' ', 0)
	fmt.Fprintln(tw, "| row\t| work\t| unit\t| ours\t| naive twin\t| floor\t| peers\t| budget\t| met\t|")
	fmt.Fprintln(tw, "| ---\t| ---\t| ---\t| ---\t| ---\t| ---\t| ---\t| ---\t| ---\t|")
	for _, f := range figures {
		p, ok := peer[f.peer]
		if !ok {
			p = peer[f.work]
		}
		budget, met := f.verdict(p.values)
		fmt.Fprintf(tw, "| %s\t| %s\t| %s\t| %s\t| %s\t| %s\t| %s\t| %s\t| %s\t|\n",
			f.row, f.work, f.unit, strings.TrimSpace(number(f.ours)+" "+f.spread), number(f.twin), number(f.floor), cmp.Or(p.text, "–"), budget, met)
	}
	tw.Flush()
}

func number(v float64) string {
	switch {
	case v == 0:
		return "–"
	case v < 100:
		return fmt.Sprintf("%.3g", v)
	}
	return fmt.Sprintf("%.0f", v)
}

// tenth runs f that often and returns the time that a tenth of the runs do not
// exceed.
func tenth(passes int, f func()) time.Duration {
	times := make([]time.Duration, passes)
	for i := range times {
		start := time.Now()
		f()
		times[i] = time.Since(start)
	}
	slices.Sort(times)
	return times[passes/10]
}

// micros is the tenth of passes of n times f, in microseconds for one.
func micros(passes, n int, f func(i int)) float64 {
	d := tenth(passes, func() {
		for i := range n {
			f(i)
		}
	})
	return float64(d.Nanoseconds()) / float64(n) / 1e3
}

// theirs are a peer's figures of one work, one for each of its trees.
type theirs struct {
	text   string
	values []float64
}

// peerFigures runs the peer's bench and returns its figures by name: times in
// microseconds, with the tree's name where there are two.
func peerFigures(binary string) (map[string]theirs, error) {
	path, err := conversationFile()
	if err != nil {
		return nil, err
	}
	defer os.Remove(path)
	cmd := exec.Command(binary, path)
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("%s: %w", binary, err)
	}
	figures := map[string]theirs{}
	lines := bufio.NewScanner(bytes.NewReader(out))
	for lines.Scan() {
		var name string
		var value float64
		if _, err := fmt.Sscan(lines.Text(), &name, &value); err != nil {
			return nil, fmt.Errorf("%s: line %q: %w", binary, lines.Text(), err)
		}
		row, tree, _ := strings.Cut(name, "/")
		if strings.HasPrefix(row, "2") {
			value /= 1e3
		}
		f := figures[row]
		if f.text != "" {
			f.text += ", "
		}
		f.text += strings.TrimSpace(number(value) + " " + tree)
		f.values = append(f.values, value)
		figures[row] = f
	}
	return figures, nil
}

// conversationFile writes the conversation in the form that the peer reads.
func conversationFile() (string, error) {
	var words []uint64
	for _, r := range conversationRequests() {
		words = append(words, uint64(r.Endpoint), uint64(stored(&r)), uint64(len(r.Hashes)))
		for i, h := range r.Hashes {
			words = append(words, tokensHash(&r, i), h)
		}
	}
	f, err := os.CreateTemp("", "conversation-*")
	if err != nil {
		return "", err
	}
	defer f.Close()
	return f.Name(), binary.Write(f, binary.LittleEndian, words)
}

// cpu is the processor's name.
func cpu() string {
	info, _ := os.ReadFile("/proc/cpuinfo")
	for line := range strings.SplitSeq(string(info), "\n") {
		if key, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(key) == "model name" {
			return strings.TrimSpace(value)
		}
	}
	return runtime.GOARCH
}
