//go:build !race

package kvindex

// scale divides the sizes of the long tests: not at all without the race
// detector.
const scale = 1
