//go:build kube

package kube

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"strings"
)

// ipOf is the address of a pod's engine.
func ipOf(p *pool, name string) string {
	p.mu.Lock()
	defer p.mu.Unlock()
	ip, _, _ := net.SplitHostPort(p.engines[name].Address())
	return ip
}

// caughtUp says whether the picker knows as many blocks of each endpoint as its engine
// has.
func caughtUp(p *pool, k *picker) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	known := k.series("epp_endpoint_cached_blocks")
	for name, blocks := range known {
		if e := p.engines[name]; e != nil && float64(e.Blocks()) != blocks {
			return fmt.Errorf("%s holds %d blocks, %v are known", name, e.Blocks(), blocks)
		}
	}
	if len(known) == 0 {
		return errors.New("no endpoint is known")
	}
	return nil
}

// memory is the picker's resident memory, as the kernel counts it.
func (k *picker) memory() string {
	data, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", k.cmd.Process.Pid))
	var told []string
	for line := range strings.Lines(string(data)) {
		if name, rest, _ := strings.Cut(line, ":"); slices.Contains([]string{"VmRSS", "RssAnon", "RssFile"}, name) {
			told = append(told, name+" "+strings.TrimSpace(rest))
		}
	}
	return strings.Join(told, ", ")
}

// page is the picker's metrics page.
func (k *picker) page() string {
	resp, err := local.Get("http://" + k.metrics + "/metrics")
	if err != nil {
		return ""
	}
	defer resp.Body.Close()
	page, _ := io.ReadAll(resp.Body)
	return string(page)
}

// servesAt says whether the picker's endpoints are the given pods at a port.
func servesAt(k *picker, port string, pods ...string) error {
	var got []string
	for line := range strings.Lines(k.page()) {
		if rest, ok := strings.CutPrefix(line, "epp_pod_health_score{endpoint=\""); ok {
			address, rest, _ := strings.Cut(rest, `"`)
			_, pod, _ := strings.Cut(rest, `pod="`)
			pod, _, _ = strings.Cut(pod, `"`)
			if !strings.HasSuffix(address, ":"+port) {
				return fmt.Errorf("%s is at %s", pod, address)
			}
			got = append(got, pod)
		}
	}
	if slices.Sort(got); !slices.Equal(got, pods) {
		return fmt.Errorf("the endpoints are %v", got)
	}
	return nil
}

// bare says whether a metric without labels has a value.
func bare(k *picker, name string, want float64) error {
	for line := range strings.Lines(k.page()) {
		if rest, ok := strings.CutPrefix(line, name+" "); ok {
			if got := strings.TrimSpace(rest); got != fmt.Sprint(want) {
				return fmt.Errorf("%s is %s", name, got)
			}
			return nil
		}
	}
	return fmt.Errorf("no metric %s", name)
}

func sum(values map[string]float64) (sum float64) {
	for _, v := range values {
		sum += v
	}
	return sum
}

// atLeast says whether a metric's sum over the pods has reached a value.
func atLeast(k *picker, name string, least float64) error {
	if got := sum(k.series(name)); got < least {
		return fmt.Errorf("%s is %v", name, got)
	}
	return nil
}
