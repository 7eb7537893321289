//go:build vllm

package vllm

import (
	"os"
	"path/filepath"
	"testing"
	"time"
)

// tokenFile writes the secret of agents and pickers.
func tokenFile(t *testing.T) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(file, []byte(token), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// startAgent runs epp agent beside an engine, for pickers that listen for reports
// at the addresses.
func startAgent(t *testing.T, e *server, pickers []string, more ...string) *process {
	t.Helper()
	args := []string{"agent", "--engine", "http://" + e.address, "--token-file", tokenFile(t), "--plaintext"}
	for _, p := range pickers {
		args = append(args, "--picker", p)
	}
	return startProcess(t, append(args, more...)...)
}

// deaf is the line of an engine whose events the picker cannot hear: it knows of
// the engine's blocks by reports, or not at all.
func (e *server) deaf(t *testing.T) string { return e.named(mute(t), "") }

// TestAgents: an agent runs beside each engine, and the picker hears of blocks from
// them alone. What it predicts equals what the engines report, over several turns
// of several conversations. Then the picker restarts: within one interval of 2 s
// it has a whole index again, of which the engines published not a word anew.
func TestAgents(t *testing.T) {
	at, err := freeAddress()
	if err != nil {
		t.Fatal(err)
	}
	endpoints := []string{pool.a.deaf(t), pool.b.deaf(t)}
	p := startPickerWith(t, settings{reports: at}, endpoints...)
	for _, e := range []*server{pool.a, pool.b} {
		startAgent(t, e, []string{at}, "--probe-interval", "1s")
	}
	p.until("both agents report", func(log []line) bool {
		agents := map[string]bool{}
		for _, l := range log {
			if l.Msg == "agent reports" {
				agents[l.Endpoint] = true
			}
		}
		return agents[pool.a.address] && agents[pool.b.address]
	})
	p.settled("A", "B")
	p.onBoth(69, 300)
	exact, later := 0, 0
	for c := range 6 {
		said := []message{{"system", words(2, 150)}}
		for turn := range 3 {
			said = append(said, message{"user", words(uint64(5000+100*c+turn), 60)})
			a := must(t, p.ctx, p.client, p.url+"/v1/chat/completions", map[string]any{"model": "tiny", "messages": said, "max_tokens": 12, "temperature": 0})
			said = append(said, message{"assistant", a.text()})
			picked, end := p.find("selected", a.id), p.find("ended", a.id)
			p.caughtUp(pool.a, pool.b)
			if picked.PromptTokens != a.Usage.Prompt {
				t.Errorf("a prompt of %d tokens by our count has %d by the engine's", picked.PromptTokens, a.Usage.Prompt)
			}
			if turn == 0 {
				continue
			}
			if later++; end.PredictedTokens == a.cached() {
				exact++
			} else {
				t.Errorf("turn %d on %s: %d cached tokens predicted, %d reported", turn+1, picked.Pod, end.PredictedTokens, a.cached())
			}
		}
	}
	p.atRest()
	p.stop()

	p = startPickerWith(t, settings{reports: at}, endpoints...)
	began := time.Now()
	p.untilPage("the index is whole", func(page string) bool {
		return value(page, "epp_incomplete_endpoints") == 0 && value(page, "epp_endpoint_cached_blocks", "A") > 0 && value(page, "epp_endpoint_cached_blocks", "B") > 0
	})
	took := time.Since(began)
	p.caughtUp(pool.a, pool.b)
	if took > 2*time.Second {
		t.Errorf("a picker that restarted had a whole index after %v", took)
	}
	t.Logf("%d of %d predictions by report are exact; a picker that restarted had the whole index (%d and %d blocks) %v after it served",
		exact, later, p.blocks("A"), p.blocks("B"), took)
}
