package picker_test

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"epp.internal/epp/decision"
	"epp.internal/epp/picker"
)

// BenchmarkPick is a request's whole way through the picker, from body to booking
// and back, over 32 endpoints, of which one holds all of a prompt of 4,096 tokens.
func BenchmarkPick(b *testing.B) {
	text := strings.Repeat("0123456789abcdef", 256)
	ids := list(byteTokens(text))
	batch := strings.TrimSuffix(strings.Repeat(fmt.Sprintf("%q,", text[:256]), 16), ",")
	for _, c := range []struct{ name, path, encoding, body string }{
		{"ids", "/v1/completions", "", `{"model":"m","prompt":` + ids + `}`},
		{"text", "/v1/completions", "", `{"model":"m","prompt":"` + text + `"}`},
		{"gzip", "/v1/completions", "gzip", `{"model":"m","prompt":"` + text + `"}`},
		{"zstd", "/v1/completions", "zstd", `{"model":"m","prompt":"` + text + `"}`},
		{"batch", "/v1/embeddings", "", `{"model":"m","input":[` + batch + `]}`},
		{"responses", "/v1/responses", "", `{"model":"m","input":"` + text + `"}`},
	} {
		b.Run(c.name, func(b *testing.B) {
			names := make([]string, 32)
			for i := range names {
				names[i] = fmt.Sprint("e", i)
			}
			p := newPool(b, decision.Defaults(), picker.Options{Tokenizer: byteTokenizer{}, Log: slog.New(slog.DiscardHandler)}, names...)
			p.unwatched = true
			p.members["e7"].Apply(start, stored(byteTokens(text), 16))
			body := []byte(c.body)
			if c.encoding != "" {
				body = zip(b, c.encoding, body)
			}
			in := picker.Incoming{ID: "1", Method: "POST", Path: c.path, ContentEncoding: c.encoding, Body: body}
			b.ReportAllocs()
			for b.Loop() {
				pk, err := p.Pick(context.Background(), in)
				if err != nil {
					b.Fatal(err)
				}
				pk.End(picker.Served)
			}
		})
	}
}
