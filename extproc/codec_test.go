package extproc

import (
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	filterv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"
)

// buffers returns a message in buffers of at most n bytes, as the frames of a
// connection bring it.
func buffers(b []byte, n int) mem.BufferSlice {
	var out mem.BufferSlice
	for len(b) > 0 {
		k := min(n, len(b))
		out = append(out, mem.SliceBuffer(b[:k:k]))
		b = b[k:]
	}
	return out
}

// plainMessages are those that the codec reads by itself, and some that it leaves.
func plainMessages(t testing.TB) (plain, other [][]byte) {
	headers := &extprocv3.HttpHeaders{Headers: &corev3.HeaderMap{Headers: []*corev3.HeaderValue{
		{Key: ":path", RawValue: []byte("/v1/chat/completions")}, {Key: "x", Value: "é"}, {}, {Key: "raw", RawValue: []byte{0xff, 0}},
	}}, EndOfStream: true}
	config := &extprocv3.ProtocolConfiguration{RequestBodyMode: filterv3.ProcessingMode_FULL_DUPLEX_STREAMED, ResponseBodyMode: filterv3.ProcessingMode_NONE, SendBodyWithoutWaitingForHeaderResponse: true}
	subset, err := structpb.NewStruct(map[string]any{"a": []any{"b", 1.5}})
	if err != nil {
		t.Fatal(err)
	}
	metadata := &corev3.Metadata{FilterMetadata: map[string]*structpb.Struct{"envoy.lb.subset_hint": subset}}
	requestHeaders := &extprocv3.ProcessingRequest_RequestHeaders{RequestHeaders: headers}
	marshal := func(r *extprocv3.ProcessingRequest) []byte {
		b, err := proto.Marshal(r)
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	for _, r := range []*extprocv3.ProcessingRequest{
		{Request: requestHeaders, ProtocolConfig: config, MetadataContext: metadata},
		{Request: &extprocv3.ProcessingRequest_RequestHeaders{RequestHeaders: &extprocv3.HttpHeaders{Headers: &corev3.HeaderMap{}}}},
		{Request: &extprocv3.ProcessingRequest_ResponseHeaders{ResponseHeaders: headers}},
		{Request: &extprocv3.ProcessingRequest_RequestBody{RequestBody: &extprocv3.HttpBody{Body: []byte(chat), EndOfStream: true}}},
		{Request: &extprocv3.ProcessingRequest_ResponseBody{ResponseBody: &extprocv3.HttpBody{Body: []byte("x")}}},
	} {
		plain = append(plain, marshal(r))
	}
	for _, r := range []*extprocv3.ProcessingRequest{
		{},
		{ObservabilityMode: true, Request: requestHeaders},
		{Request: requestHeaders, Attributes: map[string]*structpb.Struct{"a": subset}},
		{Request: &extprocv3.ProcessingRequest_RequestTrailers{RequestTrailers: &extprocv3.HttpTrailers{}}},
		{Request: &extprocv3.ProcessingRequest_RequestBody{RequestBody: &extprocv3.HttpBody{EndOfStream: true}}},
		{Request: &extprocv3.ProcessingRequest_RequestBody{RequestBody: &extprocv3.HttpBody{Body: []byte("x"), GrpcMessageCompressed: true}}},
		{Request: &extprocv3.ProcessingRequest_RequestBody{RequestBody: &extprocv3.HttpBody{Body: []byte("x")}}, MetadataContext: metadata},
	} {
		other = append(other, marshal(r))
	}
	return plain, other
}

// checkPlain reads a message in buffers of n bytes both ways.
func checkPlain(t *testing.T, b []byte, n int) (plain bool) {
	t.Helper()
	var got, want extprocv3.ProcessingRequest
	plain = readPlain(buffers(b, n), &got)
	err := proto.Unmarshal(b, &want)
	switch {
	case !plain && !proto.Equal(&got, &extprocv3.ProcessingRequest{}):
		t.Fatalf("%x: left, and the message is %v", b, &got)
	case plain && err != nil:
		t.Fatalf("%x: read, the library says %v", b, err)
	case plain && !proto.Equal(&got, &want):
		t.Fatalf("%x: read %v, the library %v", b, &got, &want)
	}
	return plain
}

// The messages of every request are read here, whatever frames they came in, and
// all others by the library.
func TestCodecReadsPlainMessages(t *testing.T) {
	plain, other := plainMessages(t)
	for i, b := range plain {
		if !checkPlain(t, b, len(b)) {
			t.Errorf("message %d is left to the library", i)
		}
		for n := 1; n < len(b); n++ {
			checkPlain(t, b, n)
		}
		if body := i >= 3; body && len(b) > 16 && !checkPlain(t, b, 16) {
			t.Errorf("body %d in several buffers is left to the library", i)
		}
	}
	for i, b := range other {
		if checkPlain(t, b, max(1, len(b))) {
			t.Errorf("message %d is read as a plain one", i)
		}
	}
}

// What the codec reads is what the library reads, of any bytes.
func FuzzCodec(f *testing.F) {
	plain, other := plainMessages(f)
	for _, b := range append(plain, other...) {
		f.Add(b, len(b)/2+1)
	}
	f.Fuzz(func(t *testing.T, b []byte, n int) {
		checkPlain(t, b, max(1, n))
	})
}
