//go:build kube

package kube

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

const examples = "../../deploy/examples/"

// exampleFiles are the objects of deploy/examples.
var exampleFiles = []string{"pool.yaml", "gateway.yaml", "vllm.yaml"}

// Every example is taken by the API server with strict validation, and so is the chart
// with the examples' values. PodSecurity's "baseline" admits the engines, which run as
// root in vLLM's own image.
func TestExamples(t *testing.T) {
	namespace := prepared(t)
	for _, name := range exampleFiles {
		data, err := os.ReadFile(examples + name)
		if err != nil {
			t.Fatal(err)
		}
		apply(t, string(data), "--namespace", namespace, "--dry-run=server")
	}
	admitted(t, namespace, rendered(t, namespace, examples+"values.yaml"))

	baseline := namespace + "-engines"
	apply(t, fmt.Sprintf("{apiVersion: v1, kind: Namespace, metadata: {name: %s, labels: {pod-security.kubernetes.io/enforce: baseline}}}", baseline))
	apply(t, "{apiVersion: v1, kind: ServiceAccount, metadata: {name: default}}", "--namespace", baseline)
	data, err := os.ReadFile(examples + "vllm.yaml")
	if err != nil {
		t.Fatal(err)
	}
	for _, o := range things(t, string(data)) {
		if o.Kind == "Deployment" {
			apply(t, podOf(t, o), "--namespace", baseline, "--dry-run=server")
		}
	}
	all, err := filepath.Glob(examples + "*.yaml")
	if err != nil || len(all) != len(exampleFiles)+1 {
		t.Errorf("deploy/examples has %q; the files of this test are %q and values.yaml", all, exampleFiles)
	}
}

// The examples fit each other: the pool names the chart's Service, agents dial the
// pickers that the chart makes, and Secrets have one name.
func TestExamplesFit(t *testing.T) {
	text := rendered(t, "inference", examples+"values.yaml")
	names := map[string]bool{}
	for _, o := range things(t, text) {
		names[o.Kind+"/"+o.Metadata.Name] = true
	}
	for _, want := range []string{"Service/epp", "Service/epp-pickers", "StatefulSet/epp"} {
		if !names[want] {
			t.Errorf("the chart makes no %s", want)
		}
	}
	args := agentArgs(t)
	if want := "--picker=epp-0.epp-pickers.inference.svc:9004,epp-1.epp-pickers.inference.svc:9004"; !slices.Contains(args, want) {
		t.Errorf("the agent's flags are %q; want %s", args, want)
	}
	pool, err := os.ReadFile(examples + "pool.yaml")
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"    name: epp #", "port: {number: 9002}"} {
		if !strings.Contains(string(pool), want) {
			t.Errorf("pool.yaml has no %q", want)
		}
	}
	if !strings.Contains(text, "replicas: 2") || !strings.Contains(text, "secretName: epp-agents") || !strings.Contains(text, "value: llama") {
		t.Errorf("the chart has not the two replicas, the Secret and the pool of the other examples:\n%s", text)
	}
}

// agentArgs are the arguments of the example's agent.
func agentArgs(t *testing.T) []string {
	t.Helper()
	data, err := os.ReadFile(examples + "vllm.yaml")
	if err != nil {
		t.Fatal(err)
	}
	for _, o := range things(t, string(data)) {
		if o.Kind != "Deployment" {
			continue
		}
		for _, c := range o.Spec.Template.Spec["initContainers"].([]any) {
			var args []string
			for _, a := range c.(map[string]any)["args"].([]any) {
				args = append(args, a.(string))
			}
			return args
		}
	}
	t.Fatal("vllm.yaml has no agent")
	return nil
}

// The agent takes its flags as they stand in the example, and starts.
func TestExampleAgentStarts(t *testing.T) {
	dir := t.TempDir()
	epp, err := built()
	if err != nil {
		t.Fatal(err)
	}
	token, ca := filepath.Join(dir, "token"), filepath.Join(dir, "ca.crt")
	if err := os.WriteFile(token, []byte("0123456789abcdef0123456789abcdef"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(ca, authority(t), 0o600); err != nil {
		t.Fatal(err)
	}
	replace := strings.NewReplacer("$(POD_IP)", "127.0.0.1", "/etc/epp/reports/token", token, "/etc/epp/ca/ca.crt", ca)
	var args []string
	for _, a := range agentArgs(t) {
		args = append(args, replace.Replace(a))
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	c := exec.CommandContext(ctx, epp, args...)
	stderr, err := c.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	var log strings.Builder
	started := false
	for lines := bufio.NewScanner(stderr); !started && lines.Scan(); {
		log.WriteString(lines.Text() + "\n")
		started = strings.Contains(lines.Text(), `"msg":"agent"`)
	}
	cancel()
	_ = c.Wait() // killed
	if !started {
		t.Errorf("the agent of the example does not start:\n%s", log.String())
	}
}
