package health

import (
	"slices"
	"time"

	"epp.internal/epp"
)

// The bands of the health that facts leave an endpoint: 1 is sound, 0.7 to 0.9
// has something to watch, 0.3 to 0.6 is degraded, under 0.3 is failing and gets
// no request, 0 has failed. Source of the bands: the article, section 7; which fact
// is in which is our own choice.
const (
	unproven = 0.7 // no probe has ended yet
	slow     = 0.9 // a probe took more than half of its deadline
	pressed  = 0.8 // little memory is left
	hot      = 0.6 // it slows itself down
	missed   = 0.6 // one probe has failed
	missed2  = 0.4 // two in a row have
	halting  = 0.5 // requests wait, and no token comes
	damaged  = 0.5 // memory errors, or a fault of the hardware that it survives
	breaking = 0.2 // memory errors that come now, or a halt without end
	failed   = 0.0
)

const (
	// probesToFail is how many probes in a row must fail, probesToReturn how many must
	// then end well.
	probesToFail   = 3
	probesToReturn = 2
	// maxTemperature is where a GPU is too hot, in °C; it stays so until it is
	// coolTemperature. Source: the article, section 7; the other is a guess.
	maxTemperature  = 83
	coolTemperature = 80
	// maxMemory is the part of a GPU's memory in use above which little is left:
	// engines take nine tenths by themselves.
	maxMemory = 0.98
	// errorsAreNew is how long memory errors count as coming now.
	errorsAreNew = time.Minute
	// gpuForgotten is the age at which a reading of the GPU says nothing more.
	gpuForgotten = time.Minute
	// A halt takes so many readings and so long, a halt without end endless. Guesses:
	// a prompt of a million tokens gives no token for some seconds.
	haltReadings = 10
	haltAfter    = 10 * time.Second
	endless      = 30 * time.Second

	// fall and rise are how fast the health moves, a second, where it does not have
	// to be out at once: facts that come and go leave it between.
	fall = 0.1
	rise = 0.02

	// What was left out comes back when nothing has left it out for firstHold, and for
	// twice as long each time that it goes again before it was sound, up to longestHold.
	// Guesses: readings come each second or two.
	firstHold   = 10 * time.Second
	longestHold = 2 * time.Minute

	// warmest bounds what a cold cache takes; under youngBlocks of the median no
	// endpoint is cold, and none is that holds a tenth of the median. Source: the
	// product's requirement S16.
	warmest     = 0.05
	youngBlocks = 1000
	coldShare   = 10
)

// A GPU's last error, by what it means for the engine. All other XIDs are those
// of a program: its end is seen by itself.
//
// Source: NVIDIA, "XID Errors", the catalogue's recovery actions.
var (
	fatalXIDs    = []int{79, 95, 119, 120, 140} // off the bus, uncontained ECC, GSP, unrecovered ECC
	hardwareXIDs = []int{48, 64, 74, 92, 94}    // double-bit ECC, row remap failure, NVLink, many ECC, contained ECC
)

// Facts are what is known of an endpoint besides how requests end: probes, its
// GPU, its progress, its sleep and how warm its cache is. The zero Facts are
// sound.
type Facts struct {
	// The health that the facts below leave moves towards its target; lost is
	// what it lacked of 1 at the time at, and reason why.
	lost   float64
	at     time.Time
	reason epp.HealthReason

	// outAt is when a fact last left the endpoint out, and hold how long after that it
	// stays out; 0 for one that was sound since.
	outAt time.Time
	hold  time.Duration

	awaited, probeSlow bool
	misses             int // probes that failed in a row
	wells              int // and that ended well, up to probesToReturn

	gpu       epp.GPU
	gpuUntil  time.Time // when the reading says nothing more; zero: there is none
	tooHot    bool
	errorsAt  time.Time // the last rise of double-bit errors
	errorsWas epp.Gauge

	halt     haltFacts
	mayLeave bool // a halt may take the endpoint out
	asleep   bool
	cold     float64 // what a cold cache takes, 0 to warmest
}

// haltFacts are readings in a row in which requests waited and no token came.
type haltFacts struct {
	tokens   float64
	since    time.Time
	last     time.Time
	readings int
}

// Await tells that probes are configured: until one ends the endpoint is unproven.
func (f *Facts) Await() { f.awaited, f.lost, f.reason = true, 1-unproven, epp.ProbePending }

// Probed tells that a probe ended at now: well, or slowly, or not at all.
func (f *Facts) Probed(now time.Time, ok, slowly bool) {
	f.Score(now)
	first := f.awaited
	f.awaited = false
	if !ok {
		f.misses, f.wells = min(f.misses+1, probesToFail), 0
		return
	}
	f.wells = min(f.wells+1, probesToReturn)
	if f.misses == probesToFail && f.wells < probesToReturn {
		return
	}
	f.misses, f.probeSlow = 0, slowly
	if first && 1-f.lost >= unproven {
		// Nothing but the wait was wrong: there is nothing to recover from. What other
		// facts take stays taken.
		target, reason := f.target(now)
		f.lost = 1 - max(target, 1-f.lost)
		f.reason = reason
	}
}

// Unprobed tells that nobody probes the endpoint any more: how the last probes
// ended says nothing from now on.
func (f *Facts) Unprobed(now time.Time) {
	f.Score(now)
	f.awaited, f.probeSlow, f.misses = false, false, 0
}

// GPU tells a reading of the endpoint's GPUs. It keeps g.
func (f *Facts) GPU(now time.Time, g epp.GPU) {
	f.Score(now)
	if t := g.Temperature; t.Known {
		f.tooHot = t.Value > maxTemperature || f.tooHot && t.Value > coolTemperature
	} else {
		f.tooHot = false
	}
	if e := g.DoubleBitErrors; e.Known {
		if f.errorsWas.Known && e.Value > f.errorsWas.Value {
			f.errorsAt = now
		}
		f.errorsWas = e
	}
	f.gpu, f.gpuUntil = g, now.Add(gpuForgotten)
}

// GPUUntil tells that nobody reads the endpoint's GPUs any more: what the last
// reading said is forgotten at that time, unless another comes before.
func (f *Facts) GPUUntil(now, until time.Time) {
	f.Score(now)
	if until.Before(f.gpuUntil) {
		f.gpuUntil = until
	}
}

// Read tells a reading of the engine's page. mayLeave says whether the endpoint
// may be left out for making no progress.
func (f *Facts) Read(now time.Time, l *epp.Load, mayLeave bool) {
	f.Score(now)
	f.asleep = l.Asleep
	h := &f.halt
	tokens := l.PromptTokens.Value + l.GeneratedTokens.Value
	waits := l.Waiting.Known && l.Waiting.Value > 0 && l.PromptTokens.Known && l.GeneratedTokens.Known
	if !waits || h.readings == 0 || tokens != h.tokens {
		*h = haltFacts{tokens: tokens, since: now}
	}
	if waits {
		h.readings++
	}
	h.last = now
	f.mayLeave = mayLeave
}

// Warm tells how many blocks the endpoint holds where the pool's median is
// median.
func (f *Facts) Warm(blocks, median int) {
	f.cold = 0
	if median >= youngBlocks && blocks*coldShare < median {
		f.cold = warmest * (1 - float64(blocks*coldShare)/float64(median))
	}
}

// Score is the health at now by these facts, and why it is not 1. An engine that
// sleeps has none, and has it back as soon as it is awake.
func (f *Facts) Score(now time.Time) (float64, epp.HealthReason) {
	level := f.settle(now)
	if f.asleep {
		return failed, epp.Asleep
	}
	if f.cold == 0 || level < Cutoff {
		return level, f.reason
	}
	reason := f.reason
	if reason == epp.HealthSound {
		reason = epp.CacheCold
	}
	return max(Cutoff, level-f.cold), reason
}

// Sound reports whether nothing is held against the endpoint, and nothing that is
// known changes that with time alone.
func (f *Facts) Sound(now time.Time) bool {
	target, _ := f.target(now)
	return f.settle(now) == 1 && target == 1 && !f.asleep
}

// settle moves the level to now and returns it. What leaves an endpoint out does
// so at once; it comes back at the middle, when nothing has left it out for a while.
func (f *Facts) settle(now time.Time) float64 {
	target, reason := f.target(now)
	level := 1 - f.lost
	seconds := max(0, now.Sub(f.at).Seconds())
	switch {
	case target < Cutoff:
		if level >= Cutoff {
			f.hold = min(max(firstHold, 2*f.hold), longestHold)
		}
		level = target
		if now.After(f.outAt) {
			f.outAt = now
		}
	case level < Cutoff && now.Sub(f.outAt) < f.hold:
	case level > target:
		level = max(target, level-fall*seconds)
	case level < target:
		if level < Cutoff {
			level, seconds = min(target, restored), 0
		}
		level = min(target, level+rise*seconds)
	}
	switch {
	case level == 1:
		f.reason, f.hold = epp.HealthSound, 0
	case target < 1:
		f.reason = reason
	}
	if now.After(f.at) {
		f.at = now
	}
	f.lost = 1 - level
	return level
}

// target is where the facts of now lead: the worst of them counts.
func (f *Facts) target(now time.Time) (float64, epp.HealthReason) {
	worst, why := 1.0, epp.HealthSound
	atMost := func(when bool, v float64, r epp.HealthReason) {
		if when && v < worst {
			worst, why = v, r
		}
	}
	atMost(f.misses >= probesToFail, failed, epp.ProbeFailed)
	atMost(f.misses == 2, missed2, epp.ProbeFailed)
	atMost(f.misses == 1, missed, epp.ProbeFailed)
	atMost(f.awaited, unproven, epp.ProbePending)
	atMost(f.probeSlow, slow, epp.ProbeSlow)

	halted := f.halt.last.Sub(f.halt.since)
	stuck := f.halt.readings >= haltReadings
	atMost(stuck && halted >= endless && f.mayLeave, breaking, epp.NoProgress)
	atMost(stuck && halted >= endless, Cutoff, epp.NoProgress)
	atMost(stuck && halted >= haltAfter, halting, epp.NoProgress)

	if now.After(f.gpuUntil) {
		return worst, why
	}
	for _, x := range f.gpu.XIDs {
		atMost(slices.Contains(fatalXIDs, x), failed, epp.GPUFault)
		atMost(slices.Contains(hardwareXIDs, x), damaged, epp.GPUFault)
	}
	errors := f.gpu.DoubleBitErrors
	atMost(!f.errorsAt.IsZero() && now.Sub(f.errorsAt) < errorsAreNew, breaking, epp.GPUMemoryErrors)
	atMost(errors.Known && errors.Value > 0, damaged, epp.GPUMemoryErrors)
	atMost(f.tooHot, hot, epp.GPUHot)
	atMost(f.gpu.Memory.Known && f.gpu.Memory.Value > maxMemory, pressed, epp.GPUMemoryFull)
	return worst, why
}
