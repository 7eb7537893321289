package extproc

import (
	"bytes"
	"strings"
	"unicode/utf8"
	"unsafe"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	filterv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
)

// codec is gRPC's own but for the messages that every request has: their bodies
// are copied once, their headers take three allocations instead of three for each
// header. What is not plain the library reads.
type codec struct{ encoding.CodecV2 }

// newCodec wraps the codec that gRPC has registered for protocol buffers.
func newCodec() codec { return codec{encoding.GetCodecV2("proto")} }

// Unmarshal reads one message. gRPC calls it.
func (c codec) Unmarshal(data mem.BufferSlice, v any) error {
	if r, ok := v.(*extprocv3.ProcessingRequest); ok && readPlain(data, r) {
		return nil
	}
	return c.CodecV2.Unmarshal(data, v)
}

// Field numbers. Source: external_processor.proto and base.proto of Envoy's API.
const (
	requestHeadersField  = 2
	responseHeadersField = 3
	requestBodyField     = 4
	responseBodyField    = 5
	metadataField        = 8
	configField          = 11
)

// readPlain reads a message that is a body, or headers with at most the gateway's
// modes and metadata beside them, and what it gives shares no memory with data. It
// returns false, and leaves r as it was, for any other and for all that is not as
// it should be.
func readPlain(data mem.BufferSlice, r *extprocv3.ProcessingRequest) bool {
	if len(data) == 0 {
		return false
	}
	first := data[0].ReadOnlyData()
	number, _, n := protowire.ConsumeTag(first)
	switch {
	case n < 0:
		return false
	case number == requestBodyField:
		body := readBody(data, n)
		if body == nil {
			return false
		}
		r.Request = &extprocv3.ProcessingRequest_RequestBody{RequestBody: body}
		return true
	case number == responseBodyField:
		body := readBody(data, n)
		if body == nil {
			return false
		}
		r.Request = &extprocv3.ProcessingRequest_ResponseBody{ResponseBody: body}
		return true
	case len(data) > 1:
		return false
	}
	return readFields(first, r)
}

// readBody reads the HttpBody that is a message's only field, whose tag takes the
// first at bytes. In it are the bytes (0A, length), then perhaps the flag of the
// stream's end (10 01); for any other it returns nil.
func readBody(data mem.BufferSlice, at int) *extprocv3.HttpBody {
	first, total := data[0].ReadOnlyData(), data.Len()
	if first[0]&7 != byte(protowire.BytesType) {
		return nil
	}
	outer, n := protowire.ConsumeVarint(first[at:])
	if n < 0 || outer != uint64(total-at-n) || at+n == len(first) || first[at+n] != 0x0a {
		return nil
	}
	at += n + 1
	size, n := protowire.ConsumeVarint(first[at:])
	if n < 0 || size > uint64(total-at-n) {
		return nil
	}
	at += n
	body := &extprocv3.HttpBody{Body: make([]byte, size)}
	var tail [2]byte
	rest := total - at - int(size)
	if rest != 0 && rest != len(tail) {
		return nil
	}
	for from, i := 0, 0; i < len(data); i++ {
		piece := data[i].ReadOnlyData()
		if i == 0 {
			piece = piece[at:]
		}
		k := copy(body.Body[min(from, int(size)):], piece)
		copy(tail[max(0, from-int(size)):], piece[k:])
		from += len(piece)
	}
	if rest != 0 && (tail[0] != 0x10 || tail[1] > 1) {
		return nil
	}
	body.EndOfStream = rest != 0 && tail[1] == 1
	return body
}

// readFields reads a message of headers.
func readFields(b []byte, r *extprocv3.ProcessingRequest) bool {
	var got extprocv3.ProcessingRequest
	for len(b) > 0 {
		number, kind, n := protowire.ConsumeTag(b)
		if n < 0 || kind != protowire.BytesType {
			return false
		}
		field, k := protowire.ConsumeBytes(b[n:])
		if k < 0 {
			return false
		}
		b = b[n+k:]
		switch {
		case (number == requestHeadersField || number == responseHeadersField) && got.Request == nil:
			h := readHeaders(field)
			if h == nil {
				return false
			}
			if number == requestHeadersField {
				got.Request = &extprocv3.ProcessingRequest_RequestHeaders{RequestHeaders: h}
			} else {
				got.Request = &extprocv3.ProcessingRequest_ResponseHeaders{ResponseHeaders: h}
			}
		case number == metadataField && got.MetadataContext == nil:
			got.MetadataContext = &corev3.Metadata{}
			if proto.Unmarshal(field, got.MetadataContext) != nil {
				return false
			}
		case number == configField && got.ProtocolConfig == nil:
			if got.ProtocolConfig = readConfig(field); got.ProtocolConfig == nil {
				return false
			}
		default:
			return false
		}
	}
	r.Request, r.MetadataContext, r.ProtocolConfig = got.Request, got.MetadataContext, got.ProtocolConfig
	return true
}

// readConfig reads the gateway's modes, or returns nil.
func readConfig(b []byte) *extprocv3.ProtocolConfiguration {
	c := &extprocv3.ProtocolConfiguration{}
	for len(b) > 0 {
		number, v, n := consumeNumber(b)
		if n < 0 {
			return nil
		}
		b = b[n:]
		switch number {
		case 1:
			c.RequestBodyMode = filterv3.ProcessingMode_BodySendMode(int32(v))
		case 2:
			c.ResponseBodyMode = filterv3.ProcessingMode_BodySendMode(int32(v))
		case 3:
			c.SendBodyWithoutWaitingForHeaderResponse = v != 0
		default:
			return nil
		}
	}
	return c
}

// consumeNumber reads a field that is a number. n is below 0 for any other.
func consumeNumber(b []byte) (number protowire.Number, v uint64, n int) {
	number, kind, n := protowire.ConsumeTag(b)
	if n < 0 || kind != protowire.VarintType {
		return 0, 0, -1
	}
	v, k := protowire.ConsumeVarint(b[n:])
	if k < 0 {
		return 0, 0, -1
	}
	return number, v, n + k
}

// readHeaders reads HttpHeaders: a map of headers (1) and the flag of the stream's
// end (3). For any other it returns nil.
func readHeaders(b []byte) *extprocv3.HttpHeaders {
	h := &extprocv3.HttpHeaders{}
	for len(b) > 0 {
		if b[0] != 0x0a {
			number, v, n := consumeNumber(b)
			if n < 0 || number != 3 {
				return nil
			}
			h.EndOfStream = v != 0
			b = b[n:]
			continue
		}
		list, n := protowire.ConsumeBytes(b[1:])
		if n < 0 || h.Headers != nil {
			return nil
		}
		if h.Headers = readHeaderMap(list); h.Headers == nil {
			return nil
		}
		b = b[1+n:]
	}
	return h
}

// readHeaderMap reads the headers, each a key (1), a value (2) and a raw value (3).
func readHeaderMap(b []byte) *corev3.HeaderMap {
	b = bytes.Clone(b) // all keys and raw values point into this
	count := 0
	for rest := b; len(rest) > 0; count++ {
		if rest[0] != 0x0a {
			return nil
		}
		_, n := protowire.ConsumeBytes(rest[1:])
		if n < 0 {
			return nil
		}
		rest = rest[1+n:]
	}
	values, m := make([]corev3.HeaderValue, count), &corev3.HeaderMap{Headers: make([]*corev3.HeaderValue, count)}
	if count == 0 {
		m.Headers = nil
	}
	for i := range values {
		field, n := protowire.ConsumeBytes(b[1:])
		b = b[1+n:]
		m.Headers[i] = &values[i]
		for len(field) > 0 {
			text, n := protowire.ConsumeBytes(field[1:])
			if n < 0 {
				return nil
			}
			switch field[0] {
			case 1<<3 | 2:
				values[i].Key = unsafe.String(unsafe.SliceData(text), len(text))
			case 2<<3 | 2: // what is kept of it must not hold the others
				values[i].Value = strings.Clone(unsafe.String(unsafe.SliceData(text), len(text)))
			case 3<<3 | 2:
				values[i].RawValue = text[:len(text):len(text)]
			default:
				return nil
			}
			if field[0] != 3<<3|2 && !utf8.Valid(text) {
				return nil
			}
			field = field[1+n:]
		}
	}
	return m
}
