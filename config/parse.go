package config

import (
	"bytes"
	"cmp"
	"encoding"
	"errors"
	"fmt"
	"io"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

const (
	// MaxFileBytes bounds the file. 4,096 endpoints with labels take less.
	MaxFileBytes = 4 << 20
	// MaxFaults bounds how many faults an error's text tells.
	MaxFaults = 50
	// maxQuoted bounds the value that a fault quotes, in bytes.
	maxQuoted = 80
)

// Fault is one thing that is wrong with a configuration.
type Fault struct {
	File string // as given to Parse; empty for a configuration that came from no file
	Line int    // from 1; 0 where no line is known
	Path string // "pool.endpoints[1].address"; empty for the whole file
	Text string // what is wrong, and what would be right
}

// String returns the fault as file:line: path: text, without what is empty.
func (f Fault) String() string {
	var b strings.Builder
	if f.File != "" {
		b.WriteString(f.File + ":")
		if f.Line > 0 {
			b.WriteString(strconv.Itoa(f.Line) + ":")
		}
		b.WriteByte(' ')
	}
	if f.Path != "" {
		b.WriteString(f.Path + ": ")
	}
	return b.String() + f.Text
}

// Error is all the faults of a configuration, in the order of its lines.
type Error struct{ Faults []Fault }

// Error returns one line per fault, at most [MaxFaults] of them.
func (e *Error) Error() string {
	var b strings.Builder
	for i, f := range e.Faults {
		if i == MaxFaults {
			fmt.Fprintf(&b, "\n… and %d more", len(e.Faults)-i)
			break
		}
		if i > 0 {
			b.WriteByte('\n')
		}
		b.WriteString(f.String())
	}
	return b.String()
}

// Parse reads a YAML document over the defaults and checks the result. file is
// only what faults call it; custom names the scorers there are besides the
// built-in ones. The error, if any, is an *Error.
//
// It reads YAML as people write it by hand: one document, no anchors, aliases
// or merge keys, each key once.
func Parse(file string, data []byte, custom ...string) (*Config, error) {
	return ParseWith(file, data, func(*Config) {}, custom...)
}

// ParseWith is Parse with settings that win over the file's, as flags do: set sets
// them before the whole is checked.
func ParseWith(file string, data []byte, set func(*Config), custom ...string) (*Config, error) {
	c := Default()
	d := decoder{lines: map[string]int{}}
	if len(data) > MaxFileBytes {
		d.fault(0, "", "has %d bytes; at most %d are read", len(data), MaxFileBytes)
	} else if root := d.document(data); root != nil {
		d.value(root, "", reflect.ValueOf(c).Elem())
	}
	set(c)
	unread := d.faults
	for _, f := range c.Validate(custom...) {
		if !slices.ContainsFunc(unread, func(u Fault) bool { return within(u.Path, f.Path) || within(f.Path, u.Path) }) {
			f.Line = d.line(f.Path)
			d.faults = append(d.faults, f)
		}
	}
	if len(d.faults) == 0 {
		c.complete()
		return c, nil
	}
	for i := range d.faults {
		d.faults[i].File = file
	}
	slices.SortStableFunc(d.faults, func(a, b Fault) int { return a.Line - b.Line })
	return nil, &Error{d.faults}
}

// within is true where path is outer or a setting inside it. What could not be
// read keeps its default, and neither that default nor what it is a part of is
// worth a second fault.
func within(path, outer string) bool {
	return strings.HasPrefix(path, outer) && (outer == "" || len(path) == len(outer) || path[len(outer)] == '.' || path[len(outer)] == '[')
}

// complete fills what defaults to another setting.
func (c *Config) complete() {
	for i, e := range c.Pool.Endpoints {
		c.Pool.Endpoints[i] = c.Pool.Complete(e)
	}
	for i := range c.Models {
		if m := &c.Models[i]; m.Target == "" && len(m.Targets) == 0 {
			m.Target = m.Name
		}
	}
}

// Complete fills what an endpoint leaves open with what is the pool's.
func (p *Pool) Complete(e Endpoint) Endpoint {
	e.Name, e.Engine = cmp.Or(e.Name, e.Address), cmp.Or(e.Engine, p.Engine)
	e.GPU.DCGM = cmp.Or(e.GPU.DCGM, p.GPU.DCGM)
	if len(e.GPU.GPUs) == 0 {
		e.GPU.GPUs = p.GPU.GPUs
	}
	return e
}

// decoder walks a YAML tree along the type of what it fills. It keeps the line
// of every path it saw and goes on after a fault.
type decoder struct {
	faults []Fault
	lines  map[string]int
}

func (d *decoder) fault(line int, path, format string, args ...any) {
	d.faults = append(d.faults, Fault{Line: line, Path: path, Text: fmt.Sprintf(format, args...)})
}

// line returns the line of path, or of the nearest setting around it.
func (d *decoder) line(path string) int {
	for path != "" {
		if l := d.lines[path]; l > 0 {
			return l
		}
		path = path[:max(strings.LastIndexAny(path, ".["), 0)]
	}
	return 0
}

// document returns the root of the one document in data, or nil for none.
func (d *decoder) document(data []byte) *yaml.Node {
	var doc, next yaml.Node
	dec := yaml.NewDecoder(bytes.NewReader(data))
	if err := dec.Decode(&doc); err != nil {
		if !errors.Is(err, io.EOF) {
			d.syntax(err)
		}
		return nil
	}
	switch err := dec.Decode(&next); {
	case err == nil:
		d.fault(next.Line, "", "a second document begins here; one is read")
	case !errors.Is(err, io.EOF):
		d.syntax(err)
	}
	if len(doc.Content) == 0 || doc.Content[0].Tag == "!!null" {
		return nil
	}
	return doc.Content[0]
}

// syntax tells an error of the YAML library, whose text begins with its name
// and often with a line: "yaml: line 3: did not find expected key".
func (d *decoder) syntax(err error) {
	text, line := strings.TrimPrefix(err.Error(), "yaml: "), 0
	if rest, ok := strings.CutPrefix(text, "line "); ok {
		if number, after, ok := strings.Cut(rest, ": "); ok {
			if n, err := strconv.Atoi(number); err == nil {
				line, text = n, after
			}
		}
	}
	d.fault(line, "", "is not YAML: %s", text)
}

// value fills out from node. It records a fault and leaves out alone where
// node is not what out's type asks for; an empty value leaves the default.
func (d *decoder) value(node *yaml.Node, path string, out reflect.Value) {
	d.lines[path] = node.Line
	if node.Kind == yaml.AliasNode || node.Anchor != "" {
		d.fault(node.Line, path, "has an anchor or alias; write the value out")
		return
	}
	if node.Tag == "!!null" {
		return
	}
	if out.Kind() == reflect.Pointer { // what may be missing, and is not 0 then
		v := reflect.New(out.Type().Elem())
		d.value(node, path, v.Elem())
		out.Set(v)
		return
	}
	if node.Kind == yaml.ScalarNode {
		d.scalar(node, path, out)
		return
	}
	switch kind := out.Kind(); {
	case kind == reflect.Struct && node.Kind == yaml.MappingNode:
		d.fields(node, path, out)
	case kind == reflect.Map && node.Kind == yaml.MappingNode:
		out.Set(reflect.MakeMap(out.Type()))
		d.keys(node, path, func(key, value *yaml.Node, path string) {
			v := reflect.New(out.Type().Elem()).Elem()
			d.value(value, path, v)
			out.SetMapIndex(reflect.ValueOf(key.Value), v)
		})
	case kind == reflect.Slice && node.Kind == yaml.SequenceNode:
		list := reflect.MakeSlice(out.Type(), len(node.Content), len(node.Content))
		for i, n := range node.Content {
			at := fmt.Sprintf("%s[%d]", path, i)
			if n.Tag == "!!null" {
				d.fault(n.Line, at, "is empty; write a value or remove the entry")
				continue
			}
			d.value(n, at, list.Index(i))
		}
		out.Set(list)
	default:
		d.fault(node.Line, path, "is %s; want %s", shape(node), want(out.Type()))
	}
}

// fields fills the struct out from a mapping.
func (d *decoder) fields(node *yaml.Node, path string, out reflect.Value) {
	byKey := map[string]int{}
	for i := range out.NumField() {
		byKey[out.Type().Field(i).Tag.Get("json")] = i
	}
	d.keys(node, path, func(key, value *yaml.Node, at string) {
		i, known := byKey[key.Value]
		if !known {
			d.fault(key.Line, at, "unknown key; %s", suggest(key.Value, out.Type()))
			return
		}
		d.value(value, at, out.Field(i))
	})
}

// keys calls each for the pairs of a mapping, with the value's path, and
// records a fault for a key that comes twice or is no plain text.
func (d *decoder) keys(node *yaml.Node, path string, each func(key, value *yaml.Node, path string)) {
	seen := map[string]int{}
	for i := 0; i+1 < len(node.Content); i += 2 {
		key := node.Content[i]
		if key.Kind != yaml.ScalarNode || key.Anchor != "" || key.Tag == "!!merge" {
			d.fault(key.Line, path, "has a key that is no plain text; write the keys out")
			continue
		}
		at := join(path, key.Value)
		if line, twice := seen[key.Value]; twice {
			d.fault(key.Line, at, "is set a second time; it was set on line %d", line)
			continue
		}
		seen[key.Value] = key.Line
		each(key, node.Content[i+1], at)
	}
}

// scalar fills out from a single value.
func (d *decoder) scalar(node *yaml.Node, path string, out reflect.Value) {
	if text, ok := out.Addr().Interface().(encoding.TextUnmarshaler); ok {
		if err := text.UnmarshalText([]byte(node.Value)); err != nil {
			d.fault(node.Line, path, "%s", err)
		}
		return
	}
	ok := false
	switch out.Kind() {
	case reflect.String:
		if ok = node.Tag == "!!str"; ok {
			out.SetString(node.Value)
		}
	case reflect.Bool:
		var v bool
		if ok = node.Tag == "!!bool" && node.Decode(&v) == nil; ok {
			out.SetBool(v)
		}
	case reflect.Int:
		var v int
		if ok = node.Tag == "!!int" && node.Decode(&v) == nil; ok {
			out.SetInt(int64(v))
		}
	case reflect.Float64:
		var v float64
		if ok = (node.Tag == "!!int" || node.Tag == "!!float") && node.Decode(&v) == nil; ok {
			out.SetFloat(v)
		}
	}
	if !ok {
		d.fault(node.Line, path, "%s is not %s", quote(node.Value), want(out.Type()))
	}
}

// want names what a type is filled from.
func want(t reflect.Type) string {
	if t == reflect.TypeFor[DCGM]() {
		return "a port or a URL"
	}
	if _, ok := reflect.New(t).Interface().(encoding.TextUnmarshaler); ok && t.Kind() != reflect.Struct {
		return "a size such as 16MiB"
	}
	switch t.Kind() {
	case reflect.String:
		return "text (a number or true/false in quotes is text)"
	case reflect.Bool:
		return "true or false"
	case reflect.Int:
		return "a whole number"
	case reflect.Float64:
		return "a number"
	case reflect.Slice:
		return "a list"
	case reflect.Map:
		return "a mapping of names to values"
	}
	switch t {
	case reflect.TypeFor[Duration]():
		return "a duration such as 200ms"
	case reflect.TypeFor[Endpoint]():
		return "an address ip:port or a mapping with one of address"
	}
	return "a mapping with " + strings.Join(keysOf(t), ", ")
}

// shape names what a node is.
func shape(node *yaml.Node) string {
	if node.Kind == yaml.SequenceNode {
		return "a list"
	}
	return "a mapping"
}

// keysOf returns the keys of a struct type in its order.
func keysOf(t reflect.Type) []string {
	var keys []string
	for i := range t.NumField() {
		keys = append(keys, t.Field(i).Tag.Get("json"))
	}
	return keys
}

// suggest says what key was probably meant in a mapping of type t: the nearest
// of its keys, else the place where the whole tree has a key of that name.
func suggest(key string, t reflect.Type) string {
	valid := keysOf(t)
	if near := nearest(key, valid); near != "" {
		return fmt.Sprintf("the nearest is %q", near)
	}
	if at := find(key, "", reflect.TypeFor[Config]()); at != "" {
		return fmt.Sprintf("it belongs to %q", at)
	}
	if len(valid) == 0 {
		return "there is none here"
	}
	return "there are " + strings.Join(valid, ", ")
}

// find returns the path of the first setting called key in the tree of t.
func find(key, path string, t reflect.Type) string {
	for i := range t.NumField() {
		f := t.Field(i)
		at := join(path, f.Tag.Get("json"))
		if strings.EqualFold(f.Tag.Get("json"), key) {
			return at
		}
		inner := f.Type
		if inner.Kind() == reflect.Slice {
			inner, at = inner.Elem(), at+"[]"
		}
		if inner.Kind() == reflect.Struct && inner != reflect.TypeFor[Duration]() {
			if found := find(key, at, inner); found != "" {
				return found
			}
		}
	}
	return ""
}

// nearest returns the word that differs least from s, without regard to case,
// or "" where more than a third of the letters would have to change.
func nearest(s string, words []string) string {
	best, bound := "", max(1, len(s)/3)
	for _, w := range words {
		if n := distance(strings.ToLower(s), strings.ToLower(w)); n <= bound {
			best, bound = w, n-1
		}
	}
	return best
}

// distance counts the insertions, deletions, changes and swaps of neighbours
// that turn a into b: the optimal string alignment distance, over bytes.
func distance(a, b string) int {
	if len(a) > maxQuoted || len(b) > maxQuoted {
		return maxQuoted
	}
	var before, row, next [maxQuoted + 1]int
	for j := range len(b) + 1 {
		row[j] = j
	}
	for i := 1; i <= len(a); i++ {
		next[0] = i
		for j := 1; j <= len(b); j++ {
			change := row[j-1]
			if a[i-1] != b[j-1] {
				change++
			}
			next[j] = min(change, row[j]+1, next[j-1]+1)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				next[j] = min(next[j], before[j-2]+1)
			}
		}
		before, row = row, next
	}
	return row[len(b)]
}

// join appends a key to a path; one that is no plain word goes in quotes, so
// that a path is one short line whatever a file holds.
func join(path, key string) string {
	plain := key != "" && len(key) <= maxQuoted && !strings.ContainsFunc(key, func(r rune) bool {
		return r <= ' ' || r == '.' || r == '[' || r == '"' || r >= 0x7f
	})
	if !plain {
		key = quote(key)
	}
	if path == "" {
		return key
	}
	return path + "." + key
}

// quote returns s in quotes, cut where it is long.
func quote(s string) string {
	if len(s) > maxQuoted {
		return strconv.Quote(strings.ToValidUTF8(s[:maxQuoted], "")) + "…"
	}
	return strconv.Quote(s)
}
