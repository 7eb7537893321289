package main

import (
	"encoding"
	"errors"
	"fmt"
	"reflect"
	"time"

	"epp.internal/epp/config"
	"epp.internal/epp/route"
)

// changeable says of each setting whether it can change while we serve. What cannot
// is what was built from it: sockets, memory, connections to engines.
var changeable = map[string]bool{
	"kubernetes.pool": false, "kubernetes.kubeconfig": false,
	"pool.endpoints": true, "pool.allowLinkLocal": true, "pool.engine": false, "pool.gpu.dcgm": false, "pool.gpu.gpus": false,

	"weights": true, "policy": true, "gate": true, "spread.cold": true, "spread.hot": true,
	"maxQueue": true, "onSaturated": true, "load.source": true, "load.maxUtilization": true,
	"load.maxRunning": false, // the fleet learns slots, or not, from the start on

	"cache.source": false, "cache.ownTTL": false, "cache.tiers.cpu": false, "cache.tiers.disk": false,
	"probe.interval": false, "probe.timeout": false,

	"models": true, "defaultModel": true, "objectives": true, "fallbacks": false, "forwardEncoded": false,

	"listen.proxy": false, "listen.metrics": false, "listen.extProc": false, "listen.health": false, "listen.reports": false,
	"tls.cert": false, "tls.key": false, "tls.insecure": false,
	"reports.tokenFile": false, "reports.clientCA": false, "reports.anyHost": false, "reports.podReportIntervalMs": true,

	"tokenizer.path": false, "tokenizer.mode": false, "tokenizer.askEngines": false, "tokenizer.askBudget": false,
	"kvEvents.port": false, "kvEvents.replayPort": false, "kvEvents.topic": false, "kvEvents.discover": false,

	"timeouts.answer": false, "timeouts.drain": false, "timeouts.finish": false,
	"limits.bodyBytes": false, "limits.promptBytes": false, "limits.bodiesBytes": false, "limits.headerBytes": false,
	"limits.indexBytes": false, "limits.ownBlocks": false, "limits.ringBytes": false,
	"log.level": false, "log.decisions": false, "log.decisionsBytes": false,
}

// apply makes cfg the settings in force while we serve: no request is lost, no block of
// the index, and each decision is made by the settings before or after, whose version
// its record has. The error names all that is wrong, and all that needs a restart;
// then nothing has changed, and a metric counts it. What is in force already is no
// change. cfg must not change any more.
func (s *system) apply(cfg *config.Config) error {
	s.applying.Lock()
	defer s.applying.Unlock()
	if reflect.DeepEqual(s.live.Load(), cfg) {
		return nil
	}
	err := s.refusal(cfg)
	s.metrics.Applied(err)
	if err != nil {
		return err
	}
	former := s.live.Swap(cfg)
	s.picker.SetNames(names(cfg))
	s.metrics.SetModels(cfg.ModelNames())
	s.renew()
	if !reflect.DeepEqual(former.Pool.Endpoints, cfg.Pool.Endpoints) {
		s.setEndpoints(static(cfg))
	}
	s.log.Info("settings applied", "version", s.picker.Policy().Settings.Version)
	return nil
}

// refusal says why cfg cannot be put in force; nil: it can.
func (s *system) refusal(cfg *config.Config) error {
	var faults []error
	settings(s.live.Load(), cfg, func(path string, a, b reflect.Value) {
		if !changeable[path] && !sameValue(a, b) {
			faults = append(faults, fmt.Errorf("%s: needs a restart", path))
		}
	})
	for _, f := range cfg.Validate() {
		faults = append(faults, errors.New(f.String()))
	}
	if len(faults) > 0 {
		return errors.Join(faults...)
	}
	_, err := route.New(cfg.Settings(staleAfter(0)))
	return err
}

// sameValue reports whether two values of a setting mean the same: an empty list is
// none.
func sameValue(a, b reflect.Value) bool {
	if k := a.Kind(); (k == reflect.Slice || k == reflect.Map) && a.Len() == 0 && b.Len() == 0 {
		return true
	}
	return reflect.DeepEqual(a.Interface(), b.Interface())
}

// settings calls each for every setting, with its path and its values in a and b.
func settings(a, b *config.Config, each func(path string, a, b reflect.Value)) {
	var walk func(path string, a, b reflect.Value)
	walk = func(path string, a, b reflect.Value) {
		for i := range a.NumField() {
			x, y, at := a.Field(i), b.Field(i), path+a.Type().Field(i).Tag.Get("json")
			if _, text := x.Interface().(encoding.TextMarshaler); x.Kind() == reflect.Struct && !text {
				walk(at+".", x, y)
				continue
			}
			each(at, x, y)
		}
	}
	walk("", reflect.ValueOf(a).Elem(), reflect.ValueOf(b).Elem())
}

// renew makes decisions by the settings in force and the number of endpoints that there
// are now: by a policy of a new version where that is another.
func (s *system) renew() {
	s.renewing.Lock()
	defer s.renewing.Unlock()
	former := s.picker.Policy().Settings
	now := s.live.Load().Settings(staleAfter(int(s.joined.Load())))
	now.Version = former.Version
	if reflect.DeepEqual(now, former) {
		return
	}
	now.Version++
	policy, err := route.New(now)
	if err != nil { // apply has refused such settings
		s.log.Error("settings not renewed, the former stay", "error", err)
		return
	}
	s.picker.SetPolicy(policy)
}

// reportInterval is the longest pause between two reports of an agent, as it is now.
func (s *system) reportInterval() time.Duration { return s.live.Load().ReportInterval() }
