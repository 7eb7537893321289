// Package kvindex knows which endpoint holds which blocks of which prompts: the
// prefix tree, step 4 of a request's way in and the end of a KV event's.
//
// The tree is flat. A block's hash (package block) names its whole path, so a walk
// from the root is a look-up of each hash of a prompt's chain in turn. Blocks
// stored one after another lie beside each other in memory, in runs: of a run only
// the first block is in the index's table, and every other is found by its place,
// the one after its parent's. So the next block is nearly always the next node, and
// a node whose set is the one before it costs two comparisons.
//
//	index := kvindex.New(kvindex.Options{Key: key})
//	writer := index.Endpoint(endpoint.Slot)   // one per event socket
//	writer.Apply(now, events)                 // as they come
//
//	chain := block.AppendChain(nil, key.Root(block.Root{BlockTokens: 16}), tokens, 16)
//	index.Match(chain, out)                   // out[slot]: leading blocks held
//	writer.Close()                            // the endpoint is gone, with all its blocks
//
// # Invariants
//
//   - A node is in the table exactly as long as one endpoint at least holds its
//     block, so Nodes is the number of living blocks.
//   - An endpoint's events change only what that endpoint holds.
//   - A block is held as long as one copy of it is left: a copy is one (tier,
//     group, engine hash) of an endpoint, and is there as often as it was stored
//     and not removed. An engine that announces what it holds once more, without
//     storing it (vLLM, where a request asks for kv_cache_report_mode "full"), is
//     not told from one that stores it twice.
//   - A block that is removed takes nothing else along. Blocks after it stay, do
//     not count in a match, and count again when it is stored again.
//   - Engine hashes are opaque. They lead to a node, within their lane (endpoint,
//     tier, group), and never become part of a hash of ours.
//   - A set never changes once it can be seen. The index's generation changes
//     before a node's place or a set's number is used again, so a reader that
//     finds the same generation before and after has seen the set of exactly that
//     block.
//   - A block is in the table, or lies right behind its parent in memory.
//
// # Readers and writers
//
// Match takes no lock and waits for nobody; each block it credits was held at
// the moment it was looked at. Writers take turns at one lock, for one event at
// a time. What pages and decisions ask beside that (Nodes, Copies, Bytes, a
// writer's Blocks and Incomplete) waits for nobody either. Lock order:
// Writer.turn, then Index.mu.
//
// # What nobody removes
//
// An index with Options.TTL is for guesses: what is stored goes by itself. A hand
// goes over the copies, 32 times in that time, a few with each Advance.
//
// # Memory
//
// Options.MaxBytes bounds everything reachable from the index. From 15/16 of it
// on, growth starts a lap: a hand goes over the copies of all endpoints, a few
// for each block that is stored, and drops those that were neither stored nor
// matched for longest. What would go over the bound is refused. Both mark the
// endpoint as incomplete until its next Clear. Within the bound an endpoint has
// a share, so that one that claims everything drops its own blocks and not the
// others'.
package kvindex
