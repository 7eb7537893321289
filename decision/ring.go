package decision

import (
	"sync"
	"unsafe"

	"epp.internal/epp"
)

// DefaultRingBytes bounds a ring where nothing else is set: 32 MiB, about
// 10,000 decisions over 8 endpoints.
const DefaultRingBytes = 32 << 20

// Ring keeps the latest records within a bound of bytes, the oldest leaving
// first. Its methods may be called by any number of goroutines.
type Ring struct {
	maxBytes int

	mu      sync.Mutex // guards the following fields
	records []*Record  // a queue: records[head:] are live, oldest first
	head    int
	first   uint64 // the sequence number of records[head]
	bytes   int
	free    []*Record
}

// maxFree bounds the records that wait for their next use.
const maxFree = 64

// NewRing returns a ring of at most maxBytes; 0 means DefaultRingBytes. A single
// record that is larger than the bound is kept alone.
func NewRing(maxBytes int) *Ring {
	if maxBytes <= 0 {
		maxBytes = DefaultRingBytes
	}
	return &Ring{maxBytes: maxBytes}
}

// New returns an empty record to fill, which belongs to the caller until Put.
func (r *Ring) New() *Record {
	r.mu.Lock()
	defer r.mu.Unlock()
	if n := len(r.free); n > 0 {
		rec := r.free[n-1]
		r.free = r.free[:n-1]
		rec.Reset()
		return rec
	}
	return &Record{Chosen: -1, RunnerUp: -1}
}

// Put makes the record readable and takes it from the caller, who must not
// touch it again. It returns the record's sequence number, for Finish.
func (r *Ring) Put(rec *Record) uint64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	seq := r.first + uint64(len(r.records)-r.head)
	r.records = append(r.records, rec)
	r.bytes += size(rec)
	for r.bytes > r.maxBytes && len(r.records)-r.head > 1 {
		r.dropOldest()
	}
	if r.head > 64 && r.head > len(r.records)/2 {
		n := copy(r.records, r.records[r.head:])
		clear(r.records[n:])
		r.records, r.head = r.records[:n], 0
	}
	return seq
}

func (r *Ring) dropOldest() {
	old := r.records[r.head]
	r.records[r.head] = nil
	r.head++
	r.first++
	r.bytes -= size(old)
	if len(r.free) < maxFree {
		r.free = append(r.free, old)
	}
}

// Finish writes what became of the request into the record that Put numbered
// seq, if that is still kept.
func (r *Ring) Finish(seq uint64, end End) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if i := r.head + int(seq-r.first); seq >= r.first && i < len(r.records) {
		r.records[i].End = end
	}
}

// Served writes which address served the request into the record that Put
// numbered seq, if that is still kept.
func (r *Ring) Served(seq uint64, address string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if i := r.head + int(seq-r.first); seq >= r.first && i < len(r.records) {
		r.records[i].ServedBy = address
	}
}

// Find returns a copy of the request's latest record, or nil where none is kept.
func (r *Ring) Find(requestID string) *Record {
	r.mu.Lock()
	defer r.mu.Unlock()
	for i := len(r.records) - 1; i >= r.head; i-- {
		if r.records[i].RequestID == requestID {
			return r.records[i].Clone()
		}
	}
	return nil
}

// Latest returns copies of up to n records, newest first.
func (r *Ring) Latest(n int) []*Record {
	r.mu.Lock()
	defer r.mu.Unlock()
	var out []*Record
	for i := len(r.records) - 1; i >= r.head && len(out) < n; i-- {
		out = append(out, r.records[i].Clone())
	}
	return out
}

// Len is the number of records kept, Bytes their size.
func (r *Ring) Len() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.records) - r.head
}

// Bytes is the memory of the records kept.
func (r *Ring) Bytes() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.bytes
}

// size is what a record holds on to: itself, its arrays, and its strings.
// It uses capacities, which do not change while a record is in the ring.
func size(r *Record) int {
	n := int(unsafe.Sizeof(*r)) +
		cap(r.Candidates)*int(unsafe.Sizeof(Candidate{})) +
		cap(r.Outside)*int(unsafe.Sizeof(epp.Score{})) +
		cap(r.Predictions)*int(unsafe.Sizeof(Prediction{}))
	return n + len(r.RequestID) + len(r.ClientID) + len(r.Path) + len(r.Model) + len(r.Target) + len(r.Adapter) + len(r.TokenNote)
}
