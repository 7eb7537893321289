//go:build gateway

package gateway

import (
	"context"
	"fmt"
	"net/http"
	"sync"
	"testing"
)

// load sends requests through the front gateway, by so many clients at once,
// until it is stopped.
type load struct {
	s      *scene
	cancel context.CancelFunc
	done   sync.WaitGroup

	mu   sync.Mutex // guards the following fields
	sent int
	ids  []string
}

// startLoad starts clients, which send old prompts and new ones in turn. A request
// that fails is an error of the test.
func (s *scene) startLoad(clients int) *load {
	ctx, cancel := context.WithCancel(s.ctx)
	l := &load{s: s, cancel: cancel}
	url := s.url(front) + chatPath
	for client := range clients {
		l.done.Go(func() {
			for n := 0; ctx.Err() == nil; n++ {
				prompt := words(100*client+n%20, 100)
				if n%2 == 1 {
					prompt = fmt.Sprintf("request %d of client %d:%s", n, client, prompt)
				}
				a := s.send(s.ctx, url, chat(prompt, 2))
				if a.status != http.StatusOK || a.servedBy == "" || a.requestID == "" || a.err != nil {
					s.t.Errorf("client %d, request %d: %v", client, n, a)
					return
				}
				l.mu.Lock()
				l.sent++
				l.ids = append(l.ids, a.requestID)
				l.mu.Unlock()
			}
		})
	}
	s.t.Cleanup(l.stop)
	return l
}

// more waits for n further requests.
func (l *load) more(n int) {
	l.s.t.Helper()
	count := func() int {
		l.mu.Lock()
		defer l.mu.Unlock()
		return l.sent
	}
	want := count() + n
	l.s.must(poll(l.s.ctx, func(context.Context) (bool, error) {
		return count() >= want, fmt.Errorf("%d requests were sent, want %d", count(), want)
	}))
}

func (l *load) stop() {
	l.cancel()
	l.done.Wait()
}

// TestPickersAreRolled: of two pickers one is deleted and replaced, and then both
// are rolled to a new generation, under load; no request fails, and the new ones
// are asked.
func TestPickersAreRolled(t *testing.T) {
	s := newScene(t)
	p := s.start(&pool{name: "vllm", engines: 3, replicas: 2})
	s.route("all", front, to("vllm"))
	s.served(front, p)
	first := p.pickers()
	l := s.startLoad(4)
	s.must(poll(s.ctx, func(context.Context) (bool, error) {
		return len(first[0].all("selected")) > 20 && len(first[1].all("selected")) > 20, fmt.Errorf("the gateway does not ask both pickers")
	}))

	_, err := world.run(s.ctx, "", "delete", "pod", "-n", s.namespace, first[0].name)
	s.must(err) // kubectl returns when the pod has gone
	l.more(100)
	s.readyPods(p.name+"-epp", 2, nil)

	p.generation++
	p.apply("picker.yaml")
	_, err = world.run(s.ctx, "", "rollout", "status", "-n", s.namespace, "deployment/"+p.name+"-epp", "--timeout", patience.String())
	s.must(err)
	s.must(poll(s.ctx, func(context.Context) (bool, error) {
		for _, d := range p.pickers() {
			if d == first[0] || d == first[1] || len(d.all("selected")) == 0 {
				return false, fmt.Errorf("%s still runs, or is not asked", d.name)
			}
		}
		return true, nil
	}))
	l.more(100)
	l.stop()
	p.servedAsPicked()
	t.Logf("%d requests, none failed", l.sent)
}
