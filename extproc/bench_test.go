package extproc

import (
	"context"
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"epp.internal/epp"
	"epp.internal/epp/block"
	"epp.internal/epp/decision"
	"epp.internal/epp/epptest"
	"epp.internal/epp/fleet"
	"epp.internal/epp/kvindex"
	"epp.internal/epp/picker"
	"epp.internal/epp/route"
)

// floor is the least that an ext_proc service can do: it reads nothing, decides
// nothing and names one endpoint.
type floor struct {
	extprocv3.UnimplementedExternalProcessorServer
}

func (floor) Process(s extprocv3.ExternalProcessor_ProcessServer) error {
	var body []byte
	fds := false
	for {
		r, err := s.Recv()
		if err != nil {
			return nil
		}
		if c := r.GetProtocolConfig(); c != nil {
			fds = c.RequestBodyMode == modeDuplex
		}
		change := &extprocv3.CommonResponse{HeaderMutation: &extprocv3.HeaderMutation{SetHeaders: []*corev3.HeaderValueOption{
			{Header: &corev3.HeaderValue{Key: DestinationHeader, RawValue: []byte("10.0.0.1:8000")}},
		}}}
		switch v := r.Request.(type) {
		case *extprocv3.ProcessingRequest_RequestHeaders:
			if !fds {
				s.Send(requestHeadersAnswer(nil, false))
			}
		case *extprocv3.ProcessingRequest_RequestBody:
			body = append(body, v.RequestBody.Body...)
			if !v.RequestBody.EndOfStream {
				continue
			}
			if fds {
				s.Send(&extprocv3.ProcessingResponse{Response: &extprocv3.ProcessingResponse_RequestHeaders{RequestHeaders: &extprocv3.HeadersResponse{Response: change}}})
				s.Send(&extprocv3.ProcessingResponse{Response: &extprocv3.ProcessingResponse_RequestBody{RequestBody: streamedBody(body, true)}})
			} else {
				s.Send(&extprocv3.ProcessingResponse{Response: &extprocv3.ProcessingResponse_RequestBody{RequestBody: &extprocv3.BodyResponse{Response: change}}})
			}
		case *extprocv3.ProcessingRequest_ResponseHeaders:
			s.Send(&extprocv3.ProcessingResponse{Response: &extprocv3.ProcessingResponse_ResponseHeaders{ResponseHeaders: &extprocv3.HeadersResponse{}}})
		case *extprocv3.ProcessingRequest_ResponseBody:
			s.Send(responseBodyAnswer(v.ResponseBody, fds))
		}
	}
}

// nullCarried is a pick that costs nothing.
type nullCarried struct {
	at   epp.Endpoint
	body []byte
}

func (c nullCarried) Target() (epp.Endpoint, []byte)   { return c.at, c.body }
func (nullCarried) Alternatives() []epp.Endpoint       { return nil }
func (nullCarried) Encoding() string                   { return "" }
func (nullCarried) Served(string)                      {}
func (nullCarried) ResponseHeader(int, string, string) {}
func (nullCarried) ResponseBody([]byte)                {}
func (nullCarried) End(picker.Outcome)                 {}

// services are what the benchmark compares: the floor, this package alone, and
// this package with the picker, without a tokenizer.
func services(b *testing.B) map[string]func(net.Listener) (stop func()) {
	ours := func(pick func(context.Context, picker.Incoming) (Carried, error)) func(net.Listener) func() {
		return func(l net.Listener) func() {
			s := NewServer(Options{Insecure: true, Pick: pick, DrainTime: time.Nanosecond})
			go s.Serve(l)
			return func() { s.Shutdown(context.Background()) }
		}
	}
	policy, err := route.New(decision.Defaults())
	if err != nil {
		b.Fatal(err)
	}
	const key = block.Key(7)
	index := kvindex.New(kvindex.Options{Key: key})
	table := fleet.New(fleet.Options{Index: index})
	for i := range 8 {
		table.Join(epp.Endpoint{Name: fmt.Sprint(i), Address: fmt.Sprintf("10.0.0.%d:8000", i)})
	}
	return map[string]func(net.Listener) func(){
		"floor": func(l net.Listener) func() {
			s := grpc.NewServer(grpc.MaxRecvMsgSize(64 << 20))
			extprocv3.RegisterExternalProcessorServer(s, floor{})
			go s.Serve(l)
			return s.Stop
		},
		"alone": ours(func(_ context.Context, in picker.Incoming) (Carried, error) {
			return nullCarried{epp.Endpoint{Address: "10.0.0.1:8000"}, in.Body}, nil
		}),
		"picker": ours(By(picker.New(picker.Options{Fleet: table, Index: index, Policy: policy, Key: key}))),
	}
}

// BenchmarkDecision is one request and its answer, over the loopback, gateway
// and service in one process.
func BenchmarkDecision(b *testing.B) {
	for _, size := range []int{16 << 10, 220 << 10} {
		body := []byte(fmt.Sprintf(`{"model":"m","messages":[{"role":"user","content":%q}]}`, strings.Repeat("some words of a chat. ", size/22)))
		for _, x := range []epptest.Exchange{ownModes[0], ownModes[2]} {
			for _, name := range []string{"floor", "alone", "picker"} {
				b.Run(fmt.Sprintf("%dKB/%v/%s", size>>10, x.RequestMode, name), func(b *testing.B) {
					l := listen(b)
					stop := services(b)[name](l)
					defer stop()
					d, err := epptest.NewDriver(l.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
					if err != nil {
						b.Fatal(err)
					}
					defer d.Close()
					x := x
					x.Headers, x.Body = post("content-length", fmt.Sprint(len(body)), "x-request-id", "theirs"), body
					x.Response = [][]byte{[]byte(`{"usage":{"prompt_tokens":4096,"completion_tokens":1}}`)}
					b.ReportAllocs()
					b.SetParallelism(16)
					b.RunParallel(func(pb *testing.PB) {
						for pb.Next() {
							if c, err := d.Exchange(context.Background(), x); err != nil || c.Destination == "" {
								b.Errorf("%+v, %v", c, err)
								return
							}
						}
					})
				})
			}
		}
	}
}
