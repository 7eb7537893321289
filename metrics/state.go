package metrics

import (
	"strings"
	"sync"
	"unicode/utf8"

	"github.com/prometheus/client_golang/prometheus"
)

// Snapshot is what is at one moment.
type Snapshot struct {
	// Endpoints are the pool's. Of two with one name and address the first is shown.
	Endpoints []Endpoint
	// MaxQueue is the setting, in requests.
	MaxQueue int
	// IndexBlocks and IndexBytes are the prefix tree's size, RingBytes the size
	// of the ring of decisions.
	IndexBlocks, IndexBytes, RingBytes int
	// BookingsBound counts the bookings that their age has ended since the start.
	BookingsBound uint64
}

// Endpoint is one endpoint's state.
type Endpoint struct {
	Name    string // the label pod
	Address string // the label endpoint, ip:port

	Queue  float64 // requests, as the queue scorer sees it
	Health float64 // 0–1, as the health scorer sees it
	// HealthReason is why Health is not 1; empty where nothing is held against it.
	HealthReason string

	InFlight, InFlightTokens int
	Blocks                   int
	Stale, Incomplete        bool
}

// endpointKey is the labels of an endpoint's series.
type endpointKey struct{ name, address string }

// cachedTokens are sums over an endpoint's answers.
type cachedTokens struct{ predicted, reported uint64 }

// maxCached bounds the endpoints whose sums are kept between two pages: a pool
// has fewer, and each page drops those that have left.
const maxCached = 8192

// state is the collector of all that is read from a snapshot.
type state struct {
	read func() Snapshot

	mu     sync.Mutex // guards the following fields
	cached map[endpointKey]cachedTokens
}

func (s *state) addCached(key endpointKey, predicted, reported int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	sum, known := s.cached[key]
	if !known && len(s.cached) >= maxCached {
		return
	}
	sum.predicted += uint64(max(predicted, 0))
	sum.reported += uint64(max(reported, 0))
	s.cached[key] = sum
}

// Describe implements [prometheus.Collector].
func (s *state) Describe(out chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{
		descQueueDepth, descHealth, descHealthReason, descInFlight, descInFlightTokens, descBlocks, descStale, descIncomplete,
		descPredicted, descReported, descNodes, descIndexBytes, descRingBytes, descMaxQueue, descBound,
	} {
		out <- d
	}
}

// Collect implements [prometheus.Collector].
func (s *state) Collect(out chan<- prometheus.Metric) {
	now := s.read()
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		out <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	count := func(d *prometheus.Desc, v uint64, labels ...string) {
		out <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(v), labels...)
	}
	gauge(descNodes, float64(now.IndexBlocks))
	gauge(descIndexBytes, float64(now.IndexBytes))
	gauge(descRingBytes, float64(now.RingBytes))
	gauge(descMaxQueue, float64(now.MaxQueue))
	count(descBound, now.BookingsBound)

	cached := s.keep(now.Endpoints)
	shown := make(map[endpointKey]bool, len(now.Endpoints))
	for _, e := range now.Endpoints {
		pod, address := strings.ToValidUTF8(e.Name, "?"), strings.ToValidUTF8(e.Address, "?")
		if shown[endpointKey{pod, address}] {
			continue
		}
		shown[endpointKey{pod, address}] = true
		gauge(descQueueDepth, e.Queue, pod, address)
		gauge(descHealth, e.Health, pod, address)
		if e.HealthReason != "" {
			gauge(descHealthReason, 1, pod, address, e.HealthReason)
		}
		gauge(descInFlight, float64(e.InFlight), pod, address)
		gauge(descInFlightTokens, float64(e.InFlightTokens), pod, address)
		gauge(descBlocks, float64(e.Blocks), pod, address)
		gauge(descStale, oneIf(e.Stale), pod, address)
		gauge(descIncomplete, oneIf(e.Incomplete), pod, address)
		sum := cached[endpointKey{e.Name, e.Address}]
		count(descPredicted, sum.predicted, pod, address)
		count(descReported, sum.reported, pod, address)
	}
}

// keep drops the sums of endpoints that have left and returns a copy of the rest.
func (s *state) keep(endpoints []Endpoint) map[endpointKey]cachedTokens {
	s.mu.Lock()
	defer s.mu.Unlock()
	left := make(map[endpointKey]cachedTokens, len(endpoints))
	for _, e := range endpoints {
		key := endpointKey{e.Name, e.Address}
		if sum, known := s.cached[key]; known {
			left[key] = sum
		}
	}
	clear(s.cached)
	for key, sum := range left {
		s.cached[key] = sum
	}
	return left
}

func oneIf(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

// bounded turns outside names into label values, of which there are few: once
// its places are taken, a new name is "other".
type bounded struct {
	mu     sync.Mutex // guards the following fields
	names  map[string]bool
	places int
}

// otherName stands for all names that have no place.
const otherName = "other"

// maxLabelBytes is the longest name that becomes a label.
const maxLabelBytes = 253

// newBounded returns a set with room for places names besides the reserved ones.
func newBounded(places int, reserved []string) *bounded {
	b := &bounded{names: make(map[string]bool, len(reserved)), places: places}
	for _, name := range reserved {
		if labelable(name) {
			b.names[name] = true
		}
	}
	return b
}

// admit returns name if it has a place or gets one, else "other".
func (b *bounded) admit(name string) string {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.names[name] {
		return name
	}
	if b.places == 0 || !labelable(name) {
		return otherName
	}
	b.places--
	name = strings.Clone(name)
	b.names[name] = true
	return name
}

// seen returns name if it has a place, else "other".
func (b *bounded) seen(name string) string {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.names[name] {
		return name
	}
	return otherName
}

// labelable is true for a name that Prometheus takes: short, not empty, UTF-8.
func labelable(name string) bool {
	return name != "" && len(name) <= maxLabelBytes && utf8.ValidString(name)
}
