package metrics

import "github.com/prometheus/client_golang/prometheus"

// The names of what happens. This file has all names that there are.
const (
	nameMatchRatio      = "epp_cache_match_ratio"
	nameCandidates      = "epp_candidate_pods"
	nameScoringLatency  = "epp_scoring_latency_us"
	nameAdapterLoads    = "epp_adapter_loads_triggered_total"
	nameDecisions       = "epp_routing_decisions_total"
	nameCompositeScore  = "epp_composite_score"
	nameStaleRouting    = "epp_stale_cache_routing_total"
	nameUnknownFactors  = "epp_unknown_factors_total"
	namePrompts         = "epp_prompts_total"
	nameAsked           = "epp_engine_tokens_total"
	nameTokenizeSeconds = "epp_tokenize_duration_seconds"

	nameRequests       = "epp_requests_total"
	nameRequestSeconds = "epp_request_duration_seconds"
	nameEnded          = "epp_requests_ended_total"
	nameTTFT           = "epp_time_to_first_token_seconds"
	nameRetries        = "epp_retries_total"
	nameRetriesDenied  = "epp_retries_denied_total"
	nameCutOff         = "epp_answers_cut_off_total"

	nameStreams   = "epp_ext_proc_streams_total"
	nameElsewhere = "epp_served_elsewhere_total"

	nameScrapes       = "epp_scrapes_total"
	nameScrapeSeconds = "epp_scrape_duration_seconds"
	nameBadValues     = "epp_bad_values_total"

	nameProbes       = "epp_probes_total"
	nameProbeSeconds = "epp_probe_duration_seconds"

	nameKVEvents   = "epp_kv_events_total"
	nameKVBad      = "epp_kv_event_bad_messages_total"
	nameKVGaps     = "epp_kv_event_gaps_total"
	nameKVRestarts = "epp_kv_event_restarts_total"
	nameKVReplays  = "epp_kv_event_replays_total"

	nameReports       = "epp_agent_reports_total"
	nameReportsMissed = "epp_agent_reports_missed_total"

	nameBuild = "epp_build_info"

	nameSettings = "epp_settings_changes_total"
)

// ratioBounds are tenths. The article's threshold of 0.4 for a match is one of
// them; 0 tells no match at all from a small one.
var ratioBounds = []float64{0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1}

// microsecondBounds hold the article's thresholds of 1,000 and 5,000; below
// them lie the budgets of a decision over 8 to 1,024 endpoints.
var microsecondBounds = []float64{5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000}

// shortSeconds are for work of ours, longSeconds for an engine's.
var (
	shortSeconds = []float64{.0001, .0002, .0005, .001, .002, .005, .01, .02, .05, .1, .5, 2}
	longSeconds  = []float64{.01, .02, .05, .1, .2, .5, 1, 2, 5, 10, 20, 60, 300}
)

// The names of what is, read from a Snapshot.
var (
	descQueueDepth = perEndpoint("epp_queue_depth",
		"Requests that wait at the endpoint: those it reports, and our own picks since that found no free slot.")
	descHealth = perEndpoint("epp_pod_health_score",
		"Health of the endpoint, 0 to 1; below 0.3 it gets no request.")
	descHealthReason = prometheus.NewDesc("epp_pod_health_info",
		"Always 1; the label reason tells what holds the endpoint's health below 1. None while it is sound.",
		[]string{"pod", "endpoint", "reason"}, nil)
	descInFlight = perEndpoint("epp_in_flight_requests",
		"Requests sent to the endpoint and not seen to end.")
	descInFlightTokens = perEndpoint("epp_in_flight_tokens",
		"Uncached prompt tokens sent to the endpoint whose first token of the answer was not seen.")
	descBlocks = perEndpoint("epp_endpoint_cached_blocks",
		"Cached blocks that the endpoint is known to hold.")
	descStale = perEndpoint("epp_stale_endpoints",
		"1 where the endpoint's last reading is too old to trust, else 0.")
	descIncomplete = perEndpoint("epp_incomplete_endpoints",
		"1 where the endpoint may hold blocks that are not known, else 0.")
	descPredicted = perEndpoint("epp_predicted_cached_tokens_total",
		"Prompt tokens that the endpoint was expected to have cached, of requests whose usage it reported.")
	descReported = perEndpoint("epp_reported_cached_tokens_total",
		"Prompt tokens that the endpoint reported as cached in the usage of its answers.")

	descDoubt = perEndpoint("epp_cache_doubt_ratio",
		"Part of the endpoint's claims on cached blocks that did not come true lately; its match counts for less by as much.")
	descAudited = prometheus.NewDesc("epp_audited_requests_total",
		"Answers whose reported cached tokens were compared with the expected ones, by result: agrees, or why not.",
		[]string{"pod", "endpoint", "result"}, nil)
	descAlarm = prometheus.NewDesc("epp_mispredicted_endpoints",
		"1 while many of the endpoint's recent answers had other cached tokens than expected, with the cause of most; else no series.",
		[]string{"pod", "endpoint", "cause"}, nil)

	descNodes      = whole("epp_prefix_tree_nodes", "Blocks in the prefix tree.")
	descIndexBytes = whole("epp_index_bytes", "Memory of the prefix tree, bounded by limits.indexBytes.")
	descOwnBlocks  = whole("epp_own_blocks", "Blocks that our own picks have taught, bounded by limits.ownBlocks; 0 where every endpoint tells of its cache.")
	descRingBytes  = whole("epp_ring_bytes", "Memory of the ring of decisions, bounded by limits.ringBytes.")
	descMaxQueue   = whole("epp_max_queue", "Queue at which an endpoint is full, in requests: the setting maxQueue.")
	descBound      = whole("epp_booking_bound_total",
		"Bookings ended by their age, because nobody saw their request end.")
	descDropped = whole("epp_decision_lines_dropped_total",
		"Lines that were not written to the file of log.decisions, because it could not keep up or could not be written.")
)

func perEndpoint(name, help string) *prometheus.Desc {
	return prometheus.NewDesc(name, help, []string{"pod", "endpoint"}, nil)
}

func whole(name, help string) *prometheus.Desc { return prometheus.NewDesc(name, help, nil, nil) }
