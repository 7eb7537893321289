package kvindex

import "strings"

// Tiers are what a block is worth that an endpoint holds beside its GPU alone, as
// a part of one on the GPU: above 0, at most 1. A zero field stands for its default.
type Tiers struct {
	CPU  float64 // in the host's memory
	Disk float64 // on a disk, or in a store elsewhere
}

// The defaults are guesses: a block comes from the host's memory at some ten
// gigabytes a second, and from a disk at some few, where computing it would take
// longer than either.
const (
	DefaultCPUWorth  = 0.8
	DefaultDiskWorth = 0.5
)

func (t Tiers) withDefaults() Tiers {
	if !(t.CPU > 0 && t.CPU <= 1) {
		t.CPU = DefaultCPUWorth
	}
	if !(t.Disk > 0 && t.Disk <= 1) {
		t.Disk = DefaultDiskWorth
	}
	return t
}

// depth is how far from the GPU a tier is.
type depth uint8

const (
	near depth = iota // the GPU
	host
	far
)

// depthOf reads what engines call their tiers: vLLM's GPU, CPU and STORAGE (FS
// and OBJ before that), SGLang's CPU_PINNED, CPU_TIER1, CPU_TIER2, DISK and
// EXTERNAL. What is not known is far, and so is what is elsewhere ("REMOTE:CPU").
func depthOf(tier string) depth {
	switch {
	case tier == "" || tier == "GPU":
		return near
	case strings.HasPrefix(tier, "CPU"):
		return host
	}
	return far
}

// besides counts an endpoint's copies of one block that are not on the GPU.
type besides struct{ host, far uint16 }

// besidesBytes is what a block costs that has such a copy: an entry of a map, of
// eight bytes (TestBytesIsHonest).
const besidesBytes = 16

// shift counts a copy of the block at place, in a tier beside the GPU, in or out.
func (w *Writer) shift(place uint32, d depth, by int) {
	if d == near {
		return
	}
	n, known := w.besides[place]
	if !known {
		if w.besides == nil {
			w.besides = map[uint32]besides{}
		}
		w.index.bytes += besidesBytes
		w.index.slow.Add(1)
	}
	if d == host {
		n.host = uint16(int(n.host) + by)
	} else {
		n.far = uint16(int(n.far) + by)
	}
	if n != (besides{}) {
		w.besides[place] = n
		return
	}
	delete(w.besides, place)
	w.index.bytes -= besidesBytes
	w.index.slow.Add(-1)
}

// forgetBesides drops all counts.
func (w *Writer) forgetBesides() {
	w.index.bytes -= len(w.besides) * besidesBytes
	w.index.slow.Add(-int64(len(w.besides)))
	w.besides = nil
}

// lack is what the block at place is worth less than on the GPU, in [0, 1).
func (w *Writer) lack(place uint32) float64 {
	n, some := w.besides[place]
	switch {
	case !some || uint32(n.host)+uint32(n.far) <= w.extra[place]: // a copy is on the GPU
		return 0
	case n.host > 0:
		return 1 - w.index.options.Tiers.CPU
	}
	return 1 - w.index.options.Tiers.Disk
}

// Discounts adds to out[slot] how many blocks less the slot's match is worth
// because some of them lie beside the GPU alone. matched[slot] is what Match found
// for the chain; len(out) == len(matched).
//
// As long as no endpoint holds a block that way, the cost is one load. Else it
// takes the writers' lock and looks each block up that some such endpoint holds.
func (x *Index) Discounts(chain []uint64, matched []uint32, out []float32) {
	if x.slow.Load() == 0 {
		return
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	var room [64]*Writer
	slow, longest := room[:0], 0
	for slot, w := range x.writers {
		if len(w.besides) > 0 && int(slot) < len(matched) && matched[slot] > 0 {
			slow = append(slow, w)
			longest = max(longest, int(matched[slot]))
		}
	}
	var place uint32
	for i, hash := range chain[:min(longest, len(chain))] {
		if place = x.placeOf(hash, place); place == 0 {
			return
		}
		for _, w := range slow {
			if uint32(i) < matched[w.slot] {
				out[w.slot] += float32(w.lack(place))
			}
		}
	}
}
