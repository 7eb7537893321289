package agent

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/test/bufconn"

	"epp.internal/epp"
	"epp.internal/epp/block"
	"epp.internal/epp/fleet"
	"epp.internal/epp/kvindex"
	"epp.internal/epp/report"
	"epp.internal/epp/report/wire"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	endpoint  = "10.0.0.7:8000"
	blockSize = 4
	interval  = 2 * time.Second
)

func token() string { return "a shared secret" }

// picker is a picker's side: its index, and the server that writes into it.
type picker struct {
	key    block.Key
	index  *kvindex.Index
	table  *fleet.Table
	member *fleet.Member
	server *report.Server
	listen *bufconn.Listener
	every  atomic.Int64 // the interval, in nanoseconds

	mu  sync.Mutex // guards the following field
	was seen
}

// seen is what a picker saw.
type seen struct {
	open     int // feeds that are open
	opened   int // that ever were
	reports  int
	late     int
	missed   uint64
	refused  int
	gpus     []epp.GPU
	probes   []error
	values   map[string]string
	failures []error
}

// saw returns what the picker saw until now.
func (p *picker) saw() seen {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.was
}

func newPicker(key block.Key) *picker {
	p := &picker{key: key, index: kvindex.New(kvindex.Options{Key: key}), listen: bufconn.Listen(64 << 10)}
	p.table = fleet.New(fleet.Options{Index: p.index})
	p.member = p.table.Join(epp.Endpoint{Name: "a", Address: endpoint})
	p.every.Store(int64(interval))
	p.server = report.NewServer(report.Options{
		Key: key, Interval: func() time.Duration { return time.Duration(p.every.Load()) }, Token: token, AnyHost: true, Open: p.feed,
		Hooks: report.Hooks{
			Report:  func(late bool) { p.count(func() { p.was.reports++; p.was.late += map[bool]int{true: 1}[late] }) },
			Missed:  func(n uint64) { p.count(func() { p.was.missed += n }) },
			Refused: func() { p.count(func() { p.was.refused++ }) },
		},
	})
	go p.server.Serve(p.listen)
	return p
}

func (p *picker) count(f func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	f()
}

func (p *picker) feed(o report.Opening) (report.Feed, error) {
	if o.Endpoint != endpoint {
		return report.Feed{}, errors.New("endpoint: not one of the pool's")
	}
	p.count(func() { p.was.open++; p.was.opened++ })
	return report.Feed{
		Readings: p, Models: p.member.Models, Blocks: p.member, Health: p,
		Values: func(v map[string]string) { p.count(func() { p.was.values = v }) },
		Close:  func(time.Time) { p.count(func() { p.was.open-- }) },
	}, nil
}

func (p *picker) Begin(now time.Time) int                    { return p.member.Begin(now) }
func (p *picker) Load(mark int, began time.Time, l epp.Load) { p.member.Load(mark, began, l) }
func (p *picker) GPU(_ time.Time, g epp.GPU)                 { p.count(func() { p.was.gpus = append(p.was.gpus, g) }) }
func (p *picker) Probed(_ time.Time, err error, _ bool) {
	p.count(func() { p.was.probes = append(p.was.probes, err) })
}
func (p *picker) Failed(_ time.Time, err error) {
	p.count(func() { p.was.failures = append(p.was.failures, err) })
}
func (p *picker) dial(context.Context, string) (net.Conn, error) { return p.listen.Dial() }

func (p *picker) close() {
	p.server.Close()
	p.listen.Close()
}

// follow lets a client tell the picker until stop is called.
func (p *picker) follow(a *Agent, i int, faults grpc.StreamClientInterceptor) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	c := report.Client{
		Picker: "passthrough:///picker", Token: token, Source: a.Teller(i), Log: slog.New(slog.DiscardHandler),
		Hello:   &wire.Hello{Endpoint: endpoint, Readings: true, Blocks: true, Probes: true},
		Options: []grpc.DialOption{grpc.WithContextDialer(p.dial)},
	}
	if faults != nil {
		c.Options = append(c.Options, grpc.WithStreamInterceptor(faults))
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = c.Run(ctx) // ends with ctx
	}()
	return func() {
		cancel()
		<-done
	}
}

// settle lets d pass, and what happens in it.
func settle(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

// truth is an engine's cache, as simple as can be: its blocks by their names.
type truth map[name]*truthBlock

type truthBlock struct {
	parent *name // nil: it begins a prompt
	tokens []uint32
}

// chain is a block's hashes from the root, nil where a block on the way is missing.
func (t truth) chain(key block.Key, at name) []uint64 {
	b := t[at]
	if b == nil {
		return nil
	}
	if b.parent == nil {
		return block.AppendChain(nil, key.Root(block.Root{BlockTokens: blockSize}), b.tokens, blockSize)
	}
	before := t.chain(key, *b.parent)
	if before == nil {
		return nil
	}
	return block.AppendChain(before, before[len(before)-1], b.tokens, blockSize)
}

// engine makes up events and keeps the truth.
type engine struct {
	truth truth
	live  []name // those of the truth
	rng   *rand.Rand
	next  uint64
}

func newEngine(seed uint64) *engine {
	return &engine{truth: truth{}, rng: rand.New(rand.NewPCG(seed, 1))}
}

// forget lets all blocks go.
func (e *engine) forget() { e.truth, e.live = truth{}, nil }

// step makes up some events: mostly prompts that go on where others are, and
// removals of any block, its children or not.
func (e *engine) step() (events []epp.BlockEvent) {
	for range 1 + e.rng.IntN(4) {
		if n := len(e.live); n > 0 && e.rng.IntN(3) == 0 {
			i := e.rng.IntN(n)
			gone := e.live[i]
			e.live[i] = e.live[n-1]
			e.live = e.live[:n-1]
			delete(e.truth, gone)
			events = append(events, epp.BlockEvent{Kind: epp.BlockRemoved, Tier: "GPU", Hashes: []uint64{gone.hash}})
			continue
		}
		ev := epp.BlockEvent{Kind: epp.BlockStored, Tier: "GPU", BlockTokens: blockSize}
		var parent *name
		if n := len(e.live); n > 0 && e.rng.IntN(4) > 0 {
			at := e.live[e.rng.IntN(n)]
			parent = &at
			ev.Parent, ev.HasParent = parent.hash, true
		}
		for range 1 + e.rng.IntN(5) {
			e.next++
			n := name{"GPU", 0, e.next}
			// Its first token is its name: no two blocks are the same.
			b := &truthBlock{parent: parent, tokens: []uint32{uint32(e.next), e.rng.Uint32(), 2, 3}}
			e.truth[n] = b
			e.live = append(e.live, n)
			ev.Hashes = append(ev.Hashes, n.hash)
			ev.Tokens = append(ev.Tokens, b.tokens...)
			parent = &n
		}
		events = append(events, ev)
	}
	return events
}

// agree holds a picker's index against the truth.
func (e *engine) agree(t testing.TB, p *picker) {
	t.Helper()
	blocks := 0
	for n := range e.truth {
		chain := e.truth.chain(p.key, n)
		if chain == nil {
			continue
		}
		blocks++
		out := []uint32{0}
		if p.index.Match(chain, out); int(out[0]) != len(chain) {
			t.Errorf("picker holds %d of the %d blocks to %v", out[0], len(chain), n)
			return
		}
	}
	if got := p.index.Nodes(); got != blocks {
		t.Errorf("picker holds %d blocks, the engine %d that can be reached", got, blocks)
	}
}
