package extproc

import (
	"slices"
	"strconv"
	"strings"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	filterv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/protobuf/types/known/structpb"

	"epp.internal/epp"
	"epp.internal/epp/openai"
	"epp.internal/epp/picker"
)

// The names of the endpoint-picker protocol. Source: Gateway API Inference
// Extension, docs/proposals/004-endpoint-picker-protocol.
const (
	// DestinationHeader names where a request goes, as a request header and as
	// a key of the metadata namespace envoy.lb.
	DestinationHeader = "x-gateway-destination-endpoint"

	lbNamespace     = "envoy.lb"
	servedKey       = "x-gateway-destination-endpoint-served"
	subsetNamespace = "envoy.lb.subset_hint"
	subsetKey       = "x-gateway-destination-endpoint-subset"

	// attributesKey and upstreamKey lead to the upstream's address where Envoy
	// was told to send it: response_attributes: ["upstream.address"].
	attributesKey = "envoy.filters.http.ext_proc"
	upstreamKey   = "upstream.address"
)

const (
	// chunkBytes is the most that one streamed_response holds. Envoy takes 62,000 B
	// and more; but what does not fit 32 KiB with its frame gets a buffer of 1 MiB
	// from gRPC, which clears it each time: at 220 KB a third of the service's time.
	chunkBytes = 32<<10 - 128
	// maxSubset bounds a subset hint, in addresses.
	maxSubset = 4096
	// maxPathBytes and maxClientIDBytes bound what a record keeps of a path that
	// we don't know and of a client's ID. A guess, far above real ones.
	maxPathBytes     = 256
	maxClientIDBytes = 256
	// retryAfterSeconds is what a 429 asks a client to wait: a guess, long
	// enough for a queue of an engine to move.
	retryAfterSeconds = "1"
)

// mode is how the gateway sends a body. Source: Envoy's ProcessingMode.
type mode int32

const (
	unannounced mode = -1
	none             = mode(filterv3.ProcessingMode_NONE)
	streamed         = mode(filterv3.ProcessingMode_STREAMED)
	buffered         = mode(filterv3.ProcessingMode_BUFFERED)
	partial          = mode(filterv3.ProcessingMode_BUFFERED_PARTIAL)
	duplex           = mode(filterv3.ProcessingMode_FULL_DUPLEX_STREAMED)
)

// String returns Envoy's name of the mode, as metrics and logs show it.
func (m mode) String() string {
	switch m {
	case none, streamed, buffered, partial, duplex:
		return filterv3.ProcessingMode_BodySendMode(m).String()
	case unannounced:
		return "UNANNOUNCED"
	}
	return "OTHER"
}

// value is what a header says. Envoy fills raw_value; older ones value.
func value(h *corev3.HeaderValue) string {
	if raw := h.GetRawValue(); len(raw) > 0 {
		return string(raw)
	}
	return h.GetValue()
}

// readRequestHeaders fills m.in and m.remove. Of a header that is there twice
// the first counts, but for content-encoding, where all do, in their order. The
// length is that of Content-Length, −1 where there is none.
func (m *machine) readRequestHeaders(headers []*corev3.HeaderValue) (length int, err error) {
	length = -1
	if len(headers) > maxHeaders {
		return length, epp.Errorf(epp.BadRequest, "too_many_headers", "%d headers: at most %d are read", len(headers), maxHeaders)
	}
	for _, h := range headers {
		name := strings.ToLower(h.GetKey())
		switch name {
		case ":method":
			first(&m.in.Method, value(h))
		case ":path":
			first(&m.in.Path, value(h))
		case "x-request-id":
			first(&m.in.ClientID, cut(value(h), maxClientIDBytes))
		case "content-encoding":
			if m.in.ContentEncoding != "" {
				m.in.ContentEncoding += ", "
			}
			m.in.ContentEncoding += value(h)
		case "content-length":
			n, bad := strconv.ParseUint(value(h), 10, 63)
			if bad != nil {
				err = epp.Errorf(epp.BadRequest, "length_invalid", "content-length %.40q: a number of bytes is expected", value(h))
				continue
			}
			length = int(n)
		default:
			if name == picker.ObjectiveHeader {
				first(&m.in.Objective, cut(value(h), maxObjectiveBytes))
			}
			if picker.IsControl(name) && !slices.Contains(m.remove, name) {
				m.remove = append(m.remove, name)
			}
		}
	}
	m.in.Path = pathOf(m.in.Path)
	return length, err
}

// maxObjectiveBytes bounds the name of an objective: that of a Kubernetes object.
const maxObjectiveBytes = 253

// maxHeaders bounds a request's headers. Envoy's own bound is 100 by default.
const maxHeaders = 1024

func first(at *string, v string) {
	if *at == "" {
		*at = v
	}
}

// cut returns the first n bytes of s. What it leaves out is not kept in memory.
func cut(s string, n int) string {
	if len(s) <= n {
		return s
	}
	return strings.Clone(s[:n])
}

// pathOf returns the API path of a :path: without the query and without one
// slash at its end.
func pathOf(p string) string {
	path, query, _ := strings.Cut(p, "?")
	if len(path) > 1 {
		path = strings.TrimSuffix(path, "/")
	}
	if query != "" {
		path = strings.Clone(path) // a record would keep the query with it
	}
	return cut(path, maxPathBytes)
}

// subsetHint returns the addresses that the gateway allows: nil where it says
// nothing, and none where what it says names none.
func subsetHint(meta *corev3.Metadata) ([]string, error) {
	v, ok := meta.GetFilterMetadata()[subsetNamespace].GetFields()[subsetKey]
	if !ok {
		return nil, nil
	}
	subset := []string{}
	add := func(list string) {
		for a := range strings.SplitSeq(list, ",") {
			if a = strings.TrimSpace(a); a != "" && len(subset) <= maxSubset {
				subset = append(subset, a)
			}
		}
	}
	add(v.GetStringValue())
	for _, item := range v.GetListValue().GetValues() {
		add(item.GetStringValue())
	}
	if len(subset) > maxSubset {
		return nil, epp.Errorf(epp.Unavailable, "subset_too_large", "the gateway's subset names more than %d endpoints", maxSubset)
	}
	return subset, nil
}

// readResponseHeaders returns what is needed of an answer's headers.
func readResponseHeaders(headers []*corev3.HeaderValue) (code int, contentType, contentEncoding string) {
	for _, h := range headers {
		switch strings.ToLower(h.GetKey()) {
		case ":status":
			if n, err := strconv.Atoi(value(h)); err == nil && 100 <= n && n <= 999 {
				code = n
			}
		case "content-type":
			first(&contentType, value(h))
		case "content-encoding":
			first(&contentEncoding, value(h))
		}
	}
	return code, contentType, contentEncoding
}

// servedBy returns the address that answered, as the gateway tells it, or "".
func servedBy(r *extprocv3.ProcessingRequest) string {
	lb := r.GetMetadataContext().GetFilterMetadata()[lbNamespace].GetFields()
	if a := lb[servedKey].GetStringValue(); a != "" {
		return a
	}
	return r.GetAttributes()[attributesKey].GetFields()[upstreamKey].GetStringValue()
}

// header sets a header, whatever it was before.
func header(name, v string) *corev3.HeaderValueOption {
	return &corev3.HeaderValueOption{
		AppendAction: corev3.HeaderValueOption_OVERWRITE_IF_EXISTS_OR_ADD,
		Header:       &corev3.HeaderValue{Key: name, RawValue: []byte(v)},
	}
}

// mutation is what the decision changes of the request's headers. It removes the
// client's control headers where withRemoval says that they are there still; the
// one that it sets is not among those, since Envoy has no order of the two.
func (m *machine) mutation(withRemoval bool) *extprocv3.HeaderMutation {
	change := &extprocv3.HeaderMutation{SetHeaders: []*corev3.HeaderValueOption{
		header(DestinationHeader, m.destination), header(picker.IDHeader, m.id),
	}}
	if m.rank != "" {
		change.SetHeaders = append(change.SetHeaders, header(epp.RankHeader, m.rank))
	}
	if withRemoval {
		for _, name := range m.remove {
			if name != DestinationHeader && (name != epp.RankHeader || m.rank == "") {
				change.RemoveHeaders = append(change.RemoveHeaders, name)
			}
		}
	}
	if m.decoded {
		change.RemoveHeaders = append(change.RemoveHeaders, "content-encoding")
	}
	return change
}

// removal removes headers and sets none. It is nil where there are none.
func removal(names []string) *extprocv3.HeaderMutation {
	if len(names) == 0 {
		return nil
	}
	return &extprocv3.HeaderMutation{RemoveHeaders: names}
}

// lbMetadata tells the destination as metadata: what gateways read that don't
// look at headers.
func lbMetadata(destination string) *structpb.Struct {
	fields := func(key string, v *structpb.Value) *structpb.Struct {
		return &structpb.Struct{Fields: map[string]*structpb.Value{key: v}}
	}
	return fields(lbNamespace, structpb.NewStructValue(fields(DestinationHeader, structpb.NewStringValue(destination))))
}

func requestHeadersAnswer(change *extprocv3.HeaderMutation, clearRoute bool) *extprocv3.ProcessingResponse {
	a := &extprocv3.HeadersResponse{}
	if change != nil || clearRoute {
		a.Response = &extprocv3.CommonResponse{HeaderMutation: change, ClearRouteCache: clearRoute}
	}
	return &extprocv3.ProcessingResponse{Response: &extprocv3.ProcessingResponse_RequestHeaders{RequestHeaders: a}}
}

// requestBodyAnswer answers a buffered body. A nil body leaves it as it is.
func requestBodyAnswer(change *extprocv3.HeaderMutation, body []byte) *extprocv3.ProcessingResponse {
	r := &extprocv3.CommonResponse{HeaderMutation: change}
	if body != nil {
		r.BodyMutation = &extprocv3.BodyMutation{Mutation: &extprocv3.BodyMutation_Body{Body: body}}
	}
	return &extprocv3.ProcessingResponse{Response: &extprocv3.ProcessingResponse_RequestBody{RequestBody: &extprocv3.BodyResponse{Response: r}}}
}

// appendChunks appends the body in pieces, at least one. last is whether it is
// the stream's end.
func appendChunks(out []*extprocv3.ProcessingResponse, body []byte, last bool) []*extprocv3.ProcessingResponse {
	for {
		n := min(len(body), chunkBytes)
		out = append(out, &extprocv3.ProcessingResponse{Response: &extprocv3.ProcessingResponse_RequestBody{
			RequestBody: streamedBody(body[:n], last && n == len(body)),
		}})
		if body = body[n:]; len(body) == 0 {
			return out
		}
	}
}

func streamedBody(chunk []byte, end bool) *extprocv3.BodyResponse {
	return &extprocv3.BodyResponse{Response: &extprocv3.CommonResponse{BodyMutation: &extprocv3.BodyMutation{
		Mutation: &extprocv3.BodyMutation_StreamedResponse{StreamedResponse: &extprocv3.StreamedBodyResponse{Body: chunk, EndOfStream: end}},
	}}}
}

func requestTrailersAnswer() *extprocv3.ProcessingResponse {
	return &extprocv3.ProcessingResponse{Response: &extprocv3.ProcessingResponse_RequestTrailers{RequestTrailers: &extprocv3.TrailersResponse{}}}
}

func responseHeadersAnswer(id string) *extprocv3.ProcessingResponse {
	change := &extprocv3.HeaderMutation{SetHeaders: []*corev3.HeaderValueOption{header(picker.IDHeader, id)}}
	return &extprocv3.ProcessingResponse{Response: &extprocv3.ProcessingResponse_ResponseHeaders{
		ResponseHeaders: &extprocv3.HeadersResponse{Response: &extprocv3.CommonResponse{HeaderMutation: change}},
	}}
}

// responseBodyAnswer lets a piece of the answer through. Only in full duplex it
// has to be sent back.
func responseBodyAnswer(b *extprocv3.HttpBody, echo bool) *extprocv3.ProcessingResponse {
	a := &extprocv3.BodyResponse{}
	if echo {
		a = streamedBody(b.GetBody(), b.GetEndOfStream())
	}
	return &extprocv3.ProcessingResponse{Response: &extprocv3.ProcessingResponse_ResponseBody{ResponseBody: a}}
}

func responseTrailersAnswer() *extprocv3.ProcessingResponse {
	return &extprocv3.ProcessingResponse{Response: &extprocv3.ProcessingResponse_ResponseTrailers{ResponseTrailers: &extprocv3.TrailersResponse{}}}
}

// refusal answers the client in place of an endpoint.
func refusal(e *epp.Error, id string) *extprocv3.ProcessingResponse {
	set := []*corev3.HeaderValueOption{header("content-type", "application/json"), header(picker.IDHeader, id)}
	if e.Kind == epp.Saturated {
		set = append(set, header("retry-after", retryAfterSeconds))
	}
	return &extprocv3.ProcessingResponse{Response: &extprocv3.ProcessingResponse_ImmediateResponse{ImmediateResponse: &extprocv3.ImmediateResponse{
		Status:  &typev3.HttpStatus{Code: typev3.StatusCode(e.Kind.HTTPStatus())},
		Headers: &extprocv3.HeaderMutation{SetHeaders: set},
		Body:    openai.ErrorBody(e, id),
		Details: "epp_" + e.Reason,
	}}}
}
