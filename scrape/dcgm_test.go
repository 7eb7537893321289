package scrape_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/datadriven"

	"epp.internal/epp"
	"epp.internal/epp/scrape"
)

// TestParseGPU runs the worked examples of testdata/dcgm:
//
//	page file=<name> [pod=<name>] [gpus=(0,1)]    a page of a file
//	parse [pod=<name>] [gpus=(0,1)]               the page below
func TestParseGPU(t *testing.T) {
	datadriven.RunTest(t, "testdata/dcgm", func(t *testing.T, d *datadriven.TestData) string {
		text := []byte(d.Input + "\n")
		if d.Cmd == "page" {
			var name string
			d.ScanArgs(t, "file", &name)
			text = page(t, name)
		}
		var target scrape.GPUTarget
		d.MaybeScanArgs(t, "pod", &target.Pod)
		for _, a := range d.CmdArgs {
			if a.Key == "gpus" {
				target.GPUs = a.Vals
			}
		}
		g, found, err := scrape.ParseGPU(text, target)
		var b strings.Builder
		fmt.Fprintf(&b, "%d found:", found)
		for _, f := range []struct {
			name string
			v    epp.Gauge
		}{{"utilization", g.Utilization}, {"temperature", g.Temperature}, {"memory", g.Memory}, {"errors", g.DoubleBitErrors}} {
			if f.v.Known {
				fmt.Fprintf(&b, " %s=%.4g", f.name, f.v.Value)
			}
		}
		if len(g.XIDs) > 0 {
			fmt.Fprintf(&b, " xids=%v", g.XIDs)
		}
		if err != nil {
			fmt.Fprintf(&b, "\nerror: %v", err)
		}
		return b.String() + "\n"
	})
}

// gpuRow keeps what a GPUSink is told.
type gpuRow struct{ readings []epp.GPU }

func (r *gpuRow) GPU(_ time.Time, g epp.GPU) { r.readings = append(r.readings, g) }

// TestRunGPU: an exporter is read each second; one that fails, redirects or shows
// another's GPUs gives no reading, and is logged once.
func TestRunGPU(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		good := string(page(t, "dcgm.txt"))
		var p pool
		p.start(t, "10.0.0.7:9400", func(w http.ResponseWriter, r *http.Request) {
			switch seconds := int(time.Since(start).Seconds()); {
			case r.URL.Path != "/metrics":
				t.Errorf("asked for %s", r.URL)
			case seconds < 3, seconds >= 9:
				_, _ = io.WriteString(w, good)
			case seconds < 6:
				http.Redirect(w, r, "http://169.254.169.254/metrics", http.StatusFound)
			default:
				_, _ = io.WriteString(w, "DCGM_FI_DEV_GPU_UTIL{gpu=\"7\",pod=\"other\"} 3\n")
			}
		})
		var logged bytes.Buffer
		client := scrape.Client(p.dial)
		g := scrape.Group{Client: client, Log: slog.New(slog.NewTextHandler(&logged, nil))}
		ctx, cancel := context.WithTimeout(t.Context(), 11500*time.Millisecond)
		defer cancel()
		var r gpuRow
		_ = g.RunGPU(ctx, scrape.GPUTarget{URL: "http://10.0.0.7:9400/metrics", Pod: "vllm-0"}, &r) // ends with ctx
		client.CloseIdleConnections()
		if len(r.readings) != 6 || r.readings[5].Utilization != epp.Known(0.9) {
			t.Errorf("%d readings: %+v", len(r.readings), r.readings)
		}
		for _, want := range []string{"status 302", "none of the endpoint's GPUs", "gpu known again"} {
			if strings.Count(logged.String(), want) != 1 {
				t.Errorf("log:\n%s\nwant once %q", &logged, want)
			}
		}
	})
}

// FuzzParseGPU: no page panics, and every value is one that a gauge can have.
func FuzzParseGPU(f *testing.F) {
	seed, err := os.ReadFile("testdata/pages/dcgm.txt")
	if err != nil {
		f.Fatal(err)
	}
	f.Add(seed, "vllm-0", "")
	f.Add(seed, "", "0")
	f.Add([]byte("DCGM_FI_DEV_GPU_UTIL{gpu=\"0\" 3\nDCGM_FI_DEV_FB_USED 1e999\n"), "", "")
	f.Fuzz(func(t *testing.T, page []byte, pod, gpu string) {
		target := scrape.GPUTarget{Pod: pod}
		if gpu != "" {
			target.GPUs = []string{gpu}
		}
		g, found, _ := scrape.ParseGPU(page, target)
		for _, v := range []epp.Gauge{g.Utilization, g.Temperature, g.Memory, g.DoubleBitErrors} {
			if v != (epp.Gauge{}) && v != epp.Known(v.Value) {
				t.Errorf("%+v", g)
			}
		}
		if g.Utilization.Value > 1 || g.Memory.Value > 1 || found > 64 || len(g.XIDs) > found {
			t.Errorf("%d found: %+v", found, g)
		}
	})
}
