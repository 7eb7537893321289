package main

import (
	"net"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health/grpc_health_v1"

	"epp.internal/epp/config"
	"epp.internal/epp/epptest"
)

// TestCaseM5ReadyAfterTheFirstSync: the picker is not ready while no endpoint of
// its pool was reached, is alive all the time, and becomes ready with the first
// that is, though another stays dead.
func TestCaseM5ReadyAfterTheFirstSync(t *testing.T) {
	dead, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := dead.Addr().String()
	if err := dead.Close(); err != nil {
		t.Fatal(err)
	}
	r := newRig(t, options{engines: 1, unsettled: true, config: func(c *config.Config, engines []*epptest.Engine) {
		engines[0].Crash()
		c.Pool.Endpoints = append(c.Pool.Endpoints, config.Endpoint{Name: "dead", Address: address})
		c.Listen.Health = "127.0.0.1:0"
	}})
	conn, err := grpc.NewClient(r.at.health, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	status := func(service string) string {
		t.Helper()
		resp, err := grpc_health_v1.NewHealthClient(conn).Check(r.ctx, &grpc_health_v1.HealthCheckRequest{Service: service})
		if err != nil {
			t.Fatal(err)
		}
		return resp.Status.String()
	}
	r.until("both were tried", func() bool { untried, _ := r.sys.roster.ready.state(); return untried == 0 })
	if got := status("readiness"); got != "NOT_SERVING" {
		t.Errorf("readiness %s with a pool that was never reached", got)
	}
	if got := status("liveness"); got != "SERVING" {
		t.Errorf("liveness %s", got)
	}
	if err := r.engines[0].Restart(); err != nil {
		t.Fatal(err)
	}
	r.until("an endpoint was reached", r.sys.roster.ready.is.Load)
	for _, service := range []string{"readiness", "", "envoy.service.ext_proc.v3.ExternalProcessor"} {
		if got := status(service); got != "SERVING" {
			t.Errorf("%q: %s after the first sync", service, got)
		}
	}
}
