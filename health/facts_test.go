package health_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"
	"pgregory.net/rapid"

	"epp.internal/epp"
	"epp.internal/epp/health"
)

// TestFacts runs the stories of testdata/facts, each of one endpoint from its
// beginning. Every command has the time at which it happens, and tells the health
// then:
//
//	new [probed]                            a sound endpoint, or one that waits for its first probe
//	probe at=5s how=well|slowly|failed      a probe has ended
//	gpu at=5s [temperature=84] [errors=1] [memory=0.99] [xid=79]
//	abandoned at=5s until=8s                nobody reads the GPU any more
//	read at=5s [waiting=3] [tokens=100] [asleep] [mayLeave] [every=200ms until=20s]
//	warm at=5s blocks=10 median=5000
//	look at=(1s,2s,3s)                      nothing happens
func TestFacts(t *testing.T) {
	var f health.Facts
	datadriven.RunTest(t, "testdata/facts", func(t *testing.T, d *datadriven.TestData) string {
		if d.Cmd == "new" {
			f = health.Facts{}
			if d.HasArg("probed") {
				f.Await()
			}
			return show(&f, start)
		}
		var at, how, every, until string
		d.MaybeScanArgs(t, "how", &how)
		d.MaybeScanArgs(t, "every", &every)
		d.MaybeScanArgs(t, "until", &until)
		if d.Cmd == "look" {
			var b strings.Builder
			for _, a := range d.CmdArgs[0].Vals {
				fmt.Fprintf(&b, "%s: %s", a, show(&f, moment(t, a)))
			}
			return b.String()
		}
		d.ScanArgs(t, "at", &at)
		now := moment(t, at)
		switch d.Cmd {
		case "probe":
			f.Probed(now, how != "failed", how == "slowly")
		case "unprobed":
			f.Unprobed(now)
		case "gpu":
			g := epp.GPU{
				Temperature: gauge(t, d, "temperature"), DoubleBitErrors: gauge(t, d, "errors"), Memory: gauge(t, d, "memory"),
			}
			if d.HasArg("xid") {
				var x int
				d.ScanArgs(t, "xid", &x)
				g.XIDs = []int{x}
			}
			f.GPU(now, g)
		case "abandoned":
			var until string
			d.ScanArgs(t, "until", &until)
			f.GPUUntil(now, moment(t, until))
		case "read":
			tokens := gauge(t, d, "tokens")
			l := epp.Load{
				Waiting: gauge(t, d, "waiting"), PromptTokens: tokens, GeneratedTokens: epp.Gauge{Known: tokens.Known}, Asleep: d.HasArg("asleep"),
			}
			f.Read(now, &l, d.HasArg("mayLeave"))
			for every != "" && now.Before(moment(t, until)) {
				now = now.Add(moment(t, every).Sub(start))
				f.Read(now, &l, d.HasArg("mayLeave"))
			}
		case "warm":
			var blocks, median int
			d.ScanArgs(t, "blocks", &blocks)
			d.ScanArgs(t, "median", &median)
			f.Warm(blocks, median)
		default:
			t.Fatalf("unknown command %q", d.Cmd)
		}
		return show(&f, now)
	})
}

func moment(t *testing.T, s string) time.Time {
	t.Helper()
	d, err := time.ParseDuration(s)
	if err != nil {
		t.Fatal(err)
	}
	return start.Add(d)
}

func gauge(t *testing.T, d *datadriven.TestData, name string) epp.Gauge {
	if !d.HasArg(name) {
		return epp.Gauge{}
	}
	var text string
	d.ScanArgs(t, name, &text)
	var v float64
	if _, err := fmt.Sscan(text, &v); err != nil {
		t.Fatal(err)
	}
	return epp.Known(v)
}

func show(f *health.Facts, now time.Time) string {
	h, why := f.Score(now)
	return strings.TrimSpace(fmt.Sprintf("%.3f %v", h, why)) + "\n"
}

// TestFactsAnyOrder: whatever is told, the health lies in [0, 1]; it has a reason
// exactly where it is not 1; a fact that takes nothing away is no reason; and what
// is told no more is forgotten, but for probes that failed.
func TestFactsAnyOrder(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var f health.Facts
		now := start
		maybe := rapid.Custom(func(t *rapid.T) epp.Gauge {
			return epp.Gauge{Known: rapid.Bool().Draw(t, "known"), Value: rapid.Float64Range(0, 200).Draw(t, "value")}
		})
		for range rapid.IntRange(0, 60).Draw(t, "steps") {
			now = now.Add(time.Duration(rapid.IntRange(-1000, 30_000).Draw(t, "ms")) * time.Millisecond)
			switch rapid.IntRange(0, 4).Draw(t, "what") {
			case 0:
				f.Probed(now, rapid.Bool().Draw(t, "ok"), rapid.Bool().Draw(t, "slowly"))
			case 1:
				f.GPU(now, epp.GPU{
					Temperature: maybe.Draw(t, "temperature"), Memory: maybe.Draw(t, "memory"), DoubleBitErrors: maybe.Draw(t, "errors"),
					XIDs: rapid.SliceOfN(rapid.IntRange(0, 150), 0, 3).Draw(t, "xids"),
				})
			case 2:
				l := epp.Load{
					Waiting: maybe.Draw(t, "waiting"), PromptTokens: maybe.Draw(t, "prompt"), GeneratedTokens: maybe.Draw(t, "generated"),
					Asleep: rapid.Bool().Draw(t, "asleep"),
				}
				f.Read(now, &l, rapid.Bool().Draw(t, "may leave"))
			case 3:
				f.Warm(rapid.IntRange(0, 5000).Draw(t, "blocks"), rapid.IntRange(0, 5000).Draw(t, "median"))
			case 4:
				f.Await()
			}
			h, why := f.Score(now)
			if !(h >= 0 && h <= 1) || (h == 1) != (why == epp.HealthSound) {
				t.Fatalf("health %v for %q", h, why)
			}
		}
		for range 2 {
			f.Probed(now, true, false)
		}
		f.Read(now, &epp.Load{}, false)
		f.Warm(1, 1)
		for i := range 9 {
			f.Score(now.Add(time.Duration(i+1) * time.Minute))
		}
		if h, why := f.Score(now.Add(10 * time.Minute)); h != 1 || !f.Sound(now.Add(10*time.Minute)) {
			t.Fatalf("health %v for %q long after", h, why)
		}
	})
}

// TestFactsDoNotFlap: a fault that comes and goes leaves the endpoint out; it does
// not cross the cutoff each time. When it has really gone, the endpoint is back soon.
func TestFactsDoNotFlap(t *testing.T) {
	fault, fine := epp.GPU{XIDs: []int{79}}, epp.GPU{}
	for _, c := range []struct {
		name  string
		every time.Duration
		tell  func(f *health.Facts, now time.Time, i int)
		most  int // crossings in ten minutes
	}{
		{"an XID in every other reading", time.Second, func(f *health.Facts, now time.Time, i int) {
			f.GPU(now, map[bool]epp.GPU{true: fault, false: fine}[i%2 == 0])
		}, 1},
		{"an XID for half a minute out of each minute", time.Second, func(f *health.Facts, now time.Time, i int) {
			f.GPU(now, map[bool]epp.GPU{true: fault, false: fine}[i%60 < 30])
		}, 5},
		{"three of four probes fail", 5 * time.Second, func(f *health.Facts, now time.Time, i int) {
			f.Probed(now, i%4 == 3, false)
		}, 1},
		{"three of four probes fail, seldom", 30 * time.Second, func(f *health.Facts, now time.Time, i int) {
			f.Probed(now, i%4 == 3, false)
		}, 1},
	} {
		var f health.Facts
		now, out, crossed := start, false, 0
		for i := 0; now.Before(start.Add(10 * time.Minute)); i++ {
			c.tell(&f, now, i)
			for until := now.Add(c.every); now.Before(until); now = now.Add(500 * time.Millisecond) {
				h, _ := f.Score(now)
				if is := h < health.Cutoff; is != out {
					out = is
					crossed++
				}
			}
		}
		if crossed == 0 || crossed > c.most {
			t.Errorf("%s: the cutoff is crossed %d times; want 1 to %d", c.name, crossed, c.most)
		}
		f.GPU(now, fine)
		for range 2 {
			f.Probed(now, true, false)
		}
		f.Score(now.Add(2 * time.Minute))
		if h, why := f.Score(now.Add(3 * time.Minute)); h != 1 {
			t.Errorf("%s: health %v, %v, three minutes after the last", c.name, h, why)
		}
	}
}
