// Package lint holds the house rules as tests: which folder may import which,
// what the core must not touch, how packages, imports and metrics are named.
// It has no code for others; `go test ./internal/lint` is all it does.
//
// layers_test.go is the data: each folder's layer, and each exception with its
// reason. rules_test.go is the rules. Each file in testdata shows a rule what
// it must catch and what it must let pass, so no rule can go blind unseen:
//
//	check clock path=route/tie.go
//	package route
//
//	import "time"
//
//	var now = time.Now()
//	----
//	route/tie.go:5: time.Now reads a clock; take now time.Time as an argument
package lint
