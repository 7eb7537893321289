package kube

import (
	"log/slog"
	"time"
)

const (
	// settle is how long something must have been wrong before it is said: pods that
	// start and go make much that is wrong for a moment.
	settle = 3 * time.Second
	// maxAlike bounds what is said of one pool for one reason at a time.
	maxAlike = 10
	// maxNotes bounds what is said of it at all: more than there are reasons times maxAlike.
	maxNotes = 150
)

// notes are what is wrong, and since when.
type notes struct {
	log   *slog.Logger
	since map[Note]time.Time
	said  map[Note]bool
}

// hold takes what is wrong at now, logs what has lasted and what has ended, and returns
// what has lasted and how long it is until more of it has.
func (n *notes) hold(now time.Time, current []Note) (lasting []Note, again time.Duration) {
	again = resync
	is := map[Note]bool{}
	for _, note := range current[:min(len(current), maxNotes)] {
		is[note] = true
		if _, known := n.since[note]; !known {
			n.since[note] = now
		}
		if left := settle - now.Sub(n.since[note]); left > 0 {
			again = min(again, left)
			continue
		}
		lasting = append(lasting, note)
		if !n.said[note] {
			n.said[note] = true
			n.log.Warn(note.Text, "reason", note.Reason)
		}
	}
	for note := range n.since {
		if !is[note] {
			if n.said[note] {
				n.log.Info("no longer: "+note.Text, "reason", note.Reason)
			}
			delete(n.since, note)
			delete(n.said, note)
		}
	}
	return lasting, again
}
