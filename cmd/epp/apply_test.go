package main

import (
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"reflect"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"epp.internal/epp/config"
	"epp.internal/epp/decision"
	"epp.internal/epp/epptest"
)

// TestEverySettingIsClassified: each setting is either changeable or not, in one table
// that has no other line, and apply refuses exactly those that are not, by name. A new
// setting fails here until it is decided about.
func TestEverySettingIsClassified(t *testing.T) {
	base := func() *config.Config {
		c := config.Default()
		c.Pool.Endpoints = []config.Endpoint{{Name: "a", Address: "10.0.0.7:8000"}}
		return c
	}
	var paths []string
	settings(base(), base(), func(path string, _, _ reflect.Value) { paths = append(paths, path) })
	slices.Sort(paths)
	if table := slices.Sorted(maps.Keys(changeable)); !slices.Equal(paths, table) {
		t.Fatalf("settings without a line in changeable: %v; lines without a setting: %v",
			slices.DeleteFunc(slices.Clone(paths), func(p string) bool { _, ok := changeable[p]; return ok }),
			slices.DeleteFunc(table, func(p string) bool { return slices.Contains(paths, p) }))
	}
	for _, path := range paths {
		s, err := build(base(), nil, slog.New(slog.DiscardHandler), watch{})
		if err != nil {
			t.Fatal(err)
		}
		other := base()
		settings(other, other, func(at string, v, _ reflect.Value) {
			if at == path {
				alter(t, path, v)
			}
		})
		err = s.apply(other)
		refused := err != nil && strings.Contains("\n"+err.Error()+"\n", "\n"+path+": needs a restart\n")
		if refused == changeable[path] {
			t.Errorf("%s: %v, but changeable is %v", path, err, changeable[path])
		}
		if refused && s.live.Load() == other {
			t.Errorf("%s: refused, and in force all the same", path)
		}
		s.roster.close()
	}
}

// alter makes a setting another one; whether a valid one is not asked.
func alter(t *testing.T, path string, v reflect.Value) {
	switch v.Kind() {
	case reflect.String:
		v.SetString(v.String() + "x")
	case reflect.Bool:
		v.SetBool(!v.Bool())
	case reflect.Int, reflect.Int64:
		v.SetInt(v.Int() + 1)
	case reflect.Float64:
		v.SetFloat(v.Float() / 2)
	case reflect.Slice:
		v.Set(reflect.Append(v, reflect.New(v.Type().Elem()).Elem()))
	case reflect.Map:
		v.Set(reflect.MakeMap(v.Type()))
	case reflect.Struct: // a duration
		v.Field(0).SetInt(v.Field(0).Int() + 1)
	default:
		t.Fatalf("%s: a %v, which this test cannot alter", path, v.Kind())
	}
}

// TestApply: each setting that may change does, in the decisions, the models, the
// metrics and the pool that follow; the version counts changes of decisions alone.
func TestApply(t *testing.T) {
	base := config.Default()
	base.Pool.Endpoints = []config.Endpoint{{Address: "127.0.0.1:8"}}
	s, err := build(base, nil, slog.New(slog.DiscardHandler), watch{})
	if err != nil {
		t.Fatal(err)
	}
	defer s.roster.close()
	for _, c := range []struct {
		what   string
		change func(c *config.Config)
		ok     func(now *decision.Settings) bool
	}{
		{"weights", func(c *config.Config) {
			c.Weights = map[string]float64{decision.CacheScorer: 0.25, decision.LoadScorer: 0.75}
		}, func(now *decision.Settings) bool { return now.Weights[1].Value == 0.75 }},
		{"maxQueue", func(c *config.Config) { c.MaxQueue = 7 }, func(now *decision.Settings) bool { return now.MaxQueue == 7 }},
		{"onSaturated", func(c *config.Config) { c.OnSaturated = decision.Reject }, func(now *decision.Settings) bool { return now.OnSaturated == decision.Reject }},
		{"load", func(c *config.Config) { c.Load.Source, c.Load.MaxUtilization = decision.LoadKV, 0.5 }, func(now *decision.Settings) bool {
			return now.Load.Source == decision.LoadKV && now.Load.MaxUtilization == 0.5
		}},
		{"spread", func(c *config.Config) { c.Spread.Cold, c.Spread.Hot = true, true }, func(now *decision.Settings) bool { return now.Spread.Cold && now.Spread.Hot }},
		{"gate", func(c *config.Config) { c.Gate.Duration = time.Second }, func(now *decision.Settings) bool { return now.Gate == time.Second }},
		{"policy", func(c *config.Config) { c.Spread, c.Policy = config.Spread{}, decision.Latency }, func(now *decision.Settings) bool { return now.Policy == decision.Latency }},
	} {
		before := s.picker.Policy().Settings.Version
		cfg := *s.live.Load()
		c.change(&cfg)
		if err := s.apply(&cfg); err != nil {
			t.Errorf("%s: %v", c.what, err)
		}
		if now := s.picker.Policy().Settings; !c.ok(now) || now.Version != before+1 {
			t.Errorf("%s: version %d after %d: %+v", c.what, now.Version, before, now)
		}
	}
	version := s.picker.Policy().Settings.Version
	cfg := *s.live.Load()
	cfg.Reports.PodReportIntervalMs = 700
	cfg.Models = []config.Model{{Name: "alias", Target: "m"}}
	if err := s.apply(&cfg); err != nil || s.reportInterval() != 700*time.Millisecond || s.picker.Policy().Settings.Version != version {
		t.Errorf("interval and models: %v, %v by version %d after %d", err, s.reportInterval(), s.picker.Policy().Settings.Version, version)
	}
	fixed := cfg
	fixed.Pool.Endpoints = []config.Endpoint{{Address: "127.0.0.1:9"}, {Address: "127.0.0.2:9"}}
	if err := s.apply(&fixed); err != nil || len(s.fleet.Snapshot()) != 2 {
		t.Errorf("endpoints: %v, %d of 2 are there", err, len(s.fleet.Snapshot()))
	}
}

// TestCaseN4Reload: settings change while requests come, 100 a second and more. A change
// whose second half is broken leaves all as it was, and a metric says so; a good one
// counts from the next decision on. No request fails of either.
func TestCaseN4Reload(t *testing.T) {
	r := newRig(t, options{engines: 2, config: func(c *config.Config, _ []*epptest.Engine) {
		c.Timeouts.Drain.Duration = 100 * time.Millisecond
		c.Models = []config.Model{{Name: "old", Target: "tiny"}}
	}})
	var stop atomic.Bool
	var sent atomic.Int64
	done := make(chan struct{})
	go func() {
		defer close(done)
		for i := uint64(0); !stop.Load(); i++ {
			if p := r.chat([]message{user(words(i%5, 60))}, 1); p.err != nil || p.status != http.StatusOK {
				t.Errorf("request %d: %d %s %v", i, p.status, p.body, p.err)
			}
			sent.Add(1)
		}
	}()
	passed := func(n int64) {
		was := sent.Load()
		r.until("requests passed", func() bool { return sent.Load() >= was+n })
	}
	ask := func(model string) int {
		return r.post("/v1/completions", map[string]any{"model": model, "prompt": []int{1, 2, 3}, "max_tokens": 1}).status
	}
	passed(50)
	before, blocks := r.sys.picker.Policy(), r.state("A").Blocks+r.state("B").Blocks
	for _, c := range []struct {
		change func(c *config.Config)
		want   []string
	}{
		{func(c *config.Config) {
			c.Weights, c.MaxQueue = map[string]float64{decision.CacheScorer: 1}, 0
			c.Models = []config.Model{{Name: "new", Target: "tiny"}}
		}, []string{"maxQueue: 0 is out of range"}},
		{func(c *config.Config) { c.Weights = map[string]float64{decision.CacheScorer: 1.2} }, []string{"weights: sum to 1.2; want 1"}},
		{func(c *config.Config) { c.MaxQueue, c.Listen.Proxy, c.Limits.BodyBytes = 9, ":1", 2048 }, []string{"listen.proxy: needs a restart", "limits.bodyBytes: needs a restart"}},
		{func(c *config.Config) {
			zero := 0
			c.Models = []config.Model{{Name: "m", Targets: []config.Target{{Name: "tiny", Weight: &zero}}}}
		}, []string{"models[0].targets: have no weight above 0"}},
		{func(c *config.Config) { c.Pool.Endpoints = nil }, []string{"pool.endpoints: is empty"}},
	} {
		cfg := *r.sys.live.Load()
		c.change(&cfg)
		err := r.sys.apply(&cfg)
		for _, want := range c.want {
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%v, want %s", err, want)
			}
		}
		passed(10)
		if r.sys.picker.Policy() != before || ask("old") != http.StatusOK || ask("new") != http.StatusNotFound || len(r.sys.fleet.Snapshot()) != 2 {
			t.Errorf("after a change that was refused (%v) something is not as it was", c.want)
		}
	}
	if n := r.metric("epp_settings_changes_total", `"refused"`); n != 5 {
		t.Errorf("%v changes counted as refused, of 5", n)
	}
	cfg := *r.sys.live.Load()
	cfg.Weights, cfg.MaxQueue = map[string]float64{decision.CacheScorer: 0.5, decision.QueueScorer: 0.5}, 9
	cfg.Models = []config.Model{{Name: "new", Target: "tiny"}}
	if err := r.sys.apply(&cfg); err != nil {
		t.Fatal(err)
	}
	p := r.must([]message{user("hello")}, 1)
	if now := r.record(p).Settings; now.Version != before.Settings.Version+1 || now.MaxQueue != 9 {
		t.Errorf("the next decision was made by %+v", now)
	}
	if ask("new") != http.StatusOK || ask("old") != http.StatusNotFound {
		t.Error("models are not those of the change")
	}
	list := fmt.Sprint(r.sys.models())
	if !strings.Contains(list, "new") || strings.Contains(list, "old") {
		t.Errorf("listed are %s", list)
	}
	passed(50)
	stop.Store(true)
	<-done
	if n := r.state("A").Blocks + r.state("B").Blocks; n < blocks {
		t.Errorf("the index holds %d blocks after, %d before", n, blocks)
	}
	if n := r.metric("epp_settings_changes_total", `"applied"`); n != 1 {
		t.Errorf("%v changes counted as applied, of 1", n)
	}
	if n := r.metric("epp_max_queue"); n != 9 {
		t.Errorf("the page says maxQueue %v", n)
	}
	r.atRest()
}
