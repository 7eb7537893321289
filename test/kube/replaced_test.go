//go:build kube

package kube

import (
	"fmt"
	"syscall"
	"testing"
	"time"
)

// TestReplacedUnseen: a pod is replaced by another of its name and address while the
// picker stands still. It hears of both at once, and mostly sees no pool without the
// pod: the UID alone tells the two apart then, and the new one joins anew all the same.
func TestReplacedUnseen(t *testing.T) {
	t.Parallel()
	p := newPool(t, "a")
	k := p.serve("")
	k.ready()
	k.has(patience, "a")
	for seed := range 10 {
		if a := ask(t.Context(), "http://"+k.proxy, "tiny", words(seed, 200), ""); a.err != nil {
			t.Fatal(a.err)
		}
	}
	held := func() float64 { return k.series("epp_endpoint_cached_blocks")["a"] }
	within(t, patience, "a holds blocks", func() error {
		if held() < 20 {
			return fmt.Errorf("it holds %v", held())
		}
		return nil
	})
	ip := ipOf(p, "a")
	k.signal(syscall.SIGSTOP)
	p.delete("a", 0)
	p.pod("a", ip)
	k.signal(syscall.SIGCONT)
	within(t, 5*time.Second, "a is another endpoint", func() error {
		if n := len(k.said(`"msg":"pool changed"`, `"joined":1`, `"a"`)); n != 2 {
			return fmt.Errorf("it has joined %d times, want 2", n)
		}
		return nil
	})
}
