package metrics

import (
	"net/http"
	"runtime"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"epp.internal/epp/decision"
	"epp.internal/epp/picker"
)

// Bounds of labels whose values come from outside, in values per family.
const (
	maxModels   = 200 // epp_routing_decisions_total has up to 4 outcomes of each
	maxAdapters = 200
	maxNames    = 64 // paths, reasons and the like: our own lists, all shorter
)

// maxPages bounds how many pages are made at once; more get 503.
const maxPages = 8

// Options of a [Metrics]. The zero value is usable.
type Options struct {
	// Version is shown by epp_build_info.
	Version string
	// Models and Adapters are the configured names, which are always their own
	// label. SetModels replaces the former.
	Models, Adapters []string
	// Snapshot says what is at this moment. It is called for every page, by any
	// goroutine. Nil: an empty one.
	Snapshot func() Snapshot
}

// Metrics counts what happens. Its methods may be called by any number of
// goroutines, and wait for no page.
type Metrics struct {
	registry *prometheus.Registry
	state    *state

	models, adapters, names *bounded

	matchRatio, compositeScore, scoringLatency   prometheus.Histogram
	tokenizeSeconds, requestSeconds, ttft        prometheus.Histogram
	scrapeSeconds, probeSeconds                  prometheus.Histogram
	candidates                                   prometheus.Gauge
	kvGaps, kvRestarts                           prometheus.Counter
	adapterLoads, decisions, unknown, prompts    *prometheus.CounterVec
	asked                                        *prometheus.CounterVec
	requests, ended, retries, retriesDenied, cut *prometheus.CounterVec
	scrapes, badValues, streams, probes          *prometheus.CounterVec
	elsewhere, stale                             prometheus.Counter
	kvEvents, kvBad, kvReplays                   *prometheus.CounterVec
	reports                                      *prometheus.CounterVec
	reportsMissed                                prometheus.Counter
	settings                                     *prometheus.CounterVec
}

// New returns metrics in a registry of their own, with those of the Go runtime
// and of the process.
func New(opt Options) *Metrics {
	if opt.Snapshot == nil {
		opt.Snapshot = func() Snapshot { return Snapshot{} }
	}
	r := prometheus.NewRegistry()
	m := &Metrics{
		registry: r,
		state:    &state{read: opt.Snapshot},
		models:   newBounded(maxModels, opt.Models),
		adapters: newBounded(maxAdapters, opt.Adapters),
		names:    newBounded(maxNames, nil),
	}
	m.registerDecisions(r)
	m.registerRequests(r)
	m.registerSignals(r)
	m.settings = counters(r, nameSettings, "Changes of settings while serving, by result: applied, or refused as a whole.", "result")
	build := prometheus.NewGauge(prometheus.GaugeOpts{
		Name: nameBuild, Help: "Always 1; the labels tell the version.",
		ConstLabels: prometheus.Labels{"version": opt.Version, "go": runtime.Version()},
	})
	build.Set(1)
	r.MustRegister(build, m.state, collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return m
}

// registerDecisions makes what is counted of decisions.
func (m *Metrics) registerDecisions(r prometheus.Registerer) {
	m.matchRatio = histogram(r, nameMatchRatio, ratioBounds,
		"Share of the prompt's full blocks that the picked endpoint held.")
	m.compositeScore = histogram(r, nameCompositeScore, ratioBounds,
		"Weighted sum of the factors of the picked endpoint.")
	m.scoringLatency = histogram(r, nameScoringLatency, microsecondBounds,
		"Microseconds from the prompt's tokens to the pick: look-up, filters, scores and choice.")
	m.candidates = gauge(r, nameCandidates,
		"Endpoints that passed all filters in the last decision; 0 while the pool is saturated.")
	m.adapterLoads = counters(r, nameAdapterLoads,
		"Picks of an endpoint on which the asked adapter was not resident.", "adapter")
	m.decisions = counters(r, nameDecisions,
		"Decisions by model and outcome: picked, degraded, or why the request was refused.", "model", "outcome")
	m.unknown = counters(r, nameUnknownFactors,
		"Picks in which a factor stood in for a signal that was never reported.", "factor")
	m.stale = counter(r, nameStaleRouting,
		"Decisions that counted on cached blocks which had been removed before, as was learnt later.")
	m.prompts = counters(r, namePrompts,
		"Decisions by where the prompt's tokens came from.", "source")
	m.asked = counters(r, nameAsked,
		"Prompts whose tokens an engine was to make, by how that ended; late, busy and paused are routed without.", "result")
	m.tokenizeSeconds = histogram(r, nameTokenizeSeconds, shortSeconds,
		"Seconds from the parsed request to its tokens.")
}

// registerRequests makes what is counted of requests and their answers.
func (m *Metrics) registerRequests(r prometheus.Registerer) {
	m.requests = counters(r, nameRequests,
		"Requests by path and status code; 499 where the client went away before it got one.", "path", "code")
	m.requestSeconds = histogram(r, nameRequestSeconds, longSeconds,
		"Seconds from the request to the end of its answer.")
	m.ended = counters(r, nameEnded,
		"Picked requests by how they ended.", "outcome")
	m.ttft = histogram(r, nameTTFT, longSeconds,
		"Seconds from the request to the first token of its answer, where that was streamed.")
	m.retries = counters(r, nameRetries,
		"Requests sent a second time, by how the first endpoint failed.", "reason")
	m.retriesDenied = counters(r, nameRetriesDenied,
		"Requests that the retry budget kept from a second try, by how the endpoint failed.", "reason")
	m.cut = counters(r, nameCutOff,
		"Answers that broke off after their header was passed on.", "reason")
}

// registerSignals makes what is counted of an endpoint's state on its way in.
func (m *Metrics) registerSignals(r prometheus.Registerer) {
	m.streams = counters(r, nameStreams,
		"Streams of Envoy's external processing by how they ended and the modes of their bodies.", "outcome", "request_mode", "response_mode")
	m.elsewhere = counter(r, nameElsewhere,
		"Requests that the gateway sent to an endpoint it was not told.")

	m.scrapes = counters(r, nameScrapes,
		"Readings of engines' metrics by result.", "result")
	m.scrapeSeconds = histogram(r, nameScrapeSeconds, shortSeconds,
		"Seconds that a reading took.")
	m.badValues = counters(r, nameBadValues,
		"Values of engines' metrics that were no usable number, by metric; they count as unknown.", "metric")

	m.probes = counters(r, nameProbes,
		"Probes of engines by outcome.", "outcome")
	m.probeSeconds = histogram(r, nameProbeSeconds, longSeconds,
		"Seconds that a probe took.")

	m.kvEvents = counters(r, nameKVEvents,
		"KV events applied, by kind.", "kind")
	m.kvBad = counters(r, nameKVBad,
		"KV-event messages or events that were refused, by reason.", "reason")
	m.reports = counters(r, nameReports,
		"Reports of endpoints' agents by result: taken, late (and so passed over), refused (and its stream ended).", "result")
	m.reportsMissed = counter(r, nameReportsMissed,
		"Reports that were missing in an agent's stream.")
	m.kvGaps = counter(r, nameKVGaps,
		"Gaps found in the sequence of an endpoint's KV events.")
	m.kvRestarts = counter(r, nameKVRestarts,
		"Endpoints whose sequence of KV events began anew.")
	m.kvReplays = counters(r, nameKVReplays,
		"Replays of KV events asked for, by result.", "result")
}

// Handler serves the page.
func (m *Metrics) Handler() http.Handler {
	return promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{MaxRequestsInFlight: maxPages, Registry: m.registry})
}

// Decision counts a decision. It keeps nothing of rec.
func (m *Metrics) Decision(rec *decision.Record) {
	if len(rec.Candidates) > 0 { // else it was refused before the pool was looked at
		m.candidates.Set(float64(rec.Admitted))
		m.prompts.WithLabelValues(rec.TokenSource.String()).Inc()
		m.scoringLatency.Observe(float64((rec.Timings.Match + rec.Timings.Score).Nanoseconds()) / 1e3)
		m.tokenizeSeconds.Observe(rec.Timings.Tokenize.Seconds())
	}
	if rec.Chosen < 0 {
		m.decided(rec.Model, m.names.admit(rec.Refused), false)
		return
	}
	outcome := "picked"
	if rec.Degraded {
		outcome = "degraded"
	}
	m.decided(rec.Model, outcome, true)
	c := &rec.Candidates[rec.Chosen]
	m.matchRatio.Observe(rec.MatchRatio(rec.Chosen))
	m.compositeScore.Observe(c.Composite())
	if rec.Adapter != "" && !c.Resident {
		m.adapterLoads.WithLabelValues(m.adapters.admit(rec.Adapter)).Inc()
	}
	for j, w := range rec.Settings.Weights {
		if rec.Score(rec.Chosen, j).Unknown {
			m.unknown.WithLabelValues(w.Name).Inc()
		}
	}
}

// decided counts a decision for a model, which may get a place among the labels
// where it was served.
func (m *Metrics) decided(model, outcome string, served bool) {
	m.models.mu.Lock() // or a name that SetModels drops now would come back
	defer m.models.mu.Unlock()
	m.decisions.WithLabelValues(m.models.label(model, served), outcome).Inc()
}

// SetModels replaces Options.Models. The series of a name that was there and is not
// any more go, unless it has got a place as any other name does.
func (m *Metrics) SetModels(names []string) {
	m.models.reserve(names, func(name string) { m.decisions.DeletePartialMatch(prometheus.Labels{"model": name}) })
}

// Ended counts the end of a picked request. It keeps nothing of e.
func (m *Metrics) Ended(e *picker.Ending) {
	m.ended.WithLabelValues(m.names.admit(e.Outcome)).Inc()
	if e.TTFT > 0 {
		m.ttft.Observe(e.TTFT.Seconds())
	}
}

// Applied counts a change of settings; err is why it was refused.
func (m *Metrics) Applied(err error) {
	result := "applied"
	if err != nil {
		result = "refused"
	}
	m.settings.WithLabelValues(result).Inc()
}

// Stale counts n decisions that turned out to have been made on blocks that were
// gone.
func (m *Metrics) Stale(n int) { m.stale.Add(float64(n)) }

// Asked counts a question to an engine for a prompt's tokens.
func (m *Metrics) Asked(result picker.AskResult) { m.asked.WithLabelValues(string(result)).Inc() }

// Answered counts a request's answer: the path as the API lists it, the status
// that the client got, and how long it took in all.
func (m *Metrics) Answered(path string, status int, elapsed time.Duration) {
	code := "other"
	if status >= 100 && status <= 599 {
		code = strconv.Itoa(status)
	}
	m.requests.WithLabelValues(m.names.admit(path), code).Inc()
	m.requestSeconds.Observe(elapsed.Seconds())
}

// Retried counts a request that was sent a second time.
func (m *Metrics) Retried(reason string) { m.retries.WithLabelValues(m.names.admit(reason)).Inc() }

// RetryDenied counts a request that only the retry budget kept from a second try.
func (m *Metrics) RetryDenied(reason string) {
	m.retriesDenied.WithLabelValues(m.names.admit(reason)).Inc()
}

// CutOff counts an answer that broke off after its header was passed on.
func (m *Metrics) CutOff(reason string) { m.cut.WithLabelValues(m.names.admit(reason)).Inc() }

// Stream counts an ext_proc stream, which is one request, by how it ended and the
// modes in which its bodies came. elsewhere is true where the gateway sent the
// request to an endpoint that it was not told.
func (m *Metrics) Stream(outcome, requestMode, responseMode string, elsewhere bool) {
	m.streams.WithLabelValues(m.names.admit(outcome), m.names.admit(requestMode), m.names.admit(responseMode)).Inc()
	if elsewhere {
		m.elsewhere.Inc()
	}
}

// Scraped counts one reading of an engine's metrics; err is why it failed.
func (m *Metrics) Scraped(elapsed time.Duration, err error) {
	result := "ok"
	if err != nil {
		result = "failed"
	}
	m.scrapes.WithLabelValues(result).Inc()
	m.scrapeSeconds.Observe(elapsed.Seconds())
}

// Probed counts a probe of an engine by its outcome, and how long it took.
func (m *Metrics) Probed(outcome string, elapsed time.Duration) {
	m.probes.WithLabelValues(m.names.admit(outcome)).Inc()
	m.probeSeconds.Observe(elapsed.Seconds())
}

// BadValue counts a value of an engine's metric that was no usable number.
func (m *Metrics) BadValue(metric string) {
	m.badValues.WithLabelValues(m.names.admit(metric)).Inc()
}

// KVEvents counts n applied KV events of one kind.
func (m *Metrics) KVEvents(kind string, n int) {
	m.kvEvents.WithLabelValues(m.names.admit(kind)).Add(float64(n))
}

// KVBad counts a KV-event message or event that was refused.
func (m *Metrics) KVBad(reason string) { m.kvBad.WithLabelValues(m.names.admit(reason)).Inc() }

// Report counts a report of an agent, by its result.
func (m *Metrics) Report(result string) { m.reports.WithLabelValues(m.names.admit(result)).Inc() }

// ReportsMissed counts reports that were missing in an agent's stream.
func (m *Metrics) ReportsMissed(n uint64) { m.reportsMissed.Add(float64(n)) }

// KVGap counts a gap in an endpoint's sequence of KV events.
func (m *Metrics) KVGap() { m.kvGaps.Inc() }

// KVRestart counts an endpoint whose sequence of KV events began anew.
func (m *Metrics) KVRestart() { m.kvRestarts.Inc() }

// KVReplay counts a replay that was asked for, by its result.
func (m *Metrics) KVReplay(result string) { m.kvReplays.WithLabelValues(m.names.admit(result)).Inc() }

func counter(r prometheus.Registerer, name, help string) prometheus.Counter {
	c := prometheus.NewCounter(prometheus.CounterOpts{Name: name, Help: help})
	r.MustRegister(c)
	return c
}

func counters(r prometheus.Registerer, name, help string, labels ...string) *prometheus.CounterVec {
	c := prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels)
	r.MustRegister(c)
	return c
}

func gauge(r prometheus.Registerer, name, help string) prometheus.Gauge {
	g := prometheus.NewGauge(prometheus.GaugeOpts{Name: name, Help: help})
	r.MustRegister(g)
	return g
}

func histogram(r prometheus.Registerer, name string, bounds []float64, help string) prometheus.Histogram {
	h := prometheus.NewHistogram(prometheus.HistogramOpts{Name: name, Help: help, Buckets: bounds})
	r.MustRegister(h)
	return h
}
