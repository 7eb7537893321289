package report

import (
	"errors"
	"strings"
	"syscall"
	"time"

	"epp.internal/epp"
	"epp.internal/epp/report/wire"
)

// gauge reads a value that may be missing.
func gauge(v *float64) epp.Gauge {
	if v == nil {
		return epp.Gauge{}
	}
	return epp.Known(*v)
}

// value is the inverse of gauge.
func value(g epp.Gauge) *float64 {
	if !g.Known {
		return nil
	}
	return &g.Value
}

func loadOf(r *wire.Reading) epp.Load {
	return epp.Load{
		Waiting: gauge(r.Waiting), Running: gauge(r.Running), KVUsage: gauge(r.KvUsage),
		BlockTokens: min(int(r.BlockTokens), maxBlockTokens), Blocks: int(r.Blocks),
		Adapters: r.Adapters, MaxAdapters: min(int(r.MaxAdapters), maxNames),
		PromptTokens: gauge(r.PromptTokens), CachedTokens: gauge(r.CachedTokens), GeneratedTokens: gauge(r.GeneratedTokens),
		FirstTokenSeconds: gauge(r.FirstTokenSeconds), Asleep: r.Asleep,
	}
}

// ReadingOf writes a reading in its wire form, or, where err is set, why there is
// none.
func ReadingOf(number uint64, l *epp.Load, err error) *wire.Reading {
	if err != nil {
		return &wire.Reading{Number: number, Failed: errorText(err), Refused: errors.Is(err, syscall.ECONNREFUSED)}
	}
	return &wire.Reading{
		Number: number, Waiting: value(l.Waiting), Running: value(l.Running), KvUsage: value(l.KVUsage),
		BlockTokens: uint32(l.BlockTokens), Blocks: uint32(l.Blocks),
		Adapters: l.Adapters[:min(len(l.Adapters), maxNames)], MaxAdapters: uint32(l.MaxAdapters),
		PromptTokens: value(l.PromptTokens), CachedTokens: value(l.CachedTokens), GeneratedTokens: value(l.GeneratedTokens),
		FirstTokenSeconds: value(l.FirstTokenSeconds), Asleep: l.Asleep,
	}
}

// The most that is believed, as of the engine's page and a DCGM exporter's; what is
// above is unknown.
const (
	maxRequests = 1e9     // waiting or running
	maxCounter  = 1 << 53 // tokens or seconds since the engine's start: exact in a float64
	maxDegrees  = 1000
	maxErrors   = 1 << 31
)

// believed leaves out of a reading what can't be.
func believed(l epp.Load) epp.Load {
	for _, g := range []*epp.Gauge{&l.Waiting, &l.Running} {
		atMost(g, maxRequests)
	}
	for _, g := range []*epp.Gauge{&l.PromptTokens, &l.CachedTokens, &l.GeneratedTokens, &l.FirstTokenSeconds} {
		atMost(g, maxCounter)
	}
	atMost(&l.KVUsage, 1)
	return l
}

// believedGPU is the same of the accelerators.
func believedGPU(g epp.GPU) epp.GPU {
	atMost(&g.Utilization, 1)
	atMost(&g.Memory, 1)
	atMost(&g.Temperature, maxDegrees)
	atMost(&g.DoubleBitErrors, maxErrors)
	return g
}

// atMost makes a value above limit unknown.
func atMost(g *epp.Gauge, limit float64) {
	if g.Value > limit {
		*g = epp.Gauge{}
	}
}

// errorText is what err says, as far as a report has room for it, and not empty.
func errorText(err error) string {
	text := strings.ToValidUTF8(err.Error(), "?")
	if text == "" {
		text = "error"
	}
	for len(text) > maxError {
		text = strings.ToValidUTF8(text[:maxError], "")
	}
	return text
}

// ModelsOf writes a list of models in its wire form, as far as a report has room.
func ModelsOf(models []epp.Model) *wire.Models {
	out := &wire.Models{}
	for _, m := range models {
		if len(out.Models) < maxNames && len(m.Name) <= maxName && len(m.Parent) <= maxName {
			out.Models = append(out.Models, &wire.Model{Name: m.Name, Parent: m.Parent, MaxTokens: uint32(m.MaxTokens)})
		}
	}
	return out
}

func gpuOf(g *wire.GPU) epp.GPU {
	out := epp.GPU{
		Utilization: gauge(g.Utilization), Memory: gauge(g.Memory), Temperature: gauge(g.Temperature), DoubleBitErrors: gauge(g.DoubleBitErrors),
	}
	for _, x := range g.Xids {
		out.XIDs = append(out.XIDs, int(x))
	}
	return out
}

// GPUOf writes a reading of the accelerators in its wire form.
func GPUOf(g epp.GPU) *wire.GPU {
	out := &wire.GPU{
		Utilization: value(g.Utilization), Memory: value(g.Memory), Temperature: value(g.Temperature), DoubleBitErrors: value(g.DoubleBitErrors),
	}
	for _, x := range g.XIDs[:min(len(g.XIDs), maxXIDs)] {
		out.Xids = append(out.Xids, uint32(x))
	}
	return out
}

// ProbeOf writes how a probe ended in its wire form. They are numbered from 1.
func ProbeOf(number uint64, err error, slowly bool) *wire.Probe {
	p := &wire.Probe{Number: number, Slowly: slowly}
	if err != nil {
		p.Failed = errorText(err)
	}
	return p
}

// AgeOf is the age of a block's end in its wire form, nil where it is too old to
// be told.
func AgeOf(age time.Duration) *uint32 {
	if age > maxAge {
		return nil
	}
	ms := uint32(max(0, age).Milliseconds())
	return &ms
}

// Age writes how long ago a reading began into it.
func Age(r *wire.Reading, age time.Duration) {
	r.AgeMs = uint32(min(max(0, age), maxAge).Milliseconds())
}
