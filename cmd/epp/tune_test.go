package main

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"epp.internal/epp/config"
	"epp.internal/epp/decision"
	"epp.internal/epp/tune"
)

// TestTuneKeeps: on traffic that any weights serve alike the answer is keep, with a
// report and without a patch; every wrong input has one error that names it.
func TestTuneKeeps(t *testing.T) {
	patch := filepath.Join(t.TempDir(), "patch.yaml")
	run := func(args ...string) (string, error) {
		cmd := root()
		var out bytes.Buffer
		cmd.SetOut(&out)
		cmd.SetErr(&out)
		cmd.SetArgs(append([]string{"tune", "--patch", patch}, args...))
		err := cmd.ExecuteContext(t.Context())
		return out.String(), err
	}
	got, err := run("--generate", "batch", "--requests", "120", "--rate", "0.1", "--pods", "2")
	if err != nil || !strings.Contains(got, "KEEP the weights: ") {
		t.Errorf("error %v, report\n%s", err, got)
	}
	if _, err := os.Stat(patch); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a patch is there: %v", err)
	}
	for _, c := range []struct {
		args []string
		want string
	}{
		{nil, "--trace: is missing"},
		{[]string{"--config", "nowhere"}, "--config: open nowhere: no such file"},
		{[]string{"--generate", "batch", "--max-move", "0"}, "--max-move 0: want above 0 and at most 1"},
		{[]string{"--generate", "batch", "--report", "none/report"}, "--report: open none/report: no such file"},
		{[]string{"--generate", "batch", "--patch", "none/patch"}, "--patch: open none/patch: no such file"},
		{[]string{"--generate", "batch", "--max-move", "2"}, "tune: a move of 2: want above 0 and at most 1"},
	} {
		if _, err := run(c.args...); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%v: error %v, want %s", c.args, err, c.want)
		}
	}
}

// TestTuneWritesPatch: a change is written as a part of a configuration, beside the
// report.
func TestTuneWritesPatch(t *testing.T) {
	patch, report := filepath.Join(t.TempDir(), "patch.yaml"), filepath.Join(t.TempDir(), "report.txt")
	r := &tune.Report{Change: true, MaxQueue: 20, Current: decision.Defaults().Weights, Proposed: decision.Defaults().Weights, Best: decision.Defaults().Weights}
	if err := writeTuned(nil, r, patch, report); err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(patch)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := config.Parse(patch, append([]byte("pool: {endpoints: [10.0.0.7:8000]}\n"), data...)); err != nil {
		t.Errorf("patch %s: %v", data, err)
	}
	if text, err := os.ReadFile(report); err != nil || !strings.HasPrefix(string(text), "CHANGE the weights") {
		t.Errorf("report %s, error %v", text, err)
	}
}
