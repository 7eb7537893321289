package sim_test

import (
	"testing"

	"epp.internal/epp/sim"
)

// The figures by which the claims stand or fall, each with how far it may move when
// the picker or the model changes.
func TestClaims(t *testing.T) {
	claims, err := sim.Claims(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	type held struct {
		figure       string
		want, within float64
	}
	want := []struct {
		holds   bool
		figures []held
	}{
		{true, []held{{"8B cold", 900, 5}, {"70B cold", 8200, 40}, {"hit", 45, 1}}},
		{true, []held{{"random cold", 97, 1}, {"weighted cold", 0, 1}}},
		{true, []held{{"weighted hit", 88, 3}, {"least-conn hit", 44, 5}, {"round-robin hit", 45, 5}, {"random hit", 45, 5}}},
		{true, []held{{"weighted hit", 84, 4}, {"weighted-round-robin hit", 52, 6}}},
		{true, []held{{"URL: busiest endpoint, requests over the mean", 8, 0}}},
		{true, []held{{"weighted: turns that stay", 100, 2}, {"least-conn: turns that stay", 13, 5}}},
		{true, []held{{"turn 2", 81, 5}, {"turn 6 and later", 94, 4}}},
		{false, []held{{"weighted: busiest of 8 has", 28, 10}, {"least-conn:", 13, 1}, {"weighted with 256 slots:", 28, 10}}},
		{false, []held{{"weighted: busiest of 8 has", 28, 10}, {"gate: busiest of 8 has", 26, 10}, {"latency: busiest of 8 has", 26, 10}}},
		{true, []held{{"turns that leave", 32, 12}, {"with a partial match", 3, 2}, {"cold", 0, 0}}},
		{true, []held{{"second requests that find the first one's blocks", 100, 0}}},
		{false, []held{{"weighted hit", 85, 3}, {"gate hit", 84, 3}}},
	}
	if len(claims) != len(want) {
		t.Fatalf("%d claims, want %d", len(claims), len(want))
	}
	for i, c := range claims {
		if c.Holds != want[i].holds || !c.Holds && c.Why == "" {
			t.Errorf("%s: holds is %v, why %q: %v", c.Says, c.Holds, c.Why, c.Lines())
		}
		for _, h := range want[i].figures {
			found := false
			for _, f := range c.Figures {
				if f.Name != h.figure {
					continue
				}
				if found = true; f.Value < h.want-h.within || f.Value > h.want+h.within {
					t.Errorf("%s: %s is %.2f, want %.0f ± %.0f", c.Says, f.Name, f.Value, h.want, h.within)
				}
				break
			}
			if !found {
				t.Errorf("%s: no figure %q in %v", c.Says, h.figure, c.Lines())
			}
		}
	}
}
