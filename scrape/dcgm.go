package scrape

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"math"
	"slices"
	"time"

	"epp.internal/epp"
)

const (
	// gpuEvery is the interval between two readings of a DCGM exporter, which itself
	// reads its GPUs every 30 s where nobody has set another interval.
	gpuEvery = time.Second
	// maxGPUs bounds the GPUs that are told apart on one page: more than a host has.
	maxGPUs = 64
	// faultsForgotten is how long after the last page a GPU's fault is remembered.
	faultsForgotten = time.Minute
	// maxXID bounds an error's number; the catalogue ends below 200.
	maxXID = 1 << 16
	// maxDegrees and maxMiB are far above any GPU's.
	maxDegrees = 1000
	maxMiB     = 1 << 30
	// blank is the least of DCGM's numbers that stand for no value: this GPU has
	// none, or none yet. Source: dcgm_structs.h, DCGM_INT32_BLANK and DCGM_INT64_BLANK.
	blank = 0x7ffffff0
)

// The metrics of NVIDIA's DCGM exporter that are read, gauges and counters with
// one series for each GPU. Which of them it serves is its own setting;
// utilization, temperature, memory and XID are in its default list.
//
// Source: etc/default-counters.csv of the exporter.
const (
	dcgmUtil = "DCGM_FI_DEV_GPU_UTIL" // %
	dcgmTemp = "DCGM_FI_DEV_GPU_TEMP" // °C
	dcgmUsed = "DCGM_FI_DEV_FB_USED"  // MiB
	dcgmFree = "DCGM_FI_DEV_FB_FREE"  // MiB
	dcgmXID  = "DCGM_FI_DEV_XID_ERRORS"
	dcgmDBE  = "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL" // since the driver was loaded
)

// GPUTarget says which GPUs of which exporter are an endpoint's.
type GPUTarget struct {
	// URL is the exporter's page.
	URL string
	// GPUs are those of the endpoint, as the label "gpu" or "UUID" has them. Empty:
	// those whose label "pod" is Pod, where the page has any, else all.
	GPUs []string
	Pod  string
}

// gpuReading is what was read of one GPU.
type gpuReading struct {
	id, pod []byte
	ours    bool // named by the target

	util, temp, used, free, xid, dbe epp.Gauge
}

// parseGPUs reads all GPUs of an exporter's page. A line that can't be read, or
// whose value can't be, is passed over and told by the error; the rest is used.
func parseGPUs(page []byte, t GPUTarget) (gpus []gpuReading, err error) {
	for line, whole := range lines(page) {
		if !bytes.HasPrefix(line, []byte("DCGM_FI_DEV_")) {
			continue
		}
		if fault := gpuLine(line, whole, t, &gpus); fault != nil && err == nil {
			err = fault
		}
	}
	return gpus, err
}

// faults are what is remembered of an endpoint's GPUs between two pages: one that
// falls off the bus may be gone from the next page, and takes its fault along. The
// zero faults remember nothing.
type faults struct {
	of []fault
	at time.Time // of the last page that was read
}

// fault is one GPU's last error and its memory errors, as far as they are known.
type fault struct {
	id       string
	xid, dbe epp.Gauge
}

// remember adds to a reading what GPUs had that were the endpoint's and are on the
// page no more, or that is told of them no more, and keeps what they have now. on are
// the GPUs of the page, ours those of the endpoint. After a minute without a page,
// as when a host is restarted, nothing is remembered.
func (f *faults) remember(now time.Time, on, ours []gpuReading) (gone epp.GPU) {
	if now.Sub(f.at) > faultsForgotten {
		f.of = nil
	}
	f.at = now
	former := f.of
	f.of = nil
	for i := range ours {
		r := &ours[i]
		k := fault{id: string(r.id), xid: r.xid, dbe: r.dbe}
		if i := slices.IndexFunc(former, func(k fault) bool { return k.id == string(r.id) }); i >= 0 {
			if !k.xid.Known {
				k.xid = former[i].xid
				gone.XIDs = appendXID(gone.XIDs, k.xid)
			}
			if !k.dbe.Known && former[i].dbe.Known {
				k.dbe = former[i].dbe
				gone.DoubleBitErrors = epp.Known(gone.DoubleBitErrors.Value + k.dbe.Value)
			}
		}
		f.of = append(f.of, k)
	}
	for _, k := range former {
		there := slices.ContainsFunc(on, func(r gpuReading) bool { return string(r.id) == k.id })
		if there || len(f.of) == maxGPUs {
			continue
		}
		f.of = append(f.of, k)
		gone.XIDs = appendXID(gone.XIDs, k.xid)
		if k.dbe.Known {
			gone.DoubleBitErrors = epp.Known(gone.DoubleBitErrors.Value + k.dbe.Value)
		}
	}
	return gone
}

// gpuLine reads one line into the GPU that it is of.
func gpuLine(line []byte, whole bool, t GPUTarget, gpus *[]gpuReading) error {
	for _, m := range [...]struct {
		name  string
		limit float64
		to    func(*gpuReading) *epp.Gauge
	}{
		{dcgmUtil, 100, func(r *gpuReading) *epp.Gauge { return &r.util }},
		{dcgmTemp, maxDegrees, func(r *gpuReading) *epp.Gauge { return &r.temp }},
		{dcgmUsed, maxMiB, func(r *gpuReading) *epp.Gauge { return &r.used }},
		{dcgmFree, maxMiB, func(r *gpuReading) *epp.Gauge { return &r.free }},
		{dcgmXID, maxXID, func(r *gpuReading) *epp.Gauge { return &r.xid }},
		{dcgmDBE, blank, func(r *gpuReading) *epp.Gauge { return &r.dbe }},
	} {
		rest, ok := series(line, m.name)
		if !ok {
			continue
		}
		labels, text, err := split(rest, whole)
		if err != nil {
			return fmt.Errorf("%s: %w", m.name, err)
		}
		r := gpuOf(labels, t, gpus)
		if r == nil {
			return fmt.Errorf("%s: over %d GPUs", m.name, maxGPUs)
		}
		v, err := number(text, math.MaxFloat64)
		if err == nil && v >= blank {
			continue
		}
		if err != nil || v > m.limit {
			return fmt.Errorf("%s: bad value %q", m.name, text[:min(len(text), 64)])
		}
		*m.to(r) = epp.Known(v)
	}
	return nil
}

// gpuOf returns the reading of the GPU that a series is of, or nil where there
// are too many.
func gpuOf(labels []byte, t GPUTarget, gpus *[]gpuReading) *gpuReading {
	number, _ := label(labels, "gpu")
	uuid, _ := label(labels, "UUID")
	id := uuid
	if len(id) == 0 {
		id = number
	}
	for i := range *gpus {
		if bytes.Equal((*gpus)[i].id, id) {
			return &(*gpus)[i]
		}
	}
	if len(*gpus) == maxGPUs {
		return nil
	}
	pod, _ := label(labels, "pod")
	ours := slices.ContainsFunc(t.GPUs, func(s string) bool { return s == string(number) || s == string(uuid) })
	*gpus = append(*gpus, gpuReading{id: id, pod: pod, ours: ours})
	return &(*gpus)[len(*gpus)-1]
}

// chosen are the GPUs that are the target's.
func chosen(gpus []gpuReading, t GPUTarget) []gpuReading {
	if len(t.GPUs) > 0 {
		return slices.DeleteFunc(gpus, func(r gpuReading) bool { return !r.ours })
	}
	if slices.ContainsFunc(gpus, func(r gpuReading) bool { return len(r.pod) > 0 }) {
		return slices.DeleteFunc(gpus, func(r gpuReading) bool { return string(r.pod) != t.Pod })
	}
	return gpus
}

// together is what several GPUs are to the engine that runs on all of them.
func together(gpus []gpuReading) (g epp.GPU) {
	busy := 0.0
	known := len(gpus) > 0
	for i := range gpus {
		r := &gpus[i]
		known = known && r.util.Known
		busy += r.util.Value / 100
		most(&g.Temperature, r.temp)
		if r.used.Known && r.free.Known && r.used.Value+r.free.Value > 0 {
			most(&g.Memory, epp.Known(r.used.Value/(r.used.Value+r.free.Value)))
		}
		if r.dbe.Known {
			g.DoubleBitErrors = epp.Known(g.DoubleBitErrors.Value + r.dbe.Value)
		}
		g.XIDs = appendXID(g.XIDs, r.xid)
	}
	if known {
		g.Utilization = epp.Known(busy / float64(len(gpus)))
	}
	return g
}

// appendXID appends an error's number where there is one.
func appendXID(to []int, xid epp.Gauge) []int {
	if xid.Known && xid.Value > 0 && xid.Value == math.Trunc(xid.Value) {
		to = append(to, int(xid.Value))
	}
	return to
}

// most keeps the greater of two known values.
func most(to *epp.Gauge, v epp.Gauge) {
	if v.Known && (!to.Known || v.Value > to.Value) {
		*to = v
	}
}

// A GPUSink takes the readings of one endpoint's GPUs.
type GPUSink interface {
	// GPU is called with each reading. It may keep g.
	GPU(now time.Time, g epp.GPU)
}

// RunGPU reads an endpoint's GPUs until ctx ends, and returns its error. A reading
// that fails, or that shows none of the endpoint's GPUs, says nothing: the last one
// stays in use until it is too old. A GPU that was there and is gone from the page
// keeps its fault.
func (g *Group) RunGPU(ctx context.Context, t GPUTarget, sink GPUSink) error {
	log, now := g.Log, g.Now
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	if now == nil {
		now = time.Now
	}
	told := ""
	var before faults
	for {
		reading, err := g.readGPU(ctx, t, sink, now, &before)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		text := ""
		switch {
		case err != nil:
			text = err.Error()
		case !reading.Utilization.Known:
			text = "no " + dcgmUtil
		}
		if text != told {
			told = text
			if text != "" {
				log.Warn("gpu unknown", "url", t.URL, "pod", t.Pod, "error", text)
			} else {
				log.Info("gpu known again", "url", t.URL, "pod", t.Pod)
			}
		}
		if !sleep(ctx, gpuEvery) {
			return ctx.Err()
		}
	}
}

// readGPU makes one reading. Where the page has a fault the rest of it is used.
func (g *Group) readGPU(ctx context.Context, t GPUTarget, sink GPUSink, now func() time.Time, before *faults) (epp.GPU, error) {
	buf := buffers.Get().(*bytes.Buffer)
	defer putBuffer(buf)
	if err := fetch(ctx, g.Client, t.URL, MaxPage, buf); err != nil {
		return epp.GPU{}, fmt.Errorf("dcgm %s: %w", t.URL, err)
	}
	on, err := parseGPUs(buf.Bytes(), t)
	ours := chosen(slices.Clone(on), t)
	reading, at := together(ours), now()
	gone := before.remember(at, on, ours)
	reading.XIDs = append(reading.XIDs, gone.XIDs...)
	if gone.DoubleBitErrors.Known {
		reading.DoubleBitErrors = epp.Known(reading.DoubleBitErrors.Value + gone.DoubleBitErrors.Value)
	}
	if len(ours) > 0 || len(gone.XIDs) > 0 {
		sink.GPU(at, reading)
	}
	if len(ours) == 0 {
		return epp.GPU{}, fmt.Errorf("dcgm %s: none of the endpoint's GPUs", t.URL)
	}
	if err != nil {
		err = fmt.Errorf("dcgm %s: %w", t.URL, err)
	}
	return reading, err
}
