//go:build gateway

package gateway

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
)

// startImage is the image that deploy/Dockerfile makes, as nearly as it can be had
// without a container: a process whose root holds the static binary and what the
// pod mounts, of the pod's user, with its account's token and nothing else, in a
// network of its own. So the chart's pods run as they are.
func startImage(ctx context.Context, command string) func(p *pod, ip string) (running, error) {
	return func(p *pod, _ string) (running, error) {
		n := networks.Add(1)
		address := fmt.Sprintf("10.78.%d.2", n)
		root, err := imageRoot(ctx, command, p)
		if err != nil {
			return nil, err
		}
		c := &p.Spec.Containers[0]
		env := []string{"KUBERNETES_SERVICE_HOST=" + hostIP, "KUBERNETES_SERVICE_PORT=6443"}
		var expand []string
		for _, e := range c.Env {
			switch e.ValueFrom.FieldRef.FieldPath {
			case "metadata.namespace":
				e.Value = p.Metadata.Namespace
			case "":
			default:
				return nil, fmt.Errorf("environment %s: field %q: unknown", e.Name, e.ValueFrom.FieldRef.FieldPath)
			}
			env = append(env, e.Name+"="+e.Value)
			expand = append(expand, "$("+e.Name+")", e.Value)
		}
		var args []string
		for _, a := range c.Args {
			args = append(args, strings.NewReplacer(expand...).Replace(a))
		}
		proc := newProcess(p.Metadata.Name, "/epp", args...)
		proc.cmd.Dir, proc.cmd.Env = "/", env
		proc.cmd.SysProcAttr.Chroot = root
		proc.cmd.SysProcAttr.Credential = &syscall.Credential{Uid: p.Spec.Security.User, Gid: p.Spec.Security.User}
		if err := inNetwork(int(n), proc.start); err != nil {
			return nil, err
		}
		return &daemon{process: proc, namespace: p.Metadata.Namespace, address: address, look: serving(address + ":9003")}, nil
	}
}

// networks numbers the pods that have their own.
var networks atomic.Int32

// imageRoot makes a pod's root.
func imageRoot(ctx context.Context, command string, p *pod) (string, error) {
	root := filepath.Join(world.dir, "pods", p.Metadata.UID)
	put := func(path string, data []byte, mode os.FileMode) error {
		path = filepath.Join(root, path)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return err
		}
		return os.WriteFile(path, data, mode)
	}
	binary, err := os.ReadFile(command)
	if err != nil {
		return "", err
	}
	if err := put("epp", binary, 0o755); err != nil {
		return "", err
	}
	for _, m := range p.Spec.Containers[0].Mounts {
		i := slices.IndexFunc(p.Spec.Volumes, func(v volume) bool { return v.Name == m.Name })
		switch v := p.Spec.Volumes[i]; {
		case v.ConfigMap.Name != "" && m.SubPath != "":
			files, err := world.kubelet.files(ctx, p, v.ConfigMap.Name)
			if err != nil {
				return "", err
			}
			if err := put(m.Path, []byte(files[m.SubPath]), 0o644); err != nil {
				return "", err
			}
		case v.HostPath.Path != "":
			for _, file := range []string{"tokenizer.json", "tokenizer_config.json"} {
				data, err := os.ReadFile(filepath.Join(v.HostPath.Path, file))
				if err != nil {
					return "", err
				}
				if err := put(filepath.Join(m.Path, file), data, 0o644); err != nil {
					return "", err
				}
			}
		default:
			return "", fmt.Errorf("mount %s: volume %+v: unknown", m.Path, v)
		}
	}
	// What every pod gets of its account.
	var issued struct {
		Status struct {
			Token string `json:"token"`
		} `json:"status"`
	}
	request := map[string]any{"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": map[string]any{}}
	if err := world.do(ctx, http.MethodPost, "/api/v1/namespaces/"+p.Metadata.Namespace+"/serviceaccounts/"+p.Spec.Account+"/token", "application/json", request, &issued); err != nil {
		return "", err
	}
	authority, err := os.ReadFile(filepath.Join(world.dir, "certs", "apiserver.crt"))
	if err != nil {
		return "", err
	}
	const account = "var/run/secrets/kubernetes.io/serviceaccount/"
	for name, data := range map[string][]byte{"token": []byte(issued.Status.Token), "ca.crt": authority, "namespace": []byte(p.Metadata.Namespace)} {
		if err := put(account+name, data, 0o644); err != nil {
			return "", err
		}
	}
	return root, nil
}

// The first thread is the one whose network "netns 1" means: it stays with the first
// goroutine, so that inNetwork never has it.
func init() { runtime.LockOSThread() }

// inNetwork calls start on a thread in a new network, with the address 10.78.n.2,
// that a pair of virtual links joins to the cluster's. The network is that of
// what start has started, and goes with it.
func inNetwork(n int, start func() error) error {
	link, here, there := fmt.Sprintf("veth%d", n), fmt.Sprintf("10.78.%d.1", n), fmt.Sprintf("10.78.%d.2", n)
	made, joined, done := make(chan error, 1), make(chan error, 1), make(chan error, 1)
	go func() {
		runtime.LockOSThread() // for good: a thread that ends so takes its network with it
		made <- func() error {
			if err := syscall.Unshare(syscall.CLONE_NEWNET); err != nil {
				return err
			}
			return ip("link set lo up",
				"link add eth0 type veth peer name "+link+" netns 1", // this process is the first of its namespace
				"address add "+there+"/30 dev eth0", "link set eth0 up", "route add default via "+here)
		}()
		if err := <-joined; err != nil {
			done <- err
			return
		}
		done <- start()
	}()
	err := <-made
	if err == nil {
		err = ip("address add "+here+"/30 dev "+link, "link set "+link+" up")
	}
	joined <- err
	return <-done
}

// ip runs commands of iproute2.
func ip(commands ...string) error {
	for _, c := range commands {
		if out, err := exec.Command("ip", strings.Fields(c)...).CombinedOutput(); err != nil {
			return fmt.Errorf("ip %s: %w: %s(Debian's package iproute2 has the command)", c, err, out)
		}
	}
	return nil
}
