package sim

// happening is one entry of the heap.
type happening struct {
	at   int64  // nanoseconds from the start
	seq  uint64 // the order of planning
	what happeningKind
	// who is the endpoint's number; which tells wakes apart from those that an
	// earlier state of the endpoint planned, and is a fault's number.
	who   int
	which uint64
	body  any
}

type happeningKind uint8

const (
	arrival      happeningKind = iota // of the next request of the trace
	wake                              // of an engine
	readingBegin                      // of an endpoint's page
	readingEnd                        // body is a reading
	delivery                          // body is a batch of KV events
	faultBegin                        // which is its number
	faultEnd
)

// agenda is a heap, the earliest first.
type agenda struct {
	h   []happening
	seq uint64
}

func (a *agenda) before(i, k int) bool {
	if a.h[i].at != a.h[k].at {
		return a.h[i].at < a.h[k].at
	}
	return a.h[i].seq < a.h[k].seq
}

func (a *agenda) plan(h happening) {
	a.seq++
	h.seq = a.seq
	a.h = append(a.h, h)
	for i := len(a.h) - 1; i > 0; {
		p := (i - 1) / 2
		if !a.before(i, p) {
			break
		}
		a.h[i], a.h[p] = a.h[p], a.h[i]
		i = p
	}
}

// next takes the earliest; there must be one.
func (a *agenda) next() happening {
	first := a.h[0]
	last := len(a.h) - 1
	a.h[0] = a.h[last]
	a.h[last] = happening{}
	a.h = a.h[:last]
	for i := 0; ; {
		c := 2*i + 1
		if c >= last {
			break
		}
		if c+1 < last && a.before(c+1, c) {
			c++
		}
		if !a.before(c, i) {
			break
		}
		a.h[i], a.h[c] = a.h[c], a.h[i]
		i = c
	}
	return first
}
