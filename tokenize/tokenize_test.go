package tokenize_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"epp.internal/epp/internal/testtok"
	"epp.internal/epp/openai"
	"epp.internal/epp/tokenize"
	"epp.internal/epp/tokenize/chat"
	"pgregory.net/rapid"
)

// qwen3 returns the tokenizer of Qwen 3; loading it takes most of a second.
func qwen3(t testing.TB) *tokenize.Tokenizer {
	t.Helper()
	loadOnce.Do(func() {
		tokenizerJSON, configJSON := testtok.Qwen3(t)
		loaded, loadErr = tokenize.New(tokenizerJSON, configJSON)
	})
	if loadErr != nil {
		t.Fatal(loadErr)
	}
	return loaded
}

var (
	loadOnce sync.Once
	loaded   *tokenize.Tokenizer
	loadErr  error
)

// fresh returns a tokenizer like qwen3 that has seen nothing yet.
func fresh(t testing.TB) *tokenize.Tokenizer { return tokenize.Fresh(qwen3(t)) }

func chatBody(t testing.TB, text string) *openai.Body {
	t.Helper()
	b, err := openai.Read("/v1/chat/completions", []byte(text))
	if err != nil {
		t.Fatalf("%v in %s", err, text)
	}
	return b
}

// Every text and chat of qwen3.jsonl gives the tokens that the reference gives.
func TestVectors(t *testing.T) {
	tok := qwen3(t)
	file, err := os.Open("testdata/qwen3.jsonl")
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	lines := bufio.NewScanner(file)
	lines.Buffer(nil, 1<<22)
	kinds := map[string]int{}
	for lines.Scan() {
		var v struct {
			Kind, Name, Text string
			Messages, Tools  json.RawMessage
			IDs              []uint32
			IDsNoSpecial     []uint32 `json:"ids_no_special"`
			Generate         bool     `json:"add_generation_prompt"`
		}
		if err := json.Unmarshal(lines.Bytes(), &v); err != nil {
			t.Fatal(err)
		}
		kinds[v.Kind]++
		if v.Kind == "text" {
			if got := tok.CompletionTokens(v.Text); !slices.Equal(got, v.IDs) {
				t.Errorf("text %s: got %v, want %v", v.Name, got, v.IDs)
			}
			continue
		}
		body := fmt.Sprintf(`{"model":"m","messages":%s,"tools":%s,"add_generation_prompt":%v}`, v.Messages, v.Tools, v.Generate)
		for range 2 { // the second time from the cache
			got, err := tok.Chat(context.Background(), chatBody(t, body), nil)
			if err != nil || !slices.Equal(got, v.IDs) {
				t.Errorf("chat %s: got %v, %v, want %v", v.Name, got, err, v.IDs)
			}
		}
	}
	if kinds["text"] < 20 || kinds["chat"] < 6 {
		t.Errorf("vectors by kind: %v", kinds)
	}
}

// What a vLLM server told of its own tokens is what we make of the same request.
func TestCapturedTokens(t *testing.T) {
	tok := qwen3(t)
	read := func(name string, out any) []byte {
		data, err := os.ReadFile("testdata/vllm/" + name)
		if err != nil {
			t.Fatal(err)
		}
		if out != nil {
			if err := json.Unmarshal(data, out); err != nil {
				t.Fatalf("%s: %v", name, err)
			}
		}
		return data
	}
	type answer struct {
		Tokens []uint32
		IDs    []uint32 `json:"token_ids"`
		Prompt []uint32 `json:"prompt_token_ids"`
		Usage  struct {
			Prompt int `json:"prompt_tokens"`
		}
	}
	for request, told := range map[string]string{
		"turn1": "turn1.tokens.json", "turn2": "turn2.tokens.json", "turn3": "turn3.tokens.json", "turn4": "turn4.tokens.json",
		"tokenize_chat": "tokenize_chat.json", "chat_token_ids": "chat_token_ids.json", "render_chat": "render_chat.json",
	} {
		var a answer
		read(told, &a)
		want := slices.Concat(a.Tokens, a.Prompt)
		if want == nil {
			want = a.IDs
		}
		got, err := tok.ChatTokens(read(request+".request.json", nil))
		if err != nil || len(want) < 70 || !slices.Equal(got, want) {
			t.Errorf("%s: got %v, %v\nwant %v", request, got, err, want)
		}
	}
	// Of this one the server told the number alone: tool_choice "none" leaves the
	// tools in the prompt.
	var a answer
	read("chat_tools.json", &a)
	if got, err := tok.ChatTokens(read("chat_tools.request.json", nil)); err != nil || len(got) != a.Usage.Prompt {
		t.Errorf("chat_tools: got %d tokens, %v, want %d", len(got), err, a.Usage.Prompt)
	}
	for _, name := range []string{"tokenize_prompt", "completion"} {
		var request struct{ Prompt string }
		var a answer
		read(name+".request.json", &request)
		read(name+".json", &a)
		got := tok.CompletionTokens(request.Prompt)
		if len(got) != a.Usage.Prompt && !slices.Equal(got, a.Tokens) {
			t.Errorf("%s: got %v, want %v or %d tokens", name, got, a.Tokens, a.Usage.Prompt)
		}
	}
	var rendered []answer
	read("render_completion.json", &rendered)
	if got := tok.CompletionTokens("Hello, world!"); !slices.Equal(got, rendered[0].IDs) {
		t.Errorf("render_completion: got %v, want %v", got, rendered[0].IDs)
	}
}

// Whatever was tokenized before, a conversation's tokens are those of the whole
// text tokenized anew, in a cache so small that it forgets all the time too.
func TestCachedIsWhole(t *testing.T) {
	plain := qwen3(t)
	for _, bytes := range []int{tokenize.CacheBytes, 40_000} {
		cached := tokenize.FreshWith(plain, bytes)
		rapid.Check(t, func(t *rapid.T) {
			piece := rapid.SampledFrom([]string{"Hello ", "wörld\n", "<|im_end|>\n", "<|im_start|>user\n", "<think>", "  ", "x", "数", "e\u0301", "</tool_call>", strings.Repeat("lorem ipsum ", 30), strings.Repeat("a", 300)})
			var messages []string
			for turn := range rapid.IntRange(1, 6).Draw(t, "turns") {
				content := strings.Join(rapid.SliceOfN(piece, 0, 12).Draw(t, "content"), "")
				role := []string{"user", "assistant"}[turn%2]
				text, _ := json.Marshal(map[string]string{"role": role, "content": content})
				messages = append(messages, string(text))
				b, err := openai.Read("/v1/chat/completions", []byte(`{"model":"m","messages":[`+strings.Join(messages, ",")+`]}`))
				if err != nil {
					t.Fatal(err)
				}
				got, err := cached.Chat(context.Background(), b, []uint32{7})
				if err != nil {
					t.Fatal(err)
				}
				want := tokenize.Whole(plain, b)
				if got[0] != 7 || !slices.Equal(got[1:], want) {
					t.Fatalf("turn %d: got %v, want %v", turn, got, want)
				}
			}
		})
		if held := tokenize.Held(cached); held > bytes {
			t.Errorf("the cache holds %d bytes, its bound is %d", held, bytes)
		}
	}
}

// One Tokenizer serves many goroutines.
func TestConcurrent(t *testing.T) {
	tok := tokenize.FreshWith(qwen3(t), 60_000)
	var wg sync.WaitGroup
	for g := range 8 {
		wg.Go(func() {
			for i := range 20 {
				b, err := openai.Read("/v1/chat/completions", conversation(4, (g+i)%5))
				if err != nil {
					t.Error(err)
					return
				}
				got, err := tok.Chat(context.Background(), b, nil)
				if err != nil || !slices.Equal(got, tokenize.Whole(tok, b)) {
					t.Errorf("goroutine %d, request %d: wrong tokens, %v", g, i, err)
				}
			}
		})
	}
	wg.Wait()
}

// Case C1: the tokens are of the whole history, not of the first message alone:
// the tokens of a turn begin with those of the turn before, and conversations of
// one system prompt differ after it.
func TestCaseC1(t *testing.T) {
	tok := fresh(t)
	system := len(must(t, tok, conversation(0, 0)))
	for who := 1; who < 5; who++ {
		var before []uint32
		for turns := 1; turns <= 3; turns++ {
			ids := must(t, tok, conversation(turns, who))
			if same := commonPrefix(ids, before); same < len(before)-4 { // all but "<|im_start|>assistant\n" and its neighbours
				t.Errorf("conversation %d: %d of the %d tokens of turn %d are in the next turn", who, same, len(before), turns-1)
			}
			before = ids
		}
		if same := commonPrefix(before, must(t, tok, conversation(3, who-1))); same < system-4 || same > system+20 {
			t.Errorf("conversations %d and %d share %d tokens, the system prompt has %d", who-1, who, same, system)
		}
	}
}

// Case C3: tools and tool calls are part of the prompt, in the client's order of
// keys: two sets differ where their schemas do, and the turn after a tool call
// begins with the tokens of the turn before.
func TestCaseC3(t *testing.T) {
	tok := fresh(t)
	tools := func(name, key1, key2 string) string {
		return `"tools":[{"type":"function","function":{"name":"` + name + `","description":"` + strings.Repeat("d ", 2000) +
			`","parameters":{"type":"object","properties":{"` + key1 + `":{"type":"number"},"` + key2 + `":{"type":"string"}}}}}]`
	}
	user := `{"role":"user","content":"What is the weather?"}`
	call := `{"role":"assistant","content":null,"tool_calls":[{"id":"c1","type":"function","function":{"name":"look","arguments":"{\"place\": \"Köln\"}"}}]},{"role":"tool","tool_call_id":"c1","content":"7"}`
	one := must(t, tok, []byte(`{"model":"m","messages":[`+user+`],`+tools("look", "a", "b")+`}`))
	other := must(t, tok, []byte(`{"model":"m","messages":[`+user+`],`+tools("seek", "a", "b")+`}`))
	swapped := must(t, tok, []byte(`{"model":"m","messages":[`+user+`],`+tools("look", "b", "a")+`}`))
	none := must(t, tok, []byte(`{"model":"m","messages":[`+user+`]}`))
	if len(one) < len(none)+2000 {
		t.Errorf("tools add %d tokens", len(one)-len(none))
	}
	if same := commonPrefix(one, other); same > 100 {
		t.Errorf("tools of other names share %d tokens", same)
	}
	if same := commonPrefix(one, swapped); same < 2000 || same == len(one) {
		t.Errorf("tools with swapped keys share %d of %d tokens", same, len(one))
	}
	after := must(t, tok, []byte(`{"model":"m","messages":[`+user+`,`+call+`],`+tools("look", "a", "b")+`}`))
	if same := commonPrefix(one, after); same != len(one) {
		t.Errorf("the turn after the tool call shares %d of %d tokens", same, len(one))
	}
	if text := tok.Decode(after[len(one):]); !strings.Contains(text, `"arguments": {"place": "Köln"}`) {
		t.Errorf("the tool call is not in the prompt: %q", text)
	}
}

// What only the engine can turn into a prompt is said so, by its kind.
func TestChatNotRenderable(t *testing.T) {
	b := chatBody(t, `{"model":"m","messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"data:"}}]}]}`)
	got, err := qwen3(t).Chat(context.Background(), b, []uint32{1})
	if !errors.Is(err, chat.ErrNotRenderable) || len(got) != 1 {
		t.Errorf("got %v, %v", got, err)
	}
}

func must(t *testing.T, tok *tokenize.Tokenizer, body []byte) []uint32 {
	t.Helper()
	ids, err := tok.ChatTokens(body)
	if err != nil {
		t.Fatalf("%v in %.80s", err, body)
	}
	return ids
}

func commonPrefix(a, b []uint32) int {
	n := 0
	for n < len(a) && n < len(b) && a[n] == b[n] {
		n++
	}
	return n
}

// conversation returns a chat of a system prompt, shared by all, and of so many
// turns; who tells conversations apart.
func conversation(turns, who int) []byte {
	type message struct {
		Role    string `json:"role"`
		Content string `json:"content"`
	}
	messages := []message{{"system", strings.Repeat("You answer questions about the harbour of a small town. ", 40)}}
	for turn := range turns {
		if turn > 0 {
			messages = append(messages, message{"assistant", strings.Repeat(fmt.Sprintf("Answer %d of %d, at length. ", turn, who), 30)})
		}
		messages = append(messages, message{"user", strings.Repeat(fmt.Sprintf("Visitor %d asks question %d of the day. ", who, turn), 20)})
	}
	body, _ := json.Marshal(map[string]any{"model": "m", "messages": messages})
	return body
}

// BenchmarkTurn: a conversation of 4,096 tokens whose last turn, 5 % of it, is
// new: its prompt's text (text), and rendering as well (chat); beside them the
// whole text anew (whole). best-µs/op is the fastest run: on a shared machine the
// mean says more of the neighbours.
func BenchmarkTurn(b *testing.B) {
	tok := fresh(b)
	turn := 0
	body := func() *openai.Body {
		turn++
		system := strings.Repeat("You answer questions about the harbour of a small town. ", 40)
		var messages []string
		for i := range 9 {
			messages = append(messages, fmt.Sprintf(`{"role":"user","content":"Visitor asks question %d. %s"}`, i, strings.Repeat("When does the ferry leave? ", 22)),
				fmt.Sprintf(`{"role":"assistant","content":"Answer %d. %s"}`, i, strings.Repeat("It leaves at ten o'clock, from the northern pier. ", 20)))
		}
		last := strings.Repeat(fmt.Sprintf("What about day %d of the year? ", turn), 16)
		return chatBody(b, fmt.Sprintf(`{"model":"m","messages":[{"role":"system","content":%q},%s,{"role":"user","content":%q}]}`, system, strings.Join(messages, ","), last))
	}
	var ids []uint32
	run := func(name string, work func(text string, body *openai.Body)) {
		b.Run(name, func(b *testing.B) {
			best := time.Duration(math.MaxInt64)
			for b.Loop() {
				body := body()
				text, _, err := tokenize.Rendered(tok, body)
				if err != nil {
					b.Fatal(err)
				}
				start := time.Now()
				work(text, body)
				best = min(best, time.Since(start))
			}
			b.ReportMetric(float64(len(ids)), "tokens")
			b.ReportMetric(float64(best.Nanoseconds())/1000, "best-µs/op")
		})
	}
	run("text", func(text string, _ *openai.Body) { ids = tokenize.Cached(tok, ids[:0], text) })
	run("chat", func(_ string, body *openai.Body) { ids, _ = tok.Chat(context.Background(), body, ids[:0]) })
	run("whole", func(text string, _ *openai.Body) { ids = tokenize.Joined(tok, text, "") })
}
