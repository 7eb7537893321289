package epptest

import (
	"io"
	"net/http"
	"regexp"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"
)

// created is a time in an answer.
var created = regexp.MustCompile(`"created(_at)?":[0-9]+`)

// TestForms: each request in testdata/forms is answered as it stands there, by one
// engine after the other's answer. vLLM 0.32's own types read these answers.
func TestForms(t *testing.T) {
	e := start(t, EngineConfig{})
	datadriven.RunTest(t, "testdata/forms", func(t *testing.T, d *datadriven.TestData) string {
		resp, err := http.Post(e.URL()+d.Cmd, "application/json", strings.NewReader(d.Input))
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		body, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		text := strings.ReplaceAll(created.ReplaceAllString(string(body), `"created$1":NOW`), "\n\n", "\n")
		return resp.Status + "\n" + strings.TrimSuffix(text, "\n") + "\n"
	})
}
