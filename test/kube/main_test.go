//go:build kube

package kube

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

var (
	kubectlPath string // the command
	kubeconfig  string // of an administrator
	audited     string // the log of what accounts have asked of it, a line each

	apiAddress string                     // of the API server
	apiBinary  string                     // its command
	apiArgs    func(port string) []string // and what it is told, to listen on a port
)

// One etcd and one API server serve all tests; each test has a namespace of its own.
func TestMain(m *testing.M) {
	stop, err := start()
	code := 1
	if err != nil {
		fmt.Fprintln(os.Stderr, "test/kube:", err)
	} else {
		code = m.Run()
	}
	stop()
	for _, f := range endings {
		f()
	}
	os.Exit(code)
}

// endings are called after all tests.
var endings []func()

// atEnd has f called after all tests.
func atEnd(f func()) { endings = append(endings, f) }

// start starts etcd and the API server, and waits until it is ready.
func start() (stop func(), err error) {
	var running []*exec.Cmd
	dir, err := os.MkdirTemp("", "epp-kube-")
	stop = func() {
		for _, c := range running {
			_ = c.Process.Kill()
			_ = c.Wait()
		}
		_ = os.RemoveAll(dir)
	}
	if err != nil {
		return stop, err
	}
	out, err := exec.Command("./install.sh").Output()
	if err != nil {
		return stop, fmt.Errorf("install.sh: %w", err)
	}
	bin := strings.TrimSpace(string(out))
	kubectlPath = filepath.Join(bin, "kubectl")
	ports := freePorts(3)
	run := func(name string, args ...string) error {
		logs, err := os.Create(filepath.Join(dir, name+".log"))
		if err != nil {
			return err
		}
		c := exec.Command(filepath.Join(bin, name), args...)
		c.Stdout, c.Stderr = logs, logs
		if err := c.Start(); err != nil {
			return err
		}
		running = append(running, c)
		return nil
	}
	etcd := "http://127.0.0.1:" + ports[0]
	if err := run("etcd", "--data-dir", dir+"/etcd", "--listen-client-urls", etcd, "--advertise-client-urls", etcd,
		"--listen-peer-urls", "http://127.0.0.1:"+ports[1], "--unsafe-no-fsync"); err != nil {
		return stop, err
	}
	if err := writeKey(dir + "/accounts.key"); err != nil {
		return stop, err
	}
	if err := os.WriteFile(dir+"/tokens.csv", []byte("admin,admin,admin,system:masters\n"), 0o600); err != nil {
		return stop, err
	}
	audit := "apiVersion: audit.k8s.io/v1\nkind: Policy\nomitStages: [RequestReceived]\nrules: [{level: Metadata, userGroups: [system:serviceaccounts]}, {level: None}]\n"
	if err := os.WriteFile(dir+"/audit.yaml", []byte(audit), 0o600); err != nil {
		return stop, err
	}
	audited = dir + "/audit.log"
	apiAddress, apiBinary = "127.0.0.1:"+ports[2], filepath.Join(bin, "kube-apiserver")
	apiArgs = func(port string) []string {
		return []string{"--etcd-servers", etcd, "--secure-port", port, "--bind-address", "127.0.0.1", "--cert-dir", dir,
			"--token-auth-file", dir + "/tokens.csv", "--authorization-mode", "RBAC", "--service-cluster-ip-range", "10.0.0.0/24",
			"--service-account-key-file", dir + "/accounts.key", "--service-account-signing-key-file", dir + "/accounts.key",
			"--service-account-issuer", "https://kubernetes.default.svc"}
	}
	if err := run("kube-apiserver", append(apiArgs(ports[2]), "--audit-policy-file", dir+"/audit.yaml", "--audit-log-path", audited, "--audit-log-mode", "blocking")...); err != nil {
		return stop, err
	}
	server := "https://" + apiAddress
	kubeconfig = dir + "/kubeconfig"
	if err := os.WriteFile(kubeconfig, []byte(kubeconfigFor(server, dir+"/apiserver.crt", "admin")), 0o600); err != nil {
		return stop, err
	}
	if err := ready(server); err != nil {
		log, _ := os.ReadFile(dir + "/kube-apiserver.log")
		return stop, fmt.Errorf("%w; its log ends with\n%s", err, log[max(0, len(log)-2000):])
	}
	return stop, nil
}

// kubeconfigFor is a kubeconfig with a token.
func kubeconfigFor(server, ca, token string) string {
	return fmt.Sprintf("{apiVersion: v1, kind: Config, current-context: c, contexts: [{name: c, context: {cluster: c, user: u}}], clusters: [{name: c, cluster: {server: %q, certificate-authority: %q}}], users: [{name: u, user: {token: %q}}]}\n", server, ca, token)
}

// freePorts are ports that nothing listens on.
func freePorts(n int) []string {
	var ports []string
	for range n {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			panic(err)
		}
		defer l.Close()
		_, port, _ := net.SplitHostPort(l.Addr().String())
		ports = append(ports, port)
	}
	return ports
}

// writeKey makes the key that signs the accounts' tokens.
func writeKey(file string) error {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return err
	}
	return os.WriteFile(file, pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: der}), 0o600)
}

// ready waits until the API server is.
func ready(server string) error {
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}
	defer client.CloseIdleConnections()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, server+"/readyz", nil)
		if err != nil {
			return err
		}
		req.Header.Set("Authorization", "Bearer admin")
		if resp, err := client.Do(req); err == nil {
			resp.Body.Close()
			if resp.StatusCode == http.StatusOK {
				return nil
			}
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("the API server is not ready after a minute")
		case <-tick.C:
		}
	}
}

// kubectl runs a command of kubectl as the administrator, with stdin.
func kubectl(t *testing.T, stdin string, args ...string) (string, error) {
	t.Helper()
	c := exec.CommandContext(t.Context(), kubectlPath, append([]string{"--kubeconfig", kubeconfig}, args...)...)
	c.Stdin = strings.NewReader(stdin)
	var out bytes.Buffer
	c.Stdout, c.Stderr = &out, &out
	err := c.Run()
	return out.String(), err
}
