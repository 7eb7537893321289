package main

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"io"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"epp.internal/epp/bench/rig"
	"epp.internal/epp/epptest"
)

// connections to the server: Envoy opens one for each of its threads.
const connections = 2

// warmUp is how long streams run before they count.
const warmUp = 500 * time.Millisecond

// load is what a server is asked.
type load struct {
	bodies  [][][]byte // of each conversation, each turn
	streams int
	duplex  bool
	length  time.Duration
}

// figures are what one measurement found.
type figures struct {
	perSecond float64
	p50, p99  float64 // ms to the decision
	cpu       float64 // ms of the server's for each decision
	rss       int     // bytes
}

func byRate(a, b figures) int { return cmp.Compare(a.perSecond, b.perSecond) }

// median is the one with the median rate.
func median(f []figures) figures {
	return slices.SortedFunc(slices.Values(f), byRate)[len(f)/2]
}

// fill asks the engines for all turns but the last of every conversation,
// each conversation of one engine, so that they hold its blocks and say so.
func fill(ctx context.Context, engines []*epptest.Engine, bodies [][][]byte) error {
	var wg sync.WaitGroup
	errs := make([]error, len(engines))
	for i, e := range engines {
		wg.Go(func() {
			for c := i; c < len(bodies) && errs[i] == nil; c += len(engines) {
				errs[i] = post(ctx, e.URL(), bodies[c][rig.Turns-2])
			}
		})
	}
	wg.Wait()
	return cmp.Or(errs...)
}

func post(ctx context.Context, url string, body []byte) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url+"/v1/chat/completions", bytes.NewReader(body))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("engine: %s: %s", resp.Status, text)
	}
	return err
}

// measure opens streams to a server for a while. A stream is one request;
// streams many are open at any time, each a conversation that goes on.
func measure(ctx context.Context, s *rig.Server, l load) (figures, error) {
	var clients []extprocv3.ExternalProcessorClient
	for range connections {
		c, err := grpc.NewClient(s.Address, grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithDefaultCallOptions(grpc.WaitForReady(true), grpc.MaxCallRecvMsgSize(64<<20)))
		if err != nil {
			return figures{}, err
		}
		defer c.Close()
		clients = append(clients, extprocv3.NewExternalProcessorClient(c))
	}
	var (
		wg        sync.WaitGroup
		mu        sync.Mutex
		latencies []time.Duration
		failed    error
		counting  atomic.Bool
		next      atomic.Int64
	)
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	for i := range l.streams {
		wg.Go(func() {
			var own []time.Duration
			var err error
			for ctx.Err() == nil && err == nil {
				conversation := l.bodies[int(next.Add(1)-1)%len(l.bodies)]
				for turn := 0; turn < len(conversation) && ctx.Err() == nil && err == nil; turn++ {
					var d time.Duration
					d, _, err = decide(context.WithoutCancel(ctx), clients[i%connections], conversation[turn], fmt.Sprintf("%d-%d", i, turn), l.duplex)
					if err == nil && counting.Load() {
						own = append(own, d)
					}
				}
			}
			mu.Lock()
			defer mu.Unlock()
			latencies = append(latencies, own...)
			failed = cmp.Or(failed, err)
			stop()
		})
	}
	rig.Pause(ctx, warmUp)
	cpuBefore, _, err := s.CPU()
	counting.Store(true)
	began := time.Now()
	rig.Pause(ctx, l.length)
	elapsed := time.Since(began)
	counting.Store(false)
	cpuAfter, rss, err2 := s.CPU()
	stop()
	wg.Wait()
	if err := cmp.Or(failed, err, err2); err != nil {
		return figures{}, err
	}
	slices.Sort(latencies)
	at := func(q float64) float64 {
		return float64(latencies[min(len(latencies)-1, int(q*float64(len(latencies))))].Microseconds()) / 1e3
	}
	n := float64(len(latencies))
	if n == 0 {
		return figures{}, fmt.Errorf("no decision in %v", l.length)
	}
	return figures{
		perSecond: n / elapsed.Seconds(), p50: at(.5), p99: at(.99),
		cpu: float64((cpuAfter - cpuBefore).Microseconds()) / 1e3 / n, rss: rss,
	}, nil
}
