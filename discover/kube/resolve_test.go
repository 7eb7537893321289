package kube

import (
	"errors"
	"fmt"
	"io"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"

	"epp.internal/epp/config"
)

// TestStories are conversations with Resolve. Commands:
//
//	base          settings of the picker's file, YAML
//	pods          one pod a line: NAME ip=IP labels=a=b,c=d and, where it is not a
//	              ready one, uid=, age=, phase=, ready=false, deleting, ports=8000,8001
//	objects       YAML documents, each in place of what had its kind and name
//	remove        KIND/NAME or pod/NAME, one a line
//	resolve       what follows for the pool default/pool, but what the base has too
//
// A metadata.age of N is that many seconds before now.
func TestStories(t *testing.T) {
	for _, dir := range []string{"pods", "policy", "models"} {
		datadriven.Walk(t, "testdata/"+dir, func(t *testing.T, path string) {
			s := story{base: poolConfig(t, "")}
			datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
				switch d.Cmd {
				case "base":
					s.base = poolConfig(t, d.Input)
				case "pods":
					for _, line := range strings.Split(d.Input, "\n") {
						s.pod(t, line)
					}
				case "objects":
					return s.objects(t, d.Input)
				case "remove":
					for _, name := range strings.Fields(d.Input) {
						s.remove(t, name)
					}
				case "resolve":
					return s.resolve()
				default:
					t.Fatalf("%s: unknown command %q", d.Pos, d.Cmd)
				}
				return "ok"
			})
		})
	}
}

// poolConfig is the picker's file.
func poolConfig(t *testing.T, text string) *config.Config {
	t.Helper()
	c, err := config.ParseWith("epp.yaml", []byte(text), func(c *config.Config) { c.Kubernetes.Pool = "default/pool" })
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// story is the state of a conversation.
type story struct {
	base *config.Config
	pods []*corev1.Pod
	objs []*unstructured.Unstructured
}

var storyTime = time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)

func aged(seconds string) metav1.Time {
	n, _ := strconv.Atoi(seconds)
	return metav1.NewTime(storyTime.Add(-time.Duration(n) * time.Second))
}

func (s *story) pod(t *testing.T, line string) {
	t.Helper()
	fields := strings.Fields(line)
	p := &corev1.Pod{}
	p.Name, p.Namespace, p.UID, p.CreationTimestamp = fields[0], "default", types.UID("uid-"+fields[0]), aged("60")
	p.Status.Phase = corev1.PodRunning
	ready := corev1.ConditionTrue
	for _, f := range fields[1:] {
		key, value, _ := strings.Cut(f, "=")
		switch key {
		case "ip":
			p.Status.PodIP = value
		case "uid":
			p.UID = types.UID(value)
		case "age":
			p.CreationTimestamp = aged(value)
		case "phase":
			p.Status.Phase = corev1.PodPhase(value)
		case "ready":
			ready = corev1.ConditionFalse
		case "deleting":
			now := metav1.NewTime(storyTime)
			p.DeletionTimestamp = &now
		case "ports":
			p.Annotations = map[string]string{activePorts[0]: value}
		case "oldports":
			p.Annotations = map[string]string{activePorts[1]: value}
		case "labels":
			p.Labels = map[string]string{}
			for _, l := range strings.Split(value, ",") {
				k, v, _ := strings.Cut(l, "=")
				p.Labels[k] = v
			}
		default:
			t.Fatalf("unknown word %q", f)
		}
	}
	p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: ready}}
	s.pods = append(slices.DeleteFunc(s.pods, func(o *corev1.Pod) bool { return o.UID == p.UID }), p)
}

func (s *story) objects(t *testing.T, text string) string {
	t.Helper()
	r := utilyaml.NewYAMLOrJSONDecoder(strings.NewReader(text), 4096)
	for {
		u := &unstructured.Unstructured{}
		if err := r.Decode(&u.Object); err != nil {
			if errors.Is(err, io.EOF) {
				return "ok"
			}
			t.Fatal(err)
		}
		u.SetNamespace("default")
		u.SetUID(types.UID("uid-" + u.GetName()))
		u.SetGeneration(1)
		age, _, _ := unstructured.NestedFieldNoCopy(u.Object, "metadata", "age")
		unstructured.RemoveNestedField(u.Object, "metadata", "age")
		u.SetCreationTimestamp(aged(fmt.Sprint(age)))
		s.objs = append(slices.DeleteFunc(s.objs, func(o *unstructured.Unstructured) bool {
			return o.GroupVersionKind() == u.GroupVersionKind() && o.GetName() == u.GetName()
		}), u)
	}
}

func (s *story) remove(t *testing.T, what string) {
	t.Helper()
	kind, name, _ := strings.Cut(what, "/")
	before := len(s.objs) + len(s.pods)
	s.objs = slices.DeleteFunc(s.objs, func(o *unstructured.Unstructured) bool { return o.GetKind() == kind && o.GetName() == name })
	s.pods = slices.DeleteFunc(s.pods, func(p *corev1.Pod) bool { return kind == "pod" && p.Name == name })
	if len(s.objs)+len(s.pods) == before {
		t.Fatalf("there is no %s", what)
	}
}

// input is the objects as a watch would have them.
func (s *story) input() Input {
	in := Input{Pool: types.NamespacedName{Namespace: "default", Name: "pool"}, Base: s.base, Scorers: []string{"cost"}, Pods: s.pods}
	for _, u := range s.objs {
		in.add(u)
	}
	return in
}

func (s *story) resolve() string {
	w := Resolve(s.input())
	var b strings.Builder
	for _, e := range w.Endpoints {
		fmt.Fprintf(&b, "endpoint %s %s %s", e.Name, e.Address, e.UID)
		if e.Events != "" {
			fmt.Fprintf(&b, " events=%s replay=%s", e.Events, e.Replay)
		}
		b.WriteByte('\n')
	}
	s.settings(&b, w.Config)
	for _, m := range w.Config.Models {
		fmt.Fprintf(&b, "model %s ->", m.Name)
		for _, t := range m.Divided() {
			fmt.Fprintf(&b, " %s:%d", t.Name, *t.Weight)
		}
		if m.Priority != 0 {
			fmt.Fprintf(&b, " priority %d", m.Priority)
		}
		b.WriteByte('\n')
	}
	for _, o := range w.Config.Objectives {
		fmt.Fprintf(&b, "objective %s %d\n", o.Name, o.Priority)
	}
	for _, st := range w.Statuses {
		for _, c := range st.Conditions {
			fmt.Fprintf(&b, "%s/%s %s=%s %s: %s\n", st.Kind, st.Name, c.Type, c.Status, c.Reason, c.Message)
		}
	}
	for _, n := range w.Notes {
		fmt.Fprintf(&b, "note %s: %s\n", n.Reason, n.Text)
	}
	if b.Len() == 0 {
		return "nothing"
	}
	return b.String()
}

// settings prints what differs from the base, and is no list.
func (s *story) settings(b *strings.Builder, c *config.Config) {
	for _, f := range []struct {
		name       string
		base, want any
	}{
		{"weights", s.base.Weights, c.Weights},
		{"maxQueue", s.base.MaxQueue, c.MaxQueue},
		{"onSaturated", s.base.OnSaturated, c.OnSaturated},
		{"load.source", s.base.Load.Source, c.Load.Source},
		{"defaultModel", s.base.DefaultModel, c.DefaultModel},
		{"podReportIntervalMs", s.base.Reports.PodReportIntervalMs, c.Reports.PodReportIntervalMs},
	} {
		if !reflect.DeepEqual(f.base, f.want) {
			fmt.Fprintf(b, "setting %s %v\n", f.name, f.want)
		}
	}
}
