// Package vllm runs the real picker in front of two real vLLM servers, on CPU,
// with a tiny model whose weights are random: what the fake engine of epptest
// says is here held against the engine itself, and so are the events of package
// engine's model.
//
// The picker is the command epp as a process of its own, and so are the agents
// beside the engines; what the tests know of them is what an operator knows:
// answers, headers, logs and metrics. What an engine holds is counted by a second
// reader of its KV events, which shares no code with package kvevents.
//
// The tests are behind the build tag vllm, since an engine takes one to two
// minutes to start. They fail, and say why, where none can be had:
//
//	make test-vllm
package vllm
