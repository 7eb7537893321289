// Package agent runs beside one engine and tells several pickers what it holds
// and how it does. It reads the engine as a picker would, with packages scrape,
// kvevents and probe, whose sink it is; what it learns goes out through clients
// of package report.
//
// # Why it keeps tokens
//
// Every picker hashes blocks under a key of its own, which it draws when it
// starts and tells when a stream opens. A picker that restarts asks for all that
// the engine holds under a key that nobody knew before, and the engine itself
// repeats only its latest events. So the agent keeps each block's tokens, which
// never leave it, and hashes them anew: its [Agent] is one mirror of the engine's
// blocks, with one hash of each block for each picker.
//
// # What holds
//
// What a picker was told is a function of what the engine holds: the blocks that
// can be reached from a prompt's first block through blocks that are held. The
// others, with a parent that is gone or was never heard of, match no prompt; they
// wait here. The mirror is bounded in bytes; what it has no room for makes the
// endpoint incomplete. So is what waits for a picker: one that is too slow gets a
// snapshot in place of what it missed.
//
// There is one lock, Agent.mu.
//
//	a := agent.New(agent.Options{Pickers: 2})
//	go readers.Run(ctx, scrape.Target{Address: engine}, a)
//	client := report.Client{Picker: "10.0.0.1:9004", Source: a.Teller(0), …}
package agent
