package kvevents

import (
	"math"
	"time"
)

// clock tells an engine's times on our clock. The engine's may be set otherwise,
// and a batch takes time to come; the least difference that was seen is both at
// their least, so a time is never told earlier than it was, and later
// by no more than the quickest batch takes.
type clock struct {
	least time.Duration
	known bool
}

// slowly is the part of a difference that a batch takes back of what was learnt:
// a clock that is set back is followed within a few thousand batches.
const slowly = 1.0 / 1024

// at returns when the engine made a batch that came now and says ts, in Unix
// seconds of its own clock; zero where ts is no time.
func (c *clock) at(now time.Time, ts float64) time.Time {
	if math.IsNaN(ts) || ts < 1e9 || ts > 1e10 { // from 2001 to 2286
		return time.Time{}
	}
	sent := time.Unix(0, int64(ts*1e9))
	if took := now.Sub(sent); !c.known || took < c.least {
		c.least, c.known = took, true
	} else {
		c.least += time.Duration(slowly * float64(took-c.least))
	}
	return sent.Add(c.least)
}
