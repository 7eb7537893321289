//go:build kube

package kube

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// The base is what the chart renders now; the overlay of the examples, which names
// another namespace, pool and image, is taken by the API server, and nothing in it is
// left of the base's own.
func TestKustomizeBase(t *testing.T) {
	namespace := prepared(t)
	dir := t.TempDir()
	if out, err := exec.Command("../../deploy/kustomize/render.sh", dir).CombinedOutput(); err != nil {
		t.Fatalf("render.sh: %v\n%s", err, out)
	}
	want, err := os.ReadFile(filepath.Join(dir, "epp.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile("../../deploy/kustomize/base/epp.yaml")
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), string(got)); diff != "" {
		t.Errorf("deploy/kustomize/base is not what the chart renders; make kustomize writes it. -want +got:\n%s", diff)
	}

	bin, err := tools()
	if err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command(filepath.Join(bin, "bin/kustomize"), "build", "../../deploy/examples/kustomize").CombinedOutput()
	if err != nil {
		t.Fatalf("kustomize build: %v\n%s", err, out)
	}
	for _, left := range []string{"my-pool", "namespace: default", "image: epp:"} {
		if strings.Contains(string(out), left) {
			t.Errorf("%q of the base is left in the overlay", left)
		}
	}
	admitted(t, namespace, strings.ReplaceAll(string(out), "namespace: inference", "namespace: "+namespace))
}
