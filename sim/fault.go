package sim

import (
	"fmt"
	"strconv"
	"strings"
	"time"
)

// FaultKind is what goes wrong.
type FaultKind string

// The faults. Those of one endpoint may overlap: each lasts its own time.
const (
	// Crash ends an engine's process: its requests break off, its cache is gone,
	// connections are refused. It starts again after For. A hang ends with the process.
	Crash FaultKind = "crash"
	// Restart is a rolling restart's step: the endpoint leaves the pool, ends what
	// it has for up to For, and comes back as a new endpoint with an empty cache.
	Restart FaultKind = "restart"
	// Slow makes every step take Factor times as long, for For.
	Slow FaultKind = "slow"
	// Hang stops the engine for For: requests are taken and nothing is answered,
	// readings fail.
	Hang FaultKind = "hang"
	// ECC is an uncorrectable memory error: for For the engine answers every
	// request with 500 at once, and its page as if all were well.
	ECC FaultKind = "ecc"
	// Up adds an endpoint, Down takes one away, which ends what it has.
	Up   FaultKind = "up"
	Down FaultKind = "down"
)

var faultKinds = []FaultKind{Crash, Restart, Slow, Hang, ECC, Up, Down}

// Fault is one thing that goes wrong.
type Fault struct {
	Kind FaultKind
	At   time.Duration // from the trace's start
	// Endpoint is the number of the endpoint, from 0; Up has none.
	Endpoint int
	// For is how long it lasts; 0: to the end.
	For time.Duration
	// Factor is Slow's; 0 means defaultFactor. Those that overlap multiply.
	Factor float64
}

const defaultFactor = 2

// ParseFault reads kind@time:endpoint[:duration[:factor]], such as crash@10m:3:1m,
// and up@time, which has no endpoint.
func ParseFault(text string) (Fault, error) {
	bad := func(what string) (Fault, error) {
		return Fault{}, fmt.Errorf("fault %q: %s: want kind@time:endpoint:duration[:factor], such as crash@10m:3:1m or slow@0s:0:1h:2", text, what)
	}
	kind, rest, found := strings.Cut(text, "@")
	if !found {
		return bad("no @")
	}
	f := Fault{Kind: FaultKind(kind)}
	parts := strings.Split(rest, ":")
	switch {
	case len(parts) > 4:
		return bad("more than four parts")
	case f.Kind == Up && len(parts) > 1:
		return bad("up adds an endpoint, and has a time alone")
	case f.Kind != Up && len(parts) < 2:
		return bad("no endpoint")
	}
	var err error
	for i, p := range parts {
		switch i {
		case 0:
			f.At, err = time.ParseDuration(p)
		case 1:
			f.Endpoint, err = strconv.Atoi(p)
		case 2:
			f.For, err = time.ParseDuration(p)
		case 3:
			f.Factor, err = strconv.ParseFloat(p, 64)
		}
		if err != nil {
			return bad(fmt.Sprintf("%q cannot be read", p))
		}
	}
	if len(parts) == 4 && (f.Factor == 0 || f.Kind != Slow) {
		return bad("a factor is slow's, and above 0")
	}
	return f, nil
}

// check returns what is wrong with f in a run that has so many endpoints at most.
func (f *Fault) check(endpoints int) error {
	known := false
	for _, k := range faultKinds {
		known = known || k == f.Kind
	}
	switch {
	case !known:
		return fmt.Errorf("fault %q: no such kind: have %v", f.Kind, faultKinds)
	case f.At < 0 || f.For < 0:
		return fmt.Errorf("fault %s: time %v, duration %v: want 0 or more", f.Kind, f.At, f.For)
	case f.At > MaxSpan || f.For > MaxSpan:
		return fmt.Errorf("fault %s: time %v, duration %v: want at most %v; no duration lasts to the end", f.Kind, f.At, f.For, MaxSpan)
	case f.Endpoint < 0 || f.Kind != Up && f.Endpoint >= endpoints:
		return fmt.Errorf("fault %s: endpoint %d: want 0–%d", f.Kind, f.Endpoint, endpoints-1)
	case !(f.Factor == 0 || f.Factor >= 1e-3 && f.Factor <= 1e6): // NaN too
		return fmt.Errorf("fault %s: factor %v: want 0.001–1000000", f.Kind, f.Factor)
	}
	return nil
}
