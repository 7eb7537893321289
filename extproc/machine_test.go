package extproc

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"testing"

	filterv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	"epp.internal/epp"
	"epp.internal/epp/epptest"
	"epp.internal/epp/picker"
)

// fatal is what *testing.T and *rapid.T share.
type fatal interface{ Fatalf(string, ...any) }

// witness watches a machine's answers and fails where one breaks what holds for
// every stream.
type witness struct {
	t       fatal
	m       *machine
	rides   []*ride
	gone    []picker.Incoming
	refuse  bool // the pick refuses
	rewrite bool // the pick renames the model

	in, out             bytes.Buffer // the request's body, in full duplex
	answerIn, answerOut bytes.Buffer // the answer's body, in full duplex
	decisions           int          // answers that name an endpoint
	immediate           bool
	requestEnd          bool // the last piece of the request's body was sent back
	held                int
}

const witnessLimit = 100

func newWitness(t fatal) *witness {
	w := &witness{t: t}
	w.m = &machine{
		id: "ID", maxBody: witnessLimit, pick: w.pick, request: unannounced, response: unannounced,
		hold: func(n int) bool { w.held += n; return true },
		gone: func(in picker.Incoming) { w.gone = append(w.gone, in) },
	}
	return w
}

func (w *witness) pick(in picker.Incoming) (Carried, error) {
	if w.refuse {
		return nil, epp.Errorf(epp.Saturated, "all_full", "full")
	}
	r := newRide(in, "10.0.0.1:8000")
	if w.rewrite && in.Body != nil {
		r.body = append([]byte("rewritten "), in.Body...)
	}
	w.rides = append(w.rides, r)
	return r, nil
}

// play feeds one message and checks the answers to it.
func (w *witness) play(r *extprocv3.ProcessingRequest) error {
	err := w.m.feed(r)
	if err == nil {
		w.in.Write(r.GetRequestBody().GetBody())
		w.answerIn.Write(r.GetResponseBody().GetBody())
	}
	w.check()
	return err
}

func (w *witness) check() {
	if w.held > witnessLimit+1<<20 {
		w.t.Fatalf("%d bytes held", w.held)
	}
	for _, r := range w.m.out {
		if w.immediate {
			w.t.Fatalf("an answer after the immediate one: %v", r)
		}
		w.immediate = r.GetImmediateResponse() != nil
		common := r.GetRequestHeaders().GetResponse()
		if b := r.GetRequestBody(); b != nil {
			common = b.GetResponse()
			if s := b.GetResponse().GetBodyMutation().GetStreamedResponse(); s != nil {
				if w.m.request != duplex || w.requestEnd || len(s.Body) > chunkBytes {
					w.t.Fatalf("a piece of %d bytes in %v, end before: %v", len(s.Body), w.m.request, w.requestEnd)
				}
				w.out.Write(s.Body)
				w.requestEnd = s.EndOfStream
			}
		}
		if s := r.GetResponseBody().GetResponse().GetBodyMutation().GetStreamedResponse(); s != nil {
			if w.m.response != duplex {
				w.t.Fatalf("a piece of the answer in %v", w.m.response)
			}
			w.answerOut.Write(s.Body)
		}
		w.checkChange(common.GetHeaderMutation(), r)
	}
	if w.m.response == duplex && !bytes.Equal(w.answerIn.Bytes(), w.answerOut.Bytes()) {
		w.t.Fatalf("answer in %q, out %q", w.answerIn.Bytes(), w.answerOut.Bytes())
	}
}

// checkChange checks what one answer does to the request's headers.
func (w *witness) checkChange(change *extprocv3.HeaderMutation, r *extprocv3.ProcessingResponse) {
	for _, h := range change.GetSetHeaders() {
		name := h.GetHeader().GetKey()
		if slices.Contains(change.GetRemoveHeaders(), name) {
			w.t.Fatalf("%s is both set and removed", name)
		}
		if name == DestinationHeader {
			w.decisions++
			lb := r.GetDynamicMetadata().GetFields()[lbNamespace].GetStructValue().GetFields()[DestinationHeader].GetStringValue()
			if got := string(h.GetHeader().GetRawValue()); got != "10.0.0.1:8000" || lb != got {
				w.t.Fatalf("destination %q, metadata %q", got, lb)
			}
		}
	}
	for _, name := range change.GetRemoveHeaders() {
		if !picker.IsControl(name) {
			w.t.Fatalf("%s is removed", name)
		}
	}
}

// end ends the stream and checks that nothing is left.
func (w *witness) end(c cause) StreamEnd {
	end := w.m.over(c)
	if len(w.rides) > 1 || w.decisions > len(w.rides) {
		w.t.Fatalf("%d picks, %d answers that name an endpoint", len(w.rides), w.decisions)
	}
	if alone := end.Outcome == "client_gone" && len(w.rides) == 0; alone != (len(w.gone) == 1) || len(w.gone) > 1 || alone && w.gone[0].ID != "ID" {
		w.t.Fatalf("outcome %s with %d picks, gone %+v", end.Outcome, len(w.rides), w.gone)
	}
	for _, r := range w.rides { // End panics on a second call
		select {
		case o := <-r.outcome:
			if end.Outcome != o.String() {
				w.t.Fatalf("the pick ended as %v, the stream as %s", o, end.Outcome)
			}
		default:
			w.t.Fatalf("the pick was not ended")
		}
	}
	if w.requestEnd && !w.rewrite && !bytes.Equal(w.in.Bytes(), w.out.Bytes()) {
		w.t.Fatalf("request in %q, out %q", w.in.Bytes(), w.out.Bytes())
	}
	return end
}

// messageOf makes a message of an operation: any kind, any flag.
func messageOf(op byte, payload []byte) *extprocv3.ProcessingRequest {
	end := op&8 != 0
	switch op & 7 {
	case 0:
		return epptest.RequestHeaders(end, ":method", "POST", ":path", "/v1/chat/completions", "x-request-id", string(payload),
			DestinationHeader, "6.6.6.6:1", "x-slo-ttft-ms", "1")
	case 1, 2:
		return epptest.RequestBody(payload, end)
	case 3:
		return epptest.RequestTrailers()
	case 4:
		return epptest.ResponseHeaders(end, ":status", string(payload), "content-type", "text/event-stream")
	case 5, 6:
		return epptest.ResponseBody(payload, end)
	}
	return epptest.ResponseTrailers()
}

// Whatever a gateway sends, in whatever order, in whatever mode: nothing
// panics, what was picked is ended once, and no byte is lost or made up.
func FuzzMachine(f *testing.F) {
	f.Add([]byte{byte(buffered), byte(none), 0, 0, 9, 4})
	f.Add([]byte{byte(duplex), byte(duplex), 0, 0, 1, 1, 9, 4, 5, 13})
	f.Add([]byte{byte(duplex), byte(none), 0, 0, 1, 3, 4, 7})
	f.Add([]byte{255, 255, 0, 0, 16, 9, 4, 5, 7})
	f.Add([]byte{255, 255, 1, 8, 4, 4})
	f.Add([]byte{byte(buffered), byte(streamed), 2, 0, 4, 13, 3})
	f.Add([]byte{byte(streamed), byte(partial), 3, 8, 4, 5, 32})
	f.Fuzz(func(t *testing.T, ops []byte) {
		if len(ops) < 3 {
			return
		}
		w := newWitness(t)
		w.refuse, w.rewrite = ops[2]&1 != 0, ops[2]&2 != 0
		for i, op := range ops[3:] {
			switch {
			case op&16 != 0 && w.m.awaiting:
				w.m.tick()
				w.check()
				continue
			case op&32 != 0:
				w.end(cause(op % 3))
				return
			}
			r := messageOf(op, bytes.Repeat([]byte{byte('0' + i%10)}, int(op>>4)*5))
			if i == 0 && ops[0] != 255 {
				epptest.Announce(r, filterv3.ProcessingMode_BodySendMode(ops[0]), filterv3.ProcessingMode_BodySendMode(ops[1]))
			}
			if w.play(r) != nil || w.m.phase == closed {
				w.end(byUs)
				return
			}
		}
		w.end(cause(len(ops) % 3))
	})
}

// Whatever bytes decode to messages, they do no harm.
func FuzzMessage(f *testing.F) {
	for _, r := range []*extprocv3.ProcessingRequest{
		epptest.Announce(epptest.RequestHeaders(true, ":path", "/v1/models", ":method", "GET"), modeBuffered, modeNone),
		epptest.WithMetadata(epptest.RequestHeaders(true, "content-length", "-1", "", ""), subsetNamespace, subsetKey, subsetValue("(a,b,c)")),
		epptest.WithMetadata(epptest.ResponseHeaders(true, ":status", "2e2"), lbNamespace, servedKey, subsetValue("#")),
		{},
	} {
		b, err := proto.Marshal(r)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Add([]byte("\x12\x04\x0a\x02\x0a\x00"))
	f.Fuzz(func(t *testing.T, b []byte) {
		var r extprocv3.ProcessingRequest
		if proto.Unmarshal(b, &r) != nil {
			return
		}
		w := newWitness(t)
		if w.play(&r) == nil && w.m.phase != closed {
			w.play(epptest.ResponseHeaders(false, ":status", "200"))
			w.play(&r)
		}
		w.end(byGateway)
	})
}

// exchangeModel is a gateway that keeps to the protocol, and what must come of
// its stream, told without a state machine.
type exchangeModel struct {
	request, response filterv3.ProcessingMode_BodySendMode
	body              [][]byte // pieces
	bodyless          bool
	trailers          bool
	answer            [][]byte
	json              bool // the answer is no stream
	steps             int  // messages sent before the stream ends
	how               cause
}

func drawExchange(t *rapid.T) exchangeModel {
	pieces := rapid.SliceOfN(rapid.SliceOfN(rapid.Byte(), 0, 12), 1, 5)
	return exchangeModel{
		request:  rapid.SampledFrom([]filterv3.ProcessingMode_BodySendMode{modeBuffered, modeDuplex}).Draw(t, "request"),
		response: rapid.SampledFrom([]filterv3.ProcessingMode_BodySendMode{modeNone, modeStreamed, modeDuplex}).Draw(t, "response"),
		body:     pieces.Draw(t, "body"), answer: pieces.Draw(t, "answer"),
		bodyless: rapid.IntRange(0, 5).Draw(t, "bodyless") == 0,
		trailers: rapid.Bool().Draw(t, "trailers"),
		json:     rapid.Bool().Draw(t, "json"),
		steps:    rapid.IntRange(0, 20).Draw(t, "steps"),
		how:      cause(rapid.IntRange(0, 2).Draw(t, "how")),
	}
}

// messages are all that the gateway would send.
func (x *exchangeModel) messages() []*extprocv3.ProcessingRequest {
	all := []*extprocv3.ProcessingRequest{epptest.Announce(
		epptest.RequestHeaders(x.bodyless, ":method", "POST", ":path", "/v1/completions"), x.request, x.response)}
	if !x.bodyless {
		body := x.body
		if x.request == modeBuffered {
			body = [][]byte{bytes.Join(body, nil)}
		}
		for i, piece := range body {
			all = append(all, epptest.RequestBody(piece, i == len(body)-1 && !x.trailers))
		}
		if x.trailers {
			all = append(all, epptest.RequestTrailers())
		}
	}
	contentType := "text/event-stream"
	if x.json {
		contentType = "application/json"
	}
	all = append(all, epptest.ResponseHeaders(false, ":status", "200", "content-type", contentType))
	if x.response != modeNone {
		for i, piece := range x.answer {
			all = append(all, epptest.ResponseBody(piece, i == len(x.answer)-1))
		}
	}
	return all
}

// outcome is what the stream of the messages sent must come to.
func (x *exchangeModel) outcome(sent []*extprocv3.ProcessingRequest, whole bool) string {
	last := func(is func(*extprocv3.ProcessingRequest) bool) bool { return slices.ContainsFunc(sent, is) }
	bodyThrough := last(func(r *extprocv3.ProcessingRequest) bool {
		b := r.GetRequestBody()
		return b != nil && (b.EndOfStream || x.request == modeBuffered) || r.GetRequestTrailers() != nil || x.bodyless && r.GetRequestHeaders() != nil
	})
	answered := last(func(r *extprocv3.ProcessingRequest) bool { return r.GetResponseHeaders() != nil })
	switch {
	case !bodyThrough && (len(sent) == 0 || answered || x.how == byUs):
		return "unpicked"
	case !bodyThrough:
		return "client_gone"
	case x.response != modeNone && whole:
		return "served"
	case x.how == byUs:
		return "undelivered"
	case x.response != modeNone, !answered:
		return "client_gone"
	case x.request == modeDuplex, x.how == byGateway, x.json:
		return "served"
	}
	return "client_gone"
}

// A gateway that keeps to the protocol and ends wherever it likes gets the
// outcome that the table in the package's documentation says.
func TestOutcomes(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		x := drawExchange(t)
		all := x.messages()
		sent := all[:min(x.steps, len(all))]
		w := newWitness(t)
		for _, r := range sent {
			if err := w.play(r); err != nil {
				t.Fatalf("%v: %v", r, err)
			}
		}
		whole := len(sent) == len(all)
		end := w.end(x.how)
		if want := x.outcome(sent, whole); end.Outcome != want {
			t.Fatalf("%d of %d messages: outcome %s, want %s", len(sent), len(all), end.Outcome, want)
		}
		if whole && x.request == modeDuplex && !x.bodyless && !bytes.Equal(w.out.Bytes(), bytes.Join(x.body, nil)) {
			t.Fatalf("request in %q, out %q", bytes.Join(x.body, nil), w.out.Bytes())
		}
	})
}

// A header of the client's that steers is removed in every mode, whatever its
// case and however often it is there.
func TestControlHeaders(t *testing.T) {
	for _, name := range []string{
		"X-Gateway-Destination-Endpoint-Subset", "x-gateway-destination-endpoint-fallback", "x-gateway-inference-fairness-id",
		"x-gateway-model-name-rewrite", "X-LLM-D-Inference-Objective", "x-prefiller-host-port", "x-encoder-hosts-ports",
		"x-data-parallel-host-port", "x-kv-cache-source-host-port", "x-slo-ttft-ms", "x-slo-tpot-ms", "x-session-token",
		"EPP-Profile", "test-epp-endpoint-selection", "X-Data-Parallel-Rank",
	} {
		for _, request := range []filterv3.ProcessingMode_BodySendMode{modeBuffered, modeDuplex, modeNone} {
			w := newWitness(t)
			var removed []string
			for _, r := range []*extprocv3.ProcessingRequest{
				epptest.Announce(epptest.RequestHeaders(false, name, "1", ":path", "/v1/completions", name, "2", "x-other", "3"), request, modeNone),
				epptest.RequestBody([]byte("{}"), true),
			} {
				if request == modeNone && r.GetRequestBody() != nil {
					continue
				}
				if err := w.play(r); err != nil {
					t.Fatal(err)
				}
				for _, out := range w.m.out {
					removed = append(removed, out.GetRequestHeaders().GetResponse().GetHeaderMutation().GetRemoveHeaders()...)
					removed = append(removed, out.GetRequestBody().GetResponse().GetHeaderMutation().GetRemoveHeaders()...)
				}
			}
			if want := []string{strings.ToLower(name)}; fmt.Sprint(removed) != fmt.Sprint(want) {
				t.Errorf("%s in %v: removed %q, want %q", name, request, removed, want)
			}
			w.end(byGateway)
		}
	}
}

// The rank behind the picked address goes along in a header of its own, which is
// set and not removed as well where a client had sent one. An alternative of
// another rank could not be told so, and is left out.
func TestRankHeader(t *testing.T) {
	at := newRide(picker.Incoming{}, "10.0.0.7:8000", "10.0.0.8:8000", "10.0.0.9:8000")
	at.endpoints[0].Rank, at.endpoints[1].Rank, at.endpoints[2].Rank = "1", "0", "1"
	m := &machine{
		id: "ID", maxBody: witnessLimit, request: unannounced, response: unannounced,
		pick: func(picker.Incoming) (Carried, error) { return at, nil },
		hold: func(int) bool { return true },
		gone: func(in picker.Incoming) { t.Errorf("gone: %+v", in) },
	}
	if err := m.feed(epptest.Announce(epptest.RequestHeaders(true, "X-Data-Parallel-Rank", "7"), modeBuffered, modeNone)); err != nil {
		t.Fatal(err)
	}
	set := map[string]string{}
	for _, out := range m.out {
		change := out.GetRequestHeaders().GetResponse().GetHeaderMutation()
		for _, h := range change.GetSetHeaders() {
			set[h.GetHeader().GetKey()] = string(h.GetHeader().GetRawValue())
		}
		if len(change.GetRemoveHeaders()) > 0 {
			t.Errorf("removed %q", change.GetRemoveHeaders())
		}
	}
	if set[epp.RankHeader] != "1" || set[DestinationHeader] != "10.0.0.7:8000,10.0.0.9:8000" {
		t.Errorf("set %q", set)
	}
}
