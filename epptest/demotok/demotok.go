// Package demotok is a small tokenizer of our own, embedded, for the demo, the
// fake engine and tests: byte-level BPE with 4,096 tokens and three ChatML
// tokens (<|endoftext|>, <|im_start|>, <|im_end|>), Qwen's pre-tokenizer, and a
// plain ChatML chat template. It has the two files that a model ships, so that
// all that reads a real tokenizer reads this one.
//
// train.py makes tokenizer.json from words.txt and corpus.txt; it needs Python's
// standard library alone. tokenizer_config.json is written by hand.
//
// Invariant: each of [Words] with a space before it is one token, so a text of n
// such words is n tokens, and any sequence of them tokenizes back to itself:
//
//	prompt := strings.Repeat(" "+demotok.Words()[0], 200) // 200 tokens
package demotok

import (
	_ "embed"
	"strings"
)

//go:embed tokenizer.json
var tokenizerJSON []byte

//go:embed tokenizer_config.json
var tokenizerConfigJSON []byte

//go:embed words.txt
var wordList string

// Files returns the tokenizer in the two files' forms. The caller must not
// change them.
func Files() (tokenizer, config []byte) { return tokenizerJSON, tokenizerConfigJSON }

// Words returns 1,021 distinct English words in lower case, commonest first;
// " "+word is one token for each. The slice is the caller's.
func Words() []string { return strings.Fields(wordList) }
