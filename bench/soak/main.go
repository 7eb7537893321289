// Command soak drives requests through a picker in this process, as fast as it
// takes them, and prints every million what that has cost: time, resident memory,
// what is in flight. It fails where memory has grown after the first million, or
// where a booking is left at the end.
//
//	go run ./bench/soak                       # ten million
//	go run ./bench/soak -requests 1000000
//
// Prompts come as token IDs, so that all time is the picker's: reading, hashing,
// match, pick, booking, record, the answer's usage, the end. Meanwhile engines'
// readings come five times a second, and a writer stores and removes blocks. One
// request in 64 is refused by its endpoint and tried anew, one in 61 loses its
// client, one in 67 is seen as Envoy shows it by default.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"epp.internal/epp"
	"epp.internal/epp/bench/workload"
	"epp.internal/epp/block"
	"epp.internal/epp/decision"
	"epp.internal/epp/fleet"
	"epp.internal/epp/kvindex"
	"epp.internal/epp/picker"
	"epp.internal/epp/route"
)

const (
	key       = block.Key(0xFEEDFACECAFE)
	endpoints = 8
	prompts   = 256
	// promptTokens are 4 blocks: ten million requests shall take minutes.
	promptTokens = 64
	// growth is how much more memory may be resident at the end than after the
	// first million: what a garbage collector leaves more at one time than another.
	growth = 16 << 20
)

func main() {
	requests := flag.Int("requests", 10_000_000, "how many")
	every := flag.Int("every", 1_000_000, "how many between two lines")
	flag.Parse()
	if err := run(*requests, *every); err != nil {
		fmt.Fprintln(os.Stderr, "soak:", err)
		os.Exit(1)
	}
}

// pool is a picker with its fleet.
type pool struct {
	picker  *picker.Picker
	fleet   *fleet.Table
	members []*fleet.Member
	bodies  [][]byte
}

func newPool() (*pool, error) {
	policy, err := route.New(decision.Defaults())
	if err != nil {
		return nil, err
	}
	index := kvindex.New(kvindex.Options{Key: key})
	p := &pool{fleet: fleet.New(fleet.Options{Index: index})}
	p.picker = picker.New(picker.Options{Fleet: p.fleet, Index: index, Policy: policy, Key: key})
	for i := range endpoints {
		m := p.fleet.Join(epp.Endpoint{Name: fmt.Sprint("e", i), Address: fmt.Sprintf("10.0.0.%d:8000", i)})
		m.Models([]epp.Model{{Name: "m"}})
		p.members = append(p.members, m)
	}
	for n := range prompts {
		tokens := workload.Prompt(n)[:promptTokens]
		p.bodies = append(p.bodies, []byte(`{"model":"m","prompt":[`+list(tokens)+`]}`))
		p.members[n%endpoints].Apply(time.Now(), workload.Events(n))
	}
	return p, nil
}

func list(tokens []uint32) string {
	words := make([]string, len(tokens))
	for i, t := range tokens {
		words[i] = strconv.Itoa(int(t))
	}
	return strings.Join(words, ",")
}

func run(requests, every int) error {
	p, err := newPool()
	if err != nil {
		return err
	}
	ctx, stop := context.WithCancel(context.Background())
	var beside sync.WaitGroup
	beside.Go(func() { p.read(ctx) })
	beside.Go(func() { p.churn(ctx) })
	fmt.Println("| requests | seconds | requests/s | RSS, MiB | in flight | ring, MiB |")
	fmt.Println("|---|---|---|---|---|---|")
	began, first, last := time.Now(), 0, 0
	for done := 0; done < requests && err == nil; done += every {
		from := time.Now()
		if err = p.drive(ctx, min(every, requests-done)); err != nil {
			break
		}
		if last, err = resident(); first == 0 {
			first = last
		}
		now := time.Now()
		fmt.Printf("| %d | %.0f | %.0f | %.1f | %d | %.1f |\n", done+every, now.Sub(began).Seconds(),
			float64(every)/now.Sub(from).Seconds(), mib(last), p.fleet.Ledger().Requests, mib(p.picker.Ring().Bytes()))
	}
	stop()
	beside.Wait()
	for _, m := range p.members { // ends what was handed over
		m.Load(m.Begin(time.Now()), time.Now().Add(time.Second), epp.Load{})
	}
	switch l := p.fleet.Ledger(); {
	case err != nil:
		return err
	case l.Requests != 0 || l.Tokens != 0 || l.Bound != 0:
		return fmt.Errorf("ledger: %d requests and %d tokens are left, %d ended by the bound: must be 0", l.Requests, l.Tokens, l.Bound)
	case last > first+growth:
		return fmt.Errorf("memory: %.1f MiB resident after the first %d requests, %.1f at the end", mib(first), every, mib(last))
	}
	fmt.Println("\nledger 0")
	return nil
}

// drive sends so many requests, by four goroutines for each processor.
func (p *pool) drive(ctx context.Context, n int) error {
	var wg sync.WaitGroup
	var next atomic.Int64
	failed := make(chan error, 4*runtime.GOMAXPROCS(0))
	for range cap(failed) {
		wg.Go(func() {
			for i := int(next.Add(1)); i <= n; i = int(next.Add(1)) {
				if err := p.request(ctx, i); err != nil {
					failed <- err
					return
				}
			}
		})
	}
	wg.Wait()
	close(failed)
	return <-failed
}

// answer is an engine's, with its usage.
var answer = []byte(`{"id":"1","object":"text_completion","choices":[{"index":0,"text":" ok"}],` +
	`"usage":{"prompt_tokens":64,"completion_tokens":1,"total_tokens":65,"prompt_tokens_details":{"cached_tokens":48}}}`)

func (p *pool) request(ctx context.Context, i int) error {
	in := picker.Incoming{ID: picker.NewID(), Method: "POST", Path: "/v1/completions", Body: p.bodies[i%prompts]}
	if i%67 == 0 {
		in.Sight = picker.SeesEnd
	}
	pk, err := p.picker.Pick(ctx, in)
	if err != nil {
		return err
	}
	if i%64 == 0 && !pk.Next(picker.Refused) {
		return nil // it has ended
	}
	if i%61 == 0 {
		pk.End(picker.ClientGone)
		return nil
	}
	pk.ResponseHeader(200, "application/json", "")
	pk.ResponseBody(answer)
	pk.End(picker.Served)
	return nil
}

// read writes readings of all endpoints, five times a second.
func (p *pool) read(ctx context.Context) {
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-tick.C:
			for i, m := range p.members {
				m.Load(m.Begin(now), now, epp.Load{Running: epp.Known(float64(i)), Waiting: epp.Known(0), BlockTokens: workload.BlockTokens})
			}
		}
	}
}

// churn stores and removes other chains than those that are asked for, a hundred
// times a second.
func (p *pool) churn(ctx context.Context) {
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for n := 0; ; n++ {
		select {
		case <-ctx.Done():
			return
		case now := <-tick.C:
			stores, m := workload.Events(prompts+n%1000), p.members[n%endpoints]
			m.Apply(now, stores)
			m.Apply(now, workload.Removals(stores))
		}
	}
}

// resident is the memory of this process that is in RAM, in bytes. Source:
// proc_pid_statm(5), field 2.
func resident() (int, error) {
	data, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		return 0, err
	}
	var size, pages int
	if _, err := fmt.Sscan(string(data), &size, &pages); err != nil {
		return 0, fmt.Errorf("statm: %q: %w", data, err)
	}
	return pages * os.Getpagesize(), nil
}

func mib(bytes int) float64 { return float64(bytes) / (1 << 20) }
