package scrape

import "epp.internal/epp"

// ParseGPU is what one page says of the target's GPUs together, without what is
// remembered of pages before. found is how many GPUs there were.
func ParseGPU(page []byte, t GPUTarget) (g epp.GPU, found int, err error) {
	gpus, err := parseGPUs(page, t)
	gpus = chosen(gpus, t)
	return together(gpus), len(gpus), err
}
