package kube

import (
	"cmp"
	"fmt"
	"math"
	"net"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"epp.internal/epp/config"
)

// activePorts are annotations of a pod that name the ports of the pool that it
// serves, with commas between them. The first that is there counts. Source:
// pkg/epp/util/pod of llm-d-router.
var activePorts = [...]string{"llm-d.ai/active-ports", "inference.networking.k8s.io/active-ports"}

// endpoints are the pool's ready pods, at each of its ports.
func (r *resolver) endpoints(pool *Pool) {
	selector, err := pool.selector()
	if err != nil {
		r.note(noteSelector, "0 endpoints: %v", err)
		return
	}
	ports := pool.ports()
	var matched, left census
	byAddress := map[string][]string{} // the names of the pods at an address, the newest first
	for _, pod := range newestFirst(r.in.Pods) {
		if !selector.Matches(podLabels(pod.Labels)) {
			continue
		}
		matched.count++
		if why := unready(pod); why != "" {
			left.add(why)
			continue
		}
		for rank, port := range r.active(pod, ports) {
			if port == 0 {
				continue
			}
			e := r.endpoint(pod, port, rank, len(ports) > 1)
			byAddress[e.Address] = append(byAddress[e.Address], pod.Name)
			if len(byAddress[e.Address]) > 1 {
				continue
			}
			r.w.Endpoints = append(r.w.Endpoints, e)
		}
	}
	for address, names := range byAddress {
		if more := len(names) - fewNames; len(names) > 1 {
			text := strings.Join(names[:min(len(names), fewNames)], ", ")
			if more > 0 {
				text += fmt.Sprintf(" and %d more", more)
			}
			r.note(notePod, "pods %s have one address, %s; the newest counts, which is the first", text, address)
		}
	}
	slices.SortFunc(r.w.Endpoints, func(a, b Endpoint) int { return cmp.Or(cmp.Compare(a.Name, b.Name), cmp.Compare(a.UID, b.UID)) })
	r.bound()
	r.check()
	if len(r.w.Endpoints) == 0 {
		r.note(noteNoEndpoints, "0 endpoints matched selector %s: %s", selector, left.text(matched.count))
	}
}

// podLabels are a pod's labels for a selector. No labels are no error.
type podLabels map[string]string

func (l podLabels) Has(key string) bool   { _, ok := l[key]; return ok }
func (l podLabels) Get(key string) string { return l[key] }
func (l podLabels) Lookup(key string) (string, bool) {
	value, ok := l[key]
	return value, ok
}

// unready says why a pod serves nothing; empty where it does.
func unready(pod *corev1.Pod) string {
	switch {
	case pod.DeletionTimestamp != nil:
		return "being deleted"
	case pod.Status.Phase != corev1.PodRunning:
		return "in phase " + string(cmp.Or(pod.Status.Phase, "unknown"))
	case pod.Status.PodIP == "":
		return "without an IP"
	case !slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
	}):
		return "not ready"
	}
	return ""
}

// active returns ports, with 0 in place of those that the pod says it does not
// serve. An annotation that cannot be read restricts nothing, and is told.
func (r *resolver) active(pod *corev1.Pod, ports []int) []int {
	for _, name := range activePorts {
		text, found := pod.Annotations[name]
		if !found {
			continue
		}
		served := map[int]bool{}
		for part := range strings.SplitSeq(text, ",") {
			part = strings.TrimSpace(part)
			port, err := strconv.Atoi(part)
			if err != nil && text != "" {
				r.note(notePod, "pod %q: annotation %s: %.80q is not a list of ports such as 8000,8001; all of the pool's are used", pod.Name, name, text)
				return ports
			}
			served[port] = true
		}
		restricted := slices.Clone(ports)
		for i, port := range restricted {
			if !served[port] {
				restricted[i] = 0
			}
		}
		return restricted
	}
	return ports
}

// endpoint is one port of a pod. Where the pool has several, each is a data-parallel
// rank, and vLLM publishes a rank's events on the first port plus the rank.
func (r *resolver) endpoint(pod *corev1.Pod, port, rank int, several bool) Endpoint {
	e := Endpoint{UID: string(pod.UID), Labels: pod.Labels}
	e.Name, e.Address = pod.Name, at(pod, port)
	if several {
		e.Name += ":" + strconv.Itoa(port)
		if kv := r.in.Base.KVEvents; kv.Port != 0 && kv.Port+rank <= math.MaxUint16 {
			e.Events = at(pod, kv.Port+rank)
			if kv.ReplayPort != 0 && kv.ReplayPort+rank <= math.MaxUint16 {
				e.Replay = at(pod, kv.ReplayPort+rank)
			}
		}
	}
	e.Engine, e.GPU = r.in.Base.Pool.Engine, r.in.Base.Pool.GPU
	return e
}

func at(pod *corev1.Pod, port int) string {
	return net.JoinHostPort(pod.Status.PodIP, strconv.Itoa(port))
}

// fewNames bounds the names of pods in one note.
const fewNames = 3

// newestFirst orders pods by their times, then by UID.
func newestFirst(pods []*corev1.Pod) []*corev1.Pod {
	return slices.SortedFunc(slices.Values(pods), func(a, b *corev1.Pod) int {
		return cmp.Or(b.CreationTimestamp.Compare(a.CreationTimestamp.Time), cmp.Compare(b.UID, a.UID))
	})
}

// bound leaves out the endpoints that are too many.
func (r *resolver) bound() {
	if n := len(r.w.Endpoints); n > config.MaxEndpoints {
		r.note(noteTooMany, "%d endpoints match; the first %d by name are served", n, config.MaxEndpoints)
		r.w.Endpoints = r.w.Endpoints[:config.MaxEndpoints]
	}
}

// check leaves out the endpoints that a file could not have either.
func (r *resolver) check() {
	c := *r.in.Base
	c.Kubernetes = config.Kubernetes{}
	for _, e := range r.w.Endpoints {
		c.Pool.Endpoints = append(c.Pool.Endpoints, e.Endpoint)
	}
	bad := map[int]bool{}
	for _, f := range c.Validate(r.in.Scorers...) {
		i, _, ok := element(f.Path, "pool.endpoints")
		if !ok {
			continue // no endpoint at all, which is told otherwise
		}
		bad[i] = true
		r.note(notePod, "pod %q is no endpoint: %s", strings.Split(r.w.Endpoints[i].Name, ":")[0], f.Text)
	}
	var good []Endpoint
	for i, e := range r.w.Endpoints {
		if !bad[i] {
			good = append(good, e)
		}
	}
	r.w.Endpoints = good
}

// element reads the index of a list's element out of a fault's path, and what
// follows it: "models[3].name" is 3 and "name".
func element(path, list string) (index int, rest string, ok bool) {
	inner, ok := strings.CutPrefix(path, list+"[")
	if !ok {
		return 0, "", false
	}
	number, rest, ok := strings.Cut(inner, "]")
	if !ok {
		return 0, "", false
	}
	index, err := strconv.Atoi(number)
	return index, strings.TrimPrefix(rest, "."), err == nil
}

// census counts pods by what keeps them from being endpoints.
type census struct {
	count int
	why   map[string]int
}

func (c *census) add(why string) {
	if c.why == nil {
		c.why = map[string]int{}
	}
	c.why[why]++
}

// text says what became of the pods that matched.
func (c *census) text(matched int) string {
	if matched == 0 {
		return "no pod of the namespace has these labels"
	}
	var parts []string
	for why, n := range c.why {
		parts = append(parts, fmt.Sprintf("%d %s", n, why))
	}
	slices.Sort(parts)
	if len(parts) == 0 {
		return fmt.Sprintf("%d pods match, and none of them serves a port of the pool", matched)
	}
	return fmt.Sprintf("%d pods match: %s", matched, strings.Join(parts, ", "))
}
