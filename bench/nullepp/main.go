// Command nullepp is the floor of what an endpoint picker can cost: an ext_proc
// service that answers every message as its body mode asks, names the same
// endpoint always, and reads nothing. What a picker takes beyond it is its own.
//
//	nullepp --listen 127.0.0.1:9002 --endpoint 127.0.0.1:8000
package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"os"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	filterv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"google.golang.org/grpc"
)

// maxMessageBytes is the longest message that is taken: a buffered body in one.
const maxMessageBytes = 64 << 20

func main() {
	listen := flag.String("listen", "127.0.0.1:9002", "address of the service")
	endpoint := flag.String("endpoint", "127.0.0.1:8000", "the endpoint that is always named")
	flag.Parse()
	if err := serve(*listen, *endpoint); err != nil {
		fmt.Fprintln(os.Stderr, "nullepp:", err)
		os.Exit(1)
	}
}

func serve(listen, endpoint string) error {
	l, err := net.Listen("tcp", listen)
	if err != nil {
		return err
	}
	return newServer(endpoint).Serve(l)
}

func newServer(endpoint string) *grpc.Server {
	s := grpc.NewServer(grpc.MaxRecvMsgSize(maxMessageBytes))
	extprocv3.RegisterExternalProcessorServer(s, &picker{mutation: &extprocv3.HeaderMutation{
		SetHeaders: []*corev3.HeaderValueOption{{
			Header:       &corev3.HeaderValue{Key: "x-gateway-destination-endpoint", RawValue: []byte(endpoint)},
			AppendAction: corev3.HeaderValueOption_OVERWRITE_IF_EXISTS_OR_ADD,
		}},
	}})
	return s
}

// picker names one endpoint.
type picker struct {
	extprocv3.UnimplementedExternalProcessorServer
	mutation *extprocv3.HeaderMutation
}

// Process answers one request's stream. In FULL_DUPLEX the body is held until its
// end, as by a picker that reads it: then the headers go out, and its chunks.
func (p *picker) Process(stream grpc.BidiStreamingServer[extprocv3.ProcessingRequest, extprocv3.ProcessingResponse]) error {
	duplex := false
	var held []*extprocv3.ProcessingResponse
	for {
		in, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if c := in.GetProtocolConfig(); c != nil {
			duplex = c.RequestBodyMode == filterv3.ProcessingMode_FULL_DUPLEX_STREAMED
		}
		var out []*extprocv3.ProcessingResponse
		decision := &extprocv3.CommonResponse{HeaderMutation: p.mutation}
		switch m := in.Request.(type) {
		case *extprocv3.ProcessingRequest_RequestHeaders:
			if !duplex {
				out = append(out, requestHeaders(nil))
			}
		case *extprocv3.ProcessingRequest_RequestBody:
			if !duplex {
				out = append(out, requestBody(decision))
				break
			}
			held = append(held, requestBody(echo(m.RequestBody)))
			if m.RequestBody.EndOfStream {
				out = append(append(out, requestHeaders(decision)), held...)
			}
		case *extprocv3.ProcessingRequest_ResponseHeaders:
			out = append(out, &extprocv3.ProcessingResponse{Response: &extprocv3.ProcessingResponse_ResponseHeaders{ResponseHeaders: &extprocv3.HeadersResponse{}}})
		case *extprocv3.ProcessingRequest_ResponseBody:
			out = append(out, &extprocv3.ProcessingResponse{Response: &extprocv3.ProcessingResponse_ResponseBody{
				ResponseBody: &extprocv3.BodyResponse{Response: echo(m.ResponseBody)}}})
		}
		for _, o := range out {
			if err := stream.Send(o); err != nil {
				return err
			}
		}
	}
}

func requestHeaders(r *extprocv3.CommonResponse) *extprocv3.ProcessingResponse {
	return &extprocv3.ProcessingResponse{Response: &extprocv3.ProcessingResponse_RequestHeaders{RequestHeaders: &extprocv3.HeadersResponse{Response: r}}}
}

func requestBody(r *extprocv3.CommonResponse) *extprocv3.ProcessingResponse {
	return &extprocv3.ProcessingResponse{Response: &extprocv3.ProcessingResponse_RequestBody{RequestBody: &extprocv3.BodyResponse{Response: r}}}
}

// echo sends a chunk back as it came.
func echo(b *extprocv3.HttpBody) *extprocv3.CommonResponse {
	return &extprocv3.CommonResponse{BodyMutation: &extprocv3.BodyMutation{Mutation: &extprocv3.BodyMutation_StreamedResponse{
		StreamedResponse: &extprocv3.StreamedBodyResponse{Body: b.Body, EndOfStream: b.EndOfStream},
	}}}
}
