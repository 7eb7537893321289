package epptest_test

import (
	"encoding/json"
	"fmt"
	"log"
	"net/http"
	"strings"

	"epp.internal/epp/epptest"
)

// A prompt that is sent twice is found in the cache the second time, but for its
// last tokens.
func ExampleStartEngine() {
	e, err := epptest.StartEngine(epptest.EngineConfig{Name: "a", TimeScale: 0.001})
	if err != nil {
		log.Fatal(err)
	}
	defer e.Close()
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	for range 2 {
		body := `{"model":"tiny","prompt":"` + strings.Repeat("word ", 20) + `","max_tokens":4}`
		resp, err := client.Post(e.URL()+"/v1/completions", "application/json", strings.NewReader(body))
		if err != nil {
			log.Fatal(err)
		}
		var answer struct {
			Usage struct {
				PromptTokens int `json:"prompt_tokens"`
				Details      struct {
					CachedTokens int `json:"cached_tokens"`
				} `json:"prompt_tokens_details"`
			} `json:"usage"`
		}
		if err := json.NewDecoder(resp.Body).Decode(&answer); err != nil {
			log.Fatal(err)
		}
		resp.Body.Close()
		u := answer.Usage
		fmt.Printf("%s: %d of %d tokens from the cache\n", resp.Header.Get("X-Served-By"), u.Details.CachedTokens, u.PromptTokens)
	}
	// Output:
	// a: 0 of 100 tokens from the cache
	// a: 96 of 100 tokens from the cache
}
