package main

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"

	"epp.internal/epp/decision"
	"epp.internal/epp/picker"
)

// journal writes every decision into a file (log.decisions). No request waits for
// the disk, nor for a line to be made: what is to be written is copied into a queue,
// and what finds it full is dropped and counted. After an error of the disk lines are
// dropped and counted too, until the file can be written again. A nil journal writes
// nothing.
type journal struct {
	path    string
	most    int64
	log     *slog.Logger
	dropped atomic.Uint64
	told    atomic.Bool  // that a line was dropped while the disk was well
	waiting atomic.Int64 // bytes in the queue
	done    chan error

	mu     sync.Mutex // guards the following fields
	queue  chan noted
	closed bool

	// The writer's own.
	file *os.File // nil while broken
	size int64    // of the file, once rows are in it
	rows rows
	made *decision.Settings // what the last decision in the file was made by
	head []byte             // their line, with which a new file begins
	line []byte
	outage
}

// rows are lines that are not in the file yet.
type rows struct {
	text []byte
	ends []rowEnd
}

// rowEnd is where in the text a line ends that is a decision's or an end's.
type rowEnd struct {
	at       int
	decision bool
}

// outage is a time in which the file cannot be written.
type outage struct {
	broken    error            // nil: there is none
	since     time.Time        // its begin
	wait      time.Duration    // before the next try
	again     <-chan time.Time // the next try; nil: there is no outage
	back      time.Time        // the end of the one before
	decisions int              // lost in it
}

// noted is a decision or an end that is to be written.
type noted struct {
	rec   *decision.Record
	chain []uint64
	end   *decision.LoggedEnd
	bytes int64
}

// The bounds of the queue: how many wait for the disk, and how many bytes they take.
const (
	journalQueue = 1 << 14
	journalBytes = 32 << 20
)

const (
	// journalRows is how many bytes of lines go to the disk at once, at the latest.
	journalRows = 64 << 10
	// journalRetry is how long after an error the file is tried again; after each
	// further error the wait is doubled, up to journalRetryMost.
	journalRetry     = time.Second
	journalRetryMost = time.Minute
)

// openJournal opens the file and goes on behind what is there; an empty path is no
// journal.
func openJournal(path string, most int64, log *slog.Logger) (*journal, error) {
	if path == "" {
		return nil, nil
	}
	j := &journal{path: path, most: most, log: log, done: make(chan error, 1), queue: make(chan noted, journalQueue)}
	if err := j.open(); err != nil {
		return nil, fmt.Errorf("log.decisions: %w", err)
	}
	go j.write()
	return j, nil
}

// open opens the file, for its owner alone: who asked what, and when, is nobody
// else's. Nor does another process write to it: its decisions would be read as made
// by our settings. A line that a crash or an error has cut off is
// ended there.
func (j *journal) open() error {
	f, err := os.OpenFile(j.path, os.O_RDWR|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	size, err := own(f)
	if err != nil {
		return errors.Join(err, f.Close())
	}
	j.file, j.size = f, size
	return nil
}

// own makes the file this process's own, and returns its size. A file that is no
// regular one is nobody's.
func own(f *os.File) (size int64, err error) {
	info, err := f.Stat()
	if err != nil || !info.Mode().IsRegular() {
		return 0, err
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); errors.Is(err, syscall.EWOULDBLOCK) {
		return 0, fmt.Errorf("%s: another process writes to it: want a file for each", f.Name())
	} else if err != nil {
		return 0, err
	}
	if err := f.Chmod(0o600); err != nil { // it may have been there before
		return 0, err
	}
	if info, err = f.Stat(); err != nil || info.Size() == 0 { // nobody writes to it now
		return 0, err
	}
	last := make([]byte, 1)
	if _, err := f.ReadAt(last, info.Size()-1); err != nil || last[0] == '\n' {
		return info.Size(), err
	}
	_, err = f.WriteString("\n")
	return info.Size() + 1, err
}

// decided queues a decision.
func (j *journal) decided(rec *decision.Record, chain []uint64) {
	if j != nil {
		own := int64(unsafe.Sizeof(*rec)) + int64(len(rec.Candidates))*int64(unsafe.Sizeof(decision.Candidate{})+unsafe.Sizeof(decision.Prediction{}))
		j.put(noted{rec: rec, chain: chain, bytes: own + 8*int64(len(chain))})
	}
}

// ended queues what became of an attempt.
func (j *journal) ended(e *picker.Ending) {
	if j != nil {
		end := &decision.LoggedEnd{RequestID: e.RequestID, Attempt: e.Attempt, End: e.End}
		j.put(noted{end: end, bytes: int64(unsafe.Sizeof(*end))})
	}
}

// put queues a copy of n, which is the caller's, if there is room.
func (j *journal) put(n noted) {
	if j.waiting.Add(n.bytes) > journalBytes {
		j.waiting.Add(-n.bytes)
		j.drop(nil)
		return
	}
	if n.rec != nil {
		n.rec, n.chain = n.rec.Clone(), slices.Clone(n.chain)
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	if !j.closed {
		select {
		case j.queue <- n:
			return
		default:
		}
	}
	j.waiting.Add(-n.bytes)
	j.drop(nil)
}

// drop counts a line that is lost while the disk is well; err is nil where there was
// no room.
func (j *journal) drop(err error) {
	j.dropped.Add(1)
	if !j.told.Swap(true) {
		j.log.Warn("a line of the decision log is dropped; later ones are only counted", "path", j.path, "error", err)
	}
}

// lost is how many lines were not written.
func (j *journal) lost() uint64 {
	if j == nil {
		return 0
	}
	return j.dropped.Load()
}

// write is the writer: it empties the queue, and flushes whenever that is empty.
func (j *journal) write() {
	for {
		select {
		case n, open := <-j.queue:
			if !open {
				j.done <- j.end()
				return
			}
			j.waiting.Add(-n.bytes)
			j.take(&n)
		case <-j.again:
			j.retry()
		}
	}
}

// take writes a line, behind the settings that it was made by. A record that JSON
// cannot say is dropped alone.
func (j *journal) take(n *noted) {
	if j.broken != nil {
		j.lose(n.rec != nil)
		return
	}
	head, err := j.make(n)
	if err != nil {
		j.drop(err)
		return
	}
	if j.full(len(head) + len(j.line)) {
		if err := j.turn(); err != nil {
			j.lose(n.rec != nil)
			j.fail(err)
			return
		}
	}
	if head != nil {
		j.made, j.head = n.rec.Settings, head
		j.add(head)
	}
	j.add(j.line)
	j.rows.ends = append(j.rows.ends, rowEnd{len(j.rows.text), n.rec != nil})
	if len(j.queue) == 0 || len(j.rows.text) >= journalRows {
		if err := j.flush(); err != nil {
			j.fail(err)
		}
	}
}

// make makes the line of n, and that of its settings where these are new.
func (j *journal) make(n *noted) (head []byte, err error) {
	if n.end != nil {
		j.line, err = decision.AppendEndLine(j.line[:0], n.end)
		return nil, err
	}
	if j.line, err = decision.AppendDecisionLine(j.line[:0], n.rec, n.chain); err != nil || n.rec.Settings == j.made {
		return nil, err
	}
	return decision.AppendSettingsLine(nil, n.rec.Settings)
}

// add adds text to what the next flush writes.
func (j *journal) add(text []byte) {
	j.rows.text = append(j.rows.text, text...)
	j.size += int64(len(text))
}

// full says whether the file has no room for so many bytes more.
func (j *journal) full(bytes int) bool {
	return j.size+int64(bytes) > j.most && j.size > int64(len(j.head))
}

// turn makes the file FILE.1 and begins a new one, with the settings that hold.
func (j *journal) turn() error {
	if err := errors.Join(j.flush(), j.shut()); err != nil {
		return err
	}
	if err := os.Rename(j.path, j.path+".1"); err != nil {
		return err
	}
	if err := j.open(); err != nil {
		return err
	}
	j.add(j.head)
	return nil
}

// flush writes the rows. After an error those remain that are not in the file; one
// that lacks its line feed alone is in it, since the next opening adds that.
func (j *journal) flush() error {
	n, err := j.file.Write(j.rows.text)
	j.rows.ends = slices.DeleteFunc(j.rows.ends, func(e rowEnd) bool { return e.at <= n+1 })
	j.rows.text = j.rows.text[:0]
	return err
}

// shut closes the file, if it is open.
func (j *journal) shut() error {
	if j.file == nil {
		return nil
	}
	f := j.file
	j.file = nil
	return f.Close()
}

// lose counts a line that an outage costs.
func (j *journal) lose(isDecision bool) {
	j.dropped.Add(1)
	if isDecision {
		j.decisions++
	}
}

// fail begins an outage.
func (j *journal) fail(err error) {
	now := time.Now()
	if j.back.IsZero() || now.Sub(j.back) >= journalRetryMost {
		j.wait = journalRetry
	}
	j.since = now
	j.hold(err)
	j.log.Warn("the decision log cannot be written: decisions are lost until it can", "path", j.path, "error", j.broken)
}

// hold leaves the file alone until the next try.
func (j *journal) hold(err error) {
	for _, e := range j.rows.ends {
		j.lose(e.decision)
	}
	j.rows.text, j.rows.ends = j.rows.text[:0], j.rows.ends[:0]
	j.broken = errors.Join(err, j.shut())
	j.again = time.After(j.wait)
	j.wait = min(2*j.wait, journalRetryMost)
}

// retry ends the outage if the file can be opened and takes the settings that hold.
func (j *journal) retry() {
	if err := j.reopen(); err != nil {
		j.hold(err)
		return
	}
	now := time.Now()
	j.log.Info("the decision log is written again", "path", j.path, "decisionsLost", j.decisions, "after", now.Sub(j.since))
	j.broken, j.again, j.back, j.decisions = nil, nil, now, 0
}

// reopen opens the file after an error, and goes on behind what is there.
func (j *journal) reopen() error {
	if err := j.open(); err != nil {
		return err
	}
	if !j.full(len(j.head)) {
		j.add(j.head)
	} else if err := j.turn(); err != nil {
		return err
	}
	return j.flush()
}

// end flushes and closes the file; the error is why what is lost last is lost.
func (j *journal) end() error {
	err := j.broken
	if err == nil {
		err = j.flush()
	}
	return errors.Join(err, j.shut())
}

// close writes what is queued and closes the file.
func (j *journal) close() error {
	if j == nil {
		return nil
	}
	j.mu.Lock()
	closed := j.closed
	j.closed = true
	if !closed {
		close(j.queue)
	}
	j.mu.Unlock()
	if closed {
		return nil
	}
	if err := <-j.done; err != nil {
		return fmt.Errorf("log.decisions: %w", err)
	}
	return nil
}
