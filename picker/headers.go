package picker

import (
	"strings"

	"epp.internal/epp"
)

// IDHeader carries the requestID, to the client and to the endpoint.
const IDHeader = "x-epp-request-id"

// ObjectiveHeader names one of the pool's objectives, which is a priority. Edges read
// it and pass it on to nobody. Source: llm-d's router.
const ObjectiveHeader = "x-llm-d-inference-objective"

// controlHeaders steer pickers and engines: they name an address, a priority, a
// tenant, a session or a rewrite. From a client they are worth nothing here, but for
// an objective that the operator has made, which only ever lowers a priority.
// Source: the headers of the endpoint-picker protocol and of llm-d's router.
var controlHeaders = [...]string{
	"x-prefiller-host-port", "x-encoder-hosts-ports", "x-data-parallel-host-port", epp.RankHeader, "x-kv-cache-source-host-port",
	"x-slo-ttft-ms", "x-slo-tpot-ms", "x-session-token", "epp-profile", "test-epp-endpoint-selection",
}

// controlPrefixes are the families of such headers.
var controlPrefixes = [...]string{
	"x-gateway-destination-endpoint", "x-gateway-inference-", "x-gateway-model-name-rewrite", "x-llm-d-",
}

// IsControl reports whether a request's header of that name, in any case,
// steers pickers and engines. No edge passes one on from a client.
func IsControl(name string) bool {
	for _, c := range controlHeaders {
		if strings.EqualFold(name, c) {
			return true
		}
	}
	for _, p := range controlPrefixes {
		if len(name) >= len(p) && strings.EqualFold(name[:len(p)], p) {
			return true
		}
	}
	return false
}
