//go:build !linux || (!cgo && !nvml)

package gpu

// openLibrary finds nothing: a static program loads no library.
func openLibrary(Options) (*Reader, error) { return nil, errNone }
