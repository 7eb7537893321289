package kube

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// What is wrong for a moment is not said. What lasts is said once, and its end too.
func TestNotesAreSaidWhenTheyLast(t *testing.T) {
	var out bytes.Buffer
	n := notes{log: slog.New(slog.NewTextHandler(&out, nil)), since: map[Note]time.Time{}, said: map[Note]bool{}}
	start := time.Now()
	note := Note{Reason: "NoEndpoints", Text: "0 endpoints"}
	for _, step := range []struct {
		at       time.Duration
		notes    []Note
		lasting  int
		said, no int // lines so far
	}{
		{0, []Note{note}, 0, 0, 0},
		{time.Second, nil, 0, 0, 0},
		{2 * time.Second, []Note{note}, 0, 0, 0},
		{4 * time.Second, []Note{note}, 0, 0, 0},
		{5 * time.Second, []Note{note}, 1, 1, 0},
		{9 * time.Second, []Note{note}, 1, 1, 0},
		{10 * time.Second, nil, 0, 1, 1},
	} {
		lasting, again := n.hold(start.Add(step.at), step.notes)
		warned, ended := strings.Count(out.String(), "level=WARN"), strings.Count(out.String(), "no longer")
		if len(lasting) != step.lasting || warned != step.said || ended != step.no {
			t.Errorf("at %v: %d last, %d warnings, %d ends; want %d, %d, %d", step.at, len(lasting), warned, ended, step.lasting, step.said, step.no)
		}
		if step.at == 2*time.Second && again != settle {
			t.Errorf("at %v: looked at again after %v, want %v", step.at, again, settle)
		}
	}
	many := make([]Note, 10*maxNotes)
	for i := range many {
		many[i].Text = strings.Repeat("x", i)
	}
	n.hold(start, many)
	if lasting, _ := n.hold(start.Add(settle), many); len(lasting) != maxNotes || len(n.since) != maxNotes {
		t.Errorf("%d of %d notes are said, want %d", len(lasting), len(many), maxNotes)
	}
}

// A question is put again where the answer may change, and the log says once that the
// server is away, and once that it is back.
func TestPersist(t *testing.T) {
	pods := schema.GroupResource{Resource: "pods"}
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		changes := 0
		r := &reach{log: slog.New(slog.NewTextHandler(&out, nil)), changed: func() { changes++ }, forbidden: map[string]bool{}}
		refused := &net.OpError{Op: "dial", Err: errors.New("connection refused")}
		answers := []error{refused, refused, apierrors.NewServiceUnavailable("starting"), refused, nil}
		began := time.Now()
		_, err := persist(t.Context(), r, "Pod", func() (int, error) {
			err := answers[0]
			answers = answers[1:]
			return 0, err
		})
		if took := time.Since(began); err != nil || len(answers) != 0 || took < 2*time.Second || took > 6*time.Second {
			t.Errorf("%v after %v; %d answers are left", err, took, len(answers))
		}
		if log := out.String(); strings.Count(log, "cannot be reached") != 1 || strings.Count(log, "reached again") != 1 {
			t.Errorf("the log says\n%s", log)
		}

		forbidden := apierrors.NewForbidden(pods, "", errors.New("no rule"))
		answers = []error{forbidden, forbidden, nil}
		_, err = persist(t.Context(), r, "Pod", func() (int, error) {
			err := answers[0]
			answers = answers[1:]
			if len(answers) == 1 && !r.refuses("Pod") {
				t.Error("pods are not known to be forbidden")
			}
			return 0, err
		})
		if err != nil || changes != 2 || r.refuses("Pod") {
			t.Errorf("%v, %d changes, forbidden %v", err, changes, r.refuses("Pod"))
		}

		unknown := apierrors.NewUnauthorized("expired")
		answers = []error{apierrors.NewNotFound(pods, "x"), unknown, nil}
		if _, err = persist(t.Context(), r, "Pod", func() (int, error) {
			err := answers[0]
			answers = answers[1:]
			return 0, err
		}); err != nil || len(answers) != 0 {
			t.Errorf("%v; %d answers are left", err, len(answers))
		}
		for _, line := range []string{"account needs get, list and watch", "does not know who asks", "shows objects again"} {
			if !strings.Contains(out.String(), line) {
				t.Errorf("the log does not say %q:\n%s", line, out.String())
			}
		}

		for _, final := range []error{apierrors.NewResourceExpired("too old"), apierrors.NewBadRequest("no")} {
			began := time.Now()
			if _, err := persist(t.Context(), r, "Pod", func() (int, error) { return 0, final }); !errors.Is(err, final) {
				t.Errorf("%v became %v", final, err)
			}
			if took := time.Since(began); took < 100*time.Millisecond || took > 300*time.Millisecond { // client-go asks otherwise at once
				t.Errorf("%v after %v, want 100–300 ms", final, took)
			}
		}
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		if _, err := persist(ctx, r, "Pod", func() (int, error) { return 0, io.EOF }); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("after its context's end: %v", err)
		}
	})
}

// Nothing that Resolve reads is lost, and nothing else is kept.
func TestStrippedPods(t *testing.T) {
	s := story{}
	s.pod(t, "a ip=10.0.0.1 labels=app=vllm ports=8000 deleting")
	p := s.pods[0]
	p.Annotations["note"] = "long"
	p.ManagedFields = []metav1.ManagedFieldsEntry{{Manager: "kubelet"}}
	p.Spec.Containers = []corev1.Container{{Name: "vllm"}}
	p.Status.Conditions = append(p.Status.Conditions, corev1.PodCondition{Type: corev1.PodScheduled})
	lean, err := stripPod(p)
	if err != nil {
		t.Fatal(err)
	}
	l := lean.(*corev1.Pod)
	if len(l.Annotations) != 1 || l.ManagedFields != nil || l.Spec.Containers != nil || len(l.Status.Conditions) != 1 {
		t.Errorf("kept: %+v", l)
	}
	if unready(l) != unready(p) || l.UID != p.UID || l.Status.PodIP != p.Status.PodIP || l.Labels["app"] != "vllm" || !l.CreationTimestamp.Equal(&p.CreationTimestamp) {
		t.Errorf("lost: %+v", l)
	}
	r := resolver{in: Input{}, w: &Wanted{}}
	if got := r.active(l, []int{8000, 8001}); !slices.Equal(got, []int{8000, 0}) {
		t.Errorf("active ports %v", got)
	}
}

// What client-go says is at DEBUG.
func TestQuiet(t *testing.T) {
	var out bytes.Buffer
	level := &slog.LevelVar{}
	log := quiet(slog.New(slog.NewTextHandler(&out, &slog.HandlerOptions{Level: level})))
	log.Error(io.EOF, "loud")
	log.WithName("x").WithValues("k", "v").Info("also")
	if out.Len() != 0 {
		t.Errorf("at INFO: %s", out.String())
	}
	level.Set(slog.LevelDebug)
	log.Error(io.EOF, "loud")
	if got := out.String(); !strings.Contains(got, "level=DEBUG") || strings.Contains(got, "ERROR") {
		t.Errorf("at DEBUG: %s", got)
	}
}

// Names that are cut stay different.
func TestShort(t *testing.T) {
	a, b := short(strings.Repeat("a", 300), 253), short(strings.Repeat("a", 301), 253)
	if len(a) != 253 || len(b) != 253 || a == b || short("pool", 253) != "pool" {
		t.Errorf("%d %d %v", len(a), len(b), a == b)
	}
}
