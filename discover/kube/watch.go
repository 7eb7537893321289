package kube

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"reflect"
	"sync"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/discovery"
	clientscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"epp.internal/epp/config"
)

const (
	// resync is how often the pool is resolved though nothing was seen to change, and
	// how often the API server is asked for kinds that it did not have.
	resync = 30 * time.Second
	// askNow is how often it is looked whether a cache has been filled.
	askNow = 50 * time.Millisecond
	// calm is the least time between two resolutions: many changes at once are one.
	calm = 50 * time.Millisecond
	// askTimeout bounds a question that is not a watch.
	askTimeout = 10 * time.Second
)

// Options say which pool is watched, and who is told.
type Options struct {
	// Client says how the API server is reached.
	Client *rest.Config
	// Pool, Base and Scorers are those of [Input].
	Pool    types.NamespacedName
	Base    *config.Config
	Scorers []string
	// Identity tells this replica from the others; it must be its own.
	Identity string
	Log      *slog.Logger
	// Settings puts settings and models in force, and Endpoints says which endpoints
	// there are. Each is called when its part has changed, Endpoints for the first time
	// when all kinds have been read: then the pool is known, though it may be empty. Both
	// are called by one goroutine. An error of Settings is told to who reads the policy's
	// status; the former settings stay.
	Settings  func(*config.Config) error
	Endpoints func([]Endpoint)
}

// Run keeps the pool as its objects say until ctx ends. It waits for an API server that
// cannot be reached, and for a pool that is not there. The error says that the options
// are wrong.
func Run(ctx context.Context, o Options) error {
	w, err := newWatcher(o)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(klog.NewContext(ctx, quiet(o.Log)))
	var wg sync.WaitGroup
	wg.Go(func() { _ = w.cache.Start(ctx) }) // ends with ctx
	wg.Go(func() { w.writer.run(ctx) })
	w.run(ctx)
	cancel()
	wg.Wait()
	w.http.CloseIdleConnections()
	return nil
}

// watcher holds the objects of one namespace, and tells what follows from them.
//
// It is built of controller-runtime's cache and client, without its manager: that ends
// the process where a lease is lost, and a controller of its ends where a cache is not
// filled in time. Here both are waited for.
type watcher struct {
	Options
	reach  *reach
	http   *http.Client
	cache  cache.Cache
	finder *discovery.DiscoveryClient
	writer *writer
	wake   bell // rung when something has changed

	watched map[schema.GroupVersionKind]cache.Informer
	missing map[schema.GroupVersionKind]bool // those of watched that were not there when it was last looked
	looked  bool                             // the API server has said which kinds it has
	told    *Wanted
	failed  error // why told.Config is not in force
	settled notes
}

// podKind is the kind of pods.
var podKind = corev1.SchemeGroupVersion.WithKind("Pod")

func newWatcher(o Options) (*watcher, error) {
	log.SetLogger(quiet(o.Log)) // once for the process; later calls have no effect
	cfg := rest.CopyConfig(o.Client)
	cfg.QPS, cfg.Burst = 50, 100
	w := &watcher{Options: o, wake: newBell(), watched: map[schema.GroupVersionKind]cache.Informer{}, missing: map[schema.GroupVersionKind]bool{},
		settled: notes{log: o.Log, since: map[Note]time.Time{}, said: map[Note]bool{}}}
	w.reach = &reach{host: cfg.Host, log: o.Log, changed: w.wake.ring, forbidden: map[string]bool{}}
	var err error
	if w.http, err = rest.HTTPClientFor(cfg); err != nil {
		return nil, fmt.Errorf("API server %s: %w", cfg.Host, err)
	}
	if w.finder, err = discovery.NewDiscoveryClientForConfigAndClient(cfg, w.http); err != nil {
		return nil, fmt.Errorf("API server %s: %w", cfg.Host, err)
	}
	mapper := mapping()
	w.cache, err = cache.New(cfg, cache.Options{
		HTTPClient: w.http, Scheme: clientscheme.Scheme, Mapper: mapper, ReaderFailOnMissingInformer: true,
		DefaultNamespaces: map[string]cache.Config{o.Pool.Namespace: {}},
		DefaultTransform:  cache.TransformStripManagedFields(),
		ByObject: map[client.Object]cache.ByObject{&corev1.Pod{}: {
			Field:     fields.AndSelectors(fields.OneTermNotEqualSelector("status.phase", "Succeeded"), fields.OneTermNotEqualSelector("status.phase", "Failed")),
			Transform: stripPod,
		}},
		DefaultWatchErrorHandler: func(ctx context.Context, _ *toolscache.Reflector, err error) {
			klog.FromContext(ctx).V(4).Info("watch ended", "error", err)
		},
		NewInformer: func(lw toolscache.ListerWatcher, obj runtime.Object, every time.Duration, by toolscache.Indexers) toolscache.SharedIndexInformer {
			return toolscache.NewSharedIndexInformer(w.reach.patient(lw, kindOf(obj)), obj, every, by)
		},
	})
	if err != nil {
		return nil, fmt.Errorf("API server %s: %w", cfg.Host, err)
	}
	w.writer, err = newWriter(cfg, w.http, mapper, o)
	return w, err
}

// mapping knows what is watched without asking the API server, lists of it too.
func mapping() *meta.DefaultRESTMapper {
	mapper := meta.NewDefaultRESTMapper(nil)
	add := func(k schema.GroupVersionKind, plural string) {
		resource := k.GroupVersion().WithResource(plural)
		mapper.AddSpecific(k, resource, resource, meta.RESTScopeNamespace)
		mapper.AddSpecific(listOf(k), resource, resource, meta.RESTScopeNamespace)
	}
	add(podKind, "pods")
	add(corev1.SchemeGroupVersion.WithKind("Event"), "events")
	for _, k := range kinds {
		add(k.gvk, k.plural)
	}
	return mapper
}

// listOf is the kind of many objects of a kind.
func listOf(k schema.GroupVersionKind) schema.GroupVersionKind {
	return k.GroupVersion().WithKind(k.Kind + "List")
}

// kindOf names an object's kind and group for the log.
func kindOf(obj runtime.Object) string {
	if u, ok := obj.(*unstructured.Unstructured); ok {
		return named(u.GroupVersionKind())
	}
	return named(podKind)
}

func named(k schema.GroupVersionKind) string { return k.GroupKind().String() }

// stripPod leaves of a pod what is read of it.
func stripPod(obj any) (any, error) {
	p, ok := obj.(*corev1.Pod)
	if !ok {
		return obj, nil // a tombstone
	}
	lean := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		Name: p.Name, Namespace: p.Namespace, UID: p.UID, ResourceVersion: p.ResourceVersion, Labels: p.Labels,
		CreationTimestamp: p.CreationTimestamp, DeletionTimestamp: p.DeletionTimestamp,
	}, Status: corev1.PodStatus{Phase: p.Status.Phase, PodIP: p.Status.PodIP}}
	for _, name := range activePorts {
		if text, ok := p.Annotations[name]; ok {
			lean.Annotations = map[string]string{name: text}
			break
		}
	}
	for _, c := range p.Status.Conditions {
		if c.Type == corev1.PodReady {
			lean.Status.Conditions = []corev1.PodCondition{{Type: c.Type, Status: c.Status}}
		}
	}
	return lean, nil
}

// bell wakes a goroutine that waits for news. Ringing it again before it is heard is
// the same news.
type bell chan struct{}

func newBell() bell { return make(bell, 1) }

func (b bell) ring() {
	select {
	case b <- struct{}{}:
	default:
	}
}

// run resolves the pool whenever something has changed, until ctx ends.
func (w *watcher) run(ctx context.Context) {
	if err := w.follow(ctx, podKind, &corev1.Pod{}); err != nil {
		w.Log.Error("pods cannot be watched", "error", err)
	}
	look := time.NewTimer(0)
	defer look.Stop()
	due := time.NewTimer(askNow)
	defer due.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-look.C:
			look.Reset(w.look(ctx))
		case <-w.wake:
		case <-due.C:
		}
		due.Reset(w.resolve(ctx))
		select {
		case <-ctx.Done():
			return
		case <-time.After(calm):
		}
	}
}

// look asks which kinds the API server has, watches those, and returns when to ask
// again. What has been read of a kind counts until it is missing twice in a row: an API
// server that starts, or a proxy before it, may say once that there is no such kind, and
// the pool would be empty for that. Objects of a kind that is removed are deleted one by
// one, and told so.
func (w *watcher) look(ctx context.Context) time.Duration {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	served := map[schema.GroupVersion]map[string]bool{}
	for _, k := range kinds {
		gv := k.gvk.GroupVersion()
		if served[gv] == nil {
			names, err := w.plurals(ctx, gv)
			if err != nil {
				return askAway
			}
			served[gv] = names
		}
		informer, watched := w.watched[k.gvk]
		has, missed := served[gv][k.plural], w.missing[k.gvk]
		w.missing[k.gvk] = watched && !has
		switch {
		case has && !watched:
			if err := w.follow(ctx, k.gvk, emptyOf(k.gvk)); err != nil {
				w.Log.Error("a kind cannot be watched", "kind", named(k.gvk), "error", err)
			}
		case !has && watched && (missed || !informer.HasSynced()):
			w.Log.Warn("the API server no longer has a kind; its objects count no more", "kind", named(k.gvk))
			_ = w.cache.RemoveInformer(ctx, emptyOf(k.gvk)) // never fails for a kind that is watched
			delete(w.watched, k.gvk)
		}
	}
	w.looked = true
	return resync
}

// plurals are the kinds that the API server has of a group and version.
func (w *watcher) plurals(ctx context.Context, gv schema.GroupVersion) (map[string]bool, error) {
	list, err := w.finder.ServerResourcesForGroupVersionWithContext(ctx, gv.String())
	names := map[string]bool{}
	if apierrors.IsNotFound(err) {
		list, err = &metav1.APIResourceList{}, nil
	}
	w.reach.heard("discovery", err)
	if err != nil {
		return nil, err
	}
	for _, r := range list.APIResources {
		names[r.Name] = true
	}
	return names, nil
}

// emptyOf is an empty object of a kind.
func emptyOf(k schema.GroupVersionKind) *unstructured.Unstructured {
	u := &unstructured.Unstructured{}
	u.SetGroupVersionKind(k)
	return u
}

// follow begins to watch a kind. It does not wait.
func (w *watcher) follow(ctx context.Context, k schema.GroupVersionKind, obj client.Object) error {
	informer, err := w.cache.GetInformer(ctx, obj, cache.BlockUntilSynced(false))
	if err != nil {
		return err
	}
	_, err = informer.AddEventHandler(toolscache.ResourceEventHandlerFuncs{
		AddFunc:    func(any) { w.wake.ring() },
		UpdateFunc: func(any, any) { w.wake.ring() },
		DeleteFunc: func(any) { w.wake.ring() },
	})
	w.watched[k] = informer
	return err
}

// ready says whether all that is watched has been read. A kind that the API server
// refuses to show holds nothing up, but pods and pools do: without them nothing is
// known.
func (w *watcher) ready() bool {
	if !w.looked {
		return false
	}
	for k, informer := range w.watched {
		optional := k != podKind && k.Kind != poolKind
		if !informer.HasSynced() && !(optional && w.reach.refuses(named(k))) {
			return false
		}
	}
	return true
}

// resolve tells what has changed, and returns when to look again.
func (w *watcher) resolve(ctx context.Context) time.Duration {
	if !w.ready() {
		return askNow
	}
	in, err := w.input(ctx)
	if err != nil {
		w.Log.Error("objects cannot be read from the cache", "error", err)
		return askAway
	}
	next := Resolve(in)
	first := w.told == nil
	if first || !reflect.DeepEqual(w.told.Config, next.Config) {
		w.failed = w.Settings(next.Config)
	}
	if w.failed != nil {
		next.NotApplied(w.failed)
	}
	if first || !reflect.DeepEqual(w.told.Endpoints, next.Endpoints) {
		w.Endpoints(next.Endpoints)
	}
	w.say(next)
	w.told = next
	lasting, again := w.settled.hold(time.Now(), next.Notes)
	w.writer.want(next, lasting)
	return min(again, resync)
}

// say logs what the pool has become, where that is news.
func (w *watcher) say(next *Wanted) {
	was := Wanted{Config: w.Base}
	if w.told != nil {
		was = *w.told
	}
	policy := ""
	if next.Policy != nil {
		policy = next.Policy.Name
	}
	if w.told == nil || len(was.Endpoints) != len(next.Endpoints) || !reflect.DeepEqual(was.Config, next.Config) {
		w.Log.Info("pool resolved", "pool", w.Pool.String(), "endpoints", len(next.Endpoints), "models", len(next.Config.Models), "policy", policy)
	}
	if p := next.Policy; p != nil && p.Spec.Accelerator != nil && (was.Policy == nil || was.Policy.UID != p.UID) {
		w.Log.Info("the pool's accelerator, as its policy says", "policy", p.Name, "type", p.Spec.Accelerator.Type, "memoryGiB", p.Spec.Accelerator.MemoryGiB)
	}
}

// input reads all that is cached.
func (w *watcher) input(ctx context.Context) (Input, error) {
	in := Input{Pool: w.Pool, Base: w.Base, Scorers: w.Scorers}
	var pods corev1.PodList
	errs := []error{w.cache.List(ctx, &pods, client.InNamespace(w.Pool.Namespace), client.UnsafeDisableDeepCopy)}
	for i := range pods.Items {
		in.Pods = append(in.Pods, &pods.Items[i])
	}
	in.NoPools = true
	for _, k := range kinds {
		informer, watched := w.watched[k.gvk]
		if watched && k.gvk.Kind == poolKind {
			in.NoPools = false
		}
		if !watched || !informer.HasSynced() {
			continue
		}
		list := &unstructured.UnstructuredList{}
		list.SetGroupVersionKind(listOf(k.gvk))
		errs = append(errs, w.cache.List(ctx, list, client.InNamespace(w.Pool.Namespace), client.UnsafeDisableDeepCopy))
		for i := range list.Items {
			in.add(&list.Items[i])
		}
	}
	return in, errors.Join(errs...)
}

// quiet is a logger for client-go: what it says is at DEBUG at most, since it repeats
// each second what this package says once.
func quiet(l *slog.Logger) logr.Logger { return logr.FromSlogHandler(demoted{l.Handler()}) }

// demoted passes records on at DEBUG.
type demoted struct{ slog.Handler }

func (d demoted) Enabled(ctx context.Context, _ slog.Level) bool {
	return d.Handler.Enabled(ctx, slog.LevelDebug)
}

func (d demoted) Handle(ctx context.Context, r slog.Record) error {
	if r.Level = min(r.Level, slog.LevelDebug); !d.Handler.Enabled(ctx, r.Level) {
		return nil // logr writes errors without asking
	}
	return d.Handler.Handle(ctx, r)
}

func (d demoted) WithAttrs(attrs []slog.Attr) slog.Handler {
	return demoted{d.Handler.WithAttrs(attrs)}
}

func (d demoted) WithGroup(name string) slog.Handler { return demoted{d.Handler.WithGroup(name)} }
