package trace

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"time"
)

// Workload says what to generate.
type Workload struct {
	// Kind is one of Kinds.
	Kind string
	// Requests is how many, Rate how many a second on average; 0 means the kind's
	// own.
	Requests int
	Rate     float64
	Seed     uint64
}

// kind is a way to make sessions, each some turns of one conversation.
type kind struct {
	name, help string
	rate       float64 // requests a second
	turns      float64 // on average
	session    func(g *generator, at time.Duration)
}

var kinds = []kind{
	{"chat", "conversations behind four system prompts, with time to think", 4, 5, (*generator).chat},
	{"agents", "toolagent-like: sixteen tool prompts of 4–8 k tokens, and tasks that grow by tool results", 6, 4, (*generator).agent},
	{"rag", "questions on popular documents", 4, 1, (*generator).rag},
	{"batch", "one instruction over many items, evenly", 10, 1, (*generator).batch},
	{"lora", "chat, each conversation with one of sixteen adapters", 4, 5, (*generator).lora},
	{"hot", "60 % of requests share 4,096 of 4,608 tokens", 25, 1, (*generator).hot},
	{"bursts", "chat that comes in bursts: ten times the rate for 6 s in a minute", 3, 5, (*generator).chat},
}

// Kinds names what Generate can make, with a line on each.
func Kinds() (names, help []string) {
	for _, k := range kinds {
		names, help = append(names, k.name), append(help, k.help)
	}
	return names, help
}

// DefaultRequests is how many requests are generated where nothing is said.
const DefaultRequests = 5000

// Generate makes a trace. It is synthetic, and its name says so: figures on it
// show a mechanism, not what users do.
func Generate(w Workload) (*Trace, error) {
	i := slices.IndexFunc(kinds, func(k kind) bool { return k.name == w.Kind })
	if i < 0 {
		names, _ := Kinds()
		return nil, fmt.Errorf("workload %q: no such kind: have %s", w.Kind, strings.Join(names, ", "))
	}
	k := kinds[i]
	if w.Requests == 0 {
		w.Requests = DefaultRequests
	}
	if w.Rate == 0 {
		w.Rate = k.rate
	}
	if w.Requests < 1 || w.Requests > MaxRequests {
		return nil, fmt.Errorf("workload %s: %d requests: want 1–%d", k.name, w.Requests, MaxRequests)
	}
	if !(w.Rate > 1e-6 && w.Rate < 1e6) {
		return nil, fmt.Errorf("workload %s: rate %v: want above 0.000001 and below 1000000, requests a second", k.name, w.Rate)
	}
	if takes := float64(w.Requests) / w.Rate; takes > MaxDuration.Seconds()/2 {
		return nil, fmt.Errorf("workload %s: %d requests at a rate of %v take %.0f s: want at most %.0f", k.name, w.Requests, w.Rate, takes, MaxDuration.Seconds()/2)
	}
	g := &generator{rand: rand.New(rand.NewPCG(w.Seed, uint64(i)+1)), uneven: k.name == "bursts"}
	g.sessions(w, &k)
	slices.SortStableFunc(g.requests, func(a, b Request) int { return int(a.At - b.At) })
	t := &Trace{Name: "synthetic-" + k.name, Requests: g.requests[:w.Requests]}
	return t, nil
}

// generator makes the sessions of one trace.
type generator struct {
	rand     *rand.Rand
	requests []Request
	next     uint64 // name of the next segment
	number   uint64 // of the session
	uneven   bool
}

// sessions makes sessions at random times until there are enough requests whose
// time no later session can come before.
func (g *generator) sessions(w Workload, k *kind) {
	perSecond := w.Rate / k.turns
	var at time.Duration
	for n := 0; n < w.Requests; {
		gap := g.rand.ExpFloat64() / perSecond
		if g.uneven {
			gap /= burst(at)
		}
		at += time.Duration(gap * float64(time.Second))
		g.number++
		k.session(g, at)
		if g.number%64 == 0 {
			n = 0
			for i := range g.requests {
				if g.requests[i].At <= at {
					n++
				}
			}
		}
	}
}

// burst is how many times the mean rate there is at a time: 10 × in a tenth of
// each minute, and what is left for the rest.
func burst(at time.Duration) float64 {
	if at%time.Minute < 6*time.Second {
		return 5
	}
	return 0.5
}

// fresh names a segment that nobody else has.
func (g *generator) fresh(tokens int) Segment {
	g.next++
	return Segment{turnKind | g.next, max(1, tokens)}
}

// about draws a length around mean with the spread of a lognormal of 0.8.
func (g *generator) about(mean float64) int {
	const sigma = 0.8
	return min(MaxTokens/64, max(1, int(mean*math.Exp(sigma*g.rand.NormFloat64()-sigma*sigma/2))))
}

// zipf draws one of n, the i-th with a weight of 1/(i+1).
func (g *generator) zipf(n int) int {
	total := 0.0
	for i := range n {
		total += 1 / float64(i+1)
	}
	x := g.rand.Float64() * total
	for i := range n {
		if x -= 1 / float64(i+1); x < 0 {
			return i
		}
	}
	return n - 1
}

func (g *generator) add(r Request) {
	r.Session = g.number
	g.requests = append(g.requests, r)
}

// turns makes a conversation: each turn's prompt is all before it and what is new.
func (g *generator) turns(at time.Duration, history []Segment, mean float64, new, answer, pause float64, adapter string) {
	for {
		history = append(history, g.fresh(g.about(new)))
		r := Request{At: at, Prompt: slices.Clone(history), Answer: g.fresh(g.about(answer)), Adapter: adapter}
		g.add(r)
		history = append(history, r.Answer)
		if g.rand.Float64() < 1/mean {
			return
		}
		// An answer takes some 40 ms a token before anybody goes on.
		at += time.Duration((float64(r.Answer.Tokens)*0.04 + g.rand.ExpFloat64()*pause) * float64(time.Second))
	}
}

// shared names a segment that many have: the i-th of a family.
func shared(family, i, tokens int) Segment {
	return Segment{sharedKind | uint64(family)<<32 | uint64(i), tokens}
}

func (g *generator) chat(at time.Duration) {
	app := g.zipf(4)
	g.turns(at, []Segment{shared(1, app, 300+200*app)}, 5, 200, 250, 20, "")
}

func (g *generator) lora(at time.Duration) {
	adapter := fmt.Sprintf("lora-%d", g.zipf(16))
	g.turns(at, []Segment{shared(1, 0, 400)}, 5, 200, 250, 20, adapter)
}

func (g *generator) agent(at time.Duration) {
	tool := g.zipf(16)
	g.turns(at, []Segment{shared(2, tool, 4096+256*tool)}, 4, 1600, 182, 3, "")
}

func (g *generator) rag(at time.Duration) {
	prompt := []Segment{shared(3, 0, 200)}
	for range 3 {
		d := g.zipf(300)
		prompt = append(prompt, shared(4, d, 1000+d*7%1000))
	}
	g.add(Request{At: at, Prompt: append(prompt, g.fresh(g.about(60))), Answer: g.fresh(g.about(200))})
}

func (g *generator) batch(at time.Duration) {
	g.add(Request{At: at, Prompt: []Segment{shared(5, 0, 1024), g.fresh(g.about(500))}, Answer: g.fresh(g.about(100))})
}

func (g *generator) hot(at time.Duration) {
	r := Request{At: at, Prompt: []Segment{g.fresh(4096), g.fresh(512)}, Answer: g.fresh(g.about(100))}
	if g.rand.Float64() < 0.6 {
		r.Prompt[0] = shared(6, 0, 4096)
	}
	g.add(r)
}
