package epptest

import (
	"bufio"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// captured is where the answers of a real engine are.
const captured = "testdata/vllm-0.32.0/"

// start starts an engine for the length of a test. Unless told otherwise it is a
// thousand times faster than what it models.
func start(t *testing.T, cfg EngineConfig) *Engine {
	t.Helper()
	if cfg.TimeScale == 0 {
		cfg.TimeScale = 0.001
	}
	e, err := StartEngine(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { e.Close() })
	return e
}

// within is a context that ends a test which would hang.
func within(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	t.Cleanup(cancel)
	return ctx
}

// client opens a connection for each request: what is left of it is not mistaken
// for a leak.
var client = &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}

// send sends a request and returns the answer, whose body the test must read.
func send(t *testing.T, ctx context.Context, e *Engine, path, body string) (*http.Response, error) {
	t.Helper()
	method, reader := http.MethodPost, io.Reader(strings.NewReader(body))
	if body == "" {
		method, reader = http.MethodGet, nil
	}
	req, err := http.NewRequestWithContext(ctx, method, e.URL()+path, reader)
	if err != nil {
		t.Fatal(err)
	}
	return client.Do(req)
}

// fetch returns status and body of an answer. An empty body makes it a GET.
func fetch(t *testing.T, e *Engine, path, body string) (int, string) {
	t.Helper()
	resp, err := send(t, within(t), e, path, body)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(b)
}

// fetchJSON reads an answer of status 200 into v.
func fetchJSON(t *testing.T, e *Engine, path, body string, v any) {
	t.Helper()
	status, answer := fetch(t, e, path, body)
	if status != http.StatusOK {
		t.Fatalf("%s: status %d: %s", path, status, answer)
	}
	if err := json.Unmarshal([]byte(answer), v); err != nil {
		t.Fatalf("%s: %v in %s", path, err, answer)
	}
}

// events returns the data of a stream's events.
func events(t *testing.T, stream string) []string {
	t.Helper()
	var out []string
	for ev := range strings.SplitSeq(strings.TrimSpace(stream), "\n\n") {
		data, ok := strings.CutPrefix(ev, "data: ")
		if !ok {
			t.Fatalf("event without data: %q", ev)
		}
		out = append(out, data)
	}
	return out
}

// readFile returns a file of the real engine's answers.
func readFile(t *testing.T, name string) string {
	t.Helper()
	b, err := os.ReadFile(captured + name)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// readLines reads a file of one JSON value a line.
func readLines[T any](t *testing.T, name string) []T {
	t.Helper()
	var out []T
	sc := bufio.NewScanner(strings.NewReader(readFile(t, name)))
	sc.Buffer(nil, 1<<20)
	for sc.Scan() {
		var v T
		if err := json.Unmarshal(sc.Bytes(), &v); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		out = append(out, v)
	}
	return out
}

// usageOf is the part of an answer that tests look at most.
type usageOf struct {
	ID      string `json:"id"`
	Choices []struct {
		Index   int    `json:"index"`
		Text    string `json:"text"`
		Message struct {
			Content string `json:"content"`
		} `json:"message"`
		FinishReason string `json:"finish_reason"`
	} `json:"choices"`
	Usage struct {
		Prompt     int `json:"prompt_tokens"`
		Completion int `json:"completion_tokens"`
		Details    struct {
			Cached int `json:"cached_tokens"`
		} `json:"prompt_tokens_details"`
	} `json:"usage"`
}
