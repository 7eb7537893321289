package picker

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"epp.internal/epp"
	"epp.internal/epp/audit"
	"epp.internal/epp/decision"
	"epp.internal/epp/kvindex"
)

// verify tells fleet how the endpoint's own count of cached tokens compares with
// what was expected, where the answer has it and our tokens are the whole prompt
// exactly, and logs where an alarm begins or ends.
func (p *Pick) verify() {
	if p.answer == nil || p.byBytes || p.partial || len(p.Request.Tokens) == 0 || p.status >= 300 {
		return
	}
	u, ok := p.answer.Usage()
	if !ok || u.CachedTokens < 0 || u.PromptTokens <= 0 {
		return
	}
	v, ok := p.booking.Verify(p.owner.opt.Now(), p.Endpoint, audit.Outcome{
		Predicted: p.predicted, Reported: u.CachedTokens, OurTokens: len(p.Request.Tokens), EngineTokens: u.PromptTokens,
		Gone: p.counted != nil && p.counted.Load(),
	})
	if !ok || !v.Changed {
		return
	}
	log := p.owner.opt.Log
	if v.Alarm == audit.Agrees {
		log.LogAttrs(context.Background(), slog.LevelInfo, "cache claims come true again",
			slog.String("pod", p.Endpoint.Name), slog.String("address", p.Endpoint.Address))
		return
	}
	log.LogAttrs(context.Background(), slog.LevelWarn, "cache claims do not come true",
		slog.String("pod", p.Endpoint.Name), slog.String("address", p.Endpoint.Address), slog.String("cause", v.Alarm.String()),
		slog.Float64("share", v.Share), slog.Float64("doubt", float64(v.Doubt)/100), slog.String("requestID", p.Request.ID),
		slog.Int("promptTokens", len(p.Request.Tokens)), slog.Int("enginePromptTokens", u.PromptTokens),
		slog.Int("predictedTokens", p.predicted), slog.Int("cachedTokens", u.CachedTokens))
}

// Bounds of what is remembered to find decisions on blocks that were gone.
const (
	maxRecentPicks  = 4096
	maxRecentHashes = 1 << 18 // 2 MiB: a thousand matches of 256 blocks
	// recentFor is how late news of a removal may come and still be held against a
	// decision. A guess: events that come later are a fault of their own.
	recentFor = 10 * time.Second
)

// recent are the latest picks with what they counted on, so that news of a
// removal that is older than a pick finds it. It is bounded; under more picks it
// reaches less far back.
type recent struct {
	mu     sync.Mutex // guards the following fields
	picks  []counted  // a ring from first on
	first  int
	hashes []uint64 // a ring too: each pick's chain is one run of it
	next   int      // place in hashes for the next chain
}

// counted is a pick and the chain of blocks that it counted on.
type counted struct {
	at         time.Time
	slot       epp.Slot
	generation uint32
	from, n    int // of hashes
	gone       *atomic.Bool
}

// add remembers a pick that counted on the chain at an endpoint. It returns what
// becomes true when blocks of it turn out to have been gone.
func (r *recent) add(at time.Time, e epp.Endpoint, chain []uint64) *atomic.Bool {
	gone := new(atomic.Bool)
	if len(chain) == 0 || len(chain) > maxRecentHashes {
		return gone
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	from := r.next
	if from+len(chain) > maxRecentHashes {
		from = 0
	}
	for r.first < len(r.picks) { // those whose place is taken
		p := &r.picks[r.first]
		if len(r.picks)-r.first < maxRecentPicks && (p.from+p.n <= from || p.from >= from+len(chain)) && at.Sub(p.at) <= recentFor {
			break
		}
		r.first++
	}
	if r.first == len(r.picks) || r.first >= maxRecentPicks {
		r.picks = append(r.picks[:0], r.picks[r.first:]...)
		r.first = 0
	}
	if from+len(chain) > len(r.hashes) {
		r.hashes = append(r.hashes, make([]uint64, from+len(chain)-len(r.hashes))...)
	}
	copy(r.hashes[from:], chain)
	r.next = from + len(chain)
	r.picks = append(r.picks, counted{at, e.Slot, e.Generation, from, len(chain), gone})
	return gone
}

// removed is told that blocks of an endpoint were removed at a time, after the
// index has forgotten them. It returns how many picks since then had counted on
// some of them: each is counted once.
func (r *recent) removed(e epp.Endpoint, at time.Time, index *kvindex.Index) (stale int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	var out []uint32
	for i := len(r.picks) - 1; i >= r.first && r.picks[i].at.After(at); i-- {
		p := &r.picks[i]
		if p.slot != e.Slot || p.generation != e.Generation || p.gone.Load() {
			continue
		}
		if out == nil {
			out = make([]uint32, e.Slot+1)
		}
		clear(out)
		index.Match(r.hashes[p.from:p.from+p.n], out)
		if int(out[e.Slot]) < p.n {
			p.gone.Store(true)
			stale++
		}
	}
	return stale
}

// remember keeps what the decision counted on at the endpoint. The match of a
// request with several prompts does not say which blocks these are.
func (p *Pick) remember(now time.Time, c *decision.Candidate) {
	p.counted = nil
	s := p.s
	if c.Match.Blocks == 0 || !c.Signals.Heard || len(s.prompts) != 1 || p.ownAlone() {
		return
	}
	if i := slices.Index(s.sizes, int(c.Match.BlockTokens)); i >= 0 {
		p.counted = p.owner.recent.add(now, p.Endpoint, s.chains[i][:c.Match.Blocks])
	}
}

// Removed tells that an endpoint's engine removed blocks at a time, on our clock,
// and that the index has forgotten them. It returns how many decisions since then
// had counted on some of them: they were made on a cache that was gone.
func (p *Picker) Removed(e epp.Endpoint, at time.Time) (stale int) {
	return p.recent.removed(e, at, p.opt.Index)
}
