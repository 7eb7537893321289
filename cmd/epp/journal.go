package main

import (
	"bufio"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"unsafe"

	"epp.internal/epp/decision"
	"epp.internal/epp/picker"
)

// journal writes every decision into a file (log.decisions). No request waits for
// the disk, nor for a line to be made: what is to be written is copied into a queue,
// and what finds it full is dropped and counted. A nil journal writes nothing.
type journal struct {
	path    string
	most    int64
	log     *slog.Logger
	dropped atomic.Uint64
	waiting atomic.Int64 // bytes in the queue
	done    chan error

	mu     sync.Mutex // guards the following fields
	queue  chan noted
	closed bool

	// The writer's own.
	file *os.File
	out  *bufio.Writer
	size int64
	made *decision.Settings // what the last decision in the file was made by
	head []byte             // their line, with which a new file begins
	line []byte
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
// by our settings. A line that a crash has cut off is ended there.
func (j *journal) open() error {
	f, err := os.OpenFile(j.path, os.O_RDWR|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	size, err := own(f)
	if err != nil {
		return errors.Join(err, f.Close())
	}
	j.file, j.out, j.size = f, bufio.NewWriterSize(f, 64<<10), size
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

// drop counts a line that is lost; err is nil where there was no room.
func (j *journal) drop(err error) {
	if j.dropped.Add(1) == 1 {
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
	var broken error
	for n := range j.queue {
		j.waiting.Add(-n.bytes)
		if broken == nil {
			broken = j.append(&n)
		}
		if broken != nil {
			j.drop(broken)
		}
	}
	if broken == nil {
		broken = j.out.Flush()
	}
	j.done <- errors.Join(broken, j.file.Close())
}

// append writes a line, behind the settings that it was made by. The error is the
// disk's; a record that JSON cannot say is dropped alone.
func (j *journal) append(n *noted) (err error) {
	if n.end != nil {
		j.line, err = decision.AppendEndLine(j.line[:0], n.end)
	} else {
		j.line, err = decision.AppendDecisionLine(j.line[:0], n.rec, n.chain)
	}
	var head []byte
	if err == nil && n.rec != nil && n.rec.Settings != j.made {
		head, err = decision.AppendSettingsLine(nil, n.rec.Settings)
	}
	if err != nil {
		j.drop(err)
		return nil
	}
	if head != nil {
		if err := j.flow(head); err != nil {
			return err
		}
		j.made, j.head = n.rec.Settings, head
	}
	if err := j.flow(j.line); err != nil {
		return err
	}
	if len(j.queue) == 0 {
		return j.out.Flush()
	}
	return nil
}

// flow writes bytes, in a new file where this one is full.
func (j *journal) flow(text []byte) error {
	if j.size+int64(len(text)) > j.most && j.size > int64(len(j.head)) {
		if err := j.turn(); err != nil {
			return err
		}
	}
	_, err := j.out.Write(text)
	j.size += int64(len(text))
	return err
}

// turn makes the file FILE.1 and begins a new one, with the settings that hold.
func (j *journal) turn() error {
	if err := errors.Join(j.out.Flush(), j.file.Close()); err != nil {
		return err
	}
	if err := os.Rename(j.path, j.path+".1"); err != nil {
		return err
	}
	if err := j.open(); err != nil {
		return err
	}
	_, err := j.out.Write(j.head)
	j.size += int64(len(j.head))
	return err
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
