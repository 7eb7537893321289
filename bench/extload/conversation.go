package main

import (
	"encoding/json"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
)

// turns of each conversation. A turn carries all that was said before, so its
// body grows from three quarters of the wanted size to five quarters; half of
// the first turn is a system text that a pool of conversations shares.
const (
	turns   = 9
	systems = 8
)

// corpus is real text, prose and code, in the order of its files.
type corpus string

// maxCorpusBytes bounds what is read.
const maxCorpusBytes = 8 << 20

// readCorpus reads the Go files of a folder, without those below it.
func readCorpus(dir string) (corpus, error) {
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
	return corpus(b.String()), nil
}

// piece is a text of n bytes from a random place.
func (c corpus) piece(rng *rand.Rand, n int) string {
	at := rng.IntN(len(c) - n)
	return strings.ToValidUTF8(string(c[at:at+n]), "")
}

type message struct {
	Role    string `json:"role"`
	Content string `json:"content"`
}

// conversations are the bodies of n conversations, turns of each, for a mean
// body of size bytes. The same seed gives the same bodies.
func conversations(c corpus, seed uint64, n, size int) ([][][]byte, error) {
	rng := rand.New(rand.NewPCG(seed, 1))
	shared := make([]string, systems)
	for i := range shared {
		shared[i] = c.piece(rng, size*3/8)
	}
	all := make([][][]byte, n)
	for i := range all {
		said := []message{{"system", shared[i%systems]}, {"user", c.piece(rng, size*3/8)}}
		for turn := range turns {
			if turn > 0 { // an answer and a question
				said = append(said, message{"assistant", c.piece(rng, size/32)}, message{"user", c.piece(rng, size/32)})
			}
			body, err := json.Marshal(map[string]any{"model": model, "stream": true, "max_tokens": 1, "messages": said})
			if err != nil {
				return nil, err
			}
			all[i] = append(all[i], body)
		}
	}
	return all, nil
}
