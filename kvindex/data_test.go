package kvindex

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"

	"epp.internal/epp"
	"epp.internal/epp/block"
)

// Each file of testdata/stories is a story of two endpoints, a and b, with blocks of two
// tokens and room for four parked blocks.
func TestStories(t *testing.T) {
	datadriven.Walk(t, "testdata/stories", func(t *testing.T, path string) {
		x := New(Options{Key: 7, MaxParkedBlocks: 4})
		writers := map[string]*Writer{"a": x.Endpoint(0), "b": x.Endpoint(1)}
		now := time.Unix(1000, 0)
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			if d.Cmd == "match" {
				return match(t, x, d)
			}
			name := d.CmdArgs[0].Key
			w := writers[name]
			switch d.Cmd {
			case "store", "remove":
				for range number(d, "times", 1) {
					w.Apply(now, []epp.BlockEvent{event(t, d)})
				}
			case "clear":
				w.Clear(now)
			default:
				d.Fatalf(t, "unknown command %q", d.Cmd)
			}
			checkConsistent(t, x)
			return describe(name, w.Stats(), x.Nodes())
		})
	})
}

func describe(name string, s WriterStats, nodes int) string {
	out := fmt.Sprintf("%s: %d blocks", name, s.Blocks)
	if s.Copies != s.Blocks {
		out += fmt.Sprintf(", %d copies", s.Copies)
	}
	if s.Parked > 0 {
		out += fmt.Sprintf(", %d parked", s.Parked)
	}
	if s.Incomplete {
		out += ", incomplete"
	}
	for _, c := range []struct {
		n    uint64
		what string
	}{
		{s.Duplicates, "duplicates"}, {s.UnknownRemovals, "unknown removals"},
		{s.ParkedDropped, "parked dropped"}, {s.Malformed, "malformed"},
	} {
		if c.n > 0 {
			out += fmt.Sprintf(", %d %s", c.n, c.what)
		}
	}
	return fmt.Sprintf("%s; index: %d nodes\n", out, nodes)
}

// match hashes the prompt as a request's way in does.
func match(t *testing.T, x *Index, d *datadriven.TestData) string {
	tokens, size, media := numbers[uint32](t, d, "tokens"), number(d, "size", 2), list(d, "media")
	parent := block.Key(7).Root(block.Root{Adapter: text(d, "adapter"), Salt: text(d, "salt"), BlockTokens: size})
	var chain []uint64
	for i := 0; (i+1)*size <= len(tokens); i++ {
		m := ""
		if i < len(media) {
			m = media[i]
		}
		parent = block.ExtendMedia(parent, m, tokens[i*size:(i+1)*size])
		chain = append(chain, parent)
	}
	out := []uint32{99, 99}
	x.Match(chain, out)
	return fmt.Sprintf("a=%d b=%d\n", out[0], out[1])
}

func event(t *testing.T, d *datadriven.TestData) epp.BlockEvent {
	e := epp.BlockEvent{Kind: epp.BlockStored, Hashes: numbers[uint64](t, d, "hashes"), Tier: "GPU"}
	if tier := text(d, "tier"); tier != "" {
		e.Tier = tier
	}
	if d.Cmd == "remove" {
		e.Kind = epp.BlockRemoved
		return e
	}
	e.Tokens, e.BlockTokens = numbers[uint32](t, d, "tokens"), number(d, "size", 2)
	e.Adapter, e.Salt, e.Media = text(d, "adapter"), text(d, "salt"), list(d, "media")
	if e.HasParent = d.HasArg("parent"); e.HasParent {
		e.Parent = uint64(number(d, "parent", 0))
	}
	return e
}

func list(d *datadriven.TestData, key string) []string {
	for _, arg := range d.CmdArgs {
		if arg.Key == key {
			return arg.Vals
		}
	}
	return nil
}

func text(d *datadriven.TestData, key string) string { return strings.Join(list(d, key), ",") }

func number(d *datadriven.TestData, key string, otherwise int) int {
	if n, err := strconv.Atoi(text(d, key)); err == nil {
		return n
	}
	return otherwise
}

func numbers[T uint32 | uint64](t *testing.T, d *datadriven.TestData, key string) (out []T) {
	for _, v := range list(d, key) {
		if v == "" {
			continue
		}
		n, err := strconv.ParseUint(strings.TrimSpace(v), 10, 64)
		if err != nil {
			d.Fatalf(t, "%s: bad number %q", key, v)
		}
		out = append(out, T(n))
	}
	return out
}
