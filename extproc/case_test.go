package extproc

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	filterv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/structpb"

	"epp.internal/epp"
	"epp.internal/epp/block"
	"epp.internal/epp/decision"
	"epp.internal/epp/epptest"
	"epp.internal/epp/fleet"
	"epp.internal/epp/kvindex"
	"epp.internal/epp/picker"
	"epp.internal/epp/route"
)

var start = time.Date(2026, 11, 29, 12, 0, 0, 0, time.UTC)

// pool is the real picker in front of endpoints that the test plays itself. Its
// clock stands still unless the test moves it.
type pool struct {
	*house
	fleet   *fleet.Table
	members map[string]*fleet.Member
	picker  *picker.Picker

	mu      sync.Mutex // guards the following fields
	now     time.Time
	decided []*decision.Record
	ended   []picker.Ending
}

func newPool(t testing.TB, settings *decision.Settings, o Options, po picker.Options, addresses ...string) *pool {
	t.Helper()
	p := &pool{members: map[string]*fleet.Member{}, now: start}
	policy, err := route.New(settings)
	if err != nil {
		t.Fatal(err)
	}
	const key = block.Key(7)
	po.Index = kvindex.New(kvindex.Options{Key: key})
	p.fleet = fleet.New(fleet.Options{Index: po.Index, MaxRunning: settings.Load.MaxRunning})
	for i, a := range addresses {
		name := a
		if i < 26 {
			name = string(rune('a' + i))
		}
		p.members[name] = p.fleet.Join(epp.Endpoint{Name: name, Address: a})
	}
	po.Fleet, po.Key, po.Policy = p.fleet, key, policy
	po.Now = p.clock
	po.Seed = func() uint64 { return 1 }
	po.Hooks = picker.Hooks{
		Decided: func(rec *decision.Record, _ []uint64) {
			p.mu.Lock()
			defer p.mu.Unlock()
			p.decided = append(p.decided, rec.Clone())
		},
		Ended: func(e *picker.Ending) {
			p.mu.Lock()
			defer p.mu.Unlock()
			p.ended = append(p.ended, *e)
		},
	}
	p.picker = picker.New(po)
	o.Pick = By(p.picker)
	p.house = newHouse(t, o)
	return p
}

func (p *pool) clock() time.Time {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.now
}

func (p *pool) pass(d time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.now = p.now.Add(d)
}

// last is the last decision.
func (p *pool) last() *decision.Record {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.decided[len(p.decided)-1]
}

// lastEnd waits for the stream's end and returns what became of its pick.
func (p *pool) lastEnd() picker.Ending {
	<-p.ends
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.ended[len(p.ended)-1]
}

// wantRest checks that nothing is booked, without the bound having fired.
func (p *pool) wantRest() {
	p.t.Helper()
	if l := p.fleet.Ledger(); l != (fleet.Ledger{}) {
		p.t.Errorf("ledger %+v at rest", l)
	}
}

// errorOf reads an error's body, and checks that it gives nothing away.
func errorOf(t testing.TB, i *extprocv3.ImmediateResponse) (code, requestID string) {
	t.Helper()
	var b struct {
		Error struct {
			Message, Type, Code string
			RequestID           string `json:"request_id"`
		}
	}
	if err := json.Unmarshal(i.GetBody(), &b); err != nil || b.Error.Message == "" || b.Error.Type == "" {
		t.Errorf("error body %q: %v", i.GetBody(), err)
	}
	for _, secret := range []string{"10.0.0.", "10.1.", "/etc", "goroutine", ".go:"} {
		if bytes.Contains(i.GetBody(), []byte(secret)) || strings.Contains(i.GetDetails(), secret) {
			t.Errorf("an error tells %q: %s", secret, i.GetBody())
		}
	}
	return b.Error.Code, b.Error.RequestID
}

var ownModes = []epptest.Exchange{
	{RequestMode: modeBuffered, ResponseMode: modeNone},
	{RequestMode: modeBuffered, ResponseMode: modeStreamed},
	{RequestMode: modeDuplex, ResponseMode: modeDuplex},
}

const completion = `{"model":"m","prompt":[1,2,3]}`

// Query strings, a trailing slash, sub-paths and requests without a body all
// find an endpoint; a path that we don't know is the route's affair.
func TestCaseG5(t *testing.T) {
	p := newPool(t, decision.Defaults(), Options{}, picker.Options{}, "10.0.0.1:8000")
	const prompt = `{"model":"m","prompt":"x","input":"x","query":"q","documents":["d"],"max_tokens":1,"messages":[{"role":"user","content":"x"}]}`
	for _, x := range ownModes {
		for path, want := range map[string]string{
			"/v1/messages?beta=true":        "/v1/messages",
			"/v1/chat/completions/":         "/v1/chat/completions",
			"/v1/chat/completions/?a=%2F&b": "/v1/chat/completions",
			"/v1/chat/completions/render":   "/v1/chat/completions/render",
			"/v1/responses":                 "/v1/responses",
			"/v1/rerank":                    "/v1/rerank",
			"/v1/completions?":              "/v1/completions",
			"/v1/audio/speech?x=y":          "/v1/audio/speech",
		} {
			x.Headers, x.Body = []string{":method", "POST", ":path", path}, []byte(prompt)
			c := p.carry(x)
			if c.Destination != "10.0.0.1:8000" || p.last().Path != want || string(c.Body) != prompt {
				t.Errorf("POST %s in %v: to %q as %s, %v", path, x.RequestMode, c.Destination, p.last().Path, c.Immediate)
			}
			for _, name := range append(c.Removed, ":path") {
				if _, ok := c.Set[name]; ok || len(c.Removed) > 0 {
					t.Errorf("POST %s: %s was changed", path, name) // the query is kept
				}
			}
			p.lastEnd()
		}
		// Not JSON, on a path that we don't know.
		x.Headers, x.Body = []string{":method", "POST", ":path", "/v1/audio/transcriptions"}, []byte("--boundary\xff")
		if c := p.carry(x); c.Destination != "10.0.0.1:8000" || string(c.Body) != "--boundary\xff" {
			t.Errorf("audio in %v: %+v", x.RequestMode, c)
		}
		p.lastEnd()
		x.Body = nil
		for _, r := range [][2]string{{"GET", "/v1/models"}, {"HEAD", "/health"}, {"GET", "/v1/models/?x=y"}, {"POST", "/v1/chat/completions"}, {"OPTIONS", "*"}} {
			x.Headers = []string{":method", r[0], ":path", r[1]}
			if c := p.carry(x); c.Destination != "10.0.0.1:8000" || c.Metadata != c.Destination {
				t.Errorf("%s %s in %v: %+v", r[0], r[1], x.RequestMode, c)
			}
			p.lastEnd()
		}
	}
	p.wantRest()
}

// Whatever way a body comes in, it goes out whole, and where a rule changes its
// length the gateway is told the new one, once.
func TestCaseG7(t *testing.T) {
	p := newPool(t, decision.Defaults(), Options{}, picker.Options{Names: picker.Names{Models: map[string]picker.ModelRule{"alias": {Targets: []picker.Target{{Name: "m-with-a-longer-name"}}}}}}, "10.0.0.1:8000")
	for _, size := range []int{3 << 10, 5 << 20} {
		for _, model := range []string{"m", "alias"} {
			body := fmt.Sprintf(`{"model":%q,"prompt":%q}`, model, strings.Repeat("x", size))
			want := strings.Replace(body, `"alias"`, `"m-with-a-longer-name"`, 1)
			for _, x := range ownModes {
				for _, headers := range [][]string{
					{"content-length", fmt.Sprint(len(body))},
					{"content-length", fmt.Sprint(len(body)), "expect", "100-continue"},
					{"transfer-encoding", "chunked"},
					{},
				} {
					if size > 1<<20 && len(headers) > 0 {
						continue
					}
					x.Headers, x.Body, x.ChunkBytes = append([]string{":method", "POST", ":path", "/v1/completions"}, headers...), []byte(body), 16_000
					c := p.carry(x)
					if string(c.Body) != want || c.Destination == "" {
						t.Errorf("%s, %d bytes, %v in %v: %d bytes out, want %d; %v", model, size, headers, x.RequestMode, len(c.Body), len(want), c.Immediate)
					}
					length, told := c.Set["content-length"]
					// Envoy itself drops the length in full duplex.
					if wantTold := model == "alias" && x.RequestMode == modeBuffered; told != wantTold || told && length != fmt.Sprint(len(want)) {
						t.Errorf("%s, %v in %v: content-length %q", model, headers, x.RequestMode, length)
					}
					if _, ok := c.Set["transfer-encoding"]; ok || len(c.Removed) > 0 {
						t.Errorf("%s: both ways to tell a length: %v, removed %v", model, c.Set, c.Removed)
					}
					p.lastEnd()
				}
			}
		}
	}
	p.wantRest()
}

// A header's value counts in either field of its message, its name in any case,
// and of two the first.
func TestCaseH2(t *testing.T) {
	p := newPool(t, decision.Defaults(), Options{}, picker.Options{}, "10.0.0.1:8000", "10.0.0.2:8000")
	tokens := make([]uint32, 64)
	p.members["b"].Apply(start, []epp.BlockEvent{{Kind: epp.BlockStored, Hashes: []uint64{1, 2, 3, 4}, Tokens: tokens, BlockTokens: 16, Tier: "GPU"}})
	body, _ := json.Marshal(map[string]any{"model": "m", "prompt": tokens})
	pairs := [][2]string{{":method", "POST"}, {":path", "/v1/completions?x"}, {"x-request-id", "theirs"}, {"content-type", "application/json"}}
	for name, h := range map[string]func(k, v string) []*corev3.HeaderValue{
		"value":     func(k, v string) []*corev3.HeaderValue { return []*corev3.HeaderValue{{Key: k, Value: v}} },
		"raw_value": func(k, v string) []*corev3.HeaderValue { return []*corev3.HeaderValue{{Key: k, RawValue: []byte(v)}} },
		"empty raw_value": func(k, v string) []*corev3.HeaderValue {
			return []*corev3.HeaderValue{{Key: k, Value: v, RawValue: []byte{}}}
		},
		"both": func(k, v string) []*corev3.HeaderValue {
			return []*corev3.HeaderValue{{Key: k, Value: "not this", RawValue: []byte(v)}}
		},
		"upper case": func(k, v string) []*corev3.HeaderValue {
			return []*corev3.HeaderValue{{Key: strings.ToUpper(k), RawValue: []byte(v)}}
		},
		"twice": func(k, v string) []*corev3.HeaderValue {
			return []*corev3.HeaderValue{{Key: k, RawValue: []byte(v)}, {Key: k, RawValue: []byte("the second")}}
		},
	} {
		s, err := p.driver.Open(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		head := epptest.Announce(epptest.RequestHeaders(false), modeBuffered, modeNone)
		for _, pair := range pairs {
			m := head.GetRequestHeaders().Headers
			m.Headers = append(m.Headers, h(pair[0], pair[1])...)
		}
		if _, err := s.Call(head); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		r, err := s.Call(epptest.RequestBody(body, true))
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		to := r.GetRequestBody().GetResponse().GetHeaderMutation().GetSetHeaders()
		rec := p.last()
		if len(to) == 0 || string(to[0].Header.RawValue) != "10.0.0.2:8000" || to[0].Header.Value != "" {
			t.Errorf("%s: %v", name, r)
		}
		if rec.ClientID != "theirs" || rec.Path != "/v1/completions" || rec.MatchRatio(rec.Chosen) != 1 || len(rec.RequestID) != 36 {
			t.Errorf("%s: ID %q, path %s, match %v", name, rec.ClientID, rec.Path, rec.MatchRatio(rec.Chosen))
		}
		s.CloseSend()
		s.Collect()
		p.lastEnd()
	}
	p.wantRest()
}

// The gateway's subset is obeyed in each of its forms, and a client's header of
// that name in none.
func TestCaseH4(t *testing.T) {
	all := []string{"10.0.0.1:8000", "10.0.0.2:8000", "[fd00::7]:8000"}
	p := newPool(t, decision.Defaults(), Options{}, picker.Options{Fallbacks: 2}, all...)
	for _, x := range ownModes {
		x.Headers, x.Body = []string{":method", "POST", ":path", "/v1/completions"}, []byte(completion)
		for name, c := range map[string]struct {
			subset *structpb.Value
			header string
			want   []string // none: 503
		}{
			"one member":           {subset: subsetValue("(10.0.0.2:8000)"), want: all[1:2]},
			"a list":               {subset: subsetValue("(10.0.0.2:8000,10.0.0.1:8000,10.9.9.9:8000)"), want: all[:2]},
			"IPv6 in brackets":     {subset: subsetValue("([fd00::7]:8000)"), want: all[2:]},
			"IPv6 without":         {subset: subsetValue("(fd00::7:8000)")},
			"another port":         {subset: subsetValue("(10.0.0.2:8001)")},
			"the address alone":    {subset: subsetValue("(10.0.0.2)")},
			"one string":           {subset: structpb.NewStringValue("10.0.0.2:8000, [fd00::7]:8000"), want: all[1:]},
			"one unknown":          {subset: subsetValue("(10.9.9.9:8000)")},
			"an empty list":        {subset: subsetValue("()")},
			"an empty string":      {subset: structpb.NewStringValue("")},
			"null":                 {subset: structpb.NewNullValue()},
			"no hint":              {want: all},
			"a header":             {header: "10.9.9.9:8000", want: all},
			"a header with a hint": {subset: subsetValue("(10.0.0.2:8000)"), header: "10.0.0.1:8000", want: all[1:2]},
			"more than is sane":    {subset: subsetValue("(" + strings.Repeat("10.0.0.1:8000,", maxSubset+1) + ")")},
		} {
			y := x
			y.Subset = c.subset
			if c.header != "" {
				y.Headers = append(y.Headers[:4:4], "x-gateway-destination-endpoint-subset", c.header)
			}
			got := p.carry(y)
			<-p.ends
			if c.want == nil {
				if code := int(got.Immediate.GetStatus().GetCode()); code != 503 {
					t.Errorf("%s in %v: status %d, to %q", name, x.RequestMode, code, got.Destination)
				}
				continue
			}
			chosen := strings.Split(got.Destination, ",")
			if len(chosen) != len(c.want) {
				t.Errorf("%s in %v: %q of %q", name, x.RequestMode, chosen, c.want)
			}
			for _, a := range chosen {
				if !listed(strings.Join(c.want, ","), a) {
					t.Errorf("%s in %v: %s is chosen outside of %q", name, x.RequestMode, a, c.want)
				}
			}
		}
	}
	p.wantRest()
}

// usageStreams are answers of 17 and 5 tokens, in each form.
var usageStreams = map[string]string{
	"chat": "data: {\"choices\":[{\"delta\":{\"content\":\"a\"}}]}\n\n" +
		"data: {\"choices\":[],\"usage\":{\"prompt_tokens\":17,\"completion_tokens\":5}}\n\ndata: [DONE]\n\n",
	"no end": "data: {\"choices\":[{\"delta\":{\"content\":\"a\"}}],\"usage\":{\"prompt_tokens\":17,\"completion_tokens\":5}}",
	"messages": "event: message_start\ndata: {\"type\":\"message_start\",\"message\":{\"usage\":{\"input_tokens\":17,\"output_tokens\":1}}}\n\n" +
		"event: message_delta\ndata: {\"type\":\"message_delta\",\"usage\":{\"output_tokens\":5}}\n\nevent: message_stop\ndata: {\"type\":\"message_stop\"}\n\n",
	"responses": "event: response.completed\ndata: {\"type\":\"response.completed\",\"response\":{\"usage\":{\"input_tokens\":17,\"output_tokens\":5}}}\n\n",
}

// A stream's usage is read once, at whatever byte it is cut, and the client gets
// the same bytes, each piece before the next one was there.
func TestCaseI1(t *testing.T) {
	p := newPool(t, decision.Defaults(), Options{}, picker.Options{}, "10.0.0.1:8000")
	for name, stream := range usageStreams {
		for i, x := range ownModes[1:] {
			for at := i; at < len(stream); at += 2 {
				x.Headers, x.Body = []string{":method", "POST", ":path", "/v1/completions"}, []byte(completion)
				x.ResponseHeaders = []string{":status", "200", "content-type", "text/event-stream; charset=utf-8"}
				x.Response = [][]byte{[]byte(stream[:at]), []byte(stream[at:])}
				// The driver sends a piece only when the one before was answered.
				c := p.carry(x)
				e := p.lastEnd()
				if e.PromptTokens != 17 || e.CompletionTokens != 5 || e.Outcome != "served" || string(c.ResponseBody) != stream {
					t.Fatalf("%s cut at %d in %v: %+v, %d bytes of %d", name, at, x.ResponseMode, e.End, len(c.ResponseBody), len(stream))
				}
			}
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.ended) != len(p.decided) {
		t.Errorf("%d decisions, %d ends", len(p.decided), len(p.ended))
	}
	p.wantRest()
}

// Odd usages and odd answers pass unchanged and leave the process alive.
func TestCaseI3(t *testing.T) {
	p := newPool(t, decision.Defaults(), Options{}, picker.Options{}, "10.0.0.1:8000")
	junk := bytes.Repeat([]byte("\xff{[\"x\\"), 1<<20/6)
	var fifty [][]byte
	for n := 0; n < 50<<20; n += len(junk) {
		fifty = append(fifty, junk)
	}
	for name, c := range map[string]struct {
		body   [][]byte
		prompt int
	}{
		"a string":         {[][]byte{[]byte(`{"usage":"x"}`)}, -1},
		"a numeric string": {[][]byte{[]byte(`{"usage":{"prompt_tokens":"12"}}`)}, 12},
		"details 0":        {[][]byte{[]byte(`{"usage":{"prompt_tokens":12,"prompt_tokens_details":0}}`)}, 12},
		"null":             {[][]byte{[]byte(`{"usage":null}`)}, -1},
		"negative":         {[][]byte{[]byte(`{"usage":{"prompt_tokens":-12}}`)}, -1},
		"1e300":            {[][]byte{[]byte(`{"usage":{"prompt_tokens":1e300}}`)}, -1},
		"a list":           {[][]byte{[]byte(`[]`)}, -1},
		"invalid UTF-8":    {[][]byte{[]byte("{\"choices\":[\"\xff\xfe\"]}")}, -1},
		"50 MB of junk":    {fifty, -1},
	} {
		for _, x := range ownModes[1:] {
			for _, contentType := range []string{"application/json", "text/event-stream", ""} {
				if len(c.body) > 1 && (contentType != "text/event-stream" || x.ResponseMode != modeDuplex) {
					continue // once is enough
				}
				x.Headers, x.Body = []string{":method", "POST", ":path", "/v1/completions"}, []byte(completion)
				x.ResponseHeaders, x.Response = []string{":status", "200", "content-type", contentType}, c.body
				got := p.carry(x)
				e := p.lastEnd()
				if !bytes.Equal(got.ResponseBody, bytes.Join(c.body, nil)) {
					t.Errorf("%s as %q in %v: the client got %d bytes", name, contentType, x.ResponseMode, len(got.ResponseBody))
				}
				if e.Outcome != "served" || contentType == "application/json" && e.PromptTokens != c.prompt {
					t.Errorf("%s as %q in %v: %+v", name, contentType, x.ResponseMode, e.End)
				}
			}
		}
	}
	p.wantRest()
}

// The first token's time is that of the first token, not of the last.
func TestCaseI5(t *testing.T) {
	p := newPool(t, decision.Defaults(), Options{}, picker.Options{}, "10.0.0.1:8000")
	for _, x := range ownModes[1:] {
		step := func(s *epptest.Stream, r *extprocv3.ProcessingRequest) {
			t.Helper()
			if err := s.Send(r); err != nil {
				t.Fatal(err)
			}
			for n := 1; n > 0; n-- {
				got, err := s.Recv()
				if err != nil {
					t.Fatal(err)
				}
				if x.RequestMode == modeDuplex && got.GetRequestHeaders() != nil {
					n++ // and the body behind it
				}
			}
		}
		open := func() *epptest.Stream {
			s, err := p.driver.Open(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			head := epptest.Announce(epptest.RequestHeaders(false, ":method", "POST", ":path", "/v1/completions"), x.RequestMode, x.ResponseMode)
			if x.RequestMode == modeDuplex {
				s.Send(head)
			} else {
				step(s, head)
			}
			step(s, epptest.RequestBody([]byte(completion), true))
			return s
		}
		s := open()
		step(s, epptest.ResponseHeaders(false, ":status", "200", "content-type", "text/event-stream"))
		p.pass(200 * time.Millisecond)
		for i := range 51 {
			if i > 0 {
				p.pass(20 * time.Millisecond)
			}
			step(s, epptest.ResponseBody([]byte("data: {\"choices\":[{\"text\":\" a\"}]}\n\n"), false))
		}
		step(s, epptest.ResponseBody([]byte("data: {\"choices\":[],\"usage\":{\"prompt_tokens\":3,\"completion_tokens\":51}}\n\ndata: [DONE]\n\n"), true))
		s.CloseSend()
		s.Collect()
		e, rec := p.lastEnd(), p.last()
		total := e.At.Sub(rec.At)
		perToken := (total - e.TTFT) / time.Duration(e.CompletionTokens-1)
		if e.TTFT != 200*time.Millisecond || total != 1200*time.Millisecond || perToken != 20*time.Millisecond {
			t.Errorf("%v: first token after %v, the end after %v, %v a token", x.ResponseMode, e.TTFT, total, perToken)
		}

		// An answer that is not streamed does not tell when its first token came: there
		// is no time that a token could have taken.
		s = open()
		p.pass(1200 * time.Millisecond)
		step(s, epptest.ResponseHeaders(false, ":status", "200", "content-type", "application/json"))
		step(s, epptest.ResponseBody([]byte(`{"choices":[{"text":"a"}],"usage":{"prompt_tokens":3,"completion_tokens":51}}`), true))
		s.CloseSend()
		s.Collect()
		if e, rec := p.lastEnd(), p.last(); e.TTFT != 0 || e.At.Sub(rec.At) != 1200*time.Millisecond {
			t.Errorf("%v, not streamed: first token after %v, the end after %v", x.ResponseMode, e.TTFT, e.At.Sub(rec.At))
		}
	}
	p.wantRest()
}

// Not ready until the pool was read once, alive all the time, and from the first
// "ready" on nothing fails. The health service is on both ports.
func TestCaseM5(t *testing.T) {
	var addresses []string
	for i := range 50 {
		addresses = append(addresses, fmt.Sprintf("10.0.0.%d:8000", i+1))
	}
	read := make(chan struct{})
	ready := func() bool {
		select {
		case <-read:
			return true
		default:
			return false
		}
	}
	p := newPool(t, decision.Defaults(), Options{Ready: ready}, picker.Options{}, addresses...)
	clients := map[string]grpc_health_v1.HealthClient{":9002": grpc_health_v1.NewHealthClient(p.driver.Conn()), ":9003": grpc_health_v1.NewHealthClient(dial(t, p.health))}
	want := func(now grpc_health_v1.HealthCheckResponse_ServingStatus) {
		t.Helper()
		for port, c := range clients {
			for _, name := range []string{"", "readiness", "envoy.service.ext_proc.v3.ExternalProcessor", "inference-extension", "liveness"} {
				r, err := c.Check(t.Context(), &grpc_health_v1.HealthCheckRequest{Service: name})
				if w := now; err != nil || r.Status != w && name != "liveness" || name == "liveness" && r.Status != grpc_health_v1.HealthCheckResponse_SERVING {
					t.Errorf("%s %q: %v, %v, want %v", port, name, r, err, w)
				}
			}
			if _, err := c.Check(t.Context(), &grpc_health_v1.HealthCheckRequest{Service: "nonsense"}); status.Code(err) != codes.NotFound {
				t.Errorf("%s: nonsense is %v", port, err)
			}
			w, err := c.Watch(t.Context(), &grpc_health_v1.HealthCheckRequest{Service: "nonsense"})
			if err != nil {
				t.Fatal(err)
			}
			if r, err := w.Recv(); err != nil || r.Status != grpc_health_v1.HealthCheckResponse_SERVICE_UNKNOWN {
				t.Errorf("%s: a watch of nonsense got %v, %v", port, r, err)
			}
			list, err := c.List(t.Context(), &grpc_health_v1.HealthListRequest{})
			if err != nil || len(list.Statuses) != 5 || list.Statuses["readiness"].Status != now {
				t.Errorf("%s: list %v, %v", port, list, err)
			}
		}
	}
	want(grpc_health_v1.HealthCheckResponse_NOT_SERVING)
	// Traffic that comes early is served as well as the moment allows.
	x := epptest.Exchange{RequestMode: modeBuffered, ResponseMode: modeNone, Headers: []string{":method", "POST", ":path", "/v1/completions"}, Body: []byte(completion)}
	if c := p.carry(x); c.Destination == "" {
		t.Errorf("before the first sync: %v", c.Immediate)
	}
	for _, m := range p.members {
		m.Load(0, start, epp.Load{Waiting: epp.Known(0), Running: epp.Known(0)})
	}
	close(read)
	want(grpc_health_v1.HealthCheckResponse_SERVING)
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 25 {
				if c, err := p.driver.Exchange(t.Context(), x); err != nil || c.Destination == "" {
					t.Errorf("after ready: %+v, %v", c, err)
				}
			}
		})
	}
	wg.Wait()
	for range 201 {
		<-p.ends
	}
	p.wantRest()
	p.server.Drain()
	want(grpc_health_v1.HealthCheckResponse_NOT_SERVING)
}

// The client's own destination is overwritten or removed in every run, in any
// spelling, and where we refuse the request nothing of it goes anywhere.
func TestCaseQ1(t *testing.T) {
	const victim = "6.6.6.6:1"
	p := newPool(t, decision.Defaults(), Options{}, picker.Options{}, "10.0.0.1:8000")
	spellings := [][]string{
		{"x-gateway-destination-endpoint", victim},
		{"x-gateway-destination-endpoint", victim, "x-gateway-destination-endpoint", victim},
		{"X-GATEWAY-DESTINATION-ENDPOINT", victim},
		{"x-gateway-destination-endpoint", victim + ",10.0.0.1:8000"},
		{"x-gateway-destination-endpoint", "10.0.0.1:8000", "x-gateway-destination-endpoint-subset", victim, "x-gateway-destination-endpoint-served", victim},
	}
	for _, mode := range []filterv3.ProcessingMode_BodySendMode{modeBuffered, modeDuplex, modeNone} {
		for _, spelling := range spellings {
			for name, r := range map[string]struct{ method, body string }{"POST": {"POST", completion}, "GET": {"GET", ""}} {
				s, err := p.driver.Open(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				headers := append([]string{":method", r.method, ":path", "/v1/completions"}, spelling...)
				s.Send(epptest.Announce(epptest.RequestHeaders(r.body == "", headers...), mode, modeNone))
				if r.body != "" && mode != modeNone {
					s.Send(epptest.RequestBody([]byte(r.body), true))
				}
				s.CloseSend()
				all, err := s.Collect()
				if err != nil || len(all) == 0 {
					t.Fatalf("%s in %v with %q: %d answers, %v", name, mode, spelling, len(all), err)
				}
				wantOverwritten(t, all, fmt.Sprintf("%s in %v with %q", name, mode, spelling))
				<-p.ends
			}
			// A body that is rejected: only our own answer comes, to the client.
			x := epptest.Exchange{RequestMode: mode, ResponseMode: modeNone, Body: []byte("{"), Headers: append([]string{":method", "POST", ":path", "/v1/completions"}, spelling...)}
			if mode != modeNone {
				if c := p.carry(x); int(c.Immediate.GetStatus().GetCode()) != 400 || c.Destination != "" {
					t.Errorf("rejected in %v: %+v", mode, c)
				}
				<-p.ends
			}
		}
	}
	p.wantRest()
}

// wantOverwritten checks that the answers leave nothing of the client's
// destination: the first of them removes or overwrites it already.
func wantOverwritten(t *testing.T, all []*extprocv3.ProcessingResponse, what string) {
	t.Helper()
	gone, set := false, false
	for i, r := range all {
		common := r.GetRequestHeaders().GetResponse()
		if r.GetRequestBody() != nil {
			common = r.GetRequestBody().GetResponse()
		}
		for _, name := range common.GetHeaderMutation().GetRemoveHeaders() {
			gone = gone || name == DestinationHeader
		}
		for _, h := range common.GetHeaderMutation().GetSetHeaders() {
			if h.Header.Key != DestinationHeader {
				continue
			}
			gone, set = true, true
			if h.AppendAction != corev3.HeaderValueOption_OVERWRITE_IF_EXISTS_OR_ADD || string(h.Header.RawValue) != "10.0.0.1:8000" {
				t.Errorf("%s: %v", what, h)
			}
		}
		if i == 0 && !gone {
			t.Errorf("%s: the client's header outlives the first answer", what)
		}
	}
	if !set {
		t.Errorf("%s: no destination was set", what)
	}
}

// Odd small inputs get an answer or a status, say nothing of the house, and
// leave the process alive.
func TestCaseQ9(t *testing.T) {
	p := newPool(t, decision.Defaults(), Options{}, picker.Options{}, "10.0.0.1:8000")
	p.members["a"].Models([]epp.Model{{Name: "m"}})
	for name, c := range map[string]struct {
		headers []string
		body    string
		status  int // 0: served
	}{
		"bearer alone":        {headers: []string{"authorization", "bearer"}},
		"bearer and a space":  {headers: []string{"authorization", "bearer "}},
		"64 KB header":        {headers: []string{"x-long", strings.Repeat("x", 64<<10), "x-request-id", strings.Repeat("y", 64<<10)}},
		"a path of 64 KB":     {headers: []string{":path", "/" + strings.Repeat("x", 64<<10)}},
		"bytes in values":     {headers: []string{"x-name", "\xff\xfe\x80", "x-request-id", "\xff漢", "x-gateway-destination-endpoint", "\xff"}},
		"no name":             {headers: []string{"", "x"}},
		"negative length":     {headers: []string{"content-length", "-1"}, status: 400},
		"length of 2^32":      {headers: []string{"content-length", "4294967296"}, status: 413},
		"length over 2^63":    {headers: []string{"content-length", "9223372036854775808"}, status: 400},
		"no model of ours":    {body: `{"model":"other","prompt":[1]}`, status: 404},
		"no JSON":             {body: "\x00", status: 400},
		"a token of 2^32":     {body: `{"model":"m","prompt":[4294967296]}`, status: 400},
		"nested without end":  {body: strings.Repeat("[", 1<<16), status: 400},
		"an odd encoding":     {headers: []string{"content-encoding", "x-lzh"}, status: 415},
		"a status of nothing": {headers: []string{":status", "x"}},
	} {
		for _, x := range ownModes {
			x.Body = []byte(completion)
			if c.body != "" {
				x.Body = []byte(c.body)
			}
			x.Headers = append(c.headers, ":method", "POST", ":path", "/v1/completions")
			got := p.carry(x)
			<-p.ends
			if int(got.Immediate.GetStatus().GetCode()) != c.status || c.status == 0 && got.Destination != "10.0.0.1:8000" {
				t.Errorf("%s in %v: %+v, want %d", name, x.RequestMode, got, c.status)
			}
			if got.Immediate == nil {
				if rec := p.last(); len(rec.Path) > maxPathBytes || len(rec.ClientID) > maxClientIDBytes {
					t.Errorf("%s: the record keeps a path of %d bytes and an ID of %d", name, len(rec.Path), len(rec.ClientID))
				}
				continue
			}
			code, id := errorOf(t, got.Immediate)
			if headers := got.Immediate.GetHeaders().GetSetHeaders(); code == "" || len(id) != 36 || string(headers[1].Header.RawValue) != id {
				t.Errorf("%s: code %q, requestID %q, headers %v", name, code, id, headers)
			}
		}
	}
	wantFrameRefused(t, p.target)
	for _, m := range p.members {
		m.Leave()
	}
	c := p.carry(epptest.Exchange{RequestMode: modeBuffered, ResponseMode: modeNone, Headers: post(), Body: []byte(chat)})
	if code, _ := errorOf(t, c.Immediate); int(c.Immediate.GetStatus().GetCode()) != 503 || code == "" {
		t.Errorf("without pods: %v", c.Immediate)
	}
	p.wantRest()
}

// wantFrameRefused sends what is no gRPC, and a message that says it has
// 0xFFFFFFFF bytes; the service must stay.
func wantFrameRefused(t *testing.T, target string) {
	t.Helper()
	const preface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
	settings := "\x00\x00\x00\x04\x00\x00\x00\x00\x00"
	// Indexed POST and http; literal :path, content-type and te without indexing.
	literal := func(name, v string) string {
		return "\x00" + string(rune(len(name))) + name + string(rune(len(v))) + v
	}
	block := "\x83\x86" + literal(":path", "/envoy.service.ext_proc.v3.ExternalProcessor/Process") +
		literal(":authority", "epp") + literal("content-type", "application/grpc") + literal("te", "trailers")
	headers := string([]byte{0, 0, byte(len(block)), 1, 4, 0, 0, 0, 1}) + block
	data := "\x00\x00\x05\x00\x00\x00\x00\x00\x01" + "\x00\xff\xff\xff\xff"
	conn, err := net.Dial("tcp", target)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	io.WriteString(conn, preface+settings+headers+data)
	conn.SetDeadline(time.Now().Add(10 * time.Second))
	var got bytes.Buffer
	buffer := make([]byte, 4096)
	// "grpc-status" in HPACK's Huffman code, then a value of one byte, "8":
	// RESOURCE_EXHAUSTED.
	for !strings.Contains(got.String(), "\x88\x9a\xca\xc8\xb2\x12\x34\xda\x8f\x018") {
		n, err := conn.Read(buffer)
		if err != nil {
			t.Fatalf("after a length of 0xFFFFFFFF: %q, %v", got.String(), err)
		}
		got.Write(buffer[:n])
	}
	other, err := net.Dial("tcp", target)
	if err != nil {
		t.Fatal(err)
	}
	io.WriteString(other, "GET / HTTP/1.1\r\nHost: epp\r\n\r\n")
	io.Copy(io.Discard, other) // the service closes it
	other.Close()
}

// Example 5 of the article, in the mode of our own Envoy configuration: 4
// engines of 4 slots are full, one of them holds the prefix of the 50 requests
// that come at once. The hot one takes 20 until its queue outweighs the cache,
// then the rest spreads evenly.
func TestExample5(t *testing.T) {
	s := decision.Defaults()
	s.Load.MaxRunning = 4
	p := newPool(t, s, Options{}, picker.Options{}, "10.0.0.1:8000", "10.0.0.2:8000", "10.0.0.3:8000", "10.0.0.4:8000")
	prefix := make([]uint32, 160)
	hashes := make([]uint64, 10)
	for i := range prefix {
		prefix[i] = uint32(i + 1)
	}
	for i := range hashes {
		hashes[i] = uint64(i + 1)
	}
	p.members["a"].Apply(start, []epp.BlockEvent{{Kind: epp.BlockStored, Hashes: hashes, Tokens: prefix, BlockTokens: 16, Tier: "GPU"}})
	var streams []*epptest.Stream
	ask := func(tokens []uint32) string {
		body, _ := json.Marshal(map[string]any{"model": "m", "prompt": tokens, "stream": true})
		st, err := p.driver.Open(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		streams = append(streams, st)
		if _, err := st.Call(epptest.Announce(epptest.RequestHeaders(false, ":method", "POST", ":path", "/v1/completions"), modeBuffered, modeNone)); err != nil {
			t.Fatal(err)
		}
		r, err := st.Call(epptest.RequestBody(body, true))
		if err != nil {
			t.Fatal(err)
		}
		return string(r.GetRequestBody().GetResponse().GetHeaderMutation().GetSetHeaders()[0].GetHeader().GetRawValue())
	}
	for i := range uint32(16) {
		tokens := make([]uint32, 20)
		for j := range tokens {
			tokens[j] = 10_000 + 100*i + uint32(j)
		}
		ask(tokens)
	}
	for _, m := range p.members { // each engine's page: 4 run, nobody waits
		m.Load(m.Begin(start), start, epp.Load{Waiting: epp.Known(0), Running: epp.Known(4), BlockTokens: 16})
	}
	got := map[string]int{}
	for i := range uint32(50) {
		got[ask(append(prefix[:160:160], 100_000+i))]++
	}
	want := map[string]int{"10.0.0.1:8000": 20, "10.0.0.2:8000": 10, "10.0.0.3:8000": 10, "10.0.0.4:8000": 10}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("picks %v, want %v", got, want)
	}
	if l := p.fleet.Ledger(); l.Requests != 66 {
		t.Errorf("ledger %+v", l)
	}
	for _, st := range streams {
		if _, err := st.Call(epptest.ResponseHeaders(false, ":status", "200")); err != nil {
			t.Fatal(err)
		}
		st.CloseSend()
		st.Collect()
		<-p.ends
	}
	p.wantRest()
}

// What the picker learns of a stream's end in the mode in which it sees none:
// the booking is left to the endpoint's next reading.
func TestHandOver(t *testing.T) {
	p := newPool(t, decision.Defaults(), Options{}, picker.Options{}, "10.0.0.1:8000")
	ctx, cancel := context.WithCancel(t.Context())
	s, err := p.driver.Open(ctx)
	if err != nil {
		t.Fatal(err)
	}
	s.Send(epptest.Announce(epptest.RequestHeaders(false, ":method", "POST", ":path", "/v1/completions"), modeDuplex, modeNone))
	s.Send(epptest.RequestBody([]byte(completion), true))
	for range 2 {
		if _, err := s.Recv(); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := s.Call(epptest.ResponseHeaders(false, ":status", "200")); err != nil {
		t.Fatal(err)
	}
	cancel() // as Envoy does, 1–3 ms later
	if e := p.lastEnd(); e.Outcome != "served" {
		t.Errorf("%+v", e.End)
	}
	if l := p.fleet.Ledger(); l.Requests != 1 {
		t.Errorf("ledger %+v: nobody has told of an end", l)
	}
	p.pass(time.Second)
	m := p.members["a"]
	m.Load(m.Begin(p.clock()), p.clock(), epp.Load{Waiting: epp.Known(0), Running: epp.Known(1)})
	p.wantRest()
}
