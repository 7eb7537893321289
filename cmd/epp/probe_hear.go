package main

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"epp.internal/epp"
	"epp.internal/epp/kvevents"
)

// maxHeard bounds the blocks that a probe keeps while it waits for its own: on an
// engine that is in use others come by.
const maxHeard = 4096

// hearing keeps the first blocks of the prompts that an engine's events tell of.
// Its methods are safe for concurrent use.
type hearing struct {
	waiter

	mu    sync.Mutex // guards the following fields
	first []epp.BlockEvent
	bad   map[kvevents.Reason]int
}

func newHearing() *hearing {
	return &hearing{waiter: newWaiter(), bad: map[kvevents.Reason]int{}}
}

// hooks count what is passed over.
func (h *hearing) hooks() kvevents.Hooks {
	return kvevents.Hooks{Bad: func(r kvevents.Reason) {
		h.mu.Lock()
		defer h.mu.Unlock()
		h.bad[r]++
	}}
}

// faults tells what was passed over, behind another text; empty where nothing was.
func (h *hearing) faults() (text string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, r := range slices.Sorted(maps.Keys(h.bad)) {
		text += fmt.Sprintf(", %d passed over for %s", h.bad[r], r)
	}
	return text
}

// Apply keeps the stored blocks that begin a prompt.
func (h *hearing) Apply(_ time.Time, events []epp.BlockEvent) {
	h.mu.Lock()
	for i := range events {
		e := &events[i]
		if e.Kind != epp.BlockStored || e.HasParent || e.BlockTokens == 0 || len(e.Tokens) < e.BlockTokens {
			continue
		}
		if len(h.first) == maxHeard {
			h.first = h.first[1:]
		}
		h.first = append(h.first, epp.BlockEvent{Kind: e.Kind, BlockTokens: e.BlockTokens, Tokens: slices.Clone(e.Tokens[:e.BlockTokens])})
	}
	h.mu.Unlock()
	h.changed()
}

// Reset and Incomplete are of no use to a probe.
func (h *hearing) Reset(time.Time)            {}
func (h *hearing) Incomplete(time.Time, bool) {}

// await waits, for probeWait at most, for a block that begins prompt.
func (h *hearing) await(ctx context.Context, prompt []uint32) (found epp.BlockEvent, ok bool) {
	ctx, cancel := context.WithTimeout(ctx, probeWait)
	defer cancel()
	_ = h.waiter.await(ctx, func() bool { // found or not
		h.mu.Lock()
		defer h.mu.Unlock()
		for i := range h.first {
			if e := &h.first[i]; e.BlockTokens <= len(prompt) && slices.Equal(e.Tokens, prompt[:e.BlockTokens]) {
				found, ok = *e, true
			}
		}
		return ok
	})
	return found, ok
}
