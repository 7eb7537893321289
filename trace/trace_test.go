package trace_test

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"epp.internal/epp/trace"
)

// Three rows have the stamp 0 and two the next one, 3,000 ms later: they are spread
// over the grid's 3 s. Of 1,000 tokens the second id stands for what is left.
func TestMooncakeByHand(t *testing.T) {
	const text = `{"timestamp": 0, "input_length": 512, "output_length": 9, "hash_ids": [0]}
{"timestamp": 0, "input_length": 1000, "output_length": 1, "hash_ids": [0, 1]}
{"timestamp": 0, "input_length": 1024, "output_length": 1, "hash_ids": [0, 2]}
{"timestamp": 3000, "input_length": 1030, "output_length": 1, "hash_ids": [0, 2, 3]}
{"timestamp": 3000, "input_length": 5, "output_length": 0, "hash_ids": [4]}
`
	tr, err := trace.Read("t", strings.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	var at []time.Duration
	var prompts []int
	for _, r := range tr.Requests {
		at, prompts = append(at, r.At), append(prompts, r.PromptTokens())
	}
	if want := []time.Duration{0, 1 * time.Second, 2 * time.Second, 3 * time.Second, 4500 * time.Millisecond}; !slices.Equal(at, want) {
		t.Errorf("arrivals %v, want %v", at, want)
	}
	if want := []int{512, 1000, 1024, 1030, 5}; !slices.Equal(prompts, want) {
		t.Errorf("prompts %v, want %v", prompts, want)
	}
	if tr.Requests[1].Prompt[1].Tokens != 488 || tr.Requests[2].Session != tr.Requests[3].Session {
		t.Errorf("segments %v, sessions %d and %d", tr.Requests[1].Prompt, tr.Requests[2].Session, tr.Requests[3].Session)
	}
	// Requests 1, 2 and 3 share block 0, and 3 has all of 2 before what is new.
	if got, want := tr.Stats().SharedTokens, 512+512+1024; got != want {
		t.Errorf("shared tokens %d, want %d", got, want)
	}
}

// Two stamps of a part lie an hour apart: what has one of them came within the grid's
// 3 s all the same.
func TestMooncakeFarApart(t *testing.T) {
	row := func(stamp int) string {
		return fmt.Sprintf(`{"timestamp": %d, "input_length": 5, "output_length": 1, "hash_ids": [1]}`+"\n", stamp)
	}
	tr, err := trace.Read("t", strings.NewReader(row(0)+row(0)+row(3_600_000)))
	if err != nil {
		t.Fatal(err)
	}
	if got, want := tr.Requests[1].At, 1500*time.Millisecond; got != want {
		t.Errorf("the second request of the first stamp comes at %v, want %v", got, want)
	}
}

// TestHeads reads the first rows of the two real traces.
func TestHeads(t *testing.T) {
	for name, want := range map[string]trace.Stats{
		"testdata/mooncake_conversation_head.jsonl": {Requests: 40, Duration: 13499500 * time.Microsecond, PromptTokens: 506280, AnswerTokens: 14962, SharedTokens: 39 * 512},
		"testdata/azure_conv_head.csv":              {Requests: 40, Duration: 24146296 * time.Microsecond, PromptTokens: 27985, AnswerTokens: 4430, SharedTokens: 753},
	} {
		data, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		tr, err := trace.Read(name, bytes.NewReader(data))
		if err != nil {
			t.Fatal(err)
		}
		if got := tr.Stats(); got != want {
			t.Errorf("%s: %+v, want %+v", name, got, want)
		}
	}
}

// The whole conversation trace is what it is known to be: 36.6 % of its blocks, here
// 37.4 % of its tokens, were asked before; its hour has 12,031 requests.
func TestWholeConversationTrace(t *testing.T) {
	f, err := os.Open("testdata/mooncake_conversation.jsonl.gz")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	tr, err := trace.Read("conversation", f)
	if err != nil {
		t.Fatal(err)
	}
	st := tr.Stats()
	if st.Requests != 12031 || st.PromptTokens != 144793823 || st.AnswerTokens != 4122048 || st.Duration.Round(time.Minute) != 59*time.Minute {
		t.Errorf("%+v", st)
	}
	if share := float64(st.SharedTokens) / float64(st.PromptTokens); share < 0.370 || share > 0.375 {
		t.Errorf("shared share %.4f, want 0.37", share)
	}
}

// What is wrong is told with its line and its value.
func gzipped(text string) string {
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	_, _ = z.Write([]byte(text)) // a bytes.Buffer takes all
	_ = z.Close()
	return b.String()
}

func TestRefused(t *testing.T) {
	packed := gzipped(strings.Repeat("{\"timestamp\": 0, \"input_length\": 1, \"output_length\": 1, \"hash_ids\": [1]}\n", 3))
	for text, want := range map[string]string{
		"":      `t: begins with "": want a Mooncake trace`,
		"hello": `t: begins with "hello": want a Mooncake trace`,
		`{"timestamp": 0, "input_length": 512, "output_length": 9, "hash_ids": [0, 1]}`:                                                                                                        "t:1: hash_ids has 2 ids: an input_length of 512 needs 1",
		`{"timestamp": 0, "input_length": 0, "output_length": 9, "hash_ids": []}`:                                                                                                              "t:1: prompt of 0 tokens: want 1–4194304",
		`{"input_length": 5, "output_length": 9, "hash_ids": [1]}`:                                                                                                                             "t:1: timestamp is missing",
		"{\"timestamp\": 5, \"input_length\": 1, \"output_length\": 1, \"hash_ids\": [1]}\n{\"timestamp\": 4, \"input_length\": 1, \"output_length\": 1, \"hash_ids\": [1]}":                   "t:2: timestamp 4 is before the one of the row above, 5",
		"{\"timestamp\": 0, \"input_length\": 1, \"output_length\": 1, \"hash_ids\": [1]}\n{\"timestamp\": 157680000000, \"input_length\": 1, \"output_length\": 1, \"hash_ids\": [1]}":        "t:2: timestamp 157680000000 is more than 744h0m0s after the first one, 0",
		`{"timestamp": -9000000000000000000, "input_length": 1, "output_length": 1, "hash_ids": [1]}`:                                                                                          "t:1: timestamp -9000000000000000000: want milliseconds, 0 or more",
		"{\"timestamp\": 0, \"input_length\": 1, \"output_length\": 1, \"hash_ids\": [1]}\n{\"timestamp\": 9000000000000000000, \"input_length\": 1, \"output_length\": 1, \"hash_ids\": [1]}": "t:2: timestamp 9000000000000000000 is more than 744h0m0s after",
		gzipped(gzipped("{}")):                             `t: begins with "\x1f\x8b`,
		`{"timestamp": "x"}`:                               "t:1: no Mooncake row",
		"TIMESTAMP,ContextTokens,GeneratedTokens\nnow,1,1": `t:2: TIMESTAMP "now" is no time`,
		"TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.6805900,x,44": `t:2: lengths "x" and "44": want whole numbers`,
		"TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.6805900,3":    "t:2: row has 2 columns: want 3",
		"TIMESTAMP,Context,GeneratedTokens\n":                                       `t:1: head is "TIMESTAMP,Context,GeneratedTokens"`,
		"TIMESTAMP,ContextTokens,GeneratedTokens\n":                                 "t: no request in it",
		packed[:len(packed)-1]:                                                      "t: is cut off after line 3: unexpected EOF",
		packed[:40]:                                                                 "t: is cut off after line 0: unexpected EOF",
		"\x1f\x8bno gzip, whatever it says at its head":                             "t: gzip: invalid header",
	} {
		_, err := trace.Read("t", strings.NewReader(text))
		if err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%.40q: error %v, want %s…", text, err, want)
		}
	}
}

// Of a lengths-only trace a request 20 s later that is a little longer than a
// prompt and its answer goes on that conversation; one that is much longer, or
// comes within 10 s, begins another.
func TestAzurePrefixModel(t *testing.T) {
	tr, err := trace.Read("t", strings.NewReader(`TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:00:00.0000000,1000,100
2023-11-16 18:00:05.0000000,1150,100
2023-11-16 18:00:20.0000000,1200,50
2023-11-16 18:00:40.0000000,9000,50
2023-11-16 18:00:41.0000000,1300,50
`))
	if err != nil {
		t.Fatal(err)
	}
	var segments, sessions []int
	for _, r := range tr.Requests {
		segments, sessions = append(segments, len(r.Prompt)), append(sessions, int(r.Session))
	}
	// The third continues the first (1,100 tokens so far), the last the second
	// (1,250) and not the first (1,250 too, but met first in its order).
	if want := []int{1, 1, 3, 1, 3}; !slices.Equal(segments, want) {
		t.Errorf("segments %v, want %v", segments, want)
	}
	if want := []int{0, 1, 0, 3, 1}; !slices.Equal(sessions, want) {
		t.Errorf("sessions %v, want %v", sessions, want)
	}
}

// Equal prefixes have equal tokens, and prompts part where their segments do.
func TestTokensFollowNames(t *testing.T) {
	a := trace.Request{Prompt: []trace.Segment{{ID: 1, Tokens: 32}, {ID: 2, Tokens: 16}}}
	b := trace.Request{Prompt: []trace.Segment{{ID: 1, Tokens: 32}, {ID: 3, Tokens: 16}}}
	x, y := a.AppendPrompt(nil), b.AppendPrompt(nil)
	if !slices.Equal(x[:32], y[:32]) {
		t.Error("one segment has two lists of tokens")
	}
	for i := 32; i < 48; i++ {
		if x[i] == y[i] {
			t.Errorf("token %d is %d in both", i, x[i])
		}
	}
}

// TestGenerate: the same seed gives the same trace, another one another; requests
// come in order, at the rate that was asked for, and share what the kind says.
func TestGenerate(t *testing.T) {
	shares := map[string][2]float64{ // shared tokens ÷ prompt tokens, at least and at most
		"chat": {0.7, 0.98}, "agents": {0.5, 0.95}, "rag": {0.1, 0.9}, "batch": {0.5, 0.8},
		"lora": {0.6, 0.98}, "hot": {0.4, 0.6}, "bursts": {0.7, 0.98},
	}
	kinds, _ := trace.Kinds()
	for _, kind := range kinds {
		w := trace.Workload{Kind: kind, Requests: 3000, Rate: 10, Seed: 7}
		a, err := trace.Generate(w)
		if err != nil {
			t.Fatal(err)
		}
		b, _ := trace.Generate(w)
		if !reflect.DeepEqual(a, b) {
			t.Fatalf("%s: one seed, two traces", kind)
		}
		w.Seed++
		if c, _ := trace.Generate(w); reflect.DeepEqual(a, c) {
			t.Errorf("%s: two seeds, one trace", kind)
		}
		if !slices.IsSortedFunc(a.Requests, func(x, y trace.Request) int { return int(x.At - y.At) }) {
			t.Errorf("%s: not in order", kind)
		}
		st := a.Stats()
		if rate := float64(st.Requests) / st.Duration.Seconds(); rate < 6 || rate > 13 { // conversations begin with their first turns alone
			t.Errorf("%s: %.1f requests a second, want about 10", kind, rate)
		}
		if s, want := float64(st.SharedTokens)/float64(st.PromptTokens), shares[kind]; s < want[0] || s > want[1] {
			t.Errorf("%s: share %.2f, want %v", kind, s, want)
		}
	}
}

// TestPart: the parts of a trace are all of it.
func TestPart(t *testing.T) {
	tr, err := trace.Generate(trace.Workload{Kind: "chat", Requests: 500, Seed: 1})
	if err != nil {
		t.Fatal(err)
	}
	rapid.Check(t, func(t *rapid.T) {
		cut := rapid.Float64Range(0.01, 0.99).Draw(t, "cut")
		a, b := tr.Part(0, cut), tr.Part(cut, 1)
		if n := len(a.Requests) + len(b.Requests); n != 500 {
			t.Fatalf("%d requests in both parts, want 500", n)
		}
		if len(b.Requests) > 0 && b.Requests[0].At < 0 {
			t.Fatalf("second part begins at %v", b.Requests[0].At)
		}
	})
}

// FuzzRead: whatever the bytes, a trace comes out that keeps the package's
// invariants, or an error.
func FuzzRead(f *testing.F) {
	for _, name := range []string{"testdata/mooncake_conversation_head.jsonl", "testdata/azure_conv_head.csv"} {
		data, err := os.ReadFile(name)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
	f.Add([]byte(`{"timestamp": -9223372036854775808, "input_length": 1, "output_length": 1, "hash_ids": [72057594037927935]}`))
	f.Add([]byte("INFO 12-31 23:59:58 [logger.py:41] Received request a: prompt: 'a', params: P(), prompt_token_ids: [1, 2], lora_request: None."))
	f.Add([]byte(`{"timestamp": 1.5, "request": {"messages": [{"role": "user", "content": "a"}]}, "usage": {"prompt_tokens": 9, "completion_tokens": 1}}`))
	f.Add([]byte(`{"settings":{"version":1,"policy":"weighted","weights":[{"name":"cache","value":1}],"maxQueue":1,"onSaturated":"degrade","loadSource":"requests","maxUtilization":1,"staleAfterNanos":1}}
{"decision":{"requestID":"a","attempt":1,"atNanos":5,"promptTokens":130,"tokenSource":1,"promptStepTokens":128,"prompt":[7],"chosen":-1,"runnerUp":-1}}
{"end":{"requestID":"a","attempt":1,"completionTokens":3}}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		tr, err := trace.Read("f", bytes.NewReader(data))
		if err != nil {
			return
		}
		for i, r := range tr.Requests {
			if r.At < 0 || i > 0 && r.At < tr.Requests[i-1].At || r.PromptTokens() < 1 {
				t.Fatalf("request %d: %+v", i, r)
			}
		}
	})
}
