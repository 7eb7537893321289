//go:build gateway

package gateway

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health/grpc_health_v1"
)

// nodeName is the one node's: a pod without it is in no EndpointSlice.
const nodeName = "node"

// meta, pod and container are what the stand-in reads of pods.
type meta struct {
	Name              string            `json:"name"`
	Namespace         string            `json:"namespace"`
	UID               string            `json:"uid"`
	Labels            map[string]string `json:"labels"`
	Annotations       map[string]string `json:"annotations"`
	DeletionTimestamp *time.Time        `json:"deletionTimestamp"`
}

type pod struct {
	Metadata meta `json:"metadata"`
	Spec     struct {
		NodeName     string      `json:"nodeName"`
		Containers   []container `json:"containers"`
		GraceSeconds int         `json:"terminationGracePeriodSeconds"`
		Account      string      `json:"serviceAccountName"`
		Security     struct {
			User uint32 `json:"runAsUser"`
		} `json:"securityContext"`
		Volumes []volume `json:"volumes"`
	} `json:"spec"`
	Status struct {
		PodIP string `json:"podIP"`
	} `json:"status"`
}

type container struct {
	Name  string   `json:"name"`
	Image string   `json:"image"`
	Args  []string `json:"args"`
	Ports []struct {
		ContainerPort int `json:"containerPort"`
	} `json:"ports"`
	Env []struct {
		Name      string `json:"name"`
		Value     string `json:"value"`
		ValueFrom struct {
			FieldRef struct {
				FieldPath string `json:"fieldPath"`
			} `json:"fieldRef"`
		} `json:"valueFrom"`
	} `json:"env"`
	Mounts []struct {
		Name    string `json:"name"`
		Path    string `json:"mountPath"`
		SubPath string `json:"subPath"`
	} `json:"volumeMounts"`
}

type volume struct {
	Name      string `json:"name"`
	ConfigMap struct {
		Name string `json:"name"`
	} `json:"configMap"`
	HostPath struct {
		Path string `json:"path"`
	} `json:"hostPath"`
}

// running is what a pod's container is here.
type running interface {
	// ready looks whether it serves.
	ready(context.Context) (bool, error)
	// stop ends it, within grace.
	stop(grace time.Duration)
	log(last int) string
}

// kubelet stands in for that of one node. It binds every pod, gives it an address,
// starts what its image names, says that it runs and, once it serves, that it is
// ready; it ends a pod that is deleted, and then lets it go.
type kubelet struct {
	cluster *cluster
	// images starts a container by its image's name.
	images map[string]func(p *pod, ip string) (running, error)

	wg sync.WaitGroup

	mu      sync.Mutex // guards the following fields
	started map[string]running
	lastIP  int
	logs    []string // of pods that have gone
}

// run serves until ctx ends, and then ends what runs.
func (k *kubelet) run(ctx context.Context) error {
	node := map[string]any{"apiVersion": "v1", "kind": "Node", "metadata": map[string]any{"name": nodeName}}
	if err := k.cluster.do(ctx, http.MethodPost, "/api/v1/nodes", "application/json", node, nil); err != nil {
		return err
	}
	err := watch(ctx, k.cluster, "/api/v1/pods", func(kind string, p *pod) error {
		if kind == "DELETED" {
			return nil
		}
		return k.see(ctx, p)
	})
	k.wg.Wait()
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, r := range k.started {
		r.stop(0)
	}
	if ctx.Err() != nil {
		return nil
	}
	return err
}

// see does what a pod's state asks for.
func (k *kubelet) see(ctx context.Context, p *pod) error {
	k.mu.Lock()
	r, known := k.started[p.Metadata.UID]
	k.mu.Unlock()
	switch {
	case p.Metadata.DeletionTimestamp != nil:
		if known {
			k.forget(p)
			k.wg.Go(func() { k.end(ctx, p, r) })
		} else if p.Spec.NodeName == "" || p.Status.PodIP == "" {
			return k.release(ctx, p)
		}
		return nil
	case p.Spec.NodeName == "":
		binding := map[string]any{"apiVersion": "v1", "kind": "Binding", "metadata": map[string]any{"name": p.Metadata.Name},
			"target": map[string]any{"apiVersion": "v1", "kind": "Node", "name": nodeName}}
		return k.cluster.do(ctx, http.MethodPost, k.path(p)+"/binding", "application/json", binding, nil)
	case known:
		return nil
	}
	start := k.images[p.Spec.Containers[0].Image]
	if start == nil {
		return fmt.Errorf("kubelet: pod %s/%s: image %q: unknown", p.Metadata.Namespace, p.Metadata.Name, p.Spec.Containers[0].Image)
	}
	ip := k.nextIP()
	r, err := start(p, ip)
	if err != nil {
		return fmt.Errorf("kubelet: pod %s/%s: %w", p.Metadata.Namespace, p.Metadata.Name, err)
	}
	if d, ok := r.(*daemon); ok {
		ip = d.address // some have a network of their own
	}
	k.mu.Lock()
	k.started[p.Metadata.UID] = r
	k.mu.Unlock()
	k.wg.Go(func() { k.tell(ctx, p, r, ip) })
	return nil
}

func (k *kubelet) path(p *pod) string {
	return "/api/v1/namespaces/" + p.Metadata.Namespace + "/pods/" + p.Metadata.Name
}

// nextIP is an address that no pod has had.
func (k *kubelet) nextIP() string {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.lastIP++
	return fmt.Sprintf("10.77.%d.%d", 1+k.lastIP/200, 1+k.lastIP%200)
}

// tell says that a pod runs and then, when it serves, that it is ready.
func (k *kubelet) tell(ctx context.Context, p *pod, r running, ip string) {
	if k.status(ctx, p, ip, false) != nil {
		return
	}
	if poll(ctx, r.ready) == nil {
		_ = k.status(ctx, p, ip, true) // it may have gone
	}
}

// status writes a pod's status.
func (k *kubelet) status(ctx context.Context, p *pod, ip string, ready bool) error {
	now := time.Now().UTC().Format(time.RFC3339)
	yes := map[bool]string{true: "True", false: "False"}
	var conditions, containers []any
	for _, c := range []struct {
		name string
		is   bool
	}{{"PodScheduled", true}, {"Initialized", true}, {"ContainersReady", ready}, {"Ready", ready}} {
		conditions = append(conditions, map[string]any{"type": c.name, "status": yes[c.is], "lastTransitionTime": now})
	}
	for _, c := range p.Spec.Containers {
		containers = append(containers, map[string]any{"name": c.Name, "image": c.Image, "imageID": c.Image, "ready": ready, "started": ready, "restartCount": 0,
			"state": map[string]any{"running": map[string]any{"startedAt": now}}})
	}
	return k.cluster.do(ctx, http.MethodPatch, k.path(p)+"/status", "application/merge-patch+json", map[string]any{
		"metadata": map[string]any{"uid": p.Metadata.UID}, // not that of a namesake
		"status": map[string]any{"phase": "Running", "podIP": ip, "podIPs": []any{map[string]any{"ip": ip}}, "hostIP": hostIP, "startTime": now,
			"conditions": conditions, "containerStatuses": containers},
	}, nil)
}

// forget takes a pod out of those that run.
func (k *kubelet) forget(p *pod) {
	k.mu.Lock()
	defer k.mu.Unlock()
	delete(k.started, p.Metadata.UID)
}

// end stops a pod and lets it go.
func (k *kubelet) end(ctx context.Context, p *pod, r running) {
	r.stop(time.Duration(p.Spec.GraceSeconds) * time.Second)
	k.mu.Lock()
	k.logs = append(k.logs, p.Metadata.Namespace+"/"+r.log(maxShown))
	k.mu.Unlock()
	_ = k.release(ctx, p) // at the cluster's end there is nobody to tell
}

// release deletes a pod that has ended.
func (k *kubelet) release(ctx context.Context, p *pod) error {
	err := k.cluster.do(ctx, http.MethodDelete, k.path(p), "application/json", map[string]any{
		"apiVersion": "v1", "kind": "DeleteOptions", "gracePeriodSeconds": 0, "preconditions": map[string]any{"uid": p.Metadata.UID}}, nil)
	if gone := (*refusal)(nil); errors.As(err, &gone) && (gone.status == http.StatusNotFound || gone.status == http.StatusConflict) {
		return nil
	}
	return err
}

// maxShown is how many lines of a pod's log are shown.
const maxShown = 15

// show returns the logs of a namespace's pods, of those too that have gone.
func (k *kubelet) show(namespace string) string {
	k.mu.Lock()
	defer k.mu.Unlock()
	var b strings.Builder
	for _, l := range k.logs {
		if strings.HasPrefix(l, namespace+"/") {
			fmt.Fprintln(&b, l)
		}
	}
	for _, r := range k.started {
		if d, ok := r.(*daemon); ok && d.namespace == namespace {
			fmt.Fprintln(&b, d.log(maxShown))
		}
	}
	return b.String()
}

// daemon is a pod that is a process.
type daemon struct {
	*process
	namespace string
	address   string // its IP
	look      func(context.Context) (bool, error)
}

func (d *daemon) ready(ctx context.Context) (bool, error) {
	select {
	case <-d.ended:
		return false, fmt.Errorf("it has ended: %s", d.process.log(20))
	default:
		return d.look(ctx)
	}
}

// serving looks whether a gRPC health service says that all is well, as a pod's
// readiness probe does.
func serving(address string) func(context.Context) (bool, error) {
	return func(ctx context.Context) (bool, error) {
		conn, err := grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials()))
		if err != nil {
			return false, err
		}
		defer conn.Close()
		resp, err := grpc_health_v1.NewHealthClient(conn).Check(ctx, &grpc_health_v1.HealthCheckRequest{})
		return err == nil && resp.Status == grpc_health_v1.HealthCheckResponse_SERVING, err
	}
}

// configMap puts a ConfigMap's files into a folder. $(POD_IP) in them is the
// pod's address: pods that share one network must each listen on their own.
func (k *kubelet) configMap(ctx context.Context, p *pod, name, ip string) (string, error) {
	files, err := k.files(ctx, p, name)
	if err != nil {
		return "", err
	}
	dir := filepath.Join(k.cluster.dir, "pods", p.Metadata.UID)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", err
	}
	for file, text := range files {
		if err := os.WriteFile(filepath.Join(dir, file), []byte(strings.ReplaceAll(text, "$(POD_IP)", ip)), 0o600); err != nil {
			return "", err
		}
	}
	return dir, nil
}

// files returns what a ConfigMap holds.
func (k *kubelet) files(ctx context.Context, p *pod, name string) (map[string]string, error) {
	var m struct {
		Data map[string]string `json:"data"`
	}
	err := k.cluster.do(ctx, http.MethodGet, "/api/v1/namespaces/"+p.Metadata.Namespace+"/configmaps/"+name, "application/json", nil, &m)
	return m.Data, err
}
