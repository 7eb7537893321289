package main

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"epp.internal/epp/config"
	"epp.internal/epp/decision"
	"epp.internal/epp/engine"
	"epp.internal/epp/epptest"
	"epp.internal/epp/picker"
	"epp.internal/epp/sim"
	"epp.internal/epp/trace"
)

// replayed runs epp replay and reads its JSON.
func replayed(t *testing.T, args ...string) (replayReport, error) {
	t.Helper()
	cmd := root()
	var out bytes.Buffer
	cmd.SetOut(&out)
	cmd.SetErr(io.Discard)
	cmd.SetArgs(append([]string{"replay", "--json"}, args...))
	err := cmd.ExecuteContext(t.Context())
	var n replayReport
	if out.Len() > 0 {
		if err := json.Unmarshal(out.Bytes(), &n); err != nil {
			t.Fatal(err)
		}
	}
	return n, err
}

// record writes the decisions of a simulated run by the named policy, with a crash
// in it and queues that fill, and returns the file and the run.
func record(t *testing.T, policy string) (string, *sim.Result) {
	t.Helper()
	tr, err := trace.Generate(trace.Workload{Kind: "lora", Requests: 1200, Rate: 12, Seed: 3})
	if err != nil {
		t.Fatal(err)
	}
	var log []byte
	var made *decision.Settings
	keep := func(text []byte, err error) {
		if log = text; err != nil {
			t.Error(err)
		}
	}
	profile, _ := engine.ProfileNamed("a100-8b")
	r, err := sim.Run(t.Context(), sim.Config{
		Trace: tr, Policy: policy, Endpoints: 5, Engine: engine.Config{Profile: profile, MaxRunning: 8}, Seed: 1,
		Faults: []sim.Fault{{Kind: sim.Crash, At: 20 * time.Second, Endpoint: 1, For: 10 * time.Second}},
		Decided: func(rec *decision.Record, chain []uint64) {
			if rec.Settings != made {
				made = rec.Settings
				keep(decision.AppendSettingsLine(log, made))
			}
			keep(decision.AppendDecisionLine(log, rec, chain))
		},
		Ended: func(e *picker.Ending) {
			keep(decision.AppendEndLine(log, &decision.LoggedEnd{RequestID: e.RequestID, Attempt: e.Attempt, End: e.End}))
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "decisions.jsonl")
	if err := os.WriteFile(path, log, 0o600); err != nil {
		t.Fatal(err)
	}
	return path, r
}

// TestReplayIsBlind: no reading in the log has a GPU's load, so that nothing can be said
// of decisions by it.
func TestReplayIsBlind(t *testing.T) {
	path, _ := record(t, "weighted")
	n, err := replayed(t, path, "--load-source", "gpu")
	if err != nil || n.Blind == 0 || n.Blind+n.Early != n.Decisions || n.Compared != 0 {
		t.Errorf("%+v, %v: want every decision blind", n, err)
	}
}

// pack writes a file's gzip beside it.
func pack(t *testing.T, path string) string {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	_, err = z.Write(data)
	if err = errors.Join(err, z.Close(), os.WriteFile(path+".gz", b.Bytes(), 0o600)); err != nil {
		t.Fatal(err)
	}
	return path + ".gz"
}

// TestReplayIsExact: decisions by every policy of ours, with adapters, full queues
// and retries in it, come out of the file the same to the last bit; and the gate can
// be tried on what the plain sum has decided.
func TestReplayIsExact(t *testing.T) {
	for _, policy := range []string{"weighted", "gate", "latency"} {
		path, r := record(t, policy)
		got, err := replayed(t, path)
		if err != nil {
			t.Fatal(err)
		}
		if got.Decisions < len(r.Requests) || got.Early != 0 || got.Exact != got.Decisions || got.Compared != 0 {
			t.Errorf("%s: %+v, want all of at least %d exact", policy, got, len(r.Requests))
		}
		packed, err := replayed(t, pack(t, path))
		if err != nil || packed.Exact != got.Exact {
			t.Errorf("%s: of the packed log %d are exact, %v", policy, packed.Exact, err)
		}
		same, err := replayed(t, path, "--weights", "cache=0.6,load=0.2,queue=0.1,health=0.05,adapter=0.05")
		if err != nil || same.Compared != got.Decisions || same.Changed != 0 {
			t.Errorf("%s: by equal weights %d of %d picks change, %v", policy, same.Changed, same.Compared, err)
		}
		other, err := replayed(t, path, "--policy", "weighted", "--gate", "50ms", "--show", "3")
		if err != nil || other.Blind != 0 || other.Changed == 0 || len(other.Changes) != 3 {
			t.Errorf("%s: behind a gate %+v, %v", policy, other, err)
		}
		for _, c := range other.Changes {
			if c.From == c.To || c.FromWhy == "" || c.ToWhy == "" {
				t.Errorf("%s: change %+v", policy, c)
			}
		}
	}
}

// TestReplayTells: the text names what changes, and says what no log can say; a
// number that was changed by hand, in its last bit, is found.
func TestReplayTells(t *testing.T) {
	path, _ := record(t, "weighted")
	cmd := root()
	var out bytes.Buffer
	cmd.SetOut(&out)
	cmd.SetArgs([]string{"replay", path, "--weights", "load=1", "--show", "1"})
	if err := cmd.ExecuteContext(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"come out the same, to the last bit", "by the other settings: ", "picks before  after", "  was: cache ", "  now: ", "was not observed"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %q in\n%s", want, out.String())
		}
	}

	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	_, after, _ := strings.Cut(string(data), `"sum":`)
	sum, _, _ := strings.Cut(after, "}")
	var v float64
	if err := json.Unmarshal([]byte(sum), &v); err != nil {
		t.Fatal(err)
	}
	text, _ := json.Marshal(math.Nextafter(v, 0))
	if err := os.WriteFile(path, bytes.Replace(data, []byte(`"sum":`+sum), append([]byte(`"sum":`), text...), 1), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := replayed(t, path); err == nil || !strings.Contains(err.Error(), "1 of ") {
		t.Errorf("a changed bit: error %v", err)
	}
}

// TestReplayRefuses: each wrong input has one error that names it.
func TestReplayRefuses(t *testing.T) {
	path, _ := record(t, "weighted")
	empty := filepath.Join(t.TempDir(), "empty")
	if err := os.WriteFile(empty, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{empty}, "empty: no decision in it: want a file of log.decisions"},
		{nil, "replay: 0 files named: want one of log.decisions"},
		{[]string{path, path}, "replay: 2 files named: want one of log.decisions"},
		{[]string{path, "--show", "-1"}, "--show -1: want 0 or more"},
		{[]string{"nowhere"}, "open nowhere: no such file"},
		{[]string{"replay.go"}, "replay.go:1: no line of a decision log: "},
		{[]string{path, "--weights", "speed=1"}, `--weights: "speed=1": want name=number`},
		{[]string{path, "--weights", "cache=0.5"}, "the other settings: weights: sum is 0.5: must be 1"},
		{[]string{path, "--policy", "best"}, `the other settings: policy: "best": must be "weighted" or "latency"`},
		{[]string{path, "--config", "nowhere"}, "--config: open nowhere: no such file"},
	} {
		if _, err := replayed(t, c.args...); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%v: error %v, want %s", c.args, err, c.want)
		}
	}
}

// TestDecisionLogIsATrace: what was recorded of a trace is read as a trace again:
// the same arrivals and lengths, and nearly as much that prompts share.
func TestDecisionLogIsATrace(t *testing.T) {
	path, r := record(t, "weighted")
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	got, err := trace.Read("log", f)
	if err != nil {
		t.Fatal(err)
	}
	if len(got.Requests) != len(r.Requests) {
		t.Fatalf("%d requests, want %d", len(got.Requests), len(r.Requests))
	}
	first := r.Requests[0].At
	for i := range got.Requests {
		g, w := &got.Requests[i], &r.Requests[i]
		if g.At != w.At-first || g.PromptTokens() != w.PromptTokens || g.Adapter == "" {
			t.Fatalf("request %d: at %v with %d tokens for %q, want %v with %d", i, g.At, g.PromptTokens(), g.Adapter, w.At-first, w.PromptTokens)
		}
	}
	was, _ := trace.Generate(trace.Workload{Kind: "lora", Requests: 1200, Rate: 12, Seed: 3})
	w, g := was.Stats(), got.Stats()
	if share := float64(g.SharedTokens) / float64(w.SharedTokens); share < 0.8 || share > 1 {
		t.Errorf("%d tokens shared, of %d before", g.SharedTokens, w.SharedTokens)
	}
}

// TestJournal: a served request's decision and end are in the file, which only its
// owner may read, without a word of the prompt.
func TestJournal(t *testing.T) {
	path := filepath.Join(t.TempDir(), "decisions.jsonl")
	const secret = "walrus"
	t.Run("served", func(t *testing.T) {
		r := newRig(t, options{engines: 2, config: func(c *config.Config, _ []*epptest.Engine) { c.Log.Decisions = path }})
		for range 3 {
			r.must([]message{{"user", secret}}, 4)
		}
	})
	info, err := os.Stat(path)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Fatalf("mode %v, error %v", info.Mode(), err)
	}
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if bytes.Contains(data, []byte(secret)) {
		t.Error("the prompt is in the log")
	}
	if d, e := bytes.Count(data, []byte(`{"decision":`)), bytes.Count(data, []byte(`{"end":`)); d != 3 || e != 3 {
		t.Errorf("%d decisions and %d ends in\n%s", d, e, data)
	}
	if n, err := replayed(t, path); err != nil || n.Exact != 3 {
		t.Errorf("%+v, %v", n, err)
	}
}

// TestJournalIsOneProcesss: a file that somebody writes to is refused to others, and
// free again when he has ended.
func TestJournalIsOneProcesss(t *testing.T) {
	path, log := filepath.Join(t.TempDir(), "decisions.jsonl"), slog.New(slog.DiscardHandler)
	first, err := openJournal(path, 1<<20, log)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := openJournal(path, 1<<20, log); err == nil || !strings.Contains(err.Error(), "decisions.jsonl: another process writes to it: want a file for each") {
		t.Errorf("a second one: error %v", err)
	}
	if err := first.close(); err != nil {
		t.Fatal(err)
	}
	again, err := openJournal(path, 1<<20, log)
	if err != nil {
		t.Fatal(err)
	}
	if err := again.close(); err != nil {
		t.Error(err)
	}
}

// TestCutLog: a line that a crash cut off costs itself alone, at the end of a log and
// where a later process went on behind it; both commands say how many there are.
func TestCutLog(t *testing.T) {
	path, r := record(t, "weighted")
	whole, err := replayed(t, path)
	if err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	data = data[:bytes.LastIndex(data, []byte(`{"decision":`))+200]
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
	if n, err := replayed(t, path); err != nil || n.Cut != 1 || n.Exact != whole.Exact-1 {
		t.Errorf("cut off: %+v, %v; whole: %d exact", n, err, whole.Exact)
	}
	j, err := openJournal(path, 1<<30, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	for _, rec := range r.Decisions.Latest(3) {
		j.decided(rec, nil)
	}
	if err := j.close(); err != nil {
		t.Fatal(err)
	}
	if n, err := replayed(t, path); err != nil || n.Cut != 1 || n.Decisions != whole.Decisions-1+3 {
		t.Errorf("gone on with: %+v, %v; whole: %d decisions", n, err, whole.Decisions)
	}
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if tr, err := trace.Read(path, f); err != nil || tr.Cut != 1 {
		t.Errorf("as a trace: %+v, %v", tr, err)
	}
}

// TestJournalTurns: a file that is full becomes FILE.1, in place of the one before;
// each begins with the settings, and together they keep to their bound. What comes
// after the end is counted.
func TestJournalTurns(t *testing.T) {
	path, log := filepath.Join(t.TempDir(), "decisions.jsonl"), slog.New(slog.DiscardHandler)
	const most = 4 << 10
	j, err := openJournal(path, most, log)
	if err != nil {
		t.Fatal(err)
	}
	rec := &decision.Record{RequestID: "r", Attempt: 1, Settings: decision.Defaults(), Chosen: -1, RunnerUp: -1, Refused: "pool_empty"}
	for range 100 {
		j.decided(rec, nil)
	}
	if err := j.close(); err != nil {
		t.Fatal(err)
	}
	j.decided(rec, nil)
	if j.lost() != 1 {
		t.Errorf("%d lines dropped, want the one after the end", j.lost())
	}
	for _, name := range []string{path, path + ".1"} {
		n, err := replayed(t, name)
		if err != nil || n.Early < 1 || n.Early >= 50 {
			t.Errorf("%s: %+v, %v", name, n, err)
		}
		if info, err := os.Stat(name); err != nil || info.Size() > most {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := openJournal(t.TempDir(), most, log); err == nil || !strings.Contains(err.Error(), "log.decisions: open ") {
		t.Errorf("a folder: error %v", err)
	}
}
