package main

import (
	"bytes"
	"encoding/json"
	"io"
	"strings"
	"testing"
)

const good = `{"requests": 60, "failed": 0, "cachedTokenShare": 0.6, "randomCachedTokenShare": 0.3,
	"leastConnCachedTokenShare": 0.4, "sameEndpointShare": 0.9, "minEndpointShare": 0.2, "maxEndpointShare": 0.3,
	"meanTTFTMillis": {"epp": 80, "random": 120, "leastConn": 110}}`

func TestGoodDemo(t *testing.T) {
	var out bytes.Buffer
	if broken, err := check(strings.NewReader(good), &out); broken != 0 || err != nil {
		t.Errorf("%d broken, %v:\n%s", broken, err, &out)
	}
}

// Each figure breaks its promise when it is worse, and when it is missing.
func TestEachFigureCounts(t *testing.T) {
	for key, bad := range map[string]any{
		"requests":                  49,
		"failed":                    1,
		"cachedTokenShare":          0.44,
		"randomCachedTokenShare":    0.41,
		"leastConnCachedTokenShare": 0.6,
		"sameEndpointShare":         0.84,
		"minEndpointShare":          0.09,
		"maxEndpointShare":          0.41,
		"meanTTFTMillis":            map[string]any{"epp": 115, "random": 120, "leastConn": 110},
	} {
		var figures map[string]any
		if err := json.Unmarshal([]byte(good), &figures); err != nil {
			t.Fatal(err)
		}
		figures[key] = bad
		worse, _ := json.Marshal(figures)
		delete(figures, key)
		missing, _ := json.Marshal(figures)
		for _, text := range [][]byte{worse, missing} {
			if broken, err := check(bytes.NewReader(text), io.Discard); broken == 0 || err != nil {
				t.Errorf("%s: %d broken, %v: %s", key, broken, err, text)
			}
		}
	}
}

// A demo that printed nothing, or something else beside the object, is no demo.
func TestOtherOutput(t *testing.T) {
	for _, text := range []string{"", "panic: x", good + good, "[1]"} {
		if _, err := check(strings.NewReader(text), io.Discard); err == nil {
			t.Errorf("%q: no error", text)
		}
	}
}
