package main

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"epp.internal/epp"
	"epp.internal/epp/config"
	"epp.internal/epp/epptest"
	"epp.internal/epp/report"
)

// TestOneVoiceOfGPUs: where a DCGM exporter is configured, what the endpoint's
// agent says of its GPUs is not heard: it knows no XID and would wipe the
// exporter's, and two counters of errors would look like new ones by turns.
func TestOneVoiceOfGPUs(t *testing.T) {
	exporter := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, `DCGM_FI_DEV_GPU_UTIL{gpu="0",UUID="GPU-0"} 40`+"\n"+`DCGM_FI_DEV_XID_ERRORS{gpu="0",UUID="GPU-0"} 79`+"\n")
	}))
	defer exporter.Close()
	take := reportsTo(t)
	r := newRig(t, options{engines: 2, config: func(c *config.Config, _ []*epptest.Engine) {
		take(c)
		_, port, _ := strings.Cut(strings.TrimPrefix(exporter.URL, "http://"), ":")
		c.Pool.Endpoints[0].GPU.DCGM = config.DCGM(port)
	}})
	r.until("the exporter has told of the XID", func() bool { return r.state("A").Signals.HealthReason == epp.GPUFault })
	for _, c := range []struct {
		name string
		want float64 // of the fault, or of the errors that come in the second reading
	}{{"A", 0}, {"B", 0.2}} {
		feed, err := r.sys.open(report.Opening{Endpoint: r.engine(c.name).Address()})
		if err != nil {
			t.Fatal(err)
		}
		for _, errors := range []float64{0, 3} {
			feed.Health.GPU(time.Now(), epp.GPU{DoubleBitErrors: epp.Known(errors)})
			feed.Health.GPU(time.Now(), epp.GPU{DoubleBitErrors: epp.Known(errors)})
		}
		if got := r.state(c.name).Signals; got.Health != c.want || (got.HealthReason == epp.GPUFault) != (c.want == 0) {
			t.Errorf("%s: health %v, %v; want %v", c.name, got.Health, got.HealthReason, c.want)
		}
		feed.Close(time.Now())
	}
}

// reportsTo lets a rig's picker take reports, every 200 ms at least.
func reportsTo(t *testing.T) func(c *config.Config) {
	secret := file(t, "token", []byte("0123456789abcdef\n"))
	return func(c *config.Config) {
		c.Listen.Reports, c.TLS.Insecure = "127.0.0.1:0", true
		c.Reports = config.Reports{TokenFile: secret, PodReportIntervalMs: 200}
	}
}
