//go:build vllm

package vllm

import (
	"context"
	"net/http"
	"slices"
	"sync"
	"testing"
	"time"
)

// TestCaseB6BlockSizes: blocks of 32 tokens on A and of 64 on B. A prompt of 256
// tokens and one more is found on both, one of 200 is credited with no more than
// it has. Then A comes back with blocks of 128, and is found again at that size.
func TestCaseB6BlockSizes(t *testing.T) {
	pool.shaped(t, pool.a, shapeA)
	p := startPicker(t, pool.a.auto(), pool.b.auto()).settled("A", "B")
	onBoth := func(seed uint64, n int) (prompt map[string]any) {
		prompt = completion("tiny", tokens(seed, n))
		p.direct(pool.a, prompt)
		p.direct(pool.b, prompt)
		p.caughtUp(pool.a, pool.b)
		return prompt
	}
	check := func(prompt map[string]any, want map[string]int) {
		t.Helper()
		seen := map[string]bool{}
		for range 40 {
			a, picked, end := p.ask(prompt)
			if seen[picked.Pod] = true; end.PredictedTokens != want[picked.Pod] || a.cached() != want[picked.Pod] {
				t.Fatalf("on %s %d cached tokens predicted, %d reported, want %d", picked.Pod, end.PredictedTokens, a.cached(), want[picked.Pod])
			}
		}
		t.Logf("cached tokens are %v, as predicted; went to %d endpoints", want, len(seen))
	}
	check(onBoth(70, 257), map[string]int{"A": 256, "B": 256})
	check(onBoth(71, 256), map[string]int{"A": 224, "B": 192}) // the last token is always computed
	check(onBoth(72, 200), map[string]int{"A": 192, "B": 192})
	pool.a.kill()
	pool.restart(t, pool.a, bigBlocks)
	p.settled("A", "B")
	check(onBoth(73, 257), map[string]int{"A": 256, "B": 256})
	check(onBoth(74, 200), map[string]int{"A": 128, "B": 192})
}

// TestCaseA1KilledUnderLoad: A is killed under load and comes back on its
// addresses, empty, its events numbered from 0. Two pickers watch: one has A's
// replay socket, the other has none. No request fails for want of A; each picker
// has dropped what A had within a second of the first new event, and counts the
// restart; nothing is routed on ghosts; at the end nothing is in flight.
func TestCaseA1KilledUnderLoad(t *testing.T) {
	watching := []*picker{
		startPicker(t, pool.a.auto(), pool.b.auto()).settled("A", "B"),
		startPicker(t, pool.a.named(pool.a.pub, ""), pool.b.named(pool.b.pub, "")),
	}
	watching[1].untilModels("tiny")
	old := make([]map[string]any, 6)
	for i := range old {
		old[i] = completion("tiny", tokens(uint64(80+i), 700))
		for range 2 { // by both, so that the picker without replay hears of it live
			watching[0].direct(pool.a, old[i])
		}
	}
	watching[0].caughtUp(pool.a)
	watching[1].untilPage("A's blocks are known live", func(page string) bool { return value(page, "epp_endpoint_cached_blocks", "A") >= 6*5 })
	load := startLoad(t, watching, old)
	load.await(20)
	pool.a.kill()
	before := load.count()
	load.await(20) // none of these can run on A
	pool.restart(t, pool.a, fewBlocks)
	first := completion("tiny", tokens(90, 100))
	watching[0].direct(pool.a, first)
	began := time.Now()
	for i, p := range watching {
		p.untilPage("A's old blocks are gone", func(page string) bool {
			return value(page, "epp_kv_event_restarts_total") == 1 && value(page, "epp_endpoint_cached_blocks", "A") <= float64(pool.a.shape.blocks)
		})
		t.Logf("picker %d: A's old blocks are gone %v after the first new event", i, time.Since(began))
		if d := time.Since(began); d > time.Second {
			t.Errorf("picker %d: A's old blocks were gone after %v", i, d)
		}
	}
	load.await(40)
	load.stop()
	for i, p := range watching {
		p.atRest()
		p.caughtUp(pool.a)
		p.noGhosts(began)
		t.Logf("picker %d: %d requests, none failed; %d of them after the kill", i, load.count()[i], load.count()[i]-before[i])
	}
	watching[0].caughtUp(pool.b)
}

// TestEvictions: A has 48 blocks, and prompts that need many more. Some of them it
// answers several times at once, so that it keeps several copies of a block for a
// while. At rest the picker counts as many blocks as the engine's own events do,
// and what it says of each prompt is what the engine then finds.
func TestEvictions(t *testing.T) {
	pool.shaped(t, pool.a, fewBlocks)
	p := startPicker(t, pool.a.auto()).settled("A")
	shared := tokens(uint64(time.Now().UnixNano()), 96) // three blocks that all prompts begin with
	prompt := func(i int) map[string]any {
		model := []string{"tiny", "tiny", "tiny", "sql"}[i%4]
		return completion(model, append(shared[:len(shared):len(shared)], tokens(uint64(201+i), 40+23*(i%9))...))
	}
	const prompts = 32
	twice := 0
	for i := range prompts {
		body, n := prompt(i), 1
		if i%4 == 0 { // several at once say the same, each into blocks of its own
			body["max_tokens"], body["ignore_eos"], n = 70, true, 3
		}
		var at sync.WaitGroup
		for range n {
			at.Go(func() { p.direct(pool.a, body) })
		}
		at.Wait()
		twice = max(twice, duplicates(held(t, pool.a.history(t))))
	}
	p.caughtUp(pool.a)
	removed := 0
	for _, b := range pool.a.history(t) {
		for _, e := range b.events {
			if e["type"] == "BlockRemoved" {
				removed++
			}
		}
	}
	right := 0
	for i := range prompts {
		a, _, end := p.ask(prompt(prompts - 1 - i))
		if d := end.PredictedTokens - a.cached(); max(d, -d) <= pool.a.shape.blockTokens {
			right++
		} else {
			t.Errorf("prompt %d: %d cached tokens predicted, %d reported", prompts-1-i, end.PredictedTokens, a.cached())
		}
		p.caughtUp(pool.a)
	}
	if removed < 60 || twice < 2 {
		t.Errorf("%d blocks were evicted, at most %d had a second copy at one time", removed, twice)
	}
	t.Logf("%d blocks were evicted, up to %d had two copies at one time; at rest %d are counted by both; %d of %d predictions are within a block",
		removed, twice, p.blocks("A"), right, prompts)
}

// noGhosts fails where a request after a time was promised more cached tokens
// than its engine then had.
func (p *picker) noGhosts(since time.Time) {
	p.t.Helper()
	p.mu.Lock()
	defer p.mu.Unlock()
	n := 0
	for _, l := range p.lines {
		if l.Msg != "ended" || l.Time.Before(since) {
			continue
		}
		if n++; l.Pod == "A" && l.PredictedTokens > l.CachedTokens+pool.a.shape.blockTokens {
			p.t.Errorf("request %s on A: %d cached tokens predicted, %d reported", l.RequestID, l.PredictedTokens, l.CachedTokens)
		}
	}
	if n == 0 {
		p.t.Error("no request ended after the restart")
	}
}

// load sends requests through pickers until it is stopped.
type load struct {
	t      *testing.T
	cancel context.CancelFunc
	done   sync.WaitGroup
	ended  chan struct{}

	mu   sync.Mutex // guards the following field
	sent []int
}

// startLoad sends old prompts and new ones through each picker, two at a time.
func startLoad(t *testing.T, pickers []*picker, old []map[string]any) *load {
	ctx, cancel := context.WithCancel(t.Context())
	l := &load{t: t, cancel: cancel, ended: make(chan struct{}, 1024), sent: make([]int, len(pickers))}
	for i, p := range pickers {
		for worker := range 2 {
			l.done.Go(func() {
				for n := uint64(0); ctx.Err() == nil; n++ {
					body := old[n%uint64(len(old))]
					if n%3 == 2 {
						body = completion("tiny", tokens(100_000+10_000*uint64(2*i+worker)+n, 150))
					}
					a := post(p.ctx, p.client, p.url+"/v1/completions", body)
					if a.err != nil || a.status != http.StatusOK {
						t.Errorf("request %d through picker %d: %d %s %v", n, i, a.status, a.body, a.err)
						return
					}
					l.mu.Lock()
					l.sent[i]++
					l.mu.Unlock()
					select {
					case l.ended <- struct{}{}:
					default:
					}
				}
			})
		}
	}
	t.Cleanup(l.stop)
	return l
}

// await waits for the end of n further requests.
func (l *load) await(n int) {
	l.t.Helper()
	for len(l.ended) > 0 {
		<-l.ended
	}
	for range n {
		select {
		case <-l.ended:
		case <-time.After(patience):
			l.t.Fatal("the load stands still")
		}
	}
}

// count is how many requests have ended well through each picker.
func (l *load) count() []int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.sent)
}

func (l *load) stop() {
	l.cancel()
	l.done.Wait()
}
