package sim

import (
	"context"
	"fmt"
	"time"

	"epp.internal/epp/engine"
	"epp.internal/epp/trace"
)

// Claim is something that is said of routing, and what runs say of it.
type Claim struct {
	// Says is the claim.
	Says    string
	Figures []Figure
	// Holds is whether the figures bear it out; Why says what they show where not.
	Holds bool
	Why   string
}

// Figure is one number of a claim.
type Figure struct {
	Name  string
	Value float64
	Unit  string // "%", "ms" or empty
}

// Lines are the figures as text.
func (c *Claim) Lines() []string {
	lines := make([]string, len(c.Figures))
	for i, f := range c.Figures {
		format := "%s %.0f %s"
		switch {
		case f.Unit == "":
			format = "%s %.1f%s"
		case f.Unit == "%" && f.Value < 10:
			format = "%s %.1f %s"
		}
		lines[i] = fmt.Sprintf(format, f.Name, f.Value, f.Unit)
	}
	return lines
}

func (c *Claim) add(name string, value float64, unit string) {
	c.Figures = append(c.Figures, Figure{name, value, unit})
}

// Claims runs what the article that this picker follows says of routing: each claim
// with an experiment of its own, all synthetic, seeded and of profile article-8b where
// nothing else is said. It takes a few seconds of a core.
func Claims(ctx context.Context) ([]Claim, error) {
	b := &claimBook{ctx: ctx, chats: claimTrace("chat", 1000), runs: map[string]*Result{}}
	var claims []Claim
	for _, made := range []func() (Claim, error){
		b.claimHit, b.claimRandom, b.claimLocality, b.claimWeightedRoundRobin, b.claimURLHash, b.claimAffinity,
		b.claimGrowth, b.claimHerd, b.claimQueueHerd, b.claimMigration, b.claimColdStart, b.claimHitIsLatency,
	} {
		c, err := made()
		if err != nil {
			return nil, err
		}
		claims = append(claims, c)
	}
	return claims, nil
}

// claimBook runs experiments, those that claims share once.
type claimBook struct {
	ctx   context.Context
	chats *trace.Trace
	runs  map[string]*Result // of chats, by policy
}

// run is one run of a claim's experiment, on engines of a profile.
func (b *claimBook) run(tr *trace.Trace, policy string, endpoints int, profile string, change func(*Config)) (*Result, error) {
	p, _ := engine.ProfileNamed(profile)
	cfg := Config{Trace: tr, Policy: policy, Endpoints: endpoints, Engine: engine.Config{Profile: p}, Seed: 1}
	if change != nil {
		change(&cfg)
	}
	return Run(b.ctx, cfg)
}

// claimTrace generates a workload of seed 1.
func claimTrace(kind string, requests int) *trace.Trace {
	t, err := trace.Generate(trace.Workload{Kind: kind, Requests: requests, Seed: 1})
	if err != nil {
		panic(err) // the kinds are constants of this file
	}
	return t
}

func inMillis(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// ask is a request of a prompt made of segments, each an id and a length.
func ask(at time.Duration, session uint64, answer int, segments ...trace.Segment) trace.Request {
	return trace.Request{At: at, Session: session, Prompt: segments, Answer: trace.Segment{ID: 9<<40 | uint64(at), Tokens: answer}}
}

func (b *claimBook) claimHit() (Claim, error) {
	c := Claim{Says: "4,096 tokens in the cache take 45 ms; cold ones 0.9 s on an 8B model and 8.2 s on a 70B one", Holds: true}
	prompt := trace.Segment{ID: 1, Tokens: 4096}
	tr := &trace.Trace{Requests: []trace.Request{ask(0, 1, 1, prompt), ask(time.Minute, 1, 1, prompt)}}
	for _, p := range []struct {
		profile, name string
		cold          float64
	}{{"article-8b", "8B", 900}, {"article-70b", "70B", 8200}} {
		r, err := b.run(tr, "weighted", 1, p.profile, nil)
		if err != nil {
			return c, err
		}
		cold, hit := inMillis(r.Requests[0].TTFT), inMillis(r.Requests[1].TTFT)
		c.add(p.name+" cold", cold, "ms")
		c.add("hit", hit, "ms")
		c.Holds = c.Holds && cold > 0.98*p.cold && cold < 1.02*p.cold && hit < 50
	}
	return c, nil
}

func (b *claimBook) claimRandom() (Claim, error) {
	c := Claim{Says: "On 32 endpoints, random routing sends 97 % of requests to a cold cache"}
	// 1,200 prompts, each asked once, then all once more in the same order.
	const prompts = 800
	tr := &trace.Trace{}
	for i := range 2 * prompts {
		id := uint64(i % prompts)
		tr.Requests = append(tr.Requests, ask(time.Duration(i)*100*time.Millisecond, id, 1, trace.Segment{ID: 1000 + id, Tokens: 1024}))
	}
	var cold [2]float64
	for n, policy := range []string{"random", "weighted"} {
		r, err := b.run(tr, policy, 32, "article-8b", nil)
		if err != nil {
			return c, err
		}
		for _, o := range r.Requests[prompts:] {
			if o.CachedTokens == 0 {
				cold[n] += 100.0 / prompts
			}
		}
		c.add(policy+" cold", cold[n], "%")
	}
	c.Holds = cold[0] > 95 && cold[0] < 99 && cold[1] < 5
	return c, nil
}

// chat runs conversations on 8 endpoints by each of the policies.
func (b *claimBook) chat(policies ...string) ([]*Result, error) {
	var runs []*Result
	for _, policy := range policies {
		if b.runs[policy] == nil {
			r, err := b.run(b.chats, policy, 8, "article-8b", nil)
			if err != nil {
				return nil, err
			}
			b.runs[policy] = r
		}
		runs = append(runs, b.runs[policy])
	}
	return runs, nil
}

func (b *claimBook) claimLocality() (Claim, error) {
	c := Claim{Says: "Round robin, random and least connections work against cache locality", Holds: true}
	names := []string{"weighted", "least-conn", "round-robin", "random"}
	runs, err := b.chat(names...)
	if err != nil {
		return c, err
	}
	ours := runs[0].Summary()
	for i, r := range runs {
		s := r.Summary()
		c.add(names[i]+" hit", 100*s.HitShare, "%")
		c.add("first token", inMillis(s.MeanTTFT), "ms")
		if i > 0 {
			c.Holds = c.Holds && s.HitShare < 0.9*ours.HitShare && s.MeanTTFT > ours.MeanTTFT
		}
	}
	return c, nil
}

func (b *claimBook) claimWeightedRoundRobin() (Claim, error) {
	c := Claim{Says: "Weighted round robin handles mixed hardware, but is blind to caches (half the endpoints a100-8b, half three times slower)"}
	fast, _ := engine.ProfileNamed("a100-8b")
	slow, _ := engine.ProfileNamed("article-8b")
	tr := claimTrace("agents", 600)
	names := []string{"weighted", "weighted-round-robin", "round-robin"}
	var mean, hit [3]float64
	for i, policy := range names {
		r, err := b.run(tr, policy, 8, "a100-8b", func(cfg *Config) {
			for n := range 8 {
				p := fast
				if n%2 == 1 {
					p = slow
				}
				cfg.Engines = append(cfg.Engines, engine.Config{Profile: p})
			}
		})
		if err != nil {
			return c, err
		}
		s := r.Summary()
		mean[i], hit[i] = inMillis(s.MeanTTFT), s.HitShare
		c.add(policy+" hit", 100*hit[i], "%")
		c.add("first token", mean[i], "ms")
	}
	c.Holds = mean[1] < mean[2] && mean[0] < mean[1] && hit[0] > hit[1]
	return c, nil
}

func (b *claimBook) claimURLHash() (Claim, error) {
	c := Claim{Says: "A hash of the URL knows nothing of prompts: every chat has the same one"}
	runs, err := b.chat("url-hash", "header-hash")
	if err != nil {
		return c, err
	}
	for i, name := range []string{"URL", "header"} {
		c.add(name+": busiest endpoint, requests over the mean", runs[i].Summary().Most, "")
	}
	c.Holds = runs[0].Summary().Most == 8
	return c, nil
}

// turnsKept is the share of a conversation's further turns that went where the turn
// before did, in per cent.
func turnsKept(tr *trace.Trace, r *Result) float64 {
	last := map[uint64]int{}
	further, kept := 0, 0
	for i, o := range r.Requests {
		session := tr.Requests[i].Session
		if at, ok := last[session]; ok {
			further++
			if at == o.Endpoint {
				kept++
			}
		}
		last[session] = o.Endpoint
	}
	return 100 * float64(kept) / float64(max(1, further))
}

func (b *claimBook) claimAffinity() (Claim, error) {
	c := Claim{Says: "Session affinity falls out: a conversation stays where its cache is, and nothing is configured"}
	names := []string{"weighted", "header-hash", "least-conn"}
	runs, err := b.chat(names...)
	if err != nil {
		return c, err
	}
	var kept [3]float64
	for i, r := range runs {
		kept[i] = turnsKept(b.chats, r)
		c.add(names[i]+": turns that stay", kept[i], "%")
	}
	c.Holds = kept[0] > 95 && kept[2] < 30
	return c, nil
}

func (b *claimBook) claimGrowth() (Claim, error) {
	c := Claim{Says: "A conversation's match grows to 80–90 % of the prompt and more"}
	runs, err := b.chat("weighted")
	if err != nil {
		return c, err
	}
	turn := map[uint64]int{}
	var cached, prompt [6]float64
	for i, o := range runs[0].Requests {
		n := min(turn[b.chats.Requests[i].Session], 5)
		turn[b.chats.Requests[i].Session]++
		cached[n] += float64(o.CachedTokens)
		prompt[n] += float64(o.PromptTokens)
	}
	for _, n := range []int{0, 1, 2, 5} {
		name := fmt.Sprintf("turn %d", n+1)
		if n == 5 {
			name += " and later"
		}
		c.add(name, 100*cached[n]/prompt[n], "%")
	}
	c.Holds = cached[5]/prompt[5] > 0.8 && cached[1]/prompt[1] < cached[5]/prompt[5]
	return c, nil
}

// herdTrace is one request of a prompt, and 20 s later 200 of it within a second.
func herdTrace() *trace.Trace {
	prompt := trace.Segment{ID: 5, Tokens: 4096}
	tr := &trace.Trace{Requests: []trace.Request{ask(0, 0, 1, prompt)}}
	for i := range 200 {
		tr.Requests = append(tr.Requests, ask(20*time.Second+time.Duration(i)*5*time.Millisecond, uint64(i), 100,
			prompt, trace.Segment{ID: 1000 + uint64(i), Tokens: 256}))
	}
	return tr
}

// herd is what became of the herd: the share of the endpoint that had most of
// it, in per cent, and the mean time to the end.
func (b *claimBook) herd(policy string, slots int) (most, e2e float64, err error) {
	r, err := b.run(herdTrace(), policy, 8, "article-8b", func(cfg *Config) { cfg.Engine.MaxRunning = slots })
	if err != nil {
		return 0, 0, err
	}
	s := r.Summary()
	return 100 * s.Most / 8, inMillis(s.MeanE2E), nil
}

func (b *claimBook) claimHerd() (Claim, error) {
	c := Claim{
		Says: "200 requests for one cached prefix within a second are spread by the queue factor and maxQueue (16 running slots each)",
		Why:  "they are spread as far where no queue can form: it is load that spreads them, before any queue does",
	}
	most, e2e, err := b.herd("weighted", 16)
	if err != nil {
		return c, err
	}
	c.add("weighted: busiest of 8 has", most, "%")
	c.add("to the end", e2e, "ms")
	other, spread, err := b.herd("least-conn", 16)
	c.add("least-conn:", other, "%")
	c.add("to the end", spread, "ms")
	if err != nil {
		return c, err
	}
	// The queue's part is what is lost where it never fills.
	loose, _, err := b.herd("weighted", 256)
	c.add("weighted with 256 slots:", loose, "%")
	c.Holds = most < 0.9*loose
	return c, err
}

func (b *claimBook) claimQueueHerd() (Claim, error) {
	c := Claim{
		Says: "The same with 256 running slots each",
		Why:  "no queue forms where every request runs at once; what spreads them is load, from some dozen requests on, and predicted cost from the first",
	}
	var most [3]float64
	for i, policy := range []string{"weighted", "gate", "latency"} {
		m, e2e, err := b.herd(policy, 256)
		if err != nil {
			return c, err
		}
		most[i] = m
		c.add(policy+": busiest of 8 has", m, "%")
		c.add("to the end", e2e, "ms")
	}
	return c, nil
}

func (b *claimBook) claimMigration() (Claim, error) {
	c := Claim{Says: "A turn that leaves an overloaded home pays for what is cached there alone: a partial match, not a cold cache"}
	// Everybody has the same 1,024 tokens before a document that one endpoint holds;
	// sixty questions on it within half a second are more than its queue takes.
	system, document := trace.Segment{ID: 1, Tokens: 1024}, trace.Segment{ID: 2, Tokens: 3072}
	tr := &trace.Trace{}
	for i := range 64 { // everybody computes the shared tokens
		tr.Requests = append(tr.Requests, ask(time.Duration(i)*2*time.Millisecond, uint64(i), 50, system, trace.Segment{ID: 100 + uint64(i), Tokens: 64}))
	}
	tr.Requests = append(tr.Requests, ask(time.Minute, 1, 10, system, document))
	const first = 65
	for i := range 60 {
		tr.Requests = append(tr.Requests, ask(2*time.Minute+time.Duration(i)*8*time.Millisecond, 1, 200, system, document, trace.Segment{ID: 1000 + uint64(i), Tokens: 64}))
	}
	r, err := b.run(tr, "weighted", 4, "article-8b", func(cfg *Config) { cfg.Engine.MaxRunning = 8 })
	if err != nil {
		return c, err
	}
	home := r.Requests[first-1].Endpoint
	var full, partial, cold, left float64
	for _, o := range r.Requests[first:] {
		if o.Endpoint == home {
			continue
		}
		left++
		switch {
		case o.CachedTokens >= 4096:
			full++
		case o.CachedTokens >= 1024:
			partial++
		default:
			cold++
		}
	}
	c.add("turns that leave", left, "")
	c.add("with a partial match", partial, "")
	c.add("where an earlier one has made a copy", full, "")
	c.add("cold", cold, "")
	c.Holds = left > 0 && partial > 0 && cold == 0
	return c, nil
}

func (b *claimBook) claimColdStart() (Claim, error) {
	c := Claim{Says: "A new prefix goes by load and queue, and fills one cache; what follows finds it there"}
	tr := &trace.Trace{}
	for i := range 64 {
		for n := range 2 {
			tr.Requests = append(tr.Requests, ask(time.Duration(2*i+n)*2*time.Second, uint64(i), 1, trace.Segment{ID: 10 + uint64(i), Tokens: 2048}))
		}
	}
	r, err := b.run(tr, "weighted", 8, "article-8b", nil)
	if err != nil {
		return c, err
	}
	follow, found := 0.0, 0.0
	for i := 1; i < len(r.Requests); i += 2 {
		follow++
		if r.Requests[i].CachedTokens > 0 {
			found++
		}
	}
	s := r.Summary()
	c.add("second requests that find the first one's blocks", 100*found/follow, "%")
	c.add("fewest requests of an endpoint over the mean", s.Least, "")
	c.add("most", s.Most, "")
	c.Holds = found == follow && s.Most < 2.5
	return c, nil
}

func (b *claimBook) claimHitIsLatency() (Claim, error) {
	c := Claim{
		Says: "Who computes least is fastest: the best match gives the lowest latency (a100-8b, tool-using agents)",
		Why:  "the gate gives up a little of the cache and is faster: waiting costs, too",
	}
	tr := claimTrace("agents", 800)
	var sums [2]Summary
	for i, policy := range []string{"weighted", "gate"} {
		r, err := b.run(tr, policy, 8, "a100-8b", nil)
		if err != nil {
			return c, err
		}
		sums[i] = r.Summary()
		c.add(policy+" hit", 100*sums[i].HitShare, "%")
		c.add("first token", inMillis(sums[i].MeanTTFT), "ms")
	}
	c.Holds = sums[0].MeanTTFT <= sums[1].MeanTTFT
	return c, nil
}
