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
	"sync"
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

// locked lets a sink be looked at while it is told.
type locked struct {
	mu *sync.Mutex
	to scrape.GPUSink
}

func (l locked) GPU(now time.Time, g epp.GPU) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.to.GPU(now, g)
}

// TestGoneGPUs: a GPU that falls off the bus is missing from the next pages, alone or
// with all others. It keeps its fault, and its memory errors, until it is back
// without; a minute without a page ends that, as a restart of the host does.
func TestGoneGPUs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		one := "DCGM_FI_DEV_GPU_UTIL{gpu=\"0\",UUID=\"GPU-a\"} 50\nDCGM_FI_DEV_XID_ERRORS{gpu=\"0\",UUID=\"GPU-a\"} 0\n"
		two := "DCGM_FI_DEV_GPU_UTIL{gpu=\"1\",UUID=\"GPU-b\"} 50\n"
		fault := "DCGM_FI_DEV_XID_ERRORS{gpu=\"1\",UUID=\"GPU-b\"} 79\nDCGM_FI_DEV_ECC_DBE_VOL_TOTAL{gpu=\"1\",UUID=\"GPU-b\"} 2\n"
		well := "DCGM_FI_DEV_XID_ERRORS{gpu=\"1\",UUID=\"GPU-b\"} 0\nDCGM_FI_DEV_ECC_DBE_VOL_TOTAL{gpu=\"1\",UUID=\"GPU-b\"} 0\n"
		var mu sync.Mutex // guards the following
		var r gpuRow
		body, status := one+two, http.StatusOK
		var p pool
		p.start(t, "10.0.0.7:9400", func(w http.ResponseWriter, _ *http.Request) {
			mu.Lock()
			defer mu.Unlock()
			w.WriteHeader(status)
			_, _ = io.WriteString(w, body)
		})
		client := scrape.Client(p.dial)
		g := scrape.Group{Client: client}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() {
			defer close(done)
			_ = g.RunGPU(ctx, scrape.GPUTarget{URL: "http://10.0.0.7:9400/metrics"}, locked{&mu, &r}) // ends with ctx
		}()
		time.Sleep(500 * time.Millisecond)
		for _, s := range []struct {
			what, body string
			status     int
			stays      time.Duration
			want       string // of the last reading: utilization, XIDs, memory errors
		}{
			{"the fault", one + two + fault, 200, time.Second, "0.5 [79] 2"},
			{"the GPU is gone", one, 200, 5 * time.Minute, "0.5 [79] 2"},
			{"it is there, but nothing is known of it", one + two, 200, time.Minute, "0.5 [79] 2"},
			{"all are gone", "", 200, 5 * time.Minute, "0 [79] 2"},
			{"the exporter restarts", "", 503, 30 * time.Second, "0 [79] 2"},
			{"still gone", one, 200, time.Second, "0.5 [79] 2"},
			{"it is back", one + two + well, 200, time.Second, "0.5 [] 0"},
			{"the fault again", one + two + fault, 200, time.Second, "0.5 [79] 2"},
			{"the host is down", "", 503, 2 * time.Minute, "0.5 [79] 2"},
			{"and up without that GPU", one, 200, time.Second, "0.5 [] 0"},
		} {
			mu.Lock()
			body, status = s.body, s.status
			mu.Unlock()
			time.Sleep(s.stays)
			synctest.Wait()
			mu.Lock()
			last := r.readings[len(r.readings)-1]
			mu.Unlock()
			if got := fmt.Sprint(last.Utilization.Value, last.XIDs, last.DoubleBitErrors.Value); got != s.want {
				t.Errorf("%s: %s; want %s", s.what, got, s.want)
			}
		}
		cancel()
		<-done
		client.CloseIdleConnections()
	})
}
