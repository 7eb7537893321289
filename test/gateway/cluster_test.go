//go:build gateway

package gateway

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/rsa"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// hostIP is the cluster's own address: the API server and istiod listen there.
const hostIP = "10.77.0.1"

// apiURL is the API server's, adminToken what it takes from its administrator.
const (
	apiURL     = "https://" + hostIP + ":6443"
	adminToken = "admin"
)

// cluster is Kubernetes, as far as it is needed: etcd, the API server and the
// controller manager.
type cluster struct {
	dir        string // for files of this run
	kubectl    string
	kubeconfig string
	client     *http.Client // of the API server
	parts      []*process   // in the order of their start
}

// parts are the folders of what was built.
type parts struct{ kube, gateway, chart, envoy string }

// install has all parts put into the cache.
func install() (p parts, err error) {
	for script, to := range map[string]*string{"../kube/install.sh": &p.kube, "./install.sh": &p.gateway, "../chart/install.sh": &p.chart, "../fetch-envoy.sh": &p.envoy} {
		var stderr bytes.Buffer
		cmd := exec.Command(script)
		cmd.Stderr = &stderr
		out, err := cmd.Output()
		if err != nil {
			return p, fmt.Errorf("%s: %w: %s", script, err, stderr.String())
		}
		*to = strings.TrimSpace(string(out))
	}
	return p, nil
}

// startCluster starts what Kubernetes is here, and returns when the API server
// is ready. Its stop is to be called whatever the error.
func startCluster(ctx context.Context, dir string, p parts) (*cluster, error) {
	c := &cluster{dir: dir, kubectl: filepath.Join(p.kube, "kubectl"), kubeconfig: filepath.Join(dir, "kubeconfig")}
	c.client = &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, ForceAttemptHTTP2: true}}
	key := filepath.Join(dir, "service-account.key")
	tokens := filepath.Join(dir, "tokens.csv")
	if err := errors.Join(
		writeKey(key),
		os.WriteFile(tokens, []byte(adminToken+`,admin,admin,"system:masters"`), 0o600),
		os.WriteFile(c.kubeconfig, fmt.Appendf(nil, kubeconfigForm, apiURL, adminToken), 0o600),
	); err != nil {
		return c, err
	}
	const etcd = "http://127.0.0.1:2379"
	err := c.start("etcd", filepath.Join(p.kube, "etcd"), "--data-dir", filepath.Join(dir, "etcd"), "--listen-client-urls", etcd, "--advertise-client-urls", etcd,
		"--listen-peer-urls", "http://127.0.0.1:2380", "--unsafe-no-fsync", "--log-level", "error")
	if err != nil {
		return c, err
	}
	err = c.start("kube-apiserver", filepath.Join(p.kube, "kube-apiserver"), "--etcd-servers", etcd, "--bind-address", hostIP, "--advertise-address", hostIP,
		"--secure-port", "6443", "--cert-dir", filepath.Join(dir, "certs"), "--token-auth-file", tokens, "--authorization-mode", "RBAC",
		"--service-account-key-file", key, "--service-account-signing-key-file", key, "--service-account-issuer", "https://kubernetes.default.svc",
		"--service-cluster-ip-range", "10.96.0.0/16", "--disable-admission-plugins", "ServiceAccount", "--allow-privileged=true")
	if err != nil {
		return c, err
	}
	authorized := &http.Client{Transport: c}
	if err := poll(ctx, answers(authorized, apiURL+"/readyz")); err != nil {
		return c, fmt.Errorf("the API server is not ready: %w: %s", err, c.parts[1].log(10))
	}
	return c, c.start("kube-controller-manager", filepath.Join(p.gateway, "kube-controller-manager"), "--kubeconfig", c.kubeconfig, "--leader-elect=false",
		"--controllers=deployment-controller,replicaset-controller,endpointslice-controller,namespace-controller,garbage-collector-controller,serviceaccount-controller",
		"--bind-address", "127.0.0.1", "--secure-port", "10257", "--cert-dir", filepath.Join(dir, "kcm-certs"))
}

const kubeconfigForm = `apiVersion: v1
kind: Config
clusters: [{name: c, cluster: {server: "%s", insecure-skip-tls-verify: true}}]
users: [{name: u, user: {token: "%s"}}]
contexts: [{name: x, context: {cluster: c, user: u}}]
current-context: x
`

// writeKey writes a new key, which signs service accounts' tokens.
func writeKey(path string) error {
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		return err
	}
	block := &pem.Block{Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(key)}
	return os.WriteFile(path, pem.EncodeToMemory(block), 0o600)
}

// start starts a part.
func (c *cluster) start(name, command string, args ...string) error {
	return c.startIn(c.dir, nil, name, command, args...)
}

// startIn starts a part in a folder, with more environment.
func (c *cluster) startIn(dir string, env []string, name, command string, args ...string) error {
	p, err := startProcess(name, dir, env, command, args...)
	if err != nil {
		return err
	}
	c.parts = append(c.parts, p)
	return nil
}

// stop ends all parts, the last first.
func (c *cluster) stop() {
	for len(c.parts) > 0 {
		last := len(c.parts) - 1
		c.parts[last].kill() // nothing of it is kept
		c.parts = c.parts[:last]
	}
	c.client.CloseIdleConnections()
}

// RoundTrip sends a request as the administrator.
func (c *cluster) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set("Authorization", "Bearer "+adminToken)
	return c.client.Transport.RoundTrip(r)
}

// do sends body, of a content type, to a path of the API server. into gets the
// answer unless it is nil.
func (c *cluster) do(ctx context.Context, method, path, contentType string, body, into any) error {
	data, err := json.Marshal(body)
	if err != nil {
		return err
	}
	req, err := http.NewRequestWithContext(ctx, method, apiURL+path, bytes.NewReader(data))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", contentType)
	resp, err := c.RoundTrip(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(resp.Body)
	if err != nil {
		return err
	}
	if resp.StatusCode >= http.StatusMultipleChoices {
		return &refusal{status: resp.StatusCode, text: fmt.Sprintf("%s %s: %s", method, path, answer)}
	}
	if into == nil {
		return nil
	}
	return json.Unmarshal(answer, into)
}

// refusal is an answer of the API server that is no success.
type refusal struct {
	status int
	text   string
}

func (r *refusal) Error() string { return r.text }

// errSeen ends a watch whose end has been seen.
var errSeen = errors.New("seen")

// watch calls see for each object of a list, as it is and with each change, until
// ctx ends or see returns an error. kind is ADDED, MODIFIED or DELETED.
func watch[T any](ctx context.Context, c *cluster, path string, see func(kind string, object *T) error) error {
	join := "?"
	if strings.Contains(path, "?") {
		join = "&"
	}
	for {
		if err := watchOnce(ctx, c, path+join+"watch=1", see); err != nil {
			return err
		}
		select { // a watch ends now and then; the next begins with all objects
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(lookEvery):
		}
	}
}

// watchOnce is one watch; its end without a word is no error.
func watchOnce[T any](ctx context.Context, c *cluster, path string, see func(kind string, object *T) error) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, apiURL+path, nil)
	if err != nil {
		return err
	}
	resp, err := c.RoundTrip(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode == http.StatusTooManyRequests { // a new kind, whose storage is being made
		return nil
	}
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("watch %s: status %d", path, resp.StatusCode)
	}
	for d := json.NewDecoder(resp.Body); ; {
		var event struct {
			Type   string
			Object json.RawMessage
		}
		if err := d.Decode(&event); err != nil {
			return ctx.Err()
		}
		if event.Type == "ERROR" {
			return nil
		}
		object := new(T)
		if err := json.Unmarshal(event.Object, object); err != nil {
			return fmt.Errorf("watch %s: %w", path, err)
		}
		if err := see(event.Type, object); err != nil {
			return err
		}
	}
}

// await returns an object of a list as soon as ok is true for it. The error tells
// what was seen last.
func await[T any](ctx context.Context, c *cluster, path string, ok func(*T) bool) (*T, error) {
	var found *T
	last := "nothing"
	err := watch(ctx, c, path, func(kind string, object *T) error {
		if kind == "DELETED" {
			return nil
		}
		if ok(object) {
			found = object
			return errSeen
		}
		text, _ := json.Marshal(object)
		last = string(text)
		return nil
	})
	if errors.Is(err, errSeen) {
		return found, nil
	}
	return nil, fmt.Errorf("await %s: %w; seen last: %s", path, err, last)
}

// apply has kubectl apply manifests, by further flags.
func (c *cluster) apply(ctx context.Context, manifests string, flags ...string) error {
	_, err := c.run(ctx, manifests, append([]string{"apply", "--server-side", "--force-conflicts", "-f", "-"}, flags...)...)
	return err
}

// run runs kubectl and returns its output.
func (c *cluster) run(ctx context.Context, stdin string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, c.kubectl, append([]string{"--kubeconfig", c.kubeconfig, "--cache-dir", filepath.Join(c.dir, "kubectl")}, args...)...)
	cmd.Stdin = strings.NewReader(stdin)
	var out, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &stderr
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("kubectl %s: %w: %s", strings.Join(args, " "), err, &stderr)
	}
	return out.String(), nil
}
