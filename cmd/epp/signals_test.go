package main

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"epp.internal/epp"
	"epp.internal/epp/config"
	"epp.internal/epp/decision"
	"epp.internal/epp/epptest"
)

// TestProbesAreHealth: an engine that answers its page and its health check and no
// request is left out by probes alone, is named with the reason on the metrics
// page, and comes back by itself.
func TestProbesAreHealth(t *testing.T) {
	r := newRig(t, options{engines: 2, config: func(c *config.Config, _ []*epptest.Engine) {
		c.Probe = config.Probe{Interval: config.Duration{Duration: 50 * time.Millisecond}, Timeout: config.Duration{Duration: time.Second}}
	}})
	health := func(name string) epp.Signals { return r.state(name).Signals }
	r.until("both are proven", func() bool { return health("A").Health == 1 && health("B").Health == 1 })
	r.engine("A").SetFault(epptest.Fault{Status: http.StatusInternalServerError})
	r.until("A has failed", func() bool { return health("A").Health == 0 })
	if got := health("A").HealthReason; got != epp.ProbeFailed {
		t.Errorf("reason %q", got)
	}
	if got := r.metric("epp_pod_health_info", `pod="A"`, `reason="probe_failed"`); got != 1 {
		t.Errorf("epp_pod_health_info = %v", got)
	}
	for range 10 {
		if p := r.must([]message{user("hello")}, 1); p.servedBy != "B" {
			t.Errorf("served by %s", p.servedBy)
		}
	}
	r.engine("A").SetFault(epptest.Fault{})
	r.until("A is back", func() bool { return health("A").Health >= 0.5 })
	if got := r.metric("epp_probes_total", `outcome="failed"`); got < 3 {
		t.Errorf("epp_probes_total = %v, want at least 3 failed", got)
	}
	r.atRest()
}

// TestGPUIsALoad: with load.source "gpu" the exporter's utilization decides, and a
// GPU that has failed takes its endpoint out.
func TestGPUIsALoad(t *testing.T) {
	var fault atomic.Bool
	exporter := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		xid := 0
		if fault.Load() {
			xid = 79
		}
		_, _ = io.WriteString(w, "DCGM_FI_DEV_GPU_UTIL{gpu=\"0\",pod=\"A\"} 30\nDCGM_FI_DEV_GPU_UTIL{gpu=\"1\",pod=\"B\"} 80\n")
		_, _ = io.WriteString(w, fmt.Sprintf("DCGM_FI_DEV_XID_ERRORS{gpu=\"0\",pod=\"A\"} %d\n", xid))
	}))
	t.Cleanup(exporter.Close)
	_, port, _ := strings.Cut(strings.TrimPrefix(exporter.URL, "http://"), ":")
	r := newRig(t, options{engines: 2, config: func(c *config.Config, engines []*epptest.Engine) {
		c.Load.Source = decision.LoadGPU
		c.Weights = map[string]float64{"load": 1}
		c.Pool.Endpoints[0].GPU.DCGM = config.DCGM(port)
		c.Pool.Endpoints[1].GPU.DCGM = config.DCGM(exporter.URL + "/metrics")
	}})
	r.until("both GPUs are known", func() bool { return r.state("A").Signals.GPU.Known && r.state("B").Signals.GPU.Known })
	p := r.must([]message{user("hello")}, 1)
	if rec := r.record(p); p.servedBy != "A" || rec.Candidates[0].Load != 0.3 || rec.Candidates[1].Load != 0.8 {
		t.Errorf("served by %s at loads %v and %v", p.servedBy, rec.Candidates[0].Load, rec.Candidates[1].Load)
	}
	fault.Store(true)
	r.until("A has failed", func() bool { return r.state("A").Signals.HealthReason == epp.GPUFault })
	if p := r.must([]message{user("hello")}, 1); p.servedBy != "B" {
		t.Errorf("served by %s", p.servedBy)
	}
	r.atRest()
}
