package main

import (
	"context"
	"sync"
)

// waiter lets a goroutine wait until something it cannot name has come true:
// await looks again after each changed.
type waiter struct{ s *waiterState }

type waiterState struct {
	mu   sync.Mutex // guards next
	next chan struct{}
}

func newWaiter() waiter { return waiter{&waiterState{next: make(chan struct{})}} }

// changed wakes all that wait.
func (g waiter) changed() {
	g.s.mu.Lock()
	defer g.s.mu.Unlock()
	close(g.s.next)
	g.s.next = make(chan struct{})
}

// await returns when ok is true, or ctx's error when that has ended first.
func (g waiter) await(ctx context.Context, ok func() bool) error {
	for {
		g.s.mu.Lock()
		next := g.s.next
		g.s.mu.Unlock()
		if ok() {
			return nil
		}
		select {
		case <-next:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}
