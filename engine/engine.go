package engine

import (
	"fmt"
	"slices"
	"time"

	"epp.internal/epp"
	"epp.internal/epp/block"
)

// Defaults of Config, vLLM's own where it has one.
const (
	DefaultBlockTokens    = 16
	DefaultMaxRunning     = 256  // max_num_seqs on a large GPU
	DefaultMaxBatchTokens = 8192 // max_num_batched_tokens on a large GPU
	DefaultAdapterLoad    = 200 * time.Millisecond
)

// Config describes an engine. The zero Config is profile article-8b.
type Config struct {
	// Profile is how fast the engine is; the default is the first of Profiles.
	Profile Profile
	// BlockTokens is the number of tokens in a block.
	BlockTokens int
	// Blocks is the number of blocks as vllm:cache_config_info counts them, in
	// num_gpu_blocks: one of them is the null block, which holds no tokens. The
	// default is what Profile.KVTokens asks for.
	Blocks int
	// MaxRunning is how many requests run at once.
	MaxRunning int
	// MaxBatchTokens is how many tokens a step computes at most.
	MaxBatchTokens int
	// MaxAdapters is how many LoRA adapters can be active at once; 0: none.
	MaxAdapters int
	// AdapterLoad is how much longer a step takes for each adapter that is not
	// in one of the MaxAdapters slots: 200 ms for rank 16, 800 ms for rank 64.
	AdapterLoad time.Duration
	// Seed is where the engine's block hashes begin. Engines with different
	// seeds share no hash.
	Seed uint64
	// JoinRemovals makes one event of BlockRemoved events one after another, which
	// means the same and is read faster. An engine tells of each block by itself.
	JoinRemovals bool
}

// withDefaults returns the config with its zero fields filled in, or an error
// that names the first field that is out of range.
func (c Config) withDefaults() (Config, error) {
	if c.Profile == (Profile{}) {
		c.Profile = Profiles[0]
	}
	setDefault(&c.BlockTokens, DefaultBlockTokens)
	setDefault(&c.MaxRunning, DefaultMaxRunning)
	setDefault(&c.MaxBatchTokens, DefaultMaxBatchTokens)
	if c.AdapterLoad == 0 {
		c.AdapterLoad = DefaultAdapterLoad
	}
	if c.BlockTokens < 1 {
		return c, fmt.Errorf("engine: BlockTokens (%d) must be >= 1", c.BlockTokens)
	}
	setDefault(&c.Blocks, c.Profile.KVTokens/c.BlockTokens+1)
	switch {
	case c.Blocks < 2:
		return c, fmt.Errorf("engine: Blocks (%d) must be >= 2", c.Blocks)
	case c.MaxRunning < 1:
		return c, fmt.Errorf("engine: MaxRunning (%d) must be >= 1", c.MaxRunning)
	case c.MaxBatchTokens < 1:
		return c, fmt.Errorf("engine: MaxBatchTokens (%d) must be >= 1", c.MaxBatchTokens)
	case c.MaxAdapters < 0:
		return c, fmt.Errorf("engine: MaxAdapters (%d) must be >= 0", c.MaxAdapters)
	case c.AdapterLoad < 0:
		return c, fmt.Errorf("engine: AdapterLoad (%v) must be >= 0", c.AdapterLoad)
	}
	return c, nil
}

func setDefault(field *int, value int) {
	if *field == 0 {
		*field = value
	}
}

// Engine is one engine.
type Engine struct {
	cfg   Config
	cache *cache

	waiting  []*Request
	running  []*Request // in the order of admission
	adapters []adapter  // the slots in use
	counters Counters

	stepping bool
	stepEnd  time.Time
	step     []*Request // of the step under way; none of them has ended before it
	useClock uint64     // orders the uses of adapter slots

	// due is true where a step might begin at dueAt: something has changed since
	// the last look at the queues.
	due   bool
	dueAt time.Time

	held, asleep bool
	speed        float64 // steps take 1/speed of their time

	spare   eventBuffers // the buffers of the events that were returned last
	outputs []Output
}

type adapter struct {
	name string
	used uint64
}

// eventBuffers back the events of one step.
type eventBuffers struct {
	events  []epp.BlockEvent
	removed []uint64
}

// Output is what one step brought one request.
type Output struct {
	Request *Request
	// Index is the token's place in the answer, or -1 where the request ends
	// without one.
	Index int
	Token uint32
	// Finished is true for the last output of a request.
	Finished bool
}

// Step is what one step brought. Its slices are valid until the next call of
// Advance, but for the hashes and tokens of BlockStored events, which are the
// requests' own; the tokens and hashes of its events must not be changed.
type Step struct {
	// Ended is true where a step ended; else all other fields are zero.
	Ended bool
	At    time.Time
	// Outputs are in the order in which the requests were scheduled.
	Outputs []Output
	// Events are all KV events since the step before, in order.
	Events []epp.BlockEvent
}

// Load is what the engine says of itself.
type Load struct {
	Running int // requests
	Waiting int // requests
	// Deferred of the waiting could run but for their adapter, which finds no
	// slot.
	Deferred int
	// KVUsage is the fraction of blocks that requests hold.
	KVUsage float64
	Asleep  bool
}

// Counters only ever grow. Tokens are counted when a request is first admitted
// or when they are produced.
type Counters struct {
	PrefixQueryTokens uint64 // vllm:prefix_cache_queries_total
	PrefixHitTokens   uint64 // vllm:prefix_cache_hits_total
	PromptTokens      uint64 // vllm:prompt_tokens_total
	CachedTokens      uint64 // vllm:prompt_tokens_cached_total
	AnswerTokens      uint64 // vllm:generation_tokens_total
	Preemptions       uint64 // vllm:num_preemptions_total
	Finished          uint64
	Aborted           uint64
	Steps             uint64
	AdapterLoads      uint64
}

// New returns an idle engine with an empty cache.
func New(cfg Config) (*Engine, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	e := &Engine{cfg: cfg, cache: newCache(cfg.Blocks, cfg.BlockTokens, cfg.Seed), speed: 1}
	e.cache.join = cfg.JoinRemovals
	return e, nil
}

// SetSpeed lets the steps that begin from now on take 1/speed of their time: a
// GPU that is throttled or shared. speed must be above 0; 1 is the profile's own.
func (e *Engine) SetSpeed(speed float64) { e.speed = speed }

// Config returns the engine's configuration with its defaults filled in.
func (e *Engine) Config() Config { return e.cfg }

// Load returns what the engine says of itself. An engine that sleeps says that
// nothing waits, whatever does, as vLLM's metrics do.
func (e *Engine) Load() Load {
	l := Load{Running: len(e.running), Waiting: len(e.waiting), KVUsage: e.cache.usage(), Asleep: e.asleep}
	if e.asleep {
		l.Waiting = 0
		return l
	}
	for _, r := range e.waiting {
		if r.Adapter != "" && e.slotFor(r.Adapter) < 0 {
			l.Deferred++
		}
	}
	return l
}

// Counters returns the counters.
func (e *Engine) Counters() Counters { return e.counters }

// KnownBlocks is how many blocks can be found in the cache.
func (e *Engine) KnownBlocks() int { return e.cache.known }

// Holds is how many leading full blocks of a prompt are in the cache: what the
// index of a picker should say. It does not count as a use.
func (e *Engine) Holds(tokens []uint32, adapter, salt string) int {
	c := e.cache
	parent := c.rootHash(adapter, salt)
	n := 0
	var b int32
	for ; (n+1)*c.blockTokens <= len(tokens); n++ {
		parent = block.Extend(parent, tokens[n*c.blockTokens:(n+1)*c.blockTokens])
		if b = c.find(parent, b); b == nullBlock {
			break
		}
	}
	return n
}

// Adapters returns the names of the adapters that requests in the engine ask for,
// sorted and each once.
func (e *Engine) Adapters() []string {
	var names []string
	for _, queue := range [...][]*Request{e.running, e.waiting} {
		for _, r := range queue {
			if r.Adapter != "" && !slices.Contains(names, r.Adapter) {
				names = append(names, r.Adapter)
			}
		}
	}
	slices.Sort(names)
	return names
}

// Add puts a request at the end of the queue. It is an error if the request
// could never run: no prompt, more tokens than all blocks hold, an adapter where
// no slot for one is.
func (e *Engine) Add(now time.Time, r *Request) error {
	tokens := len(r.Tokens) + len(r.Answer)
	room := (e.cfg.Blocks - 1) * e.cfg.BlockTokens
	switch {
	case len(r.Tokens) == 0:
		return fmt.Errorf("request %d: prompt is empty", r.ID)
	case tokens > room:
		return fmt.Errorf("request %d: %d tokens, the cache holds %d", r.ID, tokens, room)
	case r.Adapter != "" && e.cfg.MaxAdapters == 0:
		return fmt.Errorf("request %d: adapter %q, the engine has no slot for adapters", r.ID, r.Adapter)
	}
	r.arrived = now
	r.root = e.cache.rootHash(r.Adapter, r.Salt)
	e.waiting = append(e.waiting, r)
	e.wake(now)
	return nil
}

// Abort ends a request at once: its slot and its blocks are free. What the step
// under way computes of it stays in the cache. It reports whether the request
// was there.
func (e *Engine) Abort(now time.Time, r *Request) bool {
	if i := slices.Index(e.waiting, r); i >= 0 {
		e.waiting = slices.Delete(e.waiting, i, i+1)
	} else if i := slices.Index(e.running, r); i >= 0 {
		e.running = slices.Delete(e.running, i, i+1)
	} else {
		return false
	}
	e.end(r)
	e.counters.Aborted++
	e.wake(now)
	return true
}

// end gives back all that r holds.
func (e *Engine) end(r *Request) {
	e.cache.release(r.blocks)
	r.blocks = nil
	r.ended = true
}

// ResetPrefixCache makes every block unknown. It does nothing and returns false
// while a request holds a block, as vLLM does.
func (e *Engine) ResetPrefixCache() bool {
	if e.cache.free != e.cfg.Blocks-1 {
		return false
	}
	e.cache.clear()
	return true
}

// Hold stops the engine short of every answer while on is true: prompts are
// admitted and computed but for their last token, running requests keep their
// slots, and nothing is produced.
func (e *Engine) Hold(now time.Time, on bool) {
	e.held = on
	e.wake(now)
}

// Sleep empties the cache and stops the engine until Wake. Requests wait; the
// running ones go back to the queue, in their order.
func (e *Engine) Sleep() {
	if e.asleep {
		return
	}
	e.asleep, e.stepping = true, false
	e.step = e.step[:0]
	for len(e.running) > 0 {
		e.preemptLast()
	}
	e.cache.clear()
}

// Wake ends a Sleep.
func (e *Engine) Wake(now time.Time) {
	e.asleep = false
	e.wake(now)
}

// wake notes that a step might begin at now.
func (e *Engine) wake(now time.Time) { e.due, e.dueAt = true, now }
