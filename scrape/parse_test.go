package scrape_test

import (
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"
	"pgregory.net/rapid"

	"epp.internal/epp"
	"epp.internal/epp/scrape"
)

// TestParse runs the worked examples of testdata/parse:
//
//	page file=<name> [engine=<rank>]    a captured page
//	parse [engine=<rank>] [cut]         the page below; cut takes its last line's end
//
// With kind=<name> the page is read as that engine's, with kind=detect as that of
// the engine that it shows.
func TestParse(t *testing.T) {
	datadriven.RunTest(t, "testdata/parse", func(t *testing.T, d *datadriven.TestData) string {
		text := []byte(d.Input + "\n")
		if d.HasArg("cut") {
			text = []byte(d.Input)
		}
		if d.Cmd == "page" {
			var name string
			d.ScanArgs(t, "file", &name)
			text = page(t, name)
		}
		var engine string
		d.MaybeScanArgs(t, "engine", &engine)
		kind, found := &scrape.VLLM, ""
		if d.HasArg("kind") {
			var name string
			d.ScanArgs(t, "kind", &name)
			if name != "detect" {
				kind, _ = scrape.EngineNamed(name)
			} else if kind = scrape.Detect(text); kind == nil {
				return "no engine\n"
			}
			found = kind.Name + ": "
		}
		var p scrape.Page
		err := scrape.Parse(text, kind.Names, engine, &p)
		return found + show(&p, err)
	})
}

// page reads a captured page.
func page(t testing.TB, name string) []byte {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("testdata", "pages", name))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// show writes a page's reading as text, one fact a line.
func show(p *scrape.Page, err error) string {
	gauge := func(g epp.Gauge) string {
		if !g.Known {
			return "unknown"
		}
		return fmt.Sprintf("%.6g", g.Value)
	}
	var b strings.Builder
	l := &p.Load
	fmt.Fprintf(&b, "waiting=%s running=%s kv=%s\n", gauge(l.Waiting), gauge(l.Running), gauge(l.KVUsage))
	if l.BlockTokens > 0 || l.Blocks > 0 {
		fmt.Fprintf(&b, "blocks=%d of %d tokens\n", l.Blocks, l.BlockTokens)
	}
	if len(l.Adapters) > 0 || l.MaxAdapters > 0 {
		fmt.Fprintf(&b, "adapters=%q of %d\n", l.Adapters, l.MaxAdapters)
	}
	if l.Asleep {
		b.WriteString("asleep\n")
	}
	if len(p.Bad) > 0 {
		fmt.Fprintf(&b, "bad=%q\n", p.Bad)
	}
	if len(p.Missing) > 0 {
		fmt.Fprintf(&b, "missing=%q\n", p.Missing)
	}
	if err != nil {
		fmt.Fprintf(&b, "error: %s\n", strings.ReplaceAll(err.Error(), "\n", "\n       "))
	}
	return b.String()
}

// A page parsed into a used Page reads as one parsed into a new one, and the
// adapters that were handed out before are left as they were.
func TestPageIsUsedAgain(t *testing.T) {
	names := []string{"lora_load1.txt", "base_idle.txt", "lora_load1.txt", "sleeping.txt", "lora_after_reset.txt", "lora_load1.txt"}
	var used scrape.Page
	var handed [][]string
	for _, name := range names {
		var fresh scrape.Page
		err := scrape.Parse(page(t, name), scrape.VLLM.Names, "", &fresh)
		if uerr := scrape.Parse(page(t, name), scrape.VLLM.Names, "", &used); show(&used, uerr) != show(&fresh, err) {
			t.Errorf("%s: used page reads\n%snew page reads\n%s", name, show(&used, uerr), show(&fresh, err))
		}
		handed = append(handed, used.Load.Adapters)
	}
	if got, want := fmt.Sprint(handed), "[[chat sql] [] [chat sql] [] [] [chat sql]]"; got != want {
		t.Errorf("adapters handed out = %v, want %v", got, want)
	}
}

// Case E1: a renamed metric is read under either name, an absent one is unknown
// and told, and the absence of a metric that comes with LoRA alone is not.
func TestCaseE1Parse(t *testing.T) {
	const rest = "vllm:num_requests_waiting 0\nvllm:num_requests_running 0\n"
	for _, c := range []struct {
		name, page string
		want       epp.Gauge
		missing    string
	}{
		{"A", "vllm:gpu_cache_usage_perc 0.9\n" + rest, epp.Known(0.9), "[]"},
		{"B", "vllm:kv_cache_usage_perc 0.2\n" + rest, epp.Known(0.2), "[]"},
		{"C", rest, epp.Gauge{}, "[vllm:kv_cache_usage_perc]"},
	} {
		var p scrape.Page
		err := scrape.Parse([]byte(c.page), scrape.VLLM.Names, "", &p)
		if err != nil || p.Load.KVUsage != c.want || fmt.Sprint(p.Missing) != c.missing {
			t.Errorf("%s: kv = %v, missing %v, error %v; want %v, missing %s, none", c.name, p.Load.KVUsage, p.Missing, err, c.want, c.missing)
		}
	}
}

// Case E3: NaN, infinite, negative and absurd values are unknown and counted,
// for the cache's usage and for the queue alike.
func TestCaseE3(t *testing.T) {
	for _, metric := range []string{"vllm:kv_cache_usage_perc", "vllm:num_requests_waiting", "vllm:num_requests_running"} {
		for _, v := range []string{"NaN", "+Inf", "-Inf", "Inf", "-1", "1e308", "1e999", "0x", ""} {
			var p scrape.Page
			err := scrape.Parse(fmt.Appendf(nil, "%s{engine=\"0\"} %s\n", metric, v), scrape.VLLM.Names, "", &p)
			if p.Load.KVUsage.Known || p.Load.Waiting.Known || p.Load.Running.Known {
				t.Errorf("%s %s: %+v, want all unknown", metric, v, p.Load)
			}
			if len(p.Bad) != 1 || p.Bad[0] != metric || err == nil {
				t.Errorf("%s %s: bad = %q, error %v; want the metric named once", metric, v, p.Bad, err)
			}
		}
		var p scrape.Page
		if err := scrape.Parse([]byte(metric+" 0.3\n"), scrape.VLLM.Names, "", &p); err != nil || len(p.Bad) > 0 {
			t.Errorf("%s 0.3: bad = %q, error %v; want none", metric, p.Bad, err)
		}
	}
}

// A hostile list of adapters costs neither memory nor time without bound.
func TestAdaptersAreBounded(t *testing.T) {
	var b strings.Builder
	b.WriteString(`vllm:lora_requests_info{max_lora="2",running_lora_adapters="`)
	for i := range 20_000 {
		fmt.Fprintf(&b, "adapter-%d,", i)
	}
	b.WriteString("\"} 1.7e9\n")
	var p scrape.Page
	scrape.Parse([]byte(b.String()), scrape.VLLM.Names, "", &p)
	if n := len(p.Load.Adapters); n != 1024 {
		t.Errorf("adapters kept = %d, want 1024", n)
	}
}

// What is printed in the text format is read back, whatever the labels hold.
func TestParseReadsWhatWasPrinted(t *testing.T) {
	escape := strings.NewReplacer(`\`, `\\`, `"`, `\"`, "\n", `\n`)
	rapid.Check(t, func(t *rapid.T) {
		waiting := rapid.Uint32Range(0, 1e6).Draw(t, "waiting")
		running := rapid.Uint32Range(0, 1e6).Draw(t, "running")
		usage := rapid.Float64Range(0, 1).Draw(t, "usage")
		model := escape.Replace(rapid.String().Draw(t, "model"))
		adapter := rapid.StringMatching(`[^,\pZ\pC]{1,8}`).Draw(t, "adapter")
		lines := []string{
			fmt.Sprintf("vllm:num_requests_waiting{engine=\"0\",model_name=\"%s\"} %d", model, waiting),
			fmt.Sprintf("vllm:num_requests_running{model_name=\"%s\",engine=\"0\"} %d", model, running),
			fmt.Sprintf("vllm:kv_cache_usage_perc{model_name=\"%s\"} %v", model, usage),
			fmt.Sprintf("vllm:num_requests_waiting{engine=\"1\",model_name=\"%s\"} 5", model),
			fmt.Sprintf("vllm:lora_requests_info{running_lora_adapters=\"%s\"} 2", escape.Replace(adapter)),
			`vllm:lora_requests_info{running_lora_adapters="old"} 1`,
			"# HELP vllm:num_requests_waiting 77",
			"other_total 9",
		}
		lines = rapid.Permutation(lines).Draw(t, "order")
		var p scrape.Page
		if err := scrape.Parse([]byte(strings.Join(lines, "\n")+"\n"), scrape.VLLM.Names, "0", &p); err != nil {
			t.Fatal(err)
		}
		l := p.Load
		if l.Waiting != epp.Known(float64(waiting)) || l.Running != epp.Known(float64(running)) || l.KVUsage != epp.Known(usage) {
			t.Errorf("load = %+v, want %d, %d, %v", l, waiting, running, usage)
		}
		if fmt.Sprint(l.Adapters) != fmt.Sprint([]string{adapter}) {
			t.Errorf("adapters = %q, want %q", l.Adapters, adapter)
		}
	})
}

// FuzzParse: no page ends the process, and no gauge is known that is not a
// number in its range.
func FuzzParse(f *testing.F) {
	for _, name := range []string{"lora_load1.txt", "base_idle.txt", "sleeping.txt"} {
		for line := range strings.Lines(string(page(f, name))) {
			if strings.HasPrefix(line, "vllm:num_requests") || strings.HasPrefix(line, "vllm:lora") ||
				strings.HasPrefix(line, "vllm:cache_config") || strings.HasPrefix(line, "vllm:engine") || strings.HasPrefix(line, "vllm:kv_cache_usage") {
				f.Add([]byte(line), "")
				f.Add([]byte(line), "0")
			}
		}
	}
	f.Add([]byte("vllm:num_requests_waiting{a=\"\\"), "0")
	f.Add([]byte("vllm:lora_requests_info{running_lora_adapters=\"a,b\",,} 1 2 3\n"), "")
	f.Fuzz(func(t *testing.T, page []byte, engine string) {
		var p scrape.Page
		err := scrape.Parse(page, scrape.VLLM.Names, engine, &p)
		for _, g := range []epp.Gauge{p.Load.Waiting, p.Load.Running, p.Load.KVUsage} {
			if g.Known && (math.IsNaN(g.Value) || math.IsInf(g.Value, 0) || g.Value < 0) || !g.Known && g.Value != 0 {
				t.Errorf("gauge %+v", g)
			}
		}
		if p.Load.KVUsage.Value > 1 || p.Load.Blocks < 0 || p.Load.BlockTokens < 0 || p.Load.MaxAdapters < 0 {
			t.Errorf("load %+v", p.Load)
		}
		if (len(p.Bad) > 0) != (err != nil) {
			t.Errorf("bad = %q, error %v: want both or none", p.Bad, err)
		}
	})
}

func BenchmarkParse(b *testing.B) {
	text := page(b, "lora_load1.txt")
	var p scrape.Page
	b.SetBytes(int64(len(text)))
	b.ReportAllocs()
	for b.Loop() {
		if err := scrape.Parse(text, scrape.VLLM.Names, "", &p); err != nil {
			b.Fatal(err)
		}
	}
}

// TestCounters: the counters of a captured page, and none on a page without.
func TestCounters(t *testing.T) {
	page, err := os.ReadFile("testdata/pages/lora_load1.txt")
	if err != nil {
		t.Fatal(err)
	}
	var p scrape.Page
	if err := scrape.Parse(page, scrape.VLLM.Names, "", &p); err != nil {
		t.Fatal(err)
	}
	if p.Load.PromptTokens != epp.Known(1150) || !p.Load.CachedTokens.Known || p.Load.FirstTokenSeconds.Value <= 0 {
		t.Errorf("%+v", p.Load)
	}
	if err := scrape.Parse([]byte("vllm:num_requests_waiting 0\n"), scrape.VLLM.Names, "", &p); err != nil {
		t.Fatal(err)
	}
	if p.Load.PromptTokens.Known || p.Load.CachedTokens.Known || p.Load.FirstTokenSeconds.Known {
		t.Errorf("counters of another page are kept: %+v", p.Load)
	}
}

// TestCopies: of SGLang's ranks that do the same work the greatest counts; tokens that
// were cached in different places add up, and so do the blocks of data-parallel ranks.
func TestCopies(t *testing.T) {
	var p scrape.Page
	err := scrape.Parse([]byte(`sglang:cached_tokens_total{tp_rank="0",cache_source="device"} 70
sglang:cached_tokens_total{tp_rank="0",cache_source="host"} 30
sglang:cached_tokens_total{tp_rank="1",cache_source="device"} 75
sglang:cached_tokens_total{tp_rank="1",cache_source="host"} 20
sglang:cache_config_info{tp_rank="0",dp_rank="0",page_size="16",num_pages="1000"} 1
sglang:cache_config_info{tp_rank="1",dp_rank="0",page_size="16",num_pages="1000"} 1
sglang:cache_config_info{tp_rank="2",dp_rank="1",page_size="16",num_pages="500"} 1
`), scrape.SGLang.Names, "", &p)
	if err != nil || p.Load.CachedTokens != epp.Known(105) || p.Load.Blocks != 1500 || p.Load.BlockTokens != 16 {
		t.Errorf("%+v, %v", p.Load, err)
	}
}
