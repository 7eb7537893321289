package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"epp.internal/epp/epptest"
	"epp.internal/epp/epptest/demotok"
	"epp.internal/epp/tokenize"
)

// runProbe runs the command and returns what it printed and its exit code.
func runProbe(t *testing.T, args ...string) (out string, code int) {
	t.Helper()
	var b bytes.Buffer
	cmd := root()
	cmd.SetOut(&b)
	cmd.SetErr(&b)
	cmd.SetArgs(append([]string{"probe"}, args...))
	err := cmd.ExecuteContext(t.Context())
	if e := (*exitError)(nil); errors.As(err, &e) {
		code = e.code
	} else if err != nil {
		t.Fatal(err)
	}
	return b.String(), code
}

// factLine returns the line of a fact, or "".
func factLine(out, name string) string {
	for line := range strings.Lines(out) {
		if f := strings.Fields(line); len(f) > 1 && f[1] == name {
			return strings.TrimSpace(line)
		}
	}
	return ""
}

// TestProbe: what a probe says of engines that differ, and its exit code. The
// facts that a case does not name are ok.
func TestProbe(t *testing.T) {
	for _, c := range []struct {
		name   string
		engine epptest.EngineConfig
		fault  epptest.Fault
		sleep  bool
		want   map[string]string // a fact, and how its line begins behind the name
	}{
		{name: "all understood", engine: epptest.EngineConfig{Adapters: []string{"sql"}}},
		{name: "array events", engine: epptest.EngineConfig{EventForm: epptest.OldArrayEvents}},
		{name: "no events", engine: epptest.EngineConfig{NoEvents: true}, want: map[string]string{
			"events": "missing the engine names no source of KV events (--kv-events-config; --events names one); without it its cache is guessed from the picker's own picks (cache.source: auto)",
		}},
		{name: "events whose sockets are not told", engine: epptest.EngineConfig{NoEventSources: true}, want: map[string]string{
			"events": "missing the engine names no source of KV events",
		}},
		{name: "no cached tokens in usage", engine: epptest.EngineConfig{NoPromptTokensDetails: true}, want: map[string]string{
			"usage": "missing no prompt_tokens_details", "cache": "unknown usage tells no cached tokens",
		}},
		{name: "no KV usage", engine: epptest.EngineConfig{KVUsageMetric: "-"}, want: map[string]string{
			"metrics.kvUsage": "missing no vllm:kv_cache_usage_perc or vllm:gpu_cache_usage_perc; without it load.source: kv has nothing to count",
		}},
		{name: "asleep", sleep: true, want: map[string]string{
			"awake": "missing the engine was put to sleep", "events.blocks": "unknown the engine sleeps", "usage": "unknown the engine sleeps", "cache": "unknown the engine sleeps",
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			c.engine.TimeScale = 0.001
			e, err := epptest.StartEngine(c.engine)
			if err != nil {
				t.Fatal(err)
			}
			defer e.Close()
			if c.sleep {
				e.Sleep()
			}
			out, code := runProbe(t, e.Address())
			if want := min(len(c.want), 1); code != want {
				t.Errorf("exit code %d, want %d", code, want)
			}
			for name, want := range c.want {
				line := strings.Join(strings.Fields(factLine(out, name)), " ")
				state, rest, _ := strings.Cut(want, " ")
				if !strings.HasPrefix(line, state+" "+name+" "+rest) {
					t.Errorf("%s is told as %q, want %q", name, line, want)
				}
			}
			for line := range strings.Lines(out) {
				if f := strings.Fields(line); f[0] != factOK && f[0] != "epp:" && c.want[f[1]] == "" {
					t.Errorf("%q is not ok", line)
				}
			}
			if t.Failed() {
				t.Log(out)
			}
		})
	}
}

// TestProbeNamedSockets: the sockets of an engine that does not tell them can be
// named, and without a replay socket that is what is missing.
func TestProbeNamedSockets(t *testing.T) {
	e, err := epptest.StartEngine(epptest.EngineConfig{NoEventSources: true, TimeScale: 0.001})
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	events, replay := strings.TrimPrefix(e.EventEndpoint(), "tcp://"), strings.TrimPrefix(e.ReplayEndpoint(), "tcp://")
	if out, code := runProbe(t, e.Address(), "--events", events, "--replay", replay); code != 0 {
		t.Errorf("exit code %d\n%s", code, out)
	}
	out, code := runProbe(t, e.Address(), "--events", events)
	if code != exitMissing || !strings.HasPrefix(factLine(out, "events.replay"), factMissing) || !strings.HasPrefix(factLine(out, "events.blocks"), factOK) {
		t.Errorf("exit code %d\n%s", code, out)
	}
}

// TestProbeTokenizer: the tokenizer that the picker is given is compared with the
// engine's: the same one agrees, the engine's other one does not.
func TestProbeTokenizer(t *testing.T) {
	model, settings := demotok.Files()
	tok, err := tokenize.New(model, settings)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	for name, data := range map[string][]byte{"tokenizer.json": model, "tokenizer_config.json": settings} {
		if err := os.WriteFile(filepath.Join(dir, name), data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for want, engine := range map[string]epptest.EngineConfig{
		factOK:      {Tokenizer: tok, AnswerTokens: answerTokens(tok), TimeScale: 0.001},
		factMissing: {TimeScale: 0.001}, // takes bytes as tokens
	} {
		e, err := epptest.StartEngine(engine)
		if err != nil {
			t.Fatal(err)
		}
		defer e.Close()
		if out, _ := runProbe(t, e.Address(), "--tokenizer", dir); !strings.HasPrefix(factLine(out, "tokenizer"), want) {
			t.Errorf("want %s\n%s", want, out)
		}
	}
}

// TestProbeUnreadTokenizer: a tokenizer that is not understood leaves the tokens to
// the engines, one that is not there keeps the picker from its start.
func TestProbeUnreadTokenizer(t *testing.T) {
	e, err := epptest.StartEngine(epptest.EngineConfig{TimeScale: 0.001})
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	dir := t.TempDir()
	for name, data := range map[string]string{"tokenizer.json": `{"model":{"type":"Unigram"}}`, "tokenizer_config.json": `{}`} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(data), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for path, want := range map[string]string{dir: "without it engines are asked", filepath.Join(dir, "none"): "without it the picker does not start"} {
		if out, _ := runProbe(t, e.Address(), "--tokenizer", path); !strings.Contains(factLine(out, "tokenizer"), want) {
			t.Errorf("want %q\n%s", want, out)
		}
	}
}

// TestProbeJSON: --json prints one object with the same facts.
func TestProbeJSON(t *testing.T) {
	e, err := epptest.StartEngine(epptest.EngineConfig{NoEvents: true, TimeScale: 0.001})
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	out, code := runProbe(t, e.Address(), "--json")
	var r findings
	if err := json.NewDecoder(strings.NewReader(out)).Decode(&r); err != nil {
		t.Fatal(err)
	}
	if code != exitMissing || r.Understood || r.Address != e.Address() || len(r.Facts) < 10 {
		t.Errorf("exit code %d: %+v", code, r)
	}
	for _, f := range r.Facts {
		if (f.Name == "events") != (f.State == factMissing) || (f.State == factMissing) != (f.Without != "") {
			t.Errorf("%+v", f)
		}
	}
}

// TestProbeOfNoEngine: an address that nobody listens at, and a server that is no
// engine, have nothing that is understood.
func TestProbeOfNoEngine(t *testing.T) {
	plain := startPlain(t, http.NotFound)
	for _, address := range []string{deadAddress(t), plain.Listener.Addr().String()} {
		out, code := runProbe(t, address)
		if code != exitMissing || strings.Contains(out, factOK+" ") {
			t.Errorf("exit code %d\n%s", code, out)
		}
	}
}

// TestProbeWrongUse: wrong use has an exit code of its own, and says what would
// be right.
func TestProbeWrongUse(t *testing.T) {
	for _, c := range []struct {
		args []string
		want string
	}{
		{nil, "accepts 1 arg(s), received 0"},
		{[]string{"http://10.0.0.7:8000"}, `ADDRESS: "http://10.0.0.7:8000" is not ip:port, like 10.0.0.7:8000`},
		{[]string{"10.0.0.7:8000", "--replay", "10.0.0.7:5558"}, "--replay: needs --events, the socket that it repeats"},
		{[]string{"10.0.0.7:8000", "--timeout", "1h"}, "--timeout: 1h0m0s is not between 1s and 10m"},
		{[]string{"10.0.0.7:8000", "--no-such-flag"}, "unknown flag: --no-such-flag"},
	} {
		cmd := root()
		cmd.SetArgs(append([]string{"probe"}, c.args...))
		err := cmd.ExecuteContext(t.Context())
		if e := (*exitError)(nil); !errors.As(err, &e) || e.code != exitUse || e.Error() != c.want {
			t.Errorf("%q: %v, want %q", c.args, err, c.want)
		}
	}
}
