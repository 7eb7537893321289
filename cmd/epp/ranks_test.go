package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"testing"

	"epp.internal/epp"
	"epp.internal/epp/config"
	"epp.internal/epp/epptest"
)

// manyRanks is one address with several data-parallel ranks behind it, as vLLM
// serves them: one list of models, one page with a series for each rank, one list
// of event sources, and a header that says which rank is to serve a request.
type manyRanks struct {
	*httptest.Server
	mu    sync.Mutex // guards the following field
	ranks []*epptest.Engine
}

func newManyRanks(t *testing.T, ranks ...*epptest.Engine) *manyRanks {
	m := &manyRanks{ranks: ranks}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /kv_event_sources", m.sources)
	mux.HandleFunc("GET /metrics", m.page)
	mux.HandleFunc("/", m.pass)
	m.Server = httptest.NewServer(mux)
	t.Cleanup(m.Close)
	return m
}

func (m *manyRanks) all() []*epptest.Engine {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.ranks
}

// set makes the engine one of these ranks.
func (m *manyRanks) set(ranks ...*epptest.Engine) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.ranks = ranks
}

func (m *manyRanks) sources(w http.ResponseWriter, _ *http.Request) {
	list := map[string]any{}
	for i, e := range m.all() {
		list[strconv.Itoa(i)] = map[string]any{
			"enable_kv_cache_events": true, "publisher": "zmq", "endpoint": e.EventEndpoint(), "replay_endpoint": e.ReplayEndpoint(),
		}
	}
	_ = json.NewEncoder(w).Encode(list)
}

func (m *manyRanks) page(w http.ResponseWriter, _ *http.Request) {
	for i, e := range m.all() {
		resp, err := http.Get(e.URL() + "/metrics")
		if err != nil {
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		page, _ := io.ReadAll(resp.Body)
		resp.Body.Close()
		_, _ = w.Write(bytes.ReplaceAll(page, []byte(`engine="0"`), fmt.Appendf(nil, `engine="%d"`, i)))
	}
}

func (m *manyRanks) pass(w http.ResponseWriter, r *http.Request) {
	rank, _ := strconv.Atoi(r.Header.Get(epp.RankHeader))
	ranks := m.all()
	if rank >= len(ranks) {
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	httputil.NewSingleHostReverseProxy(&url.URL{Scheme: "http", Host: ranks[rank].Address()}).ServeHTTP(w, r)
}

// TestCaseA3OneRankClears is the second run of case A3: one engine of two ranks
// behind one address, each an endpoint. Both hold the prompt and rank 0 alone
// clears its cache: rank 1 keeps its entries, and all 50 requests go there, by the
// header that names it; a client's own header of that name does not count. Then
// the engine restarts with one rank, and is one endpoint again.
func TestCaseA3OneRankClears(t *testing.T) {
	engines := newRig(t, options{engines: 2}).engines // engines to be ranks; their own rig only starts them
	defer http.DefaultClient.CloseIdleConnections()
	front := newManyRanks(t, engines...)
	r := newRig(t, options{unsettled: true, config: func(c *config.Config, _ []*epptest.Engine) {
		c.Pool.Endpoints = []config.Endpoint{{Name: "pod", Address: strings.TrimPrefix(front.URL, "http://")}}
	}})
	names := func() string {
		var list []string
		for _, s := range r.sys.fleet.Snapshot() {
			list = append(list, s.Endpoint.Name+"/"+s.Endpoint.Rank)
		}
		return strings.Join(list, " ")
	}
	r.until("both ranks are known", func() bool { return names() == "pod-rank-0/0 pod-rank-1/1" && r.sys.settled() })

	said := []message{user(words(1, 600))}
	for _, e := range engines {
		direct(t, r, e, words(1, 600))
	}
	blocks := func(rank int) int { return r.state(fmt.Sprintf("pod-rank-%d", rank)).Blocks }
	r.until("both hold it", func() bool {
		return blocks(0) > 10 && blocks(0) == engines[0].Blocks() && blocks(1) == engines[1].Blocks()
	})
	held := blocks(1)
	if !engines[0].ResetPrefixCache() {
		t.Fatal("rank 0 did not clear")
	}
	direct(t, r, engines[0], "hello") // vLLM publishes a clear with its next step
	r.until("rank 0 has lost it", func() bool { return blocks(0) < 10 })
	if got := blocks(1); got != held {
		t.Errorf("rank 1 holds %d blocks, want its %d", got, held)
	}
	for range 50 {
		p := r.chat(said, 1, "x", "1")
		if p.status != http.StatusOK || p.servedBy != engines[1].Name() {
			t.Fatalf("status %d, served by %q, want %q", p.status, p.servedBy, engines[1].Name())
		}
	}
	body := map[string]any{"model": "tiny", "messages": said, "max_tokens": 1}
	if p := r.post("/v1/chat/completions", body, epp.RankHeader, "0"); p.servedBy != engines[1].Name() {
		t.Errorf("a client's own rank led to %q", p.servedBy)
	}
	r.atRest()

	front.set(engines[1])
	engines[0].Crash()
	r.until("the engine is asked again", func() bool { return names() == "pod/" && r.sys.settled() })
	r.until("its cache is known", func() bool { return r.state("pod").Blocks == held })
	if p := r.must(said, 1); p.servedBy != engines[1].Name() {
		t.Errorf("served by %q", p.servedBy)
	}
	r.atRest()
}

// TestSourcesAreAskedAgain: an engine that restarts and publishes its events
// elsewhere is asked where, and what its former life held is forgotten.
func TestSourcesAreAskedAgain(t *testing.T) {
	engines := newRig(t, options{engines: 2}).engines
	defer http.DefaultClient.CloseIdleConnections()
	front := newManyRanks(t, engines[0])
	r := newRig(t, options{config: func(c *config.Config, _ []*epptest.Engine) {
		c.Pool.Endpoints = []config.Endpoint{{Name: "pod", Address: strings.TrimPrefix(front.URL, "http://")}}
	}})
	direct(t, r, engines[0], words(1, 600))
	direct(t, r, engines[1], words(2, 100))
	r.until("the first life's blocks are known", func() bool { return r.state("pod").Blocks == engines[0].Blocks() })
	front.set(engines[1])
	engines[0].Crash()
	r.until("the second life's are, and no others", func() bool {
		return r.state("pod").Blocks == engines[1].Blocks() && r.sys.index.Nodes() == engines[1].Blocks() && r.sys.settled()
	})
	r.atRest()
}
