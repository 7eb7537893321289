package kube

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cespare/xxhash/v2"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	clientscheme "k8s.io/client-go/kubernetes/scheme"
	coordinationv1 "k8s.io/client-go/kubernetes/typed/coordination/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// The lease: another replica takes over within leaseFor and twice leaseAsk of a
// leader's last word, under 10 s.
const (
	leaseFor   = 5 * time.Second
	leaseRenew = 4 * time.Second
	leaseAsk   = 1500 * time.Millisecond
)

const (
	// sayAgain is how often an Event is said again whose cause lasts: the API server
	// forgets Events after an hour.
	sayAgain = 30 * time.Minute
	// writeAgain is how long after a failure it is tried again.
	writeAgain = 5 * time.Second
)

// leaseName is the lease of a pool's pickers.
func leaseName(pool string) string { return short("epp-"+pool, 253) }

// short cuts a name to a length, and keeps different ones different.
func short(name string, most int) string {
	if len(name) <= most {
		return name
	}
	return fmt.Sprintf("%s-%016x", name[:most-17], xxhash.Sum64String(name))
}

// writer writes conditions and Events while it holds the lease.
type writer struct {
	Options
	client  client.Client
	leases  coordinationv1.LeasesGetter
	elector atomic.Pointer[leaderelection.LeaderElector]
	wake    bell

	mu     sync.Mutex // guards the following fields
	wanted *Wanted
	notes  []Note

	// Of the goroutine that writes: when each Event was written, and the objects whose
	// kind has no status.
	said       map[string]time.Time
	mute       map[types.UID]bool
	failed     string
	leaderless time.Time // since when no leader is known; zero: one is
}

func newWriter(cfg *rest.Config, h *http.Client, mapper meta.RESTMapper, o Options) (*writer, error) {
	w := &writer{Options: o, wake: newBell(), said: map[string]time.Time{}, mute: map[types.UID]bool{}}
	var err error
	if w.client, err = client.New(cfg, client.Options{HTTPClient: h, Scheme: clientscheme.Scheme, Mapper: mapper}); err != nil {
		return nil, fmt.Errorf("API server %s: %w", cfg.Host, err)
	}
	if w.leases, err = coordinationv1.NewForConfigAndClient(cfg, h); err != nil {
		return nil, fmt.Errorf("API server %s: %w", cfg.Host, err)
	}
	return w, nil
}

// want says what is to be written, by whichever replica does.
func (w *writer) want(next *Wanted, lasting []Note) {
	w.mu.Lock()
	w.wanted, w.notes = next, lasting
	w.mu.Unlock()
	w.wake.ring()
}

// run stands for the lease, and writes while it is held, until ctx ends.
func (w *writer) run(ctx context.Context) {
	var wg sync.WaitGroup
	wg.Go(func() { w.write(ctx) })
	for ctx.Err() == nil {
		w.stand(ctx)
	}
	wg.Wait()
}

// stand waits for the lease and renews it until it is lost or ctx ends.
func (w *writer) stand(ctx context.Context) {
	elector, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
		Lock: &resourcelock.LeaseLock{
			LeaseMeta: metav1.ObjectMeta{Namespace: w.Pool.Namespace, Name: leaseName(w.Pool.Name)},
			Client:    w.leases, LockConfig: resourcelock.ResourceLockConfig{Identity: w.Identity},
		},
		LeaseDuration: leaseFor, RenewDeadline: leaseRenew, RetryPeriod: leaseAsk, ReleaseOnCancel: true, Name: leaseName(w.Pool.Name),
		Callbacks: leaderelection.LeaderCallbacks{
			OnStartedLeading: func(context.Context) {
				w.Log.Info("this replica writes status and Events", "lease", leaseName(w.Pool.Name), "identity", w.Identity)
				w.wake.ring()
			},
			OnStoppedLeading: func() {},
		},
	})
	if err != nil { // the constants are wrong
		panic(err)
	}
	w.elector.Store(elector)
	elector.Run(ctx)
	if ctx.Err() == nil {
		w.Log.Warn("this replica has lost the lease, and writes nothing until it has it again", "lease", leaseName(w.Pool.Name))
	}
}

// leads says whether the lease is held at this moment, by our own clock: a process that
// was stopped for longer than the lease has lost it, before anybody tells it so.
func (w *writer) leads() bool {
	elector := w.elector.Load()
	return elector != nil && elector.IsLeader() && elector.Check(0) == nil
}

// write writes what is wanted whenever that or the leader has changed.
func (w *writer) write(ctx context.Context) {
	again := time.NewTimer(sayAgain)
	defer again.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-w.wake:
		case <-again.C:
		}
		w.mu.Lock()
		wanted, notes := w.wanted, w.notes
		w.mu.Unlock()
		pause := w.miss(time.Now())
		if wanted != nil && w.leads() {
			if err := w.all(ctx, wanted, notes); err != nil && ctx.Err() == nil {
				pause = writeAgain
				if text := err.Error(); text != w.failed {
					w.failed = text
					w.Log.Warn("status or Events cannot be written; it is tried again", "error", err)
				}
			} else {
				w.failed = ""
			}
		}
		again.Reset(pause)
	}
}

// miss warns, once, where no replica has got the lease for a while, and returns when to
// look again.
func (w *writer) miss(now time.Time) time.Duration {
	const long = 2 * leaseFor
	if elector := w.elector.Load(); elector != nil && elector.GetLeader() != "" {
		w.leaderless = time.Time{}
		return sayAgain
	}
	if w.leaderless.IsZero() {
		w.leaderless = now
	}
	since := now.Sub(w.leaderless)
	if since < long {
		return long - since
	}
	if since < 2*long {
		w.leaderless = now.Add(-2 * long)
		w.Log.Warn("no replica has the lease, so nobody writes status and Events: the API server does not answer, or the picker's account lacks get, create or update of leases", "lease", w.Pool.Namespace+"/"+leaseName(w.Pool.Name))
	}
	return sayAgain
}

// all writes each status and Event that is not there yet. It returns the first error,
// and writes the others all the same.
func (w *writer) all(ctx context.Context, wanted *Wanted, notes []Note) error {
	var first error
	there := map[types.UID]bool{}
	for _, s := range wanted.Statuses {
		there[s.UID] = true
	}
	maps.DeleteFunc(w.mute, func(uid types.UID, _ bool) bool { return !there[uid] })
	for _, s := range wanted.Statuses {
		first = cmp.Or(first, w.status(ctx, s))
	}
	if wanted.Pool != nil {
		first = cmp.Or(first, w.events(ctx, wanted.Pool, notes))
	}
	return first
}

// status writes the conditions of one object where they differ from what it has. Where
// the object has changed meanwhile nothing is written: that change is resolved next.
func (w *writer) status(ctx context.Context, s Status) error {
	next := append([]metav1.Condition{}, s.Current...)
	for _, c := range s.Conditions {
		meta.SetStatusCondition(&next, c)
	}
	if equality.Semantic.DeepEqual(next, s.Current) || w.mute[s.UID] || !w.leads() {
		return nil
	}
	patch, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"resourceVersion": s.ResourceVersion},
		"status":   map[string]any{"conditions": next},
	})
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	obj := emptyOf(schema.FromAPIVersionAndKind(s.APIVersion, s.Kind))
	obj.SetNamespace(s.Namespace)
	obj.SetName(s.Name)
	err = w.client.Status().Patch(ctx, obj, client.RawPatch(types.MergePatchType, patch))
	switch {
	case apierrors.IsConflict(err):
		return nil
	case apierrors.IsNotFound(err): // it has gone, or its kind has no status
		w.mute[s.UID] = true
		return nil
	case err != nil:
		return fmt.Errorf("status of %s %q: %w", s.Kind, s.Name, err)
	}
	return nil
}

// events says each note that was not said lately.
func (w *writer) events(ctx context.Context, pool *Ref, notes []Note) error {
	var first error
	current := map[string]bool{}
	for _, n := range notes {
		name := fmt.Sprintf("%s.%016x", short(pool.Name, 200), xxhash.Sum64String(string(pool.UID)+"\n"+n.Reason+"\n"+n.Text))
		current[name] = true
		if time.Since(w.said[name]) < sayAgain || !w.leads() {
			continue
		}
		if err := w.event(ctx, pool, name, n); err != nil {
			first = cmp.Or(first, fmt.Errorf("%s %q: Event %s: %w", pool.Kind, pool.Name, n.Reason, err))
			continue
		}
		w.said[name] = time.Now()
	}
	for name := range w.said {
		if !current[name] {
			delete(w.said, name)
		}
	}
	return first
}

// event writes one Event, or counts it once more where it is there.
func (w *writer) event(ctx context.Context, pool *Ref, name string, n Note) error {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	now := metav1.Now()
	e := &corev1.Event{
		ObjectMeta: metav1.ObjectMeta{Namespace: pool.Namespace, Name: name},
		InvolvedObject: corev1.ObjectReference{
			APIVersion: pool.APIVersion, Kind: pool.Kind, Namespace: pool.Namespace, Name: pool.Name, UID: pool.UID,
		},
		Reason: n.Reason, Message: cut(n.Text), Type: corev1.EventTypeWarning,
		Source: corev1.EventSource{Component: "epp"}, ReportingController: group + "/picker", ReportingInstance: short(w.Identity, 128),
		FirstTimestamp: now, LastTimestamp: now, Count: 1,
	}
	err := w.client.Create(ctx, e)
	if !apierrors.IsAlreadyExists(err) {
		return err
	}
	there := &corev1.Event{}
	if err := w.client.Get(ctx, client.ObjectKeyFromObject(e), there); err != nil {
		return err
	}
	patch := fmt.Sprintf(`{"count":%d,"lastTimestamp":%q}`, there.Count+1, now.UTC().Format(time.RFC3339))
	return w.client.Patch(ctx, there, client.RawPatch(types.MergePatchType, []byte(patch)))
}
