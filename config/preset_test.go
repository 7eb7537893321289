package config

import (
	"testing"
)

// Every preset is a configuration without a fault, and an unknown one changes nothing.
func TestPresets(t *testing.T) {
	for _, name := range Presets() {
		c := Default()
		c.Pool.Endpoints = []Endpoint{{Address: "10.0.0.7:8000"}}
		if !c.Use(name) {
			t.Errorf("%s is not known", name)
		}
		for _, f := range c.Validate() {
			t.Errorf("%s: %s", name, f)
		}
	}
	c := Default()
	if c.Use("nonsense") || c.MaxQueue != Default().MaxQueue {
		t.Error("an unknown preset is known")
	}
}
