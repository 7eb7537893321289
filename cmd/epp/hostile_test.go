package main

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/go-zeromq/zmq4"
	"github.com/vmihailenco/msgpack/v5"

	"epp.internal/epp/config"
	"epp.internal/epp/epptest"
)

// TestCaseD6FastFailuresDrawNoTraffic: A answers 500 at once and so is always idle,
// B and C take two seconds. After at most ten failures A gets less than a twentieth
// of the requests; it comes back by itself when it is mended; and where all fail,
// requests go somewhere all the same.
func TestCaseD6FastFailuresDrawNoTraffic(t *testing.T) {
	r := newRig(t, options{engines: 3})
	broken := epptest.Fault{Status: http.StatusInternalServerError}
	r.engine("A").SetFault(broken)
	for _, name := range []string{"B", "C"} {
		r.engine(name).SetFault(epptest.Fault{Slow: 2 * time.Second})
	}
	const requests = 200
	replies := make(chan *reply, requests)
	tick := newPace(20)
	defer tick.Stop()
	for i := range requests {
		<-tick.C
		go func() { replies <- r.chat([]message{user(fmt.Sprint("question ", i))}, 1) }()
	}
	for range requests {
		<-replies
	}
	var order []string
	r.mu.Lock()
	for _, rec := range r.decided {
		order = append(order, rec.Candidates[rec.Chosen].Name)
	}
	r.mu.Unlock()
	failures, from := 0, len(order)
	for i, name := range order {
		if name == "A" {
			if failures++; failures == 10 {
				from = i + 1
			}
		}
	}
	rest := order[from:]
	after := max(0, failures-10)
	if len(rest) > 0 && after*20 >= len(rest) {
		t.Errorf("A got %d of the %d requests after its tenth failure, want less than a twentieth", after, len(rest))
	}
	t.Logf("A got %d of %d", failures, requests)

	for _, e := range r.engines {
		e.SetFault(epptest.Fault{})
	}
	r.forget()
	r.until("A has come back", func() bool {
		r.must([]message{user("are you well?")}, 1)
		return r.picks()["A"] >= 1 && r.state("A").Signals.Health >= 0.5
	})
	for _, e := range r.engines {
		e.SetFault(broken)
	}
	for range 20 {
		if p := r.chat([]message{user("hello")}, 1); p.status != http.StatusInternalServerError || p.servedBy == "" {
			t.Errorf("status %d by %q, want an engine's own 500", p.status, p.servedBy)
		}
	}
	r.atRest()
}

// liar is a publisher of KV events that says what it likes.
type liar struct {
	t   *testing.T
	pub zmq4.Socket
	seq byte
}

func (l *liar) say(topic string, events ...map[string]any) {
	payload, err := msgpack.Marshal([]any{float64(l.seq), events, 0})
	if err != nil {
		l.t.Fatal(err)
	}
	if err := l.pub.SendMulti(zmq4.NewMsgFrom([]byte(topic), []byte{0, 0, 0, 0, 0, 0, 0, l.seq}, payload)); err != nil {
		l.t.Error(err)
	}
	l.seq++
}

// claim says that blocks of 16 of these tokens are stored.
func claim(hash uint64, tokens []uint32) map[string]any {
	var hashes []uint64
	for i := range len(tokens) / 16 {
		hashes = append(hashes, hash+uint64(i))
	}
	return map[string]any{
		"type": "BlockStored", "block_hashes": hashes, "parent_block_hash": nil, "token_ids": tokens[:len(hashes)*16], "block_size": 16,
	}
}

// TestCaseQ7HostileEventsAndPages: what A's event socket says, in whoever's name,
// changes A alone; a flood of blocks that nobody has drops A's own within its share
// of the index; a page that is endless or elsewhere is not read; and addresses
// where clouds serve credentials are refused.
//
// The case's last sentence, that an endpoint whose claims do not come true is
// weighed down and named, belongs beside these as a run of its own.
func TestCaseQ7HostileEventsAndPages(t *testing.T) {
	pub := zmq4.NewPub(t.Context())
	defer pub.Close()
	if err := pub.Listen("tcp://127.0.0.1:0"); err != nil {
		t.Fatal(err)
	}
	credentials := newVictim(t)
	pages := func(answer http.HandlerFunc) string {
		s := httptest.NewServer(answer)
		t.Cleanup(s.Close)
		return strings.TrimPrefix(s.URL, "http://")
	}
	elsewhere := pages(func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, "http://"+credentials.Addr().String()+"/latest/meta-data/", http.StatusFound)
	})
	endless := pages(func(w http.ResponseWriter, _ *http.Request) {
		line := []byte("vllm:num_requests_waiting 0\n" + strings.Repeat("x", 1<<20) + "\n")
		for range 500 {
			if _, err := w.Write(line); err != nil {
				return
			}
		}
	})
	const indexBytes = 2 << 20
	r := newRig(t, options{engines: 2, unsettled: true, config: func(c *config.Config, _ []*epptest.Engine) {
		c.Limits.IndexBytes = indexBytes
		c.Pool.Endpoints[0].Events = pub.Addr().String()
		c.Pool.Endpoints = append(c.Pool.Endpoints,
			config.Endpoint{Name: "elsewhere", Address: elsewhere}, config.Endpoint{Name: "endless", Address: endless})
	}})
	direct(t, r, r.engine("B"), words(1, 600))
	r.until("B's cache is known", func() bool { return r.state("B").Blocks == r.engine("B").Blocks() })
	honest := r.state("B")
	l := &liar{t: t, pub: pub}
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for r.state("A").Blocks == 0 { // what is said before the subscription has arrived is lost
		l.say("kv@B@tiny", claim(1, make([]uint32, 32)))
		<-tick.C
	}

	t.Run("in another's name", func(t *testing.T) {
		l.say("kv@B@tiny", map[string]any{"type": "BlockRemoved", "block_hashes": []uint64{1, 2}})
		l.say("kv@B@tiny", claim(100, make([]uint32, 160)))
		l.say("kv@B@tiny", map[string]any{"type": "AllBlocksCleared"})
		r.until("A's is cleared", func() bool { return r.state("A").Blocks == 0 })
		if b := r.state("B"); b.Blocks != honest.Blocks || b.Signals.Incomplete {
			t.Errorf("B holds %d blocks, incomplete %v; want its %d", b.Blocks, b.Signals.Incomplete, honest.Blocks)
		}
	})

	t.Run("a flood", func(t *testing.T) {
		tokens := make([]uint32, 16*1000)
		for n := range uint64(60) { // 60,000 blocks, of which A's share has room for a fifth
			for i := range tokens {
				tokens[i] = uint32(n)<<16 + uint32(i)
			}
			l.say("", claim(n<<32, tokens))
			if n%10 == 9 {
				<-tick.C
			}
		}
		l.say("", map[string]any{"type": "BlockRemoved", "block_hashes": []uint64{1 << 60}})
		r.until("the bound has dropped some", func() bool {
			a := r.state("A")
			return a.Blocks > 1000 && a.Signals.Incomplete && r.metric("epp_kv_events_total", `kind="BlockRemoved"`) >= 2
		})
		if b := r.state("B"); b.Blocks != honest.Blocks || b.Signals.Incomplete {
			t.Errorf("B holds %d blocks, incomplete %v; want its %d", b.Blocks, b.Signals.Incomplete, honest.Blocks)
		}
		if a, size := r.state("A").Blocks, r.sys.index.Bytes(); a > indexBytes/4/40 || size > indexBytes {
			t.Errorf("A has %d blocks in an index of %d bytes", a, size)
		}
		if p := r.must([]message{user(words(1, 600))}, 1); p.servedBy != "B" {
			t.Errorf("served by %q, want B, which holds the prompt", p.servedBy)
		}
	})

	t.Run("pages", func(t *testing.T) {
		r.until("both were tried", func() bool {
			return strings.Contains(r.log.String(), "status 302") && strings.Contains(r.log.String(), "over 8388608 bytes")
		})
		for _, name := range []string{"elsewhere", "endless"} {
			if s := r.state(name).Signals; s.Waiting.Known || !s.ReadAt.IsZero() {
				t.Errorf("%s was read: %+v", name, s)
			}
		}
		if n := credentials.count(); n != 0 {
			t.Errorf("the redirect was followed %d times", n)
		}
	})

	t.Run("addresses", func(t *testing.T) {
		for _, setting := range []string{
			"pool: {endpoints: ['169.254.169.254:80']}",
			"pool: {endpoints: [{address: '10.0.0.7:8000', events: '169.254.169.254:80'}]}",
			"pool: {endpoints: ['10.0.0.7:8000'], gpu: {dcgm: 'http://169.254.169.254:80/latest'}}",
			"pool: {endpoints: ['[fe80::a9fe:a9fe]:80']}",
		} {
			_, err := config.Parse("epp.yaml", []byte(setting))
			if err == nil || !strings.Contains(err.Error(), "link-local") {
				t.Errorf("%s: %v", setting, err)
			}
			forced := strings.Replace(setting, "pool: {", "pool: {allowLinkLocal: true, ", 1)
			if _, err := config.Parse("epp.yaml", []byte(forced)); err != nil {
				t.Errorf("%s: %v", forced, err)
			}
		}
	})
}
