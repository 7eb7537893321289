package main

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// simulate runs epp sim with the arguments and returns what it prints.
func simulate(t *testing.T, args ...string) (string, error) {
	cmd := root()
	var out bytes.Buffer
	cmd.SetOut(&out)
	cmd.SetErr(io.Discard)
	cmd.SetArgs(append([]string{"sim"}, args...))
	err := cmd.ExecuteContext(t.Context())
	return out.String(), err
}

// TestSimJSON: one array, an object for each policy in the order they were named,
// with exactly the keys that are promised; and the same flags give the same bytes.
func TestSimJSON(t *testing.T) {
	args := []string{"--generate", "chat", "--requests", "200", "--pods", "3", "--policy", "weighted,random,latency", "--profile", "a100-8b", "--seed", "4", "--json"}
	text, err := simulate(t, args...)
	if err != nil {
		t.Fatal(err)
	}
	var got []map[string]any
	if err := json.Unmarshal([]byte(text), &got); err != nil {
		t.Fatal(err)
	}
	var policies []string
	for _, o := range got {
		policies = append(policies, o["policy"].(string))
		var keys []string
		for k, v := range o {
			if n, isNumber := v.(float64); k != "policy" && (!isNumber || n < 0) {
				t.Errorf("%s: %v", k, v)
			}
			keys = append(keys, k)
		}
		slices.Sort(keys)
		if want := []string{"failed", "hitShare", "meanE2EMillis", "meanTTFTMillis", "p99TTFTMillis", "policy", "seed"}; !slices.Equal(keys, want) {
			t.Errorf("keys %v, want %v", keys, want)
		}
	}
	if want := []string{"weighted", "random", "latency"}; !slices.Equal(policies, want) {
		t.Errorf("policies %v, want %v", policies, want)
	}
	if again, _ := simulate(t, args...); again != text {
		t.Error("the same flags gave other bytes")
	}
}

// TestSimTable shows the head of the table, with two profiles in turn.
func TestSimTable(t *testing.T) {
	page := filepath.Join(t.TempDir(), "sim.html")
	got, err := simulate(t, "--html", page, "--trace", "../../trace/testdata/mooncake_conversation_head.jsonl", "--pods", "2", "--policy", "round-robin", "--profile", "a100-8b,h100-8b", "--part", "0:0.5")
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"mooncake_conversation_head.jsonl: 27 requests; 2 endpoints of a100-8b, h100-8b, read every 1s, seed 1\n", "TTFT mean ms", "round-robin"} {
		if !strings.Contains(got, want) {
			t.Errorf("no %q in\n%s", want, got)
		}
	}
	if data, err := os.ReadFile(page); err != nil || !strings.Contains(string(data), "27 requests; 2 endpoints") {
		t.Errorf("page %.200s, error %v", data, err)
	}
}

// TestSimFailed: where all requests fail there are no times, and least of all short
// ones; where some do, a line says whose times these are.
func TestSimFailed(t *testing.T) {
	args := []string{"--generate", "chat", "--requests", "50", "--pods", "1", "--policy", "random,weighted"}
	all := append(slices.Clone(args), "--fault", "ecc@0s:0")
	got, err := simulate(t, all...)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"–", "50 (all)", "a policy that fails more is not the faster one"} {
		if !strings.Contains(got, want) {
			t.Errorf("no %q in\n%s", want, got)
		}
	}
	if got, err = simulate(t, append(all, "--json")...); err != nil || !strings.Contains(got, `"meanTTFTMillis": null`) || !strings.Contains(got, `"failed": 50`) {
		t.Errorf("%v\n%s", err, got)
	}
	if got, err = simulate(t, append(args, "--fault", "crash@10s:0:5s")...); err != nil || !strings.Contains(got, "is not the faster one") || strings.Contains(got, "(all)") {
		t.Errorf("%v\n%s", err, got)
	}
	if got, err = simulate(t, args...); err != nil || strings.Contains(got, "faster") {
		t.Errorf("%v\n%s", err, got)
	}
}

// TestSimLooksAtOutputFirst: a page that cannot be written is told before the run, and
// the look leaves no file and no other content behind.
func TestSimLooksAtOutputFirst(t *testing.T) {
	dir := t.TempDir()
	ctx, stop := context.WithCancel(t.Context())
	stop() // a run would say so
	for _, c := range []struct{ page, want string }{
		{dir, "is a folder: want a file"},
		{filepath.Join(dir, "none", "sim.html"), "its folder is not there"},
		{filepath.Join(dir, "sim.html"), "sim: interrupted in policy random (1 of 1): no figures"},
	} {
		cmd := root()
		cmd.SetArgs([]string{"sim", "--generate", "hot", "--requests", "10", "--policy", "random", "--html", c.page})
		if err := cmd.ExecuteContext(ctx); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("--html %s: error %v, want %s", c.page, err, c.want)
		}
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
	kept := filepath.Join(dir, "kept")
	if err := os.WriteFile(kept, []byte("text"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := canHold("--html", kept); err != nil {
		t.Error(err)
	}
	if text, err := os.ReadFile(kept); string(text) != "text" {
		t.Errorf("a file that was there has %q, %v", text, err)
	}
}

// TestSimRefuses: each wrong input has one error that names it.
func TestSimRefuses(t *testing.T) {
	for _, c := range []struct {
		args []string
		want string
	}{
		{nil, "--trace: is missing: name a file, or --generate one of chat"},
		{[]string{"--trace", "nowhere"}, "--trace: open nowhere: no such file"},
		{[]string{"--trace", "sim.go"}, `sim.go: begins with "package main`},
		{[]string{"--trace", "x", "--generate", "hot"}, "--trace and --generate: want one of them"},
		{[]string{"--generate", "cold"}, `workload "cold": no such kind: have chat`},
		{[]string{"--generate", "hot", "--policy", "best"}, `--policy "best": no such policy: have all, weighted`},
		{[]string{"--generate", "hot", "--profile", "tpu"}, `--profile "tpu": no such profile: have article-8b`},
		{[]string{"--generate", "hot", "--pods", "0"}, "sim: endpoints: 0: want 1–4096"},
		{[]string{"--generate", "hot", "--report-lag", "1us"}, "sim: report interval: 1µs: want 1ms–744h0m0s"},
		{[]string{"--generate", "hot", "--report-lag", "0"}, "--report-lag 0s: want 1ms or more"},
		{[]string{"--generate", "hot", "--kv-tokens", "-1"}, "--kv-tokens -1: want 16–67108864"},
		{[]string{"--generate", "hot", "--kv-tokens", "9000000000000"}, "--kv-tokens 9000000000000: want 16–67108864"},
		{[]string{"--generate", "hot", "--html", "nowhere/sim.html"}, `--html "nowhere/sim.html": its folder is not there`},
		{[]string{"--generate", "hot", "--html", "."}, `--html ".": is a folder: want a file`},
		{[]string{"--generate", "hot", "--requests", "0"}, "--requests 0: want 1–4194304"},
		{[]string{"--generate", "hot", "--rate", "0.00001"}, "workload hot: 5000 requests at a rate of 1e-05 take 500000000 s: want at most 1339200"},
		{[]string{"--generate", "hot", "--fault", "slow@0s:0:1m:2x"}, `"2x" cannot be read: want kind@time`},
		{[]string{"--generate", "hot", "--fault", "slow@0s:0:1m:NaN"}, "fault slow: factor NaN: want 0.001"},
		{[]string{"--generate", "hot", "--fault", "crash"}, `--fault: fault "crash": no @: want kind@time`},
		{[]string{"--generate", "hot", "--part", "0.5"}, `--part "0.5": want from:to`},
		{[]string{"--generate", "hot", "--max-running", "-1"}, "--max-running -1: want 1 or more"},
		{[]string{"--generate", "hot", "--max-running", "0"}, "--max-running 0: want 1 or more"},
		{[]string{"--generate", "hot", "--kv-tokens", "15"}, "--kv-tokens 15: want 16–67108864, or 0"},
		{[]string{"--trace", "."}, "is a directory"},
		{[]string{"--generate", "hot", "--policy", "all,best"}, `--policy "best": no such policy: have all, weighted`},
		{[]string{"--generate", "hot", "--policy", "random,random"}, `--policy "random": is named twice`},
		{[]string{"--generate", "hot", "--rate", "1e300"}, "workload hot: rate 1e+300: want above 0.000001 and below 1000000, requests a second"},
		{[]string{"--generate", "hot", "--pods", "512", "--kv-tokens", "67108864"}, "sim: KV caches: 512 endpoints have 2147483648 blocks: want at most 134217728 in all"},
	} {
		if _, err := simulate(t, c.args...); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%v: error %v, want %s", c.args, err, c.want)
		}
	}
}
