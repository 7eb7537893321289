package main

import (
	"bufio"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"sync/atomic"

	"epp.internal/epp/decision"
	"epp.internal/epp/picker"
)

// journal writes every decision into a file (log.decisions). No request waits for
// the disk: lines go through a queue, and what finds it full is dropped and
// counted. A nil journal writes nothing.
type journal struct {
	path    string
	most    int64
	log     *slog.Logger
	dropped atomic.Uint64
	done    chan error

	mu     sync.Mutex // guards the following fields
	lines  chan []byte
	closed bool
	made   *decision.Settings // what the latest decision was made by

	// The writer's own.
	file *os.File
	out  *bufio.Writer
	size int64
	head []byte // the line of the settings that hold, with which a new file begins
}

// journalQueue is how many lines may wait for the disk: with 4 kB each, 16 MB.
const journalQueue = 4096

// openJournal opens the file and goes on behind what is there; an empty path is no
// journal.
func openJournal(path string, most int64, log *slog.Logger) (*journal, error) {
	if path == "" {
		return nil, nil
	}
	j := &journal{path: path, most: most, log: log, done: make(chan error, 1), lines: make(chan []byte, journalQueue)}
	if err := j.open(); err != nil {
		return nil, fmt.Errorf("log.decisions: %w", err)
	}
	go j.write()
	return j, nil
}

// open opens the file, for its owner alone: who asked what, and when, is nobody
// else's.
func (j *journal) open() error {
	f, err := os.OpenFile(j.path, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	info, err := f.Stat()
	if err == nil {
		err = f.Chmod(0o600) // it may have been there before
	}
	if err != nil {
		return errors.Join(err, f.Close())
	}
	j.file, j.out, j.size = f, bufio.NewWriterSize(f, 64<<10), info.Size()
	return nil
}

// decided queues a decision, behind the settings that it was made by.
func (j *journal) decided(rec *decision.Record, chain []uint64) {
	if j == nil {
		return
	}
	text, err := decision.AppendDecisionLine(nil, rec, chain)
	j.mu.Lock()
	defer j.mu.Unlock()
	if rec.Settings != j.made {
		head, fault := decision.AppendSettingsLine(nil, rec.Settings)
		if fault != nil || !j.put(head) {
			j.drop(fault)
			return // without its settings a decision says nothing
		}
		j.made = rec.Settings
	}
	if err != nil || !j.put(text) {
		j.drop(err)
	}
}

// ended queues what became of an attempt.
func (j *journal) ended(e *picker.Ending) {
	if j == nil {
		return
	}
	text, err := decision.AppendEndLine(nil, &decision.LoggedEnd{RequestID: e.RequestID, Attempt: e.Attempt, End: e.End})
	j.mu.Lock()
	defer j.mu.Unlock()
	if err != nil || !j.put(text) {
		j.drop(err)
	}
}

// put queues a line if there is room. j.mu is held.
func (j *journal) put(text []byte) bool {
	if j.closed {
		return false
	}
	select {
	case j.lines <- text:
		return true
	default:
		return false
	}
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

// settingsKey begins the lines of settings.
const settingsKey = `{"settings":`

// write is the writer: it empties the queue, and flushes whenever that is empty.
func (j *journal) write() {
	var broken error
	for text := range j.lines {
		if len(text) > len(settingsKey) && string(text[:len(settingsKey)]) == settingsKey {
			j.head = text
		}
		if broken == nil {
			broken = j.append(text)
		} else {
			j.drop(broken)
		}
	}
	if broken == nil {
		broken = j.out.Flush()
	}
	j.done <- errors.Join(broken, j.file.Close())
}

// append writes a line, in a new file where this one is full.
func (j *journal) append(text []byte) error {
	if j.size+int64(len(text)) > j.most && j.size > int64(len(j.head)) {
		if err := j.turn(); err != nil {
			j.drop(err)
			return err
		}
	}
	_, err := j.out.Write(text)
	j.size += int64(len(text))
	if err == nil && len(j.lines) == 0 {
		err = j.out.Flush()
	}
	if err != nil {
		j.drop(err)
	}
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
		close(j.lines)
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
