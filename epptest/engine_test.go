package epptest

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"epp.internal/epp/engine"
	"github.com/google/go-cmp/cmp"
)

// A conversation's next turn finds the blocks of all before it, the answer's
// among them: its text is tokenized back to the tokens that were generated.
func TestConversationFindsItsBlocks(t *testing.T) {
	e := start(t, EngineConfig{Engine: engine.Config{BlockTokens: 16}})
	var messages []string
	var prompt, answered int
	for turn := range 4 {
		messages = append(messages, fmt.Sprintf(`{"role":"user","content":"%s %d"}`, strings.Repeat("word ", 20), turn))
		var got usageOf
		fetchJSON(t, e, "/v1/chat/completions", `{"max_tokens":40,"messages":[`+strings.Join(messages, ",")+`]}`, &got)
		// The last token of an answer is never computed.
		want := max(0, prompt+answered-1) / 16 * 16
		if got.Usage.Details.Cached != want {
			t.Errorf("turn %d: %d cached of %d, want %d", turn, got.Usage.Details.Cached, got.Usage.Prompt, want)
		}
		prompt, answered = got.Usage.Prompt, got.Usage.Completion
		answer := got.Choices[0].Message.Content
		if len(answer) != 40 {
			t.Fatalf("answer %q", answer)
		}
		messages = append(messages, `{"role":"assistant","content":"`+answer+`"}`)
	}
}

// Two engines say the same to the same prompt, and another thing to another.
func TestAnswersDependOnThePromptAlone(t *testing.T) {
	a, b := start(t, EngineConfig{Name: "a"}), start(t, EngineConfig{Name: "b"})
	say := func(e *Engine, prompt string) string {
		t.Helper()
		var got usageOf
		fetchJSON(t, e, "/v1/completions", `{"prompt":"`+prompt+`"}`, &got)
		return got.Choices[0].Text
	}
	if x, y := say(a, "one"), say(b, "one"); x != y {
		t.Errorf("a says %q, b says %q", x, y)
	}
	if x, y := say(a, "one"), say(a, "two"); x == y {
		t.Errorf("to both prompts: %q", x)
	}
}

// The first token comes while the rest is still being made.
func TestStreamArrivesTokenByToken(t *testing.T) {
	e := start(t, EngineConfig{TimeScale: 0.05})
	resp, err := send(t, within(t), e, "/v1/completions", `{"prompt":"Hi","max_tokens":200,"stream":true}`)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if ct := resp.Header.Get("Content-Type"); ct != "text/event-stream; charset=utf-8" {
		t.Errorf("content type %q", ct)
	}
	r := bufio.NewReader(resp.Body)
	if line, err := r.ReadString('\n'); err != nil || !strings.HasPrefix(line, "data: {") {
		t.Fatalf("first line %q: %v", line, err)
	}
	e.HoldAnswers(true)
	if e.Running() != 1 {
		t.Fatalf("the answer was over when its first token came: %+v", e.Load())
	}
	e.HoldAnswers(false)
	rest, err := io.ReadAll(r)
	if err != nil || strings.Count(string(rest), "data: ") != 200 { // 199 tokens, [DONE]
		t.Errorf("%d events after the first: %v", strings.Count(string(rest), "data: "), err)
	}
}

// Engines hold their answers: slots fill, the rest waits, and all are answered
// once they are released. Streams have their headers meanwhile.
func TestHeldAnswersFillTheSlots(t *testing.T) {
	e := start(t, EngineConfig{Engine: engine.Config{MaxRunning: 4}})
	e.HoldAnswers(true)
	ctx := within(t)
	stream, err := send(t, ctx, e, "/v1/completions", `{"prompt":"streamed","stream":true,"max_tokens":2}`)
	if err != nil {
		t.Fatal(err)
	}
	defer stream.Body.Close()
	var done sync.WaitGroup
	for i := range 5 {
		done.Go(func() {
			resp, err := send(t, ctx, e, "/v1/completions", fmt.Sprintf(`{"prompt":"request %d"}`, i))
			if err != nil {
				t.Error(err)
				return
			}
			io.Copy(io.Discard, resp.Body)
			resp.Body.Close()
		})
	}
	full := func(l engine.Load) bool { return l.Running == 4 && l.Waiting == 2 }
	if err := e.AwaitLoad(ctx, full); err != nil {
		t.Fatal(err)
	}
	_, page := fetch(t, e, "/metrics", "")
	if !strings.Contains(page, `num_requests_running{engine="0",model_name="tiny"} 4.0`) ||
		!strings.Contains(page, `num_requests_waiting{engine="0",model_name="tiny"} 2.0`) {
		t.Errorf("metrics page:\n%s", page)
	}
	if c := e.Counters(); c.AnswerTokens != 0 {
		t.Errorf("%d tokens were produced", c.AnswerTokens)
	}
	e.HoldAnswers(false)
	done.Wait()
	if b, err := io.ReadAll(stream.Body); err != nil || strings.Count(string(b), "data: ") != 3 {
		t.Errorf("stream %q: %v", b, err)
	}
	if l := e.Load(); l.Running != 0 || l.Waiting != 0 || e.Counters().Finished != 6 {
		t.Errorf("at rest: %+v, %+v", l, e.Counters())
	}
}

// A client that goes away frees its slot at once, before and in its stream.
func TestAbortFreesTheSlot(t *testing.T) {
	for _, stream := range []bool{false, true} {
		e := start(t, EngineConfig{Engine: engine.Config{MaxRunning: 1}})
		e.HoldAnswers(true)
		ctx := within(t)
		going, leave := context.WithCancel(ctx)
		left := make(chan error, 1)
		go func() {
			resp, err := send(t, going, e, "/v1/completions", fmt.Sprintf(`{"prompt":"leaves","stream":%v}`, stream))
			if err == nil {
				_, err = io.Copy(io.Discard, resp.Body)
				resp.Body.Close()
			}
			left <- err
		}()
		await := func(running, waiting int) {
			t.Helper()
			if err := e.AwaitLoad(ctx, func(l engine.Load) bool { return l.Running == running && l.Waiting == waiting }); err != nil {
				t.Fatal(err)
			}
		}
		await(1, 0)
		stays := make(chan error, 1)
		go func() {
			resp, err := send(t, ctx, e, "/v1/completions", `{"prompt":"stays"}`)
			if err == nil {
				resp.Body.Close()
			}
			stays <- err
		}()
		await(1, 1)
		leave()
		if err := <-left; !errors.Is(err, context.Canceled) {
			t.Errorf("stream %v: %v", stream, err)
		}
		await(1, 0)
		if c := e.Counters(); c.Aborted != 1 || c.AnswerTokens != 0 {
			t.Errorf("stream %v: %+v", stream, c)
		}
		e.HoldAnswers(false)
		if err := <-stays; err != nil {
			t.Error(err)
		}
	}
}

// A crash resets connections and leaves nothing listening; a restart has the
// same addresses, an empty cache, and events from 0.
func TestCrashAndRestart(t *testing.T) {
	e := start(t, EngineConfig{})
	ctx := within(t)
	next := subscribe(t, e, "", 1)
	prompt := `{"max_tokens":1,"prompt":"a prompt that fills a block or two"}`
	var got usageOf
	fetchJSON(t, e, "/v1/completions", prompt, &got)
	if b := next(); b.seq != 0 || e.Blocks() != 2 {
		t.Errorf("message %d, %d blocks", b.seq, e.Blocks())
	}
	addresses := [...]string{e.Address(), e.EventEndpoint(), e.ReplayEndpoint()}

	e.HoldAnswers(true)
	hanging := make(chan error, 1)
	go func() {
		_, err := send(t, ctx, e, "/v1/completions", prompt)
		hanging <- err
	}()
	if err := e.AwaitRequests(ctx, 2); err != nil {
		t.Fatal(err)
	}
	e.Crash()
	if err := <-hanging; err == nil || errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("the request of a crashed engine: %v", err)
	}
	if _, err := send(t, ctx, e, "/health", ""); err == nil {
		t.Error("a crashed engine answers")
	}
	if e.Running() != 0 || e.Blocks() != 0 || e.Counters() != (engine.Counters{}) {
		t.Error("a crashed engine has a load")
	}

	if err := e.Restart(); err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(addresses, [...]string{e.Address(), e.EventEndpoint(), e.ReplayEndpoint()}); d != "" {
		t.Errorf("addresses:\n%s", d)
	}
	next = subscribe(t, e, "", 1)
	got = usageOf{}
	fetchJSON(t, e, "/v1/completions", prompt, &got)
	if b := next(); b.seq != 0 || got.Usage.Details.Cached != 0 {
		t.Errorf("after the restart: message %d, %d cached", b.seq, got.Usage.Details.Cached)
	}
	if e.Requests() != 3 {
		t.Errorf("%d requests", e.Requests())
	}
}

// Each fault, and that it can be healed.
func TestFaults(t *testing.T) {
	e := start(t, EngineConfig{})
	stream := `{"prompt":"Hi","stream":true,"max_tokens":9}`
	for _, c := range []struct {
		name  string
		fault Fault
		path  string
		want  string
	}{
		{"status", Fault{Status: 500}, "/v1/completions", `500 {"error":{"message":"Internal Server Error","type":"InternalServerError","param":null,"code":500}}`},
		{"overload", Fault{Status: 503}, "/v1/completions", `503 {"error":{"message":"Service Unavailable","type":"ServiceUnavailableError","param":null,"code":503}}`},
		{"reset before headers", Fault{ResetBeforeHeaders: true}, "/v1/completions", "no answer"},
		{"reset after two events", Fault{ResetAfterChunks: 2}, "/v1/completions", "cut off after 2 events"},
		{"metrics status", Fault{MetricsStatus: 500}, "/metrics", "500 "},
	} {
		t.Run(c.name, func(t *testing.T) {
			e.SetFault(c.fault)
			body := stream
			if c.path == "/metrics" {
				body = ""
			}
			if got := outcome(t, within(t), e, c.path, body); got != c.want {
				t.Errorf("got  %s\nwant %s", got, c.want)
			}
			e.SetFault(Fault{})
			if got := outcome(t, within(t), e, "/v1/completions", stream); !strings.HasPrefix(got, "200 data: ") {
				t.Errorf("healed: %s", got)
			}
		})
	}
	if l := e.Load(); l.Running+l.Waiting != 0 {
		t.Errorf("left behind: %+v", l)
	}
}

// outcome tells in words how a request ended.
func outcome(t *testing.T, ctx context.Context, e *Engine, path, body string) string {
	t.Helper()
	resp, err := send(t, ctx, e, path, body)
	if err != nil {
		return "no answer"
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		return fmt.Sprintf("cut off after %d events", strings.Count(string(b), "data: "))
	}
	return fmt.Sprintf("%d %s", resp.StatusCode, b)
}

// A request that hangs ends with its client; a slow one takes its time.
func TestSlowAndHang(t *testing.T) {
	e := start(t, EngineConfig{})
	e.SetFault(Fault{Hang: true})
	going, leave := context.WithCancel(within(t))
	left := make(chan error, 1)
	go func() {
		_, err := send(t, going, e, "/v1/completions", `{"prompt":"Hi"}`)
		left <- err
	}()
	if err := e.AwaitRequests(within(t), 1); err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-left:
		t.Errorf("a hanging request ended: %v", err)
	default:
	}
	leave()
	if err := <-left; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	const slow = 30 * time.Millisecond
	e.SetFault(Fault{Slow: slow, MetricsDelay: slow})
	for _, path := range []string{"/v1/completions", "/metrics"} {
		body := ""
		if path != "/metrics" {
			body = `{"prompt":"Hi"}`
		}
		begun := time.Now()
		if status, _ := fetch(t, e, path, body); status != http.StatusOK || time.Since(begun) < slow {
			t.Errorf("%s: status %d after %v", path, status, time.Since(begun))
		}
	}
}

// Refusing connections lets what is under way go on.
func TestRefuseConnections(t *testing.T) {
	e := start(t, EngineConfig{})
	ctx := within(t)
	e.HoldAnswers(true)
	resp, err := send(t, ctx, e, "/v1/completions", `{"prompt":"Hi","stream":true}`)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	for range 2 { // saying it twice changes nothing
		if err := e.RefuseConnections(true); err != nil {
			t.Fatal(err)
		}
	}
	if got := outcome(t, ctx, e, "/health", ""); got != "no answer" {
		t.Errorf("refused: %s", got)
	}
	e.HoldAnswers(false)
	if b, err := io.ReadAll(resp.Body); err != nil || !strings.HasSuffix(string(b), "data: [DONE]\n\n") {
		t.Errorf("what was under way: %q, %v", b, err)
	}
	for range 2 {
		if err := e.RefuseConnections(false); err != nil {
			t.Fatal(err)
		}
	}
	if got := outcome(t, ctx, e, "/health", ""); got != "200 " {
		t.Errorf("open again: %s", got)
	}
}

// A sleeping engine is healthy, has no load, and answers nothing until it wakes.
func TestSleep(t *testing.T) {
	e := start(t, EngineConfig{})
	if status, _ := fetch(t, e, "/sleep?level=1", "{}"); status != http.StatusOK {
		t.Fatalf("status %d", status)
	}
	ctx := within(t)
	answered := make(chan string, 1)
	go func() { answered <- outcome(t, ctx, e, "/v1/completions", `{"prompt":"Hi","max_tokens":1}`) }()
	if err := e.AwaitRequests(ctx, 1); err != nil {
		t.Fatal(err)
	}
	var sleeping struct {
		IsSleeping bool `json:"is_sleeping"`
	}
	fetchJSON(t, e, "/is_sleeping", "", &sleeping)
	health, _ := fetch(t, e, "/health", "")
	if !sleeping.IsSleeping || health != http.StatusOK {
		t.Errorf("sleeping %v, health %d", sleeping.IsSleeping, health)
	}
	_, page := fetch(t, e, "/metrics", "")
	for line := range strings.Lines(readFile(t, "metrics_sleeping.txt")) {
		if !strings.Contains(page, line) {
			t.Errorf("the page of a sleeping vLLM has %s", line)
		}
	}
	select {
	case a := <-answered:
		t.Errorf("answered in its sleep: %s", a)
	default:
	}
	fetch(t, e, "/wake_up", "{}")
	if a := <-answered; !strings.HasPrefix(a, "200 ") {
		t.Errorf("awake: %s", a)
	}
	e.Sleep()
	if !e.Load().Asleep {
		t.Error("Sleep: awake")
	}
	e.Wake()
	if e.Load().Asleep {
		t.Error("Wake: asleep")
	}
}

// Adapters are loaded and unloaded while the engine runs; their blocks are not
// the base model's.
func TestAdapters(t *testing.T) {
	e := start(t, EngineConfig{Adapters: []string{"sql"}, Engine: engine.Config{MaxAdapters: 2}})
	for _, c := range []struct {
		path, body string
		status     int
		answer     string
	}{
		{"/v1/load_lora_adapter", `{"lora_name":"chat","lora_path":"/models/lora-chat"}`, 200, readFile(t, "load_lora.txt")},
		{"/v1/load_lora_adapter", `{"lora_name":"chat","lora_path":"/models/lora-chat"}`, 400, "already been loaded"},
		{"/v1/load_lora_adapter", `{"lora_name":"chat"}`, 400, "must be provided"},
		{"/v1/load_lora_adapter", `{}`, 400, "must be set"},
		{"/v1/completions", `{"model":"chat","prompt":"Hi"}`, 200, `"model":"chat"`},
		{"/v1/unload_lora_adapter", `{"lora_name":"chat"}`, 200, "Success: LoRA adapter 'chat' removed successfully."},
		{"/v1/unload_lora_adapter", `{"lora_name":"chat"}`, 404, "cannot be found"},
		{"/v1/completions", `{"model":"chat","prompt":"Hi"}`, 404, "does not exist"},
	} {
		if status, body := fetch(t, e, c.path, c.body); status != c.status || !strings.Contains(body, c.answer) {
			t.Errorf("%s %s: status %d: %s", c.path, c.body, status, body)
		}
	}
	prompt := `"prompt":"a prompt that fills a block","max_tokens":1`
	for _, c := range []struct {
		model  string
		cached int
	}{{"tiny", 0}, {"sql", 0}, {"tiny", 16}, {"sql", 16}} {
		var got usageOf
		fetchJSON(t, e, "/v1/completions", `{"model":"`+c.model+`",`+prompt+`}`, &got)
		if got.Usage.Details.Cached != c.cached {
			t.Errorf("%s: %d cached, want %d", c.model, got.Usage.Details.Cached, c.cached)
		}
	}
	plain := start(t, EngineConfig{})
	if status, _ := fetch(t, plain, "/v1/load_lora_adapter", `{"lora_name":"a","lora_path":"/a"}`); status != 404 {
		t.Errorf("an engine without slots loads adapters: status %d", status)
	}
}

// What the engine says through its methods is what it says on the wire.
func TestIntrospection(t *testing.T) {
	e := start(t, EngineConfig{})
	var got usageOf
	fetchJSON(t, e, "/v1/completions", `{"prompt":"thirty-three bytes, two blocks, 1","max_tokens":1,"cache_salt":"s"}`, &got)
	tokens := ByteTokenizer{}.CompletionTokens("thirty-three bytes, two blocks, 1")
	if n := e.Holds(tokens, "", "s"); n != 2 || e.Holds(tokens, "", "") != 0 || e.Blocks() != 2 {
		t.Errorf("holds %d blocks of the prompt, %d in all", n, e.Blocks())
	}
	if !e.ResetPrefixCache() || e.Blocks() != 0 {
		t.Errorf("%d blocks after a reset", e.Blocks())
	}
}

// Configs that make no engine.
func TestBadConfigs(t *testing.T) {
	for want, cfg := range map[string]EngineConfig{
		"TimeScale":      {TimeScale: -1},
		"BufferSteps":    {BufferSteps: -1},
		"AnswerTokens":   {AnswerTokens: []uint32{}},
		"MaxModelTokens": {MaxModelTokens: 1000, Engine: engine.Config{Blocks: 10}},
		"MaxRunning":     {Engine: engine.Config{MaxRunning: -1}},
		"unknown port":   {Address: "127.0.0.1:notaport"},
	} {
		e, err := StartEngine(cfg)
		if err == nil {
			e.Close()
		}
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", want, err)
		}
	}
}
