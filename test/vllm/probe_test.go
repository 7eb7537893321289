//go:build vllm

package vllm

import (
	"os/exec"
	"strings"
	"testing"
)

// TestProbeUnderstandsVLLM: epp probe understands all of a real vLLM, its tokens
// included, and ends with status 0.
func TestProbeUnderstandsVLLM(t *testing.T) {
	for _, e := range []*server{pool.a, pool.b} {
		out, err := exec.Command(command, "probe", e.address, "--tokenizer", pool.files.model).CombinedOutput()
		if err != nil {
			t.Errorf("probe of %s: %v", e.name, err)
		}
		for line := range strings.Lines(string(out)) {
			if !strings.HasPrefix(line, "ok ") {
				t.Errorf("%s: %s", e.name, line)
			}
		}
		t.Logf("%s:\n%s", e.name, out)
	}
}
