package main

import (
	"context"
	"errors"
	"io"
	"net"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	filterv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
)

// TestFloorAnswersAsModesAsk: in BUFFERED the body's answer names the endpoint,
// in FULL_DUPLEX the headers' does, and the body comes back.
func TestFloorAnswersAsModesAsk(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := newServer("10.0.0.7:8000")
	served := make(chan error, 1)
	go func() { served <- s.Serve(l) }()
	defer func() {
		s.Stop()
		if err := <-served; err != nil {
			t.Error(err)
		}
	}()
	conn, err := grpc.NewClient(l.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	for mode, want := range map[filterv3.ProcessingMode_BodySendMode][]string{
		filterv3.ProcessingMode_BUFFERED:             {"headers", "body to 10.0.0.7:8000"},
		filterv3.ProcessingMode_FULL_DUPLEX_STREAMED: {"headers to 10.0.0.7:8000", `body "a"`, `body "b", the end`},
	} {
		stream, err := extprocv3.NewExternalProcessorClient(conn).Process(context.Background())
		if err != nil {
			t.Fatal(err)
		}
		send := func(r *extprocv3.ProcessingRequest) {
			if err := stream.Send(r); err != nil {
				t.Fatal(err)
			}
		}
		send(&extprocv3.ProcessingRequest{
			ProtocolConfig: &extprocv3.ProtocolConfiguration{RequestBodyMode: mode},
			Request:        &extprocv3.ProcessingRequest_RequestHeaders{RequestHeaders: &extprocv3.HttpHeaders{Headers: &corev3.HeaderMap{}}},
		})
		body := func(text string, end bool) {
			send(&extprocv3.ProcessingRequest{Request: &extprocv3.ProcessingRequest_RequestBody{RequestBody: &extprocv3.HttpBody{Body: []byte(text), EndOfStream: end}}})
		}
		if mode == filterv3.ProcessingMode_FULL_DUPLEX_STREAMED {
			body("a", false)
			body("b", true)
		} else {
			body("ab", true)
		}
		for _, w := range want {
			in, err := stream.Recv()
			if err != nil {
				t.Fatal(err)
			}
			if got := said(in); got != w {
				t.Errorf("%v: %s, want %s", mode, got, w)
			}
		}
		if err := stream.CloseSend(); err != nil {
			t.Fatal(err)
		}
		if _, err := stream.Recv(); !errors.Is(err, io.EOF) {
			t.Errorf("%v: the stream's end: %v", mode, err)
		}
	}
}

// said is what an answer says, in words.
func said(in *extprocv3.ProcessingResponse) string {
	text, common := "headers", in.GetRequestHeaders().GetResponse()
	if b := in.GetRequestBody(); b != nil {
		text, common = "body", b.GetResponse()
		if s := common.GetBodyMutation().GetStreamedResponse(); s != nil {
			text += ` "` + string(s.Body) + `"`
			if s.EndOfStream {
				text += ", the end"
			}
		}
	}
	for _, h := range common.GetHeaderMutation().GetSetHeaders() {
		text += " to " + string(h.Header.RawValue)
	}
	return text
}
