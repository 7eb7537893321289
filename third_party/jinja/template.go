// Package jinja renders Jinja2 templates as Python's jinja2 does in the
// environment that Hugging Face transformers makes for chat templates: the
// sandbox, trim_blocks, lstrip_blocks, loop controls, the generation tag,
// raise_exception, strftime_now, and tojson without HTML escaping.
//
// It is a fork of github.com/ardanlabs/jinja; README.md names the version and
// every difference. What it can't render it refuses: a tag, filter, test or
// function that it does not know when the template is compiled, with its name;
// what Python raises, at the rendering.
//
//	t, err := jinja.Compile("Hello {{ name | upper }}!")
//	text, err := t.Render(map[string]jinja.Value{"name": jinja.NewString("World")}) // Hello WORLD!
//
// A Template may be rendered by several goroutines at once.
package jinja

import (
	"errors"
	"fmt"
	"sync/atomic"
)

const (
	// MaxOutputBytes bounds what a template may write, over all its parts.
	MaxOutputBytes = 64 << 20
	// maxRoom bounds what is set aside for an output before it is there.
	maxRoom = 256 << 10
	// maxSteps bounds the rounds of all loops of one rendering.
	maxSteps = 1_000_000
	// maxCalls bounds how deep macros call each other; Python gives up before.
	maxCalls = 300
	// maxTemplateBytes bounds a template's source; the largest known has 40 KB.
	maxTemplateBytes = 1 << 20
)

// Template is a compiled Jinja template ready for rendering.
type Template struct {
	nodes []node
	size  atomic.Int64 // of the last output: room for the next
}

// Compile parses a template. names are the variables that it will be rendered
// with, as far as they are functions: a call of any other unknown name is
// refused.
func Compile(source string, names ...string) (*Template, error) {
	if len(source) > maxTemplateBytes {
		return nil, fmt.Errorf("template: %d bytes are more than %d", len(source), maxTemplateBytes)
	}
	segs, err := scan(source)
	if err != nil {
		return nil, fmt.Errorf("template: %w", err)
	}
	nodes, err := parseTemplate(segs)
	if err != nil {
		return nil, fmt.Errorf("template: %w", err)
	}
	if err := check(nodes, names); err != nil {
		return nil, fmt.Errorf("template: %w", err)
	}
	return &Template{nodes: nodes}, nil
}

// Render executes the template with the given variables.
func (t *Template) Render(data map[string]Value) (string, error) {
	text, err := t.Append(make([]byte, 0, min(t.size.Load()*9/8, maxRoom)), data)
	return string(text), err
}

// Append executes the template and appends what it writes to dst, which it returns
// as it was beside an error. It keeps no text of data, and its errors have copies.
func (t *Template) Append(dst []byte, data map[string]Value) ([]byte, error) {
	s := &scope{vars: make([]variable, 0, len(data))}
	for name, value := range data {
		s.vars = append(s.vars, variable{name, value})
	}
	out := output{text: dst}
	e := evaluator{scope: &scope{parent: s}, out: &out, run: &run{}}
	if err := e.execNodes(t.nodes); err != nil {
		return dst, err
	}
	t.size.Store(int64(len(out.text) - len(dst)))
	return out.text, nil
}

// Raised is the error of a template that called raise_exception.
type Raised struct{ Message string }

// Error returns the message that the template gave.
func (r *Raised) Error() string { return r.Message }

// Unsupported is the error of a template that needs what Python has and this
// engine lacks.
type Unsupported struct{ Feature string }

// Error names what is missing.
func (u *Unsupported) Error() string { return u.Feature + " is not supported" }

func unsupported(format string, args ...any) error {
	return &Unsupported{Feature: fmt.Sprintf(format, args...)}
}

var (
	errBreak    = errors.New("break")
	errContinue = errors.New("continue")
)
