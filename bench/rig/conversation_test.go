package rig

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
)

// TestConversationsGrow: each turn holds what was said before, bodies grow around
// the size that was asked for, and the same seed gives the same bytes.
func TestConversationsGrow(t *testing.T) {
	text := Corpus(strings.Repeat("func (s *Server) Serve(l net.Listener) error {\n\treturn nil\n}\n", 20_000))
	all, err := Conversations(text, 1, 3, 16_000)
	if err != nil {
		t.Fatal(err)
	}
	again, err := Conversations(text, 1, 3, 16_000)
	if err != nil {
		t.Fatal(err)
	}
	for i, c := range all {
		if len(c) != Turns {
			t.Fatalf("%d Turns, want %d", len(c), Turns)
		}
		total := 0
		for turn, body := range c {
			total += len(body)
			if !bytes.Equal(body, again[i][turn]) {
				t.Errorf("conversation %d, turn %d: two bodies of one seed", i, turn)
			}
			if turn > 0 && !bytes.HasPrefix(messages(t, body), bytes.TrimSuffix(messages(t, c[turn-1]), []byte("]"))) {
				t.Errorf("conversation %d, turn %d does not go on from the one before", i, turn)
			}
		}
		if mean := total / Turns; mean < 15_000 || mean > 19_000 {
			t.Errorf("conversation %d: mean body %d bytes", i, mean)
		}
	}
}

func messages(t *testing.T, body []byte) []byte {
	var b struct{ Messages json.RawMessage }
	if err := json.Unmarshal(body, &b); err != nil {
		t.Fatal(err)
	}
	return b.Messages
}
