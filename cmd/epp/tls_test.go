package main

import (
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"epp.internal/epp/config"
)

// TestCertificateAtStart: a certificate that cannot be read is told at once, with
// its settings' names, before anything listens.
func TestCertificateAtStart(t *testing.T) {
	dir := t.TempDir()
	bad := filepath.Join(dir, "bad.pem")
	if err := os.WriteFile(bad, []byte("no certificate"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, file := range []string{bad, filepath.Join(dir, "none.pem")} {
		cfg := config.Default()
		cfg.TLS.Cert, cfg.TLS.Key = file, file
		if _, err := build(cfg, nil, slog.New(slog.DiscardHandler), watch{}); err == nil || !strings.HasPrefix(err.Error(), "tls.cert, tls.key: certificate \""+file) {
			t.Errorf("%s: %v", file, err)
		}
	}
}
