//go:build !race

package bpe_test

import "testing"

// A text whose words were seen before allocates nothing.
func TestAppendAllocates(t *testing.T) {
	tok := demo(t)
	text := "<|im_start|>user\nHow do schedulers weigh naïve prefixes, in 2026?<|im_end|>\n"
	dst := tok.Append(nil, text)
	if n := testing.AllocsPerRun(100, func() { dst = tok.Append(dst[:0], text) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
