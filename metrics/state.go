package metrics

import (
	"strings"
	"sync"
	"unicode/utf8"

	"github.com/prometheus/client_golang/prometheus"

	"epp.internal/epp/audit"
)

// Snapshot is what is at one moment.
type Snapshot struct {
	// Endpoints are the pool's. Of two with one name and address the first is shown.
	Endpoints []Endpoint
	// MaxQueue is the setting, in requests.
	MaxQueue int
	// IndexBlocks and IndexBytes are the prefix tree's size, OwnBlocks the blocks
	// that our own picks have taught, RingBytes the size of the ring of decisions.
	IndexBlocks, IndexBytes, OwnBlocks, RingBytes int
	// BookingsBound counts the bookings that their age has ended since the start.
	BookingsBound uint64
	// DecisionsDropped counts the lines that the decision log had no room for.
	DecisionsDropped uint64
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
	Doubt                    float64     // as a fraction
	Truth                    audit.State // how its answers compared with what was expected
}

// endpointKey is the labels of an endpoint's series.
type endpointKey struct{ name, address string }

// state is the collector of all that is read from a snapshot.
type state struct{ read func() Snapshot }

// Describe implements [prometheus.Collector].
func (s *state) Describe(out chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{
		descQueueDepth, descHealth, descHealthReason, descInFlight, descInFlightTokens, descBlocks, descStale, descIncomplete,
		descPredicted, descReported, descDoubt, descAudited, descAlarm, descNodes, descIndexBytes, descOwnBlocks, descRingBytes, descMaxQueue, descBound, descDropped,
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
	gauge(descOwnBlocks, float64(now.OwnBlocks))
	gauge(descRingBytes, float64(now.RingBytes))
	gauge(descMaxQueue, float64(now.MaxQueue))
	count(descBound, now.BookingsBound)
	count(descDropped, now.DecisionsDropped)

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
		predicted, reported := e.Truth.Tokens()
		count(descPredicted, predicted, pod, address)
		count(descReported, reported, pod, address)
		gauge(descDoubt, e.Doubt, pod, address)
		for c, n := range e.Truth.Total() {
			if cause := audit.Cause(c); n > 0 || cause == audit.Agrees {
				count(descAudited, n, pod, address, cause.String())
			}
		}
		if alarm := e.Truth.Alarm(); alarm != audit.Agrees {
			gauge(descAlarm, 1, pod, address, alarm.String())
		}
	}
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
	mu       sync.Mutex // guards the following fields
	reserved map[string]bool
	names    map[string]bool // those that have a place
	places   int             // that are left
}

// otherName stands for all names that have no place.
const otherName = "other"

// maxLabelBytes is the longest name that becomes a label.
const maxLabelBytes = 253

// newBounded returns a set with room for places names besides the reserved ones.
func newBounded(places int, reserved []string) *bounded {
	b := &bounded{names: map[string]bool{}, places: places}
	b.reserve(reserved, nil)
	return b
}

// reserve makes names the reserved ones, and calls drop, if not nil, for each name
// that was one and has no place: it is no label any more.
func (b *bounded) reserve(names []string, drop func(name string)) {
	b.mu.Lock()
	defer b.mu.Unlock()
	former := b.reserved
	b.reserved = make(map[string]bool, len(names))
	for _, name := range names {
		if labelable(name) {
			b.reserved[name] = true
		}
	}
	for name := range former {
		if !b.reserved[name] && !b.names[name] && drop != nil {
			drop(name)
		}
	}
}

// admit returns name if it is reserved, has a place or gets one, else "other".
func (b *bounded) admit(name string) string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.label(name, true)
}

// label is name if it is reserved or has a place, or gets one where it may, else
// "other". b.mu is held, by a caller that counts until it has.
func (b *bounded) label(name string, may bool) string {
	if b.reserved[name] || b.names[name] {
		return name
	}
	if !may || b.places == 0 || !labelable(name) {
		return otherName
	}
	b.places--
	name = strings.Clone(name)
	b.names[name] = true
	return name
}

// labelable is true for a name that Prometheus takes: short, not empty, UTF-8.
func labelable(name string) bool {
	return name != "" && len(name) <= maxLabelBytes && utf8.ValidString(name)
}
