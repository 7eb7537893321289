package main

import (
	"context"
	"io"
	"log/slog"
	"os"
	"testing"

	"epp.internal/epp/config"
	"epp.internal/epp/epptest"
)

// TestRotation: the picker's certificate, the agent's, the authorities that either
// trusts and the secret are replaced while both run. New streams go by the new files,
// and who has only the old ones is refused. A file that breaks leaves what it held.
func TestRotation(t *testing.T) {
	cert, key := certificate(t)
	mine, mineKey := certificate(t)
	secret := file(t, "token", []byte("0123456789abcdef\n"))
	replace := func(to string, from string) {
		t.Helper()
		data, err := os.ReadFile(from)
		if err == nil {
			err = os.WriteFile(to, data, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	r := newRig(t, options{engines: 1, config: func(c *config.Config, _ []*epptest.Engine) {
		c.Listen.Reports, c.TLS = "127.0.0.1:0", config.TLS{Cert: cert, Key: key}
		c.Reports = config.Reports{TokenFile: secret, ClientCA: mine, PodReportIntervalMs: 200}
	}})
	base := agentFlags{engine: "http://" + r.engine("A").Address(), pickers: []string{r.at.reports}, ca: cert, noGPU: true}
	// run runs an agent until it was let in, or refused, as wanted. during happens
	// before its first connection.
	run := func(what string, f agentFlags, in bool, during func()) {
		t.Helper()
		b, err := newBeside(&f, slog.New(slog.NewJSONHandler(io.Discard, nil)))
		if err != nil {
			t.Fatal(err)
		}
		during()
		ctx, stop := context.WithCancel(r.ctx)
		ended := make(chan error)
		refused := len(r.log.find("report stream refused", ""))
		go func() { ended <- b.run(ctx) }()
		r.until(what, func() bool {
			if in {
				return r.state("A").Signals.Agent
			}
			return len(r.log.find("report stream refused", "")) > refused
		})
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		r.until("it has gone", func() bool { return !r.state("A").Signals.Agent })
	}
	byToken, byCert := base, base
	byToken.tokenFile = secret
	byCert.cert, byCert.key = mine, mineKey
	run("the secret lets in", byToken, true, func() {})
	run("so does the certificate", byCert, true, func() {})

	byAuthority := byToken
	byAuthority.ca = file(t, "ca", nil)
	replace(byAuthority.ca, mine)
	run("the picker is trusted under its new authority", byAuthority, true, func() { replace(byAuthority.ca, cert) })

	old := file(t, "old", []byte("0123456789abcdef\n"))
	run("the new secret lets in", byToken, true, func() { replace(secret, file(t, "new", []byte("another-secret-of-16\n"))) })
	byOld := byToken
	byOld.tokenFile = old
	run("the old secret does not", byOld, false, func() {})
	run("a secret that breaks stays what it was", byToken, true, func() { replace(secret, file(t, "broken", []byte("x"))) })

	run("the agent's new certificate lets in, under its new authority", byCert, true, func() {
		c, k := certificate(t)
		replace(mine, c)
		replace(mineKey, k)
	})
}
