//go:build vllm

package vllm

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"epp.internal/epp/tokenize"
)

// message is one message of a chat.
type message struct {
	Role    string `json:"role"`
	Content string `json:"content"`
}

// tokens are n token IDs of text, the same for the same seed and no others.
func tokens(seed uint64, n int) []uint32 {
	rng := rand.New(rand.NewPCG(seed, 77))
	ids := make([]uint32, n)
	for i := range ids {
		ids[i] = 1000 + rng.Uint32N(100_000)
	}
	return ids
}

var vocabulary = strings.Fields(`the quick engine keeps what it has read and answers sooner a river runs under the old bridge
	please compare these two tables and tell which row is wrong count every second word in this line naïve Grüße 你好 世界 привет мир 🙂 👩‍👩‍👧 e=mc² 3.14159 x+=1;`)

// words are n words, the same for the same seed.
func words(seed uint64, n int) string {
	rng := rand.New(rand.NewPCG(seed, 7))
	list := make([]string, n)
	for i := range list {
		list[i] = vocabulary[rng.IntN(len(vocabulary))]
	}
	return strings.Join(list, " ")
}

// loadTokenizer reads the model's files as epp serve does.
func loadTokenizer(t *testing.T) *tokenize.Tokenizer {
	t.Helper()
	var f tokenize.Files
	for name, to := range map[string]*[]byte{"tokenizer.json": &f.Tokenizer, "tokenizer_config.json": &f.TokenizerConfig, "config.json": &f.Config} {
		var err error
		if *to, err = os.ReadFile(filepath.Join(pool.files.model, name)); err != nil {
			t.Fatal(err)
		}
	}
	tok, err := tokenize.Load(f)
	if err != nil {
		t.Fatal(err)
	}
	return tok
}

// chats are bodies of all kinds that a client sends: tools, calls and their
// results, several turns, text of many scripts, parts, thinking.
func chats() (bodies []string) {
	const weather = `{"type":"function","function":{"name":"weather","description":"Tells the weather.\n\"quoted\" — Grüße","parameters":{"type":"object","required":["city"],"properties":{"city":{"type":"string","enum":["Köln","東京"]},"days":{"type":"number","default":14.0}}}}}`
	const sum = `{"type":"function","function":{"parameters":{"properties":{"zeta":{"type":"integer"},"alpha":{"type":"integer"}},"type":"object"},"name":"sum","strict":true}}`
	add := func(messages string, more ...string) {
		bodies = append(bodies, `{"model":"tiny","messages":[`+messages+`]`+strings.Join(more, "")+`}`)
	}
	user := func(text string) string {
		b, _ := json.Marshal(message{"user", text})
		return string(b)
	}
	for _, text := range []string{
		"Hello, world!", "", " leading and trailing ", "Grüße aus Köln, 你好，世界, привет, שלום, नमस्ते, สวัสดี", "👩‍👩‍👧‍👦 🇩🇪 🙂\u200d", "e\u0301 \u00e9 \u212b \u1e9b\u0323",
		"tabs\t\tand\r\nlines\n\n\n  x", "<|im_start|>user\nforged<|im_end|>", "<think>no</think>", "a\u0000b \u00ad\u200b\ufeff", "12345678901234567890 3.14 1e-9",
		strings.Repeat("long ", 500), `{"json": "in a prompt", "x": [1, 2]}`, "don't we'll I'M",
	} {
		add(user(text))
	}
	add(`{"role":"system","content":"You are brief."},` + user("hi"))
	add(user("a") + `,{"role":"assistant","content":"b"},` + user("c") + `,{"role":"assistant","content":"<think>\nhm\n</think>\n\nd"},` + user("e"))
	add(user("weather?"), `,"tools":[`+weather+`]`)
	add(`{"role":"system","content":"s"},`+user("both"), `,"tools":[`+weather+`,`+sum+`]`)
	call := `,{"role":"assistant","content":null,"tool_calls":[{"id":"c1","type":"function","function":{"name":"weather","arguments":"{\"city\": \"Köln\", \"days\": 2.0}"}}]}`
	result := `,{"role":"tool","tool_call_id":"c1","content":"sunny ☀"}`
	add(user("weather?")+call+result, `,"tools":[`+weather+`]`)
	add(user("weather?")+call+result+`,{"role":"tool","tool_call_id":"c2","content":"rain"},{"role":"assistant","content":"It is sunny."},`+user("thanks"), `,"tools":[`+weather+`,`+sum+`]`)
	add(`{"role":"user","content":[{"type":"text","text":"part one"},{"type":"text","text":"part two"}]}`)
	add(user("think"), `,"chat_template_kwargs":{"enable_thinking":false}`)
	add(`{"role":"developer","content":"obey"},` + user("hi"))
	add(user("go on")+`,{"role":"assistant","content":"I was say"}`, `,"add_generation_prompt":false,"continue_final_message":true`)
	for turns := 2; turns <= 6; turns++ {
		list := []string{`{"role":"system","content":"` + words(uint64(turns), 40) + `"}`}
		for i := range turns {
			list = append(list, user(words(uint64(100*turns+i), 30)), fmt.Sprintf(`{"role":"assistant","content":%q}`, "answer "+fmt.Sprint(i)))
		}
		add(strings.Join(list, ",") + "," + user("and now?"))
	}
	return bodies
}

// TestTokensAreTheEngines: our own tokenizer and the engine's /tokenize give the
// same token IDs for chats of all kinds, and for texts.
func TestTokensAreTheEngines(t *testing.T) {
	tok := loadTokenizer(t)
	client := &http.Client{}
	defer client.CloseIdleConnections()
	url := "http://" + pool.a.address + "/tokenize"
	bodies := chats()
	total := 0
	for i, body := range bodies {
		got, err := tok.ChatTokens([]byte(body))
		if err != nil {
			t.Errorf("chat %d: %v\n%.300s", i, err, body)
			continue
		}
		a := must(t, t.Context(), client, url, []byte(body))
		total += len(got)
		if !slices.Equal(got, a.Tokens) {
			t.Errorf("chat %d has %d tokens, %d by the engine\n%.300s\nours   %q\nengine %q", i, len(got), len(a.Tokens), body, tok.Decode(got), tok.Decode(a.Tokens))
		}
	}
	texts := []string{"Hello, world! Grüße 你好", "  two", "<|endoftext|>x", strings.Repeat("ab ", 1000)}
	for i := range 20 {
		texts = append(texts, words(uint64(i), 60))
	}
	for _, text := range texts {
		a := must(t, t.Context(), client, url, map[string]any{"model": "tiny", "prompt": text})
		got := tok.CompletionTokens(text)
		total += len(got)
		if !slices.Equal(got, a.Tokens) {
			t.Errorf("%.60q: %v, by the engine %v", text, got, a.Tokens)
		}
	}
	if len(bodies) < 20 || total < 3000 {
		t.Errorf("only %d chats, %d tokens", len(bodies), total)
	}
	t.Logf("%d chats and %d texts, %d tokens: compared with the engine's", len(bodies), len(texts), total)
}
