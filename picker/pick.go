package picker

import (
	"context"
	"sync/atomic"
	"time"

	"epp.internal/epp"
	"epp.internal/epp/decision"
	"epp.internal/epp/fleet"
	"epp.internal/epp/openai"
)

// Incoming is what an edge knows of a request before anything of it was read.
type Incoming struct {
	// ID is the requestID, from NewID; ClientID is the x-request-id header as it came.
	ID, ClientID string
	Method       string
	// Path is the URL's path without the query.
	Path string
	// ContentEncoding is the header's value; empty or "identity" is a plain
	// body, "gzip" and "zstd" are decoded.
	ContentEncoding string
	// Body is the whole body. The Pick keeps it until End.
	Body []byte
	// Objective is the header ObjectiveHeader as it came.
	Objective string
	// Subset, if not nil, names the only addresses the request may go to.
	Subset []string
	// Sight is what the edge will see of the answer.
	Sight Sight
}

// Sight says what of an answer passes its edge, and so how a booking is released.
type Sight uint8

// The sights. What is not seen is replaced: the first token by the time that the
// endpoint takes for the uncached tokens at the rate it has shown, the end by
// the endpoint's next reading, which counts the request itself.
const (
	SeesAll     Sight = iota // headers, every byte, the end
	SeesEnd                  // headers and the end
	SeesHeaders              // headers alone
)

// String returns the sight's name as records and logs show it.
func (s Sight) String() string {
	return [...]string{"all", "end", "headers", "sight(3)"}[s&3]
}

// Outcome says how a request ended, as its edge saw it.
type Outcome uint8

// The ways a request ends.
const (
	Served      Outcome = iota // the endpoint's whole answer was passed on, whatever its status
	ClientGone                 // the client went away first
	Refused                    // the endpoint took no connection
	Reset                      // the endpoint broke the exchange
	TimedOut                   // the endpoint did not answer in time
	Undelivered                // we ended it ourselves: shutdown, or an error of ours
)

// String returns the outcome's name as logs and metrics show it.
func (o Outcome) String() string {
	return [...]string{"served", "client_gone", "refused", "reset", "timed_out", "undelivered", "outcome(6)", "outcome(7)"}[o&7]
}

// Pick is a decision that was made and booked, and is now being carried out.
// Its methods are called by one goroutine at a time.
type Pick struct {
	// Endpoint is where the request goes.
	Endpoint epp.Endpoint
	// Fallbacks are the next best endpoints, best first, as many as
	// Options.Fallbacks asks for and the pool has: for a gateway that walks a list.
	Fallbacks []epp.Endpoint
	// Body is what to send: Incoming.Body, decoded if it came compressed (see
	// Options.ForwardEncoded), with only the model's name replaced where a rule
	// says so. BodyEncoding is the Content-Encoding to send with it, empty for
	// none: the client's own header goes.
	Body         []byte
	BodyEncoding string
	// Request is what routing read of it. Its tokens are valid until End.
	Request epp.Request

	owner     *Picker
	s         *scratch
	sight     Sight
	timings   decision.Timings
	tokenNote string
	// promptTokens are what is matched: Request.Tokens, or what stands for them
	// where byBytes is true.
	promptTokens []uint32
	byBytes      bool
	partial      bool   // Request.Tokens are not the engine's whole prompt, token for token
	guessed      bool   // what our own picks have taught is in the match
	unheard      bool   // the endpoint does not tell that it has the prompt
	learnt       bool   // this prompt, by its endpoint
	servedBy     string // the address that has served, where the edge was told of it
	decoded      int    // bytes to give back

	booking   fleet.Booking
	seq       uint64 // of the record
	seed      uint64 // of this attempt's decision; the first one's chose the target too
	attempt   int
	tried     epp.Slots
	predicted int // tokens of the prompt that the endpoint is taken to have cached
	// counted becomes true when blocks that the decision counted on turn out to
	// have been gone; nil: it counted on none.
	counted *atomic.Bool

	answer     *openai.Answer // nil where the answer cannot be read
	status     int
	firstToken time.Time
	ended      bool
}

// Target is where the request goes, and what to send there.
func (p *Pick) Target() (epp.Endpoint, []byte) { return p.Endpoint, p.Body }

// Alternatives are Fallbacks.
func (p *Pick) Alternatives() []epp.Endpoint { return p.Fallbacks }

// Encoding is the Content-Encoding to send with the body, empty for none.
func (p *Pick) Encoding() string { return p.BodyEncoding }

// Next gives up the endpoint, for the reason failed says, and returns true with
// Endpoint set to the next best one that was not tried, the booking moved to
// it; or false where there is none, and nothing is booked any longer. The next
// best is decided anew, on the state of now, and has a record of its own.
func (p *Pick) Next(failed Outcome) bool {
	if p.ended {
		return false
	}
	p.booking.Judge(p.owner.opt.Now(), fleet.Bad)
	p.booking.End()
	p.finish(failed)
	p.tried = p.tried.Add(p.Endpoint.Slot)
	p.attempt++
	p.seed = p.owner.opt.Seed()
	return p.decide(context.Background()) == nil
}

// Served tells which address has served the request, where that may be another
// than was picked: the booking moves there. An address outside of the pool (a
// gateway whose route has two pools may take the other) ends it: what the answer
// says is of no endpoint of ours. In neither case has the picked endpoint computed
// the prompt.
func (p *Pick) Served(address string) {
	p.servedBy = address
	if now := p.owner.opt.Now(); !p.booking.Served(now, address) {
		p.booking.Judge(now, fleet.Undecided)
		p.booking.End()
	}
	p.owner.opt.Ring.Served(p.seq, address)
}

// ResponseHeader tells the status and headers of the endpoint's answer.
func (p *Pick) ResponseHeader(status int, contentType, contentEncoding string) {
	p.status = status
	p.booking.Answered()
	p.booking.Judge(p.owner.opt.Now(), verdict(status))
	if p.sight == SeesAll && (contentEncoding == "" || contentEncoding == "identity") {
		p.answer = openai.NewAnswer(contentType)
	}
}

// verdict is what an answer's status says of the endpoint: a 4xx is the request's
// own fault.
func verdict(status int) fleet.Verdict {
	switch {
	case status >= 500:
		return fleet.Bad
	case status >= 400:
		return fleet.Undecided
	}
	return fleet.Good
}

// ResponseBody shows the next bytes of the answer, cut anywhere, as they pass.
// It keeps nothing of chunk. From them come the first token's time and the usage.
func (p *Pick) ResponseBody(chunk []byte) {
	if p.answer == nil || p.ended {
		return
	}
	p.answer.Feed(chunk)
	p.sawToken()
}

// sawToken releases the booking's tokens with the answer's first token.
func (p *Pick) sawToken() {
	if p.firstToken.IsZero() && p.answer.FirstToken() {
		p.firstToken = p.owner.opt.Now()
		p.booking.FirstToken(p.firstToken)
		p.learn(p.Endpoint)
	}
}

// End releases what the booking still holds. The first call counts, later ones
// do nothing.
func (p *Pick) End(o Outcome) {
	if p.ended {
		return
	}
	p.ended = true
	switch o {
	case Refused, Reset, TimedOut:
		p.booking.Judge(p.owner.opt.Now(), fleet.Bad)
	case ClientGone, Undelivered:
		p.booking.Judge(p.owner.opt.Now(), fleet.Undecided)
	case Served: // judged by its status
	}
	if o == Served {
		if p.answer != nil {
			p.answer.End()
			p.verify()
		}
		if verdict(p.status) == fleet.Good {
			p.booking.Complete(p.owner.opt.Now())
		}
	}
	if p.sight == SeesHeaders && o == Served {
		p.booking.HandOver(p.owner.opt.Now())
	} else {
		p.booking.End()
	}
	if o == Served && p.sight != SeesHeaders {
		p.learn(p.Endpoint) // where its first token was not to be seen
	}
	p.finish(o)
	p.free()
}

// finish writes what became of this attempt into its record.
func (p *Pick) finish(o Outcome) {
	end := decision.End{
		At: p.owner.opt.Now(), Outcome: o.String(), Status: p.status,
		PromptTokens: -1, CompletionTokens: -1, CachedTokens: -1,
	}
	if !p.firstToken.IsZero() {
		end.TTFT = p.firstToken.Sub(p.Request.Received)
	}
	if p.answer != nil {
		if u, ok := p.answer.Usage(); ok {
			end.PromptTokens, end.CompletionTokens, end.CachedTokens = u.PromptTokens, u.CompletionTokens, u.CachedTokens
		}
	}
	p.owner.opt.Ring.Finish(p.seq, end)
	logEnd(p.owner.opt.Log, p, &end)
	if f := p.owner.opt.Hooks.Ended; f != nil {
		f(&Ending{
			RequestID: p.Request.ID, Attempt: p.attempt + 1,
			Model: p.Request.Target, Endpoint: p.Endpoint, PredictedTokens: p.predicted, End: end,
		})
	}
}

// elsewhere is true where another address has served than was picked.
func (p *Pick) elsewhere() bool { return p.servedBy != "" && p.servedBy != p.Endpoint.Address }

// free gives the scratch memory back.
func (p *Pick) free() {
	if p.s != nil {
		p.Request.Tokens, p.promptTokens = nil, nil
		p.owner.decoder.release(p.decoded)
		p.owner.scratch.Put(p.s)
		p.s = nil
	}
}
