package rig

import (
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// What is put is what is read, sorted; the nil Figures keeps nothing.
func TestFigures(t *testing.T) {
	path := filepath.Join(t.TempDir(), "figures")
	f, err := CreateFigures(path)
	if err != nil {
		t.Fatal(err)
	}
	f.Put("8a", "epp", 2349, 2410, 2288)
	f.Put("8a", "sglang-router", 2278)
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	none, err := CreateFigures("")
	if err != nil {
		t.Fatal(err)
	}
	none.Put("8a", "epp", 1)
	got, err := ReadFigures(path)
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]map[string][]float64{"8a": {"epp": {2288, 2349, 2410}, "sglang-router": {2278}}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}
