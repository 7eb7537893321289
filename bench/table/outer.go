package main

import (
	"bufio"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"

	"epp.internal/epp/bench/rig"
)

// outer are the rows that other programs measure, by the name under which they leave
// their figures; peer names what a share is of, where that is not the floor.
var outer = []struct {
	name string
	figure
}{
	{"6a-buffered", figure{row: "6a", work: "ext_proc, 16 KB chat, 64 streams, BUFFERED + NONE", unit: "1/s", atLeast: true, share: .7}},
	{"6a-buffered-cpu", figure{row: "6a", work: "the same, CPU each", unit: "ms", budget: .12}},
	{"6a-duplex", figure{row: "6a", work: "ext_proc, 16 KB chat, 64 streams, FULL_DUPLEX_STREAMED", unit: "1/s", atLeast: true, share: .7}},
	{"6a-duplex-cpu", figure{row: "6a", work: "the same, CPU each", unit: "ms", budget: .12}},
	{"6b-buffered", figure{row: "6b", work: "ext_proc, 220 KB chat, 16 streams, BUFFERED + NONE", unit: "1/s", atLeast: true, share: .6}},
	{"6b-duplex", figure{row: "6b", work: "ext_proc, 220 KB chat, 16 streams, FULL_DUPLEX_STREAMED", unit: "1/s", atLeast: true, share: .6}},
	{"6c-buffered-p50", figure{row: "6c", work: "ext_proc, one stream, BUFFERED + NONE, p50", unit: "ms", budget: .30, share: .30 / .21}},
	{"6c-buffered-p99", figure{row: "6c", work: "the same, p99", unit: "ms", budget: 1, share: 1 / .7}},
	{"6c-duplex-p50", figure{row: "6c", work: "ext_proc, one stream, FULL_DUPLEX_STREAMED, p50", unit: "ms", budget: .30, share: .30 / .21}},
	{"6c-duplex-p99", figure{row: "6c", work: "the same, p99", unit: "ms", budget: 1, share: 1 / .7}},
	{"BenchmarkAppend/docs/new best-µs/op", figure{row: "7a", work: "tokenize 4,096 tokens, empty word cache: docs", unit: "µs", budget: 600}},
	{"BenchmarkAppend/code/new best-µs/op", figure{row: "7a", work: "the same: code", unit: "µs", budget: 600}},
	{"BenchmarkAppend/chat/new best-µs/op", figure{row: "7a", work: "the same: chat", unit: "µs", budget: 600}},
	{"BenchmarkAppend/unicode/new best-µs/op", figure{row: "7a", work: "the same: unicode", unit: "µs", budget: 900}},
	{"BenchmarkAppend/docs/flushed best-µs/op", figure{row: "7a", work: "tokenize 4,096 tokens, CPU caches flushed: docs", unit: "µs", budget: 1200}},
	{"BenchmarkAppend/code/flushed best-µs/op", figure{row: "7a", work: "the same: code", unit: "µs", budget: 1200}},
	{"BenchmarkAppend/chat/flushed best-µs/op", figure{row: "7a", work: "the same: chat", unit: "µs", budget: 1200}},
	{"BenchmarkAppend/unicode/flushed best-µs/op", figure{row: "7a", work: "the same: unicode", unit: "µs", budget: 1500}},
	{"BenchmarkTurn/text best-µs/op", figure{row: "7b", work: "tokenize 4,096 tokens, 95 % known: text; twin: all anew", unit: "µs", budget: 100}},
	{"BenchmarkTurn/chat best-µs/op", figure{row: "7b", work: "the same, with the template", unit: "µs", budget: 100}},
	{"8a", figure{row: "8a", work: "proxy, 16 KB chat, 64 connections; floor: the library's ReverseProxy", unit: "1/s", atLeast: true, share: 1.2, peer: "sglang-router"}},
	{"8a-cpu", figure{row: "8a", work: "the same, CPU each; no budget", unit: "ms"}},
	{"8b", figure{row: "8b", work: "proxy, one connection: what it adds to the median", unit: "ms", budget: .22}},
	{"BenchmarkDecode16Blocks ns/op", figure{row: "9", work: "decode a KV event of 16 blocks", unit: "ns", budget: 1000}},
	{"BenchmarkMessages messages/s", figure{row: "9", work: "messages from a socket", unit: "1/s", atLeast: true, budget: 100_000}},
	{"11-idle", figure{row: "11", work: "resident memory idle, no tokenizer, empty ring", unit: "MiB", budget: 40}},
	{"11-tokenizer", figure{row: "11", work: "what Qwen3's tokenizer adds", unit: "MiB", budget: 70}},
	{"11-blocks", figure{row: "11", work: "what a million blocks on 4 endpoints each add", unit: "MiB", budget: 250}},
}

// twins are which row's figure is another's naive twin.
var twins = map[string]string{"BenchmarkTurn/text best-µs/op": "BenchmarkTurn/whole best-µs/op"}

// outerFigures returns the outer rows of which found has figures, and the peers of
// each by its work.
func outerFigures(found map[string]map[string][]float64) (figures []figure, peers map[string]theirs) {
	peers = map[string]theirs{}
	for _, o := range outer {
		sides := found[o.name]
		ours := sides["epp"]
		if len(ours) == 0 {
			continue
		}
		f := o.figure
		f.ours, f.spread = median(ours), spread(ours)
		f.floor, f.twin = median(sides["floor"]), median(found[twins[o.name]]["epp"])
		for _, side := range []string{"sglang-router", "smg"} {
			values := sides[side]
			if len(values) == 0 {
				continue
			}
			p := peers[f.work]
			if p.text != "" {
				p.text += ", "
			}
			p.text += strings.TrimSpace(number(median(values))+" "+spread(values)) + " " + side
			if f.peer == side {
				p.values = append(p.values, median(values))
			}
			peers[f.work] = p
		}
		figures = append(figures, f)
	}
	return figures, peers
}

// median of sorted values, 0 of none.
func median(values []float64) float64 {
	if len(values) == 0 {
		return 0
	}
	return values[len(values)/2]
}

// spread is the least and the most of sorted values, empty for one.
func spread(values []float64) string {
	if len(values) < 2 {
		return ""
	}
	return fmt.Sprintf("(%s–%s)", number(values[0]), number(values[len(values)-1]))
}

// readFound reads what other programs have found: their figures, and the output of
// go test -bench.
func readFound(figures, benchmarks string) (map[string]map[string][]float64, error) {
	found := map[string]map[string][]float64{}
	if figures != "" {
		var err error
		if found, err = rig.ReadFigures(figures); err != nil {
			return nil, err
		}
	}
	if benchmarks == "" {
		return found, nil
	}
	file, err := os.Open(benchmarks)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	lines := bufio.NewScanner(file)
	for lines.Scan() {
		words := strings.Fields(lines.Text())
		if len(words) < 4 || !strings.HasPrefix(words[0], "Benchmark") {
			continue
		}
		name := words[0]
		if i := strings.LastIndexByte(name, '-'); i > 0 { // GOMAXPROCS
			name = name[:i]
		}
		for pair := range slices.Chunk(words[2:], 2) {
			v, err := strconv.ParseFloat(pair[0], 64)
			if err != nil || len(pair) < 2 {
				return nil, fmt.Errorf("%s: line %q: want a value and a unit", benchmarks, lines.Text())
			}
			key := name + " " + pair[1]
			if found[key] == nil {
				found[key] = map[string][]float64{}
			}
			found[key]["epp"] = append(found[key]["epp"], v)
			slices.Sort(found[key]["epp"])
		}
	}
	return found, lines.Err()
}
