package workload

import "testing"

// The trace's tree is branchy: requests share prefixes, and leave them at any
// depth, not at multiples of the trace's own block alone.
func TestConversationForks(t *testing.T) {
	blocks := map[uint64]bool{}
	children := map[uint64]map[uint64]bool{}
	depths := map[int]int{}
	total := 0
	for _, r := range Conversation() {
		parent := uint64(0)
		for i, h := range r.Hashes {
			if children[parent] == nil {
				children[parent] = map[uint64]bool{}
			}
			if len(children[parent]) > 0 && !children[parent][h] {
				depths[i%traceBlocks]++
			}
			children[parent][h] = true
			blocks[h] = true
			parent = h
		}
		total += len(r.Hashes)
	}
	if len(blocks) < 100_000 || total < len(blocks)*5/4 {
		t.Errorf("%d blocks of %d are different", len(blocks), total)
	}
	if len(depths) < traceBlocks*3/4 {
		t.Errorf("forks at %d depths of %d: %v", len(depths), traceBlocks, depths)
	}
}

// Events tell an engine's blocks once, each with the block before it.
func TestConversationEvents(t *testing.T) {
	held := [ConversationEndpoints]map[uint64]bool{}
	for i := range held {
		held[i] = map[uint64]bool{}
	}
	for n, r := range Conversation() {
		known := held[r.Endpoint]
		for _, e := range r.Events {
			if e.HasParent && !known[e.Parent] {
				t.Fatalf("request %d: parent %#x is not held", n, e.Parent)
			}
			for _, h := range e.Hashes {
				if known[h] {
					t.Fatalf("request %d: %#x is stored twice", n, h)
				}
				known[h] = true
			}
		}
		for _, h := range r.Hashes {
			if !known[h] {
				t.Fatalf("request %d: %#x is not held after it", n, h)
			}
		}
	}
}
