package openai

import (
	"strings"
	"testing"
)

// TestFindBehindFreeWay: of strings that begin alike the first was forgotten, and
// the others are still found.
func TestFindBehindFreeWay(t *testing.T) {
	r := NewReader(1 << 20)
	text := strings.Repeat("a", minLongBytes)
	rest := []byte(text + `"`)
	found, hash := r.find(rest)
	if found != nil {
		t.Fatal("an empty reader finds something")
	}
	r.long.Put(hash+ways-1, longString{raw: text, text: text}, len(text))
	if found, _ = r.find(rest); found == nil || found.text != text {
		t.Errorf("found %v", found)
	}
}
