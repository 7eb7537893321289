//go:build kube

package kube

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/cockroachdb/datadriven"
	"go.yaml.in/yaml/v3"

	"epp.internal/epp/config"
)

const chart = "../../deploy/chart"

// tools is the folder of helm, kustomize and other projects' schemas.
var tools = sync.OnceValues(func() (string, error) {
	out, err := exec.Command("../chart/install.sh").Output()
	if err != nil {
		return "", fmt.Errorf("../chart/install.sh: %w", err)
	}
	return strings.TrimSpace(string(out)), nil
})

// schemas applies other projects' CRDs and our own, once.
var schemas = sync.OnceValue(func() error {
	dir, err := tools()
	if err != nil {
		return err
	}
	for _, from := range []string{dir + "/crds", "../../deploy/crds"} {
		if out, err := exec.Command(kubectlPath, "--kubeconfig", kubeconfig, "apply", "--server-side", "-f", from).CombinedOutput(); err != nil {
			return fmt.Errorf("%s: %w: %s", from, err, out)
		}
	}
	out, err := exec.Command(kubectlPath, "--kubeconfig", kubeconfig, "wait", "crd", "--all", "--for", "condition=Established", "--timeout", "60s").CombinedOutput()
	if err != nil {
		return fmt.Errorf("%w: %s", err, out)
	}
	return nil
})

// prepared gives a test a namespace that admits what PodSecurity calls restricted, and
// all schemas.
func prepared(t *testing.T) (namespace string) {
	t.Helper()
	if err := schemas(); err != nil {
		t.Fatal(err)
	}
	namespace = strings.ToLower(regexp.MustCompile(`[^A-Za-z0-9]+`).ReplaceAllString(t.Name(), "-"))
	apply(t, fmt.Sprintf("{apiVersion: v1, kind: Namespace, metadata: {name: %s, labels: {pod-security.kubernetes.io/enforce: restricted}}}", namespace))
	return namespace
}

// apply has the API server take objects.
func apply(t *testing.T, objects string, args ...string) {
	t.Helper()
	if out, err := kubectl(t, objects, append([]string{"apply", "--server-side", "--validate=strict", "-f", "-"}, args...)...); err != nil {
		t.Fatalf("kubectl apply %s: %v\n%s", strings.Join(args, " "), err, out)
	}
}

// helm runs helm.
func helm(t *testing.T, args ...string) (stdout, stderr string, err error) {
	t.Helper()
	dir, err := tools()
	if err != nil {
		t.Fatal(err)
	}
	c := exec.CommandContext(t.Context(), filepath.Join(dir, "bin/helm"), args...)
	var out, bad bytes.Buffer
	c.Stdout, c.Stderr = &out, &bad
	err = c.Run()
	return out.String(), bad.String(), err
}

// rendered is the chart with a file of values, as helm install would send it.
func rendered(t *testing.T, namespace, values string) string {
	t.Helper()
	out, stderr, err := helm(t, "template", "epp", chart, "--namespace", namespace, "--values", values)
	if err != nil {
		t.Fatalf("helm template: %v\n%s", err, stderr)
	}
	return out
}

// thing is any object, as far as the tests look into it.
type thing struct {
	Kind     string
	Metadata struct{ Name, Namespace string }
	Data     map[string]string
	Spec     struct {
		Template struct {
			Metadata map[string]any
			Spec     map[string]any
		}
	}
}

// things are the objects of a text of YAML.
func things(t *testing.T, text string) (all []thing) {
	t.Helper()
	for d := yaml.NewDecoder(strings.NewReader(text)); ; {
		var o thing
		if err := d.Decode(&o); err != nil {
			if !errors.Is(err, io.EOF) {
				t.Fatal(err)
			}
			return all
		}
		if o.Kind != "" {
			all = append(all, o)
		}
	}
}

// podOf is the pod of a workload's template, as an object of its own.
func podOf(t *testing.T, o thing) string {
	t.Helper()
	o.Spec.Template.Metadata["name"] = "a-pod"
	text, err := yaml.Marshal(map[string]any{"apiVersion": "v1", "kind": "Pod", "metadata": o.Spec.Template.Metadata, "spec": o.Spec.Template.Spec})
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// admitted has the API server look at objects in a namespace, and at the pods that
// their templates would become, where PodSecurity is enforced. Nothing is kept.
func admitted(t *testing.T, namespace, objects string) {
	t.Helper()
	in := map[string]string{} // by the namespace that they name, where they do
	for _, text := range strings.Split(objects, "\n---\n") {
		for _, o := range things(t, text) {
			in[cmp.Or(o.Metadata.Namespace, namespace)] += text + "\n---\n"
		}
	}
	for namespace, objects := range in {
		apply(t, objects, "--namespace", namespace, "--dry-run=server")
	}
	for _, o := range things(t, objects) {
		if o.Spec.Template.Spec == nil {
			continue
		}
		if account, _ := o.Spec.Template.Spec["serviceAccountName"].(string); account != "" {
			apply(t, fmt.Sprintf("{apiVersion: v1, kind: ServiceAccount, metadata: {name: %s}}", account), "--namespace", namespace)
		}
		apply(t, podOf(t, o), "--namespace", namespace, "--dry-run=server")
	}
}

// Each file of testdata/values renders to objects that the API server takes with strict
// validation, to pods that PodSecurity's "restricted" admits, and to a file that the
// picker takes.
func TestChartIsAdmitted(t *testing.T) {
	files, err := filepath.Glob("testdata/values/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatalf("testdata/values: %d files, %v", len(files), err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".yaml"), func(t *testing.T) {
			namespace := prepared(t)
			if out, stderr, err := helm(t, "lint", "--strict", "--quiet", chart, "--values", file); err != nil {
				t.Errorf("helm lint: %v\n%s%s", err, out, stderr)
			}
			text := rendered(t, namespace, file)
			admitted(t, namespace, text)
			for _, o := range things(t, text) {
				if o.Kind != "ConfigMap" {
					continue
				}
				if _, err := config.ParseWith("epp.yaml", []byte(o.Data["epp.yaml"]), func(c *config.Config) { c.Kubernetes.Pool = "default/demo" }); err != nil {
					t.Errorf("the picker refuses its file: %v\n%s", err, o.Data["epp.yaml"])
				}
			}
		})
	}
}

// The namespace of these tests does refuse: a pod that may be root is not admitted.
func TestRestrictedRefuses(t *testing.T) {
	namespace := prepared(t)
	text := strings.ReplaceAll(rendered(t, namespace, "testdata/values/least.yaml"), "runAsNonRoot: true", "runAsNonRoot: false")
	apply(t, "{apiVersion: v1, kind: ServiceAccount, metadata: {name: epp}}", "--namespace", namespace)
	for _, o := range things(t, text) {
		if o.Kind != "Deployment" {
			continue
		}
		out, err := kubectl(t, podOf(t, o), "apply", "--namespace", namespace, "--dry-run=server", "-f", "-")
		if err == nil || !strings.Contains(out, "violates PodSecurity") {
			t.Errorf("err = %v, want a refusal by PodSecurity:\n%s", err, out)
		}
	}
}

// testdata/refused/values are files of values that helm refuses before anything is
// installed, with what it says.
func TestChartRefuses(t *testing.T) {
	datadriven.RunTest(t, "testdata/refused/values", func(t *testing.T, d *datadriven.TestData) string {
		file := filepath.Join(t.TempDir(), "values.yaml")
		if err := os.WriteFile(file, []byte(d.Input), 0o644); err != nil {
			t.Fatal(err)
		}
		out, stderr, err := helm(t, "template", "epp", chart, "--values", file)
		if err == nil {
			d.Fatalf(t, "helm takes it:\n%s", out)
		}
		return said(stderr)
	})
}

var where = regexp.MustCompile(`^.*error calling fail: |^Error: |^execution error at \(.*\): `)

// said is helm's message without where in the chart's templates it comes from.
func said(stderr string) string {
	var lines []string
	for line := range strings.Lines(stderr) {
		line = strings.TrimRight(line, "\n")
		if strings.Contains(line, "found symbolic link in path") || strings.HasPrefix(line, "Use --debug") || line == "" {
			continue
		}
		for where.MatchString(line) {
			line = where.ReplaceAllString(line, "")
		}
		lines = append(lines, line)
	}
	if len(lines) > 2 { // below the chart's name the faults stand in no order
		slices.SortFunc(lines[2:], func(a, b string) int { return strings.Compare(strings.TrimSpace(a), strings.TrimSpace(b)) })
	}
	return strings.Join(lines, "\n") + "\n"
}
