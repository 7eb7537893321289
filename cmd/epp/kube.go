package main

import (
	"context"
	"fmt"
	"os"
	"strings"

	"github.com/google/uuid"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"epp.internal/epp/config"
	"epp.internal/epp/discover/kube"
)

// poolFlags are the flags that say where on Kubernetes the pool is.
type poolFlags struct{ pool, kubeconfig string }

// set sets what was given; flags win over the file.
func (f *poolFlags) set(c *config.Config) {
	if f.pool != "" {
		c.Kubernetes.Pool = f.pool
	}
	if f.kubeconfig != "" {
		c.Kubernetes.Kubeconfig = f.kubeconfig
	}
}

// newKubeOptions says how a pool on Kubernetes is found; nil where the configuration
// names none.
func (s *system) newKubeOptions() (*kube.Options, error) {
	k := s.cfg.Kubernetes
	if k.Pool == "" {
		return nil, nil
	}
	client, err := restConfig(k.Kubeconfig)
	if err != nil {
		return nil, err
	}
	client.UserAgent = "epp/" + version
	namespace, name, _ := strings.Cut(k.Pool, "/")
	host, _ := os.Hostname() // the pod's name; without one the UUID is enough
	return &kube.Options{
		Client: client, Pool: types.NamespacedName{Namespace: namespace, Name: name}, Base: s.cfg, Log: s.log,
		Identity: host + "_" + uuid.NewString(), Settings: s.apply, Endpoints: s.setPods,
	}, nil
}

// restConfig is how the API server is reached: as a file says, or as a pod does.
func restConfig(file string) (*rest.Config, error) {
	if file == "" {
		c, err := rest.InClusterConfig()
		if err != nil {
			return nil, fmt.Errorf("kubernetes.kubeconfig: is empty, and this is no pod of a cluster (%w); name a kubeconfig", err)
		}
		return c, nil
	}
	c, err := clientcmd.BuildConfigFromFlags("", file)
	if err != nil {
		return nil, fmt.Errorf("kubernetes.kubeconfig: %q: %w", file, err)
	}
	if u, _, err := rest.DefaultServerUrlFor(c); err != nil || u.Hostname() == "" {
		return nil, fmt.Errorf("kubernetes.kubeconfig: %q: server %q is no URL, such as https://10.0.0.1:6443", file, c.Host)
	}
	return c, nil
}

// setPods makes pods the pool's endpoints.
func (s *system) setPods(pods []kube.Endpoint) {
	entries := make([]entry, len(pods))
	for i, p := range pods {
		entries[i] = entry{Endpoint: p.Endpoint, UID: p.UID, Labels: p.Labels}
	}
	s.setEndpoints(entries)
}

// followKube keeps the pool as its objects on Kubernetes say, until ctx ends.
func (s *system) followKube(ctx context.Context) {
	if s.kube == nil {
		return
	}
	if err := kube.Run(ctx, *s.kube); err != nil {
		s.log.Error("the pool is not followed", "pool", s.kube.Pool.String(), "error", err)
	}
}
