// Package fleet is the table of a pool's endpoints: what each last said of
// itself, and what we have sent it and not seen end. The state's ways in
// (scrape, kvevents) write it through a [Member]; route reads it as an
// epp.View.
//
// # The ledger
//
// [Table.Pick] chooses and books in one critical section, so that no two
// requests are decided on the same state. A [Booking] has two parts, each
// released once: the request's uncached tokens ([Booking.FirstToken]) and the
// request itself ([Booking.End]). A booking belongs to a member, an endpoint
// object, never to a name or an address: an endpoint that left and came back is
// another member, and what ends on the old one never touches the new one's
// counters. A bound ends bookings whose end nobody saw ([Table.Expire]) and
// counts them: at rest every counter is 0 without the bound having fired.
//
// # Slots
//
// A member holds a slot, which indexes matches and the index's sets. A slot is
// given again only after its last booking has ended; its blocks go when the
// member leaves.
//
// There is one lock, Table.mu, held for the choice and for a member's counters.
// Blocks are written without it: the index has locks of its own, which come
// after Table.mu where both are held.
package fleet
