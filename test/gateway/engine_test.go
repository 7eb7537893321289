//go:build gateway

package gateway

import (
	"context"
	"errors"
	"net"
	"strconv"
	"sync"
	"time"

	"epp.internal/epp/engine"
	"epp.internal/epp/epptest"
	"epp.internal/epp/epptest/demotok"
	"epp.internal/epp/tokenize"
)

// engineSet are the fake engines that run, by address.
type engineSet struct {
	mu   sync.Mutex // guards the following field
	byIP map[string]*epptest.Engine
}

// at returns the engine of an address.
func (s *engineSet) at(address string) *epptest.Engine {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.byIP[address]
}

// put notes an engine; nil forgets it.
func (s *engineSet) put(address string, e *epptest.Engine) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.byIP == nil {
		s.byIP = map[string]*epptest.Engine{}
	}
	if s.byIP[address] = e; e == nil {
		delete(s.byIP, address)
	}
}

// close ends what a cluster that did not start has left.
func (s *engineSet) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, e := range s.byIP {
		_ = e.Close()
	}
}

// enginePod is a pod with an engine at each of its ports: the ranks of one model,
// each with its own cache.
type enginePod struct {
	set       *engineSet
	name      string
	addresses []string
}

// maxTokens is the engines' context: room for a prompt of 3 MB.
const maxTokens = 1 << 20

// start is the image of an engine.
func (s *engineSet) start(p *pod, ip string) (running, error) {
	e := &enginePod{set: s, name: p.Metadata.Namespace + "/" + p.Metadata.Name}
	for _, port := range p.Spec.Containers[0].Ports {
		address := net.JoinHostPort(ip, strconv.Itoa(port.ContainerPort))
		if err := e.add(address, ip, address); err != nil {
			e.stop(0)
			return nil, err
		}
	}
	if len(e.addresses) == 0 {
		return nil, errors.New("an engine's container must name its ports")
	}
	return e, nil
}

// add starts an engine for an endpoint's address, which it has as its name and
// puts into each answer: at that address itself, or behind it. It is a thousand
// times faster than profile article-8b.
func (e *enginePod) add(address, ip, behind string) error {
	model, settings := demotok.Files()
	tok, err := tokenize.New(model, settings)
	if err != nil {
		return err
	}
	var answers []uint32
	for _, w := range demotok.Words() {
		answers = append(answers, tok.CompletionTokens(" "+w)...)
	}
	profile, _ := engine.ProfileNamed("article-8b")
	started, err := epptest.StartEngine(epptest.EngineConfig{
		Name: address, Address: behind, EventAddress: ip + ":0", ReplayAddress: ip + ":0",
		Engine: engine.Config{Profile: profile, Blocks: maxTokens/16 + 1024, BlockTokens: 16}, MaxModelTokens: maxTokens, TimeScale: 0.001,
		Tokenizer: tok, AnswerTokens: answers,
	})
	if err != nil {
		return err
	}
	e.set.put(address, started)
	e.addresses = append(e.addresses, address)
	return nil
}

func (e *enginePod) ready(context.Context) (bool, error) { return true, nil } // it listens since it was started

// notice is how long a pod that is deleted goes on, as one with a preStop hook
// does: so long may picker and gateway take to hear of it.
const notice = 5 * time.Second

func (e *enginePod) stop(grace time.Duration) {
	if grace > 0 {
		<-time.After(min(grace, notice))
	}
	for _, a := range e.addresses {
		_ = e.set.at(a).Close()
		e.set.put(a, nil)
	}
}

func (e *enginePod) log(int) string { return e.name + ": an engine, which keeps no log" }
