package engine

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"epp.internal/epp"
	"github.com/cockroachdb/datadriven"
)

// The stories of testdata/stories are told to an engine of small blocks; see
// testdata/README.md.
func TestStories(t *testing.T) {
	datadriven.Walk(t, "testdata/stories", func(t *testing.T, path string) {
		s := story{t: t}
		datadriven.RunTest(t, path, s.run)
	})
}

// story is an engine and its requests by name.
type story struct {
	t        *testing.T
	e        *Engine
	now      time.Time
	requests map[string]*Request
	names    map[*Request]string
	blocks   map[uint64]string // known hashes as the tokens that lead to them
}

func (s *story) run(t *testing.T, d *datadriven.TestData) string {
	switch d.Cmd {
	case "engine":
		return s.start(t, d)
	case "add":
		return s.add(t, d)
	case "step":
		n := 1
		d.MaybeScanArgs(t, "n", &n)
		return s.steps(n)
	case "run":
		return s.steps(1 << 20)
	case "abort":
		return fmt.Sprintln(s.e.Abort(s.now, s.requests[d.CmdArgs[0].Key]))
	case "reset":
		return fmt.Sprintln(s.e.ResetPrefixCache())
	case "hold", "release":
		s.e.Hold(s.now, d.Cmd == "hold")
	case "sleep":
		s.e.Sleep()
	case "wake":
		s.e.Wake(s.now)
	case "load":
	default:
		t.Fatalf("%s: no such command", d.Cmd)
	}
	return s.load()
}

func (s *story) start(t *testing.T, d *datadriven.TestData) string {
	cfg := Config{BlockTokens: 4, Profile: Profile{Name: "flat", T0: 10, KVTokens: 400}}
	for _, a := range d.CmdArgs {
		var n int
		a.Scan(t, 0, &n)
		switch a.Key {
		case "blocks":
			cfg.Blocks = n
		case "running":
			cfg.MaxRunning = n
		case "tokens":
			cfg.MaxBatchTokens = n
		case "adapters":
			cfg.MaxAdapters = n
		default:
			t.Fatalf("%s: no such argument", a.Key)
		}
	}
	s.e, s.now = mustNew(t, cfg), time.Unix(0, 0)
	s.requests, s.names, s.blocks = map[string]*Request{}, map[*Request]string{}, map[uint64]string{}
	return s.load()
}

// add adds a request: its prompt is a text, a token for each letter; its answer
// is a text too.
func (s *story) add(t *testing.T, d *datadriven.TestData) string {
	var name, prompt, answer, adapter, salt string
	name = d.CmdArgs[0].Key
	d.ScanArgs(t, "prompt", &prompt)
	d.MaybeScanArgs(t, "answer", &answer)
	d.MaybeScanArgs(t, "adapter", &adapter)
	d.MaybeScanArgs(t, "salt", &salt)
	r := &Request{Tokens: letters(prompt), Answer: letters(answer), Adapter: adapter, Salt: salt}
	s.requests[name], s.names[r] = r, name
	if err := s.e.Add(s.now, r); err != nil {
		return err.Error()
	}
	return s.load()
}

func letters(text string) []uint32 {
	var out []uint32
	for _, c := range text {
		out = append(out, uint32(c))
	}
	return out
}

// steps runs up to n steps and tells each one.
func (s *story) steps(n int) string {
	var b strings.Builder
	for n > 0 {
		at, ok := s.e.Next()
		if !ok {
			break
		}
		s.now = at
		step := s.e.Advance(at)
		if !step.Ended {
			continue
		}
		n--
		fmt.Fprintf(&b, "%4d ms", at.Sub(time.Unix(0, 0)).Milliseconds())
		for _, o := range step.Outputs {
			fmt.Fprintf(&b, "  %s:%s", s.names[o.Request], s.output(o))
		}
		b.WriteByte('\n')
		for _, ev := range step.Events {
			fmt.Fprintf(&b, "         %s\n", s.event(ev))
		}
	}
	return b.String() + s.load()
}

func (s *story) output(o Output) string {
	out := ""
	if o.Index >= 0 {
		out = string(rune(o.Token))
	}
	if o.Finished {
		out += fmt.Sprintf(" (end, %d cached)", o.Request.CachedTokens())
	}
	return out
}

// event tells an event by the texts of its blocks.
func (s *story) event(ev epp.BlockEvent) string {
	out := ev.Kind.String()
	for i, h := range ev.Hashes {
		if ev.Kind == epp.BlockStored {
			text := ""
			for _, t := range ev.Tokens[i*ev.BlockTokens : (i+1)*ev.BlockTokens] {
				text += string(rune(t))
			}
			s.blocks[h] = text
		}
		out += " " + s.blocks[h]
	}
	if ev.HasParent {
		out += " after " + s.blocks[ev.Parent]
	}
	if ev.Adapter != "" {
		out += " adapter=" + ev.Adapter
	}
	if ev.Salt != "" {
		out += " salt=" + ev.Salt
	}
	return out
}

func (s *story) load() string {
	l := s.e.Load()
	out := fmt.Sprintf("running %d, waiting %d", l.Running, l.Waiting)
	if l.Deferred > 0 {
		out += fmt.Sprintf(" (%d for an adapter's slot)", l.Deferred)
	}
	out += fmt.Sprintf(", blocks %.0f used %d known", l.KVUsage*float64(s.e.Config().Blocks-1), s.e.KnownBlocks())
	if l.Asleep {
		out += ", asleep"
	}
	return out + "\n"
}

// Before the time that Next gives, Advance does nothing.
func TestAdvanceTooEarly(t *testing.T) {
	e := mustNew(t, Config{})
	now := time.Unix(0, 0)
	if _, ok := e.Next(); ok {
		t.Error("an idle engine is due")
	}
	if err := e.Add(now, &Request{Tokens: prompt(0, 10), Answer: prompt(0, 1)}); err != nil {
		t.Fatal(err)
	}
	e.Advance(now)
	end, _ := e.Next()
	if s := e.Advance(end.Add(-1)); s.Ended || len(s.Outputs) > 0 {
		t.Errorf("a step ended early: %+v", s)
	}
	if s := e.Advance(end); !s.Ended || !s.At.Equal(end) || len(s.Outputs) != 1 || !s.Outputs[0].Finished {
		t.Errorf("the step's end: %+v", s)
	}
}

// Configs and requests that cannot work say why.
func TestRefusals(t *testing.T) {
	for want, cfg := range map[string]Config{
		"BlockTokens (-1)":    {BlockTokens: -1},
		"Blocks (1)":          {Blocks: 1},
		"MaxRunning (-1)":     {MaxRunning: -1},
		"MaxBatchTokens (-1)": {MaxBatchTokens: -1},
		"MaxAdapters (-1)":    {MaxAdapters: -1},
		"AdapterLoad (-1ns)":  {AdapterLoad: -1},
	} {
		if _, err := New(cfg); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", want, err)
		}
	}
	e := mustNew(t, Config{Blocks: 3})
	for want, r := range map[string]*Request{
		"prompt is empty":               {},
		"33 tokens, the cache holds 32": {Tokens: prompt(0, 32), Answer: prompt(0, 1)},
		`adapter "sql"`:                 {Tokens: prompt(0, 1), Adapter: "sql"},
	} {
		if err := e.Add(time.Time{}, r); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", want, err)
		}
	}
	if e.Abort(time.Time{}, &Request{}) {
		t.Error("aborted a request that is not there")
	}
}

// Holds is what a picker's index should say: leading full blocks.
func TestHolds(t *testing.T) {
	e := mustNew(t, Config{})
	firstToken(t, e, prompt(0, 40)) // two full blocks
	for n, tokens := range map[int][]uint32{
		2: prompt(0, 100),
		1: slices.Concat(prompt(0, 16), prompt(500, 16)),
		0: prompt(0, 15),
	} {
		if got := e.Holds(tokens, "", ""); got != n {
			t.Errorf("%d blocks of %v, want %d", got, tokens, n)
		}
	}
	if e.Holds(prompt(0, 40), "sql", "") != 0 || e.Holds(prompt(0, 40), "", "salt") != 0 {
		t.Error("adapters or salts share blocks")
	}
}

// Engines of different seeds share no hash, engines of the same seed all.
func TestSeeds(t *testing.T) {
	hashes := func(seed uint64) []uint64 {
		e := mustNew(t, Config{Seed: seed})
		if err := e.Add(time.Time{}, &Request{Tokens: prompt(0, 64), Answer: prompt(0, 1)}); err != nil {
			t.Fatal(err)
		}
		e.Advance(time.Time{})
		at, _ := e.Next()
		return slices.Clone(e.Advance(at).Events[0].Hashes)
	}
	if !slices.Equal(hashes(1), hashes(1)) {
		t.Error("the same seed gives other hashes")
	}
	for _, h := range hashes(1) {
		if slices.Contains(hashes(2), h) {
			t.Errorf("both seeds give %x", h)
		}
	}
}
