package config

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"epp.internal/epp/decision"
)

// MaxEndpoints bounds the pool: four times the size for which the cost of a
// decision is measured.
const MaxEndpoints = 4096

// MaxModels bounds models, and the targets of all of them; objectives too.
const MaxModels = 10_000

const (
	maxTargets = 100 // of one model
	// maxWeight is InferenceModel's and InferenceModelRewrite's bound.
	maxWeight    = 1_000_000
	maxPriority  = 1_000_000
	maxNameBytes = 253 // as Kubernetes bounds an object's name
)

var (
	builtinScorers = []string{
		decision.CacheScorer, decision.LoadScorer, decision.QueueScorer, decision.HealthScorer, decision.AdapterScorer,
	}
	loadSources  = []decision.LoadSource{decision.LoadRequests, decision.LoadTokens, decision.LoadKV, decision.LoadGPU}
	engines      = []string{EngineAuto, EngineVLLM, EngineSGLang, EngineTensorRTLLM}
	cacheSources = []string{CacheAuto, CacheEvents, CacheOwn}
	modes        = []string{"", "mistral", "cohere"}
	policies     = []decision.PolicyName{decision.Weighted, decision.Latency}
	onSaturated  = []decision.OnSaturated{decision.Degrade, decision.Reject}
	logLevels    = []string{"error", "warn", "info", "debug", "trace"}
)

// Validate returns all faults of c, none with a file or line. custom names the
// scorers that weights may name besides the built-in ones.
func (c *Config) Validate(custom ...string) []Fault {
	var v validator
	v.pool(c)
	v.kubernetes(c)
	v.weights(c.Weights, append(slices.Clone(builtinScorers), custom...))
	v.models(c.Models)
	v.objectives(c.Objectives)
	switch c.DefaultModel {
	case "":
	case CatchAll, Unnamed:
		v.fault("defaultModel", "%s is no model; name one that the endpoints list", quote(c.DefaultModel))
	default:
		v.name("defaultModel", c.DefaultModel)
	}

	oneOf(&v, "onSaturated", c.OnSaturated, onSaturated)
	oneOf(&v, "load.source", c.Load.Source, loadSources)
	oneOf(&v, "cache.source", c.Cache.Source, cacheSources)
	oneOf(&v, "tokenizer.mode", c.Tokenizer.Mode, modes)
	oneOf(&v, "log.level", c.Log.Level, logLevels)

	oneOf(&v, "policy", c.Policy, policies)
	if c.Gate.Duration != 0 {
		v.duration("gate", c.Gate, 10*time.Millisecond, 10*time.Minute)
	}
	if c.Policy == decision.Latency && c.Spread != (Spread{}) {
		v.fault("spread", "policy latency goes by predicted time alone; want policy weighted, or no spread")
	}
	between(&v, "maxQueue", c.MaxQueue, 1, 100_000)
	between(&v, "fallbacks", c.Fallbacks, 0, 8)
	between(&v, "load.maxRunning", c.Load.MaxRunning, 0, 1<<16)
	if u := c.Load.MaxUtilization; !(u > 0 && u <= 1) {
		v.fault("load.maxUtilization", "%v is out of range; want above 0, at most 1", u)
	}
	for _, tier := range []struct {
		path  string
		worth float64
	}{{"cache.tiers.cpu", c.Cache.Tiers.CPU}, {"cache.tiers.disk", c.Cache.Tiers.Disk}} {
		if !(tier.worth > 0 && tier.worth <= 1) {
			v.fault(tier.path, "%v is out of range; want above 0, at most 1", tier.worth)
		}
	}
	between(&v, "kvEvents.port", c.KVEvents.Port, 0, math.MaxUint16)
	between(&v, "kvEvents.replayPort", c.KVEvents.ReplayPort, 0, math.MaxUint16)
	v.duration("cache.ownTTL", c.Cache.OwnTTL, time.Second, 24*time.Hour)
	v.duration("tokenizer.askBudget", c.Tokenizer.AskBudget, time.Millisecond, 10*time.Second)
	if c.Probe.Interval.Duration != 0 {
		v.duration("probe.interval", c.Probe.Interval, MinProbeInterval, MaxProbeInterval)
	}
	v.duration("probe.timeout", c.Probe.Timeout, MinProbeTimeout, MaxProbeTimeout)
	v.duration("timeouts.answer", c.Timeouts.Answer, time.Second, 24*time.Hour)
	v.duration("timeouts.drain", c.Timeouts.Drain, 100*time.Millisecond, time.Hour)
	v.duration("timeouts.finish", c.Timeouts.Finish, time.Second, 24*time.Hour)
	v.size("limits.bodyBytes", c.Limits.BodyBytes, 1<<10, 1<<30)
	v.size("limits.promptBytes", c.Limits.PromptBytes, 64<<10, 1<<30)
	v.size("limits.bodiesBytes", c.Limits.BodiesBytes, max(1<<20, c.Limits.BodyBytes), 1<<40)
	v.size("limits.headerBytes", c.Limits.HeaderBytes, 4<<10, 1<<20)
	v.size("limits.indexBytes", c.Limits.IndexBytes, 1<<20, 1<<40)
	between(&v, "limits.ownBlocks", c.Limits.OwnBlocks, 1<<10, 1<<26)
	v.size("log.decisionsBytes", c.Log.DecisionsBytes, 1<<20, 1<<40)
	v.size("limits.ringBytes", c.Limits.RingBytes, 64<<10, 16<<30)

	v.eventSource(c)
	v.gpuSource(c)
	v.listen(c.Listen)
	v.tls(c.TLS)
	v.reports(c)
	return v.faults
}

// validator gathers faults.
type validator struct{ faults []Fault }

func (v *validator) fault(path, format string, args ...any) {
	v.faults = append(v.faults, Fault{Path: path, Text: fmt.Sprintf(format, args...)})
}

func oneOf[T ~string](v *validator, path string, value T, valid []T) {
	if slices.Contains(valid, value) {
		return
	}
	words := make([]string, len(valid))
	for i, w := range valid {
		words[i] = cmp.Or(string(w), `""`)
	}
	v.fault(path, "%s is unknown; want %s", quote(string(value)), strings.Join(words, ", "))
}

func between(v *validator, path string, value, low, high int) {
	if value < low || value > high {
		v.fault(path, "%d is out of range; want %d–%d", value, low, high)
	}
}

func (v *validator) duration(path string, value Duration, low, high time.Duration) {
	if value.Duration < low || value.Duration > high {
		v.fault(path, "%v is out of range; want %v–%v", value, low, high)
	}
}

func (v *validator) size(path string, value, low, high Bytes) {
	if value < low || value > high {
		v.fault(path, "%s is out of range; want %s–%s", text(value), text(low), text(high))
	}
}

func text(b Bytes) string {
	t, _ := b.MarshalText() // never fails
	return string(t)
}

// pool checks the endpoints: how many, each address, and that no two have one
// name or address.
func (v *validator) pool(c *Config) {
	if n := len(c.Pool.Endpoints); n == 0 && c.Kubernetes.Pool == "" {
		v.fault("pool.endpoints", "is empty; name at least one ip:port, or kubernetes.pool")
	} else if n > MaxEndpoints {
		v.fault("pool.endpoints", "has %d endpoints; at most %d are served", n, MaxEndpoints)
		return
	}
	oneOf(v, "pool.engine", c.Pool.Engine, engines)
	v.gpu("pool.gpu", c.Pool.GPU, c.Pool.AllowLinkLocal)
	names, addresses := map[string]int{}, map[netip.AddrPort]int{}
	for i, e := range c.Pool.Endpoints {
		at := fmt.Sprintf("pool.endpoints[%d]", i)
		addr, ok := v.address(at+".address", e.Address, c.Pool.AllowLinkLocal)
		if ok {
			if j, twice := addresses[addr]; twice {
				v.fault(at+".address", "%s is also the address of pool.endpoints[%d]; name each once", quote(e.Address), j)
			} else {
				addresses[addr] = i
			}
		}
		if e.Name != "" {
			v.name(at+".name", e.Name)
		}
		if name := cmp.Or(e.Name, e.Address); name != "" {
			if j, twice := names[name]; twice && (e.Name != "" || c.Pool.Endpoints[j].Name != "") {
				v.fault(at+".name", "%s is also the name of pool.endpoints[%d]; names are unique", quote(name), j)
			} else {
				names[name] = i
			}
		}
		if e.Engine != "" {
			oneOf(v, at+".engine", e.Engine, engines)
		}
		v.gpu(at+".gpu", e.GPU, c.Pool.AllowLinkLocal)
		if e.Events != "" {
			v.address(at+".events", e.Events, c.Pool.AllowLinkLocal)
		}
		if e.Replay != "" {
			v.address(at+".replay", e.Replay, c.Pool.AllowLinkLocal)
			if e.Events == "" {
				v.fault(at+".replay", "%s has no events to replay; set %s.events too", quote(e.Replay), at)
			}
		}
	}
}

// kubernetes checks where a pool is found instead of in a list.
func (v *validator) kubernetes(c *Config) {
	k := c.Kubernetes
	if k.Pool == "" {
		if k.Kubeconfig != "" {
			v.fault("kubernetes.kubeconfig", "%s is not read without kubernetes.pool; set that too", quote(k.Kubeconfig))
		}
		return
	}
	namespace, name, found := strings.Cut(k.Pool, "/")
	if !found || !isObjectName(namespace, 63) || !isObjectName(name, maxNameBytes) {
		v.fault("kubernetes.pool", "%s is not NAMESPACE/NAME of an InferencePool, such as default/llama", quote(k.Pool))
	}
	if len(c.Pool.Endpoints) > 0 {
		v.fault("pool.endpoints", "stands beside kubernetes.pool, which finds the endpoints; remove one of the two")
	}
}

// isObjectName says whether s can be the name of a Kubernetes object.
func isObjectName(s string, most int) bool {
	return s != "" && len(s) <= most && strings.Trim(s, "abcdefghijklmnopqrstuvwxyz0123456789-.") == "" && strings.Trim(s, "-.") == s
}

// address checks that s is ip:port of a host that can be an endpoint, and says
// what is wrong in the words of the usual slips.
func (v *validator) address(path, s string, linkLocal bool) (netip.AddrPort, bool) {
	if s == "" {
		v.fault(path, "has no address; want ip:port, such as 10.0.0.7:8000")
		return netip.AddrPort{}, false
	}
	if scheme, rest, found := strings.Cut(s, "://"); found {
		rest, _, _ = strings.Cut(rest, "/")
		v.fault(path, "%s has the scheme %s; an endpoint is ip:port alone: %s", quote(s), quote(scheme), quote(rest))
		return netip.AddrPort{}, false
	}
	if host, _, found := strings.Cut(s, "/"); found {
		v.fault(path, "%s has a path or a slash at its end; an endpoint is ip:port alone: %s", quote(s), quote(host))
		return netip.AddrPort{}, false
	}
	addr, err := netip.ParseAddrPort(s)
	if err != nil {
		v.fault(path, "%s is not ip:port%s; write 10.0.0.7:8000 or [fd00::7]:8000", quote(s), whyNotAddress(s))
		return netip.AddrPort{}, false
	}
	ip := addr.Addr().Unmap()
	switch {
	case addr.Port() == 0:
		v.fault(path, "%s has port 0; want 1–65535", quote(s))
	case ip.IsUnspecified() || ip.IsMulticast():
		v.fault(path, "%s is the address of no one host; want an endpoint's own", quote(s))
	case ip.IsLinkLocalUnicast() && !linkLocal:
		v.fault(path, "%s is link-local, where clouds serve a machine's credentials; set pool.allowLinkLocal: true if it is meant", quote(s))
	default:
		return netip.AddrPortFrom(ip, addr.Port()), true
	}
	return netip.AddrPort{}, false
}

// whyNotAddress says which part of s is at fault, where that is clear.
func whyNotAddress(s string) string {
	if _, err := netip.ParseAddr(s); err == nil {
		return ": it has no port"
	}
	host, port, found := strings.Cut(s, ":")
	if !found {
		return ": it has no port"
	}
	if strings.ContainsAny(host, " \t") || strings.TrimSpace(s) != s {
		return ": it has a blank"
	}
	if _, err := strconv.ParseUint(port, 10, 16); err != nil {
		return ""
	}
	if _, err := netip.ParseAddr(host); err != nil {
		return ": " + quote(host) + " is not an IP address, and names are not looked up"
	}
	return ""
}

// name checks text that becomes a label of metrics and a field of logs.
func (v *validator) name(path, s string) {
	switch {
	case s == "":
		v.fault(path, "is empty; it needs a name")
	case len(s) > maxNameBytes:
		v.fault(path, "%s has %d bytes; at most %d are allowed", quote(s), len(s), maxNameBytes)
	case strings.ContainsFunc(s, func(r rune) bool { return r < ' ' || r == 0x7f || r == '\ufffd' }):
		v.fault(path, "%s has a control character; want printable text", quote(s))
	}
}

// weights checks that the weights are those of known scorers and sum to 1. The
// fault of a wrong sum shows what each weight would be in proportion.
func (v *validator) weights(weights map[string]float64, valid []string) {
	sum, whole := 0.0, true
	names := slices.Sorted(maps.Keys(weights))
	for _, name := range names {
		w, at := weights[name], join("weights", name)
		if !slices.Contains(valid, name) {
			if near := nearest(name, valid); near != "" {
				v.fault(at, "unknown scorer; the nearest is %q", near)
			} else {
				v.fault(at, "unknown scorer; there are %s", strings.Join(valid, ", "))
			}
		}
		if math.IsNaN(w) || math.IsInf(w, 0) || w < 0 || w > 1e6 {
			v.fault(at, "%v is not a weight; want 0–1", w)
			whole = false
		}
		sum += w
	}
	if !whole || math.Abs(sum-1) <= decision.WeightSumTolerance {
		return
	}
	if sum == 0 {
		v.fault("weights", "sum to 0; want 1")
		return
	}
	var b strings.Builder
	for i, name := range names {
		if i > 0 {
			b.WriteString(", ")
		}
		fmt.Fprintf(&b, "%s: %.4g", name, weights[name]/sum)
	}
	v.fault("weights", "sum to %.10g; want 1, in the same proportion {%s}", sum, b.String())
}

// models checks names and targets.
func (v *validator) models(models []Model) {
	if len(models) > MaxModels {
		v.fault("models", "has %d names; at most %d are served", len(models), MaxModels)
		return
	}
	names, targets := map[string]int{}, 0
	for i, m := range models {
		if targets += len(m.Targets); targets > MaxModels {
			v.fault("models", "have more than %d targets in all; at most so many are served", MaxModels)
			return
		}
		at := fmt.Sprintf("models[%d]", i)
		v.name(at+".name", m.Name)
		v.unique(names, "models", i, m.Name)
		if (m.Name == CatchAll || m.Name == Unnamed) && m.Target == "" && len(m.Targets) == 0 {
			v.fault(at+".target", "is empty; %s needs the name that other names lead to", quote(m.Name))
		}
		if m.Target != "" {
			v.target(at+".target", m.Target)
		}
		v.targets(at, &m)
		between(v, at+".priority", m.Priority, -maxPriority, maxPriority)
	}
	if i, both := names[CatchAll]; both {
		if j, both := names[Unnamed]; both {
			v.fault(fmt.Sprintf("models[%d].name", i), "\"*\" is never reached beside models[%d], which is \"**\"; remove one of them", j)
		}
	}
}

// unique checks that the name of list[i] is none of those before it, which names has.
func (v *validator) unique(names map[string]int, list string, i int, name string) {
	if j, twice := names[name]; twice {
		v.fault(fmt.Sprintf("%s[%d].name", list, i), "%s is also the name of %s[%d]; names are unique", quote(name), list, j)
		return
	}
	names[name] = i
}

// target checks a name that endpoints list.
func (v *validator) target(path, name string) {
	if name == CatchAll || name == Unnamed {
		v.fault(path, "%s is no model; name one that the endpoints list", quote(name))
		return
	}
	v.name(path, name)
}

// targets checks what a model's requests are divided among.
func (v *validator) targets(at string, m *Model) {
	if len(m.Targets) == 0 {
		return
	}
	if m.Target != "" || m.Adapter {
		v.fault(at+".targets", "stands beside target or adapter; name each target in targets alone")
	}
	if len(m.Targets) > maxTargets {
		v.fault(at+".targets", "has %d names; at most %d are served", len(m.Targets), maxTargets)
		return
	}
	weighted, sum := 0, 0
	names := map[string]int{}
	for i, t := range m.Targets {
		path := fmt.Sprintf("%s.targets[%d]", at, i)
		v.target(path+".name", t.Name)
		if j, twice := names[t.Name]; twice {
			v.fault(path+".name", "%s is also the name of %s.targets[%d]; name each once", quote(t.Name), at, j)
		}
		names[t.Name] = i
		if t.Weight != nil {
			between(v, path+".weight", *t.Weight, 0, maxWeight)
			weighted++
			sum += max(0, *t.Weight)
		}
	}
	switch {
	case weighted > 0 && weighted < len(m.Targets):
		v.fault(at+".targets", "have a weight in %d of %d places; give all of them one, or none for equal parts", weighted, len(m.Targets))
	case weighted > 0 && sum == 0:
		v.fault(at+".targets", "have no weight above 0, so no target could be chosen; remove the weights for equal parts")
	}
}

// objectives checks names and priorities.
func (v *validator) objectives(objectives []Objective) {
	if len(objectives) > MaxModels {
		v.fault("objectives", "has %d names; at most %d are served", len(objectives), MaxModels)
		return
	}
	names := map[string]int{}
	for i, o := range objectives {
		at := fmt.Sprintf("objectives[%d]", i)
		v.name(at+".name", o.Name)
		v.unique(names, "objectives", i, o.Name)
		between(v, at+".priority", o.Priority, -maxPriority, maxPriority)
	}
}

// eventSource refuses a cache scorer that waits for events nobody sends, and sources
// of events that are not read or are another's.
func (v *validator) eventSource(c *Config) {
	if c.Cache.Source == CacheOwn {
		v.unheard(c)
		return
	}
	if c.KVEvents.ReplayPort != 0 && c.KVEvents.Port == 0 {
		v.fault("kvEvents.replayPort", "%d has no events to replay; set kvEvents.port too", c.KVEvents.ReplayPort)
	}
	if c.KVEvents.Discover && c.KVEvents.Port != 0 {
		v.fault("kvEvents.discover", "is not read beside kvEvents.port, which is every endpoint's; remove one or the other")
	}
	v.eventSockets(c)
	if c.Cache.Source != CacheEvents || c.KVEvents.Port != 0 || c.KVEvents.Discover {
		return
	}
	if c.Kubernetes.Pool != "" {
		v.fault("cache.source", "\"events\" has no source of events for pods; set kvEvents.port or kvEvents.discover: true, or use cache.source: auto")
		return
	}
	for i, e := range c.Pool.Endpoints {
		if e.Events == "" {
			v.fault("cache.source", "\"events\" has no source of events for pool.endpoints[%d]; set kvEvents.port, kvEvents.discover: true or the endpoint's events, or use cache.source: auto", i)
			return
		}
	}
}

// eventSockets refuses one socket of events for two endpoints: what one engine has
// cached would count as the other's too.
func (v *validator) eventSockets(c *Config) {
	taken := map[netip.AddrPort]int{}
	for i, e := range c.Pool.Endpoints {
		path, socket, err := fmt.Sprintf("pool.endpoints[%d].events", i), netip.AddrPort{}, error(nil)
		switch {
		case e.Events != "":
			socket, err = netip.ParseAddrPort(e.Events)
		case c.KVEvents.Port > 0 && c.KVEvents.Port <= math.MaxUint16:
			path = "kvEvents.port"
			socket, err = netip.ParseAddrPort(e.Address)
			socket = netip.AddrPortFrom(socket.Addr(), uint16(c.KVEvents.Port))
		default:
			continue
		}
		if err != nil {
			continue // which is a fault of its own
		}
		socket = netip.AddrPortFrom(socket.Addr().Unmap(), socket.Port())
		if j, twice := taken[socket]; twice {
			v.fault(path, "%s is the event socket of pool.endpoints[%d] and of pool.endpoints[%d]; give each the events of its own engine", quote(socket.String()), j, i)
			continue
		}
		taken[socket] = i
	}
}

// unheard refuses sources of events that cache.source "own" leaves unread.
func (v *validator) unheard(c *Config) {
	const text = "is set, but cache.source \"own\" reads no events; remove it, or use cache.source: auto"
	if c.KVEvents.Port != 0 {
		v.fault("kvEvents.port", text)
	}
	if c.KVEvents.ReplayPort != 0 {
		v.fault("kvEvents.replayPort", text)
	}
	if c.KVEvents.Discover {
		v.fault("kvEvents.discover", text)
	}
	for i, e := range c.Pool.Endpoints {
		if e.Events != "" {
			v.fault(fmt.Sprintf("pool.endpoints[%d].events", i), text)
			return
		}
	}
}

// gpuSource refuses a load that nobody reports.
func (v *validator) gpuSource(c *Config) {
	if c.Load.Source != decision.LoadGPU || c.Pool.GPU.DCGM != "" {
		return
	}
	if c.Kubernetes.Pool != "" {
		v.fault("load.source", "\"gpu\" has no source of GPU readings for pods; set pool.gpu.dcgm")
		return
	}
	for i, e := range c.Pool.Endpoints {
		if e.GPU.DCGM == "" {
			v.fault("load.source", "\"gpu\" has no source of GPU readings for pool.endpoints[%d]; set pool.gpu.dcgm or the endpoint's gpu.dcgm", i)
			return
		}
	}
}

// gpu checks where accelerators are read.
func (v *validator) gpu(path string, g GPU, linkLocal bool) {
	if len(g.GPUs) > maxGPUs {
		v.fault(path+".gpus", "has %d names; at most %d are read", len(g.GPUs), maxGPUs)
	}
	for i, name := range g.GPUs {
		v.name(fmt.Sprintf("%s.gpus[%d]", path, i), name)
	}
	at, text := path+".dcgm", string(g.DCGM)
	if text == "" {
		return
	}
	if !strings.Contains(text, "://") {
		if n, err := strconv.ParseUint(text, 10, 16); err != nil || n == 0 {
			v.fault(at, "%s is neither a port nor a URL; write 9400 or http://10.0.0.7:9400/metrics", quote(text))
		}
		return
	}
	u, err := url.Parse(text)
	if err != nil || u.Scheme != "http" || u.User != nil || u.Fragment != "" {
		v.fault(at, "%s is no plain http URL; write http://10.0.0.7:9400/metrics", quote(text))
		return
	}
	v.address(at, u.Host, linkLocal)
}

// maxGPUs bounds the GPUs of one endpoint.
const maxGPUs = 64

// listen checks addresses that we open ourselves.
func (v *validator) listen(l Listen) {
	if l == (Listen{}) {
		v.fault("listen", "names no address; nothing would be served")
	}
	taken := map[string]string{}
	for _, a := range []struct{ path, address string }{
		{"listen.proxy", l.Proxy}, {"listen.metrics", l.Metrics}, {"listen.extProc", l.ExtProc}, {"listen.health", l.Health},
		{"listen.reports", l.Reports},
	} {
		if a.address == "" {
			continue
		}
		colon := strings.LastIndexByte(a.address, ':')
		port, err := strconv.ParseUint(a.address[colon+1:], 10, 16)
		if colon < 0 || err != nil {
			v.fault(a.path, "%s is not host:port; write :8080 or 127.0.0.1:8080", quote(a.address))
			continue
		}
		if other, twice := taken[a.address]; twice && port != 0 {
			v.fault(a.path, "%s is taken by %s; want another port", quote(a.address), other)
		}
		taken[a.address] = a.path
	}
}

// reports checks that agents have to prove that they may report.
func (v *validator) reports(c *Config) {
	r := c.Reports
	between(v, "reports.podReportIntervalMs", r.PodReportIntervalMs, 100, 60_000)
	if c.Listen.Reports != "" && r.TokenFile == "" && r.ClientCA == "" {
		v.fault("listen.reports", "%s would take reports from anybody; set reports.tokenFile or reports.clientCA too", quote(c.Listen.Reports))
	}
	if r.ClientCA != "" && c.TLS.Insecure {
		v.fault("reports.clientCA", "%s needs TLS, which tls.insecure turns off; remove one or the other", quote(r.ClientCA))
	}
}

// tls checks that a certificate has its key, and that TLS is wanted with them.
func (v *validator) tls(t TLS) {
	switch {
	case t.Insecure && t.Cert+t.Key != "":
		v.fault("tls.insecure", "true leaves tls.cert and tls.key unused; remove one or the other")
	case t.Cert != "" && t.Key == "":
		v.fault("tls.key", "is empty; the certificate %s needs its key", quote(t.Cert))
	case t.Key != "" && t.Cert == "":
		v.fault("tls.cert", "is empty; the key %s needs its certificate", quote(t.Key))
	}
}
