//go:build linux && (cgo || nvml)

package gpu

import (
	"cmp"
	"context"
	"fmt"

	"github.com/ebitengine/purego"

	"epp.internal/epp"
)

// Constants of nvml.h.
const (
	nvmlSuccess     = 0
	temperatureGPU  = 0 // NVML_TEMPERATURE_GPU
	errorsUncorrect = 1 // NVML_MEMORY_ERROR_TYPE_UNCORRECTED
	countsVolatile  = 0 // NVML_VOLATILE_ECC: since the driver was loaded
)

// utilization is nvmlUtilization_t: percents of the last sample's time.
type utilization struct{ GPU, Memory uint32 }

// memory is nvmlMemory_t, in bytes.
type memory struct{ Total, Free, Used uint64 }

// library holds the functions that are used of NVML, which answer with a
// nvmlReturn_t. Source: NVIDIA, "NVML API Reference Guide".
type library struct {
	initialize  func() int32
	shutdown    func() int32
	count       func(n *uint32) int32
	handle      func(index uint32, device *uintptr) int32
	utilization func(device uintptr, u *utilization) int32
	memory      func(device uintptr, m *memory) int32
	temperature func(device uintptr, sensor int32, celsius *uint32) int32
	errors      func(device uintptr, kind, counter int32, n *uint64) int32
}

// openLibrary loads NVML. Where a function is missing the library is of no use:
// these are in all versions since 2013.
func openLibrary(o Options) (*Reader, error) {
	file := cmp.Or(o.Library, "libnvidia-ml.so.1")
	handle, err := purego.Dlopen(file, purego.RTLD_NOW|purego.RTLD_LOCAL)
	if err != nil {
		return nil, err
	}
	var l library
	for name, f := range map[string]any{
		"nvmlInit_v2": &l.initialize, "nvmlShutdown": &l.shutdown,
		"nvmlDeviceGetCount_v2": &l.count, "nvmlDeviceGetHandleByIndex_v2": &l.handle,
		"nvmlDeviceGetUtilizationRates": &l.utilization, "nvmlDeviceGetMemoryInfo": &l.memory,
		"nvmlDeviceGetTemperature": &l.temperature, "nvmlDeviceGetTotalEccErrors": &l.errors,
	} {
		symbol, err := purego.Dlsym(handle, name)
		if err != nil {
			return nil, fmt.Errorf("%s: %s: %w", file, name, err)
		}
		purego.RegisterFunc(f, symbol)
	}
	if code := l.initialize(); code != nvmlSuccess {
		return nil, fmt.Errorf("%s: nvmlInit: error %d", file, code)
	}
	return &Reader{
		Source: "nvml",
		read:   func(context.Context) ([]device, error) { return l.devices() },
		close:  func() { l.shutdown() },
	}, nil
}

// devices reads all that are seen.
func (l *library) devices() (devices []device, err error) {
	var n uint32
	if code := l.count(&n); code != nvmlSuccess {
		return nil, fmt.Errorf("nvml: count of devices: error %d", code)
	}
	for i := range min(n, maxDevices) {
		var h uintptr
		if code := l.handle(i, &h); code != nvmlSuccess {
			return nil, fmt.Errorf("nvml: device %d: error %d", i, code)
		}
		devices = append(devices, l.device(i, h))
	}
	return devices, nil
}

// device reads one. What it does not support is unknown.
func (l *library) device(index uint32, h uintptr) device {
	d := device{index: int(index)}
	var u utilization
	if l.utilization(h, &u) == nvmlSuccess {
		d.utilization = epp.Known(float64(u.GPU) / 100)
	}
	var m memory
	if l.memory(h, &m) == nvmlSuccess {
		d.memory = part(epp.Known(float64(m.Used)), epp.Known(float64(m.Total)))
	}
	var celsius uint32
	if l.temperature(h, temperatureGPU, &celsius) == nvmlSuccess {
		d.temperature = epp.Known(float64(celsius))
	}
	var errors uint64
	if l.errors(h, errorsUncorrect, countsVolatile, &errors) == nvmlSuccess {
		d.errors = epp.Known(float64(errors))
	}
	return d
}
