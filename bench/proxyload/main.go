// Command proxyload measures what a proxy in front of engines costs: requests a
// second over 64 connections and the time of one over a single connection, straight
// to an engine, through the floor, through the picker's proxy and, where its program
// is named, through sglang-router and smg, in turns. It prints a Markdown table.
//
// The floor is the standard library's reverse proxy, which reads each body whole and
// sends it to one engine after another: no proxy on net/http can take much less.
//
// The engines answer at once. Bodies are growing conversations of real text of about
// 16 KB; the picker tokenizes each, as it would anywhere.
//
//	proxyload --epp bin/epp --tokenizer DIR --corpus DIR --sglang-router PATH
package main

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"epp.internal/epp/bench/rig"
)

const (
	bodyBytes     = 16_000
	conversations = 96
	engines       = 4
	warmUp        = 500 * time.Millisecond
	chatPath      = "/v1/chat/completions"
)

type options struct {
	epp, sglang, smg, tokenizer, corpus, log, figures string
	rounds                                            int
	length                                            time.Duration
}

func main() {
	var o options
	worker := flag.String("worker", "", "serve as an engine on this address, and nothing else")
	floor := flag.String("floor", "", "serve as the floor on this address, in front of the engines at the URLs that follow, and nothing else")
	flag.StringVar(&o.epp, "epp", "bin/epp", "the picker's binary")
	flag.StringVar(&o.sglang, "sglang-router", "", "the program of sglang-router; empty: it is not measured")
	flag.StringVar(&o.smg, "smg", "", "the program of smg, sglang-router's heir; empty: it is not measured")
	flag.StringVar(&o.figures, "figures", "", "file that the budgets' figures are added to, for bench/table")
	flag.StringVar(&o.tokenizer, "tokenizer", "", "folder of tokenizer.json and tokenizer_config.json")
	flag.StringVar(&o.corpus, "corpus", "", "folder of Go files that conversations are cut from")
	flag.StringVar(&o.log, "log", os.DevNull, "file for the servers' logs")
	flag.IntVar(&o.rounds, "rounds", 3, "measurements of each cell, of which the median is shown")
	flag.DurationVar(&o.length, "for", 2*time.Second, "length of each measurement")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	var err error
	switch {
	case *worker != "":
		err = serveEngine(*worker)
	case *floor != "":
		err = serveFloor(*floor, flag.Args())
	default:
		err = run(ctx, o, os.Stdout)
	}
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "proxyload:", err)
		os.Exit(1)
	}
}

// side is one way to the engines.
type side struct {
	name   string
	server *rig.Server
	found  []figures
}

func run(ctx context.Context, o options, out io.Writer) error {
	text, err := rig.ReadCorpus(o.corpus)
	if err != nil {
		return err
	}
	all, err := rig.Conversations(text, 1, conversations, bodyBytes)
	if err != nil {
		return err
	}
	bodies := slices.Concat(all...)
	for i := range bodies {
		// A stream takes sglang-router 40 ms more, as if it waited for a delayed
		// acknowledgement: that is not what is compared.
		bodies[i] = bytes.Replace(bodies[i], []byte(`"stream":true`), []byte(`"stream":false`), 1)
	}
	log, err := os.Create(o.log)
	if err != nil {
		return err
	}
	defer log.Close()
	var started []*rig.Server
	defer func() {
		for _, s := range slices.Backward(started) {
			s.Stop()
		}
	}()
	start := func(address, path string, args ...string) (*rig.Server, error) {
		s, err := rig.Start(log, address, path, args...)
		if err != nil {
			return nil, err
		}
		started = append(started, s)
		return s, awaitReady(ctx, "http://"+address+chatPath, bodies[0])
	}
	sides, err := startSides(o, start)
	if err != nil {
		return err
	}
	found, err := rig.CreateFigures(o.figures)
	if err != nil {
		return err
	}
	defer found.Close()
	fmt.Fprintln(out, "| way | connections | requests/s | p50 / p99 ms | CPU ms per request | RSS |")
	fmt.Fprintln(out, "|---|---|---|---|---|---|")
	for _, connections := range []int{1, 64} {
		for i := range sides {
			sides[i].found = nil
		}
		for range o.rounds {
			for i := range sides { // in turns, so that all see the same machine
				f, err := measure(ctx, sides[i].server, bodies, connections, o.length)
				if err != nil {
					return fmt.Errorf("%s: %w", sides[i].name, err)
				}
				sides[i].found = append(sides[i].found, f)
			}
		}
		for _, s := range sides {
			row(out, s, connections)
		}
		put(found, sides, connections)
	}
	return nil
}

// startSides starts the engines and what stands in front of them.
func startSides(o options, start func(address, path string, args ...string) (*rig.Server, error)) ([]side, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	var direct *rig.Server
	var urls []string
	config := ""
	for i := range engines {
		address, err := rig.FreeAddress()
		if err != nil {
			return nil, err
		}
		if direct, err = start(address, self, "--worker", address); err != nil {
			return nil, fmt.Errorf("engine: %w", err)
		}
		urls = append(urls, "http://"+address)
		config += fmt.Sprintf("  - {name: engine-%d, address: %s}\n", i, address)
	}
	sides := []side{{name: "direct", server: direct}}
	address, err := rig.FreeAddress()
	if err != nil {
		return nil, err
	}
	floor, err := start(address, self, append([]string{"--floor", address}, urls...)...)
	if err != nil {
		return nil, fmt.Errorf("floor: %w", err)
	}
	sides = append(sides, side{name: "floor", server: floor})
	if address, err = rig.FreeAddress(); err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "proxyload-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir) // it has read it by then
	config = fmt.Sprintf("listen: {proxy: %q, metrics: \"\", health: \"\", extProc: \"\"}\ntokenizer: {path: %q}\npool:\n  endpoints:\n%s", address, o.tokenizer, config)
	file := filepath.Join(dir, "epp.yaml")
	if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
		return nil, err
	}
	ours, err := start(address, o.epp, "serve", "--config", file)
	if err != nil {
		return nil, fmt.Errorf("epp: %w", err)
	}
	sides = append(sides, side{name: "epp", server: ours})
	for _, p := range []struct{ name, program string }{{"sglang-router", o.sglang}, {"smg", o.smg}} {
		if p.program == "" {
			continue
		}
		peer, err := startPeer(start, p.program, urls)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", p.name, err)
		}
		sides = append(sides, side{name: p.name, server: peer})
	}
	return sides, nil
}

// startPeer starts sglang-router, or smg, which takes the same flags.
func startPeer(start func(address, path string, args ...string) (*rig.Server, error), program string, urls []string) (*rig.Server, error) {
	address, err := rig.FreeAddress()
	if err != nil {
		return nil, err
	}
	_, port, err := net.SplitHostPort(address)
	if err != nil {
		return nil, err
	}
	prometheus, err := rig.FreeAddress() // else a port that may be taken
	if err != nil {
		return nil, err
	}
	_, prometheusPort, _ := net.SplitHostPort(prometheus)
	args := append([]string{"launch", "--host", "127.0.0.1", "--port", port, "--prometheus-port", prometheusPort, "--prometheus-host", "127.0.0.1",
		"--policy", "cache_aware", "--log-level", "info", "--worker-urls"}, urls...)
	return start(address, program, args...)
}

// awaitReady asks until the answer is 200, for a minute at most.
func awaitReady(ctx context.Context, url string, body []byte) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	for {
		err := ask(ctx, client, url, body)
		if err == nil {
			return nil
		}
		select {
		case <-time.After(100 * time.Millisecond):
		case <-ctx.Done():
			return fmt.Errorf("not ready: %w", err)
		}
	}
}

func ask(ctx context.Context, client *http.Client, url string, body []byte) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(body))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/json")
	res, err := client.Do(req)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err == nil && res.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %.200s", res.Status, text)
	}
	return err
}

// figures are what one measurement found.
type figures struct {
	perSecond, p50, p99, cpu float64 // times in ms
	rss                      int
}

func byRate(a, b figures) int { return cmp.Compare(a.perSecond, b.perSecond) }

// measure asks one server over so many connections for a while.
func measure(ctx context.Context, s *rig.Server, bodies [][]byte, connections int, length time.Duration) (figures, error) {
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: connections, MaxConnsPerHost: connections, DisableCompression: true}}
	defer client.CloseIdleConnections()
	var (
		wg       sync.WaitGroup
		mu       sync.Mutex
		times    []time.Duration
		failed   error
		counting atomic.Bool
		next     atomic.Int64
	)
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	for range connections {
		wg.Go(func() {
			var own []time.Duration
			var err error
			for ctx.Err() == nil && err == nil {
				began := time.Now()
				err = ask(context.WithoutCancel(ctx), client, "http://"+s.Address+chatPath, bodies[int(next.Add(1))%len(bodies)])
				if counting.Load() {
					own = append(own, time.Since(began))
				}
			}
			mu.Lock()
			defer mu.Unlock()
			times = append(times, own...)
			failed = cmp.Or(failed, err)
			stop()
		})
	}
	rig.Pause(ctx, warmUp)
	before, _, err := s.CPU()
	counting.Store(true)
	began := time.Now()
	rig.Pause(ctx, length)
	elapsed := time.Since(began)
	counting.Store(false)
	after, rss, err2 := s.CPU()
	stop()
	wg.Wait()
	if err := cmp.Or(failed, err, err2); err != nil {
		return figures{}, err
	}
	if len(times) == 0 {
		return figures{}, errors.New("no answer")
	}
	slices.Sort(times)
	n := float64(len(times))
	at := func(q float64) float64 {
		return float64(times[min(len(times)-1, int(q*n))].Microseconds()) / 1e3
	}
	return figures{perSecond: n / elapsed.Seconds(), p50: at(.5), p99: at(.99), cpu: float64((after - before).Microseconds()) / 1e3 / n, rss: rss}, nil
}

// put leaves the figures of all sides but the first for the table: the rate of many
// connections, and of one the median time that a side adds to the straight way's.
func put(found *rig.Figures, sides []side, connections int) {
	slices.SortFunc(sides[0].found, byTime)
	straight := sides[0].found[len(sides[0].found)/2].p50
	for _, s := range sides[1:] {
		var rate, added, cpu []float64
		for _, f := range s.found {
			rate, added, cpu = append(rate, f.perSecond), append(added, f.p50-straight), append(cpu, f.cpu)
		}
		if connections == 1 {
			found.Put("8b", s.name, added...)
			continue
		}
		found.Put("8a", s.name, rate...)
		found.Put("8a-cpu", s.name, cpu...)
	}
}

func byTime(a, b figures) int { return cmp.Compare(a.p50, b.p50) }

// row prints the medians of one cell, with the least and the most requests.
func row(out io.Writer, s side, connections int) {
	f := slices.SortedFunc(slices.Values(s.found), byRate)
	m := f[len(f)/2]
	fmt.Fprintf(out, "| %s | %d | %.0f (%.0f–%.0f) | %.2f / %.2f | %.3f | %d MiB |\n",
		s.name, connections, m.perSecond, f[0].perSecond, f[len(f)-1].perSecond, m.p50, m.p99, m.cpu, m.rss>>20)
}
