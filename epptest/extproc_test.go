package epptest_test

import (
	"context"
	"net"
	"strings"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	filterv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"epp.internal/epp/epptest"
)

// parrot is a service that answers each message with the next of its answers,
// whatever was said.
type parrot struct {
	extprocv3.UnimplementedExternalProcessorServer
	answers []*extprocv3.ProcessingResponse
}

func (p parrot) Process(s extprocv3.ExternalProcessor_ProcessServer) error {
	for i := 0; ; i++ {
		if _, err := s.Recv(); err != nil {
			return nil
		}
		if i < len(p.answers) {
			s.Send(p.answers[i])
		}
	}
}

func named(address string, body *extprocv3.BodyMutation) *extprocv3.CommonResponse {
	return &extprocv3.CommonResponse{BodyMutation: body, HeaderMutation: &extprocv3.HeaderMutation{SetHeaders: []*corev3.HeaderValueOption{
		{Header: &corev3.HeaderValue{Key: "x-gateway-destination-endpoint", RawValue: []byte(address)}},
	}}}
}

func requestHeaders(r *extprocv3.CommonResponse) *extprocv3.ProcessingResponse {
	return &extprocv3.ProcessingResponse{Response: &extprocv3.ProcessingResponse_RequestHeaders{RequestHeaders: &extprocv3.HeadersResponse{Response: r}}}
}

func requestBody(r *extprocv3.CommonResponse) *extprocv3.ProcessingResponse {
	return &extprocv3.ProcessingResponse{Response: &extprocv3.ProcessingResponse_RequestBody{RequestBody: &extprocv3.BodyResponse{Response: r}}}
}

// The driver takes what Envoy takes, and refuses what Envoy calls spurious.
func TestDriver(t *testing.T) {
	const buffered, duplex = filterv3.ProcessingMode_BUFFERED, filterv3.ProcessingMode_FULL_DUPLEX_STREAMED
	streamed := &extprocv3.BodyMutation{Mutation: &extprocv3.BodyMutation_StreamedResponse{StreamedResponse: &extprocv3.StreamedBodyResponse{Body: []byte("{}"), EndOfStream: true}}}
	replaced := &extprocv3.BodyMutation{Mutation: &extprocv3.BodyMutation_Body{Body: []byte("{  }")}}
	responseHeaders := &extprocv3.ProcessingResponse{Response: &extprocv3.ProcessingResponse_ResponseHeaders{ResponseHeaders: &extprocv3.HeadersResponse{}}}
	for name, c := range map[string]struct {
		mode    filterv3.ProcessingMode_BodySendMode
		answers []*extprocv3.ProcessingResponse
		fault   string // empty: none
	}{
		"buffered":                    {buffered, []*extprocv3.ProcessingResponse{requestHeaders(nil), requestBody(named("a:1", nil)), responseHeaders}, ""},
		"full duplex":                 {duplex, []*extprocv3.ProcessingResponse{requestHeaders(named("a:1", nil)), requestBody(named("", streamed)), responseHeaders}, ""},
		"a piece while buffering":     {buffered, []*extprocv3.ProcessingResponse{requestHeaders(nil), requestBody(named("a:1", streamed))}, "spurious"},
		"a whole body in full duplex": {duplex, []*extprocv3.ProcessingResponse{requestHeaders(named("a:1", nil)), requestBody(nil)}, "spurious"},
		"headers answered with body":  {buffered, []*extprocv3.ProcessingResponse{requestBody(nil)}, "spurious"},
		"changed, without its length": {buffered, []*extprocv3.ProcessingResponse{requestHeaders(nil), requestBody(named("a:1", replaced))}, "content-length"},
		"the response unanswered":     {buffered, []*extprocv3.ProcessingResponse{requestHeaders(nil), requestBody(named("a:1", nil)), requestHeaders(nil)}, "spurious"},
	} {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		s := grpc.NewServer()
		extprocv3.RegisterExternalProcessorServer(s, parrot{answers: c.answers})
		go s.Serve(l)
		d, err := epptest.NewDriver(l.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
		if err != nil {
			t.Fatal(err)
		}
		got, err := d.Exchange(context.Background(), epptest.Exchange{RequestMode: c.mode, Headers: []string{":method", "POST"}, Body: []byte("{}")})
		switch {
		case c.fault == "" && (err != nil || got.Destination != "a:1" && c.mode == buffered || string(got.Body) != "{}"):
			t.Errorf("%s: %+v, %v", name, got, err)
		case c.fault != "" && (err == nil || !strings.Contains(err.Error(), c.fault)):
			t.Errorf("%s: %v, want one of %q", name, err, c.fault)
		}
		d.Close()
		s.Stop()
	}
}
