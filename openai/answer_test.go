package openai_test

import (
	"bytes"
	"fmt"
	"os"
	"runtime"
	"strings"
	"testing"

	"epp.internal/epp/openai"
)

const sse = "text/event-stream; charset=utf-8"

// read feeds a whole answer in the given chunks and returns what was read of it.
func read(contentType string, chunks ...[]byte) string {
	a := openai.NewAnswer(contentType)
	for _, chunk := range chunks {
		a.Feed(chunk)
	}
	a.End()
	u, ok := a.Usage()
	return fmt.Sprintf("first=%v model=%s usage=%v prompt=%d completion=%d cached=%d",
		a.FirstToken(), a.Model(), ok, u.PromptTokens, u.CompletionTokens, u.CachedTokens)
}

// usageStreams are streams that tell a usage of 17 and 5, 16 of the 17 cached.
var usageStreams = map[string]string{
	"chat": `data: {"id":"c","model":"m","choices":[{"delta":{"role":"assistant","content":""}}]}

data: {"id":"c","model":"m","choices":[{"delta":{"content":"Hé"},"finish_reason":"stop"}]}

data: {"id":"c","model":"m","choices":[],"usage":{"prompt_tokens":17,"total_tokens":22,"completion_tokens":5,"prompt_tokens_details":{"cached_tokens":16}}}

data: [DONE]

`,
	// Anthropic counts the cached tokens apart from the others.
	"messages": `event: message_start
data: {"type":"message_start","message":{"model":"m","usage":{"input_tokens":1,"cache_read_input_tokens":16,"output_tokens":1}}}

event: content_block_delta
data: {"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"Hé"}}

event: message_delta
data: {"type":"message_delta","delta":{"stop_reason":"end_turn"},"usage":{"output_tokens":5}}

event: message_stop
data: {"type":"message_stop"}

`,
	"responses": `event: response.created
data: {"type":"response.created","response":{"model":"m","usage":null}}

event: response.output_text.delta
data: {"type":"response.output_text.delta","delta":"Hé"}

event: response.completed
data: {"type":"response.completed","response":{"model":"m","usage":{"input_tokens":17,"input_tokens_details":{"cached_tokens":16},"output_tokens":5}}}

`,
}

const usageBody = `{"id":"c","model":"m","choices":[{"message":{"content":"\"usage\":{\"prompt_tokens\":99}"}}],"usage":{"prompt_tokens":17,"completion_tokens":5,"prompt_tokens_details":{"cached_tokens":16}}}`

// Case I1: usage of 17 and 5 is read once, wherever the stream is cut into
// frames, in each form, and where the stream ends without its end marker.
func TestCaseI1(t *testing.T) {
	check := func(name, contentType, answer string) {
		want := fmt.Sprintf("first=%v model=m usage=true prompt=17 completion=5 cached=16", contentType == sse)
		for cut := range len(answer) + 1 {
			if got := read(contentType, []byte(answer[:cut]), []byte(answer[cut:])); got != want {
				t.Errorf("%s cut at %d: got %s, want %s", name, cut, got, want)
			}
		}
		single := make([][]byte, len(answer))
		for i := range answer {
			single[i] = []byte{answer[i]}
		}
		if got := read(contentType, single...); got != want {
			t.Errorf("%s byte by byte: got %s, want %s", name, got, want)
		}
	}
	for name, stream := range usageStreams {
		check(name, sse, stream)
		check(name+" with CRLF", sse, strings.ReplaceAll(stream, "\n", "\r\n"))
		check(name+" with CR", sse, strings.ReplaceAll(stream, "\n", "\r"))
		unended := strings.TrimRight(strings.TrimSuffix(strings.TrimRight(stream, "\n"), "data: [DONE]"), "\n")
		check(name+" without end", sse, unended)
	}
	check("single body", "application/json", usageBody)
}

// Case I3: an answer with a usage of any type, or that is no answer at all, is
// passed over; numbers in strings are read.
func TestCaseI3(t *testing.T) {
	for usage, want := range map[string]string{
		`"x"`:  "usage=false prompt=-1 completion=-1 cached=-1",
		`null`: "usage=false prompt=-1 completion=-1 cached=-1",
		`[1]`:  "usage=false prompt=-1 completion=-1 cached=-1",
		`{"prompt_tokens":"12","completion_tokens":3.0}`:                                          "usage=true prompt=12 completion=3 cached=-1",
		`{"prompt_tokens":12,"prompt_tokens_details":0}`:                                          "usage=true prompt=12 completion=-1 cached=-1",
		`{"prompt_tokens":12,"prompt_tokens_details":{"cached_tokens":"x"}}`:                      "usage=true prompt=12 completion=-1 cached=-1",
		`{"prompt_tokens":-3,"completion_tokens":1e300}`:                                          "usage=false prompt=-1 completion=-1 cached=-1",
		`{"prompt_tokens":NaN,"completion_tokens":99999999999999999999}`:                          "usage=false prompt=-1 completion=-1 cached=-1",
		`{"prompt_tokens":{"a":[]},"input_tokens":[],"output_tokens":true}`:                       "usage=false prompt=-1 completion=-1 cached=-1",
		`{"prompt_tokens":7,"prompt_tokens_details":{"cached_tokens":-1},"completion_tokens":""}`: "usage=true prompt=7 completion=-1 cached=-1",
	} {
		body := []byte(`{"model":5,"usage":` + usage + `}`)
		if got := read("application/json", body); got != "first=false model= "+want {
			t.Errorf("body with usage %s: got %s", usage, got)
		}
		event := []byte("data: " + string(body) + "\n\n")
		if got := read(sse, event); !strings.HasSuffix(got, " model= "+want) {
			t.Errorf("event with usage %s: got %s", usage, got)
		}
	}
	for _, junk := range []string{"[]", "[", "{", "", "\xff\xfe", `{"usage":{"prompt_tokens":1`, `"usage"`, `{"usage":}`, `{"usage":"\`, strings.Repeat("[", 5000)} {
		for _, contentType := range []string{"application/json", sse, "", "text/plain"} {
			if got := read(contentType, []byte(junk)); !strings.Contains(got, "usage=false") {
				t.Errorf("%q as %q: got %s", junk, contentType, got)
			}
			read(sse, []byte("data: "+junk+"\n"), []byte("\r\ndata:\n\n"))
		}
	}
	// Invalid UTF-8 in the text does not hide the usage.
	if got := read(sse, []byte("data: {\"choices\":[{\"delta\":{\"content\":\"\xff\"}}],\"usage\":{\"prompt_tokens\":3}}\n\n")); !strings.Contains(got, "first=true") || !strings.Contains(got, "prompt=3") {
		t.Errorf("invalid UTF-8: got %s", got)
	}
}

// 50 MB of junk without a line's end, as a stream and as a body, leave no more
// than the bound behind; the next event of the stream is read.
func TestAnswerIsBounded(t *testing.T) {
	junk := bytes.Repeat([]byte(`data: {"usage":"x`), 1<<12)
	for _, contentType := range []string{sse, "application/json"} {
		var before, after runtime.MemStats
		a := openai.NewAnswer(contentType)
		runtime.GC()
		runtime.ReadMemStats(&before)
		if contentType != sse {
			a.Feed([]byte(`{"usage":[`))
		}
		for fed := 0; fed < 50<<20; fed += len(junk) {
			a.Feed(junk)
		}
		runtime.GC()
		runtime.ReadMemStats(&after)
		if held := int64(after.HeapAlloc) - int64(before.HeapAlloc); held > 3*openai.MaxEventBytes {
			t.Errorf("%s: %d bytes held after 50 MB", contentType, held)
		}
		if contentType == sse {
			a.Feed([]byte("\n\ndata: {\"usage\":{\"prompt_tokens\":3}}\n\n"))
			if u, ok := a.Usage(); !ok || u.PromptTokens != 3 {
				t.Errorf("event after the junk: got %v, %v", u, ok)
			}
		}
		runtime.KeepAlive(a)
	}
}

// The first token of a stream is its first event with text, reasoning, a tool
// call or an end, not the one that only names the role.
func TestFirstToken(t *testing.T) {
	for event, want := range map[string]bool{
		`{"choices":[{"delta":{"role":"assistant","content":""}}]}`:                   false,
		`{"choices":[{"delta":{"role":"assistant","content":null,"tool_calls":[]}}]}`: false,
		`{"choices":[]}`:                                                         false,
		`{"error":{"message":"x"}}`:                                              false,
		`{"type":"message_start","message":{}}`:                                  false,
		`{"type":"content_block_start"}`:                                         false,
		`{"type":"response.created"}`:                                            false,
		`{"choices":[{"text":""}]}`:                                              false,
		`{"choices":[{"delta":{"content":" "}}]}`:                                true,
		`{"choices":[{"delta":{"reasoning":"x"}}]}`:                              true,
		`{"choices":[{"delta":{"reasoning_content":"x"}}]}`:                      true,
		`{"choices":[{"delta":{"tool_calls":[{"index":0}]}}]}`:                   true,
		`{"choices":[{"delta":{},"finish_reason":"stop"}]}`:                      true,
		`{"choices":[{"text":"x"}]}`:                                             true,
		`{"choices":[{"delta":{"content":""}}],"usage":{"completion_tokens":1}}`: true,
		`{"type":"content_block_delta","delta":{"text":"x"}}`:                    true,
		`{"type":"response.output_text.delta","delta":"x"}`:                      true,
	} {
		a := openai.NewAnswer(sse)
		a.Feed([]byte("data: " + event + "\n"))
		if got := a.FirstToken(); got != want {
			t.Errorf("%s: FirstToken = %v, want %v", event, got, want)
		}
	}
}

// Answers as a vLLM server sent them.
func TestCapturedAnswers(t *testing.T) {
	for file, want := range map[string]string{
		"chat.json":                        "first=false model=tiny usage=true prompt=75 completion=12 cached=-1",
		"completion.json":                  "first=false model=tiny usage=true prompt=81 completion=6 cached=-1",
		"turn2.json":                       "first=false model=tiny usage=true prompt=306 completion=40 cached=256",
		"chat_stream.sse":                  "first=true model=tiny usage=true prompt=75 completion=6 cached=-1",
		"chat_stream_continuous_usage.sse": "first=true model=tiny usage=true prompt=75 completion=4 cached=-1",
		"stream_usage.sse":                 "first=true model=tiny usage=true prompt=246 completion=6 cached=224",
		"stream_no_usage.sse":              "first=true model=tiny usage=false prompt=-1 completion=-1 cached=-1",
	} {
		body, err := os.ReadFile("testdata/vllm/" + file)
		if err != nil {
			t.Fatal(err)
		}
		contentType := "application/json"
		if strings.HasSuffix(file, ".sse") {
			contentType = sse
		}
		if got := read(contentType, body); got != want {
			t.Errorf("%s:\ngot  %s\nwant %s", file, got, want)
		}
	}
}

// An answer cut anywhere reads as the whole one.
func FuzzAnswer(f *testing.F) {
	for _, stream := range usageStreams {
		f.Add([]byte(stream), uint(40), true)
	}
	f.Add([]byte(usageBody), uint(100), false)
	f.Add([]byte("data: {\ndata: \"usage\":{\"prompt_tokens\":1}}\r\r\n: x\n\ndata:{}\n"), uint(9), true)
	f.Fuzz(func(t *testing.T, body []byte, cut uint, stream bool) {
		contentType := "application/json"
		if stream {
			contentType = sse
		}
		at := int(cut % uint(len(body)+1))
		whole, parts := read(contentType, body), read(contentType, body[:at], body[at:])
		if whole != parts {
			t.Fatalf("cut at %d:\nwhole %s\nparts %s", at, whole, parts)
		}
	})
}

func BenchmarkAnswer(b *testing.B) {
	body, err := os.ReadFile("testdata/vllm/chat_stream_continuous_usage.sse")
	if err != nil {
		b.Fatal(err)
	}
	events := bytes.SplitAfter(body, []byte("\n\n"))
	b.ReportAllocs()
	b.SetBytes(int64(len(body)))
	for b.Loop() {
		a := openai.NewAnswer(sse)
		for _, event := range events {
			a.Feed(event)
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*len(events)), "ns/event")
}

func ExampleAnswer() {
	a := openai.NewAnswer("text/event-stream")
	a.Feed([]byte("data: {\"model\":\"m\",\"choices\":[{\"delta\":{\"role\":\"assistant\",\"content\":\"\"}}]}\n\n"))
	fmt.Println(a.FirstToken())
	a.Feed([]byte("data: {\"model\":\"m\",\"choices\":[{\"delta\":{\"content\":\"Hi\"}}]}\n\ndata: {\"model\":\"m\",\"choices\":[],\"usa"))
	fmt.Println(a.FirstToken())
	a.Feed([]byte("ge\":{\"prompt_tokens\":17,\"completion_tokens\":5}}\n\n"))
	fmt.Println(a.Usage())
	// Output:
	// false
	// true
	// {17 5 -1} true
}
