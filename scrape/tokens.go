package scrape

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"

	"epp.internal/epp"
)

// maxTokens bounds an engine's answer of tokens in bytes: a million tokens with
// their texts take less.
const maxTokens = 32 << 20

// Tokens has the engine at address tokenize the body of a request to path, which
// is "/tokenize" or "/v1/chat/completions/render". client is what [Client]
// returns. Where the engine refuses the
// request itself (a 4xx), the error is an *epp.Error of kind BadRequest, and of
// kind NotFound where the engine has no such path.
//
// Source: vLLM, TokenizeResponse {"tokens": […]}, and the render answer
// {"token_ids": […]}.
func Tokens(ctx context.Context, client *http.Client, address, path string, body []byte) ([]uint32, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+address+path, bytes.NewReader(body))
	if err != nil {
		return nil, fmt.Errorf("tokens of %q: %w", address, err)
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := client.Do(req)
	if err != nil {
		return nil, fmt.Errorf("tokens of %q: %w", address, err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(io.LimitReader(resp.Body, maxTokens+1))
	switch {
	case err != nil:
		return nil, fmt.Errorf("tokens of %q: %w", address, err)
	case resp.StatusCode == http.StatusNotFound || resp.StatusCode == http.StatusMethodNotAllowed || resp.StatusCode == http.StatusForbidden:
		return nil, epp.Errorf(epp.NotFound, "no_tokens", "the engine does not serve %s (status %d)", path, resp.StatusCode)
	case resp.StatusCode >= 400 && resp.StatusCode < 500:
		return nil, epp.Errorf(epp.BadRequest, "engine_refuses", "the engine refuses to tokenize it (status %d)", resp.StatusCode)
	case resp.StatusCode != http.StatusOK:
		return nil, fmt.Errorf("tokens of %q: status %d", address, resp.StatusCode)
	case len(text) > maxTokens:
		return nil, fmt.Errorf("tokens of %q: answer over %d bytes", address, maxTokens)
	}
	tokens, err := parseTokens(text)
	if err != nil {
		return nil, fmt.Errorf("tokens of %q: %w", address, err)
	}
	return tokens, nil
}

// parseTokens reads either form of an answer.
func parseTokens(text []byte) ([]uint32, error) {
	var told struct {
		Tokens   *[]uint32 `json:"tokens"`
		TokenIDs *[]uint32 `json:"token_ids"`
	}
	if err := json.Unmarshal(text, &told); err != nil {
		return nil, err
	}
	switch {
	case told.Tokens != nil:
		return *told.Tokens, nil
	case told.TokenIDs != nil:
		return *told.TokenIDs, nil
	}
	return nil, fmt.Errorf("answer has neither tokens nor token_ids")
}
