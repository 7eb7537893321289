package gpu

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"epp.internal/epp"
)

// nothing leads to neither library nor program.
var nothing = Options{Library: "libnothing.so.1", Program: "no-such-program"}

// A host without accelerators is no error.
func TestNone(t *testing.T) {
	if r, ok := Open(nothing); ok {
		t.Errorf("read by %s; want nothing", r.Source)
	}
}

// script writes a program that prints text and ends with a status.
func script(t *testing.T, text, status string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "nvidia-smi")
	if err := os.WriteFile(path, []byte("#!/bin/sh\ncat <<'E'\n"+text+"E\nexit "+status+"\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	return path
}

// What nvidia-smi does not know is unknown; the worst of several devices counts.
func TestProgram(t *testing.T) {
	for _, c := range []struct {
		what, text string
		only       []int
		want       epp.GPU
	}{
		{"one", "0, 37, 40000, 80000, 61, 0\n", nil,
			epp.GPU{Utilization: epp.Known(.37), Memory: epp.Known(.5), Temperature: epp.Known(61), DoubleBitErrors: epp.Known(0)}},
		{"two", "0, 100, 10, 80, 61, 1\n1, 50, 60, 80, 84, 2\n", nil,
			epp.GPU{Utilization: epp.Known(.75), Memory: epp.Known(.75), Temperature: epp.Known(84), DoubleBitErrors: epp.Known(3)}},
		{"the second of two", "0, 100, 10, 80, 61, 1\n1, 50, 60, 80, 84, 2\n", []int{1},
			epp.GPU{Utilization: epp.Known(.5), Memory: epp.Known(.75), Temperature: epp.Known(84), DoubleBitErrors: epp.Known(2)}},
		{"a consumer card", "0, 5, 1, 8, 40, [N/A]\n", nil,
			epp.GPU{Utilization: epp.Known(.05), Memory: epp.Known(.125), Temperature: epp.Known(40)}},
		{"little that makes sense", "0, [Not Supported], -1, 0, NaN, 1e999\nwarning: x\n", nil, epp.GPU{}},
	} {
		o := nothing
		o.Program, o.Devices = script(t, c.text, "0"), c.only
		r, ok := Open(o)
		if !ok || r.Source != "nvidia-smi" {
			t.Fatalf("%s: not read by the program", c.what)
		}
		got, err := r.Read(t.Context())
		if err != nil || got.Utilization != c.want.Utilization || got.Memory != c.want.Memory ||
			got.Temperature != c.want.Temperature || got.DoubleBitErrors != c.want.DoubleBitErrors {
			t.Errorf("%s: %+v, %v; want %+v", c.what, got, err, c.want)
		}
		r.Close()
	}
	for what, o := range map[string]Options{
		"a program that fails":    {Library: nothing.Library, Program: script(t, "", "9")},
		"a device that is not":    {Library: nothing.Library, Program: script(t, "0, 1, 1, 1, 1, 1\n", "0"), Devices: []int{4}},
		"no device at all":        {Library: nothing.Library, Program: script(t, "", "0")},
		"a text that is no table": {Library: nothing.Library, Program: script(t, "No devices were found\n", "0")},
	} {
		r, _ := Open(o)
		if g, err := r.Read(t.Context()); err == nil {
			t.Errorf("%s: %+v; want an error", what, g)
		}
	}
}

// The library is loaded where the build can, and asked before the program. It is
// a stand-in, compiled here, with NVML's functions and two devices.
func TestLibrary(t *testing.T) {
	stub := filepath.Join(t.TempDir(), "libnvidia-ml.so.1")
	if out, err := exec.Command("gcc", "-shared", "-fPIC", "-o", stub, "testdata/nvml.c").CombinedOutput(); err != nil {
		t.Fatalf("gcc, which this test needs: %v\n%s", err, out)
	}
	o := Options{Library: stub, Program: script(t, "0, 1, 1, 1, 1, 1\n", "0")}
	r, ok := Open(o)
	if !ok {
		t.Fatal("not read at all")
	}
	if !loads() {
		if r.Source != "nvidia-smi" {
			t.Errorf("a static build reads by %s; want nvidia-smi", r.Source)
		}
		return
	}
	defer r.Close()
	got, err := r.Read(t.Context())
	want := epp.GPU{Utilization: epp.Known(.6), Memory: epp.Known(.75), Temperature: epp.Known(84), DoubleBitErrors: epp.Known(3)}
	if err != nil || r.Source != "nvml" || got.Utilization != want.Utilization || got.Memory != want.Memory ||
		got.Temperature != want.Temperature || got.DoubleBitErrors != want.DoubleBitErrors {
		t.Errorf("by %s: %+v, %v; want %+v", r.Source, got, err, want)
	}
}

// loads says whether this build loads libraries: openLibrary gives another reason
// than that there is nothing.
func loads() bool {
	_, err := openLibrary(nothing)
	return runtime.GOOS == "linux" && !errors.Is(err, errNone)
}

// Whatever nvidia-smi says, nothing panics, and values are such that a gauge can
// have them.
func FuzzParse(f *testing.F) {
	f.Add([]byte("0, 37, 40000, 80000, 61, 0\n"))
	f.Add([]byte("0, [N/A], -1, 0, NaN, 1e999\n,,,,,\n"))
	f.Add([]byte(strings.Repeat("0,0,0,0,0,0\n", 100)))
	f.Fuzz(func(t *testing.T, out []byte) {
		devices := parse(out)
		if len(devices) > maxDevices {
			t.Errorf("%d devices", len(devices))
		}
		for _, d := range devices {
			for _, g := range []epp.Gauge{d.utilization, d.memory, d.temperature, d.errors} {
				if g != epp.Known(g.Value) && g.Known {
					t.Errorf("%+v", d)
				}
			}
		}
		g, err := together(devices, nil)
		if (err != nil) != (len(devices) == 0) || !slices.IsSorted([]float64{0, g.Memory.Value, 1}) {
			t.Errorf("%+v, %v of %d devices", g, err, len(devices))
		}
	})
}
