// Package kvevents follows the KV cache of one engine: it subscribes to the
// engine's ZMQ event socket, asks its replay socket for what was missed, and
// hands over [epp.BlockEvent] values that are complete, in order and applied
// once, or says that they are not.
//
// It is the second half of an endpoint's state's way in: kvevents feeds fleet
// and, through it, kvindex. One [Subscriber] belongs to one endpoint, and what
// its socket says touches that endpoint alone: neither the topic nor anything
// inside a message is an identity.
//
// # The layers
//
// A message passes four of them, each of which is tested by itself:
//
//	zmtp.go      bytes of a TCP connection -> frames (ZMTP 3, NULL mechanism, SUB and DEALER)
//	sequence.go  (seq, live or replayed) -> apply, ignore, ask for a replay, reset
//	msgpack.go   bytes of a payload -> values
//	decode.go    payload -> Batch of epp.BlockEvent
//
// # Invariants
//
//   - A batch is applied once and in the order of its sequence numbers, or it is
//     reported as lost: Incomplete(true).
//   - A restarted engine is reset before anything it says is applied.
//   - Nothing that comes in is unbounded: MaxPayload bytes of a message,
//     MaxPending messages that wait for a replay, one replay at a time, and
//     retries that back off.
//   - No bytes from outside end the process or the subscription. What can't be
//     used is counted by [Reason] and passed over.
//
// # What can be told apart
//
// ZMQ's sequence numbers start at 0 with each publisher, so a number that falls
// back is a restart. A restarted engine whose numbers have already passed the
// last one seen can't be told by number. So after each reconnect the subscriber
// asks for a replay that begins with the last batch it has: the same bytes under
// the same number are the same publisher, since a batch holds the time of its
// making; anything else is a restart or an overrun buffer, and both mean reset, as
// does a replay socket that says nothing.
// Without a replay socket a reconnect is judged by number alone: below the next
// expected one is a restart, above is a gap that may hide one, so both mean
// reset; equal is taken for a continuation.
// From the loss of the connection until that is settled the endpoint is
// incomplete.
//
//	sub := kvevents.Subscriber{
//		Address: "10.0.0.7:5557", Replay: "10.0.0.7:5558", Sink: sink,
//	}
//	err := sub.Run(ctx) // returns when ctx ends
package kvevents
