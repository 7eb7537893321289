//go:build kube

package kube

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

var fenced = regexp.MustCompile("(?s)\n```\n(.*?)```\n")

// The commands of deploy/README.md, with and without agents, do what they say on a
// cluster: they run here as they stand there, one block after the other.
func TestReadmeInstalls(t *testing.T) {
	if err := schemas(); err != nil {
		t.Fatal(err)
	}
	dir, err := tools()
	if err != nil {
		t.Fatal(err)
	}
	page, err := os.ReadFile("../../deploy/README.md")
	if err != nil {
		t.Fatal(err)
	}
	deploy, err := filepath.Abs("../../deploy")
	if err != nil {
		t.Fatal(err)
	}
	cwd := t.TempDir() // where a reader would stand: beside deploy/
	if err := os.Symlink(deploy, filepath.Join(cwd, "deploy")); err != nil {
		t.Fatal(err)
	}
	blocks := fenced.FindAllStringSubmatch(string(page), -1)
	if len(blocks) != 2 {
		t.Fatalf("deploy/README.md has %d blocks of commands; want 2", len(blocks))
	}
	for i, want := range []string{"deployment.apps/epp service/epp", "statefulset.apps/epp service/epp service/epp-pickers deployment.apps/vllm-llama"} {
		c := exec.CommandContext(t.Context(), "bash", "-euc", blocks[i][1])
		c.Dir = cwd
		c.Env = append(os.Environ(), "KUBECONFIG="+kubeconfig, "PATH="+filepath.Join(dir, "bin")+":"+filepath.Dir(kubectlPath)+":"+os.Getenv("PATH"), "HOME="+cwd)
		out, err := c.CombinedOutput()
		if err != nil {
			t.Fatalf("%v:\n%s\n%s", err, blocks[i][1], out)
		}
		t.Logf("%s", out)
		for object := range strings.FieldsSeq(want + " inferencepool/llama endpointpickerpolicy/llama destinationrule/epp httproute/llama") {
			if out, err := kubectl(t, "", "get", object, "--namespace", "inference"); err != nil {
				t.Errorf("after block %d: %s: %v: %s", i+1, object, err, out)
			}
		}
	}
}
