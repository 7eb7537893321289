package decision

import "epp.internal/epp"

// Prediction is what a decision expects of a request at one endpoint.
type Prediction struct {
	// Work is the raw input.
	Work epp.Work
	// FirstToken is the predicted time to its first token; Cost is that, its answer,
	// and what it takes from the others there. Both are in seconds.
	FirstToken, Cost float64
}

// PolicyName names how a decision chooses among the endpoints that pass the
// filters.
type PolicyName string

// The policies.
const (
	Weighted PolicyName = "weighted" // the highest weighted sum
	Latency  PolicyName = "latency"  // the lowest predicted cost
)

// Predicts reports whether decisions by s predict at all.
func (s *Settings) Predicts() bool { return s.Policy == Latency || s.Gate > 0 }
