//go:build vllm

package vllm

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"testing"
	"time"

	"epp.internal/epp"
	"epp.internal/epp/engine"
	"github.com/google/go-cmp/cmp"
)

// told is what is compared of an event: all but the hashes, which are the engine's
// own. Blocks are numbered in the order in which they were first seen.
type told struct {
	Type    string
	Blocks  []int
	Parent  int // 0 for none
	Tokens  []uint32
	Adapter string
}

// names numbers blocks from 1.
type names map[string]int

func (n names) of(hash string) int {
	if n[hash] == 0 {
		n[hash] = len(n) + 1
	}
	return n[hash]
}

// TestModelTellsTheSameEvents: the simulator's engine and a real one are asked the
// same prompts one after another, and tell of the same blocks in the same events and
// batches: what is stored, behind which block, with which tokens, and what is
// removed, in which order. The engine has 24 blocks, so that it loses many.
func TestModelTellsTheSameEvents(t *testing.T) {
	pool.shaped(t, pool.a, fewBlocks)
	client := &http.Client{}
	defer client.CloseIdleConnections()
	url := "http://" + pool.a.address
	must(t, t.Context(), client, url+"/reset_prefix_cache", []byte("{}"))
	// The clear is told with the next step.
	seed := uint64(time.Now().UnixNano())
	must(t, t.Context(), client, url+"/v1/completions", completion("tiny", tokens(seed, 8)))
	before := len(pool.a.history(t))

	m, err := engine.New(engine.Config{BlockTokens: pool.a.shape.blockTokens, Blocks: pool.a.shape.blocks, MaxRunning: 8, MaxBatchTokens: 2048, MaxAdapters: 2})
	if err != nil {
		t.Fatal(err)
	}
	var want, got [][]told
	seen := names{}
	for i, q := range questions(seed) {
		a := must(t, t.Context(), client, url+"/v1/completions", completion(q.model, q.prompt, "max_tokens", q.answer, "ignore_eos", true, "return_token_ids", true))
		var body struct {
			Choices []struct {
				Tokens []uint32 `json:"token_ids"`
			}
		}
		if err := json.Unmarshal(a.body, &body); err != nil || len(body.Choices) != 1 || len(body.Choices[0].Tokens) != q.answer {
			t.Fatalf("question %d: %v: %.300s", i, err, a.body)
		}
		r := &engine.Request{Tokens: q.prompt, Answer: body.Choices[0].Tokens}
		if q.model != "tiny" {
			r.Adapter = q.model
		}
		now := time.Unix(int64(i), 0)
		if err := m.Add(now, r); err != nil {
			t.Fatal(err)
		}
		for at, ok := m.Next(); ok; at, ok = m.Next() {
			if s := m.Advance(at); len(s.Events) > 0 {
				want = append(want, describeModel(s.Events, seen))
			}
		}
		if r.CachedTokens() != a.cached() {
			t.Errorf("question %d: %d tokens are cached by the model, %d by the engine", i, r.CachedTokens(), a.cached())
		}
	}
	real := names{}
	removed, stored := 0, 0
	for _, b := range pool.a.history(t)[before:] {
		batch := describe(t, b.events, real)
		for _, e := range batch {
			switch e.Type {
			case "BlockStored":
				stored += len(e.Blocks)
			case "BlockRemoved":
				removed += len(e.Blocks)
			}
		}
		got = append(got, batch)
	}
	if d := cmp.Diff(got, want); d != "" {
		t.Errorf("events (-vLLM +model):\n%s", d)
	}
	if stored < 40 || removed < 20 {
		t.Errorf("only %d blocks stored and %d removed", stored, removed)
	}
	t.Logf("%d batches of events are the model's: %d blocks stored, %d removed", len(got), stored, removed)
}

// question is one request.
type question struct {
	model  string
	prompt []uint32
	answer int
}

// questions are prompts that begin alike, come again, grow by their answers' length
// and ask for an adapter.
func questions(seed uint64) (list []question) {
	shared := tokens(seed+1, 384)
	for i := range uint64(18) {
		q := question{"tiny", append(slices.Clone(shared), tokens(seed+2+i, 40+int(i%5)*190)...), 1 + int(i%4/3)*90}
		if i%5 == 3 {
			q.model = "sql"
		}
		list = append(list, q)
		if i%3 == 2 {
			list = append(list, list[len(list)-2]) // asked before
		}
	}
	return list
}

// describe is what an engine's events tell.
func describe(t *testing.T, events []event, n names) (list []told) {
	t.Helper()
	for _, e := range events {
		d := told{Type: fmt.Sprint(e["type"])}
		if p := e["parent_block_hash"]; p != nil {
			d.Parent = n.of(fmt.Sprint(p))
		}
		if d.Type != "AllBlocksCleared" {
			for _, h := range e.hashes(t) {
				d.Blocks = append(d.Blocks, n.of(h))
			}
		}
		if ids, ok := e["token_ids"].([]any); ok {
			for _, id := range ids {
				var v uint32
				if _, err := fmt.Sscan(fmt.Sprint(id), &v); err != nil {
					t.Fatalf("token %v: %v", id, err)
				}
				d.Tokens = append(d.Tokens, v)
			}
		}
		if name, ok := e["lora_name"].(string); ok {
			d.Adapter = name
		}
		list = append(list, d)
	}
	return list
}

// describeModel is what the model's events tell.
func describeModel(events []epp.BlockEvent, n names) (list []told) {
	for i := range events {
		e := &events[i]
		d := told{Type: e.Kind.String(), Tokens: slices.Clone(e.Tokens), Adapter: e.Adapter}
		if e.HasParent {
			d.Parent = n.of(fmt.Sprint(e.Parent))
		}
		for _, h := range e.Hashes {
			d.Blocks = append(d.Blocks, n.of(fmt.Sprint(h)))
		}
		list = append(list, d)
	}
	return list
}
