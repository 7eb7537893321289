// Command democheck reads what `epp demo --json` printed and says whether the
// demo shows what it promises: conversations stay where their prefix is cached,
// every endpoint has its share, nothing fails, and random and least-connections
// routing are slower and cache less. It exits with 1 where it does not.
//
//	epp demo --for 15s --json | go run ./test/democheck
package main

import (
	"encoding/json"
	"fmt"
	"io"
	"math"
	"os"
)

// demo is the object that the demo prints. Shares are in [0, 1].
type demo struct {
	Requests                  int
	Failed                    *int
	CachedTokenShare          float64
	RandomCachedTokenShare    float64
	LeastConnCachedTokenShare float64
	SameEndpointShare         float64
	MinEndpointShare          float64
	MaxEndpointShare          float64
	MeanTTFTMillis            struct{ EPP, Random, LeastConn float64 }
}

// promise is one thing that the demo must show.
type promise struct {
	text string
	kept bool
}

// promises are all of them, with d's figures.
func (d *demo) promises() []promise {
	say := func(kept bool, format string, args ...any) promise {
		return promise{fmt.Sprintf(format, args...), kept}
	}
	failed := math.MaxInt
	if d.Failed != nil {
		failed = *d.Failed
	}
	ttft := d.MeanTTFTMillis
	return []promise{
		say(d.Requests >= 50, "requests %d, at least 50", d.Requests),
		say(failed == 0, "failed %d, none", failed),
		say(d.SameEndpointShare >= 0.85, "turns that stayed %.3f, at least 0.85", d.SameEndpointShare),
		say(d.RandomCachedTokenShare > 0 && d.CachedTokenShare >= 1.5*d.RandomCachedTokenShare,
			"cached tokens %.3f, at least 1.5 × random's %.3f", d.CachedTokenShare, d.RandomCachedTokenShare),
		say(d.LeastConnCachedTokenShare > 0 && d.CachedTokenShare > d.LeastConnCachedTokenShare,
			"cached tokens %.3f, above least-connections' %.3f", d.CachedTokenShare, d.LeastConnCachedTokenShare),
		say(ttft.EPP > 0 && ttft.EPP < ttft.Random, "mean TTFT %.1f ms, below random's %.1f", ttft.EPP, ttft.Random),
		say(ttft.EPP > 0 && ttft.EPP < ttft.LeastConn, "mean TTFT %.1f ms, below least-connections' %.1f", ttft.EPP, ttft.LeastConn),
		say(d.MinEndpointShare >= 0.10, "smallest share of an endpoint %.3f, at least 0.10", d.MinEndpointShare),
		say(d.MaxEndpointShare <= 0.40 && d.MaxEndpointShare >= d.MinEndpointShare,
			"largest share of an endpoint %.3f, at most 0.40", d.MaxEndpointShare),
	}
}

// check reads one object from in, tells each promise to out, and returns how
// many are broken. An input that is not one JSON object is an error.
func check(in io.Reader, out io.Writer) (broken int, err error) {
	dec := json.NewDecoder(in)
	var d demo
	if err := dec.Decode(&d); err != nil {
		return 0, fmt.Errorf("demo: no JSON object: %w", err)
	}
	if dec.More() {
		return 0, fmt.Errorf("demo: more than one JSON object")
	}
	for _, p := range d.promises() {
		mark := "ok    "
		if !p.kept {
			mark = "BROKEN"
			broken++
		}
		fmt.Fprintln(out, mark, p.text)
	}
	return broken, nil
}

func main() {
	broken, err := check(os.Stdin, os.Stdout)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	if broken > 0 {
		fmt.Fprintf(os.Stderr, "demo: %d promises broken\n", broken)
		os.Exit(1)
	}
}
