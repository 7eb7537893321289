package scrape_test

import (
	"errors"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"epp.internal/epp"
	"epp.internal/epp/scrape"
)

// TestTokens: the two forms in which an engine tells tokens, its refusals, and
// answers that are none of these.
func TestTokens(t *testing.T) {
	for _, c := range []struct {
		status int
		answer string
		want   []uint32
		kind   epp.Kind // Internal: an error that is the engine's alone
		text   string   // part of the error
	}{
		{200, `{"count":3,"max_model_len":4096,"tokens":[9707,11,1879],"token_strs":null}`, []uint32{9707, 11, 1879}, 0, ""},
		{200, `{"request_id":"r","token_ids":[151644,872],"sampling_params":{}}`, []uint32{151644, 872}, 0, ""},
		{200, `{"tokens":[]}`, []uint32{}, 0, ""},
		{200, `{"count":3}`, nil, epp.Internal, "neither tokens nor token_ids"},
		{200, `{"tokens":[-1]}`, nil, epp.Internal, "cannot unmarshal number -1"},
		{200, `<html>`, nil, epp.Internal, "invalid character"},
		{400, `{"error":{"message":"secret"}}`, nil, epp.BadRequest, "status 400"},
		{404, `{"error":"the model does not exist"}`, nil, epp.NotFound, "does not serve /tokenize"},
		{403, ``, nil, epp.NotFound, "status 403"},
		{302, ``, nil, epp.Internal, "status 302"},
		{500, ``, nil, epp.Internal, "status 500"},
	} {
		synctest.Test(t, func(t *testing.T) {
			var p pool
			var got []byte
			p.start(t, "10.0.0.1:8000", func(w http.ResponseWriter, r *http.Request) {
				got, _ = io.ReadAll(r.Body)
				w.Header().Set("Location", "http://169.254.169.254/")
				w.WriteHeader(c.status)
				_, _ = io.WriteString(w, c.answer)
			})
			client := scrape.Client(p.dial)
			defer client.CloseIdleConnections()
			tokens, err := scrape.Tokens(t.Context(), client, "10.0.0.1:8000", "/tokenize", []byte(`{"prompt":"a"}`))
			if string(got) != `{"prompt":"a"}` {
				t.Errorf("the engine was asked %q", got)
			}
			if c.want != nil {
				if err != nil || !slices.Equal(tokens, c.want) {
					t.Errorf("%s: %v %v", c.answer, tokens, err)
				}
				return
			}
			var e *epp.Error
			if err == nil || errors.As(err, &e) != (c.kind != epp.Internal) || epp.AsError(err).Kind != c.kind || !strings.Contains(err.Error(), c.text) {
				t.Errorf("%d %s: %v", c.status, c.answer, err)
			}
			if err != nil && strings.Contains(err.Error(), "secret") {
				t.Errorf("the engine's text is told: %v", err)
			}
		})
	}
}
