package epptest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	filterv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/structpb"
)

// Driver plays the gateway towards an ext_proc service: with [Driver.Exchange]
// one that behaves, with [Driver.Open] one that sends what it likes.
type Driver struct {
	conn *grpc.ClientConn
}

// NewDriver returns a driver of the service at a gRPC target. It connects with
// the first stream.
func NewDriver(target string, opts ...grpc.DialOption) (*Driver, error) {
	conn, err := grpc.NewClient(target, opts...)
	if err != nil {
		return nil, fmt.Errorf("ext_proc driver: %w", err)
	}
	return &Driver{conn: conn}, nil
}

// Conn is the driver's connection, for the health service.
func (d *Driver) Conn() *grpc.ClientConn { return d.conn }

// Close closes the driver's connection and with it its streams.
func (d *Driver) Close() error { return d.conn.Close() }

// Open opens a stream. It lives until ctx ends or the service ends it.
func (d *Driver) Open(ctx context.Context) (*Stream, error) {
	s, err := extprocv3.NewExternalProcessorClient(d.conn).Process(ctx)
	if err != nil {
		return nil, err
	}
	return &Stream{s}, nil
}

// Stream is one ext_proc stream: one HTTP request and its answer. One goroutine
// may send while another receives.
type Stream struct {
	extprocv3.ExternalProcessor_ProcessClient
}

// Collect receives messages until the service ends the stream, and returns them
// with its error, nil for a stream that ended in order.
func (s *Stream) Collect() ([]*extprocv3.ProcessingResponse, error) {
	var all []*extprocv3.ProcessingResponse
	for {
		r, err := s.Recv()
		if errors.Is(err, io.EOF) {
			return all, nil
		}
		if err != nil {
			return all, err
		}
		all = append(all, r)
	}
}

// Call sends one message and receives one.
func (s *Stream) Call(r *extprocv3.ProcessingRequest) (*extprocv3.ProcessingResponse, error) {
	if err := s.Send(r); err != nil && !errors.Is(err, io.EOF) { // then Recv tells why
		return nil, err
	}
	return s.Recv()
}

// RequestHeaders makes a message of request headers: names and values in turn.
func RequestHeaders(end bool, namesAndValues ...string) *extprocv3.ProcessingRequest {
	return &extprocv3.ProcessingRequest{Request: &extprocv3.ProcessingRequest_RequestHeaders{RequestHeaders: httpHeaders(end, namesAndValues)}}
}

// ResponseHeaders makes a message of response headers: names and values in turn.
func ResponseHeaders(end bool, namesAndValues ...string) *extprocv3.ProcessingRequest {
	return &extprocv3.ProcessingRequest{Request: &extprocv3.ProcessingRequest_ResponseHeaders{ResponseHeaders: httpHeaders(end, namesAndValues)}}
}

func httpHeaders(end bool, namesAndValues []string) *extprocv3.HttpHeaders {
	h := &extprocv3.HttpHeaders{Headers: &corev3.HeaderMap{}, EndOfStream: end}
	for i := 0; i+1 < len(namesAndValues); i += 2 {
		h.Headers.Headers = append(h.Headers.Headers, &corev3.HeaderValue{Key: namesAndValues[i], RawValue: []byte(namesAndValues[i+1])})
	}
	return h
}

// RequestBody makes a message of a piece of the request's body.
func RequestBody(chunk []byte, end bool) *extprocv3.ProcessingRequest {
	return &extprocv3.ProcessingRequest{Request: &extprocv3.ProcessingRequest_RequestBody{RequestBody: &extprocv3.HttpBody{Body: chunk, EndOfStream: end}}}
}

// ResponseBody makes a message of a piece of the response's body.
func ResponseBody(chunk []byte, end bool) *extprocv3.ProcessingRequest {
	return &extprocv3.ProcessingRequest{Request: &extprocv3.ProcessingRequest_ResponseBody{ResponseBody: &extprocv3.HttpBody{Body: chunk, EndOfStream: end}}}
}

// RequestTrailers makes a message of empty request trailers.
func RequestTrailers() *extprocv3.ProcessingRequest {
	return &extprocv3.ProcessingRequest{Request: &extprocv3.ProcessingRequest_RequestTrailers{RequestTrailers: &extprocv3.HttpTrailers{}}}
}

// ResponseTrailers makes a message of empty response trailers.
func ResponseTrailers() *extprocv3.ProcessingRequest {
	return &extprocv3.ProcessingRequest{Request: &extprocv3.ProcessingRequest_ResponseTrailers{ResponseTrailers: &extprocv3.HttpTrailers{}}}
}

// Announce puts the body modes into a message, as Envoy does into a stream's
// first one.
func Announce(r *extprocv3.ProcessingRequest, request, response filterv3.ProcessingMode_BodySendMode) *extprocv3.ProcessingRequest {
	r.ProtocolConfig = &extprocv3.ProtocolConfiguration{RequestBodyMode: request, ResponseBodyMode: response}
	return r
}

// WithMetadata puts one value of dynamic metadata into a message: the subset
// hint of a request, the served endpoint of a response.
func WithMetadata(r *extprocv3.ProcessingRequest, namespace, key string, v *structpb.Value) *extprocv3.ProcessingRequest {
	if r.MetadataContext == nil {
		r.MetadataContext = &corev3.Metadata{FilterMetadata: map[string]*structpb.Struct{}}
	}
	in := r.MetadataContext.FilterMetadata
	if in[namespace] == nil {
		in[namespace] = &structpb.Struct{Fields: map[string]*structpb.Value{}}
	}
	in[namespace].Fields[key] = v
	return r
}

// Exchange is an HTTP request and its answer, as a gateway carries them.
type Exchange struct {
	RequestMode, ResponseMode filterv3.ProcessingMode_BodySendMode
	// Quiet leaves the announcement of the modes out, as an old Envoy does.
	Quiet bool

	Headers []string // names and values in turn, :method and :path among them
	Body    []byte   // nil: none
	// Subset, if not nil, is the subset hint.
	Subset *structpb.Value
	// ChunkBytes is how much of a body goes into one message in full duplex. 0: all.
	ChunkBytes int

	ResponseHeaders []string // default: status 200
	// Response are the pieces of the answer's body.
	Response [][]byte
	// Served, if not empty, is the address that the gateway says has answered.
	Served string
}

// Carried is what became of an [Exchange].
type Carried struct {
	// Immediate is the service's own answer; then nothing else is there but
	// what came before it.
	Immediate *extprocv3.ImmediateResponse

	// Destination is the endpoint as the header says it, Metadata as envoy.lb does.
	Destination, Metadata string
	Set                   map[string]string // request headers that were set
	Removed               []string          // request headers that were removed
	ClearRoute            bool
	Body                  []byte // as the endpoint gets it

	ResponseSet  map[string]string // response headers that were set
	ResponseBody []byte            // as the client gets it

	// Decided is how long the service took from the first message until it named
	// the endpoint.
	Decided time.Duration
}

// destinationHeader is that of the endpoint-picker protocol.
const destinationHeader = "x-gateway-destination-endpoint"

// errSpurious is what Envoy says of an answer that does not fit what it sent.
var errSpurious = errors.New("spurious message")

// Exchange carries a request and its answer as Envoy does, and checks each of
// the service's messages as Envoy does. The stream ends in order, but for full
// duplex, where Envoy cancels it.
func (d *Driver) Exchange(ctx context.Context, x Exchange) (*Carried, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	s, err := d.Open(ctx)
	if err != nil {
		return nil, err
	}
	c := &Carried{Set: map[string]string{}, ResponseSet: map[string]string{}, Body: x.Body}
	began := time.Now()
	if err := x.sendRequest(s, c); err != nil || c.Immediate != nil {
		return c, err
	}
	c.Decided = time.Since(began)
	if err := x.sendResponse(s, c); err != nil {
		return c, err
	}
	if x.RequestMode == filterv3.ProcessingMode_FULL_DUPLEX_STREAMED || x.ResponseMode == filterv3.ProcessingMode_FULL_DUPLEX_STREAMED {
		return c, nil // canceled
	}
	if err := s.CloseSend(); err != nil {
		return c, err
	}
	if more, err := s.Collect(); err != nil || len(more) > 0 {
		return c, fmt.Errorf("stream's end: %d messages more, %w", len(more), err)
	}
	return c, nil
}

func (x *Exchange) sendRequest(s *Stream, c *Carried) error {
	head := RequestHeaders(x.Body == nil, x.Headers...)
	if !x.Quiet {
		Announce(head, x.RequestMode, x.ResponseMode)
	}
	if x.Subset != nil {
		WithMetadata(head, "envoy.lb.subset_hint", destinationHeader+"-subset", x.Subset)
	}
	if x.Body != nil && x.RequestMode == filterv3.ProcessingMode_FULL_DUPLEX_STREAMED {
		return x.sendDuplex(s, c, head)
	}
	r, err := s.Call(head)
	if err != nil || c.note(r) {
		return err
	}
	if r.GetRequestHeaders() == nil {
		return fmt.Errorf("request headers: %w %T", errSpurious, r.Response)
	}
	if x.Body == nil || x.RequestMode == filterv3.ProcessingMode_NONE {
		return nil
	}
	r, err = s.Call(RequestBody(x.Body, true))
	if err != nil || c.note(r) {
		return err
	}
	change := r.GetRequestBody().GetResponse().GetBodyMutation()
	if r.GetRequestBody() == nil || change.GetStreamedResponse() != nil {
		return fmt.Errorf("request body: %w %T", errSpurious, r.Response)
	}
	if b := change.GetBody(); b != nil {
		c.Body = b
		if got := c.Set["content-length"]; got != fmt.Sprint(len(b)) {
			return fmt.Errorf("request body: changed to %d bytes with content-length %q", len(b), got)
		}
	}
	return nil
}

// sendDuplex sends headers and body without waiting and takes both back.
func (x *Exchange) sendDuplex(s *Stream, c *Carried, head *extprocv3.ProcessingRequest) error {
	if err := s.Send(head); err != nil {
		return err
	}
	for rest := x.Body; ; {
		n := len(rest)
		if x.ChunkBytes > 0 {
			n = min(n, x.ChunkBytes)
		}
		if err := s.Send(RequestBody(rest[:n], n == len(rest))); err != nil {
			break // Recv tells why
		}
		if rest = rest[n:]; len(rest) == 0 {
			break
		}
	}
	r, err := s.Recv()
	if err != nil || c.note(r) {
		return err
	}
	if r.GetRequestHeaders() == nil {
		return fmt.Errorf("request headers: %w %T", errSpurious, r.Response)
	}
	c.Body, err = s.echoed(func(r *extprocv3.ProcessingResponse) *extprocv3.BodyResponse { return r.GetRequestBody() })
	return err
}

// echoed receives the pieces of a body up to the last.
func (s *Stream) echoed(body func(*extprocv3.ProcessingResponse) *extprocv3.BodyResponse) ([]byte, error) {
	var all bytes.Buffer
	for {
		r, err := s.Recv()
		if err != nil {
			return all.Bytes(), err
		}
		piece := body(r).GetResponse().GetBodyMutation().GetStreamedResponse()
		if piece == nil {
			return all.Bytes(), fmt.Errorf("body: %w %T", errSpurious, r.Response)
		}
		all.Write(piece.Body)
		if piece.EndOfStream {
			return all.Bytes(), nil
		}
	}
}

func (x *Exchange) sendResponse(s *Stream, c *Carried) error {
	headers := x.ResponseHeaders
	if headers == nil {
		headers = []string{":status", "200"}
	}
	head := ResponseHeaders(len(x.Response) == 0, headers...)
	if x.Served != "" {
		WithMetadata(head, "envoy.lb", destinationHeader+"-served", structpb.NewStringValue(x.Served))
	}
	r, err := s.Call(head)
	if err != nil {
		return err
	}
	if r.GetResponseHeaders() == nil {
		return fmt.Errorf("response headers: %w %T", errSpurious, r.Response)
	}
	for _, h := range r.GetResponseHeaders().GetResponse().GetHeaderMutation().GetSetHeaders() {
		c.ResponseSet[h.GetHeader().GetKey()] = string(h.GetHeader().GetRawValue())
	}
	if x.ResponseMode == filterv3.ProcessingMode_NONE {
		c.ResponseBody = bytes.Join(x.Response, nil) // it passes by
		return nil
	}
	for i, chunk := range x.Response {
		r, err := s.Call(ResponseBody(chunk, i == len(x.Response)-1))
		if err != nil {
			return err
		}
		piece := r.GetResponseBody().GetResponse().GetBodyMutation().GetStreamedResponse()
		if r.GetResponseBody() == nil || (piece != nil) != (x.ResponseMode == filterv3.ProcessingMode_FULL_DUPLEX_STREAMED) {
			return fmt.Errorf("response body: %w %T", errSpurious, r.Response)
		}
		if piece != nil {
			chunk = piece.Body
		}
		c.ResponseBody = append(c.ResponseBody, chunk...)
	}
	return nil
}

// note takes from a message of the request's side what it says, and reports
// whether it ends the exchange.
func (c *Carried) note(r *extprocv3.ProcessingResponse) bool {
	if c.Immediate = r.GetImmediateResponse(); c.Immediate != nil {
		return true
	}
	common := r.GetRequestHeaders().GetResponse()
	if r.GetRequestBody() != nil {
		common = r.GetRequestBody().GetResponse()
	}
	for _, h := range common.GetHeaderMutation().GetSetHeaders() {
		c.Set[h.GetHeader().GetKey()] = string(h.GetHeader().GetRawValue())
	}
	c.Destination = c.Set[destinationHeader]
	c.Removed = append(c.Removed, common.GetHeaderMutation().GetRemoveHeaders()...)
	c.ClearRoute = c.ClearRoute || common.GetClearRouteCache()
	if lb := r.GetDynamicMetadata().GetFields()["envoy.lb"].GetStructValue(); lb != nil {
		c.Metadata = lb.GetFields()[destinationHeader].GetStringValue()
	}
	return false
}
