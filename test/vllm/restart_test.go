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

// TestKilledAndBack: A is killed under load and comes back with larger blocks, and
// few of them. It is one story, since an engine takes a minute to start.
func TestKilledAndBack(t *testing.T) {
	pool.shaped(t, pool.a, shapeA)
	t.Run("CaseB6BlockSizes", caseB6BlockSizes)
	t.Run("CaseA1KilledUnderLoad", caseA1KilledUnderLoad)
	t.Run("CaseB6OtherBlockSize", caseB6OtherBlockSize)
}

// onBoth has both engines compute a prompt of n tokens.
func (p *picker) onBoth(seed uint64, n int) (prompt map[string]any) {
	p.t.Helper()
	prompt = completion("tiny", tokens(seed, n))
	p.direct(pool.a, prompt)
	p.direct(pool.b, prompt)
	p.caughtUp(pool.a, pool.b)
	return prompt
}

// credits fails unless each engine has as many cached tokens of a prompt as is
// wanted of it, and the picker says so before.
func (p *picker) credits(prompt map[string]any, want map[string]int) {
	p.t.Helper()
	seen := map[string]bool{}
	for range 40 {
		a, picked, end := p.ask(prompt)
		if seen[picked.Pod] = true; end.PredictedTokens != want[picked.Pod] || a.cached() != want[picked.Pod] {
			p.t.Fatalf("on %s %d cached tokens predicted, %d reported, want %d", picked.Pod, end.PredictedTokens, a.cached(), want[picked.Pod])
		}
	}
	p.t.Logf("cached tokens are %v, as predicted; went to %d endpoints", want, len(seen))
}

// caseB6BlockSizes: blocks of 32 tokens on A and of 64 on B. A prompt of 256
// tokens and one more is found on both, one of 200 is credited with no more than
// it has.
func caseB6BlockSizes(t *testing.T) {
	p := startPicker(t, pool.a.auto(), pool.b.auto()).settled("A", "B")
	p.credits(p.onBoth(70, 257), map[string]int{"A": 256, "B": 256})
	p.credits(p.onBoth(71, 256), map[string]int{"A": 224, "B": 192}) // the last token is always computed
	p.credits(p.onBoth(72, 200), map[string]int{"A": 192, "B": 192})
}

// caseB6OtherBlockSize: A has blocks of 128 tokens now, and is found again at that
// size.
func caseB6OtherBlockSize(t *testing.T) {
	p := startPicker(t, pool.a.auto(), pool.b.auto()).settled("A", "B")
	p.credits(p.onBoth(73, 257), map[string]int{"A": 256, "B": 256})
	p.credits(p.onBoth(74, 200), map[string]int{"A": 128, "B": 192})
}

// caseA1KilledUnderLoad: A is killed under load and comes back on its addresses,
// empty, its events numbered from 0. Three pickers watch: one has A's replay
// socket, one has none, one hears of blocks by agents alone. No request fails for
// want of A; each picker has dropped what A had within a second of the first new
// event, and counts the restart where it can see that it is one; nothing is routed on
// ghosts; at the end nothing is in flight.
func caseA1KilledUnderLoad(t *testing.T) {
	watching := []*picker{
		startPicker(t, pool.a.auto(), pool.b.auto()).settled("A", "B"),
		startPicker(t, pool.a.named(pool.a.pub, ""), pool.b.named(pool.b.pub, "")),
		startPickerWith(t, settings{reports: "127.0.0.1:0"}, pool.a.deaf(t), pool.b.deaf(t)),
	}
	for _, e := range []*server{pool.a, pool.b} {
		startAgent(t, e, []string{watching[2].reports})
	}
	watching[2].settled("A", "B")
	watching[1].untilModels("tiny")
	old := make([]map[string]any, 6)
	for i := range old {
		old[i] = completion("tiny", tokens(uint64(80+i), 700))
		watching[0].direct(pool.a, old[i])
	}
	watching[0].caughtUp(pool.a)
	watching[2].caughtUp(pool.a)
	for i, p := range watching {
		p.untilPage("A has more blocks than it will ever have again", func(page string) bool {
			return value(page, "epp_endpoint_cached_blocks", "A") > float64(fewBlocks.blocks)
		})
		t.Logf("picker %d: A holds %d blocks", i, p.blocks("A"))
	}
	load := startLoad(t, watching, old)
	load.await(30)
	pool.a.kill()
	before := load.count()
	load.await(30) // none of these can run on A
	pool.restart(t, pool.a, fewBlocks)
	first := completion("tiny", tokens(90, 150))
	watching[0].direct(pool.a, first)
	began := time.Now()
	for i, p := range watching {
		p.untilPage("A's old blocks are gone", func(page string) bool {
			return value(page, "epp_endpoint_cached_blocks", "A") <= float64(fewBlocks.blocks)
		})
		d := time.Since(began)
		page := p.page()
		restarts, silent := value(page, "epp_kv_event_restarts_total"), value(page, "epp_kv_event_replays_total", "given_up")
		t.Logf("picker %d: A's old blocks are gone %v after the first new event; %v restarts, %v replays given up", i, d, restarts, silent)
		// A replay that is too late is a reset by itself: nothing says that it was a restart.
		if restarts > 1 || i < 2 && restarts == 0 && silent == 0 {
			t.Errorf("picker %d: %v restarts are counted", i, restarts)
		}
		if d > time.Second {
			t.Errorf("picker %d: A's old blocks were gone after %v", i, d)
		}
	}
	gone := time.Now()
	load.await(60)
	load.stop()
	for i, p := range watching {
		p.atRest()
		p.caughtUp(pool.a)
		p.noGhosts(gone)
		p.noAlarm()
		t.Logf("picker %d: %d requests, none failed; %d of them after the kill", i, load.count()[i], load.count()[i]-before[i])
	}
	watching[0].caughtUp(pool.b)
}

// TestStaleRouting: A evicts a prompt's blocks, and the news of it is on its way
// for longer than usual. A decision that counted on them is counted, when the news
// has come.
func TestStaleRouting(t *testing.T) {
	pool.shaped(t, pool.a, fewBlocks)
	r := newRelay(t, pool.a)
	p := startPicker(t, pool.a.named(r.address, pool.a.replay)).settled("A")
	p.followed(r, pool.a, 800)
	prompt := completion("tiny", tokens(850, 700))
	p.direct(pool.a, prompt)
	p.caughtUp(pool.a)
	release := r.hold(t)
	for i := range uint64(6) {
		p.direct(pool.a, completion("tiny", tokens(860+i, 700)))
	}
	a, _, end := p.ask(prompt)
	if end.PredictedTokens != 640 || a.cached() != 0 {
		t.Fatalf("%d cached tokens predicted, %d reported, want 640 and 0", end.PredictedTokens, a.cached())
	}
	if n := value(p.page(), "epp_stale_cache_routing_total"); n != 0 {
		t.Errorf("%v decisions counted before the news came", n)
	}
	release()
	p.caughtUp(pool.a)
	if n := value(p.page(), "epp_stale_cache_routing_total"); n != 1 {
		t.Errorf("%v decisions counted", n)
	}
}

// TestEvictions: A has 24 blocks, and prompts that need many more. Some of them it
// answers several times at once, so that it keeps several copies of a block for a
// while. At rest the picker counts as many blocks as the engine's own events do,
// and what it says of each prompt is what the engine then finds.
func TestEvictions(t *testing.T) {
	pool.shaped(t, pool.a, fewBlocks)
	p := startPicker(t, pool.a.auto()).settled("A")
	shared := tokens(uint64(time.Now().UnixNano()), 384) // three blocks that all prompts begin with
	prompt := func(i int) map[string]any {
		model := []string{"tiny", "tiny", "tiny", "sql"}[i%4]
		return completion(model, append(shared[:len(shared):len(shared)], tokens(uint64(201+i), 40+70*(i%9))...))
	}
	const prompts = 24
	twice := 0
	for i := range prompts {
		body, n := prompt(i), 1
		if i%8 == 0 { // several at once say the same, each into blocks of its own
			body["max_tokens"], body["ignore_eos"], n = 200, true, 3
		}
		var at sync.WaitGroup
		for range n {
			at.Go(func() { p.direct(pool.a, body) })
		}
		at.Wait()
		if n > 1 {
			twice = max(twice, duplicates(held(t, pool.a.history(t))))
		}
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
	p.noAlarm()
	if removed < 50 || twice < 2 {
		t.Errorf("%d blocks were evicted, at most %d had a second copy at one time", removed, twice)
	}
	t.Logf("%d blocks were evicted, up to %d had two copies at one time; at rest %d are counted by both; %d of %d predictions are within a block",
		removed, twice, p.blocks("A"), right, prompts)
}

// noAlarm fails where an engine's claims did not come true often enough for an
// alarm.
func (p *picker) noAlarm() {
	p.t.Helper()
	if n := value(p.page(), "epp_mispredicted_endpoints"); n != 0 {
		p.t.Errorf("%v endpoints are named as mispredicted", n)
	}
}

// noGhosts fails where a request that was decided after a time was promised blocks
// of A's former life: they held 672 of an old prompt's 700 tokens, no multiple of the
// size that blocks now have. What A evicts between a decision and its prefill is no
// ghost; it is told.
func (p *picker) noGhosts(since time.Time) {
	p.t.Helper()
	p.mu.Lock()
	defer p.mu.Unlock()
	decided, n, evicted := map[string]bool{}, 0, 0
	for _, l := range p.lines {
		if l.Msg == "selected" && !l.Time.Before(since) {
			decided[l.RequestID] = true
		}
		if l.Msg != "ended" || !decided[l.RequestID] || l.Outcome != "served" {
			continue
		}
		n++
		if l.Pod != "A" {
			continue
		}
		if l.PredictedTokens%pool.a.shape.blockTokens != 0 {
			p.t.Errorf("request %s on A: %d cached tokens predicted in blocks of %d", l.RequestID, l.PredictedTokens, pool.a.shape.blockTokens)
		}
		if l.PredictedTokens > l.CachedTokens+pool.a.shape.blockTokens {
			evicted++
		}
	}
	if n == 0 {
		p.t.Error("no request ended after the restart")
	}
	p.t.Logf("%d requests after the restart, %d of them found blocks evicted that were there at the decision", n, evicted)
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

// loadPause is a worker's pause between two requests: an engine that starts needs
// the processors too.
const loadPause = 100 * time.Millisecond

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
					select {
					case <-time.After(loadPause):
					case <-ctx.Done():
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
