package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"epp.internal/epp/config"
	"epp.internal/epp/epptest"
)

// TestCaseI1UsageThroughEnvoy: a stream's usage of 17 and 5 tokens is recorded
// once, with the end's marker in the same write, another, or none, and however
// the usage is cut into two writes; the client gets every byte as it was written.
func TestCaseI1UsageThroughEnvoy(t *testing.T) {
	const head = "data: {\"choices\":[{\"delta\":{\"content\":\"x\"}}]}\n\n"
	const usage = "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":17,\"completion_tokens\":5}}\n\n"
	for _, c := range []envoyCase{{envoyStreamed, envoyOriginalDst}, {envoyFullDuplex, envoyOriginalDst}} {
		t.Run(c.String(), func(t *testing.T) {
			var writes []string
			s := startPlain(t, func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Content-Type", "text/event-stream")
				for _, text := range writes {
					_, _ = io.WriteString(w, text)
					_ = http.NewResponseController(w).Flush()
				}
			})
			r := newEnvoyRig(t, c, options{config: only(s.Listener.Addr().String()), unsettled: true})
			for _, end := range []string{"data: [DONE]\n\n", ""} {
				for cut := range len(usage) {
					writes = []string{head, usage[:cut], usage[cut:] + end}
					p := r.must([]message{user("one")}, 5, "stream", "true")
					if want := head + usage + end; string(p.body) != want {
						t.Fatalf("cut at %d: the client got %q, want %q", cut, p.body, want)
					}
					r.atRest()
					if e := r.record(p).End; e.PromptTokens != 17 || e.CompletionTokens != 5 {
						t.Fatalf("cut at %d, end %q: recorded %+v", cut, end, e)
					}
				}
			}
		})
	}
}

// raw sends bytes to an HTTP server and returns its answer's status and body.
func raw(t *testing.T, address, request string) (int, string) {
	t.Helper()
	c, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if err := c.SetDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(c, request); err != nil {
		t.Fatal(err)
	}
	answer, err := io.ReadAll(c)
	if err != nil {
		t.Fatalf("%v\n%s", err, answer)
	}
	status := 0
	_, _ = fmt.Sscanf(string(answer), "HTTP/1.1 %d", &status)
	return status, string(answer)
}

// spoofs are requests of a client that names the victim itself, each with the
// status that it gets of a picker that is up. real is an endpoint of the pool.
func spoofs(victim, real string) map[string]struct {
	text string
	want int
} {
	const chat = `{"model":"tiny","messages":[{"role":"user","content":"one"}],"max_tokens":1}`
	type spoof = struct {
		text string
		want int
	}
	post := func(body string, headers ...string) string {
		return fmt.Sprintf("POST /v1/chat/completions HTTP/1.1\r\nhost: %s\r\nconnection: close\r\ncontent-type: application/json\r\ncontent-length: %d\r\n%s\r\n\r\n%s",
			victim, len(body), strings.Join(headers, "\r\n"), body)
	}
	const name = "x-gateway-destination-endpoint"
	return map[string]spoof{
		"POST":          {post(chat, name+": "+victim), 200},
		"GET":           {fmt.Sprintf("GET /v1/models HTTP/1.1\r\nhost: x\r\nconnection: close\r\n%s: %s\r\n\r\n", name, victim), 200},
		"rejected body": {post(`{"model":`, name+": "+victim), 400},
		"twice":         {post(chat, name+": "+victim, name+": "+victim), 200},
		"ours first":    {post(chat, name+": "+real, name+": "+victim), 200},
		"upper case":    {post(chat, strings.ToUpper(name)+": "+victim), 200},
		"a list":        {post(chat, name+": "+victim+","+real), 200},
		"fallback":      {post(chat, name+"-fallback: "+victim), 200},
		"served":        {post(chat, name+"-served: "+victim), 200},
		"subset":        {post(chat, name+"-subset: "+victim), 200},
		"prefiller":     {post(chat, "x-prefiller-host-port: "+victim), 200},
		"absolute form": {strings.Replace(post(chat, name+": "+victim), "POST /", "POST http://"+victim+"/", 1), 200},
	}
}

// TestCaseQ1ClientNeverChoosesAnAddress: a listener that is no endpoint never
// gets a connection, whatever headers a client sends, in any mode, with the
// picker up and down, fail-closed and fail-open.
func TestCaseQ1ClientNeverChoosesAnAddress(t *testing.T) {
	eachEnvoyCase(t, func(t *testing.T, c envoyCase) {
		v := newVictim(t)
		r := newEnvoyRig(t, c, options{engines: 2})
		try := func(t *testing.T, address string, check func(t *testing.T, status, up int, answer string)) {
			for name, s := range spoofs(v.Addr().String(), r.engines[0].Address()) {
				t.Run(name, func(t *testing.T) {
					status, answer := raw(t, address, s.text)
					check(t, status, s.want, answer)
					if n := v.count(); n != 0 {
						t.Fatalf("the victim was reached: %s", answer)
					}
				})
			}
		}
		t.Run("up", func(t *testing.T) {
			try(t, strings.TrimPrefix(r.url, "http://"), func(t *testing.T, status, up int, answer string) {
				if status != up {
					t.Errorf("%s\nwant %d", answer, up)
				}
			})
			r.atRest()
		})
		e := envoyConfig{mode: c.mode, upstream: c.upstream, pickers: []string{deadAddress(t)}}
		t.Run("down", func(t *testing.T) {
			try(t, runEnvoy(t, envoyFor(t, e, r.sys.cfg)).address, func(t *testing.T, status, _ int, answer string) {
				if status < 500 {
					t.Errorf("%s\nwant an error", answer)
				}
			})
		})
		t.Run("down and fail-open", func(t *testing.T) {
			text := failOpen(envoyFor(t, e, r.sys.cfg))
			try(t, runEnvoy(t, text).address, func(t *testing.T, status, up int, answer string) {
				// In full duplex Envoy cannot go on with a body that it has given away.
				served := status == up && c.override()
				refused := status == 503 && !c.override() || status == 500 && c.mode == envoyFullDuplex
				if !served && !refused {
					t.Errorf("%s\nwant an endpoint of the pool, or none", answer)
				}
			})
		})
	})
}

// failOpen turns a configuration into one that goes on without a picker, which
// the command refuses to write for original-dst.
func failOpen(configuration []byte) []byte {
	return bytes.Replace(configuration, []byte("failure_mode_allow: false"), []byte("failure_mode_allow: true"), 1)
}

// TestCaseQ1Counterpart: the filter before ext_proc is what protects the victim
// while the picker is down: without it Envoy obeys the client.
func TestCaseQ1Counterpart(t *testing.T) {
	v := newVictim(t)
	cfg := config.Default()
	text := failOpen(envoyFor(t, envoyConfig{mode: envoyBuffered, upstream: envoyOriginalDst, pickers: []string{deadAddress(t)}}, cfg))
	text = bytes.ReplaceAll(text, []byte("- remove: x-"), []byte("- remove: not-x-"))
	s := spoofs(v.Addr().String(), deadAddress(t))["POST"]
	status, answer := raw(t, runEnvoy(t, text).address, s.text)
	if status != 200 || !strings.HasSuffix(answer, "victim") || v.count() != 1 {
		t.Errorf("the victim was reached %d times: %s", v.count(), answer)
	}
}

// poolOf is the configuration of a picker process for endpoints, without a
// tokenizer: requests go by load.
func poolOf(extproc string, timeouts string, endpoints ...string) string {
	text := fmt.Sprintf("listen: {proxy: \"\", metrics: \"\", health: \"\", extProc: \"%s\"}\ntimeouts: %s\npool:\n  endpoints:\n", extproc, timeouts)
	for _, a := range endpoints {
		text += fmt.Sprintf("  - %s\n", a)
	}
	return text
}

// parsed is a configuration as the picker reads it.
func parsed(t *testing.T, text string) *config.Config {
	cfg, err := config.Parse("epp.yaml", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return cfg
}

// TestEnvoyWithoutPicker: the picker is killed. Fail-closed, clients get an
// error and no endpoint a request, and Envoy cuts the answers that run, in every
// mode: it waits for the picker until their end. Fail-open, an endpoint of the
// pool answers, and the answers that run go on. With the picker back on its
// address all is as before.
func TestEnvoyWithoutPicker(t *testing.T) {
	run := func(t *testing.T, e envoyConfig) {
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		a, err := epptest.StartEngine(epptest.EngineConfig{Name: "A", TimeScale: 0.01})
		if err != nil {
			t.Fatal(err)
		}
		defer a.Close()
		pool := poolOf("127.0.0.1:0", "{drain: 100ms, finish: 1s}", a.Address())
		picker := startCommand(t, ctx, pool)
		e.pickers = []string{picker.extproc}
		envoy := runEnvoy(t, envoyFor(t, e, parsed(t, pool)))
		client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
		ask := func() (int, string) {
			resp, err := client.Post("http://"+envoy.address+"/v1/completions", "application/json",
				strings.NewReader(`{"model":"tiny","prompt":"one","max_tokens":1}`))
			if err != nil {
				t.Fatal(err)
			}
			defer resp.Body.Close()
			body, err := io.ReadAll(resp.Body)
			if err != nil {
				t.Fatal(err)
			}
			return resp.StatusCode, string(body)
		}
		if status, body := ask(); status != 200 {
			t.Fatalf("with the picker: %d %s", status, body)
		}
		a.HoldAnswers(true)
		running, err := client.Post("http://"+envoy.address+"/v1/completions", "application/json",
			strings.NewReader(`{"model":"tiny","prompt":"one","max_tokens":100,"ignore_eos":true,"stream":true}`))
		if err != nil {
			t.Fatal(err)
		}
		defer running.Body.Close()
		if err := picker.cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		<-picker.done
		a.HoldAnswers(false)
		text, err := io.ReadAll(running.Body)
		if whole := err == nil && strings.HasSuffix(string(text), "[DONE]\n\n"); whole != e.failOpen {
			t.Errorf("an answer that ran when the picker was killed: whole %v, %v", whole, err)
		}
		before := a.Requests()
		for range 5 {
			status, body := ask()
			if e.failOpen && status != 200 || !e.failOpen && status < 500 {
				t.Errorf("without the picker: %d %s", status, body)
			}
		}
		if n := a.Requests() - before; e.failOpen && n != 5 || !e.failOpen && n != 0 {
			t.Errorf("without the picker the endpoint got %d requests", n)
		}
		startCommand(t, ctx, poolOf(picker.extproc, "{drain: 100ms, finish: 1s}", a.Address()))
		if status, body := ask(); status != 200 {
			t.Errorf("with the picker back: %d %s", status, body)
		}
	}
	eachEnvoyCase(t, func(t *testing.T, c envoyCase) { run(t, envoyConfig{mode: c.mode, upstream: c.upstream}) })
	for _, mode := range []string{envoyBuffered, envoyStreamed} {
		t.Run(mode+" fail-open", func(t *testing.T) {
			run(t, envoyConfig{mode: mode, upstream: envoyOverrideHost, failOpen: true})
		})
	}
}

// TestCaseM1PickerIsReplaced: 50 streams a second come through Envoy, of 4 s
// each in place of 20 s so that the test is short, to two pickers. One gets
// SIGTERM: it goes on with what it has, the other takes what comes, it ends with
// status 0 within its drain time and the longest stream + 2 s, and no client
// sees an error.
func TestCaseM1PickerIsReplaced(t *testing.T) {
	for _, mode := range []string{envoyBuffered, envoyFullDuplex} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			replacePicker(t, mode)
		})
	}
}

func replacePicker(t *testing.T, mode string) {
	const (
		perSecond = 50
		length    = 4 * time.Second
		events    = 8
		drain     = 2 * time.Second
	)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	s := startPlain(t, func(w http.ResponseWriter, req *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		tick := time.NewTicker(length / events)
		defer tick.Stop()
		for range events {
			_, _ = io.WriteString(w, "data: {\"choices\":[{\"delta\":{\"content\":\"x\"}}]}\n\n")
			_ = http.NewResponseController(w).Flush()
			select {
			case <-tick.C:
			case <-req.Context().Done():
				return
			}
		}
		_, _ = io.WriteString(w, "data: [DONE]\n\n")
	})
	pool := poolOf("127.0.0.1:0", "{drain: 2s, finish: 30s}", s.Listener.Addr().String())
	first, second := startCommand(t, ctx, pool), startCommand(t, ctx, pool)
	envoy := runEnvoy(t, envoyFor(t, envoyConfig{mode: mode, upstream: envoyOriginalDst, pickers: []string{first.extproc, second.extproc}}, parsed(t, pool)))
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 500}}
	defer client.CloseIdleConnections()
	var wg sync.WaitGroup
	pace := newPace(perSecond)
	defer pace.Stop()
	send := func(d time.Duration) {
		for range int(d.Seconds() * perSecond) {
			<-pace.C
			wg.Go(func() {
				resp, err := client.Post("http://"+envoy.address+"/v1/completions", "application/json",
					strings.NewReader(`{"model":"tiny","prompt":"one","stream":true}`))
				if err != nil {
					t.Error(err)
					return
				}
				defer resp.Body.Close()
				body, err := io.ReadAll(resp.Body)
				if err != nil || resp.StatusCode != 200 || strings.Count(string(body), "data:") != events+1 {
					t.Errorf("%d %v after %d events: %.200s", resp.StatusCode, err, strings.Count(string(body), "data:"), body)
				}
			})
		}
	}
	send(2 * time.Second)
	if err := first.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	stopped := time.Now()
	send(drain + length)
	if err := <-first.done; err != nil {
		t.Errorf("the first picker's end: %v", err)
	}
	if d := time.Since(stopped); d < drain || d > drain+length+2*time.Second {
		t.Errorf("the first picker ended %v after the signal", d)
	}
	send(time.Second)
	wg.Wait()
	for i, c := range []*command{first, second} {
		if n := len(c.log.find("selected", "")); n < perSecond/2 {
			t.Errorf("picker %d picked %d times", i+1, n)
		}
	}
}
