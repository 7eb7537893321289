package sim

import (
	"math"
	"slices"
	"time"

	"epp.internal/epp/decision"
)

// Result is what a run brought.
type Result struct {
	Policy string
	Seed   uint64
	// Requests are in the trace's order.
	Requests []Outcome
	// Endpoints are all there were, by number.
	Endpoints []EndpointResult
	// Virtual is how long the run lasted on its own clock.
	Virtual time.Duration
	// Decisions holds records of the run's last decisions, our own policies' alone.
	Decisions *decision.Ring
}

// Outcome is what became of one request.
type Outcome struct {
	At time.Duration
	// TTFT and E2E are from the arrival, retries included; 0 where it failed.
	TTFT, E2E                                time.Duration
	PromptTokens, CachedTokens, AnswerTokens int
	// Endpoint is the number of the one that served it, −1 for none.
	Endpoint int
	Attempts int
	Failed   bool
}

// EndpointResult is what one endpoint did.
type EndpointResult struct {
	Name string
	// Busy is how long its steps took, and Dollars what that costs by the profile's
	// price of an hour.
	Busy        time.Duration
	Dollars     float64
	Requests    int
	Preemptions uint64
}

// Summary is a run in a few figures.
type Summary struct {
	// HitShare is cached ÷ prompt tokens of the requests that were served.
	HitShare                   float64
	MeanTTFT, P50TTFT, P99TTFT time.Duration
	MeanE2E, P99E2E            time.Duration
	Failed                     int
	// Least and Most are the requests of the endpoints that had the fewest and the
	// most, over the mean of all: 0 and above 1.
	Least, Most float64
	// Imbalance is the busiest endpoint's time over the mean of all, 1 for even; 0:
	// not known.
	Imbalance float64
	// DollarsPer1000 is what the engines' busy time costs for 1,000 requests that were
	// served: idle time is what a smaller pool would save.
	DollarsPer1000 float64
}

// Summary is Summarize, and what the endpoints did.
func (r *Result) Summary() Summary {
	s := Summarize(r.Requests)
	var most, all time.Duration
	for _, e := range r.Endpoints {
		most, all = max(most, e.Busy), all+e.Busy
		s.DollarsPer1000 += e.Dollars * 1000 / float64(max(1, len(r.Requests)-s.Failed))
	}
	s.Least, s.Most = r.spread()
	if all > 0 {
		s.Imbalance = float64(most) * float64(len(r.Endpoints)) / float64(all)
	}
	return s
}

// Summarize counts requests; those that failed are in no time.
func Summarize(outcomes []Outcome) Summary {
	var s Summary
	var ttft, e2e []time.Duration
	var prompt, cached int
	for i := range outcomes {
		o := &outcomes[i]
		if o.Failed {
			s.Failed++
			continue
		}
		ttft, e2e = append(ttft, o.TTFT), append(e2e, o.E2E)
		prompt += o.PromptTokens
		cached += o.CachedTokens
	}
	if prompt > 0 {
		s.HitShare = float64(cached) / float64(prompt)
	}
	slices.Sort(ttft)
	slices.Sort(e2e)
	s.MeanTTFT, s.P50TTFT, s.P99TTFT = mean(ttft), quantile(ttft, 0.5), quantile(ttft, 0.99)
	s.MeanE2E, s.P99E2E = mean(e2e), quantile(e2e, 0.99)
	return s
}

// spread is the fewest and the most requests of an endpoint, over the mean.
func (r *Result) spread() (least, most float64) {
	fewest, highest, all := math.MaxInt, 0, 0
	for _, e := range r.Endpoints {
		fewest, highest, all = min(fewest, e.Requests), max(highest, e.Requests), all+e.Requests
	}
	if all == 0 {
		return 0, 0
	}
	mean := float64(all) / float64(len(r.Endpoints))
	return float64(fewest) / mean, float64(highest) / mean
}

func mean(sorted []time.Duration) time.Duration {
	if len(sorted) == 0 {
		return 0
	}
	var sum float64
	for _, d := range sorted {
		sum += float64(d)
	}
	return time.Duration(sum / float64(len(sorted)))
}

// quantile is the smallest value that at least a share q of all does not pass.
func quantile(sorted []time.Duration, q float64) time.Duration {
	if len(sorted) == 0 {
		return 0
	}
	n := int(q * float64(len(sorted)))
	if float64(n) == q*float64(len(sorted)) && n > 0 {
		n--
	}
	return sorted[min(n, len(sorted)-1)]
}
