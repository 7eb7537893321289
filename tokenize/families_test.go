package tokenize_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"epp.internal/epp/epptest/demotok"
	"epp.internal/epp/internal/testtok"
	"epp.internal/epp/openai"
	"epp.internal/epp/tokenize"
	"epp.internal/epp/tokenize/chat"
)

// families are the tokenizers whose IDs are compared with the reference's, with
// the model types that pick the reference's class.
var families = []struct{ name, modelType string }{
	{"qwen2_5", "qwen2"},
	{"qwen3", "qwen3"},
	{"llama3_1", "llama"},
	{"gemma3", "gemma3"},
	{"mistral_nemo", "mistral"},
	{"deepseek_v3", "deepseek_v3"},
	{"gptoss", "gpt_oss"},
}

// For each family, texts and chats give the IDs of transformers 5.19 and vLLM
// 0.32.0 (testdata/make_families.py); a chat that vLLM refuses is an error; and a
// conversation's tokens are the same whether the cache has seen a part of it,
// and wherever it is cut at a border. The tokenizers have 10 to 30 MB each, so
// each is loaded once, and dropped before the next.
func TestFamilies(t *testing.T) {
	requests := chatRequests(t)
	for _, family := range families {
		t.Run(family.name, func(t *testing.T) {
			tokenizerJSON, configJSON := testtok.Files(t, family.name)
			tok, err := tokenize.Load(tokenize.Files{
				Tokenizer: tokenizerJSON, TokenizerConfig: configJSON, Config: []byte(`{"model_type":"` + family.modelType + `"}`),
			})
			if err != nil {
				t.Fatal(err)
			}
			texts, chats := compareFamily(t, tok, family.name, requests)
			if texts < 500 {
				t.Errorf("%d texts", texts)
			}
			if family.name == "gptoss" {
				_, err := tok.Chat(context.Background(), chatBody(t, string(requests[0])), nil)
				if !errors.Is(err, chat.ErrNotRenderable) || !strings.Contains(err.Error(), "openai-harmony") {
					t.Errorf("a chat gives %v", err)
				}
				return
			}
			if chats < 12 {
				t.Errorf("%d chats", chats)
			}
			checkCuts(t, tok, requests)
			checkConversation(t, tok)
		})
	}
}

// chatRequests returns the requests of package chat's tests.
func chatRequests(t *testing.T) (requests []json.RawMessage) {
	t.Helper()
	data, err := os.ReadFile("chat/testdata/requests.json")
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(data, &requests); err != nil {
		t.Fatal(err)
	}
	for i, request := range requests {
		requests[i] = slices.Concat([]byte(`{"model":"m",`), bytes.TrimPrefix(request, []byte("{")))
	}
	return requests
}

// compareFamily compares with the reference's vectors and returns their number.
func compareFamily(t *testing.T, tok *tokenize.Tokenizer, name string, requests []json.RawMessage) (texts, chats int) {
	t.Helper()
	file, err := os.Open("testdata/families/" + name + ".jsonl")
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	lines := bufio.NewScanner(file)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var v struct {
			Text    string
			Request *int
			Error   string
			IDs     []uint32
		}
		if err := json.Unmarshal(lines.Bytes(), &v); err != nil {
			t.Fatal(err)
		}
		if v.Request == nil {
			texts++
			if got := tok.CompletionTokens(v.Text); !slices.Equal(got, v.IDs) {
				t.Errorf("%+q:\n got %d\nwant %d", v.Text, got, v.IDs)
			}
			continue
		}
		got, err := tok.Chat(context.Background(), chatBody(t, string(requests[*v.Request])), nil)
		switch {
		case v.Error != "" && err == nil:
			t.Errorf("request %d: got %q, vLLM fails: %s", *v.Request, tok.Decode(got), v.Error)
		case v.Error == "" && (err != nil || !slices.Equal(got, v.IDs)):
			t.Errorf("request %d: %v\n got %q\nwant %q", *v.Request, err, tok.Decode(got), tok.Decode(v.IDs))
		case v.Error == "":
			chats++
		}
	}
	if err := lines.Err(); err != nil {
		t.Fatal(err)
	}
	return texts, chats
}

// checkCuts cuts each rendered chat at each border and joins the tokens.
func checkCuts(t *testing.T, tok *tokenize.Tokenizer, requests []json.RawMessage) {
	t.Helper()
	cuts := 0
	for i, request := range requests {
		text, whole, err := tokenize.Rendered(tok, chatBody(t, string(request)))
		if err != nil {
			continue
		}
		for end := range tokenize.Borders(tok, text) {
			cuts++
			if joined := tokenize.Joined(tok, text[:end], text[end:]); !slices.Equal(joined, whole) {
				t.Errorf("request %d cut at %d: %d, not %d", i, end, joined, whole)
			}
		}
	}
	if cuts < 100 {
		t.Errorf("%d cuts", cuts)
	}
}

// checkConversation lets a conversation grow turn by turn: its tokens from the
// cache are those of the whole text, and all but the last turns come from it.
func checkConversation(t *testing.T, tok *tokenize.Tokenizer) {
	t.Helper()
	tok = tokenize.Fresh(tok)
	var messages []string
	for turn := range 8 {
		role := []string{"user", "assistant"}[turn%2]
		content, _ := json.Marshal(fmt.Sprintf("%d: %s\n\n  naïve 数字 12345 don't %s ", turn, strings.Repeat("Lorem ipsum, dolor. ", 20), strings.Repeat("=", turn)))
		messages = append(messages, fmt.Sprintf(`{"role":%q,"content":%s}`, role, content))
		body := fmt.Sprintf(`{"model":"m","messages":[%s]}`, strings.Join(messages, ","))
		for range 2 {
			got, err := tok.Chat(context.Background(), chatBody(t, body), nil)
			if err != nil {
				t.Fatal(err)
			}
			if want := tokenize.Whole(tok, chatBody(t, body)); !slices.Equal(got, want) {
				t.Errorf("turn %d: got %d, want %d", turn, got, want)
			}
		}
	}
	if chunks := tokenize.Chunks(tok); chunks < 7 || chunks > 20 {
		t.Errorf("8 turns made %d chunks", chunks)
	}
}

// What a config.json tells decides whether chats are rendered here.
func TestConfig(t *testing.T) {
	tokenizerJSON, configJSON := demotok.Files()
	body := func(t *testing.T) *openai.Body {
		return chatBody(t, `{"model":"m","messages":[{"role":"user","content":"a"}]}`)
	}
	for _, c := range []struct{ config, mode, want string }{
		{`{"model_type":"qwen3","architectures":["Qwen3ForCausalLM"]}`, "", ""},
		{`{"model_type":"qwen3"}`, "auto", ""},
		{`{"model_type":"deepseek_v32","architectures":["DeepseekV32ForCausalLM"]}`, "hf", ""},
		{`{"model_type":"gpt_oss"}`, "", "openai-harmony"},
		{`{"model_type":"deepseek_v32"}`, "", `"deepseek_v32"`},
		{`{"architectures":["DeepseekV32ForCausalLM"]}`, "auto", `"deepseek_v32"`},
		{`{"architectures":["DeepseekV4ForCausalLM"]}`, "", `"deepseek_v4"`},
		{`{"architectures":["KimiK3ForConditionalGeneration"]}`, "", `"kimi_k3"`},
		{`{"model_type":"cohere2"}`, "cohere", `"cohere"`},
		{`{"model_type":"mistral"}`, "mistral", "mistral-common"},
	} {
		tok, err := tokenize.Load(tokenize.Files{Tokenizer: tokenizerJSON, TokenizerConfig: configJSON, Config: []byte(c.config), Mode: c.mode})
		if err != nil {
			t.Errorf("%s: %v", c.config, err)
			continue
		}
		if ids := tok.CompletionTokens(" the"); len(ids) != 1 {
			t.Errorf("%s: the text's tokens are %d", c.config, ids)
		}
		ids, err := tok.Chat(context.Background(), body(t), []uint32{7})
		if c.want == "" && err != nil || c.want != "" && (!errors.Is(err, chat.ErrNotRenderable) || !strings.Contains(err.Error(), c.want) || len(ids) != 1) {
			t.Errorf("%s, mode %q: a chat gives %v, not %q", c.config, c.mode, err, c.want)
		}
	}
}

// Where transformers would not take tokenizer.json as it is, Load says so.
func TestConfigRefused(t *testing.T) {
	tokenizerJSON, _ := demotok.Files()
	llama := []byte(`{"tokenizer_class":"LlamaTokenizerFast","chat_template":"x"}`)
	for config, want := range map[string]string{
		``:                             `tokenizer: tokenizer_config.json: tokenizer_class "LlamaTokenizerFast" with model_type "" in config.json is not supported: the engine would not take tokenizer.json as it is (qwen2+NFC) but cut texts as llama2 does`,
		`{"model_type":"llama"}`:       `tokenizer: tokenizer_config.json: tokenizer_class "LlamaTokenizerFast" with model_type "llama" in config.json is not supported: the engine would not take tokenizer.json as it is (qwen2+NFC) but cut texts as llama2 does`,
		`{"model_type":"deepseek_v3"}`: ``,
		`{"model_type":"qwen2"}`:       ``,
		`[`:                            `tokenizer: config.json: unexpected end of JSON input`,
	} {
		f := tokenize.Files{Tokenizer: tokenizerJSON, TokenizerConfig: llama}
		if config != "" {
			f.Config = []byte(config)
		}
		got := ""
		if _, err := tokenize.Load(f); err != nil {
			got = err.Error()
		}
		if got != want {
			t.Errorf("%q: got %q, want %q", config, got, want)
		}
	}
}
