package extproc

import (
	"context"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
)

// The services of the health protocol: those of the endpoint-picker protocol
// and, the last one, of older manifests.
const (
	allService         = ""
	livenessService    = "liveness"
	readinessService   = "readiness"
	processorService   = "envoy.service.ext_proc.v3.ExternalProcessor"
	inferenceExtension = "inference-extension"
)

// watchInterval is how often a watch looks whether we are ready. Draining is
// told at once.
const watchInterval = time.Second

// healthService answers grpc.health.v1: liveness is SERVING while we answer at
// all, everything else while we are ready and not draining.
type healthService struct {
	grpc_health_v1.UnimplementedHealthServer
	s *Server
}

// statusOf returns a service's status, SERVICE_UNKNOWN for one we don't know.
func (h healthService) statusOf(service string) grpc_health_v1.HealthCheckResponse_ServingStatus {
	switch service {
	case livenessService:
		return grpc_health_v1.HealthCheckResponse_SERVING
	case allService, readinessService, processorService, inferenceExtension:
		if h.s.draining.Load() || !h.s.opts.Ready() {
			return grpc_health_v1.HealthCheckResponse_NOT_SERVING
		}
		return grpc_health_v1.HealthCheckResponse_SERVING
	}
	return grpc_health_v1.HealthCheckResponse_SERVICE_UNKNOWN
}

// Check returns a service's status.
func (h healthService) Check(_ context.Context, r *grpc_health_v1.HealthCheckRequest) (*grpc_health_v1.HealthCheckResponse, error) {
	st := h.statusOf(r.GetService())
	if st == grpc_health_v1.HealthCheckResponse_SERVICE_UNKNOWN {
		return nil, status.Error(codes.NotFound, "unknown service")
	}
	return &grpc_health_v1.HealthCheckResponse{Status: st}, nil
}

// List returns the status of all services.
func (h healthService) List(context.Context, *grpc_health_v1.HealthListRequest) (*grpc_health_v1.HealthListResponse, error) {
	all := map[string]*grpc_health_v1.HealthCheckResponse{}
	for _, name := range []string{allService, livenessService, readinessService, processorService, inferenceExtension} {
		all[name] = &grpc_health_v1.HealthCheckResponse{Status: h.statusOf(name)}
	}
	return &grpc_health_v1.HealthListResponse{Statuses: all}, nil
}

// Watch sends a service's status at once and then whenever it has changed. It
// ends when no more streams are taken: it must not hold up Shutdown.
func (h healthService) Watch(r *grpc_health_v1.HealthCheckRequest, stream grpc_health_v1.Health_WatchServer) error {
	tick := time.NewTicker(watchInterval)
	defer tick.Stop()
	last := grpc_health_v1.HealthCheckResponse_ServingStatus(-1)
	drained := h.s.drained
	for {
		if st := h.statusOf(r.GetService()); st != last {
			if err := stream.Send(&grpc_health_v1.HealthCheckResponse{Status: st}); err != nil {
				return err
			}
			last = st
		}
		select {
		case <-stream.Context().Done():
			return status.Error(codes.Canceled, "watch ended")
		case <-h.s.stopping:
			return status.Error(codes.Unavailable, "shutting down")
		case <-drained:
			drained = nil // once
		case <-tick.C:
		}
	}
}
