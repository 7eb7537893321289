package kvevents

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"testing"
)

// roundTrip answers requests without a network.
type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// answer is a client whose every request gets this answer.
func answer(status int, body string) *http.Client {
	return &http.Client{Transport: roundTrip(func(r *http.Request) (*http.Response, error) {
		if r.URL.Path != "/kv_event_sources" || r.Method != http.MethodGet {
			return nil, errors.New("unexpected " + r.Method + " " + r.URL.String())
		}
		header := http.Header{"Location": {"http://169.254.169.254/"}}
		return &http.Response{StatusCode: status, Header: header, Body: io.NopCloser(strings.NewReader(body)), Request: r}, nil
	})}
}

func TestSources(t *testing.T) {
	captured, err := os.ReadFile("testdata/kv_event_sources.json")
	if err != nil {
		t.Fatal(err)
	}
	rank := func(endpoint, replay string) string {
		return fmt.Sprintf(`{"0": {"enable_kv_cache_events": true, "publisher": "zmq", "endpoint": %q, "replay_endpoint": %s, "topic": "t"}}`, endpoint, replay)
	}
	for _, c := range []struct {
		name, addr string
		status     int
		body       string
		want       string // the sources, or a part of the error
	}{
		{"captured from vLLM 0.32", "10.0.0.7:8000", 200, string(captured), "[{0 10.0.0.7:21110 10.0.0.7:21111 kv@127.0.0.1:21100@tiny}]"},
		{"IPv6", "[fd00::7]:8000", 200, rank("tcp://[::]:5557", "null"), "[{0 [fd00::7]:5557  t}]"},
		{"own address", "10.0.0.7:8000", 200, rank("tcp://10.0.0.7:5557", `"tcp://0.0.0.0:5558"`), "[{0 10.0.0.7:5557 10.0.0.7:5558 t}]"},
		{"two ranks", "h:1", 200, `{"1": {"enable_kv_cache_events": true, "publisher": "zmq", "endpoint": "tcp://*:2"}, "0": {"enable_kv_cache_events": true, "publisher": "zmq", "endpoint": "tcp://*:1"}}`, "[{0 h:1  } {1 h:2  }]"},
		{"events off", "h:1", 200, `{"0": {"enable_kv_cache_events": false, "publisher": "null"}}`, "[]"},
		{"older engine", "h:1", 404, "Not Found", "[]"},
		{"another host", "h:1", 200, rank("tcp://169.254.169.254:80", "null"), `host "169.254.169.254" is not the engine's`},
		{"another host's replay", "h:1", 200, rank("tcp://*:1", `"tcp://10.9.9.9:1"`), `replay_endpoint: "tcp://10.9.9.9:1"`},
		{"not TCP", "h:1", 200, rank("ipc:///tmp/x", "null"), `"ipc:///tmp/x": not tcp://`},
		{"no port", "h:1", 200, rank("tcp://*", "null"), "no port"},
		{"bad port", "h:1", 200, rank("tcp://*:0", "null"), `bad port "0"`},
		{"bad rank", "h:1", 200, `{"x": {"enable_kv_cache_events": true, "publisher": "zmq"}}`, `rank "x": not a number`},
		{"no JSON", "h:1", 200, "<html>", "invalid character"},
		{"redirect", "h:1", 302, "", "status 302"},
		{"failing", "h:1", 500, "", "status 500"},
		{"endless", "h:1", 200, strings.Repeat(" ", 2<<20), "answer over 1048576 bytes"},
	} {
		sources, err := Sources(t.Context(), answer(c.status, c.body), c.addr)
		got := fmt.Sprint(sources)
		if err != nil {
			got = err.Error()
		}
		if got != c.want && (err == nil || !strings.Contains(got, c.want)) {
			t.Errorf("%s: %s, want %s", c.name, got, c.want)
		}
	}
}

// FuzzSources: no answer ends the process, and none leads to another host.
func FuzzSources(f *testing.F) {
	f.Add([]byte(`{"0": {"enable_kv_cache_events": true, "publisher": "zmq", "endpoint": "tcp://*:1", "replay_endpoint": "tcp://[::]:2"}}`))
	f.Add([]byte(`{"0": {"enable_kv_cache_events": true, "publisher": "zmq", "endpoint": "tcp://h:1"}}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		sources, _ := parseSources(body, "h")
		for _, s := range sources {
			if !strings.HasPrefix(s.Address, "h:") || s.Replay != "" && !strings.HasPrefix(s.Replay, "h:") {
				t.Errorf("source %+v", s)
			}
		}
	})
}
