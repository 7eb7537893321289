package kvindex

import "epp.internal/epp"

type fataler interface{ Fatalf(string, ...any) }

// checkConsistent asserts what must hold of an index between two events: each
// copy leads to a node whose set has its endpoint, each node is in the table
// once and has a copy, sets know their nodes, and the byte count is the sum of
// its parts.
func checkConsistent(t fataler, x *Index) {
	x.mu.Lock()
	defer x.mu.Unlock()
	holders := map[uint32]map[epp.Slot]uint32{}
	bytes := x.nodes.fixedBytes() + x.sets.fixedBytes() + x.table.fixedBytes()
	bytes -= len(x.table.shards) * minSlots * 8
	copies := 0
	for slot, w := range x.writers {
		for _, l := range w.lanes {
			bytes += len(l.copies) * x.slot
			live := 0
			for i, c := range l.copies {
				place := c.place
				if place == 0 {
					continue
				}
				live++
				if at, _ := l.find(c.hash()); at != i {
					t.Fatalf("slot %d: copy %#x is in slot %d and found in %d", slot, c.hash(), i, at)
				}
				if holders[place] == nil {
					holders[place] = map[epp.Slot]uint32{}
				}
				holders[place][slot]++
			}
			if live != l.live {
				t.Fatalf("slot %d: lane has %d copies, says %d", slot, live, l.live)
			}
			copies += live
		}
		bytes += len(w.extra)*mapEntryBytes + len(w.besides)*besidesBytes + w.parked.bytes
		for _, l := range w.lanes {
			bytes += len(l.again) * mapEntryBytes
			for hash, n := range l.again {
				if _, place := l.find(hash); place == 0 || n == 0 || n >= maxCopies {
					t.Fatalf("slot %d: copy %x at place %d is there %d more times", w.slot, hash, place, n)
				}
			}
		}
	}
	if copies != x.copies {
		t.Fatalf("%d copies, index says %d", copies, x.copies)
	}
	users := map[uint32]int{}
	heads := 0
	for place, slots := range holders {
		n := x.nodes.at(place)
		s := x.sets.at(n.set())
		users[n.set()]++
		if s.n != len(slots) {
			t.Fatalf("node %d has %d holders, want %d", place, s.n, len(slots))
		}
		for slot, copies := range slots {
			if !s.has(slot) || x.writers[slot].extra[place] != copies-1 {
				t.Fatalf("node %d: slot %d has %d copies, set %v, extra %d", place, slot, copies, s, x.writers[slot].extra[place])
			}
		}
		found, head := x.find(n.hash.Load()).place, x.nodes.isHead(place)
		if head && found != place || !head && (found != 0 || !x.nodes.at(place-1).live()) {
			t.Fatalf("node %d, head %v, is found at %d", place, head, found)
		}
		if head {
			heads++
		}
	}
	if len(holders) != x.nodes.live || len(users) != x.sets.live {
		t.Fatalf("%d nodes and %d sets, index says %d and %d", len(holders), len(users), x.nodes.live, x.sets.live)
	}
	entries, chunks, live := 0, 0, 0
	for i := range x.table.shards {
		s := &x.table.shards[i]
		entries += s.live
		bytes += len(*s.slots.Load()) * 8
	}
	for i := range x.nodes.spine {
		if x.nodes.spine[i].Load() != nil {
			chunks++
			live += x.nodes.ledgers[i].live
		}
	}
	for number, used := range users {
		if x.sets.records[number].nodes != used {
			t.Fatalf("set %d has %d nodes, says %d", number, used, x.sets.records[number].nodes)
		}
		bytes += x.sets.at(number).bytes()
	}
	for i := range x.sets.spine {
		if x.sets.spine[i].Load() != nil {
			bytes += setChunkBytes
		}
	}
	bytes += chunks * chunkBytes
	if entries != heads || live != x.nodes.live || chunks != x.nodes.chunks || bytes != x.bytes {
		t.Fatalf("%d entries of %d, %d nodes of %d, %d chunks of %d, %d bytes of %d",
			entries, heads, live, x.nodes.live, chunks, x.nodes.chunks, bytes, x.bytes)
	}
}
