// Package rig is what the load clients share: conversations of real text, and the
// processes that are measured.
//
//	text, err := rig.ReadCorpus(dir)
//	bodies, err := rig.Conversations(text, 1, 96, 16_000) // of each, each turn
//	s, err := rig.Start(log, address, "bin/epp", "serve", "--config", file)
//	defer s.Stop()
package rig

import (
	"encoding/json"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
)

// Turns of each conversation. A turn carries all that was said before, so its
// body grows from three quarters of the wanted size to five quarters; half of
// the first turn is a system text that a pool of conversations shares.
const (
	Turns   = 9
	systems = 8
)

// Corpus is real text, prose and code, in the order of its files.
type Corpus string

// Model is the name that engines serve under.
const Model = "bench"

// maxCorpusBytes bounds what is read.
const maxCorpusBytes = 8 << 20

// ReadCorpus reads the Go files of a folder, without those below it.
func ReadCorpus(dir string) (Corpus, error) {
	var b strings.Builder
	names, err := fs.Glob(os.DirFS(dir), "*.go")
	if err != nil {
		return "", err
	}
	for _, name := range names {
		data, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			return "", err
		}
		b.WriteString(strings.ToValidUTF8(string(data), ""))
		if b.Len() > maxCorpusBytes {
			break
		}
	}
	if b.Len() < 1<<20 {
		return "", fmt.Errorf("corpus %q: %d bytes of Go files, want 1 MiB at least", dir, b.Len())
	}
	return Corpus(b.String()), nil
}

// piece is a text of n bytes from a random place.
func (c Corpus) piece(rng *rand.Rand, n int) string {
	at := rng.IntN(len(c) - n)
	return strings.ToValidUTF8(string(c[at:at+n]), "")
}

type message struct {
	Role    string `json:"role"`
	Content string `json:"content"`
}

// Conversations are the bodies of n conversations, turns of each, for a mean
// body of size bytes. The same seed gives the same bodies.
func Conversations(c Corpus, seed uint64, n, size int) ([][][]byte, error) {
	rng := rand.New(rand.NewPCG(seed, 1))
	shared := make([]string, systems)
	for i := range shared {
		shared[i] = c.piece(rng, size*3/8)
	}
	all := make([][][]byte, n)
	for i := range all {
		said := []message{{"system", shared[i%systems]}, {"user", c.piece(rng, size*3/8)}}
		for turn := range Turns {
			if turn > 0 { // an answer and a question
				said = append(said, message{"assistant", c.piece(rng, size/32)}, message{"user", c.piece(rng, size/32)})
			}
			body, err := json.Marshal(map[string]any{"model": Model, "stream": true, "max_tokens": 1, "messages": said})
			if err != nil {
				return nil, err
			}
			all[i] = append(all[i], body)
		}
	}
	return all, nil
}
