package decision_test

import (
	"bytes"
	"errors"
	"io"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"epp.internal/epp"
	"epp.internal/epp/decision"
	"epp.internal/epp/route"
)

// set gives every field a value of its own that is not the zero one, so that a
// field that a line forgets is found.
func set(v reflect.Value, next *int) {
	*next++
	switch v.Kind() {
	case reflect.Struct:
		for i := range v.NumField() {
			set(v.Field(i), next)
		}
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		set(v.Elem(), next)
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Int, reflect.Int64:
		v.SetInt(int64(*next))
	case reflect.Uint8, reflect.Uint32, reflect.Uint64:
		v.SetUint(uint64(*next % 7))
	case reflect.Float32, reflect.Float64:
		v.SetFloat(float64(float32(*next) + 0.1)) // one that no decimal of a few digits is
	case reflect.String:
		v.SetString(strings.Repeat("x", *next))
	}
}

// filled is a record with every raw input set.
func filled() *decision.Record {
	rec := &decision.Record{
		RequestID: "r", Attempt: 2, Path: "/v1/completions", Model: "m", Target: "t", Adapter: "a", Priority: -1, HasSubset: true,
		PromptTokens: 100, TokenSource: epp.LocalTokens, BlockTokens: 16, BlockedTokens: 96,
		At: time.Unix(1_700_000_000, 123456789).UTC(), Seed: 1<<64 - 1, Settings: decision.Defaults(),
		Pace: epp.Pace{FirstToken: 0.1, PerWork: 0.2, Answer: 0.3, PerRequest: 1e-7}, Chosen: 1, RunnerUp: 0, Admitted: 2, Degraded: true,
	}
	rec.Resize(2)
	rec.RoomPredictions()
	next := 0
	for i := range rec.Candidates {
		c := &rec.Candidates[i]
		set(reflect.ValueOf(c).Elem(), &next)
		c.Labels, c.Annotations, c.UID, c.Slot = nil, nil, "", epp.Slot(i)           // no decision reads the first three
		c.Unknown, c.Queue, c.Load, c.Factors = 0, 0, 0, [decision.Factors]float64{} // concluded, and made again
		set(reflect.ValueOf(&rec.Predictions[i]).Elem(), &next)
	}
	return rec
}

// TestLinesKeepEverything: what is written comes back, each signal and each setting
// to the last bit, with the end.
func TestLinesKeepEverything(t *testing.T) {
	rec := filled()
	rec.Settings.Gate, rec.Settings.Load.MaxRunning = 300*time.Millisecond, 7
	chain := []uint64{1, 2, 3, 4, 5, 6, 7, 1<<63 | 8, 9}
	end := &decision.LoggedEnd{RequestID: "r", Attempt: 2, End: decision.End{
		At: rec.At.Add(time.Second), Outcome: "served", Status: 200, TTFT: 5, PromptTokens: 100, CompletionTokens: -1, CachedTokens: 96,
	}}
	var log []byte
	for _, write := range []func([]byte) ([]byte, error){
		func(b []byte) ([]byte, error) { return decision.AppendSettingsLine(b, rec.Settings) },
		func(b []byte) ([]byte, error) { return decision.AppendDecisionLine(b, rec, chain) },
		func(b []byte) ([]byte, error) { return decision.AppendEndLine(b, end) },
	} {
		var err error
		if log, err = write(log); err != nil {
			t.Fatal(err)
		}
	}
	lines := decision.NewLogReader("log", bytes.NewReader(log))
	for _, want := range []*decision.Logged{
		{Settings: rec.Settings},
		{Record: rec, Prompt: []uint64{8}, PromptStep: 128},
		{End: end},
	} {
		got, err := lines.Next()
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Error(diff)
		}
	}
	if _, err := lines.Next(); !errors.Is(err, io.EOF) {
		t.Errorf("at the end: %v", err)
	}
}

const settingsLine = `{"settings":{"version":1,"policy":"weighted","weights":[{"name":"cache","value":1}],"maxQueue":1,"onSaturated":"degrade","loadSource":"requests","maxUtilization":1,"staleAfterNanos":1}}` + "\n"

// TestLogRefuses: each wrong line has one error that names it.
func TestLogRefuses(t *testing.T) {
	for _, c := range []struct{ log, want string }{
		{"{}", "log:1: line has not one key: want settings, decision or end"},
		{`{"decision":{}}`, "log:1: decision before any settings: want a line with settings first"},
		{`{"settings":{}}`, "log:1: settings: weights: sum is 0: must be 1"},
		{settingsLine + `{"decision":{"chosen":1}}`, "log:2: decision: chosen 1 and runnerUp 0: want −1 or one of 0 candidates"},
		{settingsLine + `{"decision":{"chosen":-1,"runnerUp":-1,"candidates":[{"name":"a","slot":1},{"name":"b","slot":1}]}}`, `log:2: decision: candidate "b": slot 1: want each once`},
		{settingsLine + `{"decision":{"colour":1}}`, `log:2: no line of a decision log: json: unknown field "colour"`},
	} {
		lines := decision.NewLogReader("log", strings.NewReader(c.log))
		var err error
		for err == nil {
			_, err = lines.Next()
		}
		if !strings.Contains(err.Error(), c.want) {
			t.Errorf("%.60s: error %v, want %s", c.log, err, c.want)
		}
	}
}

// FuzzLog: whatever the bytes, a log is an error or can be decided again.
func FuzzLog(f *testing.F) {
	log, err := decision.AppendDecisionLine([]byte(settingsLine), filled(), []uint64{1})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(log)
	f.Add([]byte(settingsLine + `{"decision":{"chosen":0,"runnerUp":-1,"blockedTokens":1,"candidates":[{"name":"a","serves":true,"health":1,"match":{"blocks":4294967295,"blockTokens":4294967295,"discount":1e38}}]}}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		lines := decision.NewLogReader("f", bytes.NewReader(data))
		for {
			l, err := lines.Next()
			if err != nil {
				return
			}
			if l.Record == nil {
				continue
			}
			if p, err := route.New(l.Record.Settings); err == nil {
				if again := route.Replay(p, l.Record); again.Chosen >= len(again.Candidates) {
					t.Fatalf("chose %d of %d", again.Chosen, len(again.Candidates))
				}
			}
		}
	})
}

// BenchmarkLine writes the line of a decision over 8 endpoints.
func BenchmarkLine(b *testing.B) {
	rec := filled()
	for len(rec.Candidates) < 8 {
		rec.Candidates = append(rec.Candidates, rec.Candidates...)
		rec.Predictions = append(rec.Predictions, rec.Predictions...)
	}
	chain := make([]uint64, 256)
	var line []byte
	for b.Loop() {
		line, _ = decision.AppendDecisionLine(line[:0], rec, chain)
	}
	b.ReportMetric(float64(len(line)), "B/line")
}

// TestLogBegins: a log may begin with settings that were cut off anywhere, as long as
// whole ones follow; other lines that end too early are no log's.
func TestLogBegins(t *testing.T) {
	head, err := decision.AppendSettingsLine(nil, decision.Defaults())
	if err != nil {
		t.Fatal(err)
	}
	for cut := 1; cut < len(head)-1; cut++ {
		text := string(head[:cut]) + "\n" + string(head)
		r := decision.NewLogReader("log", strings.NewReader(text))
		if l, err := r.Next(); err != nil || l.Settings == nil || r.Cut() != 1 || !decision.BeginsLog([]byte(text)) {
			t.Errorf("cut after %d bytes: %v, %d cut", cut, err, r.Cut())
		}
	}
	for _, text := range []string{"", "\n", `{"set`, `{"timestamp":1` + "\n" + string(head), `["settings"` + "\n" + string(head)} {
		if _, err := decision.NewLogReader("log", strings.NewReader(text)).Next(); err == nil || decision.BeginsLog([]byte(text)) {
			t.Errorf("%.30q is taken for a log: %v", text, err)
		}
	}
}
