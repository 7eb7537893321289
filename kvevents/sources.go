package kvevents

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
)

// maxSources bounds the answer that names the sources: 1 MiB, some thousand ranks.
const maxSources = 1 << 20

// Source says where the events of one data-parallel rank come from.
type Source struct {
	Rank    int
	Address string // host:port of the PUB socket
	Replay  string // host:port of the replay socket; empty where there is none
	Topic   string
}

// Sources asks the engine at addr (host:port of its API) where its events come
// from, and returns them by rank. An engine that does not know the question, as
// vLLM before it had /kv_event_sources, has none: that is no error. Redirects
// are not followed, and a source on another host than the engine's is an error:
// an engine speaks for itself alone.
//
// Source: GET /kv_event_sources of vLLM 0.32:
//
//	{"0": {"enable_kv_cache_events": true, "publisher": "zmq", "endpoint": "tcp://*:5557",
//	       "replay_endpoint": "tcp://*:5558", "topic": "…", …}}
func Sources(ctx context.Context, client *http.Client, addr string) ([]Source, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+addr+"/kv_event_sources", nil)
	if err != nil {
		return nil, fmt.Errorf("kv event sources of %q: %w", addr, err)
	}
	direct := *client
	direct.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	resp, err := direct.Do(req)
	if err != nil {
		return nil, fmt.Errorf("kv event sources of %q: %w", addr, err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxSources+1))
	switch {
	case err != nil:
		return nil, fmt.Errorf("kv event sources of %q: %w", addr, err)
	case resp.StatusCode == http.StatusNotFound || resp.StatusCode == http.StatusMethodNotAllowed:
		return nil, nil
	case resp.StatusCode != http.StatusOK:
		return nil, fmt.Errorf("kv event sources of %q: status %d", addr, resp.StatusCode)
	case len(body) > maxSources:
		return nil, fmt.Errorf("kv event sources of %q: answer over %d bytes", addr, maxSources)
	}
	host, _, err := net.SplitHostPort(addr)
	if err != nil {
		return nil, fmt.Errorf("kv event sources of %q: %w", addr, err)
	}
	sources, err := parseSources(body, host)
	if err != nil {
		return nil, fmt.Errorf("kv event sources of %q: %w", addr, err)
	}
	return sources, nil
}

// parseSources reads the answer of an engine on host.
func parseSources(body []byte, host string) ([]Source, error) {
	var ranks map[string]struct {
		Enabled   bool   `json:"enable_kv_cache_events"`
		Publisher string `json:"publisher"`
		Endpoint  string `json:"endpoint"`
		Replay    string `json:"replay_endpoint"`
		Topic     string `json:"topic"`
	}
	if err := json.Unmarshal(body, &ranks); err != nil {
		return nil, err
	}
	var sources []Source
	for name, r := range ranks {
		if !r.Enabled || r.Publisher != "zmq" {
			continue
		}
		rank, err := strconv.ParseUint(name, 10, 16)
		if err != nil {
			return nil, fmt.Errorf("rank %q: not a number", name)
		}
		s := Source{Rank: int(rank), Topic: r.Topic}
		if s.Address, err = hostPort(r.Endpoint, host); err != nil {
			return nil, fmt.Errorf("rank %d: endpoint: %w", rank, err)
		}
		if r.Replay != "" {
			if s.Replay, err = hostPort(r.Replay, host); err != nil {
				return nil, fmt.Errorf("rank %d: replay_endpoint: %w", rank, err)
			}
		}
		sources = append(sources, s)
	}
	slices.SortFunc(sources, func(a, b Source) int { return a.Rank - b.Rank })
	return sources, nil
}

// hostPort turns a ZMQ endpoint that an engine on host listens at into an
// address to dial: "tcp://*:5557" -> "10.0.0.7:5557".
func hostPort(endpoint, host string) (string, error) {
	address, ok := strings.CutPrefix(endpoint, "tcp://")
	if !ok {
		return "", fmt.Errorf("%q: not tcp://", endpoint)
	}
	i := strings.LastIndexByte(address, ':')
	if i < 0 {
		return "", fmt.Errorf("%q: no port", endpoint)
	}
	at, port := strings.Trim(address[:i], "[]"), address[i+1:]
	if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
		return "", fmt.Errorf("%q: bad port %q", endpoint, port)
	}
	switch at {
	case "*", "", "0.0.0.0", "::", host:
		return net.JoinHostPort(host, port), nil
	}
	return "", fmt.Errorf("%q: host %q is not the engine's, %q", endpoint, at, host)
}
