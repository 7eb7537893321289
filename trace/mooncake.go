package trace

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"
)

// mooncakeBlock is how many tokens one hash id of a Mooncake trace stands for.
const mooncakeBlock = 512

// mooncakeRow is one line of the format:
//
//	{"timestamp": 27482, "input_length": 6955, "output_length": 52, "hash_ids": [46, 47, …]}
//
// The timestamp is in milliseconds. There is one id for each block of 512 tokens
// and one for what is left at the end; equal ids stand for equal prefixes.
type mooncakeRow struct {
	Timestamp    *int64   `json:"timestamp"`
	InputLength  int      `json:"input_length"`
	OutputLength int      `json:"output_length"`
	HashIDs      []uint64 `json:"hash_ids"`
}

// ReadMooncake reads a trace in the JSONL form of Mooncake's FAST '25 release.
// name is only what errors call it.
//
// Its stamps lie on a grid: what has one stamp is spread evenly over the grid's
// step, else the grid makes bursts that nobody sent. The grid's step is the
// shortest time between two stamps, and no more than the release's 3 s: in a part of
// a trace two stamps may lie far apart.
func ReadMooncake(name string, r io.Reader) (*Trace, error) {
	t := &Trace{Name: name}
	var first, last int64
	err := lines(name, r, func(_ int, text []byte) error {
		var row mooncakeRow
		if err := json.Unmarshal(text, &row); err != nil {
			return fmt.Errorf("no Mooncake row: %w", err)
		}
		if err := row.check(); err != nil {
			return err
		}
		if len(t.Requests) == 0 {
			first, last = *row.Timestamp, *row.Timestamp
		}
		if *row.Timestamp < last {
			return fmt.Errorf("timestamp %d is before the one of the row above, %d: rows must be in the order of time", *row.Timestamp, last)
		}
		if last = *row.Timestamp; last-first > int64(MaxDuration/time.Millisecond) {
			return fmt.Errorf("timestamp %d is more than %v after the first one, %d", last, MaxDuration, first)
		}
		if len(t.Requests) == MaxRequests {
			return fmt.Errorf("more than %d requests", MaxRequests)
		}
		t.Requests = append(t.Requests, row.request(len(t.Requests), time.Duration(last-first)*time.Millisecond))
		return nil
	})
	if err != nil {
		return nil, err
	}
	if len(t.Requests) == 0 {
		return nil, fmt.Errorf("%s: no request in it", name)
	}
	spread(t.Requests, mooncakeGrid)
	return t, nil
}

// MaxDuration is the longest trace: a month, since a pool is read every second of
// it, idle or not.
const MaxDuration = 31 * 24 * time.Hour

func (row *mooncakeRow) check() error {
	if row.Timestamp == nil {
		return errors.New("timestamp is missing: want milliseconds")
	}
	if *row.Timestamp < 0 {
		return fmt.Errorf("timestamp %d: want milliseconds, 0 or more", *row.Timestamp)
	}
	if err := checkLengths(row.InputLength, row.OutputLength); err != nil {
		return err
	}
	if want := (row.InputLength + mooncakeBlock - 1) / mooncakeBlock; len(row.HashIDs) != want {
		return fmt.Errorf("hash_ids has %d ids: an input_length of %d needs %d, one for each %d tokens", len(row.HashIDs), row.InputLength, want, mooncakeBlock)
	}
	for _, id := range row.HashIDs {
		if id >= answerKind {
			return fmt.Errorf("hash_ids has %d: want less than 2^56", id)
		}
	}
	return nil
}

// request is the row as the i-th request. The session is the first id that is
// not everybody's: the second one.
func (row *mooncakeRow) request(i int, at time.Duration) Request {
	r := Request{
		At: at, Prompt: make([]Segment, len(row.HashIDs)),
		Answer:  Segment{answerKind | uint64(i), row.OutputLength},
		Session: row.HashIDs[min(1, len(row.HashIDs)-1)],
	}
	left := row.InputLength
	for k, id := range row.HashIDs {
		r.Prompt[k] = Segment{sharedKind | id, min(left, mooncakeBlock)}
		left -= mooncakeBlock
	}
	return r
}

// mooncakeGrid is how far the release's stamps lie apart where none is missing.
const mooncakeGrid = 3 * time.Second

// spread gives requests of one stamp times of their own, within the shortest time
// between two stamps, or within grid where that is shorter.
func spread(requests []Request, grid time.Duration) {
	step := time.Duration(0)
	for i := 1; i < len(requests); i++ {
		if gap := requests[i].At - requests[i-1].At; gap > 0 && (step == 0 || gap < step) {
			step = gap
		}
	}
	step = min(step, grid)
	for from := 0; from < len(requests); {
		to := from
		for to < len(requests) && requests[to].At == requests[from].At {
			to++
		}
		for i, n := from, to-from; i < to; i++ {
			requests[i].At += step * time.Duration(i-from) / time.Duration(n)
		}
		from = to
	}
}
