// Package gpu reads the accelerators of the host that an agent runs on: how busy,
// full and hot they are, and which errors they had. It asks NVIDIA's management
// library, loaded at run time, and where there is none the program nvidia-smi.
// Neither is not an error: then nothing is known.
//
// The library can only be loaded by a program that is linked dynamically, which
// the static builds are not: these ask nvidia-smi, unless they are built with the
// tag nvml.
//
//	r, ok := gpu.Open(gpu.Options{})
//	if ok {
//		defer r.Close()
//		g, err := r.Read(ctx)
//	}
package gpu

import (
	"context"
	"errors"

	"epp.internal/epp"
)

// maxDevices bounds the accelerators of one host.
const maxDevices = 64

// Options of Open. The zero value is usable.
type Options struct {
	// Library is the management library's file. Default libnvidia-ml.so.1.
	Library string
	// Program is the file of nvidia-smi. Default: as PATH has it.
	Program string
	// Devices are the indices of those that count, as the host numbers them; nil:
	// all that are seen.
	Devices []int
}

// Reader reads the accelerators.
type Reader struct {
	read  func(ctx context.Context) ([]device, error)
	close func()
	// Source is "nvml" or "nvidia-smi".
	Source string
	only   []int
}

// device is one accelerator.
type device struct {
	index                                    int
	utilization, memory, temperature, errors epp.Gauge // as epp.GPU has them
}

// errNone is why there is nothing to read.
var errNone = errors.New("no accelerator")

// Open finds a way to read the accelerators; ok is false where there is none.
func Open(o Options) (r *Reader, ok bool) {
	r, err := openLibrary(o)
	if err != nil {
		r, err = openProgram(o)
	}
	if err != nil {
		return nil, false
	}
	r.only = o.Devices
	return r, true
}

// Close ends the use of the library. The reader is not used after that.
func (r *Reader) Close() {
	if r.close != nil {
		r.close()
	}
}

// Read returns the accelerators together, as epp.GPU says: the mean of how busy
// they are, and the worst of all else.
func (r *Reader) Read(ctx context.Context) (epp.GPU, error) {
	devices, err := r.read(ctx)
	if err != nil {
		return epp.GPU{}, err
	}
	return together(devices, r.only)
}

// together sums devices up. What one of them does not tell, the others do.
func together(devices []device, only []int) (g epp.GPU, err error) {
	busy, told, counted := 0.0, 0, 0
	for _, d := range devices {
		if !wanted(d.index, only) {
			continue
		}
		counted++
		if d.utilization.Known {
			busy += d.utilization.Value
			told++
		}
		g.Memory = worse(g.Memory, d.memory)
		g.Temperature = worse(g.Temperature, d.temperature)
		if d.errors.Known {
			g.DoubleBitErrors = epp.Known(g.DoubleBitErrors.Value + d.errors.Value)
		}
	}
	if counted == 0 {
		return g, errNone
	}
	if told > 0 {
		g.Utilization = epp.Known(busy / float64(told))
	}
	return g, nil
}

func wanted(index int, only []int) bool {
	if len(only) == 0 {
		return true
	}
	for _, i := range only {
		if i == index {
			return true
		}
	}
	return false
}

// worse returns the higher of two values, of those that are known.
func worse(a, b epp.Gauge) epp.Gauge {
	if !a.Known || b.Known && b.Value > a.Value {
		return b
	}
	return a
}
