package kube

import (
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
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
//	uninstall     the API server has no InferencePool
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
				case "uninstall":
					s.noPools = true
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

	noPools bool
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
	in := Input{Pool: types.NamespacedName{Namespace: "default", Name: "pool"}, Base: s.base, Scorers: []string{"cost"}, Pods: s.pods, NoPools: s.noPools}
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

// TestOrderMeansNothing: whatever order a cache has its objects in, the result is the
// same, so that replicas agree.
func TestOrderMeansNothing(t *testing.T) {
	s := story{base: poolConfig(t, "")}
	for i := range 12 {
		s.pod(t, fmt.Sprintf("p%d ip=10.0.0.%d labels=app=vllm age=%d", i, i/2, i%3)) // two of each address
	}
	s.objects(t, "{apiVersion: inference.networking.k8s.io/v1, kind: InferencePool, metadata: {name: pool}, spec: {selector: {matchLabels: {app: vllm}}, targetPorts: [{number: 8000}, {number: 8001}]}}")
	s.objects(t, "{apiVersion: inference.networking.x-k8s.io/v1alpha2, kind: InferencePool, metadata: {name: pool}, spec: {selector: {app: other}, targetPortNumber: 9000}}")
	for i := range 6 {
		s.objects(t, fmt.Sprintf("{apiVersion: epp.internal/v1alpha1, kind: EndpointPickerPolicy, metadata: {name: policy%d, age: %d}, spec: {targetRef: {name: pool}, maxQueue: %d}}", i, i%3, i))
		s.objects(t, fmt.Sprintf("{apiVersion: inference.networking.x-k8s.io/v1alpha2, kind: InferenceModel, metadata: {name: model%d, age: %d}, spec: {modelName: name%d, targetModels: [{name: to%d}], poolRef: {name: pool}}}", i, i%3, i%2, i))
		for _, group := range []string{"llm-d.ai", "inference.networking.x-k8s.io"} {
			s.objects(t, fmt.Sprintf("{apiVersion: %s/v1alpha2, kind: InferenceModelRewrite, metadata: {name: rewrite%d, age: %d}, spec: {poolRef: {name: pool}, rules: [{matches: [{model: {value: re%d}}], targets: [{modelRewrite: to%d}]}]}}", group, i, i%3, i%2, i))
			s.objects(t, fmt.Sprintf("{apiVersion: %s/v1alpha2, kind: InferenceObjective, metadata: {name: objective%d, age: %d}, spec: {poolRef: {name: pool}, priority: %d}}", group, i%4, i%3, i))
		}
	}
	want := s.resolve()
	if n := strings.Count(want, "\n"); n < 40 {
		t.Fatalf("%d lines are no result:\n%s", n, want)
	}
	rng := rand.New(rand.NewPCG(1, 2))
	for range 200 {
		rng.Shuffle(len(s.pods), func(i, j int) { s.pods[i], s.pods[j] = s.pods[j], s.pods[i] })
		rng.Shuffle(len(s.objs), func(i, j int) { s.objs[i], s.objs[j] = s.objs[j], s.objs[i] })
		if got := s.resolve(); got != want {
			t.Fatalf("in another order:\n%s\nbefore:\n%s", got, want)
		}
	}
}

// TestNotApplied: settings that could not be put in force are told where the policy is
// read, and among the notes.
func TestNotApplied(t *testing.T) {
	s := story{base: poolConfig(t, "")}
	s.objects(t, "{apiVersion: inference.networking.k8s.io/v1, kind: InferencePool, metadata: {name: pool}, spec: {selector: {matchLabels: {app: vllm}}, targetPorts: [{number: 8000}]}}")
	s.objects(t, "{apiVersion: epp.internal/v1alpha1, kind: EndpointPickerPolicy, metadata: {name: policy}, spec: {targetRef: {name: pool}, maxQueue: 7}}")
	w := Resolve(s.input())
	w.NotApplied(errors.New("tls.cert: needs a restart"))
	for _, c := range w.Statuses[0].Conditions {
		if c.Type == Programmed && (c.Status != metav1.ConditionFalse || c.Reason != reasonFailed || !strings.Contains(c.Message, "tls.cert: needs a restart")) {
			t.Errorf("%+v", c)
		}
	}
	if !slices.ContainsFunc(w.Notes, func(n Note) bool { return strings.Contains(n.Text, "tls.cert: needs a restart") }) {
		t.Errorf("notes %v", w.Notes)
	}
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

// Many faults of one kind hide none of another, and are counted.
func TestNotesAreFew(t *testing.T) {
	s := story{base: poolConfig(t, "")}
	for i := range 300 {
		s.objects(t, fmt.Sprintf("{apiVersion: inference.networking.x-k8s.io/v1alpha2, kind: InferenceObjective, metadata: {name: far-%03d}, spec: {priority: 2000000000, poolRef: {name: pool}}}", i))
	}
	notes := Resolve(s.input()).Notes
	if len(notes) != maxAlike+2 || notes[maxAlike-1].Reason != noteObjective || notes[maxAlike] != (Note{noteObjective, "and 290 more of this reason"}) || notes[maxAlike+1].Reason != noteNoPool {
		t.Errorf("of 300 faults and a missing pool: %v", notes)
	}
}

// Of more models than are served the oldest count, and the others say so.
func TestModelsAreTooMany(t *testing.T) {
	s := story{base: poolConfig(t, "models: [{name: mine, target: x}]")}
	in := s.input()
	in.Pools = []*Pool{{object: object{ObjectMeta: metav1.ObjectMeta{Name: "pool"}}}}
	for i := range config.MaxModels + 1 {
		m := &InferenceModel{}
		m.Name, m.UID, m.CreationTimestamp = fmt.Sprintf("m-%05d", i), types.UID(strconv.Itoa(i)), aged(strconv.Itoa(i))
		m.Spec.ModelName, m.Spec.PoolRef.Name = m.Name, "pool"
		in.Models = append(in.Models, m)
	}
	w := Resolve(in)
	if n := len(w.Config.Models); n != config.MaxModels {
		t.Errorf("%d models are served, want %d", n, config.MaxModels)
	}
	for _, st := range w.Statuses {
		if got, want := st.Conditions[0].Status == metav1.ConditionTrue, st.Name >= "m-00002"; got != want {
			t.Errorf("%s: accepted %v, %s", st.Name, got, st.Conditions[0].Message)
		}
	}
	if !slices.ContainsFunc(w.Notes, func(n Note) bool {
		return n.Text == "2 names of the objects are left out: at most 10000 names are served, with as many targets in all"
	}) {
		t.Errorf("the notes are %v", w.Notes)
	}
}
