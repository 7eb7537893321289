package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	filterv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"google.golang.org/grpc"
)

// chunkBytes is how much of a body Envoy sends in one message of FULL_DUPLEX.
const chunkBytes = 64 << 10

// decisionHeader carries the endpoint.
const decisionHeader = "x-gateway-destination-endpoint"

// request is one request's stream, as Envoy leads it.
type request struct {
	grpc.BidiStreamingClient[extprocv3.ProcessingRequest, extprocv3.ProcessingResponse]
	destination string
}

// decide sends one request and goes through its answer. It returns how long it
// took until the message with the destination was here.
func decide(ctx context.Context, c extprocv3.ExternalProcessorClient, body []byte, id string, duplex bool) (latency time.Duration, destination string, err error) {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	began := time.Now()
	s, err := c.Process(ctx)
	if err != nil {
		return 0, "", err
	}
	r := &request{BidiStreamingClient: s}
	if duplex {
		err = r.duplex(body, id)
	} else {
		err = r.buffered(body, id)
	}
	latency = time.Since(began)
	if err == nil {
		err = r.answer(duplex)
	}
	if err == nil && r.destination == "" {
		err = errors.New("no destination")
	}
	return latency, r.destination, err
}

// buffered sends headers, waits for their answer, and sends the body whole.
func (r *request) buffered(body []byte, id string) error {
	if err := r.Send(headers(body, id, &extprocv3.ProtocolConfiguration{RequestBodyMode: filterv3.ProcessingMode_BUFFERED})); err != nil {
		return err
	}
	if err := r.receive(); err != nil {
		return err
	}
	if err := r.Send(requestBody(body, true)); err != nil {
		return err
	}
	return r.receive()
}

// duplex sends headers and chunks and takes back the headers; the chunks are for
// answer.
func (r *request) duplex(body []byte, id string) error {
	if err := r.Send(headers(body, id, &extprocv3.ProtocolConfiguration{
		RequestBodyMode: filterv3.ProcessingMode_FULL_DUPLEX_STREAMED, ResponseBodyMode: filterv3.ProcessingMode_FULL_DUPLEX_STREAMED,
	})); err != nil {
		return err
	}
	for at := 0; at < len(body); at += chunkBytes {
		end := min(len(body), at+chunkBytes)
		if err := r.Send(requestBody(body[at:end], end == len(body))); err != nil {
			return err
		}
	}
	return r.receive()
}

// answer takes what is left of the request, sends an answer and ends the stream.
func (r *request) answer(duplex bool) error {
	for duplex {
		in, err := r.Recv()
		if err != nil {
			return err
		}
		if in.GetRequestBody().GetResponse().GetBodyMutation().GetStreamedResponse().GetEndOfStream() {
			break
		}
	}
	if err := r.Send(&extprocv3.ProcessingRequest{Request: &extprocv3.ProcessingRequest_ResponseHeaders{ResponseHeaders: &extprocv3.HttpHeaders{
		Headers: headerMap(":status", "200", "content-type", "text/event-stream")}}}); err != nil {
		return err
	}
	if _, err := r.Recv(); err != nil {
		return fmt.Errorf("response headers: %w", err)
	}
	if duplex {
		if err := r.Send(&extprocv3.ProcessingRequest{Request: &extprocv3.ProcessingRequest_ResponseBody{ResponseBody: &extprocv3.HttpBody{
			Body: []byte("data: [DONE]\n\n"), EndOfStream: true}}}); err != nil {
			return err
		}
		if _, err := r.Recv(); err != nil {
			return fmt.Errorf("response body: %w", err)
		}
	}
	if err := r.CloseSend(); err != nil {
		return err
	}
	switch _, err := r.Recv(); {
	case errors.Is(err, io.EOF):
		return nil
	case err != nil:
		return fmt.Errorf("the stream's end: %w", err)
	}
	return errors.New("a message after the end")
}

// receive takes one answer, and the destination where it names one.
func (r *request) receive() error {
	in, err := r.Recv()
	if err != nil {
		return err
	}
	if im := in.GetImmediateResponse(); im != nil {
		return fmt.Errorf("immediate response: %v %s", im.GetStatus().GetCode(), im.GetBody())
	}
	common := in.GetRequestHeaders().GetResponse()
	if common == nil {
		common = in.GetRequestBody().GetResponse()
	}
	for _, h := range common.GetHeaderMutation().GetSetHeaders() {
		if h.GetHeader().GetKey() == decisionHeader {
			r.destination = string(h.GetHeader().GetRawValue())
		}
	}
	return nil
}

func headers(body []byte, id string, modes *extprocv3.ProtocolConfiguration) *extprocv3.ProcessingRequest {
	return &extprocv3.ProcessingRequest{ProtocolConfig: modes, Request: &extprocv3.ProcessingRequest_RequestHeaders{RequestHeaders: &extprocv3.HttpHeaders{
		Headers: headerMap(":method", "POST", ":path", "/v1/chat/completions", ":authority", "llm.example", ":scheme", "http",
			"content-type", "application/json", "content-length", strconv.Itoa(len(body)), "x-request-id", id, "user-agent", "extload", "accept", "*/*"),
	}}}
}

func requestBody(chunk []byte, end bool) *extprocv3.ProcessingRequest {
	return &extprocv3.ProcessingRequest{Request: &extprocv3.ProcessingRequest_RequestBody{RequestBody: &extprocv3.HttpBody{Body: chunk, EndOfStream: end}}}
}

func headerMap(pairs ...string) *corev3.HeaderMap {
	m := &corev3.HeaderMap{}
	for i := 0; i+1 < len(pairs); i += 2 {
		m.Headers = append(m.Headers, &corev3.HeaderValue{Key: pairs[i], RawValue: []byte(pairs[i+1])})
	}
	return m
}
