package engine

import "math/bits"

// queue is the blocks that wait to be taken, in the order in which they were put.
// One that is needed meanwhile leaves a gap. What is taken next lies beside what is
// taken now: links from block to block would wait for memory at each.
type queue struct {
	ring []int32 // the null block is a gap
	// head and tail count what was taken from the ring and put into it, modulo 2³².
	head, tail uint32
	turns      []uint32 // by block: what tail was when it was put
}

// newQueue has room for the blocks 1 to n-1, each once, and for as many gaps at least.
func newQueue(n int) queue {
	return queue{ring: make([]int32, 1<<bits.Len(uint(2*n))), turns: make([]uint32, n)}
}

// put puts b, which must not be there, at the end.
func (q *queue) put(b int32) {
	if int(q.tail-q.head) == len(q.ring) {
		q.close()
	}
	*q.at(q.tail) = b
	q.turns[b] = q.tail
	q.tail++
}

// at is the place of a turn in the ring.
func (q *queue) at(turn uint32) *int32 { return &q.ring[int(turn)&(len(q.ring)-1)] }

// leave takes b, which must be there, from where it is.
func (q *queue) leave(b int32) { *q.at(q.turns[b]) = nullBlock }

// take takes the first block. There must be one.
func (q *queue) take() int32 {
	for {
		b := *q.at(q.head)
		q.head++
		if b != nullBlock {
			return b
		}
	}
}

// close closes the gaps.
func (q *queue) close() {
	end := q.head
	for i := q.head; i != q.tail; i++ {
		if b := *q.at(i); b != nullBlock {
			*q.at(end) = b
			q.turns[b] = end
			end++
		}
	}
	q.tail = end
}
