package sim

import (
	"encoding/binary"
	"slices"
	"strconv"

	"github.com/cespare/xxhash/v2"
)

// keyHash is the XXH64 of key, name and a replica's number.
func keyHash(key uint64, name string, replica int) uint64 {
	b := binary.LittleEndian.AppendUint64(nil, key)
	b = append(b, name...)
	return xxhash.Sum64(strconv.AppendInt(append(b, '#'), int64(replica), 10))
}

const (
	// ringReplicas is how often each endpoint stands on the ring, meanLoadFactor
	// how far above the mean its load may be. Source: KubeAI, CHWBL's defaults.
	ringReplicas   = 256
	meanLoadFactor = 1.25
)

// chwbl is consistent hashing with bounded loads: from the key's place on the ring
// on, clockwise, the first endpoint whose load passes (total+1)/n · 1.25 or less.
//
// KubeAI's key is the adapter and the first 100 characters. Where all prompts
// begin with one system prompt that is constant and the policy pure spill-over, so
// keyBlocks says how many leading blocks are the key.
type chwbl struct {
	keyBlocks int
	// leastOnOverload is smg's prefix_hash: where the key's own endpoint is over
	// its bound, the least loaded one that is not, else the key's own.
	leastOnOverload bool

	ring  []ringPoint
	names []string // that the ring was made of
}

type ringPoint struct {
	hash uint64
	name string
}

func (p *chwbl) choose(in *input) int {
	p.build(in)
	key := keyHash(p.key(in), in.req.Adapter, 0)
	at, _ := slices.BinarySearchFunc(p.ring, key, func(r ringPoint, k uint64) int {
		if r.hash < k {
			return -1
		}
		return 1
	})
	total := 0
	for i := range in.signals {
		total += in.signals[i].InFlight
	}
	bound := float64(total+1) / float64(len(in.signals)) * meanLoadFactor
	first := -1
	for k := range p.ring {
		i := p.index(in, p.ring[(at+k)%len(p.ring)].name)
		if first < 0 {
			first = i
		}
		if total == 0 || float64(in.signals[i].InFlight) <= bound {
			return i
		}
		if p.leastOnOverload {
			break
		}
	}
	return p.overloaded(in, first, bound)
}

// overloaded is the choice where the walk found nobody.
func (p *chwbl) overloaded(in *input, first int, bound float64) int {
	if !p.leastOnOverload {
		return first
	}
	best := first
	for i := range in.signals {
		if n := in.signals[i].InFlight; float64(n) <= bound && n < in.signals[best].InFlight {
			best = i
		}
	}
	return best
}

// key is the hash of the prompt's leading blocks, 0 for a prompt under one.
func (p *chwbl) key(in *input) uint64 {
	if len(in.chain) == 0 {
		return 0
	}
	return in.chain[min(p.keyBlocks, len(in.chain))-1]
}

func (p *chwbl) index(in *input, name string) int {
	for i := range in.endpoints {
		if in.endpoints[i].Name == name {
			return i
		}
	}
	return 0
}

// build makes the ring, unless it is of the same endpoints.
func (p *chwbl) build(in *input) {
	same := len(p.names) == len(in.endpoints)
	for i := range in.endpoints {
		same = same && p.names[i] == in.endpoints[i].Name
	}
	if same {
		return
	}
	p.names, p.ring = nil, nil
	for i := range in.endpoints {
		name := in.endpoints[i].Name
		p.names = append(p.names, name)
		for r := range ringReplicas {
			p.ring = append(p.ring, ringPoint{keyHash(0, name, r), name})
		}
	}
	slices.SortFunc(p.ring, func(a, b ringPoint) int {
		switch {
		case a.hash < b.hash:
			return -1
		case a.hash > b.hash:
			return 1
		}
		return 0
	})
}
