package main

import (
	"fmt"
	"net"
	"strings"
	"testing"

	"epp.internal/epp/decision"
	"epp.internal/epp/picker"
)

// leaveWhileSending sends half of a request, waits until another one, behind it on
// its way, was served, and goes away.
func (r *rig) leaveWhileSending() {
	r.t.Helper()
	conn, err := net.Dial("tcp", strings.TrimPrefix(r.url, "http://"))
	if err != nil {
		r.t.Fatal(err)
	}
	if _, err := fmt.Fprintf(conn, "POST /v1/chat/completions HTTP/1.1\r\nHost: epp\r\nX-Request-Id: theirs\r\nContent-Length: 1000\r\n\r\n{"); err != nil {
		r.t.Error(err)
	}
	r.must([]message{user("one")}, 1)
	if err := conn.Close(); err != nil {
		r.t.Error(err)
	}
}

// wantGone waits for the record of the client that went away: with its line in the
// log, its place on the metrics page and nothing booked.
func (r *rig) wantGone() {
	r.t.Helper()
	var gone *decision.Record
	r.until("the client's leaving is recorded", func() bool {
		r.mu.Lock()
		defer r.mu.Unlock()
		for _, rec := range r.decided {
			if rec.Refused == picker.ClientGone.String() {
				gone = rec
			}
		}
		return gone != nil
	})
	if gone.ClientID == "" || // Envoy puts its own in the place of the client's
		gone.Path != "/v1/chat/completions" || gone.Chosen >= 0 {
		r.t.Errorf("record %+v", gone)
	}
	if n := r.metric("epp_routing_decisions_total", `outcome="client_gone"`); n != 1 {
		r.t.Errorf("%v on the metrics page", n)
	}
	if lines := r.log.find("refused", gone.RequestID); len(lines) != 1 || lines[0]["reason"] != "client_gone" {
		r.t.Errorf("log: %v", lines)
	}
	r.atRest()
}

// TestClientGoneWhileSending: a client that goes away while it sends its body is
// recorded, logged and counted as one that went away, through the proxy and through
// Envoy in each mode that shows it.
func TestClientGoneWhileSending(t *testing.T) {
	t.Run("proxy", func(t *testing.T) {
		r := newRig(t, options{engines: 1})
		r.leaveWhileSending()
		r.wantGone()
		if n := r.metric("epp_requests_total", `code="400"`); n != 0 {
			t.Errorf("%v counted as 400", n)
		}
	})
	for _, mode := range []string{envoyBuffered, envoyStreamed, envoyFullDuplex} {
		t.Run(mode, func(t *testing.T) {
			r := newEnvoyRig(t, envoyCase{mode, envoyOriginalDst}, options{engines: 1})
			r.leaveWhileSending()
			r.wantGone()
		})
	}
}
