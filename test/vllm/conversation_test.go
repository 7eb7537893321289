//go:build vllm

package vllm

import (
	"sync"
	"testing"
)

// TestPredictionsComeTrue: 40 conversations of 4 turns, 8 at a time, share a
// system text. The cached tokens that the picker predicts equal those that the
// engine reports in its usage, within one block, in at least 99 % of the requests
// after each conversation's first; and it counts every prompt's tokens exactly. The
// picker's own audit comes to the same count, and has no alarm.
func TestPredictionsComeTrue(t *testing.T) {
	const conversations, turns, atOnce = 40, 4, 8
	pool.shaped(t, pool.a, shapeA)
	p := startPicker(t, pool.a.auto(), pool.b.auto()).settled("A", "B")
	system := message{"system", words(1, 250)}
	type outcome struct {
		turn           int
		pod            string
		predicted, had int
		counted, told  int
	}
	var mu sync.Mutex // guards outcomes
	var outcomes []outcome
	places := make(chan struct{}, atOnce)
	var wg sync.WaitGroup
	for c := range conversations {
		wg.Go(func() {
			places <- struct{}{}
			defer func() { <-places }()
			said := []message{system}
			for turn := range turns {
				said = append(said, message{"user", words(uint64(1000*c+turn), 60)})
				a := post(p.ctx, p.client, p.url+"/v1/chat/completions", map[string]any{"model": "tiny", "messages": said, "max_tokens": 12, "temperature": 0})
				if a.err != nil || a.status != 200 {
					t.Errorf("conversation %d, turn %d: %d %s %v", c, turn+1, a.status, a.body, a.err)
					return
				}
				said = append(said, message{"assistant", a.text()})
				picked, end := p.find("selected", a.id), p.find("ended", a.id)
				mu.Lock()
				outcomes = append(outcomes, outcome{turn, picked.Pod, end.PredictedTokens, a.cached(), picked.PromptTokens, a.Usage.Prompt})
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	if len(outcomes) != conversations*turns {
		t.Fatalf("%d requests ended well", len(outcomes))
	}
	later, within, exact, predicted, had := 0, 0, 0, 0, 0
	off := 0 // of all requests: a first one may find what another at its side has just stored
	pods := map[string]int{}
	for _, o := range outcomes {
		pods[o.pod]++
		if o.counted != o.told {
			t.Errorf("a prompt of %d tokens by our count has %d by the engine's", o.counted, o.told)
		}
		block := map[string]int{"A": pool.a.shape.blockTokens, "B": pool.b.shape.blockTokens}[o.pod]
		if max(o.predicted, o.had)-min(o.predicted, o.had) > block {
			off++
		}
		if o.turn == 0 {
			continue
		}
		later++
		predicted, had = predicted+o.predicted, had+o.had
		if o.predicted == o.had {
			exact++
		}
		if max(o.predicted, o.had)-min(o.predicted, o.had) <= block {
			within++
		} else {
			t.Logf("turn %d on %s: %d cached tokens predicted, %d reported", o.turn+1, o.pod, o.predicted, o.had)
		}
	}
	if within*100 < later*99 {
		t.Errorf("%d of %d predictions are within a block of what the engine reports", within, later)
	}
	if pods["A"] == 0 || pods["B"] == 0 {
		t.Errorf("one engine got nothing: %v", pods)
	}
	p.atRest()
	p.caughtUp(pool.a, pool.b)
	page := p.page()
	agree, audited := int(value(page, "epp_audited_requests_total", "agrees")), int(value(page, "epp_audited_requests_total"))
	if audited != conversations*turns || agree != audited-off {
		t.Errorf("the audit agrees with %d of %d answers, want all of %d but %d", agree, audited, conversations*turns, off)
	}
	p.noAlarm()
	t.Logf("the audit agrees with %d of %d answers; %d first ones found what another at their side had just stored", agree, audited, off-(later-within))
	t.Logf("%d requests after the first turns: %d predictions exact, %d within a block; %d tokens predicted, %d reported; by engine %v",
		later, exact, within, predicted, had, pods)
}
