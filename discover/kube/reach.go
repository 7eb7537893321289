package kube

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	toolscache "k8s.io/client-go/tools/cache"
)

const (
	// askAway is how long is waited before an API server that is away is asked again,
	// give or take a half of it. client-go's own wait grows to between 30 and 60 s, and
	// the pool would be wrong for so long after the server's return.
	askAway = time.Second
	// askForbidden is the same where the server refuses.
	askForbidden = 5 * time.Second
	// askMissing is the same where the server has no such kind, for now or for ever.
	askMissing = 2 * time.Second
	// askOther is how long an error is kept that asking again would not change: client-go
	// asks otherwise then, at once and for ever.
	askOther = 200 * time.Millisecond
)

// reach is how the API server is reached, and what the log has said of it. It may be
// used by any number of goroutines.
type reach struct {
	host string
	log  *slog.Logger
	// changed is called when a kind is forbidden, or no longer.
	changed func()

	mu        sync.Mutex // guards the following fields
	away      time.Time  // since when; zero: it is there
	forbidden map[string]bool
}

// heard notes how a question about kind was answered, and says aloud what is new.
func (r *reach) heard(kind string, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	status := apierrors.APIStatus(nil)
	answered := err == nil || errors.As(err, &status) && wait(err) != askAway
	switch {
	case errors.Is(err, context.Canceled):
		return
	case !answered && r.away.IsZero():
		r.away = time.Now()
		r.log.Warn("the API server cannot be reached; the pool stays as it is known, and the server is asked again", "server", r.host, "error", err)
	case answered && !r.away.IsZero():
		r.log.Info("the API server is reached again", "server", r.host, "after", time.Since(r.away).Round(time.Millisecond).String())
		r.away = time.Time{}
	}
	if no := refused(err); answered && no != r.forbidden[kind] {
		r.forbidden[kind] = no
		switch {
		case apierrors.IsUnauthorized(err):
			r.log.Warn("the API server does not know who asks: the picker's token or certificate is wrong or has expired", "kind", kind, "error", err)
		case no:
			r.log.Warn("the API server refuses to show objects; the picker's account needs get, list and watch of them", "kind", kind, "error", err)
		default:
			r.log.Info("the API server shows objects again", "kind", kind)
		}
		r.changed()
	}
}

// refuses says whether the API server does not show objects of the kind.
func (r *reach) refuses(kind string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.forbidden[kind]
}

func refused(err error) bool { return apierrors.IsForbidden(err) || apierrors.IsUnauthorized(err) }

// wait is how long to wait before a question that was answered with err is put again;
// 0 where the same question would get the same answer.
func wait(err error) time.Duration {
	status := apierrors.APIStatus(nil)
	switch {
	case err == nil:
		return 0
	case refused(err):
		return askForbidden
	case apierrors.IsNotFound(err):
		return askMissing
	case !errors.As(err, &status), apierrors.IsServiceUnavailable(err), apierrors.IsTooManyRequests(err),
		apierrors.IsInternalError(err), apierrors.IsServerTimeout(err):
		return askAway
	}
	return 0
}

// persist asks until there is an answer that asking again would not change, or ctx
// ends.
func persist[T any](ctx context.Context, r *reach, kind string, ask func() (T, error)) (T, error) {
	for {
		v, err := ask()
		if ctx.Err() != nil {
			return v, cmp.Or(err, ctx.Err())
		}
		r.heard(kind, err)
		if err == nil {
			return v, nil
		}
		pause := wait(err)
		final := pause == 0
		if final {
			pause = askOther
		}
		select {
		case <-ctx.Done():
			return v, ctx.Err()
		case <-time.After(pause/2 + rand.N(pause)):
		}
		if final {
			return v, err
		}
	}
}

// patient is lw with questions that are put until they are answered.
func (r *reach) patient(lw toolscache.ListerWatcher, kind string) toolscache.ListerWatcher {
	inner := toolscache.ToListerWatcherWithContext(lw)
	return &toolscache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			return persist(ctx, r, kind, func() (runtime.Object, error) { return inner.ListWithContext(ctx, o) })
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			return persist(ctx, r, kind, func() (watch.Interface, error) { return inner.WatchWithContext(ctx, o) })
		},
	}
}
