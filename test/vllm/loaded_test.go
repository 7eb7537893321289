//go:build vllm && loaded

package vllm

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"epp.internal/epp/sim"
	"epp.internal/epp/trace"
)

// What a loaded run sends: prompts that begin with one of some documents and end
// with a question. They come by chance, at a rate at which requests wait for the
// steps of others.
const (
	loadedRuns     = 5
	loadedRequests = 36
	loadedRate     = 3.0 // a second
	documents      = 4
	documentTokens = 512
	answerTokens   = 10
)

// The test's verdict: the 95 % interval of the mean of the runs' relative errors
// lies within predictedWithin. studentT is the 97.5 % quantile of Student's t for
// loadedRuns − 1 degrees of freedom.
const (
	predictedWithin = 0.15
	studentT        = 2.776
)

// A run begins when others have the work of no more than quietProcessors, and one
// during which they had more is measured again, whatever it brought: what they take
// is in no model. The test waits no longer than loadedPatience.
const (
	quietProcessors = 0.2
	loadedPatience  = 5 * time.Minute
)

// TestLoadedRunIsPredicted: the simulator tells the mean time to first token of a
// load on both engines within 15 %. The constants of the model of an engine are
// fitted to prompts and answers that are measured before each of five runs, and are
// no part of them: all together, since one measurement is off by a tenth. A run's
// requests go through the picker; the same arrivals go through the simulator.
func TestLoadedRunIsPredicted(t *testing.T) {
	pool.shaped(t, pool.a, shapeA)
	pool.shaped(t, pool.b, shapeB)
	p := startPicker(t, pool.a.auto(), pool.b.auto()).settled("A", "B")
	seed := uint64(time.Now().UnixNano())
	until := time.Now().Add(loadedPatience)
	var c calibration
	(&calibration{}).measure(p, seed) // the first steps of an engine take longer
	var loads []*trace.Trace
	var measured []float64
	for n := uint64(1); len(loads) < loadedRuns; n++ {
		if !awaitQuiet(t, until) {
			t.Fatalf("%d of %d runs had the machine to themselves within %v, want %d", len(loads), n-1, loadedPatience, loadedRuns)
		}
		began, before := time.Now(), readProcessorTime(t)
		var own calibration
		own.measure(p, seed+n)
		load := loadOf(seed + n)
		mean := serveLoad(p, load)
		others := readProcessorTime(t).othersSince(before, time.Since(began))
		t.Logf("run %d: mean time to first token %.0f ms; others had %.2f processors", n, mean, others)
		if others <= quietProcessors {
			loads, measured = append(loads, load), append(measured, mean)
			c.prompts, c.steps = append(c.prompts, own.prompts...), append(c.steps, own.steps...)
		}
	}
	p.atRest()
	fit := c.fit()
	t.Logf("a step takes %.1f ms, %.3f for each token and %.1f for each that is answered; a request's way %.1f", fit.step, fit.token, fit.sample, fit.way)
	var errs []float64
	for i, load := range loads {
		predicted := fit.predict(t, load)
		errs = append(errs, predicted/measured[i]-1)
		t.Logf("mean time to first token %.0f ms, %.0f by the simulator: %+.1f %%", measured[i], predicted, 100*errs[i])
	}
	mean, deviation := meanAndDeviation(errs)
	half := studentT * deviation / math.Sqrt(loadedRuns)
	t.Logf("the simulator is off by %+.1f %% in the mean of %d runs, 95 %% interval %+.1f … %+.1f %%", 100*mean, loadedRuns, 100*(mean-half), 100*(mean+half))
	if !(mean-half >= -predictedWithin && mean+half <= predictedWithin) {
		t.Errorf("the interval does not lie within ±%.0f %%", 100*predictedWithin)
	}
}

// fitted are the constants of an engine's model in milliseconds: of a step, of a
// token that it computes and of one that it chooses; and way, what a request takes
// beside: its connection, its reading, the first chunk's way back.
type fitted struct{ step, token, sample, way float64 }

// point is what was measured for a number: of tokens, of answers at once.
type point struct{ n, millis float64 }

// calibration is what was measured to fit the model to: times to first token on idle
// engines by the prompt's tokens, and of a step by how many answers it is for.
type calibration struct{ prompts, steps []point }

// measure measures an idle pool: prompts of three lengths, one after another through
// the picker as a load goes; then, on both engines side by side, answers to one prompt
// and to four at once.
func (c *calibration) measure(p *picker, seed uint64) {
	for i, n := range []int{64, 448, 832, 64, 448, 832, 64, 448, 832} {
		at := p.stream(p.url, tokens(seed<<16+uint64(i), n), 1)
		c.prompts = append(c.prompts, point{float64(n), at[0]})
	}
	var mu sync.Mutex // guards c
	var wg sync.WaitGroup
	for i, e := range []*server{pool.a, pool.b} {
		wg.Go(func() {
			for _, n := range []int{1, 4} {
				var answers sync.WaitGroup
				for k := range n {
					prompt := tokens(seed<<16+uint64(100+100*i+10*n+k), 64)
					answers.Go(func() {
						at := p.stream("http://"+e.address, prompt, 12)
						if len(at) < 12 {
							return // a chunk had two
						}
						// The first steps and the last are not of all answers.
						mu.Lock()
						c.steps = append(c.steps, point{float64(n), (at[9] - at[3]) / 6})
						mu.Unlock()
					})
				}
				answers.Wait()
			}
		})
	}
	wg.Wait()
}

// fit is the model that was measured. A prompt's first token takes its way, a step,
// its tokens and its sample.
func (c *calibration) fit() (f fitted) {
	var prompt float64
	f.step, f.sample = lineThrough(c.steps)
	prompt, f.token = lineThrough(c.prompts)
	f.way = prompt - f.step - f.sample
	return f
}

// lineThrough is the line a + b·n through the points, by least squares.
func lineThrough(points []point) (a, b float64) {
	var x, y, xx, xy float64
	for _, q := range points {
		x, y, xx, xy = x+q.n, y+q.millis, xx+q.n*q.n, xy+q.n*q.millis
	}
	k := float64(len(points))
	b = (k*xy - x*y) / (k*xx - x*x)
	return (y - b*x) / k, b
}

func meanAndDeviation(list []float64) (mean, deviation float64) {
	for _, v := range list {
		mean += v / float64(len(list))
	}
	for _, v := range list {
		deviation += (v - mean) * (v - mean) / float64(len(list)-1)
	}
	return mean, math.Sqrt(deviation)
}

// loadOf is a run's requests: the same for the same seed, and no prompt of another's.
func loadOf(seed uint64) *trace.Trace {
	rng := rand.New(rand.NewPCG(seed, 1))
	t := &trace.Trace{Name: "loaded"}
	at := 0.0
	for i := range uint64(loadedRequests) {
		at += rng.ExpFloat64() / loadedRate
		t.Requests = append(t.Requests, trace.Request{
			At: time.Duration(at * float64(time.Second)),
			Prompt: []trace.Segment{
				{ID: seed<<16 + rng.Uint64N(documents), Tokens: documentTokens},
				{ID: seed<<16 + documents + i, Tokens: 40 + rng.IntN(300)},
			},
			Answer: trace.Segment{ID: seed<<16 + documents + loadedRequests + i, Tokens: answerTokens},
		})
	}
	return t
}

// serveLoad sends the load through the picker and returns the mean time to first
// token, in milliseconds.
func serveLoad(p *picker, load *trace.Trace) (mean float64) {
	var mu sync.Mutex // guards mean
	var wg sync.WaitGroup
	began := time.Now()
	for i := range load.Requests {
		r := &load.Requests[i]
		prompt := r.AppendPrompt(nil)
		for k := range prompt {
			prompt[k] = 1000 + prompt[k]%100_000 // the model's own
		}
		select {
		case <-time.After(time.Until(began.Add(r.At))):
		case <-p.ctx.Done():
		}
		wg.Go(func() {
			at := p.stream(p.url, prompt, answerTokens)
			mu.Lock()
			defer mu.Unlock()
			mean += at[0] / float64(len(load.Requests))
		})
	}
	wg.Wait()
	return mean
}

// predictions is over how many seeds a prediction is the mean: they break ties.
const predictions = 8

// predict is the mean time to first token of the load by the simulator.
func (f fitted) predict(t *testing.T, load *trace.Trace) (mean float64) {
	t.Helper()
	cfg := sim.Config{Trace: load, Policy: "weighted", Endpoints: 2, ReportEvery: 200 * time.Millisecond}
	cfg.Engine.Profile.Name, cfg.Engine.Profile.T0, cfg.Engine.Profile.A, cfg.Engine.Profile.S = "fitted", f.step, f.token, f.sample
	cfg.Engine.MaxRunning, cfg.Engine.MaxBatchTokens = 8, 2048 // the second is vLLM's own, on a CPU
	for _, e := range []*server{pool.a, pool.b} {
		cfg.Engine.BlockTokens, cfg.Engine.Blocks = e.shape.blockTokens, e.shape.blocks
		cfg.Engines = append(cfg.Engines, cfg.Engine)
	}
	for cfg.Seed = range predictions {
		r, err := sim.Run(t.Context(), cfg)
		if err != nil {
			t.Fatal(err)
		}
		mean += float64(r.Summary().MeanTTFT) / float64(time.Millisecond) / predictions
	}
	return mean + f.way
}

// stream asks for an answer of n tokens and returns when its chunks came, in
// milliseconds from the beginning: one for each token, or fewer where the engine has
// put two into one; one at least.
func (p *picker) stream(url string, prompt []uint32, n int) (at []float64) {
	body, err := json.Marshal(completion("tiny", prompt, "max_tokens", n, "ignore_eos", true, "stream", true))
	if err == nil {
		at, err = p.chunks(url+"/v1/completions", body, time.Now())
	}
	if err != nil || len(at) == 0 || len(at) > n {
		p.t.Errorf("an answer of %d tokens came in %d chunks: %v", n, len(at), err)
		return []float64{math.NaN()}
	}
	return at
}

// chunks sends the body and returns when the events of the answer came.
func (p *picker) chunks(url string, body []byte, began time.Time) (at []float64, err error) {
	req, err := http.NewRequestWithContext(p.ctx, http.MethodPost, url, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := p.client.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(resp.Body)
		return nil, fmt.Errorf("status %d: %s", resp.StatusCode, text)
	}
	for lines := bufio.NewScanner(resp.Body); lines.Scan(); {
		if strings.HasPrefix(lines.Text(), "data: {") {
			at = append(at, float64(time.Since(began))/float64(time.Millisecond))
		}
	}
	return at, nil
}
