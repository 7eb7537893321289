package extproc

import (
	"context"
	"strconv"
	"strings"

	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"epp.internal/epp"
	"epp.internal/epp/openai"
	"epp.internal/epp/picker"
)

// Carried is a pick on its way. *picker.Pick is one.
type Carried interface {
	// Target is where the request goes, and its body. Alternatives are where the
	// gateway may send it if that fails, best first.
	Target() (epp.Endpoint, []byte)
	Alternatives() []epp.Endpoint
	// Encoding is the Content-Encoding of that body, empty for none.
	Encoding() string
	// Served tells the address that the gateway says has answered.
	Served(address string)
	// ResponseHeader and ResponseBody show the answer as it passes.
	ResponseHeader(status int, contentType, contentEncoding string)
	ResponseBody(chunk []byte)
	// End is called once.
	End(picker.Outcome)
}

// By returns pk's Pick as [Options] take it.
func By(pk *picker.Picker) func(context.Context, picker.Incoming) (Carried, error) {
	return func(ctx context.Context, in picker.Incoming) (Carried, error) {
		p, err := pk.Pick(ctx, in)
		if err != nil {
			return nil, err // not p: a nil pick is no nil Carried
		}
		return p, nil
	}
}

// phase is how far a stream has come.
type phase uint8

const (
	fresh      phase = iota // nothing was seen
	held                    // request headers seen, their answer waits for the body's end
	collecting              // request headers answered, the whole body awaited
	routed                  // the request is answered, with its endpoint
	answering               // response headers seen
	finished                // the response's end seen
	closed                  // the gateway got an answer of our own: nothing may follow
)

func (p phase) String() string {
	return [...]string{"fresh", "held", "collecting", "routed", "answering", "finished", "closed", "phase(7)"}[p&7]
}

// machine is one stream's state: one HTTP request and its answer. It knows no
// socket, clock or goroutine. Its owner calls feed with each message, tick when
// asked to by awaiting, and over once; it sends what is in out after each.
type machine struct {
	// id is our requestID.
	id string
	// maxBody bounds the request's body, in bytes.
	maxBody int
	// pick decides and books; hold takes n more bytes of body out of the bound
	// that all streams share, and reports whether they were there.
	pick func(picker.Incoming) (Carried, error)
	hold func(n int) bool
	// gone is told of a request whose client went away before its body was whole.
	gone func(picker.Incoming)

	// out is what to send now, in order.
	out []*extprocv3.ProcessingResponse
	// awaiting is true while it is not known whether a body will come before
	// the headers are answered: the owner calls tick after bodyWait, unless a
	// message comes first.
	awaiting bool

	phase             phase
	request, response mode
	// announced is true where the gateway said its modes.
	announced bool

	in      picker.Incoming
	body    []byte
	length  int      // of the body, as its headers say; −1 where they don't
	rank    string   // of the destination; empty where it has one
	remove  []string // the client's headers that must not reach an endpoint
	trailed bool     // the request's trailers were seen
	asked   bool     // pick was called
	decoded bool     // the body goes on without the encoding it came in

	// picked is what End is owed to, once; it is nil before the pick.
	picked      Carried
	destination string // as the gateway was told it
	ended       bool
	end         StreamEnd
	// whole is true for an answer that is no stream: an engine sends its headers
	// when all of it is there, and where its bytes do not pass us Envoy resets our
	// stream at its end, as it does when a client leaves.
	whole bool
}

// feed takes one message. Its error is the gRPC status that the stream ends
// with, after what is in out.
func (m *machine) feed(r *extprocv3.ProcessingRequest) error {
	m.out = m.out[:0]
	m.awaiting = false
	if r.GetRequest() == nil {
		return nil // a window update: nothing of it concerns us
	}
	m.end.Messages++
	if m.phase == fresh {
		m.readModes(r.GetProtocolConfig())
		if r.GetObservabilityMode() {
			m.phase = closed // answers would be ignored, so there is nothing to decide
			return nil
		}
	}
	switch v := r.GetRequest().(type) {
	case *extprocv3.ProcessingRequest_RequestHeaders:
		return m.requestHeaders(v.RequestHeaders, r)
	case *extprocv3.ProcessingRequest_RequestBody:
		return m.requestBody(v.RequestBody)
	case *extprocv3.ProcessingRequest_RequestTrailers:
		return m.requestTrailers()
	case *extprocv3.ProcessingRequest_ResponseHeaders:
		return m.responseHeaders(v.ResponseHeaders, r)
	case *extprocv3.ProcessingRequest_ResponseBody:
		return m.responseBody(v.ResponseBody)
	case *extprocv3.ProcessingRequest_ResponseTrailers:
		return m.responseTrailers()
	}
	return status.Error(codes.Unimplemented, "message of a kind that is not known")
}

// outOfOrder is the status of a stream whose gateway does not keep to the
// protocol, or was configured in a way that we cannot follow.
func (m *machine) outOfOrder(what string) error {
	return status.Errorf(codes.InvalidArgument, "%s came out of order: the stream is %s, request body mode %s, response body mode %s",
		what, m.phase, m.request, m.response)
}

// readModes takes the body modes from a stream's first message.
func (m *machine) readModes(c *extprocv3.ProtocolConfiguration) {
	m.request, m.response = unannounced, unannounced
	if c != nil {
		m.announced = true
		m.request, m.response = mode(c.GetRequestBodyMode()), mode(c.GetResponseBodyMode())
	}
}

func (m *machine) requestHeaders(h *extprocv3.HttpHeaders, r *extprocv3.ProcessingRequest) error {
	if m.phase != fresh {
		return m.outOfOrder("request headers")
	}
	length, err := m.readRequestHeaders(h.GetHeaders().GetHeaders())
	m.length = min(length, m.maxBody)
	if err == nil {
		m.in.Subset, err = subsetHint(r.GetMetadataContext())
	}
	bodyless := h.GetEndOfStream() || m.request == none
	switch {
	case err != nil:
	case bodyless:
		err = m.decide()
		if err == nil {
			m.send(requestHeadersAnswer(m.mutation(true), m.request == duplex), m.destination)
		}
	case length > m.maxBody:
		err = m.tooLarge()
	case m.request == buffered:
		m.openBody()
	case m.request == duplex:
		m.phase = held
	case m.request == unannounced:
		m.phase, m.awaiting = held, true
	default:
		err = epp.Errorf(epp.Internal, "body_mode_unusable",
			"gateway announced request body mode %s, which shows no whole body before the route is chosen: use BUFFERED or FULL_DUPLEX_STREAMED", m.request)
	}
	if err != nil {
		m.refuse(err)
	}
	return nil
}

// openBody answers the headers so that the gateway goes on to the body. The
// client's own word on where to go is gone from here on: if we should die before
// the pick and the gateway goes on without us, it obeys nobody.
func (m *machine) openBody() {
	m.phase = collecting
	m.send(requestHeadersAnswer(removal(m.remove), false), "")
}

// tick tells that no body came within bodyWait of headers whose gateway
// announced no mode: it is waiting for our answer, so it must be buffering.
func (m *machine) tick() {
	m.out = m.out[:0]
	if m.awaiting {
		m.awaiting = false
		m.request, m.response = buffered, streamed
		m.openBody()
	}
}

func (m *machine) requestBody(b *extprocv3.HttpBody) error {
	if m.phase != held && m.phase != collecting {
		return m.outOfOrder("request body")
	}
	if m.request == unannounced {
		m.request, m.response = duplex, duplex // it did not wait for our answer
	}
	if err := m.collect(b.GetBody()); err != nil {
		m.refuse(err)
		return nil
	}
	// A buffered body is whole even where trailers follow it and so its end is
	// not the stream's.
	if m.phase == held && !b.GetEndOfStream() {
		return nil
	}
	if err := m.decide(); err != nil {
		m.refuse(err)
		return nil
	}
	m.answerBody(true)
	return nil
}

// roomFactor is how many times as much as its first chunk is set aside for a body
// that says it is longer: a lie costs no more than that.
const roomFactor = 8

// collect adds a chunk to the body.
func (m *machine) collect(chunk []byte) error {
	if len(m.body)+len(chunk) > m.maxBody {
		return m.tooLarge()
	}
	if !m.hold(len(chunk)) {
		return epp.Errorf(epp.Saturated, "bodies_full", "too many bytes of requests are in flight")
	}
	if m.body == nil {
		m.body = chunk // ours: the decoder has copied it
		if room := min(m.length, roomFactor*len(chunk)); room > len(chunk) {
			m.body = append(make([]byte, 0, room), chunk...)
		}
		return nil
	}
	m.body = append(m.body, chunk...)
	return nil
}

func (m *machine) tooLarge() error {
	return epp.Errorf(epp.TooLarge, "body_too_large", "body is over the limit of %d bytes", m.maxBody)
}

func (m *machine) requestTrailers() error {
	if m.trailed || m.phase == fresh || m.phase >= finished {
		return m.outOfOrder("request trailers")
	}
	m.trailed = true
	switch m.phase {
	case held: // the body ends with them
		if m.request == unannounced {
			m.request, m.response = duplex, duplex
		}
		if err := m.decide(); err != nil {
			m.refuse(err)
			return nil
		}
		m.answerBody(false)
	case collecting: // headers cannot be changed any more
		m.refuse(epp.Errorf(epp.BadRequest, "body_missing", "request has trailers and no body"))
		return nil
	}
	m.send(requestTrailersAnswer(), "")
	return nil
}

// decide picks the endpoint. A request without a body, and one of a path whose
// bodies we don't know, is picked by load alone.
func (m *machine) decide() error {
	in := m.in
	in.ID, in.Sight = m.id, m.sight()
	readable := len(m.body) > 0 && openai.FormOf(in.Path) != openai.Other
	if readable {
		in.Body = m.body
	} else {
		in.Method, in.ContentEncoding = "GET", "" // a picker reads no body of it
	}
	m.asked = true
	c, err := m.pick(in)
	if err == nil && c == nil {
		err = epp.Errorf(epp.Internal, "pick_missing", "internal error")
	}
	if err != nil {
		return err
	}
	m.picked, m.phase = c, routed
	at, body := c.Target()
	m.destination, m.rank = at.Address, at.Rank
	for _, e := range c.Alternatives() {
		if at.Rank == e.Rank { // the header of the rank goes along to each of them
			m.destination += "," + e.Address
		}
	}
	if readable && !same(body, m.body) {
		m.body, m.end.Rewritten = body, true
		m.decoded = in.ContentEncoding != "" && c.Encoding() == ""
	}
	return nil
}

// same reports whether two slices are one.
func same(a, b []byte) bool { return len(a) == len(b) && (len(a) == 0 || &a[0] == &b[0]) }

// sight is what of the answer will be seen. What a gateway that announced
// nothing does with a buffered request's answer is not known: its bytes may come.
func (m *machine) sight() picker.Sight {
	switch {
	case m.response == streamed && !m.announced, m.response == unannounced:
		return picker.SeesEnd
	case m.response == none && m.request == duplex, m.response == partial:
		return picker.SeesHeaders
	case m.response == none:
		return picker.SeesEnd
	}
	return picker.SeesAll
}

// answerBody sends the decision and, where the gateway does not keep it, the
// body. last is false where trailers follow.
func (m *machine) answerBody(last bool) {
	if m.request == duplex {
		m.send(requestHeadersAnswer(m.mutation(true), true), m.destination)
		if len(m.body) > 0 || last {
			m.out = appendChunks(m.out, m.body, last)
		}
	} else {
		change := m.mutation(false)
		var body []byte
		if m.end.Rewritten {
			body = m.body
			// Envoy refuses a changed body whose length it was not told.
			change.SetHeaders = append(change.SetHeaders, header("content-length", strconv.Itoa(len(body))))
		}
		m.send(requestBodyAnswer(change, body), m.destination)
	}
	m.body = nil // the pick has what it needs of it
}

// refuse answers the client with an error of ours.
func (m *machine) refuse(err error) {
	e := epp.AsError(err)
	m.phase, m.body = closed, nil
	m.end.Refused, m.end.Err = e.Reason, e
	m.send(refusal(e, m.id), "")
}

func (m *machine) responseHeaders(h *extprocv3.HttpHeaders, r *extprocv3.ProcessingRequest) error {
	// Without a pick the answer is the gateway's own, to a request that it
	// refused before its body was through, or before we heard of it.
	if m.phase >= answering {
		return m.outOfOrder("response headers")
	}
	if m.response == unannounced {
		m.response = streamed
	}
	m.phase, m.body = answering, nil
	code, contentType, contentEncoding := readResponseHeaders(h.GetHeaders().GetHeaders())
	m.end.Status = code
	m.whole = contentType != "" && !strings.HasPrefix(contentType, "text/event-stream")
	if m.picked != nil {
		if address := servedBy(r); address != "" {
			m.end.Elsewhere = !listed(m.destination, address)
			m.picked.Served(address)
		}
		m.picked.ResponseHeader(code, contentType, contentEncoding)
	}
	m.send(responseHeadersAnswer(m.id), "")
	if h.GetEndOfStream() {
		m.finish()
	}
	return nil
}

// listed reports whether a comma-separated list holds the address.
func listed(list, address string) bool {
	for a := range strings.SplitSeq(list, ",") {
		if a == address {
			return true
		}
	}
	return false
}

func (m *machine) responseBody(b *extprocv3.HttpBody) error {
	if m.phase != answering || m.response == none {
		return m.outOfOrder("response body")
	}
	if m.picked != nil {
		m.picked.ResponseBody(b.GetBody())
	}
	m.send(responseBodyAnswer(b, m.response == duplex), "")
	if b.GetEndOfStream() {
		m.finish()
	}
	return nil
}

func (m *machine) responseTrailers() error {
	if m.phase != answering {
		return m.outOfOrder("response trailers")
	}
	m.send(responseTrailersAnswer(), "")
	m.finish()
	return nil
}

// finish ends the pick of a request whose answer was seen to its end.
func (m *machine) finish() {
	m.phase = finished
	m.endPick(picker.Served)
}

func (m *machine) endPick(o picker.Outcome) {
	if m.picked != nil && !m.ended {
		m.ended = true
		m.end.Outcome = o.String()
		m.picked.End(o)
	}
}

// cause says what ended a stream.
type cause uint8

const (
	byGateway cause = iota // it closed the stream in order
	canceled               // it reset the stream, or its connection broke
	byUs                   // shutdown, or an error of ours or of the gateway's
)

// over tells that the stream has ended, and returns what became of it. It ends
// the pick where that has not happened yet.
func (m *machine) over(c cause) StreamEnd {
	answered := m.phase >= answering
	switch sight := m.sight(); {
	case c == byUs:
		m.endPick(picker.Undelivered)
	case answered && (sight == picker.SeesHeaders || sight == picker.SeesEnd && (c == byGateway || m.whole)):
		m.endPick(picker.Served)
	default:
		m.endPick(picker.ClientGone)
	}
	if (m.phase == held || m.phase == collecting) && c != byUs {
		m.end.Outcome = picker.ClientGone.String()
		in := m.in
		in.ID = m.id
		m.gone(in)
	}
	m.end.RequestMode, m.end.ResponseMode = m.request.String(), m.response.String()
	if m.end.Outcome == "" {
		m.end.Outcome = "unpicked"
		if m.end.Refused != "" {
			m.end.Outcome = "refused"
		}
	}
	return m.end
}

// send adds one message to out. A destination goes with it as metadata.
func (m *machine) send(r *extprocv3.ProcessingResponse, destination string) {
	if destination != "" {
		r.DynamicMetadata = lbMetadata(destination)
	}
	m.out = append(m.out, r)
}
