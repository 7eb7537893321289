//go:build race

package kvindex

// scale divides the sizes of the long tests: the race detector makes an atomic
// load some fifty times as slow.
const scale = 16
