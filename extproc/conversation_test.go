package extproc

import (
	"bytes"
	"fmt"
	"strconv"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	filterv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"google.golang.org/protobuf/types/known/structpb"

	"epp.internal/epp"
	"epp.internal/epp/epptest"
	"epp.internal/epp/picker"
)

// TestConversations plays testdata/conversations: each line of input is
// a message of the gateway; below it stand the service's answers and, after
// "pick", what the pick was asked and told.
func TestConversations(t *testing.T) {
	datadriven.Walk(t, "testdata/conversations", func(t *testing.T, path string) {
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			if d.Cmd != "stream" {
				d.Fatalf(t, "unknown command %q", d.Cmd)
			}
			c := newConversation(t, d)
			for line := range strings.SplitSeq(d.Input, "\n") {
				c.say(line)
			}
			return c.out.String()
		})
	})
}

// conversation is a machine, the pick behind it, and all that they say.
type conversation struct {
	t       *testing.T
	m       *machine
	out     bytes.Buffer
	addrs   []string
	rewrite string     // the body in its place, or empty
	refuse  *epp.Error // in place of a pick
}

func newConversation(t *testing.T, d *datadriven.TestData) *conversation {
	c := &conversation{t: t, addrs: []string{"10.0.0.1:8000"}}
	maxBody, maxBodies := 1<<20, 1<<30
	for _, arg := range d.CmdArgs {
		switch v := strings.Join(arg.Vals, ","); arg.Key {
		case "endpoints":
			c.addrs = arg.Vals
		case "rewrite":
			c.rewrite = v
		case "max-body":
			maxBody, _ = strconv.Atoi(v)
		case "max-bodies":
			maxBodies, _ = strconv.Atoi(v)
		case "refuse":
			c.refuse = map[string]*epp.Error{
				"saturated":   epp.Errorf(epp.Saturated, "all_full", "every healthy endpoint is full (maxQueue 20)"),
				"unavailable": epp.Errorf(epp.Unavailable, "pool_empty", "no endpoint: the pool is empty"),
				"not-found":   epp.Errorf(epp.NotFound, "model_unknown", "model %q does not exist", "x"),
				"bad":         epp.Errorf(epp.BadRequest, "json_cut_off", "the body ends within a string"),
				"encoding":    epp.Errorf(epp.UnsupportedEncoding, "encoding_unsupported", "content-encoding \"gzip\": send the body uncompressed"),
				"internal":    epp.AsError(fmt.Errorf("secret of 10.0.0.7")),
			}[v]
		default:
			d.Fatalf(t, "unknown argument %q", arg.Key)
		}
	}
	held := 0
	c.m = &machine{
		id: "ID", maxBody: maxBody, pick: c.pick, request: unannounced, response: unannounced,
		hold: func(n int) bool { held += n; return held <= maxBodies },
		gone: func(in picker.Incoming) { fmt.Fprintf(&c.out, "  gone   %s %q id=%s\n", in.Method, in.Path, in.ID) },
	}
	return c
}

func (c *conversation) pick(in picker.Incoming) (Carried, error) {
	fmt.Fprintf(&c.out, "  pick   %s %q id=%s client=%q encoding=%q sight=%v body=%s", in.Method, in.Path, in.ID, in.ClientID, in.ContentEncoding, in.Sight, sketch(in.Body))
	if in.Subset != nil {
		fmt.Fprintf(&c.out, " subset=%q", in.Subset)
	}
	c.out.WriteByte('\n')
	if c.refuse != nil {
		return nil, c.refuse
	}
	r := newRide(in, c.addrs...)
	if c.rewrite != "" {
		r.body, r.encoding = []byte(c.rewrite), ""
	}
	return &spoken{ride: r, out: &c.out}, nil
}

// spoken is a ride that tells what it is told.
type spoken struct {
	*ride
	out *bytes.Buffer
}

func (s *spoken) Served(address string) { fmt.Fprintf(s.out, "  pick   served by %s\n", address) }

func (s *spoken) ResponseHeader(status int, contentType, contentEncoding string) {
	fmt.Fprintf(s.out, "  pick   answered %d %q %q\n", status, contentType, contentEncoding)
}

func (s *spoken) ResponseBody(chunk []byte) { fmt.Fprintf(s.out, "  pick   saw %s\n", sketch(chunk)) }

func (s *spoken) End(o picker.Outcome) {
	s.ride.End(o)
	fmt.Fprintf(s.out, "  pick   ended: %v\n", o)
}

// say plays one line.
func (c *conversation) say(line string) {
	head, body, _ := strings.Cut(line, " | ")
	words := strings.Fields(head)
	fmt.Fprintln(&c.out, words[0])
	switch words[0] {
	case "tick":
		if !c.m.awaiting {
			c.t.Fatalf("%q: the machine awaits nothing", line)
		}
		c.m.tick()
	case "eof", "canceled", "shutdown":
		why := map[string]cause{"eof": byGateway, "canceled": canceled, "shutdown": byUs}[words[0]]
		end := c.m.over(why)
		fmt.Fprintf(&c.out, "  stream %s, %s/%s, status %d, %d messages", end.Outcome, end.RequestMode, end.ResponseMode, end.Status, end.Messages)
		if end.Elsewhere {
			c.out.WriteString(", elsewhere")
		}
		if end.Refused != "" {
			fmt.Fprintf(&c.out, ", refused %s", end.Refused)
		}
		c.out.WriteByte('\n')
		return
	default:
		if err := c.m.feed(message(c.t, words, body)); err != nil {
			for _, r := range c.m.out {
				show(&c.out, r)
			}
			fmt.Fprintf(&c.out, "  status %v\n", err)
			return
		}
	}
	for _, r := range c.m.out {
		show(&c.out, r)
	}
	if c.m.awaiting {
		c.out.WriteString("  wait\n")
	}
	if c.m.phase == closed {
		c.out.WriteString("  close\n")
	}
}

// message makes the message of a line.
func message(t *testing.T, words []string, body string) *extprocv3.ProcessingRequest {
	end := false
	var headers []string
	if n, ok := strings.CutPrefix(body, "*"); ok {
		size, _ := strconv.Atoi(n)
		body = strings.Repeat("x", size)
	}
	for _, w := range words[1:] {
		switch name, v, _ := strings.Cut(w, "="); {
		case w == "end":
			end = true
		case w == "silent", name == "modes", name == "subset", name == "served", name == "upstream":
		default:
			headers = append(headers, name, strings.ReplaceAll(v, "_", " "))
		}
	}
	var r *extprocv3.ProcessingRequest
	switch words[0] {
	case "request-headers":
		r = epptest.RequestHeaders(end, headers...)
	case "request-body":
		r = epptest.RequestBody([]byte(body), end)
	case "request-trailers":
		r = epptest.RequestTrailers()
	case "response-headers":
		r = epptest.ResponseHeaders(end, headers...)
	case "response-body":
		r = epptest.ResponseBody([]byte(body), end)
	case "response-trailers":
		r = epptest.ResponseTrailers()
	case "empty":
		r = &extprocv3.ProcessingRequest{}
	default:
		t.Fatalf("unknown message %q", words[0])
	}
	for _, w := range words[1:] {
		switch name, v, _ := strings.Cut(w, "="); name {
		case "silent":
			r.ObservabilityMode = true
		case "modes":
			request, response, _ := strings.Cut(v, "/")
			modes := filterv3.ProcessingMode_BodySendMode_value
			epptest.Announce(r, filterv3.ProcessingMode_BodySendMode(modes[request]), filterv3.ProcessingMode_BodySendMode(modes[response]))
		case "subset":
			epptest.WithMetadata(r, subsetNamespace, subsetKey, subsetValue(v))
		case "served":
			epptest.WithMetadata(r, lbNamespace, servedKey, structpb.NewStringValue(v))
		case "upstream":
			r.Attributes = map[string]*structpb.Struct{attributesKey: {Fields: map[string]*structpb.Value{upstreamKey: structpb.NewStringValue(v)}}}
		}
	}
	return r
}

// subsetValue is a list for "(a,b)", a number for "#", else the string.
func subsetValue(v string) *structpb.Value {
	list, ok := strings.CutPrefix(v, "(")
	switch {
	case v == "#":
		return structpb.NewNumberValue(7)
	case !ok:
		return structpb.NewStringValue(v)
	}
	l := &structpb.ListValue{}
	for a := range strings.SplitSeq(strings.TrimSuffix(list, ")"), ",") {
		if a != "" {
			l.Values = append(l.Values, structpb.NewStringValue(a))
		}
	}
	return structpb.NewListValue(l)
}

// show prints one answer.
func show(out *bytes.Buffer, r *extprocv3.ProcessingResponse) {
	name, common := "", (*extprocv3.CommonResponse)(nil)
	switch v := r.Response.(type) {
	case *extprocv3.ProcessingResponse_ImmediateResponse:
		i := v.ImmediateResponse
		fmt.Fprintf(out, "  answer immediate %d %s\n", i.Status.Code, i.Details)
		showChange(out, i.Headers)
		fmt.Fprintf(out, "           %s\n", bytes.TrimSpace(i.Body))
		return
	case *extprocv3.ProcessingResponse_RequestHeaders:
		name, common = "request-headers", v.RequestHeaders.Response
	case *extprocv3.ProcessingResponse_RequestBody:
		name, common = "request-body", v.RequestBody.Response
	case *extprocv3.ProcessingResponse_RequestTrailers:
		name = "request-trailers"
	case *extprocv3.ProcessingResponse_ResponseHeaders:
		name, common = "response-headers", v.ResponseHeaders.Response
	case *extprocv3.ProcessingResponse_ResponseBody:
		name, common = "response-body", v.ResponseBody.Response
	case *extprocv3.ProcessingResponse_ResponseTrailers:
		name = "response-trailers"
	}
	fmt.Fprintf(out, "  answer %s", name)
	if common.GetStatus() != extprocv3.CommonResponse_CONTINUE {
		fmt.Fprintf(out, " %v", common.GetStatus())
	}
	if common.GetClearRouteCache() {
		out.WriteString(" clear-route")
	}
	switch b := common.GetBodyMutation().GetMutation().(type) {
	case *extprocv3.BodyMutation_Body:
		fmt.Fprintf(out, " body=%s", sketch(b.Body))
	case *extprocv3.BodyMutation_StreamedResponse:
		fmt.Fprintf(out, " streamed=%s", sketch(b.StreamedResponse.Body))
		if b.StreamedResponse.EndOfStream {
			out.WriteString(" end")
		}
	}
	out.WriteByte('\n')
	showChange(out, common.GetHeaderMutation())
	for ns, s := range r.GetDynamicMetadata().GetFields() {
		for k, v := range s.GetStructValue().GetFields() {
			fmt.Fprintf(out, "           metadata %s %s: %s\n", ns, k, v.GetStringValue())
		}
	}
}

func showChange(out *bytes.Buffer, m *extprocv3.HeaderMutation) {
	for _, h := range m.GetSetHeaders() {
		how := "append"
		if h.AppendAction == corev3.HeaderValueOption_OVERWRITE_IF_EXISTS_OR_ADD && h.Header.Value == "" {
			how = "set"
		}
		fmt.Fprintf(out, "           %s %s: %s\n", how, h.Header.Key, h.Header.RawValue)
	}
	for _, name := range m.GetRemoveHeaders() {
		fmt.Fprintf(out, "           remove %s\n", name)
	}
}

// sketch prints short bytes whole, and of long ones how many there are.
func sketch(b []byte) string {
	if len(b) <= 80 {
		return strconv.Quote(string(b))
	}
	return fmt.Sprintf("(%d bytes)", len(b))
}
