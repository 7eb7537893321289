package scrape

import (
	"bytes"
	"errors"
	"fmt"
	"iter"
	"math"
	"slices"
	"strconv"
	"strings"

	"epp.internal/epp"
)

const (
	// maxRequests is the most requests that an engine is believed to hold. A
	// guess, far above any: a larger number is a fault of the page.
	maxRequests = 1e9
	// maxCounter bounds what an engine has counted since its start, tokens or
	// seconds: above it a float64 counts no longer in ones.
	maxCounter = 1 << 53
	// A usage above 1 is a fault of rounding up to maxRounding, and then counts as
	// 1; above it is no fraction.
	maxRounding = 1.5
	// maxSize bounds the numbers that labels hold: tokens of a block, blocks.
	maxSize = 1 << 40
	// maxAdapters bounds the names of adapters that are read of one label, and so
	// half of those that are kept.
	maxAdapters = 1024
	// maxSeen bounds the series of one metric whose copies are found.
	maxSeen = 64
	// maxFaults bounds the faults of one page that are told in words.
	maxFaults = 8
)

// Page is what was read of one page. The zero Page is ready for use; Parse may
// be called with the same one again and again.
type Page struct {
	// Load is the reading. Its Adapters are not changed by later calls.
	Load epp.Load
	// Bad names the metric of each value that was refused, once for each.
	Bad []string
	// Missing names the metrics that each engine should have and this page lacks.
	Missing []string
}

// Parse reads a page of the Prometheus text format into out, in one pass over
// the wanted lines.
//
// Of several series of one metric those count whose label names.Engine is
// engine, or that have no such label. With engine "" all count: requests and
// blocks are added up, the greatest usage is taken, and the engine sleeps where
// all its ranks do.
//
// A line of a wanted metric that can't be read, or whose value can't be, leaves
// the metric unknown and is told by the error; all other lines are used, so out
// is valid whether or not there is an error.
//
// Cost: 40 µs for vLLM's page of 60 KB, one allocation (BenchmarkParse).
// Source: https://prometheus.io/docs/instrumenting/exposition_formats/
func Parse(page []byte, names Names, engine string, out *Page) error {
	p := parser{names: &names, engine: engine, out: out}
	out.Bad, out.Missing = out.Bad[:0], out.Missing[:0]
	for line, whole := range lines(page) {
		if len(line) > 0 && line[0] != '#' {
			p.line(line, whole)
		}
	}
	p.finish()
	return errors.Join(p.faults...)
}

// lines goes over a page's lines. whole is false for a last one without an end,
// which may have been cut off.
func lines(page []byte) iter.Seq2[[]byte, bool] {
	return func(yield func(line []byte, whole bool) bool) {
		for len(page) > 0 {
			line, rest, whole := bytes.Cut(page, []byte{'\n'})
			if !yield(line, whole) {
				return
			}
			page = rest
		}
	}
}

// sum is what the series of one name add up to.
type sum struct {
	value float64
	most  float64
	count int
	bad   bool // one of the series has no usable value
	// seen are series of which copies may follow, at most maxSeen.
	seen []original
}

// original is a series, and the greatest value of it and its copies.
type original struct {
	labels []byte
	most   float64
}

func (s *sum) add(v float64, ok bool) {
	s.count++
	s.bad = s.bad || !ok
	s.value += v
	s.most = max(s.most, v)
}

// copied returns what of a series' value was added before, as that of one that
// differs in the given labels alone.
func (s *sum) copied(labels []byte, but []string, v float64) float64 {
	for i := range s.seen {
		if o := &s.seen[i]; twins(o.labels, labels, but) {
			before := min(o.most, v)
			o.most = max(o.most, v)
			return before
		}
	}
	if len(s.seen) < maxSeen {
		s.seen = append(s.seen, original{labels, v})
	}
	return 0
}

// twins says whether two series have the same labels but for the given ones.
func twins(a, b []byte, but []string) bool {
	for {
		nameA, valueA, restA := differing(a, but)
		nameB, valueB, restB := differing(b, but)
		if !bytes.Equal(nameA, nameB) || !bytes.Equal(valueA, valueB) {
			return false
		}
		if nameA == nil {
			return true
		}
		a, b = restA, restB
	}
}

// differing returns the first label that is none of the given ones; a nil name:
// there is none.
func differing(labels []byte, but []string) (name, value, rest []byte) {
	for {
		name, value, labels = cut(labels)
		if name == nil || !slices.Contains(but, string(name)) {
			return name, value, labels
		}
	}
}

// maxNames is how many names of one metric are looked for.
const maxNames = 4

// parser is the state of one Parse.
type parser struct {
	names  *Names
	engine string
	out    *Page
	faults []error

	waiting, running, usage [maxNames]sum
	counters                [4]sum // as counterNames
	awake                   sum
	cache                   [2]sum // tokens of a block, blocks

	adaptersAt                                float64 // the value of the newest adapters' line; 0: none
	runningAdapters, waitingAdapters, maxLoRA []byte
}

// line reads one line if it is of a wanted metric. whole is false where the page
// ends before the line does.
func (p *parser) line(line []byte, whole bool) {
	for i, name := range p.names.Waiting[:min(len(p.names.Waiting), maxNames)] {
		if rest, ok := series(line, name); ok {
			p.gauge(&p.waiting[i], name, rest, whole, maxRequests)
			return
		}
	}
	for i, name := range p.names.Running[:min(len(p.names.Running), maxNames)] {
		if rest, ok := series(line, name); ok {
			p.gauge(&p.running[i], name, rest, whole, maxRequests)
			return
		}
	}
	for i, name := range p.names.KVUsage[:min(len(p.names.KVUsage), maxNames)] {
		if rest, ok := series(line, name); ok {
			p.gauge(&p.usage[i], name, rest, whole, maxRounding)
			return
		}
	}
	for i, name := range p.counterNames() {
		if rest, ok := series(line, name); ok {
			p.gauge(&p.counters[i], name, rest, whole, maxCounter)
			return
		}
	}
	if rest, ok := series(line, p.names.Adapters); ok {
		p.adapters(rest, whole)
	} else if rest, ok := series(line, p.names.Cache); ok {
		p.cacheConfig(rest, whole)
	} else if rest, ok := series(line, p.names.BlockTokensGauge); ok {
		p.gauge(&p.cache[0], p.names.BlockTokensGauge, rest, whole, maxSize)
	} else if rest, ok := series(line, p.names.BlocksGauge); ok {
		p.gauge(&p.cache[1], p.names.BlocksGauge, rest, whole, maxSize)
	} else if rest, ok := series(line, p.names.Sleep); ok {
		p.sleep(rest, whole)
	}
}

// series returns what follows the name on the line, where the line is of it.
func series(line []byte, name string) ([]byte, bool) {
	n := len(name)
	if n == 0 || len(line) < n || string(line[:n]) != name {
		return nil, false
	}
	rest := line[n:]
	if len(rest) == 0 || rest[0] == '{' || rest[0] == ' ' || rest[0] == '\t' || rest[0] == '\r' {
		return rest, true
	}
	return nil, false
}

// errShape is a line that is no series.
var errShape = errors.New("line cut off, or not name{labels} value")

// split takes a line behind the name apart: labels, without their braces, and
// value. What follows the value, a time or an exemplar, is left.
func split(rest []byte, whole bool) (labels, value []byte, err error) {
	if !whole || len(rest) == 0 {
		return nil, nil, errShape
	}
	if rest[0] == '{' {
		end := closing(rest)
		if end < 0 {
			return nil, nil, errShape
		}
		labels, rest = rest[1:end], rest[end+1:]
	}
	rest = bytes.Trim(rest, " \t\r")
	if i := bytes.IndexAny(rest, " \t"); i >= 0 {
		rest = rest[:i]
	}
	if len(rest) == 0 {
		return nil, nil, errShape
	}
	return labels, rest, nil
}

// closing returns where the labels' closing brace is; -1 where there is none.
func closing(b []byte) int {
	quoted := false
	for i := 1; i < len(b); i++ {
		switch c := b[i]; {
		case quoted && c == '\\':
			i++
		case c == '"':
			quoted = !quoted
		case c == '}' && !quoted:
			return i
		}
	}
	return -1
}

// label returns the raw value of a label, escapes left in, and whether it is there.
func label(labels []byte, name string) ([]byte, bool) {
	for {
		key, value, rest := cut(labels)
		if key == nil {
			return nil, false
		}
		if string(key) == name {
			return value, true
		}
		labels = rest
	}
}

// cut returns the first label, its value with escapes left in, and what follows; a
// nil name: there is none, or what is there can't be read.
func cut(labels []byte) (name, value, rest []byte) {
	i := bytes.IndexByte(labels, '=')
	if i < 0 || len(labels) < i+2 || labels[i+1] != '"' {
		return nil, nil, nil
	}
	name, value = bytes.Trim(labels[:i], " \t,"), labels[i+2:]
	end := 0
	for end < len(value) && value[end] != '"' {
		if value[end] == '\\' {
			end++
		}
		end++
	}
	if end >= len(value) {
		return nil, nil, nil
	}
	if name == nil {
		name = []byte{}
	}
	return name, value[:end], value[end+1:]
}

// ours says whether a series is of the engine that is asked for.
func (p *parser) ours(labels []byte) bool {
	if p.engine == "" {
		return true
	}
	v, ok := label(labels, p.names.Engine)
	return !ok || string(v) == p.engine
}

// fault notes that a value of a metric was refused.
func (p *parser) fault(name string, err error) {
	p.out.Bad = append(p.out.Bad, name)
	if len(p.faults) < maxFaults {
		p.faults = append(p.faults, fmt.Errorf("%s: %w", name[strings.IndexByte(name, ':')+1:], err))
	}
}

// number reads a value that must be in [0, limit].
func number(b []byte, limit float64) (float64, error) {
	v, err := strconv.ParseFloat(string(b), 64)
	if err != nil || math.IsNaN(v) || v < 0 || v > limit {
		return 0, fmt.Errorf("bad value %q", b[:min(len(b), 64)])
	}
	return v, nil
}

// gauge reads one series of a gauge.
func (p *parser) gauge(s *sum, name string, rest []byte, whole bool, limit float64) {
	labels, value, err := split(rest, whole)
	if err != nil {
		s.add(0, false)
		p.fault(name, err)
		return
	}
	if !p.ours(labels) {
		return
	}
	v, err := number(value, limit)
	if err != nil {
		p.fault(name, err)
	}
	s.add(v, err == nil)
	if len(p.names.Copies) > 0 {
		s.value -= s.copied(labels, p.names.Copies, v)
	}
}

// adapters reads one series of the adapters' metric.
func (p *parser) adapters(rest []byte, whole bool) {
	labels, value, err := split(rest, whole)
	if err == nil && !p.ours(labels) {
		return
	}
	at := 0.0
	if err == nil {
		at, err = number(value, math.MaxFloat64)
	}
	if err != nil {
		p.fault(p.names.Adapters, err)
		return
	}
	if at <= p.adaptersAt {
		return
	}
	p.adaptersAt = at
	p.runningAdapters, _ = label(labels, p.names.RunningAdapters)
	p.waitingAdapters, _ = label(labels, p.names.WaitingAdapters)
	p.maxLoRA, _ = label(labels, p.names.MaxAdapter)
}

// cacheConfig reads one series of the cache's metric. A label that says "None"
// is one that the engine has not settled yet.
func (p *parser) cacheConfig(rest []byte, whole bool) {
	labels, _, err := split(rest, whole)
	if err != nil {
		p.fault(p.names.Cache, err)
		return
	}
	if !p.ours(labels) {
		return
	}
	for i, name := range [...]string{p.names.BlockTokens, p.names.Blocks} {
		v, ok := label(labels, name)
		if !ok || len(v) == 0 || string(v) == "None" {
			continue
		}
		n, err := number(v, maxSize)
		if err == nil && n != math.Trunc(n) {
			err = fmt.Errorf("bad value %q", v)
		}
		if err != nil {
			p.fault(p.names.Cache, fmt.Errorf("%s: %w", name, err))
		}
		s := &p.cache[i]
		s.add(n, err == nil)
		if len(p.names.Copies) > 0 {
			s.value -= s.copied(labels, p.names.Copies, n)
		}
	}
}

// sleep reads one series of the sleep state.
func (p *parser) sleep(rest []byte, whole bool) {
	labels, value, err := split(rest, whole)
	if err != nil {
		p.fault(p.names.Sleep, err)
		return
	}
	if state, ok := label(labels, p.names.SleepState); !ok || string(state) != p.names.Awake || !p.ours(labels) {
		return
	}
	v, err := number(value, 1)
	if err != nil {
		p.fault(p.names.Sleep, err)
	}
	p.awake.add(v, err == nil)
}

func (p *parser) counterNames() [4]string {
	return [4]string{p.names.PromptTokens, p.names.CachedTokens, p.names.GeneratedTokens, p.names.FirstTokenSeconds}
}

// finish turns what was read into the page's Load.
func (p *parser) finish() {
	l := &p.out.Load
	l.Waiting = p.total(p.waiting[:], p.names.Waiting)
	l.Running = p.total(p.running[:], p.names.Running)
	l.KVUsage = epp.Gauge{}
	if s := p.first(p.usage[:], p.names.KVUsage); s != nil && !s.bad {
		l.KVUsage = epp.Known(min(s.most, 1))
	}
	for i, to := range [4]*epp.Gauge{&l.PromptTokens, &l.CachedTokens, &l.GeneratedTokens, &l.FirstTokenSeconds} {
		*to = epp.Gauge{}
		if s := p.counters[i]; s.count > 0 && !s.bad {
			*to = epp.Known(s.value)
		}
	}
	l.BlockTokens, l.Blocks = 0, 0
	if s := p.cache[0]; s.count > 0 && !s.bad {
		l.BlockTokens = int(s.most)
	}
	if s := p.cache[1]; s.count > 0 && !s.bad && s.value <= maxSize {
		l.Blocks = int(s.value)
	}
	l.Asleep = p.awake.count > 0 && !p.awake.bad && p.awake.most == 0
	l.MaxAdapters = 0
	if n, err := strconv.Atoi(string(p.maxLoRA)); err == nil && n >= 0 {
		l.MaxAdapters = n
	}
	l.Adapters = p.active(l.Adapters)
}

// first returns the series of the first name that the page has, or nil.
func (p *parser) first(sums []sum, names []string) *sum {
	for i := range sums {
		if sums[i].count > 0 {
			return &sums[i]
		}
	}
	if len(names) > 0 {
		p.out.Missing = append(p.out.Missing, names[0])
	}
	return nil
}

// total is the sum of the first name that the page has.
func (p *parser) total(sums []sum, names []string) epp.Gauge {
	s := p.first(sums, names)
	if s == nil || s.bad {
		return epp.Gauge{}
	}
	return epp.Known(s.value)
}

// active returns the adapters that run or wait, each once, in the order in which
// the page names them. It returns last where they are the same as last time, and
// never changes it.
func (p *parser) active(last []string) []string {
	same := 0
	var next []string
	for _, list := range [...][]byte{p.runningAdapters, p.waitingAdapters} {
		left := maxAdapters
		for raw := range bytes.SplitSeq(list, []byte{','}) {
			if left--; left < 0 {
				break
			}
			name := unescape(bytes.TrimSpace(raw))
			if len(name) == 0 {
				continue
			}
			if next == nil && same < len(last) && string(name) == last[same] {
				same++
				continue
			}
			if next == nil {
				if contains(last[:same], name) {
					continue
				}
				next = slices.Clone(last[:same])
			}
			if !contains(next, name) {
				next = append(next, string(name))
			}
		}
	}
	switch {
	case next != nil:
		return next
	case same == len(last):
		return last
	case same == 0:
		return nil
	}
	return slices.Clone(last[:same])
}

func contains(names []string, name []byte) bool {
	for _, n := range names {
		if n == string(name) {
			return true
		}
	}
	return false
}

// unescape takes the text format's escapes out of a label's value: \\, \" and \n.
func unescape(b []byte) []byte {
	if bytes.IndexByte(b, '\\') < 0 {
		return b
	}
	out := make([]byte, 0, len(b))
	for i := 0; i < len(b); i++ {
		if b[i] == '\\' && i+1 < len(b) {
			i++
			if b[i] == 'n' {
				out = append(out, '\n')
				continue
			}
		}
		out = append(out, b[i])
	}
	return out
}
