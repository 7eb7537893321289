package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestKubeconfigs: a kubeconfig that leads to no API server is refused at start, with
// the setting, the file and what is wrong.
func TestKubeconfigs(t *testing.T) {
	file := filepath.Join(t.TempDir(), "kubeconfig")
	form := "{apiVersion: v1, kind: Config, current-context: c, contexts: [{name: c, context: {cluster: c}}], clusters: [{name: c, cluster: {server: %q}}]}"
	for text, want := range map[string]string{
		fmt.Sprintf(form, "not a url"):             `server "not a url" is no URL`,
		fmt.Sprintf(form, "https://:6443"):         `server "https://:6443" is no URL`,
		fmt.Sprintf(form, "https://10.0.0.1:6443"): "",
		fmt.Sprintf(form, "10.0.0.1:6443"):         "",
		"":                                         "no configuration has been provided",
	} {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		c, err := restConfig(file)
		switch {
		case want == "" && (err != nil || c.Host == ""):
			t.Errorf("%s: %v", text, err)
		case want != "" && (err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "kubernetes.kubeconfig: \""+file)):
			t.Errorf("%s: %v; want %q", text, err, want)
		}
	}
}
