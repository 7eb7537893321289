package sim

import (
	"context"
	"strconv"
	"time"

	"epp.internal/epp/decision"
	"epp.internal/epp/picker"
	"epp.internal/epp/route"
)

// product is our own picker in the router's place.
type product struct {
	w      *world
	picker *picker.Picker
}

// ringBytes bounds the records that a run keeps.
const ringBytes = 1 << 20

func newProduct(w *world, settings *decision.Settings) (*product, error) {
	settings.StaleAfter = max(2*time.Second, 3*w.cfg.ReportEvery)
	policy, err := route.New(settings)
	if err != nil {
		return nil, err
	}
	return &product{w, picker.New(picker.Options{
		Fleet: w.fleet, Index: w.index, Policy: policy, Key: w.key,
		Names: picker.Names{Default: baseModel}, Ring: decision.NewRing(ringBytes),
		Predict: w.cfg.Decided != nil, Hooks: picker.Hooks{Decided: w.cfg.Decided, Ended: w.cfg.Ended},
		Now: w.now, Seed: w.rand.Uint64,
	})}, nil
}

func (p *product) pick(f *flight) (uint32, bool) {
	pk, err := p.picker.PickTokenized(context.Background(), picker.Tokenized{
		ID: strconv.Itoa(f.number), Model: f.req.Adapter, Tokens: f.tokens,
	})
	if err != nil {
		return 0, false
	}
	f.pick = pk
	return pk.Endpoint.Generation, true
}

func (p *product) again(f *flight, o picker.Outcome) (uint32, bool) {
	if !f.pick.Next(o) {
		f.pick.End(picker.Undelivered)
		return 0, false
	}
	return f.pick.Endpoint.Generation, true
}

// firstChunk is the answer's first bytes as they pass.
var firstChunk = []byte("data: {\"choices\":[{\"index\":0,\"text\":\"a\"}]}\n\n")

func (p *product) answered(f *flight, status int) {
	f.pick.ResponseHeader(status, "text/event-stream", "")
	if status == 200 {
		f.pick.ResponseBody(firstChunk)
	}
}

func (p *product) end(f *flight, o picker.Outcome) { f.pick.End(o) }
