package engine

import (
	"bufio"
	"encoding/json"
	"os"
	"strings"
	"testing"
	"time"

	"epp.internal/epp"
	"github.com/google/go-cmp/cmp"
)

// capturedRequest is a line of testdata/vllm-0.32.0*/requests.jsonl.
type capturedRequest struct {
	Name         string   `json:"name"`
	Tokens       []uint32 `json:"tokens"`
	Answer       []uint32 `json:"answer"`
	Adapter      string   `json:"adapter"`
	Salt         string   `json:"salt"`
	CachedTokens *int     `json:"cachedTokens"`
}

// capturedEvent is what is compared of an event: all but the hashes, which are
// the engine's own. Hashes become the order in which they were first seen.
type capturedEvent struct {
	Type    string
	Blocks  []int
	Parent  int // -1 for none
	Tokens  []uint32
	Adapter string
}

// A real engine and the model answer the same conversation with the same cached
// tokens and the same events, in the same batches. A block that is computed
// again is announced again.
func TestCapturedConversation(t *testing.T) {
	const dir = "testdata/vllm-0.32.0/"
	e := mustNew(t, Config{BlockTokens: 32, Blocks: 65536})
	p := player{Engine: e, names: map[uint64]int{}}
	for _, c := range readLines[capturedRequest](t, dir+"requests.jsonl") {
		r := p.add(t, c)
		p.runIdle()
		if c.CachedTokens != nil && r.CachedTokens() != *c.CachedTokens {
			t.Errorf("%s: %d cached tokens, vLLM had %d", c.Name, r.CachedTokens(), *c.CachedTokens)
		}
	}
	if d := cmp.Diff(readBatches(t, dir+"events.jsonl"), p.batches); d != "" {
		t.Errorf("events (-vLLM +model):\n%s", d)
	}
}

// A real engine of 48 blocks that runs two of eight long requests at a time, and
// the model, lose the same blocks in the same order, and tell of it in the same
// batches.
func TestCapturedEvictions(t *testing.T) {
	const dir = "testdata/vllm-0.32.0-evict/"
	e := mustNew(t, Config{BlockTokens: 32, Blocks: 48, MaxRunning: 2, MaxAdapters: 2})
	p := player{Engine: e, names: map[uint64]int{}}
	for _, c := range readLines[capturedRequest](t, dir+"requests.jsonl") {
		p.add(t, c)
		if c.Name == "load0" {
			p.step() // the others arrived while its first step was under way
		}
		if !strings.HasPrefix(c.Name, "load") {
			p.runIdle()
		}
	}
	p.runIdle()
	if d := cmp.Diff(readBatches(t, dir+"events.jsonl"), p.batches); d != "" {
		t.Errorf("events (-vLLM +model):\n%s", d)
	}
	want := Counters{
		PrefixQueryTokens: 1894, PrefixHitTokens: 224, PromptTokens: 1894, CachedTokens: 224,
		AnswerTokens: 2460, Finished: 18, AdapterLoads: 2, Steps: e.Counters().Steps,
	}
	if d := cmp.Diff(want, e.Counters()); d != "" {
		t.Errorf("counters (-vLLM's metrics +model):\n%s", d)
	}
}

// player drives an engine and keeps what its steps told.
type player struct {
	*Engine
	now     time.Time
	names   map[uint64]int
	batches [][]capturedEvent
}

func (p *player) add(t *testing.T, c capturedRequest) *Request {
	t.Helper()
	r := &Request{Tokens: c.Tokens, Answer: c.Answer, Adapter: c.Adapter, Salt: c.Salt}
	if err := p.Add(p.now, r); err != nil {
		t.Fatal(err)
	}
	return r
}

// step advances to what is due next, if anything is.
func (p *player) step() bool {
	at, ok := p.Next()
	if !ok {
		return false
	}
	p.now = at
	if s := p.Advance(at); len(s.Events) > 0 {
		p.batches = append(p.batches, describe(s.Events, p.names))
	}
	return true
}

func (p *player) runIdle() {
	for p.step() {
	}
}

// describe turns events into what is compared of them. names numbers the hashes.
func describe(events []epp.BlockEvent, names map[uint64]int) []capturedEvent {
	var out []capturedEvent
	for _, ev := range events {
		c := capturedEvent{Type: ev.Kind.String(), Blocks: number(ev.Hashes, names), Parent: -1, Adapter: ev.Adapter}
		if ev.HasParent {
			c.Parent = number([]uint64{ev.Parent}, names)[0]
		}
		c.Tokens = append(c.Tokens, ev.Tokens...)
		out = append(out, c)
	}
	return out
}

func number(hashes []uint64, names map[uint64]int) []int {
	var out []int
	for _, h := range hashes {
		n, ok := names[h]
		if !ok {
			n = len(names)
			names[h] = n
		}
		out = append(out, n)
	}
	return out
}

// readBatches reads the batches of a real engine and describes their events.
func readBatches(t *testing.T, name string) [][]capturedEvent {
	t.Helper()
	names := map[uint64]int{}
	var out [][]capturedEvent
	for _, line := range readLines[[]json.RawMessage](t, name) {
		var events []struct {
			Type   string   `json:"type"`
			Hashes []uint64 `json:"block_hashes"`
			Parent *uint64  `json:"parent_block_hash"`
			Tokens []uint32 `json:"token_ids"`
			Lora   *string  `json:"lora_name"`
		}
		if err := json.Unmarshal(line[1], &events); err != nil {
			t.Fatal(err)
		}
		var batch []capturedEvent
		for _, ev := range events {
			c := capturedEvent{Type: ev.Type, Blocks: number(ev.Hashes, names), Parent: -1, Tokens: ev.Tokens}
			if ev.Parent != nil {
				c.Parent = number([]uint64{*ev.Parent}, names)[0]
			}
			if ev.Lora != nil {
				c.Adapter = *ev.Lora
			}
			batch = append(batch, c)
		}
		out = append(out, batch)
	}
	return out
}

// readLines reads a file of one JSON value a line.
func readLines[T any](t *testing.T, name string) []T {
	t.Helper()
	f, err := os.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var out []T
	sc := bufio.NewScanner(f)
	sc.Buffer(nil, 1<<20)
	for sc.Scan() {
		var v T
		if err := json.Unmarshal(sc.Bytes(), &v); err != nil {
			t.Fatalf("%s line %d: %v", name, len(out)+1, err)
		}
		out = append(out, v)
	}
	if err := sc.Err(); err != nil {
		t.Fatal(err)
	}
	return out
}

func mustNew(t testing.TB, cfg Config) *Engine {
	t.Helper()
	e, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return e
}
