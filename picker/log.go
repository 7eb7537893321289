package picker

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"

	"epp.internal/epp/decision"
)

// LevelTrace is below debug: the walk block by block, status reports, the
// weights' intermediates.
const LevelTrace = slog.LevelDebug - 4

// logReceived is the first log point: what the request asks. No prompt text, at
// any level.
func (pk *Pick) logReceived(log *slog.Logger) {
	r := &pk.Request
	log.LogAttrs(context.Background(), slog.LevelDebug, "received",
		slog.String("requestID", r.ID), slog.String("clientRequestID", r.ClientID), slog.String("path", r.Path),
		slog.String("model", r.Model), slog.String("target", r.Target), slog.String("adapter", r.Adapter),
		slog.Int("inputTokens", len(r.Tokens)), slog.String("tokenSource", r.TokenSource.String()), slog.String("tokenNote", pk.tokenNote),
		slog.Duration("read", pk.timings.Read), slog.Duration("tokenize", pk.timings.Tokenize), slog.Duration("hash", pk.timings.Match))
}

// logDecision is the second and third log point: scored (DEBUG) and selected
// (INFO); or refused (INFO), with the reason.
func logDecision(ctx context.Context, log *slog.Logger, rec *decision.Record) {
	if log.Enabled(ctx, slog.LevelDebug) && rec.Refused == "" {
		logScored(ctx, log, rec)
	}
	if rec.Chosen < 0 {
		log.LogAttrs(ctx, slog.LevelInfo, "refused",
			slog.String("requestID", rec.RequestID), slog.String("clientRequestID", rec.ClientID), slog.String("path", rec.Path),
			slog.String("model", rec.Model), slog.String("reason", rec.Refused), slog.Int("candidates", rec.Admitted))
		return
	}
	if rec.Degraded {
		log.LogAttrs(ctx, slog.LevelWarn, "saturated",
			slog.String("requestID", rec.RequestID), slog.Int("maxQueue", rec.Settings.MaxQueue),
			slog.String("detail", "every healthy endpoint's queue is full; decided without the cutoff"))
	}
	c := &rec.Candidates[rec.Chosen]
	attrs := []slog.Attr{
		slog.String("requestID", rec.RequestID), slog.String("clientRequestID", rec.ClientID), slog.Int("attempt", rec.Attempt),
		slog.String("model", rec.Model), slog.String("pod", c.Name), slog.String("address", c.Address),
		slog.String("reason", rec.Why()), slog.Float64("composite", c.Composite()),
		slog.Float64("matchRatio", rec.MatchRatio(rec.Chosen)),
		slog.Int("matchedBlocks", int(c.Match.Blocks)), slog.Int("promptTokens", rec.PromptTokens),
	}
	if rec.Target != rec.Model {
		attrs = append(attrs, slog.String("target", rec.Target))
	}
	if rec.TokenNote != "" {
		attrs = append(attrs, slog.String("tokenNote", rec.TokenNote))
	}
	if missing := noData(rec, rec.Chosen); missing != "" {
		attrs = append(attrs, slog.String("noData", missing))
	}
	log.LogAttrs(ctx, slog.LevelInfo, "selected", append(attrs, factors(rec, rec.Chosen)...)...)
}

// factors are a candidate's ratings, one attribute for each scorer.
func factors(rec *decision.Record, i int) []slog.Attr {
	attrs := make([]slog.Attr, 0, len(rec.Settings.Weights))
	for j, w := range rec.Settings.Weights {
		attrs = append(attrs, slog.Float64(w.Name, rec.Score(i, j).Value))
	}
	return attrs
}

// noData names the scorers that had a guess in place of a signal.
func noData(rec *decision.Record, i int) string {
	var missing []string
	for j, w := range rec.Settings.Weights {
		if rec.Score(i, j).Unknown {
			missing = append(missing, w.Name)
		}
	}
	return strings.Join(missing, ",")
}

// logScored shows the top three and the chosen one with all factors, and every
// other candidate after them.
func logScored(ctx context.Context, log *slog.Logger, rec *decision.Record) {
	order := make([]int, len(rec.Candidates))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int {
		switch x, y := rec.Candidates[a].Composite(), rec.Candidates[b].Composite(); {
		case a == rec.Chosen || x > y && b != rec.Chosen:
			return -1
		case b == rec.Chosen || x < y:
			return 1
		}
		return 0
	})
	list := make([]slog.Attr, 0, len(order))
	for place, i := range order {
		list = append(list, candidateAttr(rec, i, place+1))
	}
	top := list[:min(3, len(list))]
	log.LogAttrs(ctx, slog.LevelDebug, "scored",
		slog.String("requestID", rec.RequestID), slog.Uint64("seed", rec.Seed), slog.Uint64("settings", rec.Settings.Version),
		slog.Int("candidates", rec.Admitted), slog.Int("blockedTokens", rec.BlockedTokens), slog.Int("blockTokens", rec.BlockTokens),
		slog.Duration("match", rec.Timings.Match), slog.Duration("score", rec.Timings.Score),
		slog.Attr{Key: "top", Value: slog.GroupValue(top...)},
		slog.Attr{Key: "others", Value: slog.GroupValue(list[len(top):]...)})
}

func candidateAttr(rec *decision.Record, i, place int) slog.Attr {
	c := &rec.Candidates[i]
	attrs := []slog.Attr{
		slog.Int("place", place), slog.Bool("chosen", i == rec.Chosen), slog.String("address", c.Address),
		slog.Float64("composite", c.Composite()), slog.String("excluded", c.Excluded.String()),
		slog.Float64("queueDepth", c.Queue), slog.Float64("loadRatio", c.Load), slog.Int("matchedBlocks", int(c.Match.Blocks)),
		slog.Int("inFlight", c.Signals.InFlight), slog.Bool("agent", c.Signals.Agent),
	}
	if r := c.Signals.HealthReason.String(); r != "" {
		attrs = append(attrs, slog.String("healthReason", r))
	}
	return slog.Attr{Key: c.Name, Value: slog.GroupValue(append(attrs, factors(rec, i)...)...)}
}

// maxWalk bounds the blocks of a walk that are shown, one line each.
const maxWalk = 1024

// logTrace shows the walk through the index block by block, as far as anybody
// holds the prompt, and what each factor adds to each sum.
func (pk *Pick) logTrace(ctx context.Context, log *slog.Logger, rec *decision.Record) {
	if !log.Enabled(ctx, LevelTrace) {
		return
	}
	for i, size := range pk.s.sizes {
		if len(pk.s.prompts) != 1 {
			break // the match counts all prompts together
		}
		for k, hash := range pk.s.chains[i] {
			var holders []string
			for c := range rec.Candidates {
				if m := rec.Candidates[c].Match; int(m.BlockTokens) == size && int(m.Blocks) > k {
					holders = append(holders, rec.Candidates[c].Name)
				}
			}
			log.LogAttrs(ctx, LevelTrace, "walk", slog.String("requestID", rec.RequestID), slog.Int("block", k),
				slog.Int("blockTokens", size), slog.String("hash", fmt.Sprintf("%016x", hash)), slog.Any("endpoints", holders))
			if len(holders) == 0 || k == maxWalk {
				break
			}
		}
	}
	for i := range rec.Candidates {
		terms := make([]slog.Attr, 0, len(rec.Settings.Weights))
		for j, w := range rec.Settings.Weights {
			terms = append(terms, slog.Float64(w.Name, w.Value*rec.Score(i, j).Value))
		}
		log.LogAttrs(ctx, LevelTrace, "weighed", slog.String("requestID", rec.RequestID), slog.String("pod", rec.Candidates[i].Name),
			slog.Float64("sum", rec.Candidates[i].Sum), slog.Attr{Key: "terms", Value: slog.GroupValue(terms...)})
	}
}

// logEnd says how a request ended: at DEBUG, since the edge's own log has the
// failures.
func logEnd(log *slog.Logger, p *Pick, end *decision.End) {
	log.LogAttrs(context.Background(), slog.LevelDebug, "ended",
		slog.String("requestID", p.Request.ID), slog.String("pod", p.Endpoint.Name), slog.String("address", p.Endpoint.Address), slog.String("servedBy", p.servedBy), slog.String("outcome", end.Outcome),
		slog.Int("status", end.Status), slog.Duration("ttft", end.TTFT),
		slog.Int("promptTokens", end.PromptTokens), slog.Int("predictedTokens", p.predicted), slog.Int("cachedTokens", end.CachedTokens))
}
