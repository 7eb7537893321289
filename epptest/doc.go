// Package epptest holds what a set-up that routes LLM requests can be tested
// with. It is public: our own tests, the demo and users' tests share it.
//
// # A fake vLLM
//
// [StartEngine] starts an engine that looks like vLLM 0.32 from outside: the
// OpenAI API over HTTP with its streams, errors and usage blocks, Anthropic's
// /v1/messages, the pages
// that routers read (/metrics, /v1/models, /tokenize, /health,
// /kv_event_sources), LoRA adapters, sleep mode, and KV events with their replay
// over ZMQ. Behind the sockets it runs the model of package engine: what it says
// of its cache, its queue and its times is computed, not scripted.
//
//	e, err := epptest.StartEngine(epptest.EngineConfig{Name: "a", TimeScale: 0.01})
//	defer e.Close()
//	resp, err := http.Post(e.URL()+"/v1/chat/completions", "application/json", body)
//
// Its answers are words drawn from [EngineConfig.AnswerTokens] by the prompt
// alone: every engine gives the same answer to the same prompt, and the text of
// an answer is tokenized back to the same tokens, so a conversation's next turn
// finds its blocks.
//
// # Faults
//
// [Engine.SetFault] makes answers slow, wrong, absent or cut off;
// [Engine.Crash] and [Engine.Restart] do what their names say;
// [Engine.HoldAnswers] and [Engine.HoldEvents] stop time for one of the two;
// [Engine.DropEvents] makes a gap in the events. All of them can be called at
// any time, from any goroutine.
//
// # What differs from vLLM
//
// A request's n is taken as 1, and sampling parameters are read over: there is
// no sampling. Logprobs, tool calls and images are not there: /v1/messages and
// /v1/responses read messages of text alone, no response is kept, and errors have
// OpenAI's form in each. A pair of /v1/rerank and /v1/score is one text behind the
// other. Paths that vLLM has and that are not named above are answered with 404. One
// server generates, embeds and rates, which needs three of vLLM.
//
// Invariants: no goroutine outlives [Engine.Close]; requests and their answers
// are delivered in the order of the model's steps, events before answers. Lock
// order: Engine.life, then one of Engine.mu and process.mu, then publisher.mu.
package epptest
