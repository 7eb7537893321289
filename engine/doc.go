// Package engine is one inference engine as arithmetic: the KV cache and the
// scheduler of vLLM's V1 engine, and a formula for how long a step takes. The
// fake vLLM of package epptest and the simulator both run on it; neither has a
// second model.
//
// It keeps no clock, no goroutine and no source of chance: time comes in as an
// argument, block hashes come from [Config.Seed], and the same calls give the
// same results. An Engine is not safe for concurrent use.
//
// # How to drive it
//
// [Engine.Next] says when something is due: the end of the step under way, or
// the start of one. [Engine.Advance] at that time ends the step, begins the next
// and returns what the ended one brought: answer tokens and KV events.
//
//	e, err := engine.New(engine.Config{})
//	r := &engine.Request{Tokens: prompt, Answer: answer}
//	err = e.Add(now, r)
//	for at, ok := e.Next(); ok; at, ok = e.Next() {
//		step := e.Advance(at)
//		for _, o := range step.Outputs { … }
//	}
//
// # The cache, as vLLM has it
//
// A block holds [Config.BlockTokens] tokens, and its identity is a hash of its
// tokens and of the block before it. Only full blocks are shared. Of a prompt of
// L tokens at most L−1 are taken from the cache, in whole blocks: the last token
// is always computed, because its logits are wanted.
//
// A block becomes known, and is announced by a BlockStored, with the step that
// computes its last token. The last token of an answer is never computed, so it
// is in no block. The same content can lie in several blocks, each announced and
// removed by itself.
//
// A block that no request holds stays known until it is needed for something
// else. Free blocks are a queue: taken from its head, returned to its tail, or to
// its head where the block is not known and so has nothing to lose. A request
// returns its blocks last first, so the tail of a prompt is lost before its
// head. Taking a known block announces a BlockRemoved.
//
// Events wait for the next step to end, as vLLM's do: an AllBlocksCleared of an
// idle engine is told with the step of the next request.
//
// # The scheduler, as vLLM has it
//
// A step first serves the running requests in the order of their admission: one
// token each where the prompt is done, else the rest of the prompt as far as
// [Config.MaxBatchTokens] reaches. Then it admits waiting requests, first come
// first served, while tokens, [Config.MaxRunning] and free blocks suffice. When
// blocks run out for a running request, the one admitted last is preempted: it
// loses its blocks, goes to the head of the queue and computes them again.
//
// Invariants: 0 <= references of a block; free blocks and held blocks are all
// blocks but the null block; a step holds at most MaxBatchTokens tokens.
//
// Source: vllm/v1/core/sched/scheduler.py, block_pool.py and
// kv_cache_manager.py; the events of a real engine are in testdata.
package engine
